#!/usr/bin/python3
"""One shard of three stands still (SIGSTOP): what its neighbours keep, what it costs in memory, and how soon it is back.

Rounds with and without the stop in turn, in an order that turns round with each pair (ABBA): redis-benchmark reads a key of another shard through the gateway, while a few connections write to the
shard that stands still, at the same paced rate in both kinds of round. The nodes know of no failover: it is the gateway alone that is measured. Then, with the shard stopped once more, many connections
send it large values as fast as they can. Required: the ratio of throughput with a stopped shard to that without, its median over the pairs and the 95 % interval of that, is at least 0.95; that of the p99
is at most 1.1; memory for commands and replies stays under limits.arena_bytes_per_core, and the process grows by no more than that and a tenth; after each SIGCONT the shard is written again
within a second.

Exit status: 0 all of it holds, 1 some does not, 2 an interval holds its limit.
"""
import argparse
import select
import signal
import socket
import sys
import threading
import time

from lib_judge import at_least, at_most, fact, verdict
from lib_servers import Bench, Raw, encode, info, load_average, machine, memory_bytes, redis_benchmark
from lib_stats import median, print_table, spread
from resp import key_slot

THROUGHPUT_MIN, P99_MAX, BACK_MAX_S = 0.95, 1.1, 1.0
ARENA_MIB = 64
CLIENTS = 50


