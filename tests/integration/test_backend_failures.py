"""Backends that die, hang and come back: every command is answered, by the right reply or an error; the connection stays; it recovers with no restart."""
import signal
import time

import pytest

from resp import Error, encode, key_slot
from servers import SLOWNESS, Standalone, eventually, free_port

pytestmark = pytest.mark.gateway_only


def keys_of(cluster, port, prefix, count):
    """Keys that a primary serves."""
    ranges = [(entry[0], entry[1]) for entry in cluster.ask(cluster.ports[-1], "CLUSTER", "SLOTS") if entry[2][1] == port]
    keys = []
    index = 0
    while len(keys) < count:
        key = "%s%d" % (prefix, index)
        if any(first <= key_slot(key) <= last for first, last in ranges):
            keys.append(key)
        index += 1
    return keys


@pytest.mark.parametrize("cores", [1, 2])
def test_a_primary_dies_and_its_replica_takes_over(own_cluster, make_gateway, prefix, cores):
    gateway = make_gateway(own_cluster, cores=cores, options={"use_cases.timeout": "1s", "backends.link_stall": "1s"})
    victim, other = own_cluster.primaries[1], own_cluster.primaries[0]
    lost, kept = keys_of(own_cluster, victim, prefix, 20), keys_of(own_cluster, other, prefix, 20)
    with gateway.raw(30) as raw, gateway.raw(30) as steady:
        assert raw.pipeline([["SET", key, key] for key in lost + kept]) == ["OK"] * 40
        time.sleep(0.3)  # for the replicas to have them
        raw.send(b"".join(encode("GET", key) for key in (lost + kept) * 50))
        own_cluster.signal(victim, signal.SIGKILL)
        for index in range(40 * 50):
            reply = raw.read()
            want = (lost + kept)[index % 40].encode()
            assert reply == want or isinstance(reply, Error), (index, reply)
        # The shards that live are served at once.
        start = time.monotonic()
        assert steady.pipeline([["GET", key] for key in kept]) == [key.encode() for key in kept]
        assert time.monotonic() - start < 1 * SLOWNESS
        # The dead one answers an error within the time-out.
        start = time.monotonic()
        reply = raw.command("GET", lost[0])
        assert reply == lost[0].encode() or isinstance(reply, Error)
        assert time.monotonic() - start < 3 * SLOWNESS
        eventually(lambda: raw.pipeline([["GET", key] for key in lost]) == [key.encode() for key in lost], 30, "the replica has taken over")
        assert raw.pipeline([["SET", key, "2"] for key in lost]) == ["OK"] * 20
        # The old primary comes back as a replica, and nothing changes for clients.
        own_cluster.restart(victim)
        eventually(own_cluster.is_ok, 20, "the cluster is whole")
        eventually(lambda: own_cluster.ask(victim, "ROLE")[0] == b"slave", 20)
        for _ in range(10):
            assert raw.pipeline([["GET", key] for key in lost]) == [b"2"] * 20
            time.sleep(0.05)


def test_split_command_with_one_dead_shard_is_one_error(own_cluster, make_gateway, prefix):
    gateway = make_gateway(own_cluster, cores=2, options={"use_cases.timeout": "500ms", "backends.link_stall": "1s"})
    keys = ["%s%d" % (prefix, index) for index in range(30)]
    with gateway.raw(30) as raw:
        assert raw.command("MSET", *[part for key in keys for part in (key, "v")]) == "OK"
        own_cluster.signal(own_cluster.primaries[0], signal.SIGKILL)
        replies = raw.pipeline([["MGET"] + keys, ["ECHO", "after"]])
        assert isinstance(replies[0], Error) or replies[0] == [b"v"] * 30
        assert replies[1] == b"after"
        eventually(lambda: raw.command("MGET", *keys) == [b"v"] * 30, 30)


@pytest.mark.parametrize("cores", [1, 2])
def test_a_standalone_server_is_killed_and_restarted(make_standalone, make_gateway, prefix, cores):
    server = make_standalone()
    gateway = make_gateway(server, cores=cores, options={"use_cases.timeout": "500ms"})
    with gateway.raw(20) as raw:
        for round_index in range(3):
            assert raw.command("SET", prefix, str(round_index)) == "OK"
            server.process.kill()
            start = time.monotonic()
            replies = raw.pipeline([["GET", prefix]] * 10 + [["PING"]])
            assert all(isinstance(reply, Error) for reply in replies[:10]), replies
            assert replies[10] == "PONG"
            assert time.monotonic() - start < 3 * SLOWNESS
            server.start()
            eventually(lambda: raw.command("GET", prefix) is None, 10, "served by the new process")


def test_a_server_that_hangs_gives_timeouts_and_no_late_replies(make_standalone, make_gateway, prefix):
    """After -TIMEOUT the late reply reaches nobody."""
    server = make_standalone()
    gateway = make_gateway(server, cores=2, options={"use_cases.timeout": "300ms", "backends.link_stall": "5s"})
    with gateway.raw(20) as raw, gateway.raw(20) as other:
        for index in range(20):
            assert raw.command("SET", "%s%d" % (prefix, index), str(index)) == "OK"
        server.process.signal(signal.SIGSTOP)
        start = time.monotonic()
        replies = raw.pipeline([["GET", "%s%d" % (prefix, index)] for index in range(10)])
        assert all(isinstance(reply, Error) and reply.startswith("TIMEOUT") for reply in replies), replies
        assert 0.25 < time.monotonic() - start < 2 * SLOWNESS
        assert other.command("PING") == "PONG"
        server.process.signal(signal.SIGCONT)
        for _ in range(20):
            replies = raw.pipeline([["GET", "%s%d" % (prefix, index)] for index in range(10, 20)])
            assert [reply for reply in replies if not isinstance(reply, Error)] in ([], [b"%d" % index for index in range(10, 20)]), replies
        eventually(lambda: other.command("GET", prefix + "3") == b"3", 5)
        assert gateway.metric("request_timeouts_total") >= 10
        served = [raw.command("GET", "%s%d" % (prefix, index)) for index in range(20)]
        assert served == [b"%d" % index for index in range(20)]


