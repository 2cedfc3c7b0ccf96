"""Every data type through redis-py's Redis: what a command answers directly it answers through the gateway."""
import pytest
import redis

pytestmark = pytest.mark.smoke


@pytest.fixture
def client(gateway):
    with gateway.redis() as client:
        yield client


def test_strings(client, prefix):
    key = prefix + "s"
    assert client.get(key) is None
    assert client.set(key, "value")
    assert client.get(key) == b"value"
    assert client.append(key, "!") == 6
    assert client.getrange(key, 1, 2) == b"al"
    assert client.strlen(key) == 6
    assert client.setrange(key, 0, "V") == 6
    assert client.getset(key, "10") == b"Value!"
    assert client.incr(key) == 11
    assert client.incrbyfloat(key, 0.5) == 11.5
    assert client.set(key, "x", nx=True) is None
    assert client.setex(key, 100, "y")
    assert 0 < client.ttl(key) <= 100
    assert client.persist(key)
    assert client.type(key) == b"string"
    assert client.delete(key) == 1
    assert client.exists(key) == 0


def test_bits_and_hyperloglog(client, prefix):
    key = prefix + "b"
    assert client.setbit(key, 7, 1) == 0
    assert client.getbit(key, 7) == 1
    assert client.bitcount(key) == 1
    assert client.bitpos(key, 1) == 7
    assert client.pfadd(prefix + "h", *range(100)) == 1
    assert 95 <= client.pfcount(prefix + "h") <= 105


def test_hashes(client, prefix):
    key = prefix + "h"
    assert client.hset(key, mapping={"a": 1, "b": 2}) == 2
    assert client.hgetall(key) == {b"a": b"1", b"b": b"2"}
    assert client.hmget(key, "a", "c") == [b"1", None]
    assert client.hincrby(key, "a", 5) == 6
    assert sorted(client.hkeys(key)) == [b"a", b"b"]
    assert client.hdel(key, "a", "b", "c") == 2
    assert client.hlen(key) == 0
    assert client.hscan(key) == (0, {})


def test_lists(client, prefix):
    key = prefix + "l"
    assert client.rpush(key, "a", "b", "c") == 3
    assert client.lpush(key, "z") == 4
    assert client.lrange(key, 0, -1) == [b"z", b"a", b"b", b"c"]
    assert client.lpop(key) == b"z"
    assert client.rpop(key, 2) == [b"c", b"b"]
    assert client.linsert(key, "before", "a", "0") == 2
    assert client.lindex(key, 0) == b"0"
    assert client.ltrim(key, 1, -1)
    assert client.llen(key) == 1
    assert client.lmove(key, key, "LEFT", "RIGHT") == b"a"


def test_sets(client, prefix):
    tag = "{" + prefix + "}"
    assert client.sadd(tag + "1", "a", "b", "c") == 3
    assert client.sadd(tag + "2", "b", "c", "d") == 3
    assert client.sinter(tag + "1", tag + "2") == {b"b", b"c"}
    assert client.sunionstore(tag + "3", tag + "1", tag + "2") == 4
    assert client.smembers(tag + "3") == {b"a", b"b", b"c", b"d"}
    assert client.sismember(tag + "1", "a")
    assert client.srem(tag + "1", "a") == 1
    assert client.scard(tag + "1") == 2
    assert client.sscan(tag + "1")[1] != []


def test_sorted_sets(client, prefix):
    key = prefix + "z"
    assert client.zadd(key, {"a": 1, "b": 2.5, "c": 3}) == 3
    assert client.zrange(key, 0, -1, withscores=True) == [(b"a", 1.0), (b"b", 2.5), (b"c", 3.0)]
    assert client.zscore(key, "b") == 2.5
    assert client.zincrby(key, 10, "a") == 11.0
    assert client.zrank(key, "a") == 2
    assert client.zrangebyscore(key, 2, 5) == [b"b", b"c"]
    assert client.zpopmin(key) == [(b"b", 2.5)]
    assert client.zcard(key) == 2
    assert client.zunion([key]) == [b"c", b"a"]


def test_geo(client, prefix):
    key = prefix + "g"
    assert client.geoadd(key, [13.361389, 38.115556, "Palermo", 15.087269, 37.502669, "Catania"]) == 2
    assert 166000 < client.geodist(key, "Palermo", "Catania") < 167000
    assert client.geosearch(key, longitude=15, latitude=37, radius=100, unit="km") == [b"Catania"]


def test_streams(client, prefix):
    key = prefix + "x"
    first = client.xadd(key, {"f": "1"})
    client.xadd(key, {"f": "2"})
    assert client.xlen(key) == 2
    assert client.xrange(key)[0] == (first, {b"f": b"1"})
    assert client.xread({key: 0})[0][0] == key.encode()
    assert client.xgroup_create(key, "group", id=0)
    messages = client.xreadgroup("group", "me", {key: ">"})
    assert len(messages[0][1]) == 2
    assert client.xack(key, "group", first) == 1
    assert client.xtrim(key, maxlen=1, approximate=False) == 1


def test_generic(client, prefix):
    tag = "{" + prefix + "}"
    assert client.set(tag + "a", 1)
    assert client.rename(tag + "a", tag + "b")
    assert client.copy(tag + "b", tag + "c")
    assert client.expire(tag + "b", 50)
    assert client.pttl(tag + "b") > 0
    dumped = client.dump(tag + "c")
    assert client.restore(tag + "d", 0, dumped)
    assert client.get(tag + "d") == b"1"
    assert client.object("encoding", tag + "c") == b"int"
    client.rpush(tag + "l", 3, 1, 2)
    assert client.sort(tag + "l") == [b"1", b"2", b"3"]


def test_errors_of_the_server_arrive_as_they_are(client, prefix):
    client.set(prefix, "x")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        client.lpush(prefix, 1)
    with pytest.raises(redis.ResponseError, match="not an integer"):
        client.incr(prefix)
    with pytest.raises(redis.ResponseError, match="wrong number of arguments"):
        client.execute_command("GET")
    with pytest.raises(redis.ResponseError, match="unknown command"):
        client.execute_command("NOSUCHCOMMAND", "x")
    assert client.get(prefix) == b"x"


def test_pipeline_without_transaction(client, prefix):
    pipeline = client.pipeline(transaction=False)
    for index in range(500):
        pipeline.set("%s%d" % (prefix, index), index)
    for index in range(500):
        pipeline.get("%s%d" % (prefix, index))
    replies = pipeline.execute()
    assert replies[:500] == [True] * 500
    assert replies[500:] == [b"%d" % index for index in range(500)]
