"""The proxies that are compared, in front of one standalone server. No benchmark by itself."""
from lib_rounds import Candidate
from lib_servers import Raw, free_port, program

NUTCRACKER = """bench:
  listen: 127.0.0.1:%d
  redis: true
  hash: fnv1a_64
  distribution: ketama
  preconnect: true
  server_connections: 1
  auto_eject_hosts: false
  servers:
   - 127.0.0.1:%d:1
"""

HAPROXY = """global
    nbthread 1
    maxconn 5000
defaults
    mode tcp
    timeout connect 5s
    timeout client 60s
    timeout server 60s
listen bench
    bind 127.0.0.1:%d
    server redis 127.0.0.1:%d
"""

PREDIXY = """Bind 127.0.0.1:%d
WorkerThreads 1
StandaloneServerPool {
    Hash crc16
    Distribution modula
    MasterReadPriority 60
    RefreshMethod fixed
    Group bench {
        + 127.0.0.1:%d
    }
}
"""


def standalone(bench):
    """A redis-server with the key that redis-benchmark without -r and open_loop ask for."""
    redis = bench.redis()
    with Raw(("127.0.0.1", redis.port)) as raw:
        raw.command("SET", "key:__rand_int__", "x" * 64)
    return redis


def direct(redis):
    return Candidate("direct", None, redis.port)


def floor(bench, redis, name="floor", wait=None):
    """wait: "COMPLETIONS,MICROSECONDS" where it waits for batches."""
    port = free_port()
    arguments = [program("bench/floor"), "--listen", str(port), "--backend", str(redis.port)] + (["--min-wait", wait] if wait else [])
    return Candidate(name, bench.start(name, arguments, port), port)


def nutcracker(bench, redis):
    port = free_port()
    config = bench.write("nutcracker.yml", NUTCRACKER % (port, redis.port))
    return Candidate("nutcracker", bench.start("nutcracker", ["nutcracker", "-c", config, "-s", str(free_port()), "-v", "0"], port), port)


def haproxy(bench, redis):
    port = free_port()
    config = bench.write("haproxy.cfg", HAPROXY % (port, redis.port))
    return Candidate("haproxy", bench.start("haproxy", ["haproxy", "-db", "-f", config], port), port)


def predixy(bench, redis, path):
    """Debian has no package of it: `path` is that of the program."""
    port = free_port()
    config = bench.write("predixy.conf", PREDIXY % (port, redis.port))
    return Candidate("predixy", bench.start("predixy", [path, config], port), port)


def zgateway(bench, redis, name="zgateway", wait="default", options=()):
    """One data core. wait: see Bench.wait_options."""
    process = bench.gateway(redis, name, cores=1, options=[*bench.wait_options(wait), *options])
    return Candidate(name, process, process.port)
