#!/usr/bin/python3
"""CPU of an idle gateway that holds 10,000 idle clients: less than 0.5 % of one CPU.

Each connection has done a PING, a SET and a GET, and then says nothing. CPU is the run time of all threads (/proc/PID/task/*/schedstat) over several windows, as a share of one CPU; the requirement is on
the median of the windows and the interval of that. With 1 and 4 data cores, and `idle` adaptive (the default) and sleep; spin is shown, and not judged: it uses its CPUs by design. For each thread
its share and how often it was run, so that what wakes up too often can be seen.

Exit status: 0 every judged gateway stays below the limit, 1 one does not, 2 the interval holds the limit.
"""
import argparse
import os
import sys
import time

from lib_judge import at_most, verdict
from lib_servers import Bench, IdleClients, connected, eventually, load_average, machine
from lib_stats import median, median_interval, print_table

CONFIGURATIONS = [("adaptive", 1), ("adaptive", 4), ("sleep", 1), ("sleep", 4), ("spin", 1)]
CONFIGURATIONS_SHORT = [("adaptive", 1), ("adaptive", 4)]
QUIET_SECONDS = 1.0


def threads(pid):
    """{tid: (name, run nanoseconds, times run)} of a process."""
    result = {}
    for tid in os.listdir("/proc/%d/task" % pid):
        with open("/proc/%d/task/%s/comm" % (pid, tid)) as file:
            name = file.read().strip()
        with open("/proc/%d/task/%s/schedstat" % (pid, tid)) as file:
            run_ns, _, times = (int(word) for word in file.read().split())
        result[tid] = (name, run_ns, times)
    return result


def windows(pid, seconds, count):
    """Share of a CPU in each of `count` windows in percent, and by thread: {name: (percent, runs a second)} over all of them."""
    shares = []
    first = before = threads(pid)
    begun = before_time = time.monotonic()
    for _ in range(count):
        time.sleep(seconds)
        now, now_time = threads(pid), time.monotonic()
        run_ns = sum(run - before.get(tid, ("", 0, 0))[1] for tid, (_, run, _) in now.items())
        shares.append(100 * run_ns / 1e9 / (now_time - before_time))
        before, before_time = now, now_time
    elapsed = before_time - begun
    by_thread = [(name, 100 * (run - first[tid][1]) / 1e9 / elapsed, (times - first[tid][2]) / elapsed) for tid, (name, run, times) in before.items() if tid in first]
    return shares, sorted(by_thread)


def main():
    parser = argparse.ArgumentParser(prog="bench.sh idle-cpu", description=__doc__.split("\n")[0])
    parser.add_argument("--short", action="store_true", help="the default idling alone, shorter windows")
    parser.add_argument("--md", action="store_true", help="tables as markdown")
    parser.add_argument("--connections", type=int, default=10000)
    parser.add_argument("--limit", type=float, default=0.5, help="percent of one CPU (default 0.5)")
    parser.add_argument("--seconds", type=float, help="length of a window (default 3, with --short 1.5)")
    parser.add_argument("--windows", type=int, help="how many (default 12, with --short 8)")
    parser.add_argument("--cluster", action="store_true", help="in front of a cluster, which is polled, instead of one server")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION", help="an option of zgateway, SECTION.KEY=VALUE")
    arguments = parser.parse_args()
    seconds = arguments.seconds or (1.5 if arguments.short else 3)
    count = arguments.windows or (8 if arguments.short else 12)
    rows, table = [], []

    with Bench() as bench:
        backend = bench.cluster() if arguments.cluster else bench.redis()
        load = load_average()
        for mode, cores in CONFIGURATIONS_SHORT if arguments.short else CONFIGURATIONS:
            gateway = bench.gateway(backend, "%s-%d" % (mode, cores), cores=cores, options=["cores.idle=%s" % mode, *arguments.set])
            clients = IdleClients(gateway.port, arguments.connections)
            clients.wait_ready()
            eventually(lambda: connected(gateway.port) == arguments.connections, 30, "not all connections are there")
            time.sleep(QUIET_SECONDS)
            shares, by_thread = windows(gateway.pid, seconds, count if mode != "spin" else 2)
            assert connected(gateway.port) == arguments.connections, "connections were lost"
            name = "%s, %d data cores" % (mode, cores)
            low, high, _ = median_interval(shares)
            table.append([name, "%.3f (%.3f .. %.3f)" % (median(shares), low, high), "%.3f" % max(shares), ", ".join("%s %.3f %% %.0f/s" % thread for thread in by_thread)])
            if mode != "spin":
                rows.append(at_most("%s: percent of a CPU" % name, shares, arguments.limit))
            clients.leave()
            gateway.stop()
        print("%s; load of other work before the first run %.1f; %d idle clients; %d windows of %g s" % (machine(), load, arguments.connections, count, seconds))
        print()
        print_table(["idle", "percent of a CPU", "most", "threads: share, times run a second"], table, arguments.md)
        print()
        return verdict("an idle gateway with %d idle clients" % arguments.connections, rows, arguments.md)


if __name__ == "__main__":
    sys.exit(main())
