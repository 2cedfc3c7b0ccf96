"""Backends that do the worst at the worst moment: each command has one reply, the right one or an error; the order of a connection's keys holds."""
import threading
import time

import pytest

from fake_backend import bulk
from resp import Closed, Error, encode
from servers import SLOWNESS, eventually, is_at_rest

pytestmark = pytest.mark.gateway_only


class Store:
    """GET and SET on one dictionary, until `limit` commands came on a connection: then the connection ends, without the replies to them."""

    def __init__(self, limit):
        self.values = {}
        self.limit = limit
        self.seen = {}

    def answer(self, connection, command):
        count = self.seen[connection] = self.seen.get(connection, 0) + 1
        reply = self.execute(command)
        if self.limit is None or len(self.seen) > 1:
            return reply
        if count < self.limit:
            return b""
        time.sleep(0.3)
        return None

    def execute(self, command):
        if command[0] == b"SET":
            self.values[command[1]] = command[2]
            return b"+OK\r\n"
        value = self.values.get(command[1])
        return b"$-1\r\n" if value is None else bulk(value)


def test_a_repeated_read_does_not_see_a_write_behind_it(make_fake, make_gateway):
    """The link dies with GET and SET on it, both done: neither reply came. The GET must not be repeated and tell what the SET did."""
    store = Store(2)
    gateway = make_gateway([make_fake(store.answer)], cores=1)
    with gateway.raw() as raw:
        replies = raw.pipeline([["GET", "k"], ["SET", "k", "later"]])
        assert all(isinstance(reply, Error) for reply in replies), replies
        assert raw.command("GET", "k") == b"later"
    is_at_rest(gateway)


def test_a_read_without_a_write_behind_it_is_repeated(make_fake, make_gateway):
    store = Store(3)
    store.values[b"k"] = b"v"
    gateway = make_gateway([make_fake(store.answer)], cores=1)
    with gateway.raw() as raw:
        assert raw.pipeline([["GET", "k"]] * 3) == [b"v"] * 3
    is_at_rest(gateway)


def test_what_waits_for_a_link_stays_behind_what_was_on_it(make_fake, make_gateway):
    """Four reads fill the link, the write waits in the batch; the link dies. The reads are repeated, and go first."""
    store = Store(4)
    gateway = make_gateway([make_fake(store.answer)], cores=1, options={"limits.link_inflight_max": 4})
    with gateway.raw() as raw:
        raw.send(encode("GET", "k") * 4)
        time.sleep(0.1)
        raw.send(encode("SET", "k", "later") + encode("GET", "k"))
        replies = [raw.read() for _ in range(6)]
        assert replies == [None] * 4 + ["OK", b"later"], replies
    is_at_rest(gateway)


GARBAGE = {
    "no-resp": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "zeros": b"\0" * 100,
    "half": b"$10\r\nabc",
    "huge-header": b"$99999999999999\r\n",
    "negative": b"$-7\r\n",
    "deep": b"*1\r\n" * 30,
    "wide": b"*2147483647\r\n",
    "endless-line": b"+" + b"x" * 300000,
    "push-alone": b">2\r\n$10\r\ninvalidate\r\n*0\r\n",
    "attribute": b"|1\r\n+a\r\n+b\r\n",
    "two-replies": b"+one\r\n+two\r\n",
    "too-large": b"$2000000\r\n" + b"x" * 2000000 + b"\r\n",
    "bad-moved": b"-MOVED\r\n",
    "moved-nowhere": b"-MOVED 0 127.0.0.1:1\r\n",
    "moved-name": b"-MOVED 0 " + b"h" * 300 + b":7000\r\n",
    "ask-self": b"-ASK 0 :0\r\n",
    "empty-error": b"-\r\n",
    "tryagain": b"-TRYAGAIN later\r\n",
    "loading": b"-LOADING wait\r\n",
    "nothing": b"",
    "close": None,
}


# A reply too many or too few shifts those behind it: nobody can tell.
OUT_OF_STEP = ("two-replies", "half", "attribute", "deep", "push-alone")


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("name", list(GARBAGE))
def test_garbage_instead_of_a_reply(make_fake, make_gateway, cores, name):
    """One key in three gets it. Everybody has one reply for each command, never another's."""
    def answer(connection, command):
        if command[-1].endswith(b"bad"):
            if name == "nothing":
                time.sleep(1)
                return None
            return GARBAGE[name]
        return bulk(command[-1])

    gateway = make_gateway([make_fake(answer), make_fake(answer)], cores=cores, options={
        "use_cases.timeout": "400ms", "backends.link_stall": "300ms", "limits.reply_max": "1MiB", "use_cases.max_value": "1MiB", "limits.request_max": "2MiB"})
    protocols = [2, 3]
    for turn in range(6):
        with gateway.raw(20, protocol=protocols[turn % 2]) as raw:
            keys = ["%d-%d%s" % (turn, index, "bad" if index % 3 == 0 else "") for index in range(30)]
            replies = raw.pipeline([["GET", key] for key in keys])
            for key, reply in zip(keys, replies):
                if key.endswith("bad"):
                    assert reply != key.encode()
                else:
                    assert reply == key.encode() or isinstance(reply, Error) or name in OUT_OF_STEP, (key, reply)
            assert raw.command("PING") == "PONG"
    is_at_rest(gateway)


