"""What becomes of nodes that die, hang, load, have lost their primary or their cluster: the state that the gateway gives them, what clients are told meanwhile, and that service is back at once after them."""
import signal
import threading
import time

import pytest

from resp import Error
from servers import SLOWNESS, eventually

pytestmark = pytest.mark.gateway_only

# Checks have this time-out too: it must not be so short that a busy machine makes a node look dead.
TIMEOUT = 1.0 * SLOWNESS
QUICK = {"use_cases.timeout": "%dms" % (TIMEOUT * 1000)}


def is_down(gateway):
    return gateway.metric("nodes_down") == 1


@pytest.mark.parametrize("cores", [1, 2])
def test_killed_server_is_down_and_back_at_once(make_standalone, make_gateway, prefix, cores):
    server = make_standalone()
    gateway = make_gateway(server, cores=cores, options=QUICK)
    with gateway.raw(30) as raw:
        assert raw.command("SET", prefix, "1") == "OK"
        server.process.kill()
        eventually(lambda: is_down(gateway), 10, "down")
        connects = gateway.metric("link_connects_total")
        began = time.monotonic()
        replies = raw.pipeline([["GET", prefix]] * 100)
        assert all(isinstance(reply, Error) and reply.startswith("CLUSTERDOWN") for reply in replies), replies
        assert time.monotonic() - began < TIMEOUT
        # Only the housekeeping core looks whether it is back.
        assert gateway.metric("link_connects_total") - connects <= 4 + (time.monotonic() - began) * 10
        server.start()
        started = time.monotonic()
        eventually(lambda: raw.command("SET", prefix, "2") == "OK", 10, "served again")
        print("served %.2f s after the start" % (time.monotonic() - started))
        assert time.monotonic() - started < 1.5 * SLOWNESS
        eventually(lambda: gateway.metric("nodes_down") == 0, 5)
    eventually(lambda: gateway.process.log(1 << 20).count("event=node_health") >= 3, 5, "each change is logged")
    log = gateway.process.log(1 << 20)
    assert "state=down before=suspect" in log and "state=healthy before=down" in log and prefix not in log


def test_stopped_server_is_down_and_its_old_connections_are_given_up(make_standalone, make_gateway, prefix):
    server, other = make_standalone(), make_standalone()
    gateway = make_gateway([server, other], cores=2, options={**QUICK, "backends.link_stall": "60s"})
    with gateway.raw(30) as raw:
        for index in range(40):
            assert raw.command("SET", "%d-%s" % (index, prefix), "v") == "OK"
        lost = [key.decode() for key in server.redis().keys("*" + prefix)]
        kept = [key.decode() for key in other.redis().keys("*" + prefix)]
        server.process.signal(signal.SIGSTOP)
        reply = raw.command("GET", lost[0])
        assert isinstance(reply, Error) and reply.startswith("TIMEOUT"), reply
        eventually(lambda: is_down(gateway), 15, "down")
        began = time.monotonic()
        replies = raw.pipeline([["GET", key] for key in lost + kept])
        assert all(isinstance(reply, Error) and reply.startswith("CLUSTERDOWN") for reply in replies[:len(lost)]), replies
        assert replies[len(lost):] == [b"v"] * len(kept)
        assert time.monotonic() - began < TIMEOUT
        server.process.signal(signal.SIGCONT)
        continued = time.monotonic()
        eventually(lambda: raw.pipeline([["GET", key] for key in lost]) == [b"v"] * len(lost), 10, "served again")
        print("served %.2f s after the stop" % (time.monotonic() - continued))
        assert time.monotonic() - continued < 2 * SLOWNESS


def test_health_can_be_switched_off(make_standalone, make_gateway, prefix):
    server = make_standalone()
    gateway = make_gateway(server, cores=1, options={**QUICK, "backends.health_interval": "0s"})
    with gateway.raw(30) as raw:
        assert raw.command("SET", prefix, "1") == "OK"
        server.process.kill()
        assert isinstance(raw.command("GET", prefix), Error)
        time.sleep(0.5)
        assert gateway.metric("nodes_down") == 0 and gateway.metric("health_checks_total") == 0
        server.start()
        eventually(lambda: raw.command("SET", prefix, "2") == "OK", 10)


