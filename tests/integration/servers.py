"""The programs that the tests drive: a cluster, a standalone server, the gateway. Each is started in a directory of its own and stopped by its pid."""
import os
import random
import resource
import signal
import socket
import subprocess
import time

import redis

from resp import Error, Raw, parse_info

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Sanitizer builds are several times slower: every time that a test waits at most is multiplied by this.
SLOWNESS = float(os.environ.get("ZG_SLOWNESS", "1"))


def gateway_program():
    return os.environ.get("ZG_GATEWAY", os.path.join(ROOT, "build", "zgateway"))


def eventually(condition, timeout=10, what=None, interval=0.02):
    """Waits until condition() is true, and returns its value; fails with `what` (text or function) otherwise."""
    deadline = time.monotonic() + timeout * SLOWNESS
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError("not within %g s: %s" % (timeout, what() if callable(what) else what or condition))
        time.sleep(interval)


def free_port(count=1):
    """A port that nobody listens on, as those behind it up to `count`, outside of the range of outgoing connections. Workers of one run have ranges of their own: a gateway shares
    its port (SO_REUSEPORT), so that two on the same would not notice."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
    room = 10000 // workers
    first = 22000 + worker * room
    for _ in range(200):
        port = random.SystemRandom().randrange(first, first + room - count)
        if all(_is_free(port + index) for index in range(count)):
            return port
    raise AssertionError("no free port")


def _is_free(port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def is_at_rest(gateway, clients=1):
    """No request is anywhere. clients: how many are connected, the one that asks included."""
    eventually(lambda: gateway.metric("requests_inflight") == 0, 20, lambda: "requests left: %d" % gateway.metric("requests_inflight"))
    eventually(lambda: gateway.metric("clients") == clients, 20, lambda: "clients left: %d" % gateway.metric("clients"))


class Process:
    """A child with its log in a file."""

    def __init__(self, name, args, directory, preexec=None, env=None, pass_fds=()):
        os.makedirs(directory, exist_ok=True)
        self.name = name
        self.log_path = os.path.join(directory, name + ".log")
        self.args = args
        log = open(self.log_path, "ab")
        self.child = subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=directory, preexec_fn=preexec,
                                      env=env, start_new_session=True, pass_fds=pass_fds)
        log.close()

    @property
    def pid(self):
        return self.child.pid

    def is_running(self):
        return self.child.poll() is None

    def log(self, bytes_max=8192):
        with open(self.log_path, "rb") as file:
            return file.read()[-bytes_max:].decode(errors="replace")

    def signal(self, number):
        if self.is_running():
            self.child.send_signal(number)

    def kill(self):
        self.signal(signal.SIGKILL)
        self.child.wait()

    def stop(self, timeout=10):
        """SIGTERM, and SIGKILL where that is not enough. Returns the exit status; -9 where it had to be killed."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            return self.child.wait(timeout * SLOWNESS)
        except subprocess.TimeoutExpired:
            self.kill()
            return -9

    def rss_bytes(self):
        with open("/proc/%d/status" % self.pid) as file:
            for line in file:
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS")

    def cpu_seconds(self):
        with open("/proc/%d/stat" % self.pid) as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Target:
    """Something that speaks RESP at an address: a server or the gateway."""

    host = "127.0.0.1"
    port = 0
    is_direct = True

    @property
    def address(self):
        return (self.host, self.port)

    def raw(self, timeout=10, protocol=None):
        return Raw(self.address, timeout * SLOWNESS, protocol)

    def redis(self, **options):
        options.setdefault("socket_timeout", 10 * SLOWNESS)
        return redis.Redis(self.host, self.port, **options)

    def info(self, section=None):
        with self.raw() as raw:
            reply = raw.command(*(["INFO", section] if section else ["INFO"]))
        assert not isinstance(reply, Error), reply
        return parse_info(reply)

    def answers_ping(self):
        try:
            with Raw(self.address, 2 * SLOWNESS) as raw:
                return raw.command("PING") == "PONG"
        except (OSError, Exception):
            return False


class Standalone(Target):
    """A redis-server of its own."""

    def __init__(self, directory, port=None, options=()):
        self.directory = directory
        self.port = port or free_port()
        self.options = list(options)
        self.start()

    def start(self):
        os.makedirs(self.directory, exist_ok=True)
        for _ in range(5):
            self.process = Process("redis-%d" % self.port, ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
                                   "--dir", self.directory, "--enable-debug-command", "yes"] + self.options, self.directory)
            eventually(lambda: self.answers_ping() or not self.process.is_running(), 10, self.process.log)
            if self.process.is_running():
                return
            time.sleep(0.1)
        raise AssertionError(self.process.log())

    def stop(self):
        self.process.stop()


