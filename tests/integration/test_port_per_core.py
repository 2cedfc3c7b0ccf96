"""A port a core: cluster clients learn which core owns which slots, and reach it directly; nothing crosses cores. Whoever does not know is served all the same."""
import pytest
import redis

from resp import Raw, encode, key_slot
from servers import SLOWNESS, eventually

pytestmark = pytest.mark.gateway_only


def make(make_gateway, cluster, cores, **options):
    return make_gateway(cluster, cores=cores, options={"listeners.port_per_core": "true", "cores.balance": "false", **options})


def owners(gateway, protocol=2):
    """Port by slot, as CLUSTER SLOTS has it: every slot exactly once."""
    with gateway.raw() as raw:
        if protocol == 3:
            raw.command("HELLO", "3")
        table = {}
        for first, last, node in raw.command("CLUSTER", "SLOTS"):
            assert node[0] == b"127.0.0.1"
            for slot in range(first, last + 1):
                assert slot not in table
                table[slot] = node[1]
    assert sorted(table) == list(range(16384))
    return table


def crossings(gateway):
    return gateway.metric("legs_remote_total")


@pytest.mark.parametrize("cores", [1, 2, 4])
def test_every_core_is_listed_with_what_it_owns(cluster, make_gateway, prefix, cores):
    gateway = make(make_gateway, cluster, cores)
    ports = [gateway.port + 1 + core for core in range(cores)]
    table = owners(gateway)
    assert set(table.values()) <= set(ports)
    assert len(set(table.values())) == min(cores, 3), "three shards, each on one core"
    assert owners(gateway, protocol=3) == table
    for port in ports:
        with Raw(("127.0.0.1", port), 10 * SLOWNESS) as raw:
            lines = raw.command("CLUSTER", "NODES").decode().splitlines()
            assert len(lines) == cores
            mine = [line for line in lines if "myself" in line]
            assert len(mine) == 1 and ":%d@" % port in mine[0]
            assert raw.command("CLUSTER", "MYID").decode() == mine[0].split(" ", 1)[0]
            assert len(raw.command("CLUSTER", "SHARDS")) == cores
            assert b"cluster_known_nodes:%d\r\n" % cores in raw.command("CLUSTER", "INFO")
            assert "laddr=127.0.0.1:%d " % port in raw.command("CLIENT", "INFO").decode()
            # Every core serves every key, on whatever port.
            for index in range(30):
                assert raw.command("SET", "%s%d" % (prefix, index), "v") == "OK"
                assert raw.command("GET", "%s%d" % (prefix, index)) == b"v"


def test_commands_to_the_owner_cross_nothing(cluster, make_gateway, prefix):
    """Raw connections: to the port of the owner nothing crosses; to another core's port everything does: connections stay where they came in."""
    gateway = make(make_gateway, cluster, 4)
    table = owners(gateway)
    keys = ["%s%d" % (prefix, index) for index in range(200)]
    connections = {port: [Raw(("127.0.0.1", port), 30 * SLOWNESS) for _ in range(8)] for port in set(table.values())}
    before = crossings(gateway)
    for key in keys:
        for raw in connections[table[key_slot(key)]]:
            assert raw.command("SET", key, key) == "OK"
    assert crossings(gateway) == before
    others = sum(port != table[key_slot(key)] for key in keys for port in connections)
    for key in keys:
        for port, raws in connections.items():
            if port != table[key_slot(key)]:
                assert raws[0].command("GET", key) == key.encode()
    assert crossings(gateway) == before + others
    for raws in connections.values():
        for raw in raws:
            raw.close()


