"""SIGTERM: what is in flight is answered, then the process ends with exit status 0."""
import math
import os
import signal
import socket
import threading
import time

import pytest

from resp import Closed, Error, Push, Raw, encode, key_slot
from servers import SLOWNESS, free_port

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
    with Raw(("127.0.0.1", first.port)) as raw:
        assert raw.command("PING") == "PONG"


# ---- clients that are told ----

ON = ("CLIENT", "MAINT_NOTIFICATIONS", "ON")


def test_maint_notifications_are_asked_for_in_resp3(gateway_one, prefix):
    with gateway_one.raw() as raw:
        assert raw.command(*ON).startswith("ERR"), "RESP2 has no pushes"
        assert raw.command("CLIENT", "MAINT_NOTIFICATIONS", "OFF") == "OK"
        raw.command("HELLO", "3")
        for kind in ("internal-ip", "internal-fqdn", "external-ip", "external-fqdn", "none", "NONE"):
            assert raw.command(*ON, "moving-endpoint-type", kind) == "OK"
        assert raw.command(*ON) == "OK"
        assert raw.command("CLIENT", "MAINT_NOTIFICATIONS", "OFF") == "OK"
        for bad in (("ON", "moving-endpoint-type"), ("ON", "moving-endpoint-type", "no-such"), ("ON", "other", "none"), ("MAYBE",), ("OFF", "moving-endpoint-type", "none")):
            assert isinstance(raw.command("CLIENT", "MAINT_NOTIFICATIONS", *bad), Error), bad
        assert isinstance(raw.command("CLIENT", "MAINT_NOTIFICATIONS"), Error)
        assert raw.command("SET", prefix, "v") == "OK"


def test_a_place_that_clients_would_not_understand_is_refused(cluster, make_gateway, run_dir, prefix):
    """Clients divide host and port at the colon: an IPv6 address or a unix socket is no place for them; they go on without."""
    path = os.path.join(run_dir, prefix + "m.sock")
    port = free_port()
    make_gateway(cluster, cores=1, listen=["[::1]:%d" % port, "unix:" + path])
    for address in (("::1", port), path):
        with Raw(address, protocol=3) as raw:
            assert "moving-endpoint-type" in raw.command(*ON, "moving-endpoint-type", "internal-ip")
            assert raw.command(*ON, "moving-endpoint-type", "none") == "OK"


@pytest.fixture
def gateway_one(cluster, make_gateway):
    return make_gateway(cluster, cores=1)


def asked(gateway, kind):
    raw = gateway.raw(protocol=3)
    assert raw.command(*ON, "moving-endpoint-type", kind) == "OK"
    return raw


@pytest.mark.parametrize("cores", [1, 2])
def test_who_asked_is_told_and_served_for_the_grace(cluster, make_gateway, prefix, cores):
    gateway = make_gateway(cluster, cores=cores, options={"drain.grace": "%dms" % (1500 * SLOWNESS), "drain.timeout": "%ds" % (20 * SLOWNESS)})
    place, nowhere, off, back, plain = asked(gateway, "internal-ip"), asked(gateway, "none"), asked(gateway, "none"), asked(gateway, "none"), gateway.raw(protocol=3)
    assert off.command("CLIENT", "MAINT_NOTIFICATIONS", "OFF") == "OK"
    back.command("HELLO", "2")  # no pushes for who speaks RESP2 again
    gateway.process.signal(signal.SIGTERM)
    begin = time.monotonic()
    first, second = place.read(), nowhere.read()
    assert isinstance(first, Push) and isinstance(second, Push)
    assert first[0] == b"MOVING" and abs(first[1] - time.time()) < 120
    assert first[2] == math.ceil(1.5 * SLOWNESS) and first[3] == b"127.0.0.1:%d" % gateway.port
    assert second == [b"MOVING", first[1], first[2], None], "one number for all connections of all cores"
    # Who did not ask is not told, and leaves at once.
    for raw in (plain, off, back):
        assert raw.is_closed_by_peer()
    count = 0
    while time.monotonic() - begin < 1 * SLOWNESS:
        assert place.command("SET", prefix, str(count)) == "OK"
        assert nowhere.command("GET", prefix) == b"%d" % count
        count += 1
        time.sleep(0.01)
    # One leaves by itself; the other is left when the grace is over, after its reply.
    place.close()
    with pytest.raises((Closed, BrokenPipeError)):
        while True:
            assert nowhere.command("GET", prefix) == b"%d" % (count - 1)
            time.sleep(0.01)
    assert time.monotonic() - begin >= 1.4 * SLOWNESS
    assert gateway.process.child.wait(10 * SLOWNESS) == 0


