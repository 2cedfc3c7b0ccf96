"""Large replies go on to their client while they arrive: byte for byte, in their place, without being whole anywhere; a client that does not take them holds up itself alone."""
import hashlib
import random
import threading
import time

import pytest

from fake_backend import FakeBackend, bulk
from resp import Closed, Error, encode
from servers import SLOWNESS, eventually

pytestmark = pytest.mark.gateway_only

MIB = 1 << 20
DATA = random.Random(7).randbytes(4 * MIB)


def value_of(size, seed=0):
    start = seed * 4099 % MIB
    piece = DATA[start:start + 2 * MIB]
    return (piece * (size // len(piece) + 1))[:size]


def digest(data):
    return hashlib.blake2b(data, digest_size=16).digest()


def read_exactly(raw, length, piece=1 << 18):
    """Raw bytes, whatever they mean."""
    data = bytearray()
    while len(data) < length:
        got = raw.socket.recv(min(piece, length - len(data)))
        if not got:
            raise Closed
        data += got
    return bytes(data)


class Server:
    """Values by key, and what a test does to one of them: `cut` ends the connection in the middle of it, `gate` stops there until it is set. sent: bytes that the gateway's side has taken of each."""

    def __init__(self):
        self.values = {}
        self.cut = {}
        self.gate = {}
        self.sent = {}
        self.gets = []
        self.connections = {}
        self.server = FakeBackend(self.answer)

    def answer(self, connection, command):
        name = command[0].upper()
        if name == b"PING":
            return b"+PONG\r\n"
        if name != b"GET":
            return b"+OK\r\n"
        key = command[1].decode()
        self.gets.append(key)
        self.connections.setdefault(key, set()).add(connection)
        if key not in self.values:
            return bulk(command[1])
        data = bulk(self.values[key])
        stop = self.cut.pop(key, None) or (len(data) // 2 if key in self.gate else None)
        self.sent[key] = 0
        for start in range(0, len(data), 1 << 16):
            if stop is not None and start >= stop:
                if key not in self.gate:
                    connection.sendall(data[start:start + 7])
                    return None
                self.gate[key].wait(60 * SLOWNESS)
                stop = None
            connection.sendall(data[start:start + (1 << 16)])
            self.sent[key] = start + (1 << 16)
        return b""


@pytest.fixture
def server():
    made = Server()
    yield made
    for gate in made.gate.values():
        gate.set()
    made.server.close()


def start(server, make_gateway, **options):
    options = {name.replace("__", "."): value for name, value in options.items()}
    # A busy test machine must not make the server look down.
    return make_gateway([server.server], cores=1, options={"backends.health_interval": "0s", **options})


@pytest.mark.parametrize("cores, protocol", [(1, 2), (2, 3)])
def test_100_mebibytes_both_ways(standalone, make_gateway, prefix, cores, protocol):
    gateway = make_gateway(standalone, cores=cores, options={"use_cases.max_value": "110MiB", "use_cases.timeout": "120s", "limits.client_output_hard": "512MiB"})
    size = 100 * MIB
    value = value_of(size)
    with gateway.raw(240, protocol) as raw:
        raw.send(b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n" % (len(prefix), prefix.encode(), size))
        raw.send(value)
        raw.send(b"\r\n")
        assert raw.read() == "OK"
        raw.send(encode("GET", prefix))
        reply = raw.read_large()
        assert len(reply) == size and digest(reply) == digest(value)
        assert raw.command("DEL", prefix) == 1


def test_replies_of_every_kind_byte_for_byte(standalone, make_gateway, prefix):
    """Lists, maps and sets of many elements, and values, as the server itself sends them, small ones between them in one pipeline."""
    gateway = make_gateway(standalone, cores=1)
    with standalone.raw(60) as direct:
        for index in range(3000):
            direct.send(encode("RPUSH", prefix + "list", value_of(100, index)) + encode("HSET", prefix + "hash", "f%d" % index, value_of(80, index)) + encode("ZADD", prefix + "zset", index, "m%d" % index))
        for _ in range(9000):
            direct.read()
        assert direct.command("SET", prefix + "value", value_of(3 * MIB)) == "OK"
    commands = [encode("LRANGE", prefix + "list", 0, -1), encode("GET", prefix), encode("HGETALL", prefix + "hash"), encode("GET", prefix + "value"), encode("GET", prefix + "value"),
                encode("ZRANGE", prefix + "zset", 0, -1, "WITHSCORES"), encode("STRLEN", prefix + "value"), encode("LRANGE", prefix + "list", 0, 1500), encode("GET", prefix + "value")] * 3
    for protocol in (2, 3):
        with standalone.raw(60, protocol) as direct:
            direct.send(b"".join(commands) + encode("ECHO", "end"))
            expected = bytearray()
            while not expected.endswith(b"$3\r\nend\r\n"):
                expected += direct.socket.recv(1 << 18)
        for pieces in (len(expected), 1500):
            with gateway.raw(60, protocol) as raw:
                raw.send(b"".join(commands) + encode("ECHO", "end"))
                got = read_exactly(raw, len(expected), pieces)
                assert digest(got) == digest(bytes(expected)), (protocol, pieces)
    assert gateway.metric("replies_streamed_total") > 12


def test_a_backend_lost_in_the_middle_closes_the_client_alone(server, make_gateway):
    gateway = start(server, make_gateway)
    server.values["v"] = value_of(2 * MIB)
    for turn in range(3):
        server.cut["v"] = MIB
        with gateway.raw(30) as raw, gateway.raw(30) as other:
            raw.send(encode("GET", "v") + encode("GET", "behind"))
            got = bytearray()
            try:
                while True:
                    piece = raw.socket.recv(1 << 18)
                    if not piece:
                        break
                    got += piece
            except ConnectionResetError:
                pass
            # Nothing is made up for what is missing.
            assert len(got) < MIB + 100 and digest(bytes(got)) == digest(bulk(server.values["v"])[:len(got)])
            assert gateway.metric("clients_closed_half_reply_total") == turn + 1

            def is_whole_again():
                reply = other.command("GET", "v")
                assert reply == server.values["v"] or reply.startswith("CLUSTERDOWN")
                return reply == server.values["v"]

            # Nobody else is closed, and the value can be had as soon as there is a link again.
            eventually(is_whole_again, 10)
    eventually(lambda: gateway.metric("requests_inflight") == 0, 10)


def test_a_client_that_leaves_in_the_middle_harms_no_link(server, make_gateway):
    gateway = start(server, make_gateway)
    server.values["v"] = value_of(4 * MIB)
    server.gate["v"] = threading.Event()
    with gateway.raw(30) as other:
        leaver = gateway.raw(30)
        leaver.send(encode("GET", "v"))
        read_exactly(leaver, MIB)
        other.send(encode("GET", "behind"))
        leaver.close()
        eventually(lambda: gateway.metric("clients") <= 2, 10)
        server.gate["v"].set()
        assert other.read() == b"behind"
        accepted = server.server.accepted
        for index in range(20):
            assert other.command("GET", "k%d" % index) == b"k%d" % index
        assert server.server.accepted == accepted and gateway.metric("link_failures_total") == 0
    eventually(lambda: gateway.metric("requests_inflight") == 0, 10)


def test_no_time_out_in_the_middle(server, make_gateway):
    """What has begun to go on is not answered by -TIMEOUT, and what is behind it keeps its own time-out."""
    gateway = start(server, make_gateway, use_cases__timeout="%dms" % (400 * SLOWNESS))
    server.values["v"] = value_of(2 * MIB)
    server.gate["v"] = threading.Event()
    with gateway.raw(60) as raw:
        raw.send(encode("GET", "v") + encode("GET", "behind"))
        head = read_exactly(raw, MIB // 2)
        eventually(lambda: gateway.metric("request_timeouts_total") == 1, 20, "the command behind has timed out")
        time.sleep(0.2)
        server.gate["v"].set()
        data = bulk(server.values["v"])
        assert digest(head + read_exactly(raw, len(data) - len(head))) == digest(data)
        reply = raw.read()
        assert isinstance(reply, Error) and reply.startswith("TIMEOUT"), reply
        assert raw.command("GET", "after") == b"after"


def test_a_reader_that_stops_stops_its_bulk_link_and_memory_stays_small(server, make_gateway):
    """The key is known to be large by then, so its read goes by the bulk link, which is not read on while nobody else waits for it. A second one lets it be read: the first client's bytes then lie with the gateway."""
    gateway = start(server, make_gateway, limits__stream_window="512KiB")
    size = 48 * MIB
    server.values["v"], server.values["w"] = value_of(size), value_of(3 * MIB, 1)
    data = bulk(server.values["v"])
    with gateway.raw(60) as raw, gateway.raw(60) as other:
        for key in ("v", "w"):
            raw.send(encode("GET", key))
            assert len(raw.read_large()) == len(server.values[key])
        with gateway.raw(60) as stopped:
            stopped.send(encode("GET", "v"))
            eventually(lambda: gateway.metric("stream_pauses_total") > 0, 20)
            taken = [0]

            def is_at_rest():
                before, taken[0] = taken[0], server.sent["v"]
                return before == taken[0] and before > 0

            eventually(is_at_rest, 20, interval=0.2)
            # The sockets' buffers take some megabytes; the gateway a window and what was under way.
            assert taken[0] < size - 8 * MIB, taken
            eventually(lambda: gateway.metric("arena_bytes") < 16 * MIB, 10, lambda: gateway.metric("arena_bytes"))
            # Small ones, and the key itself, are served meanwhile.
            for index in range(100):
                assert other.command("GET", "k%d" % index) == b"k%d" % index
            assert other.command("SET", "v", "x") == "OK"
            # A large one behind it lets the link be read.
            other.send(encode("GET", "w"))
            assert digest(other.read_large()) == digest(server.values["w"])
            # And what was left waiting arrives whole.
            assert digest(read_exactly(stopped, len(data))) == digest(data)
            assert stopped.command("GET", "k") == b"k"
        assert len(server.connections["v"]) == 2 and len(server.connections["k1"]) == 1
    eventually(lambda: gateway.metric("arena_bytes") < 12 * MIB, 20)


def test_a_slow_reader_gets_all_of_it(server, make_gateway):
    gateway = start(server, make_gateway, limits__stream_window="64KiB")
    server.values["v"] = value_of(8 * MIB)
    data = bulk(server.values["v"])
    with gateway.raw(60) as raw:
        raw.send(encode("GET", "v"))
        raw.read_large()
        for piece in (1 << 20, 50_000):
            raw.send(encode("GET", "v") + encode("GET", "small"))
            got = bytearray()
            while len(got) < len(data):
                got += read_exactly(raw, min(piece, len(data) - len(got)))
                time.sleep(0.002)
            assert digest(bytes(got)) == digest(data)
            assert raw.read() == b"small"
    assert gateway.metric("link_failures_total") == 0


def test_a_reader_that_leaves_while_its_link_is_stopped(server, make_gateway):
    gateway = start(server, make_gateway, limits__stream_window="64KiB")
    server.values["v"] = value_of(32 * MIB)
    with gateway.raw(60) as raw:
        raw.send(encode("GET", "v"))
        raw.read_large()
        for turn in range(3):
            pauses = gateway.metric("stream_pauses_total")
            leaver = gateway.raw(60)
            leaver.send(encode("GET", "v"))
            eventually(lambda: gateway.metric("stream_pauses_total") > pauses, 20)
            leaver.close()
            # The rest is read and dropped; the link serves the next one.
            raw.send(encode("GET", "v"))
            assert digest(raw.read_large()) == digest(server.values["v"])
        assert len(server.connections["v"]) == 2 and gateway.metric("link_failures_total") == 0
    eventually(lambda: gateway.metric("requests_inflight") == 0, 10)


def test_beyond_the_output_limit_the_client_is_closed_and_the_shared_link_goes_on(server, make_gateway):
    gateway = start(server, make_gateway, limits__client_output_hard="40MiB", limits__reply_max="33MiB", use_cases__max_value="33MiB")
    server.values["v"] = value_of(32 * MIB)
    with gateway.raw(60) as offender, gateway.raw(60) as other:
        offender.send(encode("GET", "v") * 3)
        other.send(encode("GET", "behind"))
        assert other.read() == b"behind"
        with pytest.raises((Closed, ConnectionResetError)):
            read_exactly(offender, 97 * MIB)
        assert other.command("GET", "k") == b"k"
        assert gateway.metric("link_failures_total") == 0
    eventually(lambda: gateway.metric("arena_bytes") < 12 * MIB, 20)
