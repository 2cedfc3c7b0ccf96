#!/usr/bin/python3
"""Open-loop load at 10, 50 and 80 % of the throughput without a proxy: what the gateway adds to latency, and CPU per operation.

Requests begin when they are due, whether earlier ones have been answered or not, and latency counts from then (bench/open_loop.c). The rate is a share of what redis-benchmark reaches without a
proxy with as many connections, in the same run. Candidates: no proxy, the floor without any wait for batches, zgateway with waiting off, and zgateway as it comes. In every round of every cell each is
measured, in an order that turns round with each round; what is compared is of the same round.

Required: at 10 % of the load zgateway adds at most LIMIT times what the floor adds to the p50; and its default way of waiting makes no cell worse than no waiting: p50, p99 and total CPU (gateway and
backend) within a tolerance.

Exit status: 0 all requirements are met, 1 one is not, 2 none is broken but an interval holds a limit.
"""
import argparse
import subprocess
import sys
import time

import lib_proxies
from lib_judge import at_most, verdict
from lib_rounds import Cpu, Rounds, add_arguments, conditions, ratio_text, ratios
from lib_servers import Bench, load_average, machine, program, redis_benchmark
from lib_stats import median, median_interval, print_table

CONNECTIONS = [50, 200]
SHARES = [10, 50, 80]
TOLERANCES = [("p50", "p50_us", 1.05), ("p99", "p99_us", 1.10), ("total CPU", "total_us", 1.05)]


