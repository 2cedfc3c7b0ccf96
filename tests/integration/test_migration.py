"""Slots that move under load: MOVED, ASK and TRYAGAIN are followed; nothing is lost, doubled, reordered or leaked to a client."""
import os
import subprocess
import threading
import time

import pytest

from migration import Migration
from resp import Error, encode, key_slot
from servers import eventually

pytestmark = pytest.mark.gateway_only


@pytest.fixture(params=[1, 2, 4], ids=lambda cores: "%d-cores" % cores)
def gateway(request, own_cluster, make_gateway):
    return make_gateway(own_cluster, cores=request.param)


def tagged(prefix, count):
    """Keys of one slot."""
    return ["{%s}%d" % (prefix, index) for index in range(count)]


def test_moved_is_followed_and_learned(gateway, own_cluster, prefix):
    keys = tagged(prefix, 20)
    with gateway.raw() as raw:
        for key in keys:
            assert raw.command("SET", key, key) == "OK"
        Migration(own_cluster, key_slot(prefix)).run()
        assert raw.pipeline([["GET", key] for key in keys]) == [key.encode() for key in keys]
        assert raw.command("MGET", *keys) == [key.encode() for key in keys]
        # The new owner is learned: after a while nothing is redirected any more.
        def no_more_moved():
            before = gateway.metric("moved_total")
            assert raw.pipeline([["GET", key] for key in keys]) == [key.encode() for key in keys]
            return gateway.metric("moved_total") == before
        eventually(no_more_moved, 10, "no MOVED any more")


def test_ask_is_followed(gateway, own_cluster, prefix):
    keys = tagged(prefix, 20)
    migration = Migration(own_cluster, key_slot(prefix))
    with gateway.raw() as raw:
        for key in keys[:10]:
            raw.command("SET", key, key)
        migration.begin()
        migration.move_keys(keys[:5])
        # Here: 5 on the target, 5 on the source, 10 that do not exist and are created on the target.
        assert raw.pipeline([["GET", key] for key in keys]) == [key.encode() for key in keys[:10]] + [None] * 10
        assert raw.pipeline([["SET", key, "new"] for key in keys]) == ["OK"] * 20
        assert raw.pipeline([["GET", key] for key in keys]) == [b"new"] * 20
        assert gateway.metric("ask_total") > 0
        migration.move_all_keys()
        migration.end()
        assert raw.pipeline([["GET", key] for key in keys]) == [b"new"] * 20


def test_split_commands_on_a_half_migrated_slot(gateway, own_cluster, prefix):
    """No false nil and no TRYAGAIN for MGET, EXISTS, DEL: their keys may be asked for one by one."""
    keys = tagged(prefix, 10)
    other = [prefix + str(index) for index in range(10)]
    migration = Migration(own_cluster, key_slot(prefix))
    with gateway.raw() as raw:
        raw.command("MSET", *[part for key in keys + other for part in (key, key)])
        migration.begin()
        migration.move_keys(keys[::2])
        for _ in range(20):
            assert raw.command("MGET", *(keys + other)) == [key.encode() for key in keys + other]
            assert raw.command("EXISTS", *(keys + keys)) == 20
            assert raw.command("TOUCH", *keys) == 10
        assert raw.command("MSET", *[part for key in keys for part in (key, "2")]) == "OK"
        assert raw.command("MGET", *keys) == [b"2"] * 10
        assert raw.command("DEL", *keys[:4]) == 4
        assert raw.command("UNLINK", *keys) == 6
        migration.move_all_keys()
        migration.end()
        assert raw.command("EXISTS", *keys) == 0


