#!/usr/bin/env python3
"""Rejects includes that go upward or sideways, and include cycles.

    core <- net <- {admission, cache} <- shard;  core/boot, tests and bench may include everything

Usage: check_layers.py [ROOT] | check_layers.py --self-test
Prints a line a violation; exit status 1 where there is one.
"""
import os
import re
import sys
import tempfile

MAY_INCLUDE = {
    "core": {"core"},
    "net": {"core", "net"},
    "admission": {"core", "net", "admission"},
    "cache": {"core", "net", "cache"},
    "shard": {"core", "net", "admission", "cache", "shard"},
}
COMPOSITION_ROOT = "core/boot"
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.M)


def sources(root):
    for folder in MAY_INCLUDE:
        for directory, folders, files in os.walk(os.path.join(root, folder)):
            folders.sort()
            for name in sorted(files):
                if name.endswith((".c", ".h", ".def")):
                    yield os.path.relpath(os.path.join(directory, name), root)


def included(root, path):
    """What a file includes of ours, as paths from the root. An include is written from the root ("net/conn.h"); beside the file is accepted too."""
    with open(os.path.join(root, path), encoding="utf-8") as file:
        text = file.read()
    for match in INCLUDE.finditer(text):
        name = match.group(1)
        line = text.count("\n", 0, match.start()) + 1
        beside = os.path.normpath(os.path.join(os.path.dirname(path), name))
        if os.path.exists(os.path.join(root, name)):
            yield line, name
        elif os.path.exists(os.path.join(root, beside)):
            yield line, beside


def find_cycles(graph):
    """Each cycle once, as a list of paths."""
    cycles, state, stack = [], {}, []

    def visit(node):
        state[node] = "open"
        stack.append(node)
        for other in graph.get(node, ()):
            if state.get(other) == "open":
                cycles.append(stack[stack.index(other):] + [other])
            elif other not in state:
                visit(other)
        stack.pop()
        state[node] = "done"

    for node in sorted(graph):
        if node not in state:
            visit(node)
    return cycles


def check(root):
    problems, graph = [], {}
    for path in sources(root):
        graph[path] = []
        layer = path.split("/")[0]
        for line, target in included(root, path):
            graph[path].append(target)
            if path.startswith(COMPOSITION_ROOT + "/"):
                continue
            target_layer = target.split("/")[0]
            if target.startswith(COMPOSITION_ROOT + "/"):
                problems.append("%s:%d: includes %s, of the composition root" % (path, line, target))
            elif target_layer not in MAY_INCLUDE[layer]:
                problems.append("%s:%d: %s may not include %s (%s)" % (path, line, layer, target_layer, target))
    for cycle in find_cycles(graph):
        problems.append("include cycle: " + " -> ".join(cycle))
    return problems, len(graph)


def self_test():
    """The check finds what it is there for, each kind of it, and nothing in a tree that is right."""
    def tree(files):
        directory = tempfile.TemporaryDirectory()
        for name, text in files.items():
            path = os.path.join(directory.name, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as file:
                file.write(text)
        return directory

    right = {"core/a.h": "#pragma once\n", "net/b.h": '#include "core/a.h"\n', "admission/d.c": '#include "net/b.h"\n', "shard/c.c": '#include "net/b.h"\n#include "core/a.h"\n',
             "core/boot/main.c": '#include "shard/e.h"\n', "shard/e.h": ""}
    cases = [
        ({}, 0, ""),
        ({"core/x.c": '#include "net/b.h"\n'}, 1, "core may not include net"),
        ({"net/x.c": '  #  include "shard/e.h"\n'}, 1, "net may not include shard"),
        ({"cache/x.c": '#include "admission/y.h"\n', "admission/y.h": ""}, 1, "cache may not include admission"),
        ({"shard/x.c": '#include "core/boot/worker.h"\n', "core/boot/worker.h": ""}, 1, "composition root"),
        ({"core/x.c": '#include "../net/b.h"\n'}, 1, "core may not include net"),
        ({"core/p.h": '#include "core/q.h"\n', "core/q.h": '#include "core/p.h"\n'}, 1, "include cycle"),
    ]
    for extra, count, text in cases:
        with tree({**right, **extra}) as root:
            problems, _ = check(root)
            assert len(problems) == count, (extra, problems)
            assert all(text in problem for problem in problems), (extra, problems)
    print("check_layers: self-test: %d cases" % len(cases))


def main():
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        return 0
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    problems, count = check(root)
    for problem in problems:
        print(problem)
    if count == 0:
        print("no sources below " + root)
        return 1
    print("check_layers: %d files, %d problems" % (count, len(problems)))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
