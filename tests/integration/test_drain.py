"""SIGTERM: what is in flight is answered, then the process ends with exit status 0."""
import signal
import threading
import time

import pytest

from resp import Closed, encode
from servers import SLOWNESS

pytestmark = pytest.mark.gateway_only


@pytest.mark.parametrize("cores", [1, 2, 4])
def test_idle_gateway_ends_at_once(cluster, make_gateway, cores):
    gateway = make_gateway(cluster, cores=cores)
    raws = [gateway.raw() for _ in range(20)]
    start = time.monotonic()
    assert gateway.process.stop() == 0
    assert time.monotonic() - start < 2 * SLOWNESS
    for raw in raws:
        assert raw.is_closed_by_peer()


@pytest.mark.parametrize("cores", [1, 2])
def test_requests_in_flight_are_answered(make_standalone, make_gateway, prefix, cores):
    server = make_standalone()
    gateway = make_gateway(server, cores=cores)
    raws = [gateway.raw() for _ in range(10)]
    for raw in raws:
        assert raw.command("SET", prefix, "v") == "OK"
    with server.raw() as direct:
        direct.send(encode("DEBUG", "SLEEP", "0.7"))
        time.sleep(0.1)
        for raw in raws:
            raw.send(encode("GET", prefix) * 20)
        time.sleep(0.2)
        gateway.process.signal(signal.SIGTERM)
        for raw in raws:
            assert [raw.read() for _ in range(20)] == [b"v"] * 20
            assert raw.is_closed_by_peer()
    assert gateway.process.child.wait(5 * SLOWNESS) == 0


def test_new_connections_are_not_accepted_while_draining(make_standalone, make_gateway, prefix):
    server = make_standalone()
    gateway = make_gateway(server, cores=2)
    with gateway.raw() as raw, server.raw() as direct:
        raw.command("PING")
        direct.send(encode("DEBUG", "SLEEP", "1"))
        time.sleep(0.1)
        raw.send(encode("GET", prefix))
        time.sleep(0.1)
        gateway.process.signal(signal.SIGTERM)
        time.sleep(0.3)
        refused = False
        try:
            with gateway.raw(0.5) as late:
                refused = late.is_closed_by_peer(0.5)
        except OSError:
            refused = True
        assert refused
        assert raw.read() is None


def test_a_backend_that_hangs_does_not_hold_the_end_up(make_standalone, make_gateway, prefix):
    server = make_standalone()
    gateway = make_gateway(server, cores=2, options={"drain.timeout": "500ms"})
    with gateway.raw() as raw:
        raw.command("SET", prefix, "v")
        server.process.signal(signal.SIGSTOP)
        raw.send(encode("GET", prefix))
        time.sleep(0.1)
        start = time.monotonic()
        assert gateway.process.stop() == 0
        assert time.monotonic() - start < 4 * SLOWNESS
    server.process.signal(signal.SIGCONT)


def test_drain_under_load(cluster, make_gateway, prefix):
    """No reply is wrong or cut; a connection ends between two replies."""
    gateway = make_gateway(cluster, cores=2)
    failures = []

    def work(number):
        try:
            with gateway.raw() as raw:
                index = 0
                while True:
                    index += 1
                    value = b"%d-%d" % (number, index)
                    key = "%s%d" % (prefix, number)
                    replies = []
                    try:
                        raw.send(encode("SET", key, value) + encode("GET", key))
                        replies.append(raw.read())
                        replies.append(raw.read())
                    except (Closed, ConnectionResetError, BrokenPipeError):
                        assert replies in ([], ["OK"]), replies
                        assert len(raw.decoder.buffer) == raw.decoder.at, "a cut reply"
                        return
                    assert replies == ["OK", value], replies
        except BaseException as failure:  # noqa: B902
            failures.append(repr(failure))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    assert gateway.process.stop() == 0
    for thread in threads:
        thread.join()
    assert not failures, failures[:3]


def test_sigint_ends_it_too(cluster, make_gateway):
    gateway = make_gateway(cluster, cores=1)
    gateway.process.signal(signal.SIGINT)
    assert gateway.process.child.wait(5 * SLOWNESS) == 0


def test_restart_on_the_same_port_at_once(cluster, make_gateway, prefix):
    """The listener of the old process stays bound for some milliseconds: the new one tries again."""
    first = make_gateway(cluster, cores=2)
    first.process.stop()
    second = make_gateway(cluster, cores=2, wait=False, listen=["127.0.0.1:%d" % first.port])
    second.wait_ready()
    from resp import Raw
    with Raw(("127.0.0.1", first.port)) as raw:
        assert raw.command("PING") == "PONG"
