"""What real client libraries send on connect, replayed as they send it, and what each of them needs in the answers."""
import pytest

from resp import Error, Raw, encode, parse_info

pytestmark = [pytest.mark.gateway_only, pytest.mark.smoke]

HELLO_KEYS = {b"server", b"version", b"proto", b"id", b"mode", b"role", b"modules"}


def is_ok(reply):
    return reply == "OK"


def is_hello3(reply):
    return isinstance(reply, dict) and HELLO_KEYS <= set(reply) and reply[b"proto"] == 3 and isinstance(reply[b"id"], int) and reply[b"role"] == b"master"


def is_hello2(reply):
    if not isinstance(reply, list) or isinstance(reply, Error):
        return False
    pairs = dict(zip(reply[0::2], reply[1::2]))
    return HELLO_KEYS <= set(pairs) and pairs[b"proto"] == 2


def is_id(reply):
    return isinstance(reply, int) and reply > 0


def is_slots(reply):
    covered = 0
    for entry in reply:
        first, last, node = entry[0], entry[1], entry[2]
        covered += last - first + 1
        assert isinstance(node[0], bytes) and isinstance(node[1], int) and len(node[2]) == 40
    return covered == 16384


def is_nodes(reply):
    lines = reply.decode().splitlines()
    return any("myself" in line for line in lines) and all(len(line.split(" ")) >= 8 for line in lines) and any("0-16383" in line or "-" in line.split(" ")[8] for line in lines)


def is_commands(reply):
    names = {entry[0] for entry in reply}
    return len(reply) > 200 and {b"get", b"set", b"mget", b"hset", b"xadd"} <= names and all(len(entry) >= 6 for entry in reply)


def is_info(reply):
    info = parse_info(reply)
    return info["loading"] == "0" and info["redis_version"] and info["role"] == "master"


def is_server_info(reply):
    return "redis_version" in parse_info(reply)


def is_replication_info(reply):
    return parse_info(reply)["role"] == "master"


def is_short_config(reply):
    return isinstance(reply, (list, dict)) and not isinstance(reply, Error)


def is_error(reply):
    return isinstance(reply, Error)


def ok_or_error(reply):
    return reply == "OK" or isinstance(reply, Error)


def anything(reply):
    return True


