#!/usr/bin/python3
"""User memory of an idle plaintext client: resident memory of the gateway with none and with many, and after they left.

Each connection has done a PING, a SET and a GET, and then says nothing. Two data cores, because the table of direct descriptors of one ring holds about 19,000 files. A small first wave
touches what is allocated once and stays (receive buffers, tables); "none" is measured after that wave has left, so that the difference is what a connection costs. What stays resident
after all have left is printed as well: pools keep their chunks for the next clients.

Exit status: 0 a connection costs at most LIMIT bytes, 1 it costs more.
"""
import argparse
import sys
import time

from lib_servers import FAIL, PASS, Bench, IdleClients, connected, cpu_ns, eventually, machine, memory_bytes
from lib_stats import print_table


def stage(rows, name, gateway, seconds):
    """Waits for quiet, then a row: name, connections, memory, and CPU in the time of quiet."""
    time.sleep(seconds / 2)
    cpu = cpu_ns(gateway.pid)
    time.sleep(seconds / 2)
    cpu = cpu_ns(gateway.pid) - cpu
    memory = memory_bytes(gateway.pid)
    rows.append((name, connected(gateway.port), memory["Rss"], memory["Private_Dirty"], 100 * cpu / (seconds / 2 * 1e9)))
    return rows[-1]


def main():
    parser = argparse.ArgumentParser(prog="bench.sh idle", description=__doc__.split("\n")[0])
    parser.add_argument("--short", action="store_true", help="within a minute: shorter pauses, no stage of half of them")
    parser.add_argument("--connections", type=int, default=24000)
    parser.add_argument("--limit", type=float, default=512, help="bytes per connection (default 512)")
    parser.add_argument("--cores", type=int, default=2)
    arguments = parser.parse_args()
    seconds = 2 if arguments.short else 10

    with Bench() as bench:
        redis = bench.redis()
        gateway = bench.gateway(redis, cores=arguments.cores)
        rows = []
        stage(rows, "at start", gateway, seconds)

        def hold(name, connections):
            wave = IdleClients(gateway.port, connections)
            wave.wait_ready()
            row = stage(rows, name, gateway, seconds)
            assert row[1] == connections, "%d of %d connections are there" % (row[1], connections)
            wave.leave()
            eventually(lambda: connected(gateway.port) == 0, 30, "the connections do not end")

        # The first wave is small: it must not leave behind what the second is measured by.
        hold("first wave", min(1000, arguments.connections))
        none = stage(rows, "none", gateway, seconds)
        if not arguments.short:
            hold("half", arguments.connections // 2)
            stage(rows, "half left", gateway, seconds)
        hold("all", arguments.connections)
        all_ = rows[-1]
        left = stage(rows, "all left", gateway, seconds)

        print("%s; %d data cores" % (machine(), arguments.cores))
        print()
        table = []
        for name, count, rss, private, cpu in rows:
            per = "%.0f" % ((rss - none[2]) / count) if count else "-"
            per_private = "%.0f" % ((private - none[3]) / count) if count else "-"
            table.append([name, count, "%.1f" % (rss / 1e6), "%.1f" % (private / 1e6), per, per_private, "%.1f" % cpu])
        print_table(["stage", "connections", "Rss MB", "private MB", "Rss B/conn", "private B/conn", "CPU %"], table)
        print()
        cost = max(all_[2] - none[2], all_[3] - none[3]) / arguments.connections
        kept = (left[2] - none[2]) / arguments.connections
        result = PASS if cost <= arguments.limit else FAIL
        print("verdict: %s: %.0f bytes of user memory for each of %d idle connections, at most %.0f wanted; %.0f kept after they left" %
              ("holds" if result == PASS else "DOES NOT HOLD", cost, arguments.connections, arguments.limit, kept))
        return result


if __name__ == "__main__":
    sys.exit(main())