def test_a_link_that_is_killed_by_the_server_is_opened_again(make_standalone, make_gateway, prefix):
    server = make_standalone()
    gateway = make_gateway(server, cores=2)
    with gateway.raw(20) as raw, server.raw() as direct:
        for _ in range(5):
            assert raw.command("SET", prefix, "v") == "OK"
            direct.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            eventually(lambda: raw.command("GET", prefix) == b"v", 5)


def test_start_before_the_backend(make_gateway, run_dir, make_standalone):
    """Not ready, and says so: commands answer an error, INFO says loading:1; ready by itself when the backend comes."""
    class Later:
        port = free_port()

    gateway = make_gateway([Later], cores=2, wait=False, options={"use_cases.timeout": "500ms"})
    eventually(lambda: gateway.process.is_running() and _accepts(gateway), 10)
    with gateway.raw(10) as raw:
        reply = raw.command("GET", "k")
        assert isinstance(reply, Error), reply
    server = make_standalone(port=Later.port)
    gateway.wait_ready()
    with gateway.raw(10) as raw:
        assert raw.command("SET", "k", "v") == "OK"
        assert server.redis().get("k") == b"v"


def _accepts(gateway):
    try:
        gateway.raw(1).close()
        return True
    except OSError:
        return False


def test_cluster_without_full_coverage_is_not_ready(own_cluster, make_gateway, prefix):
    slot = 100
    owner = own_cluster.slot_owner(slot)
    for port in own_cluster.ports:
        own_cluster.ask(port, "CONFIG", "SET", "cluster-require-full-coverage", "no")
        own_cluster.ask(port, "CLUSTER", "DELSLOTS", slot)
    gateway = make_gateway(own_cluster, cores=2, wait=False, options={"use_cases.timeout": "500ms", "backends.poll_interval": "200ms"})
    eventually(lambda: gateway.process.is_running() and _accepts(gateway), 10)
    time.sleep(0.5)
    assert gateway.info()["loading"] == "1"
    own_cluster.ask(owner, "CLUSTER", "ADDSLOTS", slot)
    gateway.wait_ready()
    with gateway.raw() as raw:
        assert raw.command("SET", prefix, "v") == "OK"


def test_several_standalone_servers_share_the_keys(make_standalone, make_gateway, prefix):
    servers = [make_standalone() for _ in range(3)]
    gateway = make_gateway(servers, cores=2)
    # What tells them apart is in front: fnv1a_64 keeps names that differ in their last characters together.
    keys = ["%d-%s" % (index, prefix) for index in range(300)]
    with gateway.raw() as raw:
        assert raw.command("MSET", *[part for key in keys for part in (key, key)]) == "OK"
        assert raw.command("MGET", *keys) == [key.encode() for key in keys]
        assert raw.command("EXISTS", *keys) == 300
    counts = [server.redis().dbsize() for server in servers]
    # FNV-1a places similar names close to each other, as twemproxy does: the shares are uneven, but nobody is left out.
    assert sum(counts) == 300 and min(counts) > 0, counts


def test_placement_agrees_with_nutcracker(make_standalone, make_gateway, prefix, run_dir):
    """Servers are placed by ketama with fnv1a_64 as twemproxy places them: who moves from there finds every key."""
    import os
    import shutil

    from servers import Process, Target

    nutcracker = shutil.which("nutcracker") or "/usr/sbin/nutcracker"
    if not os.path.exists(nutcracker):
        pytest.skip("no nutcracker")
    servers = [make_standalone() for _ in range(3)]
    target = Target()
    target.port, stats = free_port(), free_port()
    directory = os.path.join(run_dir, "nutcracker-" + prefix)
    os.makedirs(directory)
    with open(os.path.join(directory, "nutcracker.yml"), "w") as file:
        file.write("pool:\n  listen: 127.0.0.1:%d\n  hash: fnv1a_64\n  distribution: ketama\n  redis: true\n  servers:\n" % target.port)
        for server in servers:
            file.write("   - 127.0.0.1:%d:1\n" % server.port)
    process = Process("nutcracker", [nutcracker, "-c", "nutcracker.yml", "-s", str(stats), "-o", "out.log"], directory)
    try:
        eventually(target.answers_ping, 5, process.log)
        keys = ["%s%d" % (prefix, index) for index in range(200)]
        with target.raw() as raw:
            for key in keys:
                assert raw.command("SET", key, key) == "OK"
        gateway = make_gateway(servers, cores=2)
        with gateway.raw() as raw:
            assert raw.command("MGET", *keys) == [key.encode() for key in keys]
    finally:
        process.stop()


def test_valkey_cluster(make_gateway, run_dir, prefix):
    import os
    import shutil

    from servers import Cluster

    if not shutil.which("valkey-server"):
        pytest.skip("no valkey-server")
    cluster = Cluster(os.path.join(run_dir, "valkey-" + prefix), server="valkey-server")
    try:
        gateway = make_gateway(cluster, cores=2)
        with gateway.raw(protocol=3) as raw:
            keys = ["%s%d" % (prefix, index) for index in range(100)]
            assert raw.command("MSET", *[part for key in keys for part in (key, key)]) == "OK"
            assert raw.command("MGET", *keys) == [key.encode() for key in keys]
            assert raw.command("DEL", *keys) == 100
        gateway.stop()
    finally:
        cluster.stop()
