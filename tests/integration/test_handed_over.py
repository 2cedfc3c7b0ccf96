"""Listening sockets that are handed over (LISTEN_FDS), and what is told on NOTIFY_SOCKET: a restart refuses nobody."""
import os
import socket
import threading
import time

import pytest

from handed_over import HandedOver, NotifySocket, listen_tcp, listen_unix
from resp import Closed, Push, Raw, encode
from servers import SLOWNESS, eventually, free_port

pytestmark = pytest.mark.gateway_only


@pytest.fixture
def start(run_dir, prefix):
    """Starts gateways on sockets of the test; ends those that still run."""
    made = []

    def begin(*args, **options):
        gateway = HandedOver(os.path.join(run_dir, "%sgw%d" % (prefix, len(made))), *args, **options)
        made.append(gateway)
        return gateway

    yield begin
    for gateway in made:
        if gateway.process.is_running():
            assert gateway.stop() == 0, gateway.process.log()


@pytest.fixture
def sockets():
    made = []

    def keep(listening):
        made.append(listening)
        return listening

    yield keep
    for listening in made:
        listening.close()


def check(address, prefix):
    with Raw(address, 10 * SLOWNESS) as raw:
        assert raw.command("SET", prefix, "v") == "OK"
        assert raw.command("GET", prefix) == b"v"
        return raw.command("CLIENT", "INFO").decode()


@pytest.mark.parametrize("cores", [1, 4])
def test_ipv4_ipv6_and_unix_sockets_are_matched_by_address(cluster, start, sockets, run_dir, prefix, cores):
    path = os.path.join(run_dir, prefix + "h.sock")
    v4, v6, unix = sockets(listen_tcp()), sockets(listen_tcp("::1")), sockets(listen_unix(path))
    own_port = free_port()
    addresses = ["127.0.0.1:%d" % v4.getsockname()[1], "[::1]:%d" % v6.getsockname()[1], "unix:" + path]
    # Not in the order of the listeners; and one listener is the gateway's own.
    gateway = start(cluster, [unix, v4, v6], addresses + ["127.0.0.1:%d" % own_port], cores=cores)
    gateway.wait_ready(v4.getsockname())
    eventually(lambda: "sockets_handed_over=3" in gateway.process.log(), 10, gateway.process.log)
    assert "addr=127.0.0.1:" in check(v4.getsockname(), prefix)
    assert "addr=[::1]:" in check(v6.getsockname()[:2], prefix)
    assert "addr=" + path in check(path, prefix)
    assert "addr=127.0.0.1:" in check(("127.0.0.1", own_port), prefix)
    assert gateway.stop() == 0
    assert os.path.exists(path), "the path of a socket that was handed over is not the gateway's to remove"
    with socket.create_connection(v4.getsockname(), 5):
        pass  # it still listens
    os.unlink(path)


def test_a_wildcard_for_both_families_serves_a_listener_of_either(cluster, start, sockets, prefix):
    dual = sockets(listen_tcp("::", dual=True))
    port = dual.getsockname()[1]
    gateway = start(cluster, [dual], ["0.0.0.0:%d" % port])
    gateway.wait_ready(("127.0.0.1", port))
    # IPv4 that comes through it is told as IPv4.
    info = check(("127.0.0.1", port), prefix)
    assert "addr=127.0.0.1:" in info and "laddr=127.0.0.1:%d " % port in info, info
    with Raw(("127.0.0.1", port)) as raw:
        assert {(entry[2][0], entry[2][1]) for entry in raw.command("CLUSTER", "SLOTS")} == {(b"127.0.0.1", port)}
    assert "addr=[::1]:" in check(("::1", port), prefix)


CONFIG = """\
listeners:
  - address: 127.0.0.1:{port}
    socket: clients
backends:
  - {{name: main, cluster: ["127.0.0.1:{backend}"]}}
"""


def test_a_socket_is_matched_by_name(cluster, start, sockets, prefix):
    """The address says something else: the name wins."""
    listening = sockets(listen_tcp())
    config = CONFIG.format(port=free_port(), backend=cluster.port)
    gateway = start(cluster, [listening], [], names=["clients"], config=config)
    gateway.wait_ready(listening.getsockname())
    check(listening.getsockname(), prefix)


def expect_failure(gateway, *words):
    assert gateway.process.child.wait(20 * SLOWNESS) == 1, gateway.process.log()
    for word in words:
        assert word in gateway.process.log(), gateway.process.log()


