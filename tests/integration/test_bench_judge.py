"""What the benchmarks conclude from values: only what the interval of the median shows, and "open" otherwise."""
import os
import random
import sys

import pytest

from servers import ROOT

sys.path.insert(0, os.path.join(ROOT, "bench"))

from lib_judge import FAIL, INCONCLUSIVE, PASS, at_least, at_most, beats, fact, open_cells, overall, share_row, verdict  # noqa: E402
from lib_stats import median, median_interval  # noqa: E402

pytestmark = pytest.mark.gateway_only


def test_interval_of_the_median_misses_it_as_rarely_as_it_says():
    rng = random.Random(1)
    for count, confidence in ((6, 0.95), (10, 0.95), (10, 0.99), (25, 0.95)):
        misses = 0
        for _ in range(2000):
            low, high, reached = median_interval([rng.lognormvariate(0, 1) for _ in range(count)], confidence)
            assert reached >= confidence
            misses += not low <= 1 <= high
        # The median of the distribution is 1. Five standard deviations of the count above what is allowed.
        allowed = 2000 * (1 - confidence)
        assert misses <= allowed + 5 * allowed**0.5, (count, confidence, misses)


def test_rows_follow_the_interval_and_nothing_else():
    rng = random.Random(2)
    seen = set()
    for _ in range(2000):
        values = [rng.lognormvariate(0, rng.choice((0.01, 0.3))) for _ in range(rng.randrange(6, 40))]
        limit = rng.choice((0.5, 0.9, 1, 1.1, 2))
        low, high, _ = median_interval(values)
        for row, is_met, is_broken in ((at_most("x", values, limit), high <= limit, low > limit), (at_least("x", values, limit), low >= limit, high < limit)):
            assert row.result == (PASS if is_met else FAIL if is_broken else INCONCLUSIVE)
            seen.add(row.result)
    assert seen == {PASS, FAIL, INCONCLUSIVE}


@pytest.mark.parametrize("count", [1, 2, 5])
def test_too_few_values_leave_everything_open(count):
    values = [1.0] * count
    assert at_most("x", values, 2).result == INCONCLUSIVE
    assert at_most("x", values, 0.5).result == INCONCLUSIVE
    assert at_least("x", values, 0.5).result == INCONCLUSIVE
    assert beats("x", {"y": values})[0] == INCONCLUSIVE


def test_asking_for_more_confidence_never_decides_more():
    rng = random.Random(3)
    for _ in range(500):
        values = [rng.gauss(1, 0.1) for _ in range(10)]
        surer = at_most("x", values, 1, confidence=0.99).result
        assert surer in (INCONCLUSIVE, at_most("x", values, 1).result)


def test_beats_needs_every_other_and_names_the_worst():
    equal, better, worse, wide = [1.0] * 10, [0.8] * 10, [1.2] * 10, [0.5, 1.5] * 5
    assert beats("x", {"a": equal, "b": better}) == (PASS, "a")
    assert beats("x", {"a": worse, "b": better}) == (FAIL, "a")
    assert beats("x", {"a": wide, "b": better})[0] == INCONCLUSIVE
    assert beats("x", {"a": wide, "b": worse})[0] == FAIL


def test_share_is_open_only_while_open_cells_can_tip_it():
    rng = random.Random(4)
    for _ in range(500):
        results = [rng.choice((PASS, FAIL, INCONCLUSIVE)) for _ in range(rng.randrange(1, 12))]
        share = rng.choice((0.5, 0.8, 1.0))
        best = [PASS if result == INCONCLUSIVE else result for result in results]
        worst = [FAIL if result == INCONCLUSIVE else result for result in results]
        outcomes = {share_row("x", turned, share).result for turned in (best, worst)}
        assert INCONCLUSIVE not in outcomes
        assert share_row("x", results, share).result == (outcomes.pop() if len(outcomes) == 1 else INCONCLUSIVE)


def test_verdict_is_the_worst_row_and_an_exit_status(capsys):
    rows = [fact("counted", "0", "0", True), at_most("noisy", [0.5, 1.5] * 5, 1, cell="c", goal=0.5)]
    assert verdict("it", rows[:1]) == 0
    assert verdict("it", rows) == 2
    assert open_cells(rows) == ["c"]
    assert verdict("it", [*rows, fact("broken", "0", "7", False)]) == 1
    printed = capsys.readouterr().out
    assert "verdict: holds: it: 1 met, 0 NOT MET, 0 open" in printed
    assert "verdict: inconclusive: it: 1 met, 0 NOT MET, 1 open" in printed
    assert "verdict: DOES NOT HOLD: it: 1 met, 1 NOT MET, 1 open; not met: broken 0 wanted, 7" in printed
    # Nothing measured is nothing shown.
    assert overall([]) == INCONCLUSIVE


def test_goals_are_shown_and_not_judged():
    values = [0.9] * 10
    row = at_most("x", values, 0.95, goal=0.8)
    assert row.result == PASS and "not reached" in row.goal
    assert "<= 0.85: not reached" == at_most("x", values, 0.95, goal=0.85).goal
    assert ">= 0.85: reached" == at_least("x", values, 0.5, goal=0.85).goal
    assert median(values) == 0.9
