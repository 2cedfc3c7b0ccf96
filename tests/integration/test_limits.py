"""Full pools of every kind, configured tiny: the offender waits or is told so, everybody else is served, memory stays bounded, and it recovers with no restart."""
import socket
import threading
import time

import pytest

from resp import Closed, Error, encode
from servers import SLOWNESS, eventually

pytestmark = pytest.mark.gateway_only

MIB = 1 << 20


def served(gateway, prefix, count=20):
    """A new connection is accepted and answered."""
    with gateway.raw(10) as raw:
        for index in range(count):
            assert raw.command("SET", "%sserved%d" % (prefix, index), str(index)) == "OK"
            assert raw.command("GET", "%sserved%d" % (prefix, index)) == str(index).encode()


def eventually_served(gateway, prefix, timeout=15):
    def attempt():
        try:
            served(gateway, prefix, 3)
            return True
        except (AssertionError, OSError, Closed):
            return False

    eventually(attempt, timeout, "served again")


class Steady:
    """A client of its own thread that is served, and answered right, for as long as it runs. may_refuse: where a pool that all share is full by
    the test's own making, -OVERLOAD is an answer too, if a prompt one."""

    def __init__(self, gateway, prefix, may_refuse=False):
        self.may_refuse = may_refuse
        self.raw = gateway.raw(10)
        self.prefix = prefix
        self.slowest = 0.0
        self.count = 0
        self.failure = None
        self.ends = threading.Event()
        self.raw.command("PING")
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        try:
            while not self.ends.is_set():
                start = time.monotonic()
                key, value = "%ssteady%d" % (self.prefix, self.count % 50), b"%d" % self.count
                replies = [self.raw.command("SET", key, value), self.raw.command("GET", key)]
                refused = [reply for reply in replies if isinstance(reply, Error)]
                if not (self.may_refuse and refused and all(reply.startswith("OVERLOAD") for reply in refused)):
                    assert replies == ["OK", value], replies
                self.slowest = max(self.slowest, time.monotonic() - start)
                self.count += 1
                time.sleep(0.002)
        except BaseException as failure:  # noqa: B902: shown by the test's own thread
            self.failure = failure

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, kind, *_):
        self.ends.set()
        self.thread.join()
        self.raw.close()
        if kind is None:
            assert self.failure is None, "the steady client after %d rounds: %r" % (self.count, self.failure)
            assert self.count > 0
            assert self.slowest < 5 * SLOWNESS, "slowest %.2f s of %d" % (self.slowest, self.count)


def flood(gateway, prefix, commands, timeout=60):
    """Sends all at once, then reads every reply; none may be missing. Returns them."""
    with gateway.raw(timeout) as raw:
        writer = threading.Thread(target=raw.send, args=(b"".join(commands),))
        writer.start()
        replies = [raw.read() for _ in commands]
        writer.join()
        return replies


def test_clients_per_core(cluster, make_gateway, prefix):
    gateway = make_gateway(cluster, cores=1, options={"limits.clients_per_core": 8})
    eventually(lambda: gateway.metric("clients") <= 1, 5, "only the connection that asks")
    time.sleep(0.1)
    raws = [gateway.raw(10) for _ in range(8)]
    for raw in raws:
        assert raw.command("PING") == "PONG"
    # The ninth waits in the kernel's queue, or is refused; the eight are served.
    extra = [gateway.raw(1) for _ in range(20)]
    answered = 0
    for raw in extra:
        try:
            raw.socket.settimeout(0.05)
            answered += raw.command("PING") == "PONG"
        except (OSError, Closed):
            pass
    assert answered == 0
    for raw in raws:
        assert raw.command("SET", prefix, "v") == "OK"
    assert int(raws[0].command("INFO").decode().split("zgateway_accept_pauses_total:")[1].split("\r")[0]) >= 1
    for raw in raws + extra:
        raw.close()
    eventually_served(gateway, prefix)
    assert gateway.metric("clients") <= 8


@pytest.mark.parametrize("cores", [1, 2])
def test_requests_per_core(cluster, make_gateway, prefix, cores):
    gateway = make_gateway(cluster, cores=cores, options={"limits.requests_per_core": 64, "limits.pipeline_per_client": 64})
    with Steady(gateway, prefix, may_refuse=True):
        for _ in range(3):
            replies = flood(gateway, prefix, [encode("GET", "%snone%d" % (prefix, index)) for index in range(5000)])
            assert all(reply is None or isinstance(reply, Error) for reply in replies)
            assert any(reply is None for reply in replies)
            # A split command needs more legs than there is room for at once.
            replies = flood(gateway, prefix, [encode("MGET", *["%snone%d" % (prefix, index) for index in range(500)])] * 3)
            assert all(isinstance(reply, Error) or reply == [None] * 500 for reply in replies)
    served(gateway, prefix)


