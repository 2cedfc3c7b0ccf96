"""Commands above limits.oversize_bytes go to their backend by a connection of their own: small ones do not wait while a large one passes, and the order of
each key is kept in both directions, through redirects and lost connections too."""
import random
import threading
import time

import pytest

from fake_backend import FakeBackend, bulk
from migration import Migration
from resp import Error, encode, key_slot
from servers import SLOWNESS, eventually

pytestmark = pytest.mark.gateway_only

OVERSIZE = 4096
LARGE = 3 * OVERSIZE


class Script:
    """One connection's commands on one key of its own, and what each must answer: sizes around the limit in random turns."""

    def __init__(self, key, seed):
        self.key = key
        self.draw = random.Random(seed)
        self.value = None
        self.count = 0

    def piece(self):
        self.count += 1
        nonce = b"%s#%d." % (self.key.encode(), self.count)
        size = self.draw.choice([1, 20, 200, OVERSIZE - 60, OVERSIZE, OVERSIZE + 1, LARGE, 100_000])
        return (nonce * (size // len(nonce) + 1))[:max(size, 1)]

    def next(self):
        kind = self.draw.randrange(7)
        if kind < 2:
            self.value = self.piece()
            return encode("SET", self.key, self.value), "OK"
        if kind == 2:
            piece = self.piece()
            if len(self.value or b"") > 400_000:
                self.value = None
                return encode("DEL", self.key), 1
            self.value = (self.value or b"") + piece
            return encode("APPEND", self.key, piece), len(self.value)
        if kind == 3:
            old, self.value = self.value, self.piece()
            return encode("GETSET", self.key, self.value), old
        if kind == 4:
            return encode("STRLEN", self.key), len(self.value or b"")
        return encode("GET", self.key), self.value


def run_script(gateway, key, seed, commands, protocol, failures):
    script = Script(key, seed)
    try:
        with gateway.raw(60, protocol) as raw:
            left = commands
            while left > 0:
                turn = [script.next() for _ in range(min(left, script.draw.choice([1, 3, 10, 40])))]
                left -= len(turn)
                data = b"".join(command for command, _ in turn)
                writer = threading.Thread(target=raw.send, args=(data,))
                writer.start()
                for index, (_, expected) in enumerate(turn):
                    reply = raw.read()
                    if reply != expected:
                        raise AssertionError("%s, command %d: %r (%d bytes), not %r (%d bytes)" % (
                            key, commands - left - len(turn) + index, str(reply)[:100], len(str(reply)), str(expected)[:60], len(str(expected))))
                writer.join()
    except BaseException as failure:  # noqa: B902: shown by the test's own thread
        failures.append(failure)


def run_scripts(gateway, keys, seed, commands):
    failures = []
    threads = [threading.Thread(target=run_script, args=(gateway, key, "%s%s" % (seed, key), commands, 2 + index % 2, failures)) for index, key in enumerate(keys)]
    for thread in threads:
        thread.start()
    return threads, failures


@pytest.mark.parametrize("cores", [1, 2])
def test_order_of_each_key(cluster, make_gateway, prefix, cores):
    gateway = make_gateway(cluster, cores=cores, options={"limits.oversize_bytes": "4KiB"})
    # Half of them share a slot, so that fences of several keys stand in one.
    keys = ["%s%d" % (prefix, index) for index in range(8)] + ["{%s}%d" % (prefix, index) for index in range(8)]
    threads, failures = run_scripts(gateway, keys, random.SystemRandom().randrange(1 << 32), 150)
    for thread in threads:
        thread.join()
    assert not failures, failures[:3]
    assert gateway.metric("legs_bulk_total") > 100
    eventually(lambda: gateway.metric("requests_inflight") == 0, 10)
    # One a channel and node, however many clients there are; and the housekeeper's.
    assert gateway.metric("links") <= 3 * 4 + 3


def test_several_keys_of_a_slot(cluster, make_gateway, prefix):
    """A large command with several keys fences its slot: it stands between what came before it and what comes after, for each of its keys."""
    gateway = make_gateway(cluster, cores=1, options={"limits.oversize_bytes": "4KiB"})
    with gateway.raw(60) as raw:
        for turn in range(30):
            small, large = b"s%d" % turn, (b"L%d." % turn) * OVERSIZE
            keys = ["{%s}%s" % (prefix, name) for name in "abc"]
            commands = [("SET", keys[0], small), ("MGET", *keys), ("MSET", keys[0], large, keys[1], large), ("MGET", *keys[:2]), ("SET", keys[1], small),
                        ("GET", keys[0]), ("MSET", keys[0], small, keys[2], large, "%s-elsewhere" % prefix, large), ("MGET", *keys), ("DEL", *keys)]
            replies = raw.pipeline(commands)
            assert replies == ["OK", [small, None, None], "OK", [large, large], "OK", large, "OK", [small, small, large], 3], turn
    assert gateway.metric("legs_bulk_total") >= 60


def test_order_while_slots_move(own_cluster, make_gateway, prefix):
    """MOVED and ASK reach bulk and shared links in turns; the order of each key holds."""
    gateway = make_gateway(own_cluster, cores=2, options={"limits.oversize_bytes": "4KiB"})
    keys = ["{%s%d}%d" % (prefix, index % 3, index) for index in range(12)]
    threads, failures = run_scripts(gateway, keys, random.SystemRandom().randrange(1 << 32), 400)
    moves = 0
    while any(thread.is_alive() for thread in threads) and not failures:
        for index in range(3):
            move = Migration(own_cluster, key_slot("{%s%d}" % (prefix, index)))
            move.begin()
            time.sleep(0.02)
            move.move_all_keys()
            # A key may have been made at the source between the steps only where nobody asks: all go by ASK by now.
            move.end()
            moves += 1
    for thread in threads:
        thread.join()
    assert not failures, failures[:3]
    assert moves >= 3 and gateway.metric("moved_total") > 0, (moves, gateway.metric("moved_total"))
    assert gateway.metric("legs_bulk_total") > 300


class Backend:
    """One server whose commands the test sees as they come, and holds back as it likes: name and key of each in `seen`; those in `held` wait until they are let go."""

    def __init__(self):
        self.seen = []
        self.connections = {}
        self.held = {}
        self.drop = set()
        self.lock = threading.Condition()
        self.server = FakeBackend(self.answer)

    def answer(self, connection, command):
        name = (command[0].decode(), command[1].decode() if len(command) > 1 else "")
        with self.lock:
            if name[0] in ("SET", "GET", "APPEND"):
                self.seen.append(name)
                self.connections.setdefault(connection, []).append(name)
                if name in self.drop:
                    self.drop.discard(name)
                    return None
                self.lock.wait_for(lambda: not self.held.get(name, False), 60 * SLOWNESS)
        if name[0] == "PING":
            return b"+PONG\r\n"
        return bulk(name[1].encode()) if name[0] == "GET" else b"+OK\r\n"

    def hold(self, *name):
        with self.lock:
            self.held[name] = True

    def let_go(self, *name):
        with self.lock:
            self.held[name] = False
            self.lock.notify_all()

    def has_seen(self, *name):
        with self.lock:
            return name in self.seen


@pytest.fixture
def backend():
    made = Backend()
    yield made
    for name in list(made.held):
        made.let_go(*name)
    made.server.close()


@pytest.fixture
def fake_gateway(backend, make_gateway):
    return make_gateway([backend.server], cores=1, options={"limits.oversize_bytes": "4KiB", "backends.health_interval": "0s"})


def test_small_commands_pass_a_large_one(backend, fake_gateway):
    """The backend does not answer the large command until hundreds of small ones were answered, of the same connection's clients too."""
    backend.hold("SET", "big")
    with fake_gateway.raw(60) as writer, fake_gateway.raw(60) as reader:
        writer.send(encode("SET", "big", b"x" * LARGE))
        eventually(lambda: backend.has_seen("SET", "big"), 10)
        for index in range(300):
            assert reader.command("GET", "k%d" % index) == b"k%d" % index
        backend.let_go("SET", "big")
        assert writer.read() == "OK"


def test_later_commands_of_the_key_wait(backend, fake_gateway):
    backend.hold("SET", "big")
    with fake_gateway.raw(60) as writer, fake_gateway.raw(60) as reader:
        writer.send(encode("SET", "big", b"x" * LARGE) + encode("GET", "other") + encode("GET", "big"))
        eventually(lambda: backend.has_seen("GET", "other"), 10)
        reader.send(encode("GET", "big"))
        for index in range(50):
            assert fake_gateway.metric("fence_waits_total") <= 2
        assert not backend.has_seen("GET", "big")
        backend.let_go("SET", "big")
        assert [writer.read() for _ in range(3)] == ["OK", b"other", b"big"]
        assert reader.read() == b"big"


def test_a_large_command_waits_for_earlier_ones(backend, fake_gateway):
    """What is on the shared link already is answered first, and what waits behind the fence goes in its turn: small, large, small, large."""
    backend.hold("GET", "big")
    with fake_gateway.raw(60) as raw, fake_gateway.raw(60) as other:
        raw.send(encode("GET", "big") + encode("SET", "big", b"x" * LARGE) + encode("APPEND", "big", "y") + encode("APPEND", "big", b"z" * LARGE) + encode("GET", "big"))
        eventually(lambda: backend.has_seen("GET", "big"), 10)
        eventually(lambda: fake_gateway.metric("legs_bulk_total") == 1, 10)
        time.sleep(0.1)
        assert backend.seen == [("GET", "big")]
        # A large one of another key waits for the link as well, for no longer than that.
        other.send(encode("SET", "bigger", b"x" * LARGE))
        eventually(lambda: fake_gateway.metric("legs_bulk_total") == 2, 10)
        backend.let_go("GET", "big")
        assert [raw.read() for _ in range(5)] == [b"big", "OK", "OK", "OK", b"big"]
        assert other.read() == "OK"
        assert [name for name in backend.seen if name[1] == "big"] == [("GET", "big"), ("SET", "big"), ("APPEND", "big"), ("APPEND", "big"), ("GET", "big")]
    shared, large = sorted(backend.connections.values(), key=lambda names: ("SET", "big") in names)
    assert large.count(("APPEND", "big")) == 1 and ("GET", "big") not in large and ("SET", "big") not in shared


def test_a_lost_bulk_link_harms_nobody_else(backend, fake_gateway):
    with fake_gateway.raw(60) as raw, fake_gateway.raw(60) as other:
        assert other.command("GET", "a") == b"a"
        accepted = backend.server.accepted
        for turn in range(5):
            backend.drop.add(("SET", "big"))
            raw.send(encode("SET", "big", b"x" * LARGE) + encode("GET", "big") + encode("SET", "big", b"y" * LARGE) + encode("GET", "big"))
            for index in range(20):
                assert other.command("GET", "a%d" % index) == b"a%d" % index
            replies = [raw.read() for _ in range(4)]
            assert isinstance(replies[0], Error) and replies[0].startswith("TIMEOUT"), replies
            assert replies[1] == b"big" and replies[3] == b"big", replies
            # The link is opened again at once the first time; then its backoff may refuse.
            assert replies[2] == "OK" or replies[2].startswith("CLUSTERDOWN"), replies
        # The shared link is the one it was.
        assert backend.server.accepted <= accepted + 1 + 2 * 5
        assert len([names for names in backend.connections.values() if ("GET", "a") in names]) == 1
    eventually(lambda: fake_gateway.metric("requests_inflight") == 0, 10)


def test_loss_of_the_shared_link_lets_a_waiting_one_go(backend, fake_gateway):
    """A large command waits for the shared link; that is lost instead of answering. The read before it is repeated, and the large one goes behind that."""
    backend.hold("GET", "big")
    with fake_gateway.raw(60) as raw:
        raw.send(encode("GET", "big") + encode("SET", "big", b"x" * LARGE) + encode("GET", "big"))
        eventually(lambda: fake_gateway.metric("legs_bulk_total") == 1 and backend.has_seen("GET", "big"), 10)
        assert not backend.has_seen("SET", "big")
        backend.server.close_connections()
        eventually(lambda: backend.seen.count(("GET", "big")) == 2, 20)
        time.sleep(0.1)
        assert backend.seen == [("GET", "big"), ("GET", "big")], (backend.seen, fake_gateway.metric("legs_retried_total"))
        backend.let_go("GET", "big")
        assert [raw.read() for _ in range(3)] == [b"big", "OK", b"big"]


def test_an_idle_bulk_link_is_closed(backend, fake_gateway):
    with fake_gateway.raw(60) as raw:
        assert raw.command("SET", "big", b"x" * LARGE) == "OK"
        first = set(backend.connections)
        assert raw.command("GET", "small") == b"small"
        eventually(lambda: not first & backend.server.connections, 20, "the bulk link is closed")
        assert raw.command("SET", "big", b"x" * LARGE) == "OK"
        # The shared one is still there.
        assert len(set(backend.connections) & backend.server.connections) == 2