def test_bad_values_are_clear_errors(cluster, start, sockets, prefix, run_dir):
    listening = sockets(listen_tcp())
    address = "127.0.0.1:%d" % listening.getsockname()[1]
    expect_failure(start(cluster, [listening], [address], count=17), "LISTEN_FDS '17'", "0 .. 16")
    expect_failure(start(cluster, [listening], [address], count="two"), "LISTEN_FDS 'two'")
    expect_failure(start(cluster, [listening], [address], count=-1), "LISTEN_FDS '-1'")
    expect_failure(start(cluster, [listening], [address], count=2), "descriptor 4")
    expect_failure(start(cluster, [listening], [address], pid="1x"), "LISTEN_PID '1x'")
    expect_failure(start(cluster, [listening], [address], pid="''"), "LISTEN_PID ''")
    expect_failure(start(cluster, [listening], ["127.0.0.1:%d" % free_port()]), address, "belongs to no listener")
    expect_failure(start(cluster, [listening, listening], [address]), "descriptors 3 and 4", "one socket a listener")
    bound = sockets(socket.socket())
    bound.bind(("127.0.0.1", 0))
    expect_failure(start(cluster, [bound], [address]), "descriptor 3", "no listening stream socket")
    datagram = sockets(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    expect_failure(start(cluster, [datagram], [address]), "descriptor 3", "no listening stream socket")
    with open(os.path.join(run_dir, prefix), "wb") as file:
        expect_failure(start(cluster, [file], [address]), "descriptor 3")


def test_sockets_for_another_process_are_left_alone(cluster, start, sockets, prefix):
    listening = sockets(listen_tcp())
    own = free_port()
    gateway = start(cluster, [listening], ["127.0.0.1:%d" % own], pid=1)
    gateway.wait_ready(("127.0.0.1", own))
    assert "LISTEN_PID is 1" in gateway.process.log()
    eventually(lambda: "sockets_handed_over=0" in gateway.process.log(), 10, gateway.process.log)


def test_connections_of_a_shared_socket_spread_over_the_cores(cluster, start, sockets):
    listening = sockets(listen_tcp())
    gateway = start(cluster, [listening], ["127.0.0.1:%d" % listening.getsockname()[1]], cores=4)
    gateway.wait_ready(listening.getsockname())
    raws = [Raw(listening.getsockname()) for _ in range(400)]
    try:
        # The core's number is the connection's id modulo the number of cores, the housekeeper among them.
        counts = [0] * 5
        for raw in raws:
            counts[raw.command("CLIENT", "ID") % 5] += 1
        assert sum(counts) == 400 and counts[4] == 0
        assert min(counts[:4]) >= 40, counts
    finally:
        for raw in raws:
            raw.close()


class Loops:
    """Clients that connect again and again, ask once or more, and leave. Every request is answered, or its connection ends in order: nothing is refused, nothing reset."""

    def __init__(self, address, count, prefix):
        self.address, self.prefix = address, prefix
        self.is_over = False
        self.failures = []
        self.answered = self.ended = 0
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.run, args=(number,)) for number in range(count)]
        for thread in self.threads:
            thread.start()

    def run(self, number):
        try:
            index = 0
            while not self.is_over:
                index += 1
                self.once(b"%d-%d" % (number, index), 1 + index % 3)
        except BaseException as failure:  # noqa: B902
            self.failures.append(repr(failure))
            self.is_over = True

    def once(self, nonce, requests):
        answered = 0
        with Raw(self.address, 20 * SLOWNESS) as raw:  # a refused connection fails here
            key = "%s%s" % (self.prefix, nonce.decode())
            try:
                for _ in range(requests):
                    raw.send(encode("SET", key, nonce) + encode("GET", key))
                    assert raw.read() == "OK"
                    assert raw.read() == nonce
                    answered += 1
            except Closed:
                assert raw.decoder.at == len(raw.decoder.buffer), "a reply is cut"
                # The end came with the reply before, or nothing had been asked yet.
            except BrokenPipeError:
                assert answered > 0, "reset without an answer"
        with self.lock:
            self.answered += answered
            self.ended += answered < requests

    def stop(self):
        self.is_over = True
        for thread in self.threads:
            thread.join()
        assert not self.failures, self.failures[:3]


