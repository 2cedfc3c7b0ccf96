#!/usr/bin/python3
"""CPU per operation: no proxy, the floor, nutcracker, predixy, HAProxy and zgateway in turn, one standalone server behind them.

Every candidate is measured in every round of every cell, in an order that turns round with each round (ABBA), so that what the machine does meanwhile meets all alike. CPU is the sum of
/proc/PID/task/*/schedstat of the proxy and of the server, divided by the server's own count of GETs. A requirement is on the ratio of two candidates within a round: its median over the rounds
and the 95 % interval of that. Cells in which one stays open are measured again, up to --rounds-max rounds.

zgateway is measured as it comes. The floor has no wait for batches, so it is compared with a zgateway without one (zgateway-off, where that is not the default).

Exit status: 0 all requirements are met, 1 one is not, 2 none is broken but an interval holds a limit.
"""
import argparse
import sys
import time

import lib_proxies
from lib_judge import at_least, at_most, verdict
from lib_rounds import Cpu, Rounds, add_arguments, cell_name, cells_of, conditions, ratio_text, ratios
from lib_servers import Bench, load_average, machine, redis_benchmark
from lib_stats import median, print_table, spread

CELLS = [(50, 1), (200, 1), (1000, 1), (50, 16), (200, 16), (50, 128), (200, 128)]
CELLS_SHORT = [(50, 1), (200, 1), (50, 128)]
OTHERS = ["nutcracker", "predixy", "haproxy"]

# The largest ratio of zgateway's CPU to another proxy's, by cell.
PROXY_LIMITS = {
    "nutcracker": {(50, 1): 0.80, (200, 1): 0.60, (1000, 1): 0.70, (50, 16): 0.33, (200, 16): 0.16, (50, 128): 0.08, (200, 128): 0.06},
    "predixy": {(50, 1): 1, (200, 1): 1, (1000, 1): 1, (50, 16): 0.6, (200, 16): 0.5, (50, 128): 0.4, (200, 128): 0.3},
}
# Against no proxy: cell, figure, whether small is good, required, goal.
DIRECT_LIMITS = [
    ((200, 1), "total_us", "total CPU", True, 0.95, 0.80),
    ((1000, 1), "total_us", "total CPU", True, 1.0, 0.90),
    ((50, 1), "rps", "throughput", False, 0.95, None),
    ((200, 1), "rps", "throughput", False, 1.15, 1.3),
    ((1000, 1), "rps", "throughput", False, 1.0, 1.1),
    ((200, 1), "p99_ms", "p99", True, 1.0, None),
    ((1000, 1), "p99_ms", "p99", True, 1.0, None),
]
# CPU of the backend without a proxy, as a multiple of that behind zgateway.
BACKEND_LIMITS = {(50, 1): 1.8, (200, 1): 4, (1000, 1): 5}


def start(bench, redis, arguments, wanted):
    """Candidates in the order of a round; those that are compared most closely are neighbours. With them, why some are not there."""
    candidates, notes = [lib_proxies.direct(redis)], []
    if "nutcracker" in wanted:
        candidates.append(lib_proxies.nutcracker(bench, redis))
    if "predixy" in wanted and arguments.predixy:
        candidates.append(lib_proxies.predixy(bench, redis, arguments.predixy))
    elif "predixy" in wanted:
        notes.append("predixy is not packaged for Debian: its requirements were not measured; --predixy PATH measures them")
    if "haproxy" in wanted:
        candidates.append(lib_proxies.haproxy(bench, redis))
    candidates.append(lib_proxies.floor(bench, redis, wait=arguments.floor_wait))
    if bench.wait_options("auto") is not None:
        candidates.append(lib_proxies.zgateway(bench, redis, "zgateway-off", "off", arguments.set))
    candidates.append(lib_proxies.zgateway(bench, redis, "zgateway", "default", arguments.set))
    return candidates, notes


def requirements(by_name, cells, floor_limit, confidence):
    rows = []
    gateway, direct = by_name["zgateway"], by_name["direct"]
    like_floor = by_name.get("zgateway-off", gateway)
    for cell in cells:
        rows.append(at_most("%s: proxy CPU of %s against the floor" % (cell_name(cell), like_floor.name), ratios(like_floor, by_name["floor"], cell, "proxy_us"), floor_limit, cell, confidence))
        for name, limits in PROXY_LIMITS.items():
            if name in by_name and cell in limits:
                rows.append(at_most("%s: proxy CPU against %s" % (cell_name(cell), name), ratios(gateway, by_name[name], cell, "proxy_us"), limits[cell], cell, confidence))
    for cell, key, text, small_is_good, limit, goal in DIRECT_LIMITS:
        if cell in cells:
            row = at_most if small_is_good else at_least
            rows.append(row("%s: %s against no proxy" % (cell_name(cell), text), ratios(gateway, direct, cell, key), limit, cell, confidence, goal))
    for cell, limit in BACKEND_LIMITS.items():
        if cell in cells:
            rows.append(at_least("%s: backend CPU, no proxy against through" % cell_name(cell), ratios(direct, gateway, cell, "backend_us"), limit, cell, confidence))
    return rows


