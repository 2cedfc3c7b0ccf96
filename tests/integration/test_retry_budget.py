"""Repeats are bounded by a share of the requests: backends in trouble get a little more than their load, never a multiple of it. Beyond the budget the error is passed on, counted."""
import pytest

from fake_backend import bulk
from resp import Error, key_slot
from servers import eventually

pytestmark = pytest.mark.gateway_only

LOADING = b"-LOADING Redis is loading the dataset in memory\r\n"


def budget(percent, floor, timeout="2s"):
    return {"use_cases.retry_percent": percent, "use_cases.retry_floor": floor, "use_cases.timeout": timeout}


class Counting:
    """Answers every command alike, and counts them."""

    def __init__(self, reply):
        self.reply = reply
        self.count = 0

    def answer(self, connection, command):
        self.count += 1
        return self.reply


@pytest.mark.parametrize("cores", [1, 2])
def test_share_of_requests_bounds_repeats(make_fake, make_gateway, cores):
    backend = Counting(LOADING)
    gateway = make_gateway([make_fake(backend.answer)], cores=cores, options=budget(20, 0))
    with gateway.raw(30) as raw:
        for index in range(300):
            reply = raw.command("GET", "k%d" % index)
            assert isinstance(reply, Error) and reply.startswith("LOADING"), reply
    assert 300 <= backend.count <= 360, "%d commands of 300 requests" % backend.count
    assert 30 <= gateway.metric("retries_total") <= 60
    assert gateway.metric("retries_refused_total") >= 240


def test_floor_lets_a_quiet_gateway_repeat(make_fake, make_gateway):
    """Twice LOADING, then the value: whoever asks now and then does not see it."""
    seen = {}

    def answer(connection, command):
        seen[command[-1]] = seen.get(command[-1], 0) + 1
        return LOADING if seen[command[-1]] < 3 else bulk(b"v")

    gateway = make_gateway([make_fake(answer)], cores=1, options=budget(0, 2))
    with gateway.raw(30) as raw:
        replies = [raw.command("GET", "k%d" % index) for index in range(20)]
    # Ten seconds of the floor are twenty repeats: ten requests. Time goes on meanwhile, and gives some more.
    assert replies[:10] == [b"v"] * 10, replies
    assert gateway.metric("retries_total") < 40


def test_nothing_is_repeated_with_no_budget(make_fake, make_gateway):
    backend = Counting(LOADING)
    gateway = make_gateway([make_fake(backend.answer)], cores=1, options=budget(0, 0))
    with gateway.raw(30) as raw:
        for index in range(10):
            assert raw.command("GET", "k%d" % index).startswith("LOADING")
    assert backend.count == 10
    assert gateway.metric("retries_total") == 0 and gateway.metric("retries_refused_total") == 10


def test_reads_of_a_lost_link_are_repeats(make_fake, make_gateway):
    lost = []

    def answer(connection, command):
        if command[-1] == b"die" and len(lost) < 5:
            lost.append(connection)
            return None
        return bulk(b"v")

    gateway = make_gateway([make_fake(answer)], cores=1, options=budget(0, 0))
    with gateway.raw(30) as raw:
        reply = raw.command("GET", "die")
        assert isinstance(reply, Error) and reply.startswith("TIMEOUT"), "not repeated: %r" % (reply,)
        assert len(lost) == 1
        eventually(lambda: raw.command("GET", "k") == b"v", 5)


def test_redirects_without_end_are_bounded(make_fake, make_gateway):
    """A node that sends each command to itself. The first redirects are free, as a slot that moves may need them; those after are repeats."""
    gets = []

    def answer(connection, command):
        if command[0].upper() == b"GET":
            gets.append(command)
            return b"-MOVED %d 127.0.0.1:%d\r\n" % (key_slot(command[1].decode()), backend.port)
        if command[0].upper() != b"CLUSTER":
            return b"+OK\r\n"
        if command[1].upper() != b"SLOTS":
            return b"-ERR unknown subcommand\r\n"
        return b"*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:%d\r\n%s" % (backend.port, bulk(b"a" * 40))

    backend = make_fake(answer)
    gateway = make_gateway(None, cores=1, options=budget(0, 0), extra=["--cluster", "127.0.0.1:%d" % backend.port])
    with gateway.raw(30) as raw:
        reply = raw.command("GET", "k")
        assert isinstance(reply, Error) and reply.startswith("MOVED"), reply
        assert len(gets) == 5, "once, and four redirects"
