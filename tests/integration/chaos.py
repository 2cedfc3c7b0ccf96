"""Clients that check every reply, and what is done to a cluster meanwhile. Used by the tests of order, of resharding and of failover."""
import random
import select
import signal
import socket
import threading
import time

from migration import Migration
from resp import Closed, Decoder, Error, encode, key_slot
from servers import SLOWNESS, eventually

# What a client may be told while backends come and go. TIMEOUT: a write may be done, or be done later. The others say that it has not been done.
ALLOWED = {"TIMEOUT", "OVERLOAD", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY", "TRYAGAIN", "MOVED", "ASK"}


class Violation(AssertionError):
    pass


def may_be_done(reply):
    """Whether a write with this reply is done, or may be done later. The other errors say that it has not been done, and never will."""
    return not isinstance(reply, Error) or reply.startswith("TIMEOUT ")


class State:
    """What the clients must know of what is done to the backends. era: odd while acknowledged writes may be lost (replication is asynchronous)."""

    def __init__(self):
        self.ends = threading.Event()
        self.era = 0
        self.touched = []  # keys whose slots are worth moving
        self.moved = set()  # slots


class Counter:
    """A key that only one connection increments, and reads. low: what it was last seen at; high: if all increments so far have been done."""

    def __init__(self, key, state):
        self.key = key
        self.state = state
        self.low = 0
        self.high = 0
        self.sent = 0
        self.era = 0

    def see(self, value, least, what):
        era = self.state.era
        if era % 2 or era != self.era:
            least = 0
        most = self.high
        if what == "MGET" and key_slot(self.key) in self.state.moved:
            # Of several keys of a slot on its way, TRYAGAIN: it is repeated, and what was in flight behind it is done first.
            most = self.sent
        if not isinstance(value, int) or not least <= value <= most:
            raise Violation("%s %s: %r is not within %d .. %d (%d sent), era %d %d" % (what, self.key, value, least, most, self.sent, era, self.era))
        if most == self.high:
            self.low = value
            self.era = era

    def incremented(self, reply):
        self.high += may_be_done(reply)
        if not isinstance(reply, Error):
            self.see(reply, self.low + 1, "INCR")

    def read(self, reply, what="GET"):
        if not isinstance(reply, Error):
            self.see(0 if reply is None else int(reply), self.low, what)


class Text:
    """A key whose values name their writer and their place in its order."""

    def __init__(self, key, state):
        self.key = key
        self.state = state
        self.count = 0
        self.done = None
        self.possible = {}  # values that may be there though a later write was done: their writes had no outcome
        self.written = {None}
        self.era = 0

    def next(self, draw):
        self.count += 1
        return (b"%s#%d." % (self.key.encode(), self.count)) * draw.choice([1, 1, 1, 30, 1500])

    def wrote(self, value, reply):
        self.written.add(value)
        if isinstance(reply, Error):
            if may_be_done(reply):
                self.possible[value] = True
        elif reply != "OK":
            raise Violation("SET %s: %r" % (self.key, reply))
        else:
            self.done = value
            self.era = self.state.era

    def read(self, reply):
        if isinstance(reply, Error):
            return
        era = self.state.era
        is_lossy = era % 2 or era != self.era
        if reply != self.done and reply not in self.possible and not (is_lossy and reply in self.written):
            raise Violation("GET %s: %r, not %r or one of %d; written before: %s" % (self.key, reply and reply[:60], self.done and self.done[:60], len(self.possible), reply in self.written))


class Client(threading.Thread):
    """Connections one behind the other, each with keys of its own. pause: seconds between pipelines, at most."""

    def __init__(self, gateway, number, state, prefix, pause):
        super().__init__(daemon=True)
        self.gateway = gateway
        self.pause = pause
        self.state = state
        self.draw = random.Random("%s%d" % (prefix, number))
        self.prefix = "%sc%d-" % (prefix, number)
        self.lives = 0
        self.replies = 0
        self.errors = {}
        self.failure = None

    def run(self):
        try:
            while not self.state.ends.is_set():
                self.live()
        except BaseException as failure:  # noqa: B902: shown by the test's own thread
            self.failure = failure

    def live(self):
        """One connection. Its keys are new: what became of the last one's commands is not known."""
        self.lives += 1
        nonce = "%s%d-" % (self.prefix, self.lives)
        # Some share a slot, so that commands of several keys may go to one.
        counters = [Counter("%s%d" % (nonce, index), self.state) for index in range(3)] + [Counter("{%s}%d" % (nonce, index), self.state) for index in range(3)]
        text = Text(nonce + "t", self.state)
        self.state.touched.append(counters[0].key)
        self.state.touched.append(counters[3].key)
        protocol = 2
        connection = socket.create_connection(self.gateway.address, 30 * SLOWNESS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        decoder = Decoder()
        try:
            for _ in range(self.draw.randrange(1, 40)):
                if self.state.ends.is_set():
                    return
                commands = [command for _ in range(self.draw.choice([1, 2, 5, 20, 60])) for command in self.commands(counters, text)]
                data = b"".join(command for command, _ in commands)
                end = self.draw.random()
                if end < 0.02:  # cut in the middle of a command
                    connection.settimeout(30 * SLOWNESS)
                    connection.sendall(data[:self.draw.randrange(1, min(len(data), 65536) + 1)])
                    return
                self.exchange(connection, decoder, data, [check for _, check in commands], leaves=end < 0.05)
                if end < 0.05:
                    return
                if end > 0.9:
                    protocol = 5 - protocol
                    self.exchange(connection, decoder, encode("HELLO", str(protocol)), [lambda reply: None])
                time.sleep(self.draw.random() * self.pause)
        finally:
            connection.close()

    def exchange(self, connection, decoder, data, checks, leaves=False):
        """Sends all and reads every reply as it comes. leaves: goes when half of them are read."""
        connection.setblocking(False)
        sent = at = 0
        deadline = time.monotonic() + 30 * SLOWNESS
        poll = select.poll()
        poll.register(connection, select.POLLIN | select.POLLOUT)
        while at < len(checks):
            if time.monotonic() > deadline:
                raise Violation("%d of %d replies, then none for long" % (at, len(checks)))
            events = (poll.poll(1000) or [(0, 0)])[0][1]
            if events & select.POLLOUT:
                sent += connection.send(data[sent:sent + 65536])
                if sent == len(data):
                    poll.modify(connection, select.POLLIN)
            if not events & ~select.POLLOUT:
                continue
            piece = connection.recv(1 << 16)
            if not piece:
                raise Violation("closed by the gateway after %d of %d replies" % (at, len(checks)))
            decoder.feed(piece)
            while at < len(checks):
                try:
                    reply = decoder.next()
                except Decoder.NeedMore:
                    break
                self.replies += 1
                if isinstance(reply, Error):
                    self.count_error(reply)
                checks[at](reply)
                at += 1
            if leaves and at > len(checks) // 2:
                return
        if len(decoder.buffer) != decoder.at:
            raise Violation("more replies than commands: %r" % bytes(decoder.buffer[decoder.at:decoder.at + 80]))

    def count_error(self, reply):
        kind = reply.split(" ", 1)[0]
        if kind not in ALLOWED:
            raise Violation("an error that nobody expects: %s" % reply)
        self.errors[kind] = self.errors.get(kind, 0) + 1

    def commands(self, counters, text):
        counter = self.draw.choice(counters)
        kind = self.draw.randrange(11)
        if kind < 4:
            counter.sent += 1
            return [(encode("INCR", counter.key), counter.incremented)]
        if kind < 6:
            return [(encode("GET", counter.key), counter.read)]
        if kind == 6:
            some = self.draw.sample(counters, 3)
            return [(encode("MGET", *[one.key for one in some]), lambda reply: self.read_several(some, reply))]
        if kind == 7:  # of one slot
            return [(encode("MGET", *[one.key for one in counters[3:]]), lambda reply: self.read_several(counters[3:], reply))]
        if kind == 8:
            value = text.next(self.draw)
            return [(encode("SET", text.key, value), lambda reply: text.wrote(value, reply))]
        if kind == 9:
            return [(encode("GET", text.key), text.read)]
        word = "%s/%d" % (self.prefix, self.draw.randrange(1 << 30))
        return [(encode("ECHO", word), lambda reply: self.echoed(word, reply))]

    def read_several(self, counters, reply):
        if isinstance(reply, Error):
            return
        if not isinstance(reply, list) or len(reply) != len(counters):
            raise Violation("MGET: %r" % (reply,))
        for counter, value in zip(counters, reply):
            counter.read(value, "MGET")

    def echoed(self, word, reply):
        if reply != word.encode():
            raise Violation("ECHO %s: %r" % (word, reply))


class Clients:
    """Many of them, from start() to stop()."""

    def __init__(self, gateway, count, state, prefix, pause=0.1):
        self.state = state
        self.all = [Client(gateway, number, state, prefix, pause) for number in range(count)]
        self.errors = {}
        self.replies = 0

    def start(self):
        for client in self.all:
            client.start()

    def stop(self):
        """Ends them, and fails if one has seen what may not be."""
        self.state.ends.set()
        for client in self.all:
            client.join(60 * SLOWNESS)
        for client in self.all:
            for kind, count in client.errors.items():
                self.errors[kind] = self.errors.get(kind, 0) + count
        self.replies = sum(client.replies for client in self.all)
        print("replies %d, lives %d, errors %r" % (self.replies, sum(client.lives for client in self.all), self.errors))
        failures = [client.failure for client in self.all if client.failure is not None]
        assert not failures, "%d clients: %s" % (len(failures), "\n".join(repr(failure) for failure in failures[:10]))
        assert not any(client.is_alive() for client in self.all)


class Chaos:
    """One after the other, what may happen to a cluster. Each leaves it whole, or waits until it is."""

    def __init__(self, cluster, gateway, state, draw):
        self.cluster = cluster
        self.gateway = gateway
        self.state = state
        self.draw = draw
        self.done = {}

    def role(self, port):
        return self.cluster.ask(port, "ROLE")[0]

    def primaries(self):
        return [port for port in self.cluster.ports if self.role(port) == b"master"]

    def replicas(self):
        return [port for port in self.cluster.ports if self.role(port) == b"slave"]

    def replicas_follow(self):
        roles = [self.cluster.ask(port, "ROLE") for port in self.cluster.ports]
        return all(role[3] == b"connected" for role in roles if role[0] == b"slave")

    def settle(self, after):
        eventually(self.cluster.is_ok, 20, "the cluster is whole after " + after)
        # One that does not follow its primary cannot take over from it.
        eventually(self.replicas_follow, 20, "every replica follows its primary after " + after)

    def cut_links(self):
        self.cluster.ask(self.draw.choice(self.cluster.ports), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def stall(self):
        port = self.draw.choice(self.primaries())
        self.cluster.signal(port, signal.SIGSTOP)
        time.sleep(self.draw.choice([0.05, 0.3, 0.9]))
        self.cluster.signal(port, signal.SIGCONT)

    def move_slot(self):
        key = self.draw.choice(self.state.touched[-50:])
        move = Migration(self.cluster, key_slot(key))
        source = move.source
        primaries = [port for port in self.primaries() if port != source]
        move = Migration(self.cluster, key_slot(key), self.draw.choice(primaries))
        self.state.moved.add(move.slot)
        move.begin()
        time.sleep(self.draw.random() * 0.3)
        move.move_all_keys(self.draw.choice([1, 10]))
        time.sleep(self.draw.random() * 0.1)
        # Keys that came to the source meanwhile: there are none, as new ones of a migrating slot go to the target.
        for port in [move.target, source] + [port for port in self.primaries() if port not in (move.target, source)]:
            self.cluster.ask(port, "CLUSTER", "SETSLOT", move.slot, "NODE", move.target_id)

    def fail_over(self):
        """Gracefully: the replica takes over when it has all that was acknowledged."""
        port = self.draw.choice(self.replicas())
        self.cluster.ask(port, "CLUSTER", "FAILOVER")
        eventually(lambda: self.role(port) == b"master", 10, "the replica has taken over")

    def kill_replica(self):
        port = self.draw.choice(self.replicas())
        self.cluster.signal(port, signal.SIGKILL)
        time.sleep(0.3)
        self.cluster.restart(port)

    def kill_primary(self):
        port = self.draw.choice(self.primaries())
        self.state.era += 1
        self.cluster.signal(port, signal.SIGKILL)
        others = [other for other in self.cluster.ports if other != port]
        try:
            eventually(lambda: sum(self.role(other) == b"master" for other in others) == 3, 20, "its replica has taken over")
        finally:
            self.cluster.restart(port)
            self.settle("kill_primary")
            time.sleep(1)
            self.state.era += 1

    def run(self, seconds, steps, kill_every):
        """All steps (names of methods) in random order, again and again; a primary is killed at a third of the time, and after kill_every seconds again."""
        ends = time.monotonic() + seconds
        kill_at = time.monotonic() + min(seconds / 3, kill_every)
        deck = []
        while time.monotonic() < ends:
            if not deck:
                deck = self.draw.sample(steps, len(steps))
            if time.monotonic() > kill_at:
                name, kill_at = "kill_primary", time.monotonic() + kill_every
            else:
                name = deck.pop()
            try:
                getattr(self, name)()
                self.done[name] = self.done.get(name, 0) + 1
            except (AssertionError, OSError, Closed) as failure:
                # A step may find the cluster not ready for it. It is left, as an operator would leave it; what counts is what the gateway makes of that.
                print(name, failure)
                self.done["not done"] = self.done.get("not done", 0) + 1
                for port in self.cluster.ports:
                    self.cluster.signal(port, signal.SIGCONT)
            self.settle(name)
            time.sleep(self.draw.random() * 0.3)
        print(self.done)
