#!/usr/bin/python3
"""Heap allocations under load once the gateway is warm: none on the path.

A real cluster and two data cores. Everything is done once for warming up, with servers that stand still until all requests are in flight, then each load runs again on the same connections
with every reply compared byte by byte. Two counts that know nothing of each other must both be 0: the gateway's own (zgateway_allocations_total, less what INFO itself takes), and that of a preloaded heap
(bench/count_malloc.c), by thread. Where one is not, the callers are printed.

Exit status: 0 nothing was allocated, 1 something was.
"""
import argparse
import mmap
import os
import signal
import struct
import subprocess
import sys
import time

from lib_servers import FAIL, PASS, Bench, Raw, encode, machine, parse_info, program
from lib_stats import print_table

# The layout of struct shared in bench/count_malloc.c.
THREADS_MAX, TRACES_MAX, FRAMES_MAX = 64, 64, 12
TRACING_AT = 8 + 16 * THREADS_MAX
TRACES_AT = TRACING_AT + 16
TRACE_BYTES = 8 * (2 + FRAMES_MAX)
SHARED_BYTES = TRACES_AT + TRACES_MAX * TRACE_BYTES

KEYS = ["key:%d" % i for i in range(5000)]
VALUE = "x" * 64
LARGE = "y" * 100000


class HeapCount:
    """What the preloaded library writes."""

    def __init__(self, path):
        with open(path, "wb") as file:
            file.truncate(SHARED_BYTES)
        with open(path, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), SHARED_BYTES)

    def by_thread(self):
        count = min(struct.unpack_from("Q", self.map, 0)[0], THREADS_MAX)
        return dict(struct.unpack_from("QQ", self.map, 8 + 16 * i) for i in range(count))

    def start_tracing(self):
        struct.pack_into("QQ", self.map, TRACING_AT, 0, 0)
        struct.pack_into("Q", self.map, TRACING_AT, 1)

    def stop_tracing(self):
        """[(tid, bytes, frames)] of the first allocations since."""
        struct.pack_into("Q", self.map, TRACING_AT, 0)
        count = min(struct.unpack_from("Q", self.map, TRACING_AT + 8)[0], TRACES_MAX)
        traces = []
        for i in range(count):
            tid, size, *frames = struct.unpack_from("QQ%dQ" % FRAMES_MAX, self.map, TRACES_AT + i * TRACE_BYTES)
            traces.append((tid, size, [frame for frame in frames if frame]))
        return traces


def bulk(text):
    return "$%d\r\n%s\r\n" % (len(text), text)


def load_get(i):
    return encode("GET", KEYS[i % len(KEYS)]), bulk(VALUE)


def load_set(i):
    return encode("SET", KEYS[i % len(KEYS)], VALUE), "+OK\r\n"


def load_mget(i):
    return encode("MGET", *[KEYS[(i * 7 + k) % len(KEYS)] for k in range(10)]), "*10\r\n" + bulk(VALUE) * 10


def load_mset(i):
    words = []
    for k in range(10):
        words += [KEYS[(i * 7 + k) % len(KEYS)], VALUE]
    return encode("MSET", *words), "+OK\r\n"


def load_exists(i):
    return encode("EXISTS", *[KEYS[(i * 7 + k) % len(KEYS)] for k in range(10)]), ":10\r\n"


def load_inline(i):
    return ("GET %s\r\n" % KEYS[i % len(KEYS)]).encode(), bulk(VALUE)


def load_ping(i):
    return encode("PING"), "+PONG\r\n"


def load_large(i):
    return encode("SET", "large:%d" % (i % 20), LARGE) + encode("GET", "large:%d" % (i % 20)), "+OK\r\n" + bulk(LARGE)


class Load:
    def __init__(self, name, make, depth, commands):
        self.name = name
        self.make = make
        self.depth = depth
        self.commands = commands  # measured, over all connections

    def run(self, connections, commands=None, is_sent=None):
        """Pipelines on all connections at once; every reply is compared. is_sent is called each time all have been sent. Returns how many commands there were."""
        commands, depth = commands or self.commands, self.depth
        sent = 0
        while sent < commands:
            wanted = []
            for connection in connections:
                pairs = [self.make(sent + k) for k in range(depth)]
                sent += depth
                connection.socket.sendall(b"".join(pair[0] for pair in pairs))
                wanted.append("".join(pair[1] for pair in pairs).encode())
            if is_sent is not None:
                is_sent()
            for connection, reply in zip(connections, wanted):
                received = receive(connection.socket, len(reply))
                assert received == reply, "%s: %r instead of %r" % (self.name, received[:200], reply[:200])
        return sent


class Reconnect(Load):
    """Connections that come, ask and go, as many at once as there are."""

    def __init__(self, name, address, commands):
        super().__init__(name, load_get, 1, commands)
        self.address = address

    def run(self, connections, commands=None, is_sent=None):
        sent = 0
        while sent < (commands or self.commands):
            opened = [Raw(self.address) for _ in connections]
            sent += super().run(opened, 2 * len(opened), is_sent)
            for connection in opened:
                connection.close()
        return sent


def receive(sock, length):
    parts = []
    while length > 0:
        part = sock.recv(min(length, 1 << 20))
        assert part, "the connection was closed"
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def resume(cluster):
    """Once the gateway has taken what was sent, the servers go on."""
    time.sleep(0.2)
    for port in cluster.ports:
        cluster.signal(port, signal.SIGCONT)


def thread_name(pid, tid):
    try:
        with open("/proc/%d/task/%d/comm" % (pid, tid)) as file:
            return file.read().strip()
    except FileNotFoundError:
        return "ended"