def test_the_drain_does_not_wait_for_the_grace_where_all_have_left(cluster, make_gateway):
    gateway = make_gateway(cluster, cores=2, options={"drain.grace": "60s", "drain.timeout": "60s"})
    raw = asked(gateway, "none")
    gateway.process.signal(signal.SIGTERM)
    assert raw.read()[0] == b"MOVING"
    raw.close()
    assert gateway.process.child.wait(10 * SLOWNESS) == 0


def test_nobody_is_told_without_a_grace(cluster, make_gateway):
    gateway = make_gateway(cluster, cores=1, options={"drain.grace": "0"})
    raw = asked(gateway, "none")
    gateway.process.signal(signal.SIGTERM)
    with pytest.raises(Closed):
        raw.read()


def test_announced_address_is_where_clients_are_sent(cluster, make_gateway):
    config = """\
listeners: [{{address: "127.0.0.1:{port}", announce: "gateway.example:7777"}}]
cores: {{data: 1}}
backends: [{{name: main, cluster: ["127.0.0.1:%d"]}}]
""" % cluster.port
    gateway = make_gateway(cluster, config=config)
    raw = asked(gateway, "external-fqdn")
    gateway.process.signal(signal.SIGTERM)
    assert raw.read()[3] == b"gateway.example:7777"
    raw.close()


def test_a_push_comes_between_replies(make_standalone, make_gateway, prefix):
    """Told while its pipeline is in flight: MOVING stands between two replies, none is missing."""
    server = make_standalone()
    gateway = make_gateway(server, cores=2, options={"drain.grace": "60s", "drain.timeout": "60s"})
    value = b"v" * 30000
    raws = [asked(gateway, "none") for _ in range(4)]
    for index, raw in enumerate(raws):
        assert raw.command("SET", prefix, value) == "OK"
    with server.raw() as direct:
        direct.send(encode("DEBUG", "SLEEP", "0.3"))
        time.sleep(0.05)
        for raw in raws:
            raw.send(encode("GET", prefix) * 30 + encode("MGET", prefix, prefix) * 3)
        time.sleep(0.05)
        gateway.process.signal(signal.SIGTERM)
        for raw in raws:
            replies = [raw.read() for _ in range(34)]
            pushes = [reply for reply in replies if isinstance(reply, Push)]
            assert len(pushes) == 1 and pushes[0][0] == b"MOVING"
            assert [reply for reply in replies if not isinstance(reply, Push)] == [value] * 30 + [[value, value]] * 3
            assert raw.command("PING") == "PONG"
            raw.close()
    assert gateway.process.child.wait(10 * SLOWNESS) == 0


# ---- clients that did not ask ----


def stored(cluster, key):
    """What the backend itself holds."""
    return cluster.ask(cluster.slot_owner(key_slot(key)), "GET", key)


