#!/usr/bin/env python3
"""Documentation agrees with the sources: generated pages are current, links and file names that are mentioned exist.

    check_docs.py [--fix] [ROOT]      --fix writes docs/metrics.md (from core/metrics.def), docs/commands.md (from net/command.def, by gen_commands.py) and the list of
                                      options in docs/configuration.md (from zgateway --print-config)
    check_docs.py --self-test

docs/configuration.md needs the program: build/zgateway under ROOT, or ZG_GATEWAY. Without it that page is only checked to exist.
"""
import os
import re
import subprocess
import sys
import tempfile

import gen_commands

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDERS = "core|net|admission|cache|shard|bench|tests|scripts|docs"
OPTIONS_BEGIN = "<!-- options: begin; from core/options.def by scripts/check_docs.py --fix -->"
OPTIONS_END = "<!-- options: end -->"
METRIC = re.compile(r'^METRIC\((\w+),\s*(\w+),\s*"([^"]*)",\s*"([^"]*)"\)', re.M)

# What INFO's section shows besides the sums: core/boot/info.c.
DERIVED = {
    "zgateway_memory_limit": ("bytes", "`limits.memory`, or what stands for it (in `INFO memory`)."),
    "zgateway_data_cores": ("cores", "Data cores."),
    "zgateway_uptime_seconds": ("seconds", "Since the start of the process."),
    "zgateway_allocations_total": ("calls", "Calls of the heap, by all cores. In steady state it does not grow."),
    "zgateway_request_p50_us": ("microseconds", "From a command's arrival to its reply, half of all commands since the start: at most this."),
    "zgateway_request_p99_us": ("microseconds", "The same of 99 in 100."),
    "zgateway_request_p999_us": ("microseconds", "The same of 999 in 1,000."),
    "zgateway_batch_legs_avg": ("legs", "Legs in a batch, the mean since the start."),
    "zgateway_batch_legs_p99": ("legs", "Legs in a batch: 99 in 100 batches have at most this."),
}


def info_names(root):
    """The names that core/boot/info.c writes by itself, without those of core/metrics.def."""
    with open(os.path.join(root, "core", "boot", "info.c"), encoding="utf-8") as file:
        names = re.findall(r'"(zgateway_\w+)"', file.read())
    with open(os.path.join(root, "core", "metrics.def"), encoding="utf-8") as file:
        metrics = {"zgateway_" + row[0] for row in METRIC.findall(file.read())}
    return [name for name in names if name not in metrics]


def metrics_page(root):
    with open(os.path.join(root, "core", "metrics.def"), encoding="utf-8") as file:
        rows = METRIC.findall(file.read())
    lines = ["# Metrics", "", "Generated from core/metrics.def by `scripts/check_docs.py --fix`: change it there.", "",
             "Every core counts for itself; `INFO` shows the sums as `zgateway_<name>` in its section `zgateway`.", "",
             "| name | kind | unit | meaning |", "| --- | --- | --- | --- |"]
    lines += ["| zgateway_%s | %s | %s | %s |" % (name, kind.lower(), unit, text) for name, kind, unit, text in rows]
    lines += ["", "`INFO` shows besides, over all cores since the start:", "", "| name | unit | meaning |", "| --- | --- | --- |"]
    lines += ["| %s | %s | %s |" % ((name,) + DERIVED[name]) for name in info_names(root) if name in DERIVED]
    return "\n".join(lines) + "\n", len(rows)


def configuration_page(root):
    program = os.environ.get("ZG_GATEWAY", os.path.join(root, "build", "zgateway"))
    if not os.path.exists(program):
        return None
    text = subprocess.run([program, "--print-config"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True).stdout
    block = OPTIONS_BEGIN + "\n```yaml\n" + text.rstrip("\n") + "\n```\n" + OPTIONS_END
    path = os.path.join(root, "docs", "configuration.md")
    page = open(path, encoding="utf-8").read() if os.path.exists(path) else ""
    begin, end = page.find(OPTIONS_BEGIN), page.find(OPTIONS_END)
    if 0 <= begin < end: # written by hand around the list
        return page[:begin] + block + page[end + len(OPTIONS_END):]
    return "# Configuration\n\n" + block + "\n"


def pages(root):
    for directory, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith((".", "build")) and name != "node_modules"]
        for name in files:
            if name.endswith(".md"):
                yield os.path.join(directory, name)


