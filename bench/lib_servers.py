"""What the benchmarks start and read: backends, proxies, load, and figures of processes. No benchmark by itself."""
import csv
import io
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "integration"))

from lib_judge import FAIL, INCONCLUSIVE, PASS  # noqa: E402,F401
from resp import Raw, encode, parse_info  # noqa: E402,F401
from servers import Cluster, Process, Standalone, eventually, free_port  # noqa: E402,F401


def program(name):
    """A program of the build. ZG_BUILD names another build directory; ZG_GATEWAY another gateway."""
    if name == "zgateway" and os.environ.get("ZG_GATEWAY"):
        return os.path.abspath(os.environ["ZG_GATEWAY"])
    return os.path.join(os.path.abspath(os.environ.get("ZG_BUILD", os.path.join(ROOT, "build"))), name)


class Bench:
    """A directory and what was started in it; all of it ends with the block."""

    def __init__(self):
        self.directory = tempfile.mkdtemp(prefix="zgateway-bench-")
        self.servers = []

    def __enter__(self):
        # Whoever holds many connections inherits it.
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        # A frozen copy: a build that goes on meanwhile must not change what is measured.
        self.gateway_program = shutil.copy(program("zgateway"), self.path("zgateway.program"))
        return self

    def __exit__(self, *_):
        for server in reversed(self.servers):
            server.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def has_option(self, section, key):
        """Whether the gateway knows an option: a benchmark may be run on one that is older than itself."""
        result = subprocess.run([self.gateway_program, "--print-config"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True)
        found = re.search(r"^%s:$(.*?)(^\S|\Z)" % re.escape(section), re.sub(r"^#.*\n", "", result.stdout, flags=re.M), re.M | re.S)
        return found is not None and re.search(r"^ +%s:" % re.escape(key), found.group(1), re.M) is not None

    def wait_options(self, wait):
        """--set values for a way of waiting for batches. wait: "default"; "off"; "auto"; or (completions, microseconds), fixed. None where the gateway has no such way."""
        has_mode = self.has_option("cores", "wait_mode")
        if wait == "default":
            return []
        if wait == "auto":
            return ["cores.wait_mode=auto"] if has_mode else None
        if wait == "off":
            return ["cores.wait_mode=off"] if has_mode else ["cores.wait_completions=0", "cores.wait=0us"]
        completions, microseconds = wait
        return (["cores.wait_mode=fixed"] if has_mode else []) + ["cores.wait_completions=%d" % completions, "cores.wait=%dus" % microseconds]

    def path(self, name):
        return os.path.join(self.directory, name)

    def write(self, name, text):
        with open(self.path(name), "w") as file:
            file.write(text)
        return self.path(name)

    def redis(self, *options):
        server = Standalone(self.path("redis-%d" % len(self.servers)), options=["--maxclients", "15000", *options])
        self.servers.append(server)
        return server

    def cluster(self, primaries=3):
        server = Cluster(self.path("cluster"), primaries=primaries, replicas=0)
        self.servers.append(server)
        return server

    def start(self, name, args, port, preexec=None, env=None):
        """Starts a proxy and waits until it answers on its port."""
        process = Process(name, args, self.path(name), preexec, env)
        process.port = port
        self.servers.append(process)
        eventually(lambda: answers(port) or not process.is_running(), 15, process.log)
        assert process.is_running(), "%s ended:\n%s" % (" ".join(args), process.log())
        return process

    def gateway(self, backend, name="zgateway", cores=None, options=(), env=None):
        """zgateway in front of a Standalone or Cluster, with its defaults but for what is given."""
        port = free_port()
        args = [self.gateway_program, "--listen", "127.0.0.1:%d" % port]
        args += ["--cluster", backend.addresses()] if isinstance(backend, Cluster) else ["--servers", "127.0.0.1:%d" % backend.port]
        args += ["--data-cores", str(cores)] if cores else []
        for option in options:
            args += ["--set", option]
        process = self.start(name, args, port, env=env)
        eventually(lambda: info(port).get("loading") == "0", 15, process.log)
        return process


class IdleClients:
    """Many connections that have asked once and then say nothing, held by several processes with an address each."""

    # Below the 18,000 that a process may open with a limit of 20,000 files, and so that several data cores are dialled by several addresses.
    PER_PROCESS = 9000

    def __init__(self, port, connections):
        self.connections = connections
        self.processes = []
        number = 0
        while connections > 0:
            count = min(connections, self.PER_PROCESS)
            number += 1
            self.processes.append(subprocess.Popen([program("bench/idle_clients"), str(port), "127.0.1.%d" % number, str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            connections -= count

    def wait_ready(self):
        for process in self.processes:
            line = process.stdout.readline()
            assert line == "ready\n", "a loader ended with %s" % process.wait()

    def leave(self):
        for process in self.processes:
            process.stdin.close()
            process.wait()
            process.stdout.close()


def connected(port):
    """Clients, without the one that asks."""
    return int(info(port, "clients")["connected_clients"]) - 1


def answers(port):
    """Some proxies know no PING: a GET that comes back is enough."""
    try:
        with Raw(("127.0.0.1", port), 2) as raw:
            return raw.command("GET", "probe") is None
    except (OSError, Exception):
        return False


def info(port, section=None):
    with Raw(("127.0.0.1", port), 10) as raw:
        return parse_info(raw.command(*(["INFO", section] if section else ["INFO"])))


def cpu_ns(pid):
    """CPU time of all threads of a process, nanoseconds; exact for threads that do not run at this moment."""
    total = 0
    directory = "/proc/%d/task" % pid
    for task in os.listdir(directory):
        try:
            with open(os.path.join(directory, task, "schedstat")) as file:
                total += int(file.read().split()[0])
        except FileNotFoundError:
            pass
    return total


def memory_bytes(pid):
    """{"Rss": ..., "Private_Dirty": ..., ...} of a process, in bytes."""
    with open("/proc/%d/smaps_rollup" % pid) as file:
        lines = file.readlines()[1:]
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}


def redis_benchmark(port, clients, pipeline, requests, command="get", extra=(), timeout=120):
    """One run; {"rps", "p50_ms", "p99_ms"}. The command may also be a list of words."""
    words = ["-t", command] if isinstance(command, str) else []
    tail = [] if isinstance(command, str) else command
    args = ["redis-benchmark", "-h", "127.0.0.1", "-p", str(port), "-c", str(clients), "-P", str(pipeline), "-n", str(requests), "-d", "64", "--csv", *words, *extra, *tail]
    result = subprocess.run(args, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=timeout)
    text = result.stdout[result.stdout.find('"test"'):] if '"test"' in result.stdout else ""
    rows = list(csv.DictReader(io.StringIO(text)))
    assert result.returncode == 0 and rows, "%s: %s" % (" ".join(args), (result.stdout + result.stderr)[-500:])
    return {"rps": float(rows[-1]["rps"]), "p50_ms": float(rows[-1]["p50_latency_ms"]), "p99_ms": float(rows[-1]["p99_latency_ms"])}


def load_average():
    return os.getloadavg()[0]


def machine():
    """One line for reports: what was measured on."""
    with open("/proc/cpuinfo") as file:
        models = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return "%d CPUs (%s), Linux %s, load %.1f, %s" % (os.cpu_count(), models[0] if models else "?", os.uname().release, load_average(), time.strftime("%Y-%m-%d"))
