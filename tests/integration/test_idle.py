"""A gateway with nothing to do: it hardly wakes, and is awake at once when something happens. (How much CPU that is: scripts/bench.sh idle-cpu.)"""
import os
import signal
import time

import pytest

from resp import Error
from servers import SLOWNESS, eventually

pytestmark = pytest.mark.gateway_only
CORES = 2


def sleeps(gateway):
    """How often its threads have gone to sleep, as the kernel counts it: asking the gateway would wake it."""
    total = 0
    for tid in os.listdir("/proc/%d/task" % gateway.process.pid):
        with open("/proc/%d/task/%s/status" % (gateway.process.pid, tid)) as file:
            total += sum(int(line.split()[1]) for line in file if line.startswith("voluntary_ctxt_switches:"))
    return total


def comes_to_rest(gateway):
    """Four ticks a second of each of three threads, polls, and slack: with ticks as under load it would be above 80. A busy machine only makes them fewer."""
    def is_quiet():
        before, begun = sleeps(gateway), time.monotonic()
        time.sleep(0.6)
        return (sleeps(gateway) - before) / (time.monotonic() - begun) < 30

    eventually(is_quiet, 20, "the cores do not come to rest")


@pytest.mark.parametrize("idle", ["adaptive", "sleep"])
@pytest.mark.parametrize("kind", ["cluster", "standalone"])
def test_cores_hardly_wake_while_nothing_happens(request, make_gateway, idle, kind):
    gateway = make_gateway(request.getfixturevalue(kind), cores=CORES, idle=idle)
    clients = [gateway.raw() for _ in range(50)]
    for client in clients:
        assert client.command("SET", "idle-key", "x") == "OK"
    comes_to_rest(gateway)
    # All clients are still served, each after its own silence.
    for client in clients:
        assert client.command("GET", "idle-key") == b"x"
        client.close()


def test_request_after_a_quiet_time_is_answered_at_once_and_times_out_in_time(make_standalone, make_gateway):
    server = make_standalone()
    gateway = make_gateway(server, cores=CORES, options={"use_cases.timeout": "300ms", "backends.link_stall": "60s"})
    with gateway.raw(30) as raw:
        assert raw.command("SET", "quiet", "x") == "OK"
        for _ in range(3):
            comes_to_rest(gateway)
            server.process.signal(signal.SIGSTOP)
            begun = time.monotonic()
            reply = raw.command("GET", "quiet")
            took = time.monotonic() - begun
            server.process.signal(signal.SIGCONT)
            assert isinstance(reply, Error) and reply.startswith("TIMEOUT"), reply
            # 300 ms, and at most one tick. Within seconds on any machine, and never before its time.
            assert 0.29 <= took < 3 * SLOWNESS, took
            eventually(lambda: raw.command("GET", "quiet") == b"x", 10, "the server does not come back")


def test_quiet_gateway_ends_when_told(standalone, make_gateway):
    gateway = make_gateway(standalone, cores=CORES)
    comes_to_rest(gateway)
    begun = time.monotonic()
    gateway.stop()
    assert time.monotonic() - begun < 5 * SLOWNESS
