"""Five hundred clients, each with keys of its own, while backends are killed and restarted, failed over and stalled, links are cut, slots move
between nodes and between the cores of the gateway.

What must hold whatever happens: every command has exactly one reply, in its place; a reply is the right one or an error of a kind that a client must
expect; what a connection reads of its own keys fits the order in which it wrote them; nobody reads another's bytes. Afterwards nothing is left behind.
A minute by default, half an hour with ZG_FULL=1; both divided between two configurations."""
import os
import random
import time

import pytest

from chaos import Chaos, Clients, State
from servers import SLOWNESS, eventually

pytestmark = pytest.mark.gateway_only

# Of each of the two. A sanitizer's build gets a third of the long form.
FULL_SECONDS = 900 if SLOWNESS == 1 else 300
SECONDS = float(os.environ.get("ZG_CHAOS_SECONDS") or (FULL_SECONDS if os.environ.get("ZG_FULL") == "1" else 30))
# What is done to the backends, in random order; a primary is killed besides, once a minute.
STEPS = os.environ.get("ZG_CHAOS_STEPS", "cut_links cut_links stall move_slot move_slot move_slot fail_over kill_replica").split()
# How often slots get other owner cores, and shards more or fewer of them, in the gateway with four.
SHUFFLE = os.environ.get("ZG_CHAOS_SHUFFLE", "30ms")
CLIENTS = int(os.environ.get("ZG_CHAOS_CLIENTS", "500"))
KILL_EVERY = 60


@pytest.mark.parametrize("cores, options", [
    (4, {"cores.lane_slots": 64, "cores.shuffle_owners": SHUFFLE}),
    (2, {"use_cases.timeout": "250ms", "limits.inline_bytes": "1KiB", "limits.oversize_bytes": "4KiB", "limits.link_inflight_max": 16}),
], ids=["4-cores-moving-owners", "2-cores-tight"])
def test_order_under_chaos(own_cluster, make_gateway, prefix, cores, options):
    gateway = make_gateway(own_cluster, cores=cores, options={"use_cases.timeout": "2s", "backends.link_stall": "600ms", "backends.connect_timeout": "500ms", **options})
    with gateway.raw() as raw:
        assert raw.command("SET", prefix, "1") == "OK"
    time.sleep(1.2)
    baseline = gateway.metric("arena_bytes")
    state = State()
    seed = os.environ.get("ZG_SEED") or str(random.SystemRandom().randrange(1 << 32))
    print("chaos seed ZG_SEED=" + seed)
    # The more there are, the longer each pauses: it is the gateway that is to be tested, not the clients' interpreter.
    clients = Clients(gateway, CLIENTS, state, prefix, pause=0.0005 * CLIENTS)
    clients.start()
    chaos = Chaos(own_cluster, gateway, state, random.Random(seed))
    try:
        chaos.run(SECONDS, STEPS, KILL_EVERY)
    finally:
        clients.stop()
    if "cores.shuffle_owners" in options:
        changes, moves = gateway.metric("owner_changes_total"), gateway.metric("owner_moves_total")
        print("owners changed %d times, %d slots" % (changes, moves))
        assert changes > SECONDS, "owners moved all the time"
    assert sum(clients.errors.values()) < clients.replies * 2 / 3, "a good part was served"
    eventually(lambda: gateway.metric("requests_inflight") == 0, 10, lambda: "requests left: %d" % gateway.metric("requests_inflight"))
    eventually(lambda: gateway.metric("clients") == 1, 10, lambda: "clients left: %d" % gateway.metric("clients"))
    eventually(lambda: gateway.metric("arena_bytes") < baseline + (4 << 20), 10, lambda: "arena bytes %d, before %d" % (gateway.metric("arena_bytes"), baseline))
    assert gateway.metric("ring_stale_completions_total") == 0
    # And it serves as before.
    with gateway.raw() as raw:
        eventually(lambda: raw.command("SET", prefix, "2") == "OK", 10)
        assert raw.command("GET", prefix) == b"2"