# name -> steps; a step is a list of (command, predicate) sent in one write.
SEQUENCES = {
    "redis-py 8": [
        [(["HELLO", "3"], is_hello3)],
        [(["CLIENT", "MAINT_NOTIFICATIONS", "ON", "moving-endpoint-type", "internal-ip"], ok_or_error)],
        [(["CLIENT", "SETNAME", "me"], is_ok)],
        [(["CLIENT", "SETINFO", "LIB-NAME", "redis-py"], is_ok), (["CLIENT", "SETINFO", "LIB-VER", "8.0.0"], is_ok), (["SELECT", "0"], is_ok)],
        [(["PING"], lambda reply: reply == "PONG")],
        [(["CLUSTER", "SLOTS"], is_slots), (["COMMAND"], is_commands), (["READONLY"], is_ok)],
    ],
    "redis-py 4": [
        [(["CLIENT", "SETNAME", "me"], is_ok)], [(["SELECT", "0"], is_ok)], [(["CLUSTER", "SLOTS"], is_slots)], [(["COMMAND"], is_commands)], [(["READONLY"], is_ok)],
    ],
    "Jedis": [
        [(["HELLO", "3"], is_hello3)],
        [(["CLIENT", "SETNAME", "me"], is_ok), (["CLIENT", "SETINFO", "LIB-NAME", "jedis"], is_ok), (["CLIENT", "SETINFO", "LIB-VER", "5.1.0"], is_ok)],
        [(["SELECT", "0"], is_ok)], [(["CLUSTER", "SLOTS"], is_slots)], [(["PING"], lambda reply: reply == "PONG")],
    ],
    "Lettuce 6": [
        [(["HELLO", "3", "SETNAME", "lettuce#ClusterTopologyRefresh"], is_hello3)],
        [(["SELECT", "0"], is_ok), (["READONLY"], is_ok)],
        [(["CLIENT", "SETINFO", "lib-name", "Lettuce"], is_ok), (["CLIENT", "SETINFO", "lib-ver", "6.3.2.RELEASE/8941aea"], is_ok)],
        [(["CLIENT", "SETNAME", "lettuce#ClusterTopologyRefresh"], is_ok), (["CLUSTER", "NODES"], is_nodes), (["INFO"], is_info)],
        [(["COMMAND"], is_commands)],
    ],
    "ioredis 5": [
        [(["SELECT", "0"], is_ok), (["CLIENT", "SETNAME", "me"], is_ok), (["READONLY"], is_ok), (["CLIENT", "SETINFO", "LIB-VER", "5.4.1"], is_ok),
         (["CLIENT", "SETINFO", "LIB-NAME", "ioredis"], is_ok)],
        [(["INFO"], is_info)],
        [(["CLUSTER", "SLOTS"], is_slots), (["CLUSTER", "INFO"], lambda reply: b"cluster_state:ok" in reply)],
    ],
    "ioredis 6": [
        [(["HELLO", "3"], is_hello3), (["SELECT", "0"], is_ok), (["CLIENT", "SETNAME", "me"], is_ok), (["READONLY"], is_ok), (["CLIENT", "SETINFO", "LIB-NAME", "ioredis"], is_ok)],
        [(["INFO"], is_info)], [(["CLUSTER", "SLOTS"], is_slots)], [(["CLUSTER", "INFO"], lambda reply: b"cluster_state:ok" in reply)],
    ],
    "go-redis 9": [
        [(["hello", "3", "setname", "me"], is_hello3)],
        [(["select", "0"], is_ok), (["readonly"], is_ok), (["client", "setname", "me"], is_ok)],
        [(["client", "setinfo", "LIB-NAME", "go-redis(,go1.22.1)"], is_ok), (["client", "setinfo", "LIB-VER", "9.5.1"], is_ok)],
        [(["cluster", "slots"], is_slots)], [(["command"], is_commands)],
    ],
    "StackExchange.Redis": [
        [(["HELLO", "3"], is_hello3), (["CLIENT", "SETNAME", "me"], is_ok), (["CLIENT", "SETINFO", "lib-name", "SE.Redis"], is_ok), (["CLIENT", "SETINFO", "lib-ver", "2.8.0"], is_ok),
         (["CLIENT", "ID"], is_id), (["CONFIG", "GET", "timeout"], is_short_config), (["CONFIG", "GET", "replica-read-only"], is_short_config),
         (["CONFIG", "GET", "databases"], is_short_config), (["SENTINEL", "MASTERS"], is_error), (["INFO", "replication"], is_replication_info),
         (["INFO", "server"], is_server_info), (["CLUSTER", "SLOTS"], is_slots), (["CLUSTER", "NODES"], is_nodes), (["GET", "__Booksleeve_TieBreak"], lambda reply: reply is None),
         (["ECHO", b"\x01\x02\x03\xff"], lambda reply: reply == b"\x01\x02\x03\xff")],
        [(["PING"], lambda reply: reply == "PONG"), (["TIME"], lambda reply: len(reply) == 2), (["EXISTS", "x"], lambda reply: reply == 0)],
    ],
    "redis-cli": [
        [(["COMMAND", "DOCS"], lambda reply: isinstance(reply, (list, dict)))], [(["COMMAND"], is_commands)], [(["INFO", "SERVER"], is_server_info)],
    ],
    "redis-cli -3": [
        [(["HELLO", "3"], is_hello3)], [(["COMMAND", "DOCS", "get"], lambda reply: isinstance(reply, dict))],
    ],
    "libvalkey": [[(["CLUSTER", "SLOTS"], is_slots)], [(["CLUSTER", "NODES"], is_nodes)]],
    "node-redis 5": [
        [(["HELLO", "3"], is_hello3), (["CLIENT", "SETINFO", "LIB-NAME", "node-redis"], is_ok), (["CLIENT", "SETINFO", "LIB-VER", "5.0.0"], is_ok),
         (["CLIENT", "MAINT_NOTIFICATIONS", "ON"], ok_or_error)],
        [(["PING"], lambda reply: reply == "PONG")],
    ],
    "redis-benchmark": [
        [(["CONFIG", "GET", "save"], is_short_config), (["CONFIG", "GET", "appendonly"], is_short_config)], [(["SELECT", "0"], is_ok)], [(["HELLO", "3"], is_hello3)],
        [(["CLUSTER", "NODES"], is_nodes)], [(["CLUSTER", "SLOTS"], is_slots)],
    ],
}