def print_figures(candidates, cells, markdown):
    rows = []
    for cell in cells:
        for candidate in candidates:
            proxy = candidate.figures(cell, "proxy_us")
            rows.append([cell_name(cell) + " " + candidate.name, "%.2f" % median(proxy) if candidate.process else "-", "%.0f %%" % (100 * spread(proxy)) if candidate.process else "-",
                         "%.2f" % candidate.median(cell, "backend_us"), "%.2f" % candidate.median(cell, "total_us"),
                         "%.0f" % (candidate.median(cell, "rps") / 1000), "%.2f" % candidate.median(cell, "p50_ms"), "%.2f" % candidate.median(cell, "p99_ms")])
    print_table(["cell, candidate", "proxy us/op", "spread", "backend us/op", "total us/op", "k op/s", "p50 ms", "p99 ms"], rows, markdown)


def print_ratios(by_name, cells, markdown):
    """zgateway to each other candidate: proxy CPU, and against no proxy total CPU, throughput, p99 and backend CPU."""
    gateway = by_name["zgateway"]
    others = [name for name in ["floor", *OTHERS] if name in by_name]
    rows = []
    for cell in cells:
        row = [cell_name(cell)] + [ratio_text(ratios(gateway, by_name[name], cell, "proxy_us")) for name in others]
        row += [ratio_text(ratios(gateway, by_name["direct"], cell, key)) for key in ("total_us", "rps", "p99_ms", "backend_us")]
        rows.append(row)
    print_table(["zgateway against", *["%s, proxy CPU" % name for name in others], "direct, total CPU", "direct, op/s", "direct, p99", "direct, backend CPU"], rows, markdown)


def main():
    parser = argparse.ArgumentParser(prog="bench.sh cost", description=__doc__.split("\n")[0])
    parser.add_argument("--limit", type=float, default=1.15, help="largest ratio to the floor (default 1.15)")
    parser.add_argument("--candidates", help="of %s; direct, floor and zgateway are always there (default all, with --short none of these)" % ",".join(OTHERS))
    parser.add_argument("--predixy", metavar="PATH", help="the program of predixy")
    parser.add_argument("--floor-wait", metavar="N,US", help="let the floor wait for N completions or US microseconds")
    arguments = add_arguments(parser, rounds=10, seconds=1.2)()
    begun = time.monotonic()
    cells = cells_of(arguments, CELLS, CELLS_SHORT)
    wanted = arguments.candidates.split(",") if arguments.candidates else [] if arguments.short else OTHERS

    with Bench() as bench:
        redis = lib_proxies.standalone(bench)
        load = load_average()
        candidates, notes = start(bench, redis, arguments, wanted)
        by_name = {candidate.name: candidate for candidate in candidates}
        # A first run of each warms it up and says how many requests fit the time; those that are compared with each other get the same number.
        requests = {}
        for cell in cells:
            for candidate in candidates:
                rps = redis_benchmark(candidate.port, *cell, max(8000, cell[0] * cell[1] * 4))["rps"]
                requests[candidate.name, cell] = max(int(rps * arguments.seconds), 4 * cell[0] * cell[1])
            for name in ("zgateway", "zgateway-off"):
                requests[name, cell] = requests["floor", cell]

        def measure(candidate, cell):
            count = requests[candidate.name, cell]
            cpu = Cpu(candidate, redis)
            return cpu.end(redis_benchmark(candidate.port, *cell, count), count)

        rounds = Rounds(candidates, measure, arguments.short, begun)
        rows = rounds.run_until_clear(cells, arguments.rounds, arguments.rounds_max, lambda confidence: requirements(by_name, cells, arguments.limit, confidence))
        print(conditions(machine(), load, arguments, "redis-benchmark GET, 64 B; medians; spread: half the distance of the quartiles"))
        print()
        print_figures(candidates, cells, arguments.md)
        print()
        print_ratios(by_name, cells, arguments.md)
        print()
        return verdict("what an operation costs", rows, arguments.md, notes)


if __name__ == "__main__":
    sys.exit(main())
