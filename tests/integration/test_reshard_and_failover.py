"""Slots are resharded by redis-cli by the thousand, primaries are failed over and killed, all under load and while slots get other owner cores: twice by default, fifty times with ZG_FULL=1.

What must hold: every command is answered once, and its reply is its own (chaos.py); what the clients of a few shared keys saw could have been done in one order (history.py), also of
clients that go to the cluster directly where a primary is killed: then acknowledged writes may be lost, once, and for all alike; and the service is back within a second of when a client
of the cluster itself gets it back for the same slot."""
import os
import random
import signal
import subprocess
import threading
import time

import pytest

from chaos import Clients, State
from history import Directly, Recording, ThroughGateway, make_keys
from linearizability import Loss
from resp import key_slot
from servers import SLOWNESS, eventually

pytestmark = pytest.mark.gateway_only

# A sanitizer's build gets a fifth of the long form.
FULL_ROUNDS = 50 if SLOWNESS == 1 else 10
ROUNDS = int(os.environ.get("ZG_RESHARDS") or (FULL_ROUNDS if os.environ.get("ZG_FULL") == "1" else 2))
SLOTS = 1000 if ROUNDS < 10 else 2000  # at once
CLIENTS = 50
BACK_WITHIN = 1.0
STAND_STILL_EVERY = 2  # rounds


class Prober(threading.Thread):
    """Writes one key again and again, and remembers when it was acknowledged."""

    def __init__(self, write):
        super().__init__(daemon=True)
        self.write = write
        self.times = []
        self.ends = threading.Event()
        self.failure = None
        self.start()

    def run(self):
        try:
            while not self.ends.is_set():
                if self.write() == "OK":
                    self.times.append(time.monotonic())
                time.sleep(0.005)
        except BaseException as failure:  # noqa: B902: shown by the test's own thread
            self.failure = failure

    def longest_gap(self, begin):
        times = [begin] + [at for at in self.times if at > begin]
        return max(after - before for before, after in zip(times, times[1:]))


class Probes:
    """The same slot through the gateway and directly."""

    def __init__(self, gateway, cluster, tag):
        self.raw = gateway.raw(30)
        self.direct = Directly(cluster, 0.3)
        self.direct.TRIES = 10
        key = "{%s}probe-" % tag
        self.probers = [Prober(lambda: self.raw.command("SET", key + "gateway", "1")), Prober(lambda: self.direct.command("SET", key + "direct", "1"))]
        self.begin = time.monotonic()
        eventually(lambda: all(prober.times for prober in self.probers), 10, "both can write")

    def are_back_since(self, begin):
        return all(prober.times and prober.times[-1] > begin for prober in self.probers)

    def first_after(self, begin):
        """When the direct client had it back."""
        return next(at for at in self.probers[1].times if at > begin)

    def stop(self, what):
        for prober in self.probers:
            prober.ends.set()
            prober.join(60 * SLOWNESS)
        self.raw.close()
        self.direct.close()
        failures = [prober.failure for prober in self.probers if prober.failure]
        assert not failures, failures
        through, directly = (prober.longest_gap(self.begin) for prober in self.probers)
        print("%s: longest time without a write: %.3f s through the gateway, %.3f s directly" % (what, through, directly))
        assert through <= directly + BACK_WITHIN * SLOWNESS, "%s: %.3f s without a write through the gateway, %.3f s directly" % (what, through, directly)