@pytest.mark.parametrize("name", sorted(SEQUENCES))
def test_sequence(gateway, prefix, name):
    with gateway.raw() as raw:
        for step in SEQUENCES[name]:
            replies = raw.pipeline([command for command, _ in step])
            for (command, is_right), reply in zip(step, replies):
                assert is_right(reply), "%s: %r answered %r" % (name, command, str(reply)[:300])
        # And the connection works after it.
        assert raw.command("SET", prefix, "v") == "OK"
        assert raw.command("GET", prefix) == b"v"


def test_hello_errors_keep_the_connection(gateway):
    with gateway.raw() as raw:
        reply = raw.command("HELLO", "4")
        assert reply.startswith("NOPROTO"), reply
        reply = raw.command("HELLO", "x")
        assert isinstance(reply, Error) and "Protocol version is not an integer" in reply
        reply = raw.command("HELLO", "3", "NOSUCH")
        assert isinstance(reply, Error) and reply.startswith("ERR"), reply
        # A HELLO that failed changed nothing: an answer in RESP2.
        assert is_hello2(raw.command("HELLO"))
        assert is_hello3(raw.command("HELLO", "3"))
        assert is_hello2(raw.command("HELLO", "2"))


def test_switching_protocols_in_a_pipeline(gateway, prefix):
    with gateway.raw() as raw:
        replies = raw.pipeline([["HSET", prefix, "f", "v"], ["HGETALL", prefix], ["HELLO", "3"], ["HGETALL", prefix], ["HELLO", "2"], ["HGETALL", prefix], ["GET", prefix + "none"]])
        assert replies[1] == [b"f", b"v"] and is_hello3(replies[2])
        assert replies[3] == {b"f": b"v"} and is_hello2(replies[4])
        assert replies[5] == [b"f", b"v"] and replies[6] is None


def test_auth_without_passwords_is_worded_as_redis_does(gateway, standalone):
    with gateway.raw() as raw, standalone.raw() as redis:
        assert raw.command("AUTH", "secret") == redis.command("AUTH", "secret")
        assert raw.command("AUTH", "default", "anything") == redis.command("AUTH", "default", "anything")
        assert raw.command("PING") == "PONG"


def test_client_commands(gateway):
    with gateway.raw() as one, gateway.raw() as two:
        assert one.command("CLIENT", "ID") != two.command("CLIENT", "ID")
        assert one.command("CLIENT", "GETNAME") in (None, b"")
        assert one.command("CLIENT", "SETNAME", "with space").startswith("ERR")
        assert one.command("CLIENT", "SETNAME", "name") == "OK"
        assert one.command("CLIENT", "GETNAME") == b"name"
        assert b"name=name" in one.command("CLIENT", "INFO")
        assert ("id=%d" % one.command("CLIENT", "ID")).encode() in one.command("CLIENT", "LIST")
        assert one.command("CLIENT", "NO-EVICT", "ON") == "OK"
        assert one.command("CLIENT", "NO-TOUCH", "ON") == "OK"
        assert two.command("CLIENT", "GETNAME") in (None, b"")


def test_client_reply_off_and_skip(gateway, prefix):
    with gateway.raw() as raw:
        raw.send(encode("CLIENT", "REPLY", "SKIP") + encode("SET", prefix, "1") + encode("GET", prefix))
        assert raw.read() == b"1"
        raw.send(encode("CLIENT", "REPLY", "OFF") + encode("SET", prefix, "2") + encode("NOSUCH") + encode("MGET", prefix, prefix + "x") + encode("CLIENT", "REPLY", "ON") + encode("GET", prefix))
        assert raw.read() == "OK"
        assert raw.read() == b"2"


