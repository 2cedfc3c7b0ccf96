"""Clients that record what they do on a few keys that they share, through the gateway and directly; the histories go to linearizability.py, key by key."""
import random
import threading
import time

from chaos import ALLOWED, Violation
from linearizability import OK, UNKNOWN, Operation, check
from resp import Closed, Error, encode, key_slot
from servers import SLOWNESS

COUNTER = (["INCR"] * 3 + ["GET"] * 3, ["INCR"] * 3 + ["GET"] * 3)
# The second of each is for histories with a loss, where a value must tell who wrote it.
TEXT = (["SET", "SET", "GET", "GET", "GET", "GETSET", "APPEND"], ["SET", "SET", "GET", "GET", "GET", "GETSET"])


class Key:
    """A key and what was done on it. Lists grow from many threads, which Python makes safe."""

    def __init__(self, name, is_counter, has_losses=False):
        self.name = name
        self.slot = key_slot(name)
        self.operations = (COUNTER if is_counter else TEXT)[has_losses]
        self.is_counter = is_counter
        self.history = []

    def draw(self, draw, nonce):
        """A command: its name, and its argument or None."""
        name = draw.choice(self.operations)
        # Some values are lent from core to core instead of copied.
        value = b"%s." % nonce.encode() * draw.choice([1, 1, 1, 1, 1, 200 if name == "SET" else 1])
        return name, value if name in ("SET", "GETSET", "APPEND") else None


def make_keys(prefix, count, has_losses=False):
    return [Key("%sk%d" % (prefix, number), number % 2 == 0, has_losses) for number in range(count)]


class Recorder(threading.Thread):
    """One client: pipelines of one to four commands on the keys. connect() gives a ThroughGateway or a Directly."""

    def __init__(self, name, keys, connect, draw, ends, pause):
        super().__init__(daemon=True)
        self.label = name
        self.keys = keys
        self.connect = connect
        self.draw = draw
        self.ends = ends
        self.pause = pause
        self.count = 0
        self.failure = None
        self.errors = {}
        self.allowed = ()

    def run(self):
        try:
            while not self.ends.is_set():
                connection = self.connect()
                self.allowed = connection.allowed
                try:
                    self.live(connection)
                finally:
                    connection.close()
        except BaseException as failure:  # noqa: B902: shown by the test's own thread
            self.failure = failure

    def live(self, connection):
        while not self.ends.is_set():
            commands = [self.draw_command(connection.splits) for _ in range(self.draw.choice([1, 1, 2, 4]))]
            invoked = time.monotonic()
            connection.send_all([words for words, _ in commands])
            leaves = self.draw.random() < 0.01
            for words, parts in commands:
                # One that leaves does not learn what became of its commands.
                reply = UNKNOWN if leaves else connection.read()
                self.record(words, parts, invoked, time.monotonic(), reply)
            if leaves:
                return
            time.sleep(self.draw.random() * self.pause)

    def draw_command(self, splits):
        """Words to send, and what they do key by key: (key, name, argument) each. Of several keys each is read or written at a moment of its own."""
        self.count += 1
        nonce = "%s-%d" % (self.label, self.count)
        kind = self.draw.random() if splits else 1
        if kind < 0.1:
            some = self.draw.sample(self.keys, 3)
            return ["MGET"] + [key.name for key in some], [(key, "GET", None) for key in some]
        if kind < 0.15:
            parts = [(key, "SET", nonce.encode()) for key in self.draw.sample([key for key in self.keys if not key.is_counter], 2)]
            return ["MSET"] + [word for key, _, value in parts for word in (key.name, value)], parts
        key = self.draw.choice(self.keys)
        name, argument = key.draw(self.draw, nonce)
        return [name, key.name] + ([] if argument is None else [argument]), [(key, name, argument)]

    def record(self, words, parts, invoked, returned, reply):
        if isinstance(reply, Error):
            kind = reply.split(" ", 1)[0]
            if kind not in self.allowed:
                raise Violation("%s: an error that nobody expects: %s" % (words[:2], reply))
            self.errors[kind] = self.errors.get(kind, 0) + 1
            # Of one key it says that nothing was done, and that has to be true.
            if kind != "TIMEOUT" and len(parts) == 1:
                return
            reply = UNKNOWN
        if words[0] == "MGET" and reply is not UNKNOWN and (not isinstance(reply, list) or len(reply) != len(parts)):
            raise Violation("%s: %r" % (words, reply))
        if words[0] in ("GET", "MGET") and reply is UNKNOWN:
            return  # it says nothing
        for place, (key, name, argument) in enumerate(parts):
            key.history.append(Operation(self.label, name, argument, invoked, returned, reply[place] if isinstance(reply, list) else reply))