@pytest.mark.parametrize("options", [
    {"limits.pipeline_per_client": 1},
    {"limits.pipeline_per_client": 4, "limits.link_inflight_max": 1},
    {"limits.link_inflight_max": 8, "use_cases.batch_max_requests": 1},
    {"limits.rx_buffers_per_core": 64, "limits.rx_buffer_bytes": "1KiB"},
    {"limits.rx_buffers_per_core": 64, "limits.rx_buffer_bytes": "1KiB", "ring.multishot_recv": "false"},
    {"cores.lane_slots": 64, "limits.credit_waiters_max": 1},
    {"cores.lane_slots": 64},
    {"limits.inline_bytes": "64B"},
    {"limits.client_output_soft": "4KiB"},
    {"ring.entries": 64},
    {"use_cases.batch_max_bytes": "1KiB"},
], ids=lambda options: ",".join("%s=%s" % (name.split(".")[1], value) for name, value in options.items()))
def test_a_tiny_limit_slows_down_and_breaks_nothing(cluster, make_gateway, prefix, options):
    """What these limits bound is back-pressure: every command is still answered, in order. Only waiters that have no place may be refused."""
    gateway = make_gateway(cluster, cores=2, options=options)
    may_refuse = "limits.credit_waiters_max" in options or "limits.link_inflight_max" in options
    with Steady(gateway, prefix, may_refuse):
        for protocol in (2, 3):
            commands, expected = [], []
            for index in range(1500):
                key = "%s%d" % (prefix, index % 100)
                value = b"%d-" % index + b"x" * (index % 3000)
                commands += [encode("SET", key, value), encode("GET", key), encode("ECHO", str(index))]
                expected += ["OK", value, str(index).encode()]
            replies = flood(gateway, prefix, commands)
            wrong = [(index, reply, want) for index, (reply, want) in enumerate(zip(replies, expected)) if reply != want]
            if may_refuse:
                # A refused SET leaves the older value behind, so only the refusals themselves and local commands are compared.
                assert all(index % 3 == 1 or index % 3 == 0 and str(reply).startswith("OVERLOAD") for index, reply, _ in wrong), wrong[:3]
                assert len(wrong) < len(commands), "nothing was served"
            else:
                assert not wrong, "%d wrong, first: %r" % (len(wrong), str(wrong[0])[:300])
    served(gateway, prefix)


@pytest.mark.parametrize("cores", [1, 2])
def test_arena(cluster, make_gateway, prefix, cores):
    """Memory for commands and replies: 24 clients with two megabytes each, there and back, do not fit into 32 MiB a core."""
    gateway = make_gateway(cluster, cores=cores, options={
        "limits.arena_bytes_per_core": "32MiB", "limits.request_max": "4MiB", "limits.reply_max": "4MiB", "use_cases.max_value": "3MiB", "limits.client_output_soft": "1MiB",
        "limits.client_output_hard": "8MiB"})
    value = b"v" * (2 * MIB)
    base = gateway.process.rss_bytes()
    with Steady(gateway, prefix, may_refuse=True):
        raws = [gateway.raw(30) for _ in range(24)]
        for index, raw in enumerate(raws):
            threading.Thread(target=_send_quietly, args=(raw, encode("SET", "%s%d" % (prefix, index), value) + encode("GET", "%s%d" % (prefix, index))), daemon=True).start()
        fine = 0
        for raw in raws:
            try:
                for _ in range(2):
                    reply = raw.read()
                    assert isinstance(reply, Error) or reply in ("OK", None, value)
                    fine += not isinstance(reply, Error)
            except (Closed, ConnectionResetError):
                pass
            raw.close()
        assert fine > 0
        assert gateway.process.rss_bytes() < base + (cores + 1) * 32 * MIB + 48 * MIB
    with gateway.raw(30) as raw:
        assert raw.command("SET", prefix, value[:MIB]) == "OK"
        assert raw.command("GET", prefix) == value[:MIB]
    served(gateway, prefix)


def _send_quietly(raw, data):
    try:
        raw.send(data)
    except OSError:
        pass


