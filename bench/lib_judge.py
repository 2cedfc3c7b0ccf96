"""Rows of requirements and the verdict over them: pure functions of measured values. No benchmark by itself.

A row compares a median with a limit by the interval of the median: it is met where the whole interval keeps the limit, not met where no part of it does, and open otherwise. So noise leads to
"open", never to a claim.
"""
from lib_stats import median, median_interval, print_table

PASS, FAIL, INCONCLUSIVE = 0, 1, 2
WORDS = {PASS: "met", FAIL: "NOT MET", INCONCLUSIVE: "open"}
# With fewer values no interval of 95 % exists.
VALUES_MIN = 6


class Row:
    def __init__(self, name, wanted, value, result, cell=None, goal=""):
        self.name = name
        self.wanted = wanted
        self.value = value
        self.result = result
        self.cell = cell  # what must be measured again where it is open; None: nothing
        self.goal = goal  # what is hoped for beyond what is required; it is shown, not judged


def _interval_text(values, low, high):
    return "%.3f (%.3f .. %.3f), n %d" % (median(values), low, high, len(values))


def _row(name, sign, values, limit, cell, confidence, goal, good_below):
    low, high, reached = median_interval(values, confidence)
    # Mirrored, so that there is one rule.
    upper, lower, bound = (high, low, limit) if good_below else (-low, -high, -limit)
    if len(values) < VALUES_MIN or reached < confidence:
        result = INCONCLUSIVE
    else:
        result = PASS if upper <= bound else FAIL if lower > bound else INCONCLUSIVE
    text = "-"
    if goal is not None:
        reaches = median(values) <= goal if good_below else median(values) >= goal
        text = "%s %g: %s" % (sign, goal, "reached" if reaches else "not reached")
    return Row(name, "%s %g" % (sign, limit), _interval_text(values, low, high), result, cell, text)


def at_most(name, values, limit, cell=None, confidence=0.95, goal=None):
    return _row(name, "<=", values, limit, cell, confidence, goal, True)


def at_least(name, values, limit, cell=None, confidence=0.95, goal=None):
    return _row(name, ">=", values, limit, cell, confidence, goal, False)


def fact(name, wanted, value, holds):
    """Something counted, without noise."""
    return Row(name, wanted, value, PASS if holds else FAIL, None, "-")


def beats(candidate, others, tolerance=0.05, confidence=0.95):
    """Whether a candidate costs no more than every one of several others. others: {name: ratios candidate / other, of the same rounds}. PASS where against each the interval lies below 1 + tolerance, so that
    what is left undecided is within the tolerance; FAIL where one is better beyond doubt (its interval lies above 1); INCONCLUSIVE otherwise. With it the name of the worst of the others."""
    assert others, "%s is alone" % candidate
    worst = max(others, key=lambda name: median(others[name]))
    results = []
    for values in others.values():
        low, high, reached = median_interval(values, confidence)
        if len(values) < VALUES_MIN or reached < confidence:
            results.append(INCONCLUSIVE)
        else:
            results.append(FAIL if low > 1 else PASS if high <= 1 + tolerance else INCONCLUSIVE)
    return overall(results), worst


def share_row(name, results, share):
    """At least `share` of several results must be PASS: as long as the open ones can tip it, it is open."""
    won, open_ = results.count(PASS), results.count(INCONCLUSIVE)
    needed = share * len(results)
    result = PASS if won >= needed else FAIL if won + open_ < needed else INCONCLUSIVE
    return Row(name, ">= %.0f %% of %d" % (100 * share, len(results)), "%d won, %d lost, %d open" % (won, results.count(FAIL), open_), result, None, "-")


def overall(results):
    results = list(results)
    return FAIL if FAIL in results else INCONCLUSIVE if INCONCLUSIVE in results or not results else PASS


def open_cells(rows):
    """Cells that have open rows, in their order."""
    cells = []
    for row in rows:
        if row.result == INCONCLUSIVE and row.cell is not None and row.cell not in cells:
            cells.append(row.cell)
    return cells


def verdict(what, rows, markdown=False, notes=()):
    """Prints the rows and the one line of the verdict; returns the exit status: 0 all are met, 1 one is not, 2 none is not met but some are open."""
    with_goals = any(row.goal not in ("", "-") for row in rows)
    headers = ["requirement", "wanted", "median (interval)", "result"] + (["goal"] if with_goals else [])
    print_table(headers, [[row.name, row.wanted, row.value, WORDS[row.result]] + ([row.goal or "-"] if with_goals else []) for row in rows], markdown)
    for note in notes:
        print("note: %s" % note)
    print()
    result = overall(row.result for row in rows)
    counts = ", ".join("%d %s" % (sum(1 for row in rows if row.result == code), WORDS[code]) for code in (PASS, FAIL, INCONCLUSIVE))
    word = {PASS: "holds", FAIL: "DOES NOT HOLD", INCONCLUSIVE: "inconclusive"}[result]
    failed = "; ".join("%s %s wanted, %s" % (row.name, row.wanted, row.value) for row in rows if row.result == FAIL)
    print("verdict: %s: %s: %s%s" % (word, what, counts, ("; not met: " + failed) if failed else ""))
    return result
