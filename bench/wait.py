#!/usr/bin/python3
"""The wait for batches: zgateway's own choice against no wait and against a grid of fixed waits.

The score of a cell is total CPU per operation (gateway and backend); throughput and p99 stand beside it, because a wait buys CPU with latency. One redis-server, redis-benchmark with GET of 64 B in a
closed loop; every candidate in every round of every cell, in an order that turns round with each round; ratios within a round.

Required of the gateway's own choice (auto): in at least 80 % of the cells it costs no more than every fixed wait of the grid (within the interval), and in no cell it costs more than 5 % more than
no wait. A fixed wait NxT returns at N completions or after T.

Exit status: 0 both hold, 1 one does not, 2 some cells stay open (or this zgateway has no choice of its own: then the grid alone is shown).
"""
import argparse
import sys
import time

import lib_proxies
from lib_judge import INCONCLUSIVE, Row, at_most, beats, share_row, verdict
from lib_rounds import Cpu, Rounds, add_arguments, cell_name, cells_of, conditions, ratio_text, ratios
from lib_servers import Bench, load_average, machine, redis_benchmark
from lib_stats import print_table

CELLS = [(50, 1), (200, 1), (1000, 1), (50, 16), (200, 16), (50, 128), (200, 128)]
CELLS_SHORT = [(200, 1), (50, 16)]
GRID = [(16, 100), (32, 300), (64, 500), (128, 1000)]
SHARE = 0.8
WORST = 1.05


def wait_name(wait):
    return wait if isinstance(wait, str) else "%dx%dus" % wait


def requirements(by_name, fixed, cells, confidence):
    if "auto" not in by_name:
        return [Row("a wait that the gateway chooses", "there", "this zgateway has none", INCONCLUSIVE)]
    rows, results = [], []
    for cell in cells:
        result, worst = beats("auto", {name: ratios(by_name["auto"], by_name[name], cell, "total_us") for name in fixed}, confidence=confidence)
        results.append(result)
        # Shown for each cell, judged as a share; an open one is measured again.
        rows.append(Row("%s: total CPU of auto against the best fixed (%s)" % (cell_name(cell), worst), "<= 1, counted", ratio_text(ratios(by_name["auto"], by_name[worst], cell, "total_us")),
                        result, cell))
    counted = share_row("cells in which auto costs no more than every fixed wait", results, SHARE)
    shown = [row for row in rows if row.result == INCONCLUSIVE] if counted.result == INCONCLUSIVE else []
    judged = [at_most("%s: total CPU of auto against no wait" % cell_name(cell), ratios(by_name["auto"], by_name["off"], cell, "total_us"), WORST, cell, confidence) for cell in cells]
    return [*shown, counted, *judged]


def print_grid(candidates, by_name, cells, markdown):
    rows = []
    for cell in cells:
        for candidate in candidates:
            against_off = ratio_text(ratios(candidate, by_name["off"], cell, "total_us")) if candidate.name != "off" else "1"
            rows.append([cell_name(cell) + " " + candidate.name, "%.2f" % candidate.median(cell, "proxy_us"), "%.2f" % candidate.median(cell, "backend_us"),
                         "%.2f" % candidate.median(cell, "total_us"), against_off, "%.0f" % (candidate.median(cell, "rps") / 1000), "%.2f" % candidate.median(cell, "p50_ms"),
                         "%.2f" % candidate.median(cell, "p99_ms")])
    print_table(["cell, wait", "proxy us/op", "backend us/op", "total us/op", "total against off", "k op/s", "p50 ms", "p99 ms"], rows, markdown)


def print_winners(candidates, by_name, cells, markdown):
    """Which fixed wait is best where, and how auto compares with each."""
    fixed = [candidate for candidate in candidates if candidate.name not in ("off", "auto")]
    rows = []
    for cell in cells:
        best = min(fixed + [by_name["off"]], key=lambda candidate: candidate.median(cell, "total_us"))
        against = [ratio_text(ratios(by_name["auto"], candidate, cell, "total_us")) if "auto" in by_name else "-" for candidate in fixed]
        rows.append([cell_name(cell), best.name, *against])
    print_table(["cell", "cheapest of no wait and the grid", *["auto against %s" % candidate.name for candidate in fixed]], rows, markdown)


def main():
    parser = argparse.ArgumentParser(prog="bench.sh wait", description=__doc__.split("\n")[0])
    parser.add_argument("--grid", metavar="N/US,...", help="the fixed waits (default %s)" % ",".join("%d/%d" % wait for wait in GRID))
    arguments = add_arguments(parser, rounds=10, seconds=1.0, short=(6, 0.3))()
    begun = time.monotonic()
    cells = cells_of(arguments, CELLS, CELLS_SHORT)
    grid = [tuple(int(number) for number in wait.split("/")) for wait in arguments.grid.split(",")] if arguments.grid else GRID

    with Bench() as bench:
        redis = lib_proxies.standalone(bench)
        load = load_average()
        waits = [wait for wait in ["off", *grid[: len(grid) // 2], "auto", *grid[len(grid) // 2:]] if bench.wait_options(wait) is not None]
        candidates = [lib_proxies.zgateway(bench, redis, wait_name(wait), wait, arguments.set) for wait in waits]
        by_name = {candidate.name: candidate for candidate in candidates}
        # All get the same number of requests in a cell: what the slower of the first and the last does in the time.
        requests = {}
        for cell in cells:
            rps = [redis_benchmark(candidate.port, *cell, max(8000, cell[0] * cell[1] * 4))["rps"] for candidate in candidates]
            requests[cell] = max(int(min(rps) * arguments.seconds), 4 * cell[0] * cell[1])

        def measure(candidate, cell):
            cpu = Cpu(candidate, redis)
            return cpu.end(redis_benchmark(candidate.port, *cell, requests[cell]), requests[cell])

        rounds = Rounds(candidates, measure, arguments.short, begun)
        fixed = [wait_name(wait) for wait in grid]
        rows = rounds.run_until_clear(cells, arguments.rounds, arguments.rounds_max, lambda confidence: requirements(by_name, fixed, cells, confidence))
        print(conditions(machine(), load, arguments, "redis-benchmark GET, 64 B, one data core; medians"))
        print()
        print_grid(candidates, by_name, cells, arguments.md)
        print()
        print_winners(candidates, by_name, cells, arguments.md)
        print()
        return verdict("the gateway's own wait against a grid", rows, arguments.md)


if __name__ == "__main__":
    sys.exit(main())
