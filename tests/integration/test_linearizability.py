"""The checker of tests/integration/linearizability.py itself: good and bad histories that are known, all histories of a few operations against a search by brute force, and long ones."""
import itertools
import math
import os
import random

import pytest

from linearizability import OK, UNDECIDED, UNKNOWN, VIOLATION, Loss, Operation, apply, check

SEED = int(os.environ.get("ZG_SEED") or random.SystemRandom().randrange(1 << 32))


def op(name, argument, invoked, returned, result):
    return Operation("c", name, argument, invoked, returned, result)


def get(invoked, returned, result):
    return op("GET", None, invoked, returned, result)


def put(value, invoked, returned, result="OK"):
    return op("SET", value, invoked, returned, result)


def incr(invoked, returned, result):
    return op("INCR", None, invoked, returned, result)


GOOD = {
    "one after the other": [put(b"a", 0, 1), get(2, 3, b"a"), put(b"b", 4, 5), get(6, 7, b"b")],
    "a read beside a write sees either": [put(b"a", 0, 1), put(b"b", 2, 9), get(3, 4, b"a"), get(5, 6, b"b")],
    "writes beside each other in either order": [put(b"a", 0, 9), put(b"b", 0, 9), get(10, 11, b"a")],
    "before all": [get(0, 1, None)],
    "a write without outcome that was done": [put(b"a", 0, 1), put(b"b", 2, 3, UNKNOWN), get(4, 5, b"b")],
    "a write without outcome that was not": [put(b"a", 0, 1), put(b"b", 2, 3, UNKNOWN), get(4, 5, b"a")],
    "one that is done late": [put(b"a", 0, 1), put(b"b", 2, 3, UNKNOWN), get(4, 5, b"a"), put(b"c", 6, 7), get(8, 9, b"c"), get(10, 11, b"b")],
    "one that is done between two": [incr(0, 1, 1), incr(2, 3, UNKNOWN), incr(4, 5, 2), incr(6, 7, 4)],
    "several, in an order of their own": [op("APPEND", b"x", 0, 1, UNKNOWN), op("APPEND", b"yy", 0, 1, UNKNOWN), get(2, 3, b"yyx")],
    "one that only a length tells of": [put(b"a", 0, 1), op("APPEND", b"b", 2, 3, UNKNOWN), op("APPEND", b"c", 4, 5, 3), get(6, 7, b"abc")],
    "one of two of a length, which a read tells apart": [put(b"aa", 0, 1), put(b"bb", 2, 3, UNKNOWN), op("APPEND", b"c", 4, 5, 3), get(6, 7, b"bbc")],
    "an overwriting one with more behind": [put(b"9", 0, 1, UNKNOWN), incr(2, 3, UNKNOWN), get(4, 5, b"10")],
    "deleted and made anew": [incr(0, 1, 1), op("DEL", None, 2, 3, UNKNOWN), incr(4, 5, 1)],
    "the old value": [put(b"a", 0, 1), op("GETSET", b"b", 2, 3, b"a"), op("DEL", None, 4, 5, 1), op("GETSET", b"c", 6, 7, None)],
    "a read without outcome": [put(b"a", 0, 1), get(2, 3, UNKNOWN), get(4, 5, b"a")],
    "at the same time": [put(b"a", 0, 1), put(b"b", 1, 2), get(3, 4, b"b")],
    "nothing": [],
}
BAD = {
    "a stale read": [put(b"a", 0, 1), put(b"b", 2, 3), get(4, 5, b"a")],
    "a read of nothing": [put(b"a", 0, 1), get(2, 3, None)],
    "a value that nobody wrote": [put(b"a", 0, 1), get(2, 3, b"z")],
    "back again": [put(b"a", 0, 1), put(b"b", 2, 9), get(3, 4, b"b"), get(5, 6, b"a")],
    "two readers disagree": [put(b"a", 0, 9), put(b"b", 0, 9), get(10, 11, b"a"), get(12, 13, b"b"), get(14, 15, b"a")],
    "an increment done twice": [incr(0, 1, 1), incr(2, 3, 3)],
    "two increments that met": [incr(0, 9, 1), incr(0, 9, 1)],
    "one without outcome done twice": [incr(0, 1, UNKNOWN), incr(2, 3, 3)],
    "one without outcome done before its call": [put(b"a", 0, 1), get(2, 3, b"b"), put(b"b", 4, 5, UNKNOWN)],
    "one without outcome undone": [put(b"a", 0, 1), put(b"b", 2, 3, UNKNOWN), get(4, 5, b"b"), get(6, 7, b"a")],
    "a piece lost": [put(b"a", 0, 1), op("APPEND", b"b", 2, 3, 2), op("APPEND", b"c", 4, 5, 2)],
    "an append that came before its call": [op("APPEND", b"b", 4, 5, 2), get(0, 1, b"b"), op("APPEND", b"c", 6, 7, 3)],
    "deleted twice": [put(b"a", 0, 1), op("DEL", None, 2, 3, 1), op("DEL", None, 4, 5, 1)],
    "the reply of another": [put(b"a", 0, 1), op("GETSET", b"b", 2, 3, b"x")],
}


