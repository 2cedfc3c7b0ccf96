"""Connections at the primaries depend on nodes and owner cores, never on clients (DESIGN: at most 2 per node and owner core with slots of it, 1 per node for the
housekeeper)."""
import pytest

from resp import encode
from servers import eventually

pytestmark = pytest.mark.gateway_only


def load(gateway, prefix, clients, protocol):
    """Opens clients and lets each use all shards. Returns them, still open."""
    raws = [gateway.raw(30) for _ in range(clients)]
    if protocol == 3:
        for raw in raws:
            raw.send(encode("HELLO", "3"))
        for raw in raws:
            raw.read()
    commands = [encode("SET", "%s%d" % (prefix, index), "v") for index in range(30)]
    for raw in raws:
        raw.send(b"".join(commands))
    for raw in raws:
        for _ in commands:
            assert raw.read() == "OK"
    return raws


@pytest.mark.parametrize("cores", [1, 2, 4])
def test_connections_with_few_and_many_clients(own_cluster, make_gateway, prefix, cores):
    before = {port: own_cluster.client_connections(port) for port in own_cluster.ports}
    gateway = make_gateway(own_cluster, cores=cores)

    def used():
        return {port: own_cluster.client_connections(port) - before[port] for port in own_cluster.ports}

    few = load(gateway, prefix, 10, protocol=2)
    with_few = used()
    many = load(gateway, prefix, 1000, protocol=2)
    with_many = used()
    assert gateway.metric("clients") >= 1010
    for port in own_cluster.primaries:
        # One owner core a shard: one link for RESP2, and the housekeeper.
        assert 1 <= with_few[port] <= 2, with_few
        assert with_many[port] <= 2, with_many
    three = load(gateway, prefix, 20, protocol=3)
    with_both = used()
    for port in own_cluster.primaries:
        assert with_both[port] <= 3, with_both
    for port in own_cluster.replicas:
        assert with_both[port] <= 1, with_both
    for raw in few + many + three:
        raw.close()
    # A client that leaves never closes a link.
    after = used()
    for port in own_cluster.primaries:
        assert 1 <= after[port] <= 3, after


def settled(gateway):
    """Connects so far, once the housekeeping core has its links too: it checks every node in its own time, each once a second at least."""
    looks = []

    def is_steady():
        looks.append(gateway.metric("link_connects_total"))
        return len(looks) > 2 and looks[-1] == looks[-3]

    eventually(is_steady, 30, lambda: "connects: %r" % looks, interval=1)
    return looks[-1]


def test_a_burst_of_short_connections_opens_nothing(cluster, make_gateway, prefix):
    gateway = make_gateway(cluster, cores=2)
    with gateway.raw() as raw:
        raw.command("MSET", *[part for index in range(30) for part in ("%s%d" % (prefix, index), "v")])
    connects = settled(gateway)
    for index in range(500):
        with gateway.raw() as raw:
            assert raw.command("GET", "%s%d" % (prefix, index % 30)) == b"v"
    assert gateway.metric("link_connects_total") == connects