def test_the_end_comes_behind_a_reply(cluster, make_gateway, prefix):
    """Between requests a busy client learns that its connection has ended: without asking once more, and so without losing a request."""
    gateway = make_gateway(cluster, cores=2)
    failures = []
    begun = threading.Event()

    def work(number):
        key = "%s%d" % (prefix, number)
        try:
            with gateway.raw() as raw:
                while not begun.is_set():
                    assert raw.command("SET", key, number) == "OK"
                assert raw.is_closed_by_peer(10 * SLOWNESS), "the connection stays open"
        except BaseException as failure:  # noqa: B902
            failures.append(repr(failure))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    begun.set()
    assert gateway.process.stop() == 0
    for thread in threads:
        thread.join()
    assert not failures, failures[:3]


@pytest.mark.parametrize("cores", [1, 2])
def test_a_pipeline_without_end_is_cut_between_two_commands(cluster, make_gateway, prefix, cores):
    """Never without a request in flight: it is no longer read, what was read is answered, in order, and the stream ends, with no reset that could swallow replies."""
    gateway = make_gateway(cluster, cores=cores)
    with gateway.raw(60) as raw:
        key = prefix + "{x}"
        is_over = threading.Event()
        sent = [0]

        def send():
            try:
                while not is_over.is_set():
                    raw.send(b"".join(encode("INCR", key) for _ in range(50)))
                    sent[0] += 50
            except OSError:
                pass

        sender = threading.Thread(target=send)
        sender.start()
        try:
            last = 0
            for _ in range(500):
                last += 1
                assert raw.read() == last
            gateway.process.signal(signal.SIGTERM)
            with pytest.raises(Closed):
                while True:
                    reply = raw.read()
                    last += 1
                    assert reply == last
            assert raw.decoder.at == len(raw.decoder.buffer), "a reply is cut"
        finally:
            is_over.set()
            sender.join()
    assert gateway.process.child.wait(20 * SLOWNESS) == 0
    # What was not answered was not executed either.
    assert int(stored(cluster, key)) == last
    assert last < sent[0]


def test_a_command_that_has_begun_to_arrive_is_the_last(cluster, make_gateway, prefix):
    gateway = make_gateway(cluster, cores=1, options={"drain.timeout": "60s"})
    with gateway.raw() as raw:
        command = encode("SET", prefix, b"x" * 50000)
        raw.send(command[:20000])
        time.sleep(0.1)
        gateway.process.signal(signal.SIGTERM)
        time.sleep(0.5)
        raw.send(command[20000:] + encode("SET", prefix, "too late"))
        assert raw.read() == "OK"
        with pytest.raises(Closed):
            raw.read()
    assert gateway.process.child.wait(10 * SLOWNESS) == 0
    assert stored(cluster, prefix) == b"x" * 50000


def test_a_connection_that_says_nothing_is_left_soon(cluster, make_gateway):
    """Neither idle connections, nor one that never sends a whole command, nor one that does not read its end hold the process beyond the drain time."""
    gateway = make_gateway(cluster, cores=2, options={"drain.timeout": "2s"})
    idle, partial = gateway.raw(), gateway.raw()
    partial.send(b"*2\r\n$3\r\nGET\r\n")
    begin = time.monotonic()
    gateway.process.signal(signal.SIGTERM)
    assert idle.is_closed_by_peer()
    assert time.monotonic() - begin < 1.5 * SLOWNESS
    assert partial.is_closed_by_peer()
    assert gateway.process.child.wait(10 * SLOWNESS) == 0
    idle.close()
    partial.close()


def test_connections_in_the_queue_of_the_listener_are_told(cluster, make_gateway):
    """Connected just before the end: answered, or ended in order, not reset."""
    gateway = make_gateway(cluster, cores=2)
    raws = []
    stopper = threading.Thread(target=gateway.process.stop)
    for index in range(200):
        if index == 100:
            stopper.start()
        try:
            raws.append(gateway.raw())
        except ConnectionRefusedError:
            break
        raws[-1].send(encode("PING"))
    stopper.join()
    answered = 0
    for raw in raws:
        try:
            answered += raw.read() == "PONG"
        except (Closed, ConnectionResetError):
            pass
        raw.close()
    assert answered >= 100
