"""What is switched off is done without: the basic behaviour with every fallback of io_uring, every way to wake and to idle."""
import pytest

from resp import encode

pytestmark = pytest.mark.gateway_only

FALLBACKS = [
    {"ring.multishot_recv": "false"},
    {"ring.multishot_accept": "false"},
    {"ring.direct_descriptors": "false"},
    {"ring.defer_taskrun": "false"},
    {"ring.min_wait": "false"},
    {"cores.doorbell": "eventfd"},
    {"cores.doorbell": "msg_ring"},
    {"ring.multishot_recv": "false", "ring.multishot_accept": "false", "ring.direct_descriptors": "false", "ring.defer_taskrun": "false", "ring.min_wait": "false",
     "cores.doorbell": "eventfd"},
    {"cores.idle": "sleep"},
    {"cores.idle": "spin"},
    {"cores.wait_mode": "fixed", "cores.wait_completions": "16", "cores.wait": "300us"},
    {"cores.wait_mode": "fixed", "cores.wait_completions": "16", "cores.wait": "300us", "ring.min_wait": "false"},
]


@pytest.mark.parametrize("options", FALLBACKS, ids=lambda options: ",".join("%s=%s" % (name.split(".")[1], value) for name, value in options.items()))
def test_fallback(cluster, make_gateway, prefix, options):
    gateway = make_gateway(cluster, cores=2, options=options)
    raws = [gateway.raw(30, protocol) for protocol in (2, 3) for _ in range(10)]
    for number, raw in enumerate(raws):
        data, = [b"".join(encode("SET", "%s%d-%d" % (prefix, number, index), "%d-%d" % (number, index)) + encode("GET", "%s%d-%d" % (prefix, number, index)) for index in range(200))]
        raw.send(data)
    for number, raw in enumerate(raws):
        for index in range(200):
            assert raw.read() == "OK"
            assert raw.read() == b"%d-%d" % (number, index)
    with gateway.raw(30) as raw:
        value = b"large" * 400_000
        assert raw.command("SET", prefix, value) == "OK"
        assert raw.command("GET", prefix) == value
        keys = ["%s0-%d" % (prefix, index) for index in range(200)]
        assert raw.command("MGET", *keys) == [b"0-%d" % index for index in range(200)]
        assert raw.command("DEL", *keys) == 200
    for raw in raws:
        raw.close()
    for _ in range(50):
        with gateway.raw() as raw:
            assert raw.command("PING") == "PONG"


@pytest.mark.parametrize("idle", ["sleep", "adaptive"])
def test_idle_gateway_uses_next_to_no_cpu(cluster, make_gateway, prefix, idle):
    import time

    gateway = make_gateway(cluster, cores=2, idle=idle)
    with gateway.raw() as raw:
        raw.command("SET", prefix, "v")
        time.sleep(0.5)
        before = gateway.process.cpu_seconds()
        time.sleep(2)
        used = gateway.process.cpu_seconds() - before
    assert used <= 0.06, "%.2f s of CPU in 2 s of idleness" % used
