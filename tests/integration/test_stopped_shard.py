"""One shard stands still (SIGSTOP) while clients flood it with large values: the others are served, memory stays under its cap, and it is back within a second of SIGCONT."""
import signal
import threading
import time

import pytest

from resp import Closed, Error, encode, key_slot
from servers import SLOWNESS, eventually

pytestmark = pytest.mark.gateway_only

CAP = 32 << 20  # a core


def key_at(cluster, port, prefix):
    ranges = [(entry[0], entry[1]) for entry in cluster.ask(port, "CLUSTER", "SLOTS") if entry[2][1] == port]
    number = 0
    while True:
        key = "%s%d" % (prefix, number)
        if any(first <= key_slot(key) <= last for first, last in ranges):
            return key
        number += 1


class Flooder(threading.Thread):
    """A client that writes a large value of the stopped shard again and again; counts what it was told. At its limit of memory the gateway closes who sends more: then it comes back."""

    def __init__(self, gateway, key):
        super().__init__(daemon=True)
        self.gateway = gateway
        self.command = encode("SET", key, b"v" * 200000) + encode("ECHO", key)
        self.key = key
        self.ends = threading.Event()
        self.replies = {}
        self.failure = None
        self.start()

    def run(self):
        try:
            while not self.ends.is_set():
                with self.gateway.raw(30) as raw:
                    try:
                        self.live(raw)
                    except (Closed, ConnectionError):
                        self.count("closed")
                        time.sleep(0.05)
        except BaseException as failure:  # noqa: B902: shown by the test's own thread
            self.failure = failure

    def live(self, raw):
        while not self.ends.is_set():
            raw.send(self.command)
            reply = raw.read()
            kind = reply.split(" ", 1)[0]
            assert kind == "OK" or isinstance(reply, Error) and kind in ("TIMEOUT", "OVERLOAD", "CLUSTERDOWN"), reply
            self.count(kind)
            assert raw.read() == self.key.encode()

    def count(self, what):
        self.replies[what] = self.replies.get(what, 0) + 1


def test_one_stopped_shard(own_cluster, make_gateway, prefix):
    for port in own_cluster.ports:  # nothing fails over: the gateway alone is tested
        own_cluster.ask(port, "CONFIG", "SET", "cluster-node-timeout", "600000")
        own_cluster.ask(port, "CONFIG", "SET", "cluster-require-full-coverage", "no")
    for cores in (1, 2):
        one_stopped_shard(own_cluster, make_gateway, prefix, cores)


def one_stopped_shard(own_cluster, make_gateway, prefix, cores):
    gateway = make_gateway(own_cluster, cores=cores, options={
        "use_cases.timeout": "500ms", "backends.link_stall": "2s", "backends.connect_timeout": "500ms",
        "limits.arena_bytes_per_core": "%dMiB" % (CAP >> 20), "limits.request_max": "1MiB", "limits.reply_max": "1MiB", "use_cases.max_value": "512KiB"})
    victim, other = own_cluster.primaries[:2]
    stopped, served = key_at(own_cluster, victim, prefix), key_at(own_cluster, other, prefix)
    with gateway.raw(30) as raw:
        assert raw.pipeline([["SET", stopped, "1"], ["SET", served, "1"]]) == ["OK", "OK"]
        baseline = gateway.process.rss_bytes()
        own_cluster.signal(victim, signal.SIGSTOP)
        flooders = [Flooder(gateway, stopped) for _ in range(40)]
        slowest, slow, grown, arena, refused, asked = 0, 0, 0, 0, 0, 0
        ends = time.monotonic() + 3
        while time.monotonic() < ends:
            begin = time.monotonic()
            reply = raw.command("GET", served)
            slowest = max(slowest, time.monotonic() - begin)
            slow += time.monotonic() - begin > 0.4 * SLOWNESS
            assert reply == b"1" or isinstance(reply, Error) and reply.startswith("OVERLOAD"), reply
            refused += reply != b"1"
            asked += 1
            if asked % 50 == 0:
                arena = max(arena, gateway.metric("arena_bytes"))
                grown = max(grown, gateway.process.rss_bytes() - baseline)
            time.sleep(0.001)
        own_cluster.signal(victim, signal.SIGCONT)
        begin = time.monotonic()
        eventually(lambda: raw.command("SET", stopped, "2") == "OK", 10, "the shard is written again")
        back = time.monotonic() - begin
        for flooder in flooders:
            flooder.ends.set()
        for flooder in flooders:
            flooder.join(60 * SLOWNESS)
        told = {}
        for flooder in flooders:
            for kind, count in flooder.replies.items():
                told[kind] = told.get(kind, 0) + count
        print("the other shard: slowest %.3f s, %d of %d refused; arena %.1f MiB, growth %.1f MiB; back after %.3f s; flooders: %r" % (
            slowest, refused, asked, arena / (1 << 20), grown / (1 << 20), back, told))
        assert not [flooder.failure for flooder in flooders if flooder.failure]
        assert told.get("TIMEOUT", 0) > 0
        assert refused == 0, "what one shard's clients send takes nothing from those of another"
        # A wait for the stopped shard would last its time-out, and be everybody's; a busy machine makes single ones slow.
        assert slow <= 1 + asked / 50, "nobody waits for a shard that is not asked: %d of %d did" % (slow, asked)
        assert arena <= CAP * (cores + 1) and grown <= CAP * cores * 1.25 + (8 << 20)
        assert back < 1 * SLOWNESS
    eventually(lambda: gateway.metric("requests_inflight") == 0, 10)
