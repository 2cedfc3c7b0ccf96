#!/usr/bin/python3
"""One data core against two: how many requests cross, what a crossing costs, and how often a sleeping core is woken.

A cluster of four primaries, redis-benchmark with GET of random keys, so that the slots of both cores are asked for alike by clients of both: half of all requests cross. Candidates in turn, in an
order that turns round with each round: one data core; two with `idle` adaptive and with spin; and two with a port a core, where the clients know the cluster and reach the owner core themselves.
Crossings are legs sent to another core, by operation. The cost of one is what an operation takes more of the gateway's CPU than with one core, divided by crossings: messages, doorbells, and that
batches of each core are smaller. It says nothing where cores spin: then CPU is used whether there is work or not. bench_spsc gives the cost of a message by itself.

This is no measurement of scaling: with as many data cores as CPUs, clients and servers have none of their own.

Exit status: 0 crossings and lanes keep their bounds, 1 something does not, 2 the noise leaves it open.
"""
import argparse
import signal
import subprocess
import sys
import time

from lib_judge import FAIL, INCONCLUSIVE, PASS, Row, at_most, fact, verdict
from lib_rounds import Candidate, Rounds, add_arguments, cell_name, cells_of, conditions
from lib_servers import Bench, answers, cpu_ns, eventually, info, load_average, machine, program, redis_benchmark
from lib_stats import median, median_interval, print_table

CELLS = [(50, 1), (200, 1), (50, 16), (50, 128)]
CELLS_SHORT = [(50, 1), (50, 16)]
KEYS = ["-r", "20000"]
# The share of requests that crosses with two cores: half, and some for clients and slots that are spread unevenly over the cores.
CROSSINGS_MAX = 0.55
# With a port a core: next to none. Clients that have learned the slots reach another core where an owner has moved since.
CROSSINGS_AWARE_MAX = 0.05
# Nanoseconds, twice what was measured when the lanes were designed: 52-100 a message alone, 10-20 in batches, 500-700 a round trip.
LANE_LIMITS = {"lane, a message, batch 1": 200, "lane, a message, batch 16": 40, "lane, a message, batch 64": 40, "lane, round trip": 1400}
BUSY_LOAD = 1.0
COUNTERS = {"crossings": "legs_remote_total", "messages": "mailbox_messages_total", "doorbells": "mailbox_doorbells_total", "sleeps": "loop_sleeps_total", "iterations": "loop_iterations_total"}


class CoresCandidate(Candidate):
    def __init__(self, name, process, is_aware=False):
        super().__init__(name, process, process.port)
        self.is_aware = is_aware  # its clients know the cluster

    def stand_still(self):
        """A gateway that spins would take the CPUs of those that are measured. It is resumed to be measured."""
        self.process.signal(signal.SIGSTOP)

    def resume(self):
        self.process.signal(signal.SIGCONT)
        # What stood still may have lost its links meanwhile.
        eventually(lambda: answers(self.port), 10, "the gateway does not go on")


def start(bench, cluster, arguments):
    options = arguments.set
    candidates = [CoresCandidate("1 core", bench.gateway(cluster, "one", cores=1, options=options)),
                  CoresCandidate("2 cores", bench.gateway(cluster, "two", cores=2, options=options))]
    if bench.has_option("listeners", "port_per_core"):
        process = bench.gateway(cluster, "ports", cores=2, options=["listeners.port_per_core=true", *options])
        candidates.append(CoresCandidate("2 cores, port a core", process, True))
    candidates.append(CoresCandidate("2 cores, spin", bench.gateway(cluster, "spin", cores=2, options=["cores.idle=spin", *options])))
    return candidates


def counters(port):
    values = info(port, "zgateway")
    return {name: int(values["zgateway_" + metric]) for name, metric in {**COUNTERS, "requests": "requests_total"}.items()}


def measure_with(requests):
    def measure(candidate, cell):
        candidate.resume()
        extra = [*KEYS, "--cluster"] if candidate.is_aware else KEYS
        before, cpu = counters(candidate.port), cpu_ns(candidate.process.pid)
        figures = redis_benchmark(candidate.port, *cell, requests[candidate.name, cell], extra=extra)
        cpu, after = cpu_ns(candidate.process.pid) - cpu, counters(candidate.port)
        candidate.stand_still()
        operations = after["requests"] - before["requests"]
        assert operations >= requests[candidate.name, cell], "the gateway saw %d of %d requests" % (operations, requests[candidate.name, cell])
        figures["proxy_us"] = cpu / operations / 1000
        for name in COUNTERS:
            figures[name] = (after[name] - before[name]) / operations
        return figures

    return measure