def test_unsplittable_command_waits_for_the_migration_or_says_tryagain(gateway, own_cluster, prefix):
    keys = tagged(prefix, 2)
    migration = Migration(own_cluster, key_slot(prefix))
    with gateway.raw() as raw, gateway.raw() as other:
        raw.command("SADD", keys[0], "a")
        raw.command("SADD", keys[1], "b")
        migration.begin()
        migration.move_keys(keys[:1])
        raw.send(encode("SUNION", *keys))
        # Others are not held up by it.
        assert other.command("SET", prefix + "other", "v") == "OK"
        time.sleep(0.05)
        migration.move_all_keys()
        migration.end()
        reply = raw.read()
        assert (isinstance(reply, Error) and reply.startswith("TRYAGAIN")) or sorted(reply) == [b"a", b"b"], reply

        def right():
            again = raw.command("SUNION", *keys)
            return not isinstance(again, Error) and sorted(again) == [b"a", b"b"]
        eventually(right, 10, "SUNION works after the migration")


@pytest.mark.parametrize("depth", [1, 20])
def test_counters_while_the_slot_goes_to_and_fro(gateway, own_cluster, prefix, depth):
    """Eight connections increment counters of their own in the moving slot. INCR is the strictest witness: one that is lost, doubled or overtaken shows in the replies."""
    slot = key_slot(prefix)
    ends = threading.Event()
    failures, totals = [], []

    def work(number):
        key = "{%s}counter%d" % (prefix, number)
        count = 0
        try:
            with gateway.raw(30) as raw:
                while not ends.is_set():
                    replies = raw.pipeline([["INCR", key]] * depth)
                    want = list(range(count + 1, count + depth + 1))
                    assert replies == want, "after %d: %r" % (count, replies)
                    count += depth
                assert raw.command("GET", key) == b"%d" % count
        except BaseException as failure:  # noqa: B902: shown by the test's own thread
            failures.append("client %d: %r" % (number, failure))
        totals.append(count)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(6):
            time.sleep(0.1)
            migration = Migration(own_cluster, slot)
            migration.begin()
            time.sleep(0.05)
            migration.move_all_keys(at_once=1)
            time.sleep(0.05)
            migration.move_all_keys()
            migration.end()
    finally:
        ends.set()
        for thread in threads:
            thread.join()
    assert not failures, failures
    assert min(totals) > 0


class Writers:
    """Clients that each write a hundred keys and read them back, over and over, until the end of the block: nobody sees an error or an old value."""

    def __init__(self, gateway, prefix, count, timeout):
        self.gateway = gateway
        self.prefix = prefix
        self.timeout = timeout
        self.ends = threading.Event()
        self.failures = []
        self.threads = [threading.Thread(target=self.work, args=(number,)) for number in range(count)]

    def work(self, number):
        round_index = 0
        keys = ["%s%d-%d" % (self.prefix, number, index) for index in range(100)]
        try:
            with self.gateway.raw(self.timeout) as raw:
                while not self.ends.is_set():
                    round_index += 1
                    value = b"%d" % round_index
                    assert raw.pipeline([["SET", key, value] for key in keys]) == ["OK"] * 100
                    assert raw.command("MGET", *keys) == [value] * 100
        except BaseException as failure:  # noqa: B902
            self.failures.append("client %d, round %d: %r" % (number, round_index, str(failure)[:300]))

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.ends.set()
        for thread in self.threads:
            thread.join()