def test_reset_and_quit(gateway, prefix):
    with gateway.raw(protocol=3) as raw:
        raw.command("CLIENT", "SETNAME", "x")
        assert raw.command("RESET") == "RESET"
        raw.command("HSET", prefix, "f", "v")
        assert raw.command("HGETALL", prefix) == [b"f", b"v"]
        raw.send(encode("SET", prefix + "q", "1") + encode("QUIT") + encode("SET", prefix + "q", "2"))
        assert raw.read() == "OK"
        assert raw.read() == "OK"
        assert raw.is_closed_by_peer()
    with gateway.raw() as raw:
        assert raw.command("GET", prefix + "q") == b"1"


def test_command_family(gateway, standalone):
    with gateway.raw() as raw, standalone.raw() as redis:
        count = raw.command("COMMAND", "COUNT")
        assert count == len(raw.command("COMMAND")) and count > 200
        assert raw.command("COMMAND", "GETKEYS", "MSET", "a", "1", "b", "2") == [b"a", b"b"]
        assert raw.command("COMMAND", "GETKEYS", "EVAL", "x", "2", "a", "b", "c") == [b"a", b"b"]
        assert raw.command("COMMAND", "INFO", "get", "nosuch")[1] is None
        assert raw.command("COMMAND", "INFO", "get")[0][:6] == redis.command("COMMAND", "INFO", "get")[0][:6]
        assert {b"get", b"mset"} <= set(raw.command("COMMAND", "LIST"))


def test_cluster_family_agrees_with_itself(gateway):
    with gateway.raw() as raw:
        slots = raw.command("CLUSTER", "SLOTS")
        assert is_slots(slots)
        assert {(entry[2][0].decode(), entry[2][1]) for entry in slots} == {(gateway.host, gateway.port)}
        myself = raw.command("CLUSTER", "MYID")
        assert slots[0][2][2] == myself
        assert myself in raw.command("CLUSTER", "NODES")
        assert raw.command("CLUSTER", "KEYSLOT", "foo") == 12182
        shards = raw.command("CLUSTER", "SHARDS")
        assert sum(last - first + 1 for shard in shards for first, last in zip(shard[1][0::2], shard[1][1::2])) == 16384
        info = raw.command("CLUSTER", "INFO")
        assert b"cluster_state:ok" in info and b"cluster_slots_assigned:16384" in info
        assert raw.command("INFO", "cluster").find(b"cluster_enabled:1") >= 0
        assert raw.command("ROLE")[0] == b"master"


def test_standalone_listener_says_so(standalone, make_gateway, prefix):
    gateway = make_gateway(standalone, cores=2)
    with gateway.raw() as raw:
        assert b"cluster_enabled:0" in raw.command("INFO", "cluster")
        assert raw.command("HELLO", "3")[b"mode"] == b"standalone"
        reply = raw.command("CLUSTER", "SLOTS")
        assert isinstance(reply, Error) and "cluster support disabled" in reply
        assert raw.command("SET", prefix, "v") == "OK"
        assert raw.command("GET", prefix) == b"v"


def test_info_counts_what_was_done(gateway, prefix):
    with gateway.raw() as raw:
        before = parse_info(raw.command("INFO"))
        raw.pipeline([["SET", prefix, "1"]] * 100)
        after = parse_info(raw.command("INFO"))
    assert int(after["total_commands_processed"]) - int(before["total_commands_processed"]) >= 100
    assert int(after["zgateway_requests_total"]) - int(before["zgateway_requests_total"]) >= 100
    assert int(after["zgateway_bytes_from_clients_total"]) > int(before["zgateway_bytes_from_clients_total"])
    assert float(after["batch_legs_avg"] if "batch_legs_avg" in after else after["zgateway_batch_legs_avg"]) >= 1
