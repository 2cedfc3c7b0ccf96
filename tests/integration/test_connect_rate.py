"""Attempts to connect are bounded over the whole process, whatever the number of nodes, cores and clients: no storm when all backends come back."""
import threading
import time

import pytest

from fake_backend import FakeBackend
from resp import Error
from servers import SLOWNESS, eventually

pytestmark = pytest.mark.gateway_only


def watch(gateway, ends, samples):
    """The counter of attempts by time: each value was reached between two times, so the bound is checked with the later end of one and the earlier of the other."""
    with gateway.raw(30) as raw:
        while not ends.is_set():
            before = time.monotonic()
            text = raw.command("INFO", "zgateway").decode()
            count = next(int(line.split(":")[1]) for line in text.splitlines() if line.startswith("zgateway_link_connects_total:"))
            samples.append((before, time.monotonic(), count))
            time.sleep(0.05)


def expect_bound(samples, rate, burst):
    for i, (_, _, first) in enumerate(samples):
        for _, after, count in samples[i:]:
            most = burst + rate * (after - samples[i][0])
            assert count - first <= most + 1e-6, "%d attempts within %.3f s, %.1f at most" % (count - first, after - samples[i][0], most)


@pytest.mark.parametrize("cores", [1, 3])
def test_all_servers_restarted_at_once(make_standalone, make_gateway, prefix, cores):
    """Killed together, away for a while, started together, under load of both protocols."""
    rate, burst = 30, 8
    servers = [make_standalone() for _ in range(4)]
    gateway = make_gateway(servers, cores=cores, options={"backends.connect_rate": rate, "backends.connect_burst": burst, "backends.reconnect_min": "1ms", "backends.reconnect_max": "5ms",
                                                          "backends.health_interval": "0s", "use_cases.timeout": "500ms"})
    keys = ["%d-%s" % (index, prefix) for index in range(60)]
    ends, samples, failures, served = threading.Event(), [], [], []

    def load(number):
        try:
            with gateway.raw(60, protocol=2 + number % 2) as raw:
                while not ends.is_set():
                    replies = raw.pipeline([["SET", key, "v"] for key in keys])
                    assert all(reply == "OK" or isinstance(reply, Error) and reply.split(" ")[0] in ("TIMEOUT", "CLUSTERDOWN") for reply in replies), replies
                    served.append(sum(reply == "OK" for reply in replies))
                    time.sleep(0.01)
        except BaseException as failure:  # noqa: B902: shown by the test's own thread
            failures.append(failure)

    threads = [threading.Thread(target=load, args=(number,)) for number in range(4)] + [threading.Thread(target=watch, args=(gateway, ends, samples))]
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: served and served[-1] == 60, 20, "served by all")
        for server in servers:
            server.process.kill()
        time.sleep(1.5)
        for server in servers:
            server.start()
        started = time.monotonic()
        with gateway.raw(60) as raw:
            eventually(lambda: raw.pipeline([["SET", key, "v"] for key in keys]) == ["OK"] * 60, 20, "served again")
        print("served again after %.2f s, %d attempts" % (time.monotonic() - started, samples[-1][2]))
    finally:
        ends.set()
        for thread in threads:
            thread.join(60 * SLOWNESS)
    assert not failures, failures
    # A share is at least one attempt, and the housekeeping core has one too.
    expect_bound(samples, rate, max(burst, cores + 1))
    assert gateway.metric("link_connect_waits_total") > 0, "the bound was met"
    assert samples[-1][2] > burst + rate * 0.5, "and used"
    for server in servers:
        # What the servers saw since they were started, of the gateway's and of the test's own connections.
        assert int(server.info("stats")["total_connections_received"]) <= burst + rate * (time.monotonic() - started) + 20


def test_what_gets_no_turn_waits_or_is_refused_in_time(make_gateway, prefix):
    """Two attempts a second for twenty servers: whose turn comes within connect_timeout is served, the others are told, all within that time."""
    backends = [FakeBackend(lambda connection, command: b"+OK\r\n") for _ in range(20)]
    try:
        gateway = make_gateway(backends, cores=1, options={"backends.connect_rate": 4, "backends.connect_burst": 4, "backends.connect_timeout": "700ms", "backends.health_interval": "0s",
                                                           "use_cases.timeout": "%ds" % (10 * SLOWNESS)})
        with gateway.raw(30) as raw:
            began = time.monotonic()
            replies = raw.pipeline([["SET", "%d-%s" % (index, prefix), "v"] for index in range(100)])
            took = time.monotonic() - began
            assert all(reply == "OK" or isinstance(reply, Error) and reply.startswith("CLUSTERDOWN") for reply in replies), replies
            assert replies.count("OK") > 0 and replies.count("OK") < 100
            assert 0.5 < took < 4 * SLOWNESS, took
            assert "no turn to connect" in gateway.process.log()
            # By and by each has its turn.
            eventually(lambda: raw.pipeline([["SET", "%d-%s" % (index, prefix), "v"] for index in range(100)]) == ["OK"] * 100, 40, "all are served in the end")
        assert sum(backend.accepted for backend in backends) <= 60
    finally:
        gateway.stop()
        for backend in backends:
            backend.close()
