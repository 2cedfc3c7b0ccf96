#!/usr/bin/env python3
"""docs/commands.md: what the gateway does about each command, from the rows of net/command.def.

    gen_commands.py [ROOT]            writes the page
    gen_commands.py --check [ROOT]    exit status 1 where the page is not what the rows say
    gen_commands.py --self-test
"""
import os
import re
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROW = re.compile(r'^\s*ZG_(?:COMMAND\(|SUBCOMMAND\((\w+),\s*)(\w+), "([^"]+)", -?\d+, [^,]+, [^,]+, (\w+), (\w+), (\w+), ')
GROUP = re.compile(r"^/\* (\w[\w ]*)\. \*/$")
HANDLING = {
    "FORWARD": "forwarded",
    "SPLIT": "split",
    "LOCAL": "answered by the gateway",
    "UNSUPPORTED": "not in this version",
    "REFUSED": "refused",
}
MERGE = {"SUM": "split; the sum of the parts", "BY_KEY": "split; values in the order of the keys", "ALL_OK": "split; not atomic over several slots"}
# Forms that are not served: of forwarded commands command_is_unsupported_call() of net/command_keys.c, of others what net/session*.c answers.
ONLY = {
    "xread": "without `BLOCK`", "xreadgroup": "without `BLOCK`", "sort": "without `BY` and `GET` patterns", "sort_ro": "without `BY` and `GET` patterns",
    "select": "database 0 alone", "client list": "the connection that asks",
}
INTRODUCTION = """# Commands

Generated from net/command.def by `scripts/gen_commands.py`: change it there.

| how | what it means |
| --- | --- |
| forwarded | To the node that owns the slot of its keys, whose reply comes back unchanged. Keys in several slots answer `CROSSSLOT`. |
| split | Keys may lie in any slots: each slot's node gets its part, and the replies become one. |
| answered by the gateway | No backend sees it: about the connection, or about the gateway as one server. |
| not in this version | `ERR '...' is not supported by this version of the gateway`; the connection stays. |
| refused | `ERR '...' is not allowed through the gateway`; the connection stays. These would change a server or its cluster behind everybody's back. |

The table is that of Redis 7.0. What a backend's `COMMAND` has beyond it, of newer servers and of modules, is completed from there: with keys in known
places it is forwarded, an administrator's command is refused, the rest is not in this version. What neither has is answered `ERR unknown command`.
"""


def rows(root):
    """(group, container or None, name, handling, merge) of each row, in the file's order."""
    found = []
    names = {}
    group = ""
    with open(os.path.join(root, "net", "command.def"), encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            heading = GROUP.match(line)
            if heading:
                group = heading.group(1)
            if not re.match(r"\s*ZG_(SUB)?COMMAND\((?!\.\.\.)", line):
                continue
            row = ROW.match(line)
            if row is None or row.group(4) not in HANDLING:
                raise ValueError("net/command.def:%d: not a row that this script knows" % number)
            container, symbol, name, handling, merge, _ = row.groups()
            if container is None:
                names[symbol] = name
            found.append((group, names[container] if container else None, name, handling, merge))
    if not found:
        raise ValueError("net/command.def: no rows")
    return found


def describe(name, handling, merge):
    text = MERGE[merge] if handling == "SPLIT" else HANDLING[handling]
    return text + (", " + ONLY[name] if name in ONLY and handling in ("FORWARD", "LOCAL") else "")


def page(root):
    found = rows(root)
    containers = {container for _, container, *_ in found}
    found = [row for row in found if row[2] not in containers or row[1] is not None]  # their subcommands say it
    counts = {handling: sum(1 for row in found if row[3] == handling) for handling in HANDLING}
    lines = [INTRODUCTION, "Rows: " + ", ".join("%d %s" % (counts[handling], text) for handling, text in HANDLING.items()) + "."]
    group = None
    for group_of_row, container, name, handling, merge in found:
        if group_of_row != group:
            group = group_of_row
            lines += ["", "## " + group, "", "| command | how |", "| --- | --- |"]
        full = (container + " " if container else "") + name
        lines.append("| %s | %s |" % (full.upper(), describe(full, handling, merge)))
    return "\n".join(lines) + "\n"


def problems(root):
    """What is wrong with the page, as lines for scripts/check_docs.py."""
    path = os.path.join(root, "docs", "commands.md")
    try:
        want = page(root)
    except (OSError, ValueError) as problem:
        return [str(problem)]
    have = open(path, encoding="utf-8").read() if os.path.exists(path) else None
    return [] if have == want else ["docs/commands.md is not what net/command.def says: scripts/gen_commands.py"]


def write(root):
    with open(os.path.join(root, "docs", "commands.md"), "w", encoding="utf-8") as file:
        file.write(page(root))


def self_test():
    good = """#define ZG_COMMAND(...)
/* String. */
ZG_COMMAND(get, "get", 2, READONLY | FAST, CAT_STRING, FORWARD, NONE, none, KEY(RO | ACCESS))
ZG_COMMAND(del, "del", -2, WRITE, CAT_KEYSPACE, SPLIT, SUM, none, RANGE(1, -1, 1, 0, RM))
/* Server. */
ZG_COMMAND(config, "config", -2, 0, 0, UNSUPPORTED, NONE, none, NO_KEYS)
    ZG_SUBCOMMAND(config, set, "set", -4, ADMIN, 0, REFUSED, NONE, none, NO_KEYS)
"""
    with tempfile.TemporaryDirectory() as root:
        for folder in ("net", "docs"):
            os.mkdir(os.path.join(root, folder))

        def table(text):
            with open(os.path.join(root, "net", "command.def"), "w", encoding="utf-8") as file:
                file.write(text)

        table(good)
        assert problems(root), "a page that does not exist was accepted"
        write(root)
        assert not problems(root), problems(root)
        text = page(root)
        for line in ("| GET | forwarded |", "| DEL | split; the sum of the parts |", "| CONFIG SET | refused |", "## Server", "Rows: 1 forwarded, 1 split, 0 answered by the gateway, 0 not in this version, 1 refused."):
            assert line in text, (line, text)
        table(good.replace("FORWARD", "LOCAL"))
        assert problems(root), "an old page was accepted"
        table(good.replace("FORWARD", "BACKWARD"))
        assert "command.def:3" in problems(root)[0]
        table("")
        assert "no rows" in problems(root)[0]
    print("gen_commands: self-test: 5 cases")


def main():
    args = sys.argv[1:]
    if args == ["--self-test"]:
        self_test()
        return 0
    is_check = "--check" in args
    args = [arg for arg in args if arg != "--check"]
    root = args[0] if args else ROOT
    if not is_check:
        write(root)
    found = problems(root)
    for problem in found:
        print(problem)
    print("gen_commands: %d rows, %d problems" % (0 if found else len(rows(root)), len(found)))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