def check(root, fix=False):
    problems = []
    for name, make in (("metrics.md", lambda: metrics_page(root)[0]), ("configuration.md", lambda: configuration_page(root))):
        path = os.path.join(root, "docs", name)
        want = make()
        have = open(path, encoding="utf-8").read() if os.path.exists(path) else None
        if want is None:
            if have is None:
                problems.append("docs/%s does not exist, and there is no program to make it from" % name)
        elif want != have:
            if fix:
                with open(path, "w", encoding="utf-8") as file:
                    file.write(want)
            else:
                problems.append("docs/%s is not what the sources say: scripts/check_docs.py --fix" % name)
    problems += ["core/boot/info.c: %s has no text in scripts/check_docs.py" % name for name in info_names(root) if name not in DERIVED]
    if fix:
        gen_commands.write(root)
    problems += gen_commands.problems(root)
    count = 0
    for page in pages(root):
        count += 1
        where = os.path.relpath(page, root)
        with open(page, encoding="utf-8") as file:
            text = file.read()
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if not re.match(r"[a-z]+:|#", target):
                target = target.split("#")[0]
                if not os.path.exists(os.path.join(os.path.dirname(page), target)):
                    problems.append("%s: a link to %s, which does not exist" % (where, target))
        # `core/loop` stands for loop.c and loop.h, `core/boot` for a folder.
        for name in re.findall(r"`((?:%s)/[\w./-]+)`" % FOLDERS, text):
            path = os.path.join(root, name.rstrip("/"))
            if not any(os.path.exists(path + ending) for ending in ("", ".c", ".h", ".def")):
                problems.append("%s: mentions %s, which does not exist" % (where, name))
    if count == 0:
        problems.append("no documentation below " + root)
    return problems, count


def self_test():
    def tree(directory, **change):
        files = {"core/metrics.def": 'METRIC(a_total, COUNTER, "things", "Things.")\n',
                 "net/command.def": 'ZG_COMMAND(get, "get", 2, READONLY, CAT_STRING, FORWARD, NONE, none, KEY(RO))\n', "core/loop.h": "", "scripts/gen_commands.py": "",
                 "core/boot/info.c": 'put_line(text, "zgateway_data_cores", 1);\n', "docs/configuration.md": "x", "README.md": "[a](docs/metrics.md) `core/loop`\n"}
        files.update({name.replace("__", "/").replace("_md", ".md"): text for name, text in change.items()})
        for name, text in files.items():
            os.makedirs(os.path.dirname(os.path.join(directory, name)), exist_ok=True)
            with open(os.path.join(directory, name), "w") as file:
                file.write(text)

    saved = os.environ.pop("ZG_GATEWAY", None)
    cases = [({}, None), ({"README_md": "[a](docs/none.md)\n"}, "a link to"), ({"README_md": "`core/nothing.c`\n"}, "mentions core/nothing.c"), ({"docs__metrics_md": "# old\n"}, "not what the sources say"),
             ({"core__boot__info.c": '"zgateway_data_cores" "zgateway_nobody_knows"'}, "zgateway_nobody_knows"),
             ({"docs__commands_md": "# old\n"}, "not what net/command.def says")]
    for change, want in cases:
        with tempfile.TemporaryDirectory() as root:
            tree(root)
            check(root, fix=True)
            tree(root, **change)
            problems, _ = check(root)
            assert (len(problems) == 1 and want in problems[0]) if want else not problems, (change, problems)
    if saved is not None:
        os.environ["ZG_GATEWAY"] = saved
    print("check_docs: self-test: %d cases" % len(cases))


def main():
    args = sys.argv[1:]
    if args == ["--self-test"]:
        self_test()
        return 0
    fix = "--fix" in args
    args = [arg for arg in args if arg != "--fix"]
    problems, count = check(args[0] if args else ROOT, fix)
    for problem in problems:
        print(problem)
    print("check_docs: %d pages, %d problems" % (count, len(problems)))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