class Shards:
    """Which key lies where."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.ranges = {}
        for first, last, primary, *_ in cluster.ask(cluster.primaries[0], "CLUSTER", "SLOTS"):
            self.ranges.setdefault(primary[1], []).append((first, last))

    def key(self, port, name):
        number = 0
        while True:
            key = "%s-%d" % (name, number)
            if any(first <= key_slot(key) <= last for first, last in self.ranges[port]):
                return key
            number += 1


class Pressure(threading.Thread):
    """Connections that send SETs of one key, `rate` a second in sum (0: whatever the gateway takes), and read what comes back. At its limit of memory
    the gateway closes who sends more."""

    def __init__(self, port, key, connections, value_bytes, rate):
        super().__init__(daemon=True)
        self.command = encode("SET", key, b"v" * value_bytes)
        self.sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(connections)]
        self.rate = rate
        self.ends = threading.Event()
        self.closed = 0

    def run(self):
        left = dict.fromkeys(self.sockets, b"")
        begin, sent = time.monotonic(), 0
        for one in self.sockets:
            one.setblocking(False)
        while not self.ends.is_set() and left:
            due = int((time.monotonic() - begin) * self.rate) - sent if self.rate else len(left)
            for one in list(left)[sent % len(left):][:max(due, 0)]:
                if not left[one]:
                    left[one] = self.command
                sent += 1
            readable, writable, _ = select.select(list(left), [one for one in left if left[one]], [], 0.002)
            for one in set(readable + writable):
                try:
                    if one in writable:
                        left[one] = left[one][one.send(left[one][:1 << 17]):]
                    is_open = one not in readable or one.recv(1 << 18)
                except ConnectionError:
                    is_open = False
                if not is_open:
                    del left[one]
                    self.closed += 1

    def stop(self):
        self.ends.set()
        self.join()
        for one in self.sockets:
            one.close()


def seconds_until_written(port, key):
    begin = time.monotonic()
    with Raw(("127.0.0.1", port), 30) as raw:
        while raw.command("SET", key, "1") != "OK":
            assert time.monotonic() - begin < 30, "the shard does not come back"
            time.sleep(0.01)
    return time.monotonic() - begin


def print_rounds(rounds, markdown):
    rows = []
    for name in ("without", "with"):
        rps, p99 = [one["rps"] for one in rounds[name]], [one["p99_ms"] for one in rounds[name]]
        rows.append([name, "%.1f" % (median(rps) / 1000), "%.0f %%" % (100 * spread(rps)), "%.2f" % median([one["p50_ms"] for one in rounds[name]]), "%.2f" % median(p99), "%.0f %%" % (100 * spread(p99))])
    print_table(["other shards, a stopped one", "k op/s", "spread", "p50 ms", "p99 ms", "spread"], rows, markdown)


def ratios(rounds, key):
    return [a[key] / b[key] for a, b in zip(rounds["with"], rounds["without"])]


def flood(gateway, cluster, victim, key, seconds):
    """Large values to a stopped shard: the most that the arena held, what the process grew by, and the time until the shard is back."""
    before = memory_bytes(gateway.pid)["Rss"]
    cluster.signal(victim, signal.SIGSTOP)
    pressure = Pressure(gateway.port, key, 100, 1 << 20, 0)
    pressure.start()
    arena = grown = 0
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        arena = max(arena, int(info(gateway.port)["zgateway_arena_bytes"]))
        grown = max(grown, memory_bytes(gateway.pid)["Rss"] - before)
        time.sleep(0.05)
    pressure.stop()
    cluster.signal(victim, signal.SIGCONT)
    return arena, grown, seconds_until_written(gateway.port, key)


def main():
    parser = argparse.ArgumentParser(prog="bench.sh stopped-shard", description=__doc__.split("\n")[0])
    parser.add_argument("--short", action="store_true", help="within a minute: fewer and shorter rounds")
    parser.add_argument("--md", action="store_true", help="tables as markdown")
    parser.add_argument("--pairs", type=int, help="pairs of rounds (default 40, with --short 14)")
    parser.add_argument("--pipeline", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="OPTION", help="an option of zgateway, SECTION.KEY=VALUE")
    arguments = parser.parse_args()
    pairs = arguments.pairs or (14 if arguments.short else 40)
    seconds = 0.8 if arguments.short else 1.5

    with Bench() as bench:
        cluster = bench.cluster()
        for port in cluster.ports:
            cluster.ask(port, "CONFIG", "SET", "cluster-node-timeout", "600000")
            cluster.ask(port, "CONFIG", "SET", "cluster-require-full-coverage", "no")
        gateway = bench.gateway(cluster, cores=1, options=["limits.arena_bytes_per_core=%dMiB" % ARENA_MIB, "limits.request_max=4MiB", "limits.reply_max=4MiB", "use_cases.max_value=2MiB", *arguments.set])
        shards = Shards(cluster)
        victim, *others = cluster.primaries
        stopped_key = shards.key(victim, "stopped")
        keys = [shards.key(port, "other") for port in others]
        with Raw(("127.0.0.1", gateway.port)) as raw:
            for key in keys:
                assert raw.command("SET", key, "x" * 64) == "OK"
        load = load_average()
        rps = redis_benchmark(gateway.port, CLIENTS, arguments.pipeline, 20000, ["GET", keys[0]])["rps"]
        requests = int(rps * seconds)
        rounds = {"with": [], "without": []}
        back = []
        pressure = Pressure(gateway.port, stopped_key, 20, 1024, 500)
        pressure.start()
        for number in range(pairs):
            # Each of a pair meets the same neighbour.
            command = ["GET", keys[number % len(keys)]]
            for kind in ("with", "without") if number % 2 == 0 else ("without", "with"):
                if kind == "with":
                    cluster.signal(victim, signal.SIGSTOP)
                    time.sleep(0.1)
                rounds[kind].append(redis_benchmark(gateway.port, CLIENTS, arguments.pipeline, requests, command))
                if kind == "with":
                    cluster.signal(victim, signal.SIGCONT)
                    back.append(seconds_until_written(gateway.port, stopped_key))
        pressure.stop()
        assert pressure.closed == 0, "the gateway closed %d connections" % pressure.closed
        arena, grown, back_after_flood = flood(gateway, cluster, victim, stopped_key, 3 if arguments.short else 10)
        back.append(back_after_flood)

        print("%s; load before the first run %.1f; redis-benchmark GET, 64 B, %d clients, pipelines of %d, %d pairs of rounds of %.1f s; medians; spread: half the distance of the quartiles" %
              (machine(), load, CLIENTS, arguments.pipeline, pairs, seconds))
        print()
        print_rounds(rounds, arguments.md)
        print()
        cap = ARENA_MIB << 20
        rows = [
            at_least("throughput of the others, with / without", ratios(rounds, "rps"), THROUGHPUT_MIN),
            at_most("p99 of the others, with / without", ratios(rounds, "p99_ms"), P99_MAX),
            fact("memory under way, MiB", "<= %d" % ARENA_MIB, "%.1f" % (arena / (1 << 20)), arena <= cap),
            fact("growth of the process, MiB", "<= %.1f" % (ARENA_MIB * 1.1), "%.1f" % (grown / (1 << 20)), grown <= cap * 1.1),
            fact("seconds from SIGCONT to a write, of %d" % len(back), "<= %g" % BACK_MAX_S, "%.2f at most, median %.2f" % (max(back), median(back)), max(back) <= BACK_MAX_S),
        ]
        return verdict("one stopped shard of three, %d pairs" % pairs, rows, arguments.md)


if __name__ == "__main__":
    sys.exit(main())