def test_server_that_loads_is_suspect_and_not_down(make_standalone, make_gateway, prefix):
    server = make_standalone()
    gateway = make_gateway(server, cores=2, options={**QUICK, "backends.health_timeout": "%dms" % (TIMEOUT * 4000)})
    with server.raw(60) as direct, gateway.raw(30) as raw:
        direct.command("DEBUG", "POPULATE", "2000", prefix, "10")
        assert raw.command("SET", prefix, "v") == "OK"
        # A millisecond and more a key, and an answer to those who ask after every few.
        assert direct.command("CONFIG", "SET", "key-load-delay", "1000", "loading-process-events-interval-bytes", "1024") == "OK"
        reload = threading.Thread(target=direct.command, args=("DEBUG", "RELOAD"))
        reload.start()
        seen = set()
        while reload.is_alive():
            reply = raw.command("GET", prefix)
            seen.add(reply if not isinstance(reply, Error) else reply.split(" ")[0])
            time.sleep(0.01)
        reload.join()
        assert seen <= {"LOADING", "TIMEOUT", b"v"} and "LOADING" in seen, seen
        began = time.monotonic()
        eventually(lambda: raw.command("GET", prefix) == b"v", 5, "served when it has loaded")
        assert time.monotonic() - began < 1 * SLOWNESS
        eventually(lambda: gateway.metric("nodes_suspect") == 0, 5)
        assert gateway.metric("nodes_down") == 0
        assert gateway.metric("health_refusals_total") > 0


def test_replica_without_its_primary_says_masterdown_and_readonly(make_standalone, make_gateway, prefix):
    server, primary = make_standalone(), make_standalone()
    gateway = make_gateway(server, cores=1, options=QUICK)
    with server.raw() as direct, gateway.raw(30) as raw:
        assert raw.command("SET", prefix, "v") == "OK"
        direct.command("CONFIG", "SET", "replica-serve-stale-data", "no")
        direct.command("REPLICAOF", "127.0.0.1", "1")
        reply = raw.command("GET", prefix)
        assert isinstance(reply, Error) and reply.startswith("MASTERDOWN"), reply
        eventually(lambda: gateway.metric("nodes_suspect") == 1, 5, "suspect")
        direct.command("REPLICAOF", "127.0.0.1", primary.port)
        eventually(lambda: raw.command("GET", prefix) is None, 20, "a replica in step answers reads")
        eventually(lambda: gateway.metric("nodes_suspect") == 0, 5, "healthy")
        reply = raw.command("SET", prefix, "w")
        assert isinstance(reply, Error) and reply.startswith("READONLY"), reply
        direct.command("REPLICAOF", "NO", "ONE")
        assert raw.command("SET", prefix, "w") == "OK"
        assert gateway.metric("nodes_down") == 0


def test_cluster_that_is_down_says_so_and_is_back_with_its_slots(own_cluster, make_gateway, prefix):
    """cluster-require-full-coverage: with one slot unserved every node refuses every key. All are suspect, none is down, and clients read the cluster's own words, or the value when it is back."""
    gateway = make_gateway(own_cluster, cores=2, options=QUICK)
    slot = 200
    owner = own_cluster.slot_owner(slot)
    keys = ["%s%d" % (prefix, index) for index in range(20)]
    with gateway.raw(30) as raw:
        assert raw.command("MSET", *[part for key in keys for part in (key, "v")]) == "OK"
        for port in own_cluster.ports:
            own_cluster.ask(port, "CLUSTER", "DELSLOTS", slot)
        eventually(lambda: gateway.metric("nodes_suspect") == 3, 10, "every primary is suspect")
        replies = raw.pipeline([["GET", key] for key in keys])
        assert all(reply == b"v" or isinstance(reply, Error) and reply.split(" ")[0] in ("CLUSTERDOWN", "TIMEOUT") for reply in replies), replies
        assert any(isinstance(reply, Error) for reply in replies)
        assert gateway.metric("nodes_down") == 0
        own_cluster.ask(owner, "CLUSTER", "ADDSLOTS", slot)
        eventually(lambda: own_cluster.is_ok(), 20, "the cluster is up")
        began = time.monotonic()
        eventually(lambda: raw.pipeline([["GET", key] for key in keys]) == [b"v"] * 20, 10, "served")
        assert time.monotonic() - began < 1.5 * SLOWNESS
        eventually(lambda: gateway.metric("nodes_suspect") == 0, 10, "all are healthy")


def test_slots_that_left_are_noticed_without_traffic(own_cluster, make_gateway):
    """Nobody asks for anything: the checks alone find that a primary has become a replica, and the topology follows long before it is polled."""
    gateway = make_gateway(own_cluster, cores=1, options={**QUICK, "backends.poll_interval": "600s"})
    epoch = gateway.metric("topology_epoch")
    replica = own_cluster.replicas[0]
    assert own_cluster.ask(replica, "CLUSTER", "FAILOVER") == "OK"
    eventually(lambda: own_cluster.ask(replica, "ROLE")[0] == b"master", 15)
    eventually(lambda: gateway.metric("topology_epoch") > epoch, 15, "the new primary is known")
    assert gateway.metric("moved_total") == 0
    assert gateway.metric("nodes_down") == 0
