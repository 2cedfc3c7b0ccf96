"""Candidates that are measured in turn, round by round, and compared within a round. No benchmark by itself.

What the machine does meanwhile meets all candidates alike: every candidate is measured in every round of every cell, in an order that turns round with each round (ABBA), and requirements are on
ratios within a round.
"""
import time

from lib_judge import open_cells
from lib_servers import cpu_ns, info
from lib_stats import median, median_interval

SHORT_SECONDS = 50  # of the minute that --short may take: the rest is for starting and ending


class Candidate:
    """A way to the backend and what was measured on it. process: None where there is no proxy. The backend's processes are what the total counts besides."""

    def __init__(self, name, process, port):
        self.name = name
        self.process = process
        self.port = port
        self.rounds = {}  # by cell, a list of figures

    def figures(self, cell, key):
        return [figures[key] for figures in self.rounds.get(cell, [])]

    def median(self, cell, key):
        return median(self.figures(cell, key))


def cell_name(cell):
    return "c%d P%d" % cell


def cells_of(arguments, cells, cells_short):
    """Cells are (clients, depth of their pipelines)."""
    if arguments.cells:
        return [tuple(int(number) for number in cell.lstrip("c").split("P")) for cell in arguments.cells.split(",")]
    return cells_short if arguments.short else cells


def ratios(of, to, cell, key):
    """Of two candidates within the same rounds."""
    return [a / b if b else float("inf") for a, b in zip(of.figures(cell, key), to.figures(cell, key))]


def ratio_text(values):
    low, high, _ = median_interval(values)
    return "%.2f (%.2f .. %.2f)" % (median(values), low, high)


class Cpu:
    """CPU of a candidate's proxy and of the backend between two moments, by operation of the backend."""

    def __init__(self, candidate, redis):
        self.candidate = candidate
        self.redis = redis
        self.gets = gets_count(redis)
        self.proxy = cpu_ns(candidate.process.pid) if candidate.process else 0
        self.backend = cpu_ns(redis.process.pid)

    def end(self, figures, operations_min):
        """Adds proxy_us, backend_us and total_us an operation."""
        proxy = cpu_ns(self.candidate.process.pid) - self.proxy if self.candidate.process else 0
        backend = cpu_ns(self.redis.process.pid) - self.backend
        gets = gets_count(self.redis) - self.gets
        assert gets >= operations_min, "the server saw %d of %d requests" % (gets, operations_min)
        figures["proxy_us"] = proxy / gets / 1000
        figures["backend_us"] = backend / gets / 1000
        figures["total_us"] = figures["proxy_us"] + figures["backend_us"]
        return figures


def gets_count(redis):
    """GETs that the server itself has counted."""
    line = info(redis.port, "commandstats").get("cmdstat_get", "calls=0")
    return int(line.split("calls=")[1].split(",")[0])


class Rounds:
    """measure(candidate, cell) gives the figures of one measurement. begun: time.monotonic() when the benchmark began."""

    def __init__(self, candidates, measure, is_short, begun):
        self.candidates = candidates
        self.measure = measure
        self.is_short = is_short
        self.begun = begun
        self.done = 0  # rounds; the next one's order depends on it

    def _has_time(self, round_seconds):
        return not self.is_short or time.monotonic() - self.begun + round_seconds < SHORT_SECONDS

    def run(self, cells, rounds):
        """Returns how many rounds there was time for."""
        longest = 0.0
        for number in range(rounds):
            start = time.monotonic()
            if number > 0 and not self._has_time(longest):
                return number
            for cell in cells:
                for candidate in self.candidates if self.done % 2 == 0 else reversed(self.candidates):
                    candidate.rounds.setdefault(cell, []).append(self.measure(candidate, cell))
            self.done += 1
            longest = max(longest, time.monotonic() - start)
        return rounds

    def run_until_clear(self, cells, rounds, rounds_max, judge):
        """`rounds` rounds, then more of the cells whose rows are open, up to rounds_max. judge(confidence) gives the rows. Looking several times would make a chance result more likely, so that
        all looks but the last ask for 99 %."""
        self.run(cells, rounds)
        measured = rounds
        while not self.is_short and measured < rounds_max:
            cells = open_cells(judge(0.99))
            if not cells:
                break
            more = min(rounds, rounds_max - measured)
            self.run(cells, more)
            measured += more
        return judge(0.95)


def add_arguments(parser, rounds, seconds, rounds_max=40, short=(6, 0.4), with_cells=True):
    """Arguments that the benchmarks with candidates share; defaults for the whole form and for the short one."""
    parser.add_argument("--short", action="store_true", help="fewer cells, within a minute; the verdict may be that it stays open")
    parser.add_argument("--md", action="store_true", help="tables as markdown")
    parser.add_argument("--rounds", type=int, help="rounds (default %d, with --short %d)" % (rounds, short[0]))
    parser.add_argument("--rounds-max", type=int, help="rounds of cells that stay open (default %d)" % rounds_max)
    parser.add_argument("--seconds", type=float, help="length of one measurement (default %g, with --short %g)" % (seconds, short[1]))
    if with_cells:
        parser.add_argument("--cells", help="for example c50P1,c200P16")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION", help="an option of zgateway, SECTION.KEY=VALUE")

    def parse():
        arguments = parser.parse_args()
        arguments.rounds_max = max(arguments.rounds_max or arguments.rounds or rounds_max, arguments.rounds or 0)
        arguments.rounds = arguments.rounds or (short[0] if arguments.short else rounds)
        arguments.seconds = arguments.seconds or (short[1] if arguments.short else seconds)
        return arguments

    return parse


def conditions(machine, load, arguments, what):
    """One line for reports."""
    return "%s; load of other work before the first run %.1f; %s; %d rounds of %g s, more where rows stay open (at most %d)" % (
        machine, load, what, arguments.rounds, arguments.seconds, arguments.rounds if arguments.short else arguments.rounds_max)
