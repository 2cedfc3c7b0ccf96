#!/usr/bin/python3
"""CPU per operation: no proxy, the floor, nutcracker, HAProxy and zgateway in turn, one standalone server behind them.

Every candidate is measured in every round of every cell, in an order that turns round with each round (ABBA), so that what the machine does meanwhile meets all alike. CPU is the sum of
/proc/PID/task/*/schedstat of the proxy and of the server, divided by the server's own count of GETs. The requirement is on the ratio of two candidates within a round: its median over the
rounds and the 95 % interval of that.

Exit status: 0 proxy CPU is at most LIMIT times the floor's in every cell, 1 it is not in some, 2 an interval holds the limit.
"""
import argparse
import sys

from lib_servers import FAIL, INCONCLUSIVE, PASS, Bench, Raw, cpu_ns, free_port, info, load_average, machine, program, redis_benchmark
from lib_stats import median, median_interval, print_table, spread

CELLS = [(50, 1), (200, 1), (1000, 1), (50, 16), (200, 16), (50, 128), (200, 128)]
CELLS_SHORT = [(50, 1), (200, 16), (50, 128)]
# The floor and the gateway are neighbours: their ratio is what is judged.
CANDIDATES = ["direct", "nutcracker", "haproxy", "floor", "zgateway"]
CANDIDATES_SHORT = ["direct", "floor", "zgateway"]

NUTCRACKER = """bench:
  listen: 127.0.0.1:%d
  redis: true
  hash: fnv1a_64
  distribution: ketama
  preconnect: true
  server_connections: 1
  auto_eject_hosts: false
  servers:
   - 127.0.0.1:%d:1
"""

HAPROXY = """global
    nbthread 1
    maxconn 5000
defaults
    mode tcp
    timeout connect 5s
    timeout client 60s
    timeout server 60s
listen bench
    bind 127.0.0.1:%d
    server redis 127.0.0.1:%d
"""


class Candidate:
    def __init__(self, name, process, port):
        self.name = name
        self.process = process  # None: no proxy
        self.port = port
        self.rounds = {}  # by cell, a list of figures

    def figures(self, cell, key):
        return [figures[key] for figures in self.rounds[cell]]


def start(bench, name, redis, arguments):
    port = free_port()
    if name == "direct":
        return Candidate(name, None, redis.port)
    if name == "floor":
        extra = ["--min-wait", arguments.floor_wait] if arguments.floor_wait else []
        process = bench.start(name, [program("bench/floor"), "--listen", str(port), "--backend", str(redis.port), *extra], port)
    elif name == "nutcracker":
        config = bench.write("nutcracker.yml", NUTCRACKER % (port, redis.port))
        process = bench.start(name, ["nutcracker", "-c", config, "-s", str(free_port()), "-v", "0"], port)
    elif name == "haproxy":
        config = bench.write("haproxy.cfg", HAPROXY % (port, redis.port))
        process = bench.start(name, ["haproxy", "-db", "-f", config], port)
    else:
        process = bench.gateway(redis, name, cores=1, options=arguments.set)
    return Candidate(name, process, process.port)


def gets_count(redis):
    line = info(redis.port, "commandstats").get("cmdstat_get", "calls=0")
    return int(line.split("calls=")[1].split(",")[0])


def measure(candidate, redis, cell, requests):
    clients, pipeline = cell
    gets = gets_count(redis)
    proxy = cpu_ns(candidate.process.pid) if candidate.process else 0
    backend = cpu_ns(redis.process.pid)
    figures = redis_benchmark(candidate.port, clients, pipeline, requests)
    proxy = cpu_ns(candidate.process.pid) - proxy if candidate.process else 0
    backend = cpu_ns(redis.process.pid) - backend
    gets = gets_count(redis) - gets
    assert gets >= requests, "the server saw %d of %d requests" % (gets, requests)
    figures["proxy_us"] = proxy / gets / 1000
    figures["backend_us"] = backend / gets / 1000
    figures["total_us"] = figures["proxy_us"] + figures["backend_us"]
    return figures


def cell_name(cell):
    return "c%d P%d" % cell


def ratios(of, to, cell, key):
    return [a / b for a, b in zip(of.figures(cell, key), to.figures(cell, key))]


def print_figures(candidates, cells, markdown):
    rows = []
    for cell in cells:
        for candidate in candidates:
            proxy = candidate.figures(cell, "proxy_us")
            rows.append([cell_name(cell) + " " + candidate.name, "%.2f" % median(proxy) if candidate.process else "-", "%.0f %%" % (100 * spread(proxy)) if candidate.process else "-",
                         "%.2f" % median(candidate.figures(cell, "backend_us")), "%.2f" % median(candidate.figures(cell, "total_us")),
                         "%.0f" % (median(candidate.figures(cell, "rps")) / 1000), "%.2f" % median(candidate.figures(cell, "p50_ms")), "%.2f" % median(candidate.figures(cell, "p99_ms"))])
    print_table(["cell, candidate", "proxy us/op", "spread", "backend us/op", "total us/op", "k op/s", "p50 ms", "p99 ms"], rows, markdown)