def test_redis_py_cluster_crosses_nothing(cluster, make_gateway, prefix):
    gateway = make(make_gateway, cluster, 4)
    with redis.RedisCluster(gateway.host, gateway.port, socket_timeout=20 * SLOWNESS) as client:
        assert {node.port for node in client.get_nodes()} == set(owners(gateway).values())
        before = crossings(gateway)
        keys = ["%s%d" % (prefix, index) for index in range(500)]
        for key in keys:
            assert client.set(key, key)
        for key in keys:
            assert client.get(key) == key.encode()
        assert client.mget_nonatomic(keys) == [key.encode() for key in keys]
        pipeline = client.pipeline()
        for key in keys:
            pipeline.incr(key + "n")
        assert pipeline.execute() == [1] * len(keys)
        tagged = ["{%s}%d" % (prefix, index) for index in range(5)]
        assert client.mset({key: key for key in tagged})
        assert client.mget(tagged) == [key.encode() for key in tagged]
        assert crossings(gateway) == before


def test_a_core_without_slots_is_no_node_of_redis_py(cluster, make_gateway, prefix):
    """Four cores, three shards: one owns nothing, and is not in CLUSTER SLOTS."""
    gateway = make(make_gateway, cluster, 4)
    idle = set(range(gateway.port + 1, gateway.port + 5)) - set(owners(gateway).values())
    assert len(idle) == 1
    with Raw(("127.0.0.1", idle.pop()), 10 * SLOWNESS) as raw:
        assert raw.command("SET", prefix, "v") == "OK"


def test_moved_owners_are_served_and_learnt_at_the_next_refresh(cluster, make_gateway, prefix):
    """Owners move all the time: nobody is told MOVED, and every reply is right. A new look at the table is a whole table."""
    gateway = make(make_gateway, cluster, 4, **{"cores.shuffle_owners": "100ms"})
    changes = gateway.metric("owner_changes_total")
    with redis.RedisCluster(gateway.host, gateway.port, socket_timeout=20 * SLOWNESS) as client:
        for index in range(400):
            key = "%s%d" % (prefix, index % 50)
            assert client.incr(key) == index // 50 + 1
            if index % 50 == 49:
                owners(gateway)
        eventually(lambda: gateway.metric("owner_changes_total") >= changes + 3, 20, "owners have moved")
        client.nodes_manager.initialize()
        assert {node.port for node in client.get_nodes()} <= set(range(gateway.port + 1, gateway.port + 5))
        for index in range(50):
            assert client.get("%s%d" % (prefix, index)) == b"8"


def test_own_ports_under_load_keep_to_their_core(cluster, make_gateway, prefix):
    """Many connections to one core's port: none is handed over, however uneven that is."""
    gateway = make(make_gateway, cluster, 2)
    before = gateway.metric("handovers_total")
    raws = [Raw(("127.0.0.1", gateway.port + 2), 30 * SLOWNESS) for _ in range(100)]
    for index, raw in enumerate(raws):
        raw.send(encode("SET", "%s%d" % (prefix, index), "v") + encode("PING"))
    for raw in raws:
        assert [raw.read(), raw.read()] == ["OK", "PONG"]
        raw.close()
    assert gateway.metric("handovers_total") <= before + 2, "those that ask for the metric come in by the shared port"


def test_announce_is_the_base_of_the_ports(cluster, make_gateway):
    config = """\
listeners:
  - {{address: "127.0.0.1:{port}", announce: "gateway.example:7000", port_per_core: true}}
cores: {{data: 2, balance: false}}
backends:
  - {{name: main, cluster: ["127.0.0.1:FIRST"]}}
""".replace("FIRST", str(cluster.port))
    gateway = make_gateway(cluster, cores=2, config=config)
    with gateway.raw() as raw:
        nodes = {(entry[2][0], entry[2][1]) for entry in raw.command("CLUSTER", "SLOTS")}
    assert nodes == {(b"gateway.example", 7001), (b"gateway.example", 7002)}


def test_a_listener_without_it_lists_one_node(cluster, make_gateway):
    gateway = make_gateway(cluster, cores=2)
    with gateway.raw() as raw:
        assert [entry[:2] + [entry[2][1]] for entry in raw.command("CLUSTER", "SLOTS")] == [[0, 16383, gateway.port]]
    for core in range(2):
        with pytest.raises(OSError):
            Raw(("127.0.0.1", gateway.port + 1 + core), 1).close()
