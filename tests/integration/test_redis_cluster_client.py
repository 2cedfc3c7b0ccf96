"""redis-py's RedisCluster against a cluster listener: it reads CLUSTER SLOTS and COMMAND, and every slot is served where it looks."""
import os

import pytest
import redis


@pytest.fixture
def client(gateway, request):
    if gateway.is_direct:
        with request.getfixturevalue("cluster").cluster_client() as client:
            yield client
    else:
        with redis.RedisCluster(gateway.host, gateway.port, socket_timeout=10) as client:
            yield client


def test_slots_are_all_covered(client):
    assert client.cluster_slots()
    assert len(client.nodes_manager.slots_cache) == 16384


def test_nodes_are_at_the_address_that_was_dialled(client, gateway):
    if gateway.is_direct:
        pytest.skip("direct")
    assert {(node.host, node.port) for node in client.get_nodes()} == {(gateway.host, gateway.port)}


def test_keys_of_many_slots(client, prefix):
    for index in range(300):
        assert client.set("%s%d" % (prefix, index), index)
    for index in range(300):
        assert client.get("%s%d" % (prefix, index)) == b"%d" % index


def test_commands_over_several_slots(client, prefix):
    keys = ["%s%d" % (prefix, index) for index in range(20)]
    assert client.mset_nonatomic({key: key for key in keys})
    assert client.mget_nonatomic(keys) == [key.encode() for key in keys]
    assert client.exists(*keys) == 20
    assert client.touch(*keys) == 20
    assert client.unlink(*keys[:10]) == 10
    assert client.delete(*keys) == 10


def test_pipeline(client, prefix):
    pipeline = client.pipeline()
    for index in range(100):
        pipeline.set("%s%d" % (prefix, index), index)
        pipeline.get("%s%d" % (prefix, index))
    replies = pipeline.execute()
    assert replies[1::2] == [b"%d" % index for index in range(100)]


def test_key_slot_agrees_with_ours(client, prefix):
    from resp import key_slot
    for key in (prefix, "{a}b", "{}x", "a{b}c{d}", "a{{b}}", os.urandom(20)):
        assert client.cluster_keyslot(key if isinstance(key, str) else key.hex()) == key_slot(key if isinstance(key, str) else key.hex())