def lanes(is_short):
    """[(name, best, median)] of bench_spsc, nanoseconds."""
    result = subprocess.run([program("bench/bench_spsc"), "2" if is_short else "19"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True)
    rows = []
    for line in result.stdout.splitlines()[2:]:
        words = line.rsplit(None, 4)
        rows.append((words[0].strip(), float(words[1]), float(words[2])))
    return rows


def crossing_costs(one, two, cell):
    """Microseconds of CPU a crossing, by round."""
    return [(b - a) / crossings for a, b, crossings in zip(one.figures(cell, "proxy_us"), two.figures(cell, "proxy_us"), two.figures(cell, "crossings")) if crossings > 0]


def requirements(candidates, lane_rows, load, cells, confidence):
    rows = []
    for candidate in candidates:
        for cell in cells:
            crossings = candidate.figures(cell, "crossings")
            name = "%s, %s: crossings an operation" % (cell_name(cell), candidate.name)
            if candidate.name == "1 core":
                rows.append(fact(name, "0", "%.4f" % max(crossings), max(crossings) == 0))
                continue
            rows.append(at_most(name, crossings, CROSSINGS_AWARE_MAX if candidate.is_aware else CROSSINGS_MAX, cell, confidence))
            # One peer is woken at most once a loop iteration, however many messages it is sent.
            rows.append(at_most("%s, %s: doorbells an iteration" % (cell_name(cell), candidate.name),
                                [bells / iterations for bells, iterations in zip(candidate.figures(cell, "doorbells"), candidate.figures(cell, "iterations"))], 1, cell, confidence))
    for name, best, middle in lane_rows:
        if name in LANE_LIMITS:
            # The best run is what the lane costs where nothing interrupts; on a machine that others use there may have been none.
            result = PASS if best <= LANE_LIMITS[name] else INCONCLUSIVE if load > BUSY_LOAD else FAIL
            rows.append(Row(name, "<= %d ns" % LANE_LIMITS[name], "best %.1f ns, median %.1f ns" % (best, middle), result))
    return rows


def print_figures(candidates, cells, markdown):
    one = candidates[0]
    rows = []
    for cell in cells:
        for candidate in candidates:
            row = [cell_name(cell) + " " + candidate.name, "%.2f" % candidate.median(cell, "proxy_us"), "%.0f" % (candidate.median(cell, "rps") / 1000), "%.2f" % candidate.median(cell, "p99_ms")]
            row += ["%.3f" % candidate.median(cell, key) for key in ("crossings", "messages", "doorbells", "sleeps")]
            costs = crossing_costs(one, candidate, cell) if candidate.name == "2 cores" else []
            if costs:
                low, high, _ = median_interval(costs)
                row.append("%.2f (%.2f .. %.2f)" % (median(costs), low, high))
            else:
                row.append("-")
            rows.append(row)
    print_table(["cell, data cores", "gateway us/op", "k op/s", "p99 ms", "crossings/op", "messages/op", "doorbells/op", "sleeps/op", "us a crossing"], rows, markdown)


def main():
    parser = argparse.ArgumentParser(prog="bench.sh cores", description=__doc__.split("\n")[0])
    arguments = add_arguments(parser, rounds=10, seconds=1.0, rounds_max=20, short=(6, 0.3))()
    begun = time.monotonic()
    cells = cells_of(arguments, CELLS, CELLS_SHORT)

    with Bench() as bench:
        load = load_average()
        lane_rows = lanes(arguments.short)
        cluster = bench.cluster(primaries=4)
        candidates = start(bench, cluster, arguments)
        for candidate in candidates[1:]:
            candidate.stand_still()
        redis_benchmark(candidates[0].port, 50, 16, 100000, "set", KEYS)
        # As many requests as fit the time: figures are by operation, so that candidates may differ.
        requests = {}
        for cell in cells:
            for candidate in candidates:
                candidate.resume()
                rps = redis_benchmark(candidate.port, *cell, max(1000, cell[0] * cell[1] * 2), extra=KEYS)["rps"]
                candidate.stand_still()
                requests[candidate.name, cell] = max(int(rps * arguments.seconds), 2 * cell[0] * cell[1])
        rounds = Rounds(candidates, measure_with(requests), arguments.short, begun)
        rows = rounds.run_until_clear(cells, arguments.rounds, arguments.rounds_max, lambda confidence: requirements(candidates, lane_rows, load, cells, confidence))
        print(conditions(machine(), load, arguments, "cluster of 4, redis-benchmark GET of random keys; medians"))
        print()
        print_figures(candidates, cells, arguments.md)
        print()
        print_table(["a hop, nanoseconds", "best", "median"], [[name, "%.1f" % best, "%.1f" % middle] for name, best, middle in lane_rows], arguments.md)
        print()
        notes = [] if any(candidate.is_aware for candidate in candidates) else ["this zgateway has no port a core"]
        return verdict("crossings between data cores", rows, arguments.md, notes)


if __name__ == "__main__":
    sys.exit(main())