class Generator:
    """A running open_loop: its connections stay open between runs."""

    def __init__(self, port, connections):
        self.process = subprocess.Popen([program("bench/open_loop"), str(port), str(connections)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n", "open_loop ended with %s" % self.process.wait()

    def run(self, rate, seconds, arrivals, seed):
        """Figures; times in microseconds."""
        self.process.stdin.write("%d %d %s %d\n" % (rate, 1000 * seconds, arrivals, seed))
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "open_loop ended with %s" % self.process.wait()
        fields = dict(pair.split("=") for pair in line.split())
        figures = {name[:-3] + "_us": float(value) / 1000 for name, value in fields.items() if name.endswith("_ns")}
        for name in ("answered", "errors", "refused"):
            figures[name] = int(fields[name])
        figures["rps"] = figures["answered"] / float(fields["seconds"])
        return figures

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def cell_name(cell):
    return "c%d %d %%" % cell


def added(candidate, direct, cell, key):
    return [a - b for a, b in zip(candidate.figures(cell, key), direct.figures(cell, key))]


def allowed_ratios(by_name, cell, limit):
    """p50 of zgateway to what it may be: that without a proxy, and `limit` times what the floor adds. A ratio of added times alone would have no meaning where noise makes one of them negative."""
    values = []
    for gateway, floor, direct in zip(*[by_name[name].figures(cell, "p50_us") for name in ("zgateway", "floor", "direct")]):
        values.append(gateway / max(direct + limit * (floor - direct), 1))
    return values


def requirements(by_name, cells, limit, confidence):
    rows = []
    for cell in cells:
        if cell[1] == 10:
            rows.append(at_most("%s: p50 against that without a proxy and %.2f times what the floor adds" % (cell_name(cell), limit), allowed_ratios(by_name, cell, limit), 1.0, cell, confidence))
        if "zgateway-off" in by_name:
            for text, key, tolerance in TOLERANCES:
                rows.append(at_most("%s: %s, default waiting against none" % (cell_name(cell), text), ratios(by_name["zgateway"], by_name["zgateway-off"], cell, key), tolerance, cell, confidence))
    return rows


def print_figures(candidates, cells, rates, markdown):
    rows = []
    by_name = {candidate.name: candidate for candidate in candidates}
    for cell in cells:
        for candidate in candidates:
            row = [cell_name(cell) + " " + candidate.name, "%.1f" % (rates[cell] / 1000), "%.1f" % (candidate.median(cell, "rps") / 1000)]
            row += ["%.0f" % candidate.median(cell, key) for key in ("p50_us", "p99_us")]
            row += ["%+.0f" % median(added(candidate, by_name["direct"], cell, key)) if candidate.process else "-" for key in ("p50_us", "p99_us")]
            row += ["%.2f" % candidate.median(cell, key) if candidate.process or key != "proxy_us" else "-" for key in ("proxy_us", "backend_us", "total_us")]
            row += ["%.0f" % candidate.median(cell, "late_p99_us"), "%d" % sum(candidate.figures(cell, "errors") + candidate.figures(cell, "refused"))]
            rows.append(row)
    print_table(["cell, candidate", "due k/s", "done k/s", "p50 us", "p99 us", "added p50", "added p99", "proxy us/op", "backend us/op", "total us/op", "late p99 us", "not served"], rows, markdown)


def print_ratios(by_name, cells, markdown):
    rows = []
    for cell in cells:
        extra = added(by_name["zgateway"], by_name["direct"], cell, "p50_us")
        low, high, _ = median_interval(extra)
        row = [cell_name(cell), "%+.0f us (%+.0f .. %+.0f)" % (median(extra), low, high)]
        for name in ("floor", "zgateway-off", "direct"):
            row += [ratio_text(ratios(by_name["zgateway"], by_name[name], cell, key)) if name in by_name else "-" for key in ("p50_us", "p99_us", "total_us")]
        rows.append(row)
    print_table(["zgateway", "added p50", *["%s against %s" % (key, name) for name in ("the floor", "waiting off", "direct") for key in ("p50", "p99", "CPU")]], rows, markdown)


def main():
    parser = argparse.ArgumentParser(prog="bench.sh open-loop", description=__doc__.split("\n")[0])
    parser.add_argument("--arrivals", choices=["poisson", "constant"], default="poisson")
    parser.add_argument("--limit", type=float, default=1.1, help="times what the floor adds to the p50 (default 1.1)")
    parser.add_argument("--connections", help="for example 50,200 (default; with --short 50)")
    parser.add_argument("--seed", type=int, default=1, help="of the arrivals; each round has its own, the candidates of a round have the same")
    arguments = add_arguments(parser, rounds=10, seconds=1.5, short=(6, 0.4), with_cells=False)()
    begun = time.monotonic()
    connections = [int(text) for text in arguments.connections.split(",")] if arguments.connections else CONNECTIONS[:1] if arguments.short else CONNECTIONS
    cells = [(count, share) for count in connections for share in SHARES]

    with Bench() as bench:
        redis = lib_proxies.standalone(bench)
        load = load_average()
        # Requests that are late because the load is more than a candidate can bear are slow, not errors.
        candidates = [lib_proxies.direct(redis), lib_proxies.floor(bench, redis)]
        options = ["use_cases.timeout=20s", *arguments.set]
        if bench.wait_options("auto") is not None:
            candidates.append(lib_proxies.zgateway(bench, redis, "zgateway-off", "off", options))
        candidates.append(lib_proxies.zgateway(bench, redis, "zgateway", "default", options))
        by_name = {candidate.name: candidate for candidate in candidates}
        # Without a proxy, in a closed loop: what the shares are of.
        rates = {}
        for count in connections:
            redis_benchmark(redis.port, count, 1, 8000)
            capacity = median([redis_benchmark(redis.port, count, 1, 20000 if arguments.short else 60000)["rps"] for _ in range(3)])
            for share in SHARES:
                rates[count, share] = max(int(capacity * share / 100), 1)
        generators = {(candidate.name, count): Generator(candidate.port, count) for candidate in candidates for count in connections}

        def measure(candidate, cell):
            cpu = Cpu(candidate, redis)
            figures = generators[candidate.name, cell[0]].run(rates[cell], arguments.seconds, arguments.arrivals, arguments.seed + rounds.done)
            return cpu.end(figures, figures["answered"])

        rounds = Rounds(candidates, measure, arguments.short, begun)
        rows = rounds.run_until_clear(cells, arguments.rounds, arguments.rounds_max, lambda confidence: requirements(by_name, cells, arguments.limit, confidence))
        for generator in generators.values():
            generator.close()
        print(conditions(machine(), load, arguments, "GET, 64 B, %s arrivals; medians; late: how long after its time the generator sent" % arguments.arrivals))
        print()
        print_figures(candidates, cells, rates, arguments.md)
        print()
        print_ratios(by_name, cells, arguments.md)
        print()
        notes = [] if "zgateway-off" in by_name else ["this zgateway knows no wait of its own choice: its default is not to wait, and there is nothing to compare"]
        return verdict("what the gateway adds in an open loop", rows, arguments.md, notes)


if __name__ == "__main__":
    sys.exit(main())