def cli(*args, timeout=300):
    result = subprocess.run(["redis-cli", "--cluster"] + [str(arg) for arg in args] + ["--cluster-yes"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout)
    assert result.returncode == 0, result.stdout[-2000:]


def test_reshard_by_redis_cli_under_load(own_cluster, make_gateway, prefix):
    """What an operator does: redis-cli --cluster reshard moves 300 slots while clients write and read back."""
    gateway = make_gateway(own_cluster, cores=2)
    source, target = [own_cluster.ask(port, "CLUSTER", "MYID").decode() for port in own_cluster.primaries[:2]]
    with Writers(gateway, prefix, 4, 30) as writers:
        cli("reshard", "127.0.0.1:%d" % own_cluster.port, "--cluster-from", source, "--cluster-to", target, "--cluster-slots", "300", timeout=120)
    assert not writers.failures, writers.failures


@pytest.mark.parametrize("how", [(), ("TAKEOVER",)], ids=["failover", "takeover"])
def test_a_replica_is_promoted_under_load(own_cluster, make_gateway, prefix, how):
    """A replica that takes over by CLUSTER FAILOVER: planned, so nothing is lost. By TAKEOVER it asks nobody, and the others learn it from the higher epoch."""
    gateway = make_gateway(own_cluster, cores=2)
    replica = own_cluster.replicas[0]
    with gateway.raw(30) as raw:
        for index in range(100):
            assert raw.command("SET", "%s%d" % (prefix, index), str(index)) == "OK"
        assert own_cluster.ask(replica, "CLUSTER", "FAILOVER", *how) == "OK"
        end = time.monotonic() + 4
        rounds = 0
        while time.monotonic() < end or rounds < 10:
            replies = raw.pipeline([["SET", "%s%d" % (prefix, index), str(index)] for index in range(100)] + [["GET", "%s%d" % (prefix, index)] for index in range(100)])
            assert replies == ["OK"] * 100 + [b"%d" % index for index in range(100)], [reply for reply in replies if isinstance(reply, Error)][:3]
            rounds += 1
        eventually(lambda: own_cluster.ask(replica, "ROLE")[0] == b"master", 10)


def test_a_node_joins_and_leaves_under_load(own_cluster, make_standalone, make_gateway, prefix):
    """What an operator does to grow and to shrink: add-node, slots to it (all that rebalance would move with --full), back again, del-node. Nobody sees an error, and no connection is left to the node that
    is gone."""
    gateway = make_gateway(own_cluster, cores=2, options={"backends.poll_interval": "500ms"})
    node = make_standalone(options=["--cluster-enabled", "yes", "--cluster-config-file", "nodes-joins.conf", "--cluster-node-timeout", "3000"])
    port = node.port
    any_node = "127.0.0.1:%d" % own_cluster.port
    with Writers(gateway, prefix, 3, 60) as writers:
        cli("add-node", "127.0.0.1:%d" % port, any_node)
        node_id = own_cluster.ask(port, "CLUSTER", "MYID").decode()
        eventually(lambda: all(node_id in own_cluster.ask(other, "CLUSTER", "NODES").decode() for other in own_cluster.ports), 20, "all know the new node")
        eventually(lambda: own_cluster.is_ok() and b"cluster_state:ok" in own_cluster.ask(port, "CLUSTER", "INFO"), 20, "the new node knows the cluster too")
        if os.environ.get("ZG_FULL") == "1":
            cli("rebalance", any_node, "--cluster-use-empty-masters")
        else:
            source = own_cluster.ask(own_cluster.primaries[0], "CLUSTER", "MYID").decode()
            cli("reshard", any_node, "--cluster-from", source, "--cluster-to", node_id, "--cluster-slots", "60")
        moved = [slots for slots in own_cluster.ask(port, "CLUSTER", "SLOTS") if slots[2][1] == port]
        assert moved
        time.sleep(0.5)
        assert int(node.info("stats")["total_commands_processed"]) > 0
        count = sum(last - first + 1 for first, last, *_ in moved)
        target = own_cluster.ask(own_cluster.primaries[1], "CLUSTER", "MYID").decode()
        cli("reshard", any_node, "--cluster-from", node_id, "--cluster-to", target, "--cluster-slots", count)
        cli("del-node", any_node, node_id)
        eventually(lambda: not [line for line in node.redis().client_list() if not line["cmd"].startswith("client")], 20, "no connection is left")
    assert not writers.failures, writers.failures
    node.process.stop()
    with gateway.raw() as raw:
        keys = ["%s0-%d" % (prefix, index) for index in range(100)]
        assert raw.pipeline([["SET", key, "v"] for key in keys]) == ["OK"] * 100
    eventually(lambda: gateway.metric("nodes_down") == 0, 5, "the node that left is no node any more")