class Cluster(Target):
    """A cluster by scripts/dev-cluster.sh. As a target it is its first primary."""

    def __init__(self, directory, primaries=3, replicas=1, server="redis-server"):
        self.directory = directory
        result = subprocess.run([os.path.join(ROOT, "scripts", "dev-cluster.sh"), "start", "--dir", directory, "--primaries", str(primaries),
                                 "--replicas", str(replicas), "--server", server], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert result.returncode == 0, result.stdout
        with open(os.path.join(directory, "ports")) as file:
            self.ports = [int(line) for line in file]
        self.server = server
        self.primaries = self.ports[:primaries]
        self.replicas = self.ports[primaries:]
        self.port = self.primaries[0]
        self.restarted = {}

    def stop(self):
        for process in self.restarted.values():
            process.stop()
        subprocess.run([os.path.join(ROOT, "scripts", "dev-cluster.sh"), "stop", "--dir", self.directory], check=True, stdin=subprocess.DEVNULL)

    def addresses(self):
        return ",".join("127.0.0.1:%d" % port for port in self.ports)

    def node(self, port, timeout=10):
        return Raw(("127.0.0.1", port), timeout * SLOWNESS)

    def ask(self, port, *args):
        with self.node(port) as raw:
            reply = raw.command(*args)
        assert not isinstance(reply, Error), "%r to %d: %s" % (args, port, reply)
        return reply

    def cluster_client(self):
        return redis.RedisCluster("127.0.0.1", self.port, socket_timeout=10)

    def pid(self, port):
        if port in self.restarted:
            return self.restarted[port].pid
        with open(os.path.join(self.directory, str(port), "pid")) as file:
            return int(file.read())

    def signal(self, port, number):
        os.kill(self.pid(port), number)

    def restart(self, port):
        """Starts a node that was killed, with the state it had."""
        directory = os.path.join(self.directory, str(port))
        process = Process("restarted-%d" % port, [self.server, "redis.conf"], directory)
        self.restarted[port] = process
        eventually(lambda: Target.answers_ping(_at(port)), 10, process.log)

    def slot_owner(self, slot):
        """Port of the primary that serves a slot, as the first node that answers sees it."""
        for port in self.ports:
            try:
                ranges = self.ask(port, "CLUSTER", "SLOTS")
            except OSError:
                continue
            for entry in ranges:
                if entry[0] <= slot <= entry[1]:
                    return entry[2][1]
        return None

    def client_connections(self, port):
        """How many ordinary client connections a node has, without ours and without replication."""
        # A connection that somebody has just closed may still be listed: the least of three looks counts.
        return min(self._client_connections_now(port, wait) for wait in (0, 0.05, 0.1))

    def _client_connections_now(self, port, wait):
        time.sleep(wait)
        text = self.ask(port, "CLIENT", "LIST").decode()
        clients = [dict(field.split("=", 1) for field in line.split(" ") if "=" in field) for line in text.splitlines()]
        return sum(1 for client in clients if "S" not in client["flags"] and "M" not in client["flags"] and not client["cmd"].startswith("client"))

    def is_ok(self):
        try:
            return all(b"cluster_state:ok" in self.ask(port, "CLUSTER", "INFO") for port in self.ports)
        except (OSError, Exception):
            return False


def _at(port):
    target = Target()
    target.port = port
    return target


class Gateway(Target):
    """zgateway. backend: a Cluster or a Standalone, or a list of these (servers). options: --set values by dotted name."""

    is_direct = False

    def __init__(self, directory, backend, cores=2, options=None, idle=None, listen=None, extra=(), nofile=None, config=None, wait=True):
        program = gateway_program()
        assert os.path.exists(program), "%s does not exist: build it first (meson setup build && meson compile -C build)" % program
        self.directory = directory
        self.cores = cores
        self.backend = backend
        # Some options take the ports behind it, one a core.
        self.port = free_port(cores + 1)
        args = [program]
        if config is not None:
            os.makedirs(directory, exist_ok=True)
            path = os.path.join(directory, "zgateway.yaml")
            with open(path, "w") as file:
                file.write(config.format(port=self.port, backend=backend.addresses() if isinstance(backend, Cluster) else None, backend_port=getattr(backend, "port", None)))
            args += ["-c", path]
        else:
            args += ["--listen", "%s:%d" % (self.host, self.port)]
            for address in listen or ():
                args += ["--listen", address]
            if isinstance(backend, Cluster):
                args += ["--cluster", backend.addresses()]
            elif isinstance(backend, Standalone):
                args += ["--servers", "127.0.0.1:%d" % backend.port]
            elif backend:
                args += ["--servers", ",".join("127.0.0.1:%d" % server.port for server in backend)]
            args += ["--data-cores", str(cores)]
        if idle:
            args += ["--idle", idle]
        # A busy test machine must not turn a slow reply into an error; tests of the time-out set their own.
        for name, value in {"use_cases.timeout": "%ds" % (20 * SLOWNESS), "backends.connect_timeout": "5s", "backends.link_stall": "20s", **(options or {})}.items():
            args += ["--set", "%s=%s" % (name, value)]
        args += list(extra)

        def limit_files():
            resource.setrlimit(resource.RLIMIT_NOFILE, (nofile, nofile))

        self.process = Process("zgateway", args, directory, limit_files if nofile else None)
        if wait:
            self.wait_ready()

    def is_ready(self):
        if not self.process.is_running():
            raise AssertionError("the gateway ended with %s:\n%s\n%s" % (self.process.child.returncode, " ".join(self.process.args), self.process.log()))
        try:
            with Raw(self.address, 2 * SLOWNESS) as raw:
                return raw.command("PING") == "PONG" and parse_info(raw.command("INFO")).get("loading") == "0"
        except OSError:
            return False
        except AttributeError:
            return False

    def wait_ready(self, timeout=15):
        eventually(self.is_ready, timeout, lambda: "the gateway is not ready:\n" + self.process.log())

    def metric(self, name):
        """zgateway_<name>, summed over the cores."""
        return int(self.info()["zgateway_" + name])

    def stop(self):
        """SIGTERM, and exit status 0 within the drain time: a crash, a sanitizer's report or a hang fails whatever test it happens under."""
        if self.process.is_running():
            status = self.process.stop(20)
        else:
            status = self.process.child.returncode
        assert status == 0, "the gateway ended with %s:\n%s" % (status, self.process.log())