class Field:
    """The cluster, and what the steps need of it."""

    def __init__(self, cluster, gateway, state, draw, prefix):
        self.cluster = cluster
        self.gateway = gateway
        self.state = state
        self.draw = draw
        self.prefix = prefix
        self.tags = {}

    def role(self, port):
        return self.cluster.ask(port, "ROLE")

    def primaries(self):
        return [port for port in self.cluster.ports if self.role(port)[0] == b"master"]

    def replica_of(self, primary):
        return next(port for port in self.cluster.ports if self.role(port)[0] == b"slave" and self.role(port)[2] == primary)

    def replicas_follow(self):
        replicas = [self.role(port) for port in self.cluster.ports if self.role(port)[0] == b"slave"]
        return len(replicas) == 3 and all(role[3] == b"connected" for role in replicas)

    def settle(self):
        eventually(self.cluster.is_ok, 20, "the cluster is whole")
        eventually(self.replicas_follow, 20, "every replica follows its primary")

    def slots_of(self, port):
        slots = []
        for entry in self.cluster.ask(port, "CLUSTER", "SLOTS"):
            if entry[2][1] == port:
                slots.extend(range(entry[0], entry[1] + 1))
        return sorted(slots)

    def tag_in(self, slots):
        """A hash tag whose slot is one of these."""
        number = 0
        while True:
            tag = "%s%d" % (self.prefix, number)
            if key_slot(tag) in slots:
                return tag
            number += 1

    def reshard(self):
        """`redis-cli --cluster reshard`: the first slots of the primary that has the most go to another."""
        by_port = {port: self.slots_of(port) for port in self.primaries()}
        source = max(by_port, key=lambda port: len(by_port[port]))
        target = self.draw.choice([port for port in by_port if port != source])
        probes = Probes(self.gateway, self.cluster, self.tag_in(set(by_port[source][:SLOTS // 2])))
        self.state.moved.update(by_port[source][:SLOTS])
        begin = time.monotonic()
        ids = [self.cluster.ask(port, "CLUSTER", "MYID").decode() for port in (source, target)]
        result = subprocess.run(["redis-cli", "--cluster", "reshard", "127.0.0.1:%d" % source, "--cluster-from", ids[0], "--cluster-to", ids[1], "--cluster-slots", str(SLOTS), "--cluster-yes"],
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300 * SLOWNESS)
        assert result.returncode == 0, result.stdout[-2000:]
        assert len(self.slots_of(target)) == len(by_port[target]) + SLOTS
        probes.stop("%d slots resharded in %.1f s" % (SLOTS, time.monotonic() - begin))

    def disturb(self):
        """Links are killed in the midst of what they carry, and a primary stands still for a moment."""
        for _ in range(5):
            for port in self.cluster.ports:
                self.cluster.ask(port, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            time.sleep(0.1)
        primary = self.draw.choice(self.primaries())
        self.cluster.signal(primary, signal.SIGSTOP)
        time.sleep(0.4)
        self.cluster.signal(primary, signal.SIGCONT)

    def fail_over(self):
        """CLUSTER FAILOVER: the replica takes over when it has everything."""
        primary = self.draw.choice(self.primaries())
        probes = Probes(self.gateway, self.cluster, self.tag_in(set(self.slots_of(primary))))
        begin = time.monotonic()
        replica = self.replica_of(primary)
        self.cluster.ask(replica, "CLUSTER", "FAILOVER")
        eventually(lambda: self.role(replica)[0] == b"master", 10, "the replica has taken over")
        begin = time.monotonic()
        eventually(lambda: probes.are_back_since(begin), 10, "both write again")
        probes.stop("failed over")

    def taken_over(self, replica, probes):
        """Waits until the replica is a primary and both write again; returns when the direct client did."""
        eventually(lambda: self.role(replica)[0] == b"master", 30, "the replica has taken over")
        promoted = time.monotonic()
        eventually(lambda: probes.are_back_since(promoted), 30, "both write again")
        return probes.first_after(promoted)

    def stand_still(self):
        """A primary stands still until its replica has taken over, and then goes on as if nothing had happened. Returns as kill() does."""
        primary = self.draw.choice(self.primaries())
        slots = set(self.slots_of(primary))
        replica = self.replica_of(primary)
        probes = Probes(self.gateway, self.cluster, self.tag_in(slots))
        self.state.era += 1
        begin = time.monotonic()
        self.cluster.signal(primary, signal.SIGSTOP)
        try:
            loss = Loss(begin, self.taken_over(replica, probes))
        finally:
            self.cluster.signal(primary, signal.SIGCONT)
        probes.stop("stood still")
        self.settle()
        self.state.era += 1
        return slots, loss

    def kill(self):
        """kill -9 of a primary. Returns its slots, and when acknowledged writes may have been lost."""
        primary = self.draw.choice(self.primaries())
        slots = set(self.slots_of(primary))
        replica = self.replica_of(primary)
        probes = Probes(self.gateway, self.cluster, self.tag_in(slots))
        self.state.era += 1
        begin = time.monotonic()
        self.cluster.signal(primary, signal.SIGKILL)
        loss = Loss(begin, self.taken_over(replica, probes))
        probes.stop("killed")
        self.cluster.restart(primary)
        self.settle()
        self.state.era += 1
        return slots, loss


def recorded(gateway, cluster, name, seed, is_joint, run, has_losses=False):
    """What run() returns, and the recording of what clients did meanwhile: through the gateway alone, or half of them directly."""
    recording = Recording(make_keys(name, 12 if is_joint else 8, has_losses=is_joint or has_losses), seed)
    recording.add("gateway", 4 if is_joint else 8, lambda: ThroughGateway(gateway))
    if is_joint:
        recording.add("direct", 4, lambda: Directly(cluster))
    recording.start()
    try:
        result = run()
    finally:
        recording.stop()
    return result, recording


def test_reshard_and_failover_under_load(own_cluster, make_gateway, prefix):
    gateway = make_gateway(own_cluster, cores=2, options={"use_cases.timeout": "2s", "backends.link_stall": "1s", "backends.connect_timeout": "500ms", "limits.inline_bytes": "1KiB", "cores.shuffle_owners": "50ms"})
    seed = os.environ.get("ZG_SEED") or str(random.SystemRandom().randrange(1 << 32))
    print("seed ZG_SEED=" + seed)
    state = State()
    field = Field(own_cluster, gateway, state, random.Random(seed), prefix)
    clients = Clients(gateway, CLIENTS, state, prefix)
    clients.start()

    def planned():
        field.settle()
        field.reshard()
        field.disturb()
        field.settle()
        field.fail_over()
        field.settle()

    try:
        for number in range(ROUNDS):
            _, recording = recorded(gateway, own_cluster, "%sp%d-" % (prefix, number), "%s p%d" % (seed, number), False, planned)
            recording.verify()
            (slots, loss), recording = recorded(gateway, own_cluster, "%sk%d-" % (prefix, number), "%s k%d" % (seed, number), True, field.kill)
            recording.verify(lambda key: [loss] if key.slot in slots else [])
            if number % STAND_STILL_EVERY == 1:
                # A direct client that has not heard of the failover may ask the old primary in its first moments. The gateway has heard of it: no other loss than that of the writes that had not been replicated.
                (slots, loss), recording = recorded(gateway, own_cluster, "%ss%d-" % (prefix, number), "%s s%d" % (seed, number), False, field.stand_still, has_losses=True)
                recording.verify(lambda key: [loss] if key.slot in slots else [])
    finally:
        clients.stop()
    assert sum(clients.errors.values()) < clients.replies * 2 / 3, "a good part was served"
    eventually(lambda: gateway.metric("requests_inflight") == 0, 10)
    eventually(lambda: gateway.metric("clients") == 1, 10)