@pytest.mark.parametrize("name", GOOD)
def test_good_histories_are_fine(name):
    assert check(GOOD[name]).kind == OK, check(GOOD[name])


@pytest.mark.parametrize("name", BAD)
def test_bad_histories_are_violations_and_explained(name):
    verdict = check(BAD[name])
    assert verdict.kind == VIOLATION, verdict
    assert "None of these can be next" in verdict.text


def test_a_loss_explains_one_fall_back_within_its_time():
    fallen = [put(b"a", 0, 1), put(b"b", 2, 3), get(10, 11, b"a"), get(12, 13, b"a")]
    assert check(fallen).kind == VIOLATION
    assert check(fallen, [Loss(4, 9)]).kind == OK
    assert check(fallen, [Loss(0, 1)]).kind == VIOLATION  # over before the write that it would have undone
    assert check(fallen, [Loss(14, 15)]).kind == VIOLATION  # and after what it would explain
    # Everybody sees it alike: once somebody has read the older value, the newer one is gone.
    assert check(fallen + [get(14, 15, b"b")], [Loss(4, 9)]).kind == VIOLATION
    assert check(fallen + [get(14, 15, b"b")], [Loss(4, 9), Loss(4, 13)]).kind == OK
    # To what the key has been, not to what it never was.
    assert check([put(b"a", 0, 1), put(b"b", 2, 3), get(10, 11, b"c"), put(b"c", 12, 13)], [Loss(4, 9)]).kind == VIOLATION
    counted = [incr(0, 1, 1), incr(2, 3, 2), incr(4, 5, 3), incr(10, 11, 2), get(12, 13, b"2")]
    assert check(counted).kind == VIOLATION
    assert check(counted, [Loss(6, 9)]).kind == OK
    assert check(counted + [get(14, 15, b"3")], [Loss(6, 9)]).kind == VIOLATION
    assert check([incr(0, 1, 1), get(10, 11, None), incr(12, 13, 1)], [Loss(6, 9)]).kind == OK
    assert check([incr(0, 1, 1), incr(10, 11, 4)], [Loss(6, 9)]).kind == VIOLATION
    with pytest.raises(ValueError):
        check([put(b"a", 0, 1), put(b"a", 2, 3)], [Loss(4, 5)])
    with pytest.raises(ValueError):
        check([put(b"a", 0, 1), incr(2, 3, 1)], [Loss(4, 5)])


def test_a_search_that_ends_early_is_undecided():
    """Of ten writes beside each other and two reads that cannot both be, every order has to be tried."""
    writes = [put(b"%d" % number, 0, 9) for number in range(10)]
    history = writes + [get(10, 11, b"1"), get(12, 13, b"2")]
    assert check(history).kind == VIOLATION
    verdict = check(history, configurations_max=100)
    assert verdict.kind == UNDECIDED and verdict.configurations == 100
    assert "The longest order found" in verdict.text


def brute_force(operations, losses):
    """All orders of all subsets of what has no outcome."""
    known = [one for one in operations if one.result is not UNKNOWN]
    unknown = [one for one in operations if one.result is UNKNOWN]
    optional = unknown + list(losses)
    for count in range(len(optional) + 1):
        for some in itertools.combinations(optional, count):
            for order in itertools.permutations(known + list(some)):
                if respects_time(order) and any(is_possible(order, 0, None, (None,))):
                    return OK
    return VIOLATION


def respects_time(order):
    latest = -math.inf
    for one in order:
        begins, ends = (one.begins, one.ends) if isinstance(one, Loss) else (one.invoked, one.returned)
        latest = max(latest, begins)
        if ends < latest:
            return False
    return True


def is_possible(order, at, state, earlier):
    if at == len(order):
        yield True
        return
    one = order[at]
    if isinstance(one, Loss):
        for value in set(earlier):
            yield from is_possible(order, at + 1, value, earlier)
        return
    after, result = apply(state, one.name, one.argument)
    if one.result is UNKNOWN or result == one.result:
        yield from is_possible(order, at + 1, after, earlier + (after,))


