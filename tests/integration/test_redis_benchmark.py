"""redis-benchmark's default list runs to its end without an error. (Its --cluster mode refuses any cluster of one node, which is what a gateway lists.)"""
import subprocess


def run(gateway, *args):
    result = subprocess.run(["redis-benchmark", "-h", gateway.host, "-p", str(gateway.port), "-q", "--csv"] + list(args), stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)
    # A failed CONFIG GET is only a warning of redis-benchmark's; an error reply or a lost connection ends it.
    assert result.returncode == 0, result.stdout + result.stderr
    assert "rror" not in result.stdout + result.stderr, result.stdout + result.stderr
    return [line.split('"')[1] for line in result.stdout.splitlines() if line.startswith('"') and not line.startswith('"test"')]


def test_default_list(gateway):
    names = run(gateway, "-n", "2000", "-c", "50")
    for name in ("PING_INLINE", "PING_MBULK", "SET", "GET", "INCR", "LPUSH", "SADD", "HSET", "ZADD", "MSET (10 keys)"):
        assert name in names
    assert len(names) >= 19


def test_pipelined_over_random_keys(gateway):
    names = run(gateway, "-n", "100000", "-c", "50", "-P", "32", "-r", "100000", "-t", "get,set,incr,mset", "-d", "200")
    assert len(names) == 4
