#!/usr/bin/env python3
"""Counts what a test runner ran: prints "PASSED FAILED".

    count_tests.py meson  BUILD/meson-logs/testlog.json    Criterion's cases by their TAP lines; a plain program counts as one
    count_tests.py unit   BUILD/meson-logs/testlog.json    the same; plain programs alone, without one case of Criterion's, are a failure
    count_tests.py pytest JUNIT.xml
    count_tests.py node   LOG                              the closing lines of node's runner, summed over its runs
    count_tests.py --self-test

A runner that left nothing behind, or that ran no test, counts as one failure.
"""
import json
import os
import re
import sys
import tempfile
import xml.etree.ElementTree


def meson(path):
    passed = failed = 0
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            test = json.loads(line)
            output = test.get("stdout") or ""
            good = len(re.findall(r"^ok\b(?!.*# SKIP)", output, re.M))
            bad = len(re.findall(r"^not ok\b(?!.*# TODO)", output, re.M))
            is_fine = test["result"] in ("OK", "EXPECTEDFAIL", "SKIP")
            if good + bad == 0:
                good = 1 if test["result"] == "OK" else 0
            if not is_fine and bad == 0:
                bad = 1  # crashed, timed out, or wrote a plan that it did not keep
            passed += good
            failed += bad
    return passed, failed


def has_cases(path):
    """Whether a log holds one TAP line at least: without Criterion meson leaves the unit tests out, and what remains must not pass for them."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return any(re.search(r"^(not )?ok\b", json.loads(line).get("stdout") or "", re.M) for line in file)


def unit(path):
    passed, failed = meson(path)
    if not has_cases(path):
        print("count_tests: no unit test ran (is libcriterion-dev there?)", file=sys.stderr)
        failed += 1
    return passed, failed


def pytest(path):
    root = xml.etree.ElementTree.parse(path).getroot()
    passed = failed = 0
    for suite in root.iter("testsuite"):
        tests, bad, skipped = (int(suite.get(name, 0)) for name in ("tests", "failures", "skipped"))
        bad += int(suite.get("errors", 0))
        failed += bad
        passed += max(0, tests - bad - skipped)
    return passed, failed


def node(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    count = {name: sum(int(number) for number in re.findall(r"^(?:#|ℹ) %s (\d+)$" % name, text, re.M)) for name in ("pass", "fail", "cancelled")}
    return count["pass"], count["fail"] + count["cancelled"]


RUNNERS = {"meson": meson, "unit": unit, "pytest": pytest, "node": node}


def count(runner, path):
    try:
        passed, failed = RUNNERS[runner](path)
    except (OSError, ValueError, KeyError, xml.etree.ElementTree.ParseError) as problem:
        print("count_tests: %s: %s" % (path, problem), file=sys.stderr)
        return 0, 1
    return (passed, failed) if passed + failed else (0, 1)


def self_test():
    def line(result, stdout):
        return json.dumps({"name": "x", "result": result, "stdout": stdout}) + "\n"

    cases = [
        ("meson", line("OK", "1..2\nok - a\nok - b\n") + line("OK", ""), (3, 0)),
        ("meson", line("FAIL", "1..2\nok - a\nnot ok - b\n"), (1, 1)),
        ("meson", line("FAIL", "") + line("TIMEOUT", "ok - a\n"), (1, 2)),
        ("meson", "", (0, 1)),
        ("meson", "not json\n", (0, 1)),
        ("unit", line("OK", "1..2\nok - a\nok - b\n") + line("OK", ""), (3, 0)),
        ("unit", line("FAIL", "1..1\nnot ok - a\n") + line("OK", ""), (1, 1)),
        ("unit", line("OK", "") + line("OK", ""), (2, 1)),
        ("pytest", '<testsuites><testsuite tests="5" failures="1" errors="1" skipped="1"/></testsuites>', (2, 2)),
        ("pytest", '<testsuites><testsuite tests="0" failures="0" errors="0" skipped="0"/></testsuites>', (0, 1)),
        ("pytest", "<", (0, 1)),
        ("node", "# pass 3\n# fail 0\n# cancelled 0\n# pass 2\n# fail 1\n# cancelled 1\n", (5, 2)),
        ("node", "ℹ pass 3\nℹ fail 0\n", (3, 0)),
        ("node", "", (0, 1)),
    ]
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "log")
        for runner, text, want in cases:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            assert count(runner, path) == want, (runner, text, count(runner, path), want)
    assert count("pytest", "/nonexistent") == (0, 1)
    print("count_tests: self-test: %d cases" % (len(cases) + 1))


def main():
    if sys.argv[1:] == ["--self-test"]:
        self_test()
    elif len(sys.argv) == 3 and sys.argv[1] in RUNNERS:
        print("%d %d" % count(sys.argv[1], sys.argv[2]))
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