def draw_history(draw, with_losses):
    """A few operations with results that a real register would have given, some of them changed."""
    count = draw.randrange(2, 7)
    kind = draw.randrange(2 if with_losses else 3)
    operations = []
    for number in range(count):
        begins = draw.randrange(12)
        ends = begins + draw.randrange(0, 8)
        if kind == 0:
            name, argument = draw.choice([("INCR", None), ("INCR", None), ("GET", None)])
            result = draw.randrange(1, 4) if name == "INCR" else draw.choice([None, b"1", b"2", b"3"])
        elif kind == 1:
            name, argument = draw.choice([("SET", b"v%d" % number), ("GET", None), ("GET", None), ("GETSET", b"v%d" % number)])
            result = "OK" if name == "SET" else draw.choice([None] + [b"v%d" % other for other in range(count)])
        else:
            name, argument = draw.choice([("SET", draw.choice([b"a", b"bb"])), ("GET", None), ("APPEND", draw.choice([b"a", b"b"])), ("DEL", None), ("GETSET", b"a"), ("INCR", None)])
            result = {"SET": "OK", "APPEND": draw.randrange(1, 4), "DEL": draw.randrange(2), "INCR": draw.randrange(1, 3)}.get(name, draw.choice([None, b"a", b"ab", b"bb", b"aa", b"1"]))
        operations.append(op(name, argument, begins, ends, UNKNOWN if draw.random() < 0.3 else result))
    losses = [Loss(begins, begins + draw.randrange(6)) for begins in [draw.randrange(14)]] if with_losses else []
    return operations, losses


@pytest.mark.parametrize("with_losses", [False, True], ids=["without-losses", "with-losses"])
def test_agrees_with_brute_force(with_losses):
    draw = random.Random(SEED)
    verdicts = {OK: 0, VIOLATION: 0}
    for _ in range(700 if os.environ.get("ZG_FULL") != "1" else 20000):
        operations, losses = draw_history(draw, with_losses)
        if losses and not {one.name for one in operations} - {"GET"}:
            continue
        wanted = brute_force(operations, losses)
        found = check(operations, losses)
        assert found.kind == wanted, "seed %d: %s, by brute force %s\n%s\nlosses %s" % (SEED, found, wanted, operations, [(one.begins, one.ends) for one in losses])
        verdicts[wanted] += 1
    assert min(verdicts.values()) > 50, verdicts


def simulate(draw, clients, operations_count, text):
    """What clients of a real register see, with operations that lose their outcome and are done later, or never."""
    state = None
    history, late = [], []
    idle = [(0.0, number) for number in range(clients)]
    number = 0
    while len(history) < operations_count:
        idle.sort()
        begins, client = idle.pop(0)
        done = begins + draw.random()
        ends = done + draw.random()
        name = draw.choice(("SET", "GET", "GET", "APPEND", "GETSET") if text else ("INCR", "INCR", "GET"))
        number += 1
        argument = b"<%d>" % number if name in ("SET", "APPEND", "GETSET") else None
        history.append([client, name, argument, begins, ends, done])
        idle.append((ends + draw.random() * 0.2, client))
    for one in history:
        if draw.random() < 0.01:
            one[5] += draw.choice([0, 1, 30, math.inf])
            one.append(UNKNOWN)
    results = []
    for client, name, argument, begins, ends, done, *unknown in sorted(history, key=lambda one: one[5]):
        result = UNKNOWN
        if done < math.inf:
            state, result = apply(state, name, argument)
        results.append(Operation(client, name, argument, begins, ends, UNKNOWN if unknown else result))
    return results


@pytest.mark.parametrize("text", [False, True], ids=["counter", "text"])
def test_long_histories_are_decided_and_a_planted_fault_is_found(text):
    draw = random.Random(SEED)
    history = simulate(draw, 6, 1000, text)
    verdict = check(history)
    assert verdict.kind == OK, "seed %d: %s" % (SEED, verdict)
    # A read that sees again what was there half a second before another has seen something else.
    reads = [one for one in history if one.name == "GET" and one.result not in (UNKNOWN, None)]
    for at in range(len(reads) // 2, len(reads)):
        earlier = [one for one in reads[:at] if one.returned < reads[at].invoked and one.result != reads[at].result and one.result not in [other.result for other in reads[at:at + 40]]]
        if len(earlier) > 40:
            stale = earlier[-40]
            break
    planted = [one if one is not reads[at] else Operation(one.client, "GET", None, one.invoked, one.returned, stale.result) for one in history]
    verdict = check(planted, configurations_max=300000)
    assert verdict.kind != OK, "seed %d" % SEED
    assert verdict.kind == VIOLATION, "seed %d: %s" % (SEED, verdict)