def print_ratios(by_name, cells, markdown):
    """Ratios of zgateway to each other candidate: proxy CPU, and against no proxy total CPU and throughput."""
    others = [name for name in ("floor", "nutcracker", "haproxy") if name in by_name]
    rows = []
    for cell in cells:
        row = [cell_name(cell)]
        for name in others:
            values = ratios(by_name["zgateway"], by_name[name], cell, "proxy_us")
            low, high, _ = median_interval(values)
            row.append("%.2f (%.2f .. %.2f)" % (median(values), low, high))
        for key in ("total_us", "rps", "p99_ms"):
            row.append("%.2f" % median(ratios(by_name["zgateway"], by_name["direct"], cell, key)))
        rows.append(row)
    print_table(["zgateway against", *["%s, proxy CPU" % name for name in others], "direct, total CPU", "direct, op/s", "direct, p99"], rows, markdown)


def verdict(by_name, cells, limit, rounds):
    worst = PASS
    texts = []
    for cell in cells:
        values = ratios(by_name["zgateway"], by_name["floor"], cell, "proxy_us")
        low, high, _ = median_interval(values)
        result = PASS if high <= limit else FAIL if low > limit else INCONCLUSIVE
        # With fewer than six rounds no interval of 95 % exists.
        if rounds < 6:
            result = INCONCLUSIVE
        if result == FAIL or (result == INCONCLUSIVE and worst == PASS):
            worst = result
        texts.append("%s %.2f (%.2f .. %.2f)%s" % (cell_name(cell), median(values), low, high, {PASS: "", FAIL: " ABOVE", INCONCLUSIVE: " open"}[result]))
    word = {PASS: "holds", FAIL: "DOES NOT HOLD", INCONCLUSIVE: "inconclusive"}[worst]
    print("verdict: %s: proxy CPU of zgateway against the floor, at most %.2f wanted, %d rounds: %s" % (word, limit, rounds, "; ".join(texts)))
    return worst


def main():
    parser = argparse.ArgumentParser(prog="bench.sh cost", description=__doc__.split("\n")[0])
    parser.add_argument("--short", action="store_true", help="three cells, no other proxies, within a minute")
    parser.add_argument("--md", action="store_true", help="tables as markdown")
    parser.add_argument("--rounds", type=int, help="rounds (default 10, with --short 6)")
    parser.add_argument("--seconds", type=float, help="length of one measurement (default 1.2, with --short 0.5)")
    parser.add_argument("--limit", type=float, default=1.3, help="largest ratio to the floor (default 1.3)")
    parser.add_argument("--cells", help="for example c50P1,c200P16")
    parser.add_argument("--candidates", help="of %s; direct, floor and zgateway are always there" % ",".join(CANDIDATES))
    parser.add_argument("--floor-wait", metavar="N,US", help="let the floor wait for N completions or US microseconds")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION", help="an option of zgateway, SECTION.KEY=VALUE")
    arguments = parser.parse_args()
    rounds = arguments.rounds or (6 if arguments.short else 10)
    seconds = arguments.seconds or (0.5 if arguments.short else 1.2)
    cells = CELLS_SHORT if arguments.short else CELLS
    if arguments.cells:
        cells = [tuple(int(number) for number in cell[1:].split("P")) for cell in arguments.cells.split(",")]
    wanted = set(arguments.candidates.split(",")) | set(CANDIDATES_SHORT) if arguments.candidates else set(CANDIDATES_SHORT if arguments.short else CANDIDATES)

    with Bench() as bench:
        redis = bench.redis()
        # Without -r all requests are for this one key.
        with Raw(("127.0.0.1", redis.port)) as raw:
            raw.command("SET", "key:__rand_int__", "x" * 64)
        candidates = [start(bench, name, redis, arguments) for name in CANDIDATES if name in wanted]
        by_name = {candidate.name: candidate for candidate in candidates}
        load = load_average()
        # A first run of each warms it up and says how many requests fit the time; the two that are compared get the same number.
        requests = {}
        for cell in cells:
            for candidate in candidates:
                rps = redis_benchmark(candidate.port, *cell, max(8000, cell[0] * cell[1] * 4))["rps"]
                requests[candidate.name, cell] = max(int(rps * seconds), 4 * cell[0] * cell[1])
                candidate.rounds[cell] = []
            requests["zgateway", cell] = requests["floor", cell]
        for number in range(rounds):
            for cell in cells:
                for candidate in candidates if number % 2 == 0 else reversed(candidates):
                    candidate.rounds[cell].append(measure(candidate, redis, cell, requests[candidate.name, cell]))
        print("%s; load before the first run %.1f; redis-benchmark GET, 64 B, %d rounds of %g s; medians; spread: half the distance of the quartiles" % (machine(), load, rounds, seconds))
        print()
        print_figures(candidates, cells, arguments.md)
        print()
        print_ratios(by_name, cells, arguments.md)
        print()
        return verdict(by_name, cells, arguments.limit, rounds)


if __name__ == "__main__":
    sys.exit(main())