@pytest.mark.parametrize("cores", [1, 3])
def test_a_restart_refuses_nobody(cluster, start, sockets, prefix, cores):
    listening = sockets(listen_tcp())
    address = listening.getsockname()
    config = ["127.0.0.1:%d" % address[1]]
    gateway = start(cluster, [listening], config, cores=cores).wait_ready(address)
    loops = Loops(address, 8, prefix)
    try:
        for _ in range(2):
            before = loops.answered
            eventually(lambda: loops.answered >= before + 50 or loops.failures, 30, "no answers")
            assert gateway.stop() == 0, gateway.process.log()
            # Nobody runs: whoever connects now waits.
            with Raw(address, 20 * SLOWNESS) as waiting:
                waiting.send(encode("PING"))
                time.sleep(0.1)
                gateway = start(cluster, [listening], config, cores=cores)
                assert waiting.read() == "PONG"
    finally:
        loops.stop()
    assert loops.answered > 100


def test_clients_wait_for_the_first_topology_rather_than_for_an_error(cluster, start, sockets, prefix):
    """The first command of a connection that waited while no process ran is served, not refused because the gateway does not know its backends yet."""
    listening = sockets(listen_tcp())
    raws = [Raw(listening.getsockname(), 20 * SLOWNESS) for _ in range(20)]
    for raw in raws:
        raw.send(encode("SET", prefix, "v"))
    start(cluster, [listening], ["127.0.0.1:%d" % listening.getsockname()[1]])
    for raw in raws:
        assert raw.read() == "OK"
        raw.close()


def test_without_backends_it_accepts_after_a_while_and_says_why(start, sockets, standalone):
    listening = sockets(listen_tcp())
    missing = type("Missing", (), {"port": free_port()})()
    gateway = start(missing, [listening], ["127.0.0.1:%d" % listening.getsockname()[1]])
    with Raw(listening.getsockname(), 20 * SLOWNESS) as raw:
        assert raw.command("PING") == "PONG"
        assert str(raw.command("GET", "x")).startswith(("CLUSTERDOWN", "LOADING")), raw.command("GET", "x")
    assert gateway.process.is_running()


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_the_service_manager_is_told(cluster, start, sockets, run_dir, prefix, kind):
    notify = NotifySocket(os.path.join(run_dir, prefix + "n") if kind == "path" else "@zgateway-test-" + prefix)
    try:
        listening = sockets(listen_tcp())
        gateway = start(cluster, [listening], ["127.0.0.1:%d" % listening.getsockname()[1]], notify=notify.path, options={"drain.timeout": "7s"})
        assert notify.next() == ["READY=1", "STATUS=serving"]
        check(listening.getsockname(), prefix)
        assert gateway.stop() == 0
        assert notify.next() == ["STOPPING=1", "STATUS=draining", "EXTEND_TIMEOUT_USEC=12000000"]
    finally:
        notify.close()


def test_ready_is_said_even_without_backends(start, sockets, run_dir, prefix):
    notify = NotifySocket(os.path.join(run_dir, prefix + "n"))
    try:
        listening = sockets(listen_tcp())
        missing = type("Missing", (), {"port": free_port()})()
        start(missing, [listening], ["127.0.0.1:%d" % listening.getsockname()[1]], notify=notify.path)
        assert notify.next() == ["READY=1", "STATUS=listening; no complete view of the backend yet"]
    finally:
        notify.close()


def test_clients_that_asked_move_to_the_next_process(cluster, start, sockets, prefix):
    """MOVING names the address that stays open: the client connects there, and is served by the next process."""
    listening = sockets(listen_tcp())
    address = listening.getsockname()
    config = ["127.0.0.1:%d" % address[1]]
    gateway = start(cluster, [listening], config).wait_ready(address)
    with Raw(address, 20 * SLOWNESS, protocol=3) as raw:
        assert raw.command("CLIENT", "MAINT_NOTIFICATIONS", "ON", "moving-endpoint-type", "internal-ip") == "OK"
        stopped = threading.Thread(target=gateway.stop)
        stopped.start()
        push = raw.read()
        assert isinstance(push, Push) and push[0] == b"MOVING" and push[3] == b"127.0.0.1:%d" % address[1]
        with Raw((push[3].split(b":")[0].decode(), int(push[3].split(b":")[1])), 20 * SLOWNESS) as moved:
            moved.send(encode("SET", prefix, "moved"))
            assert raw.command("SET", prefix, "still served") == "OK"
            raw.close()
            stopped.join()
            start(cluster, [listening], config)
            assert moved.read() == "OK"
            assert moved.command("GET", prefix) == b"moved"
