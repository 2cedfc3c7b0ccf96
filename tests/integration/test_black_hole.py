"""A host that is gone without a word: packets are dropped, so established connections go silent and connects hang. Every command is answered in time, others are not touched, and service is back when the
packets are."""
import threading
import time

import pytest

from network import Network
from resp import Error
from servers import SLOWNESS, eventually

pytestmark = pytest.mark.gateway_only

TIMEOUT = 1.0 * SLOWNESS
# How much later than the time-out a reply may come: the timer's tick and a busy machine.
SLACK = 1.5 * SLOWNESS


@pytest.fixture
def network(run_dir):
    made = Network(run_dir)
    yield made
    made.close()


def options():
    return {"use_cases.timeout": "%dms" % (TIMEOUT * 1000), "backends.link_stall": "%dms" % (1500 * SLOWNESS), "backends.connect_timeout": "%dms" % (500 * SLOWNESS)}


def start(network, make_gateway, count=2, **more):
    servers = [network.server() for _ in range(count)]
    gateway = make_gateway(None, cores=2, options=options(), extra=["--servers", ",".join("%s:%d" % server.address for server in servers)], **more)
    return servers, gateway


def keys_by_server(gateway, servers, prefix):
    """Some keys that each server has, all set."""
    with gateway.raw() as raw:
        for index in range(60):
            assert raw.command("SET", "%d-%s" % (index, prefix), "v") == "OK"
    return [[key.decode() for key in server.redis().keys("*" + prefix)] for server in servers]


class Steady(threading.Thread):
    """Reads one key over and over, and keeps every reply with the time that it took."""

    def __init__(self, gateway, key):
        super().__init__(daemon=True)
        self.gateway = gateway
        self.key = key
        self.ends = threading.Event()
        self.replies = []
        self.failure = None
        self.start()

    def run(self):
        try:
            with self.gateway.raw(30) as raw:
                while not self.ends.is_set():
                    began = time.monotonic()
                    reply = raw.command("GET", self.key)
                    self.replies.append((began, time.monotonic() - began, reply))
                    time.sleep(0.005)
        except BaseException as failure:  # noqa: B902: shown by the test's own thread
            self.failure = failure

    def stop(self):
        self.ends.set()
        self.join(60 * SLOWNESS)
        assert self.failure is None, self.failure
        return self.replies


def test_silent_host_fails_fast_and_comes_back(network, make_gateway, prefix):
    (victim, other), gateway = start(network, make_gateway)
    lost, kept = keys_by_server(gateway, (victim, other), prefix)
    assert lost and kept
    steady, waiting = Steady(gateway, kept[0]), [Steady(gateway, key) for key in lost[:3]]
    time.sleep(0.3)
    network.drop(victim.port)
    dropped = time.monotonic()
    eventually(lambda: gateway.metric("nodes_down") == 1, 15, "the silent node is found down")
    down_after = time.monotonic() - dropped
    # Now commands are answered at once, not after the time-out.
    with gateway.raw(30) as raw:
        began = time.monotonic()
        replies = [raw.command("GET", key) for key in lost[:3] * 5]
        assert all(isinstance(reply, Error) and reply.startswith("CLUSTERDOWN") for reply in replies), replies
        assert time.monotonic() - began < 15 * TIMEOUT / 2
    assert gateway.metric("legs_failed_fast_total") >= 15
    # The connections of before are given up for good, and no more are tried than by the one that looks.
    eventually(lambda: "no progress within link_stall" in gateway.process.log(1 << 20), 15, "link_stall closes")
    network.lift()
    lifted = time.monotonic()
    with gateway.raw(30) as raw:
        eventually(lambda: raw.command("GET", lost[0]) == b"v", 15, "served again")
    back_after = time.monotonic() - lifted
    print("down after %.2f s, back %.2f s after the packets were" % (down_after, back_after))
    assert back_after < 2.5 * SLOWNESS
    eventually(lambda: gateway.metric("nodes_down") == 0, 5)
    time.sleep(0.2)
    for _, took, reply in steady.stop():
        assert reply == b"v", "the other server's clients notice nothing: %r" % (reply,)
    for thread in waiting:
        replies = thread.stop()
        assert max(took for _, took, _ in replies) < TIMEOUT + SLACK, sorted(took for _, took, _ in replies)[-3:]
        assert all(reply == b"v" or reply.split(" ")[0] in ("TIMEOUT", "CLUSTERDOWN") for _, _, reply in replies)
        assert replies[-1][2] == b"v"
    log = gateway.process.log(1 << 20)
    assert "state=down" in log and "state=healthy before=down" in log


def test_short_silence_leaves_no_stuck_connection(network, make_gateway, prefix):
    """The packets are back before link_stall: the old connection would wait for TCP to repeat, for seconds maybe. The node's answer to a check closes it."""
    (victim,), gateway = start(network, make_gateway, count=1)
    with gateway.raw(30) as raw:
        assert raw.command("SET", prefix, "v") == "OK"
        network.drop(victim.port)
        reply = raw.command("GET", prefix)
        assert isinstance(reply, Error) and reply.startswith("TIMEOUT"), reply
        network.lift()
        lifted = time.monotonic()
        eventually(lambda: raw.command("GET", prefix) == b"v", 15, "served again")
        print("back after %.2f s" % (time.monotonic() - lifted))
        assert time.monotonic() - lifted < 4 * SLOWNESS


def test_connects_that_hang(network, make_gateway, prefix):
    """Silent before the first connection: the gateway starts, answers in time, and serves when the host appears."""
    servers = [network.server(), network.server()]
    network.drop(servers[0].port)
    gateway = make_gateway(None, cores=2, options=options(), extra=["--servers", ",".join("%s:%d" % server.address for server in servers)])
    keys = ["%d-%s" % (index, prefix) for index in range(30)]
    with gateway.raw(60) as raw:
        began = time.monotonic()
        replies = [raw.command("SET", key, "v") for key in keys]
        assert any(reply == "OK" for reply in replies)
        errors = [reply for reply in replies if reply != "OK"]
        assert errors and all(isinstance(reply, Error) and reply.split(" ")[0] in ("TIMEOUT", "CLUSTERDOWN") for reply in errors), errors
        # Not each one has waited for its time-out.
        assert time.monotonic() - began < 6 * TIMEOUT + SLACK
        network.lift()
        eventually(lambda: all(raw.command("SET", key, "v") == "OK" for key in keys), 15, "served when the host appears")