def places(pid, path, frames):
    """Return addresses as function and line, the program's own only."""
    mappings = []
    with open("/proc/%d/maps" % pid) as file:
        for line in file:
            fields = line.split()
            if len(fields) >= 6 and os.path.basename(fields[5]) == os.path.basename(path):
                low, high = (int(part, 16) for part in fields[0].split("-"))
                mappings.append((low, high, int(fields[2], 16)))
    base = min(low - offset for low, _, offset in mappings)
    own = [frame - base - 1 for frame in frames if any(low <= frame < high for low, high, _ in mappings)]
    if not own:
        return "outside of the program"
    result = subprocess.run(["addr2line", "-f", "-s", "-e", path, *["%x" % address for address in own]], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    lines = result.stdout.split("\n")
    return " < ".join("%s (%s)" % (lines[i], lines[i + 1].split(" ")[0]) for i in range(0, len(lines) - 1, 2))


def allocations(control):
    return int(parse_info(control.command("INFO", "zgateway"))["zgateway_allocations_total"])


def main():
    parser = argparse.ArgumentParser(prog="bench.sh allocs", description=__doc__.split("\n")[0])
    parser.add_argument("--short", action="store_true", help="a tenth of the load, within a minute")
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--cores", type=int, default=2)
    arguments = parser.parse_args()
    scale = 10 if arguments.short else 1

    with Bench() as bench:
        cluster = bench.cluster()
        heap = HeapCount(bench.path("heap"))
        environment = {**os.environ, "LD_PRELOAD": program("bench/count_malloc.so"), "COUNT_MALLOC_FILE": bench.path("heap")}
        # The housekeeping core's regular poll allocates, and is not on the path.
        gateway = bench.gateway(cluster, cores=arguments.cores, options=["backends.poll_interval=1h", "use_cases.timeout=20s", "backends.link_stall=20s"], env=environment)
        address = ("127.0.0.1", gateway.port)
        connections = [Raw(address, 30) for _ in range(arguments.connections)]
        loads = [Load("SET P1", load_set, 1, 50000), Load("SET P16", load_set, 16, 200000), Load("GET P1", load_get, 1, 50000), Load("GET P16", load_get, 16, 200000),
                 Load("GET P128", load_get, 128, 400000), Load("MSET of 10, P1", load_mset, 1, 20000), Load("MSET of 10, P16", load_mset, 16, 40000),
                 Load("MGET of 10, P1", load_mget, 1, 20000), Load("MGET of 10, P16", load_mget, 16, 40000), Load("EXISTS of 10, P16", load_exists, 16, 40000),
                 Load("inline GET P1", load_inline, 1, 50000), Load("inline GET P16", load_inline, 16, 200000), Load("PING P16", load_ping, 16, 200000),
                 Load("SET and GET of 100 kB", load_large, 1, 4000), Reconnect("new connections", address, 4000)]
        # Warm: every key there is; then as many requests in flight at once as can be, with servers that stand still meanwhile, so that nothing measured later reaches a higher peak.
        loads[0].run(connections, commands=len(KEYS))
        for load in loads:
            for port in cluster.ports:
                cluster.signal(port, signal.SIGSTOP)
            load.run(connections, 1, lambda: resume(cluster))
        for load in loads:
            load.run(connections, load.commands // 10)
        control = Raw(address)
        for _ in range(3):
            allocations(control)
        of_info = -allocations(control) + allocations(control)
        assert heap.by_thread(), "the preloaded heap counts nothing: %s" % program("bench/count_malloc.so")
        rows, worst = [], PASS
        heap_all = own_all = commands_all = 0
        callers = {}
        for load in loads:
            # What was closed before must be gone, so that its end falls into no count.
            time.sleep(0.1)
            own = allocations(control)
            before = heap.by_thread()
            heap.start_tracing()
            commands = load.run(connections, commands=max(load.commands // scale, arguments.connections))
            time.sleep(0.05)
            traces = heap.stop_tracing()
            after = heap.by_thread()
            own = allocations(control) - own - of_info
            by_name = {}
            for tid, calls in after.items():
                if calls != before.get(tid, 0):
                    by_name[thread_name(gateway.pid, tid)] = by_name.get(thread_name(gateway.pid, tid), 0) + calls - before.get(tid, 0)
            total = sum(by_name.values())
            rows.append([load.name, commands, own, total, " ".join("%s:%d" % pair for pair in sorted(by_name.items())) or "-"])
            heap_all += total
            own_all += max(own, 0)
            commands_all += commands
            for tid, size, frames in traces:
                where = "%s: %s" % (thread_name(gateway.pid, tid), places(gateway.pid, bench.gateway_program, frames))
                entry = callers.setdefault(where, [0, size, load.name])
                entry[0] += 1
        if heap_all > 0 or own_all > 0:
            worst = FAIL
        print("%s; cluster of 3, %d data cores, %d connections; one INFO takes %d allocations" % (machine(), arguments.cores, arguments.connections, of_info))
        print()
        print_table(["load", "commands", "own count", "heap calls", "by thread"], rows)
        for where, (times, size, name) in sorted(callers.items(), key=lambda item: -item[1][0]):
            print("\n%d times (first in '%s', %d bytes): %s" % (times, name, size, where))
        print()
        print("verdict: %s: %d heap calls and %d by the gateway's own count over %d commands, 0 wanted" % ("holds" if worst == PASS else "DOES NOT HOLD", heap_all, own_all, commands_all))
        for connection in [control, *connections]:
            connection.close()
        return worst


if __name__ == "__main__":
    sys.exit(main())
