"""redis-cli sessions in both protocols, as a person would type them."""
import subprocess

import pytest


def session(gateway, flag, lines, extra=()):
    result = subprocess.run(["redis-cli", "-h", gateway.host, "-p", str(gateway.port), flag] + list(extra), input="\n".join(lines) + "\n",
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    assert result.returncode == 0, result.stdout
    return result.stdout


@pytest.mark.parametrize("flag", ["-2", "-3"])
def test_session(gateway, prefix, flag):
    out = session(gateway, flag, ["set %sa 1" % prefix, "incr %sa" % prefix, "mget %sa %sb" % (prefix, prefix), "hset %sh f v" % prefix, "hgetall %sh" % prefix,
                                  "lpush %sa x" % prefix, "nosuchcommand", "ping"])
    lines = out.splitlines()
    assert lines[:2] == ["OK", "2"]
    assert lines[2:4] == ["2", ""]
    assert "f" in out and "v" in out
    assert "WRONGTYPE" in out and "ERR unknown command" in out
    assert lines[-1] == "PONG"


def test_resp3_types_stay_what_they_are(gateway, prefix):
    """--no-raw shows the types: a map and a double in RESP3, an array and a string in RESP2."""
    setup = ["hset %sh f v" % prefix, "zadd %sz 1.5 m" % prefix]
    three = session(gateway, "-3", setup + ["hgetall %sh" % prefix, "zscore %sz m" % prefix], ["--no-raw"])
    assert '1# "f" => "v"' in three and "(double) 1.5" in three
    two = session(gateway, "-2", setup + ["hgetall %sh" % prefix, "zscore %sz m" % prefix], ["--no-raw"])
    assert '1) "f"' in two and '"1.5"' in two


@pytest.mark.parametrize("flag", ["-2", "-3"])
def test_cluster_mode_follows_what_the_gateway_lists(gateway, prefix, flag, request):
    if gateway.is_direct:
        gateway = request.getfixturevalue("cluster")
    out = session(gateway, flag, ["set %s%d %d" % (prefix, index, index) for index in range(20)] + ["get %s7" % prefix], ["-c"])
    assert out.splitlines()[-1].strip('"') == "7"


def test_several_protocols_at_once(gateway, prefix):
    """Clients of either protocol share keys; each is answered in its own."""
    with gateway.raw(protocol=2) as two, gateway.raw(protocol=3) as three:
        two.command("HSET", prefix, "a", "1")
        for _ in range(20):
            assert two.command("HGETALL", prefix) == [b"a", b"1"]
            assert three.command("HGETALL", prefix) == {b"a": b"1"}
