"""What this version does not do answers one clear error and keeps the connection."""
import pytest

from resp import Error

pytestmark = [pytest.mark.gateway_only, pytest.mark.smoke]

UNSUPPORTED = [
    ["MULTI"], ["EXEC"], ["DISCARD"], ["WATCH", "k"], ["UNWATCH"], ["SUBSCRIBE", "c"], ["PSUBSCRIBE", "c*"], ["SSUBSCRIBE", "c"], ["UNSUBSCRIBE"], ["PUBLISH", "c", "m"],
    ["BLPOP", "k", "1"], ["BRPOP", "k", "0"], ["BLMOVE", "a", "a", "LEFT", "LEFT", "1"], ["BZPOPMIN", "k", "1"], ["XREAD", "BLOCK", "100", "STREAMS", "x", "$"],
    ["XREADGROUP", "GROUP", "g", "c", "BLOCK", "0", "STREAMS", "x", ">"],
    ["SCAN", "0"], ["KEYS", "*"], ["RANDOMKEY"], ["EVAL", "return 1", "0"], ["EVALSHA", "0" * 40, "0"], ["SCRIPT", "LOAD", "return 1"], ["FUNCTION", "LIST"],
    ["FCALL", "f", "0"], ["SELECT", "1"], ["WAIT", "1", "100"], ["MONITOR"], ["FLUSHALL"], ["FLUSHDB"],
    ["DEBUG", "SLEEP", "0"], ["SHUTDOWN", "NOSAVE"], ["REPLICAOF", "NO", "ONE"], ["SLAVEOF", "NO", "ONE"], ["SYNC"], ["PSYNC", "?", "-1"], ["SAVE"], ["BGSAVE"],
    ["BGREWRITEAOF"], ["MIGRATE", "127.0.0.1", "1", "k", "0", "1"], ["CONFIG", "SET", "save", ""], ["CONFIG", "REWRITE"], ["MODULE", "LIST"], ["FAILOVER"],
    ["CLUSTER", "RESET"], ["CLUSTER", "FORGET", "0" * 40], ["CLUSTER", "SETSLOT", "1", "STABLE"], ["CLIENT", "TRACKING", "ON"], ["SWAPDB", "0", "1"], ["MOVE", "k", "1"],
]


@pytest.mark.parametrize("command", UNSUPPORTED, ids=lambda command: "-".join(command[:2]))
def test_unsupported_is_an_error_and_the_connection_stays(gateway, prefix, command):
    with gateway.raw() as raw:
        # In the middle of a pipeline, so that a second reply or a missing one shifts what follows.
        replies = raw.pipeline([["ECHO", "before"], command, ["SET", prefix, "v"], ["GET", prefix]])
        assert replies[0] == b"before"
        assert isinstance(replies[1], Error), replies[1]
        assert replies[1].split(" ")[0] in ("ERR", "NOPERM", "UNSUPPORTED"), replies[1]
        assert len(replies[1]) > 10
        assert replies[2:] == ["OK", b"v"]


def test_the_backend_is_unharmed(gateway, cluster):
    for port in cluster.ports:
        assert cluster.ask(port, "PING") == "PONG"


def test_unknown_commands_are_worded_as_redis_does(gateway, standalone):
    for command in (["NOSUCH"], ["nosuch", "a", "b"], ["NOSUCH", "x" * 200, "y"], ["GET"], ["SET", "k"], ["CLIENT", "NOSUCH"], ["CLUSTER", "NOSUCH"], ["CONFIG"], ["OBJECT", "NOSUCH", "k"]):
        with gateway.raw() as raw, standalone.raw() as redis:
            if command[0] == "CLUSTER":
                reply = raw.command(*command)
                assert reply.startswith("ERR unknown subcommand"), reply
                continue
            assert raw.command(*command) == redis.command(*command), command
