#!/usr/bin/env python3
"""Format check by clang-format 14 and .clang-format: indentation, spaces, braces, alignment. Lines are broken where the author broke them.

    check_format.py [--fix] [FILE...]      all C files below core, net, admission, cache, shard, bench, tests without FILE
    check_format.py --self-test

Left alone: enumerations and initializers (clang-format would give each entry a line of its own), macros of several lines, tables and recorded data (.def, tests/**/*_table.h, *_reply.h, data/) and what stands between
"clang-format off" and "on". Also checked: no tabs, no trailing spaces, no line above 240 characters, a line break at the end.
"""
import difflib
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDERS = ("core", "net", "admission", "cache", "shard", "bench", "tests")
LINE_MAX = 240
DIFF_LINES_MAX = 12


def c_files():
    for folder in FOLDERS:
        for directory, folders, names in os.walk(os.path.join(ROOT, folder)):
            folders[:] = sorted(name for name in folders if name not in ("node_modules", "data", "corpus"))
            for name in sorted(names):
                is_data = folder == "tests" and name.endswith(("_table.h", "_reply.h"))
                if name.endswith((".c", ".h")) and not is_data:
                    yield os.path.join(directory, name)


def ranges_to_format(lines):
    """(first, last) pairs of line numbers without enumerations, initializers of several lines and macros of several lines."""
    skipped, inside = set(), None
    for number, line in enumerate(lines, 1):
        if inside is None:
            if re.match(r"\s*(static\s+)?enum\b[^;()=]*(\{|$)", line):
                inside = "enum"
            elif line.rstrip().endswith("= {"):
                inside = "initializer"
            elif re.match(r"\s*#\s*define\b.*\\$", line):
                inside = "macro"
        if inside is not None:
            skipped.add(number)
            if inside == "macro":
                is_last = not line.endswith("\\")
            elif inside == "enum":
                is_last = "};" in line or re.search(r"\}\s*\w*;", line)
            else:
                is_last = line.rstrip().endswith("};")
            if is_last:
                inside = None
    ranges = []
    for number in range(1, len(lines) + 1):
        if number in skipped:
            continue
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges


def formatted(path, text):
    ranges = ranges_to_format(text.split("\n")[:-1] or [""])
    if not ranges:
        return text
    args = ["clang-format", "--style=file:" + os.path.join(ROOT, ".clang-format"), "--assume-filename=" + path]
    result = subprocess.run(args + ["--lines=%d:%d" % pair for pair in ranges], input=text, stdout=subprocess.PIPE, text=True, check=True)
    return result.stdout


def check(path, fix):
    """Problems of one file, as lines of text."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    name = os.path.relpath(path, ROOT)
    problems = []
    want = formatted(path, text)
    if want != text and fix:
        with open(path, "w", encoding="utf-8") as file:
            file.write(want)
        text = want
    if want != text:
        diff = list(difflib.unified_diff(text.split("\n"), want.split("\n"), name, "formatted", lineterm="", n=0))
        problems.append("%s: %d lines to reformat (scripts/check_format.py --fix %s)" % (name, sum(line.startswith("-") for line in diff[2:]), name))
        problems += diff[2 : 2 + DIFF_LINES_MAX]
    for number, line in enumerate(text.split("\n"), 1):
        if "\t" in line:
            problems.append("%s:%d: a tab" % (name, number))
        if line != line.rstrip():
            problems.append("%s:%d: trailing space" % (name, number))
        if len(line) > LINE_MAX:
            problems.append("%s:%d: %d characters, at most %d" % (name, number, len(line), LINE_MAX))
    if text and not text.endswith("\n"):
        problems.append("%s: no line break at the end" % name)
    return problems


def self_test():
    right = "enum { A = 1, B };\n\nint f(int a)\n{\n    if (a)\n        return 1;\n    return 0;\n}\n"
    wrong = [right.replace("    if", "  if"), right.replace("int a)\n{", "int a) {"), right.replace("if (a)", "if(a)"), right[:-1], right.replace("return 1;", "return 1; "),
             right.replace("A = 1", "A = 1" + " " * 240), right.replace("    return 0", "\treturn 0")]
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "a.c")
        for text, is_right in [(right, True)] + [(text, False) for text in wrong]:
            with open(path, "w") as file:
                file.write(text)
            assert bool(check(path, False)) != is_right, text
        with open(path, "w") as file:
            file.write(wrong[0])
        assert not check(path, True)
    print("check_format: self-test: %d cases" % (len(wrong) + 2))


def main():
    args = sys.argv[1:]
    if args == ["--self-test"]:
        self_test()
        return 0
    fix = "--fix" in args
    files = [os.path.abspath(arg) for arg in args if arg != "--fix"] or list(c_files())
    problems = [problem for path in files for problem in check(path, fix)]
    for problem in problems:
        print(problem)
    print("check_format: %d files, %s" % (len(files), "%d problems" % len([line for line in problems if not line.startswith(("-", "+", "@"))]) if problems else "all right"))
    return 1 if problems or not files else 0


if __name__ == "__main__":
    sys.exit(main())