def test_pushes_between_replies_are_dropped(make_fake, make_gateway):
    gateway = make_gateway([make_fake(lambda connection, command: b">2\r\n$10\r\ninvalidate\r\n*0\r\n" + bulk(command[-1]))], cores=2)
    for protocol in (2, 3):
        with gateway.raw(protocol=protocol) as raw:
            assert raw.pipeline([["GET", str(index)] for index in range(100)]) == [b"%d" % index for index in range(100)]


def test_replies_that_nobody_asked_for(make_fake, make_gateway):
    """A greeting as of a server with too many clients."""
    backend = make_fake(lambda connection, command: bulk(command[-1]), greeting=b"-ERR max number of clients reached\r\n")
    gateway = make_gateway([backend], cores=2, options={"use_cases.timeout": "400ms"})
    with gateway.raw() as raw:
        for _ in range(20):
            assert isinstance(raw.command("GET", "k"), Error)
    is_at_rest(gateway)
    assert backend.accepted < 500, "connects without a pause"


def test_connections_that_are_closed_at_once(make_fake, make_gateway):
    backend = make_fake(lambda connection, command: None)
    gateway = make_gateway([backend], cores=1, options={"use_cases.timeout": "400ms", "backends.reconnect_min": "20ms"})
    before = backend.accepted
    ends = time.monotonic() + 2
    with gateway.raw() as raw:
        while time.monotonic() < ends:
            assert isinstance(raw.command("GET", "k"), Error)
    assert backend.accepted - before < 400, "%d connects in two seconds" % (backend.accepted - before)
    is_at_rest(gateway)


@pytest.mark.parametrize("cores", [1, 2])
def test_links_that_die_at_any_moment(make_fake, make_gateway, cores):
    """While replies of all sizes are on their way, in pieces, to clients of both protocols."""
    def answer(connection, command):
        size = int(command[-1].split(b"-")[-1])
        return bulk(command[-1] + b"." * size)

    backends = [make_fake(answer) for _ in range(3)]
    gateway = make_gateway(backends, cores=cores, options={"use_cases.timeout": "2s", "backends.link_stall": "1s"})
    ends = time.monotonic() + 4
    failures = []

    def client(number):
        with gateway.raw(30, protocol=2 + number % 2) as raw:
            turn = 0
            while time.monotonic() < ends:
                turn += 1
                keys = ["%d-%d-%d-%d" % (number, turn, index, (0, 10, 3000, 50000)[index % 4]) for index in range(40)]
                for key, reply in zip(keys, raw.pipeline([["GET", key] for key in keys])):
                    if not isinstance(reply, Error) and not (reply and reply.split(b".")[0] == key.encode() and len(reply) == len(key) + int(key.split("-")[-1])):
                        failures.append((key, reply and reply[:40]))

    threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    while time.monotonic() < ends:
        for backend in backends:
            backend.close_connections()
            time.sleep(0.03)
    for thread in threads:
        thread.join(60 * SLOWNESS)
    assert not failures, failures[:5]
    assert not any(thread.is_alive() for thread in threads)
    is_at_rest(gateway)


def test_start_with_a_node_that_knows_neither_hello_nor_command(make_fake, make_gateway):
    """Its connections of RESP3 are closed while those of RESP2 have not answered yet."""
    def answer(connection, command):
        if command[0].upper() != b"CLUSTER":
            return bulk(command[-1])
        if command[1].upper() != b"SLOTS":
            return b"-ERR unknown subcommand\r\n"
        return b"*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:%d\r\n%s" % (backend.port, bulk(b"a" * 40))

    backend = make_fake(answer, hello=b"-ERR unknown command `HELLO`, with args beginning with: \r\n", command_delay=0.2)
    gateway = make_gateway(None, cores=1, extra=["--cluster", "127.0.0.1:%d" % backend.port])
    with gateway.raw() as raw:
        assert raw.command("GET", "k") == b"k"