class ThroughGateway:
    """No redirect reaches a client of the gateway."""

    allowed = ALLOWED - {"MOVED", "ASK"}
    splits = True

    def __init__(self, gateway):
        self.raw = gateway.raw(30)
        self.close = self.raw.close
        self.read = self.raw.read

    def send_all(self, commands):
        self.raw.send(b"".join(encode(*command) for command in commands))


class Directly:
    """A cluster client of the simplest kind, one command after the other: it follows redirects, and asks another node where one does not answer."""

    TRIES = 200
    allowed = ALLOWED
    splits = False

    def __init__(self, cluster, timeout=1):
        self.cluster = cluster
        self.timeout = timeout
        self.links = {}
        self.routes = {}  # slot -> port
        self.commands = []

    def close(self):
        for link in self.links.values():
            link.close()
        self.links = {}

    def send_all(self, commands):
        self.commands = list(commands)

    def read(self):
        return self.command(*self.commands.pop(0))

    def drop(self, port):
        link = self.links.pop(port, None)
        if link is not None:
            link.close()

    def ask(self, port, *args):
        """The reply, None of a Raw's exceptions: a lost connection is the Error TIMEOUT, one that could not be had CLUSTERDOWN."""
        try:
            if port not in self.links:
                self.links[port] = self.cluster.node(port, self.timeout)
        except OSError:
            return Error("CLUSTERDOWN no connection")
        try:
            return self.links[port].command(*args)
        except (OSError, Closed):
            self.drop(port)
            return Error("TIMEOUT the connection was lost")

    def command(self, name, key, *rest):
        slot = key_slot(key)
        reply = None
        for _ in range(self.TRIES):
            port = self.routes.get(slot) or random.choice(self.cluster.ports)
            reply = self.ask(port, name, key, *rest)
            if not isinstance(reply, Error):
                self.routes[slot] = port
                return reply
            kind, *words = reply.split(" ")
            if kind == "TIMEOUT" and name != "GET":
                self.routes.pop(slot, None)
                return reply
            if kind == "MOVED":
                self.routes[slot] = int(words[1].rsplit(":", 1)[1])
            elif kind == "ASK":
                target = int(words[1].rsplit(":", 1)[1])
                if self.ask(target, "ASKING") == "OK":
                    reply = self.ask(target, name, key, *rest)
                    if not isinstance(reply, Error) or reply.startswith("TIMEOUT"):
                        return reply
            elif kind in ("CLUSTERDOWN", "LOADING", "MASTERDOWN", "TRYAGAIN", "READONLY", "TIMEOUT"):
                self.routes.pop(slot, None)
                time.sleep(0.005)
            else:
                return reply
        return reply


class Recording:
    """Several recorders on the same keys, from start() to stop(); verify() judges what they saw."""

    def __init__(self, keys, seed, pause=0.01):
        self.keys = keys
        self.seed = seed
        self.pause = pause
        self.ends = threading.Event()
        self.recorders = []

    def add(self, kind, count, connect):
        for number in range(count):
            name = "%s%d" % (kind, number)
            self.recorders.append(Recorder(name, self.keys, connect, random.Random("%s %s" % (self.seed, name)), self.ends, self.pause))

    def start(self):
        for recorder in self.recorders:
            recorder.start()

    def stop(self):
        self.ends.set()
        for recorder in self.recorders:
            recorder.join(60 * SLOWNESS)
        failures = [recorder.failure for recorder in self.recorders if recorder.failure is not None]
        assert not failures, "\n".join(repr(failure) for failure in failures[:10])
        assert not any(recorder.is_alive() for recorder in self.recorders)

    def verify(self, losses_of=lambda key: ()):
        """Fails unless the history of each key is linearizable: with what losses_of(key) allows, and decided."""
        count = 0
        for key in self.keys:
            verdict = check(key.history, losses_of(key))
            assert verdict.kind == OK, "%s, slot %d: %s" % (key.name, key.slot, verdict)
            count += len(key.history)
        errors = {}
        for recorder in self.recorders:
            for kind, number in recorder.errors.items():
                errors[kind] = errors.get(kind, 0) + number
        print("histories of %d keys, %d operations, %d without an outcome, errors %r" % (
            len(self.keys), count, sum(one.result is UNKNOWN for key in self.keys for one in key.history), errors))
        assert count > 0