@pytest.mark.parametrize("cores", [1, 2])
def test_client_that_never_reads(cluster, make_gateway, prefix, cores):
    # What an offender may have in flight is its pipeline: 64 replies of 100 kB here. All clients of a shard share its link, so that is what others wait behind.
    gateway = make_gateway(cluster, cores=cores, options={"limits.client_output_soft": "1MiB", "limits.client_output_hard": "8MiB", "limits.reply_max": "4MiB",
                                                          "use_cases.max_value": "4MiB"})
    with gateway.raw() as raw:
        assert raw.command("SET", prefix, b"x" * 100_000) == "OK"
    base = gateway.process.rss_bytes()
    offenders = []
    with Steady(gateway, prefix):
        for _ in range(10):
            raw = gateway.raw()
            raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.socket.setblocking(False)
            offenders.append(raw)
        data = encode("GET", prefix) * 1000
        end = time.monotonic() + 4
        while time.monotonic() < end:
            for raw in offenders:
                try:
                    raw.socket.send(data)
                except OSError:
                    pass
            time.sleep(0.01)
        # Ten offenders with 8 MiB each at most, and what links and the kernel hold.
        assert gateway.process.rss_bytes() < base + 10 * 10 * MIB + 64 * MIB
    for raw in offenders:
        raw.close()
    eventually(lambda: gateway.metric("clients") <= 1, 10, "the offenders are gone")
    # What was held is given back: the pages of free blocks return to the kernel but for a small reserve.
    eventually(lambda: gateway.process.rss_bytes() < base + 48 * MIB, 10, lambda: "RSS %d MiB, base %d MiB" % (gateway.process.rss_bytes() // MIB, base // MIB))
    served(gateway, prefix)


def test_client_that_sends_a_byte_at_a_time(cluster, make_gateway, prefix):
    """Slow senders of one command hold neither receive buffers nor anybody up: there are more of them than buffers."""
    gateway = make_gateway(cluster, cores=2, options={"limits.rx_buffers_per_core": 64})
    command = encode("SET", prefix + "slow", "0123456789")
    raws = [gateway.raw() for _ in range(300)]
    with Steady(gateway, prefix):
        for index in range(len(command)):
            for raw in raws:
                raw.send(command[index : index + 1])
            time.sleep(0.05)
        for raw in raws:
            assert raw.read() == "OK"
    for raw in raws:
        raw.close()
    served(gateway, prefix)


def test_client_that_reads_a_byte_at_a_time(cluster, make_gateway, prefix):
    gateway = make_gateway(cluster, cores=2)
    with gateway.raw() as raw:
        raw.command("SET", prefix, b"y" * 2000)
        raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        with Steady(gateway, prefix):
            raw.send(encode("GET", prefix) * 3)
            want = (b"$2000\r\n" + b"y" * 2000 + b"\r\n") * 3
            got = bytearray()
            while len(got) < len(want):
                got += raw.socket.recv(1)
            assert bytes(got) == want


def test_large_command_that_never_ends(cluster, make_gateway, prefix):
    """Announced megabytes that do not come cost what has arrived, not what was announced."""
    gateway = make_gateway(cluster, cores=2)
    base = gateway.process.rss_bytes()
    raws = [gateway.raw() for _ in range(50)]
    for raw in raws:
        raw.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$60000000\r\nabc")
    with Steady(gateway, prefix):
        time.sleep(0.5)
        assert gateway.process.rss_bytes() < base + 64 * MIB
    for raw in raws:
        raw.close()
    served(gateway, prefix)


@pytest.mark.parametrize("direct", ["true", "false"])
def test_descriptors_run_out(cluster, make_gateway, prefix, direct):
    """EMFILE: accepting stops and goes on by itself when there is room."""
    gateway = make_gateway(cluster, cores=2, nofile=96, options={"ring.direct_descriptors": direct})
    with Steady(gateway, prefix) as steady:
        raws, answered = [], 0
        for _ in range(400):
            raw = gateway.raw(1)
            raw.socket.settimeout(0.3)
            raws.append(raw)
        for raw in raws:
            raw.socket.setblocking(False)
            try:
                raw.send(encode("PING"))
            except OSError:
                pass
        time.sleep(1.5 * SLOWNESS)
        for raw in raws:
            try:
                answered += raw.read() == "PONG"
            except (OSError, Closed):
                pass
        assert 1 <= answered < 400
        before = steady.count
        time.sleep(0.5)
        assert steady.count > before
        for raw in raws:
            raw.close()
    eventually_served(gateway, prefix)
    # And again, so that nothing leaked.
    raws = [gateway.raw(5) for _ in range(answered // 2)]
    for raw in raws:
        assert raw.command("PING") == "PONG"
    for raw in raws:
        raw.close()


def test_memory_returns_after_a_burst(cluster, make_gateway, prefix):
    gateway = make_gateway(cluster, cores=2)
    served(gateway, prefix)
    base = gateway.process.rss_bytes()
    for _ in range(3):
        raws = [gateway.raw(60) for _ in range(20)]
        for index, raw in enumerate(raws):
            raw.send(encode("SET", "%s%d" % (prefix, index), b"z" * MIB))
        for raw in raws:
            assert raw.read() == "OK"
        for index, raw in enumerate(raws):
            raw.send(encode("GET", "%s%d" % (prefix, index)) * 4)
        for raw in raws:
            for _ in range(4):
                assert len(raw.read()) == MIB
            raw.close()
    eventually(lambda: gateway.process.rss_bytes() < base + 48 * MIB, 15, lambda: "RSS %d MiB, base %d MiB" % (gateway.process.rss_bytes() // MIB, base // MIB))
