"""Clients that do the worst at the worst moment: nobody else notices, and everything they held comes back."""
import random
import threading
import time

import pytest

from fake_backend import bulk
from resp import Closed, Error, encode
from servers import SLOWNESS, eventually, is_at_rest

pytestmark = pytest.mark.gateway_only


def slow_answer(connection, command):
    """GET slow takes its time, all else is answered at once with its last argument."""
    if command[-1] == b"slow":
        time.sleep(0.3)
    return bulk(command[-1])


def read_all(raw):
    replies = []
    try:
        while True:
            replies.append(raw.read())
    except (Closed, ConnectionResetError):
        return replies


def test_one_protocol_error_is_one_reply(make_fake, make_gateway):
    """Replies to what came before it are sent one by one while it waits."""
    gateway = make_gateway([make_fake(slow_answer), make_fake(slow_answer)], cores=1)
    with gateway.raw() as raw:
        raw.send(encode("GET", "a") + encode("GET", "b") + encode("GET", "c") + encode("GET", "slow") + b"*1\r\n+PING\r\n" + encode("GET", "d") * 10)
        replies = read_all(raw)
    assert replies[:4] == [b"a", b"b", b"c", b"slow"]
    assert len(replies) == 5 and isinstance(replies[4], Error), replies
    is_at_rest(gateway)


def test_protocol_error_where_no_request_is_free(make_fake, make_gateway):
    gateway = make_gateway([make_fake(slow_answer)], cores=1, options={"limits.requests_per_core": 1})
    with gateway.raw() as raw:
        raw.send(encode("GET", "slow") + b"*1\r\n+PING\r\n")
        replies = read_all(raw)
    assert replies[0] == b"slow" and len(replies) == 2 and isinstance(replies[1], Error), replies
    is_at_rest(gateway)


@pytest.mark.parametrize("line, options", [
    (b"DEL" + b" a" * 400, {"limits.request_max": "1KiB", "limits.inline_bytes": "512B", "use_cases.max_value": "1KiB"}),
    (b"SET k " + b"x" * 2000, {"use_cases.max_value": "1KiB"}),
], ids=["request_max", "max_value"])
def test_inline_command_that_is_too_large_as_an_array(make_fake, make_gateway, line, options):
    gateway = make_gateway([make_fake(slow_answer)], cores=1, options=options)
    with gateway.raw() as raw:
        raw.send(encode("GET", "a") + line + b"\r\n")
        replies = read_all(raw)
    assert replies[0] == b"a" and len(replies) == 2 and isinstance(replies[1], Error), replies
    is_at_rest(gateway)


def test_split_commands_leave_room_for_other_cores(cluster, make_gateway, prefix):
    """The objects for parts of split commands are shared with what arrives from other cores, which must never find none."""
    gateway = make_gateway(cluster, cores=4, options={"limits.requests_per_core": 16, "cores.lane_slots": 64})
    ends = time.monotonic() + 2
    keys = ["%s%d" % (prefix, index) for index in range(1000)]
    failures = []

    def many_parts():
        with gateway.raw(20) as raw:
            while time.monotonic() < ends:
                for reply in raw.pipeline([["MGET"] + keys] * 4):
                    if isinstance(reply, Error) and not reply.startswith("OVERLOAD") or not isinstance(reply, Error) and reply != [None] * 1000:
                        failures.append(reply)

    def single():
        with gateway.raw(20) as raw:
            while time.monotonic() < ends:
                for reply in raw.pipeline([["GET", key] for key in random.sample(keys, 10)]):
                    if reply is not None and not (isinstance(reply, Error) and reply.startswith("OVERLOAD")):
                        failures.append(reply)

    threads = [threading.Thread(target=target) for target in [many_parts, single] * 8]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[:5]
    is_at_rest(gateway)


def test_split_commands_wait_for_lanes_instead_of_being_refused(cluster, make_gateway, prefix):
    """Far more parts than a lane and those who wait for it have room for: the pipeline is held back."""
    gateway = make_gateway(cluster, cores=4, options={"cores.lane_slots": 64, "limits.credit_waiters_max": 1024})
    keys = ["%s%d" % (prefix, index) for index in range(300)]
    failures = []

    def client():
        with gateway.raw(30) as raw:
            for reply in raw.pipeline([["MGET"] + keys, ["GET", keys[0]]] * 60):
                if isinstance(reply, Error):
                    failures.append(reply)

    threads = [threading.Thread(target=client) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, "%d: %s" % (len(failures), failures[:3])
    is_at_rest(gateway)


@pytest.mark.parametrize("cores", [1, 2])
def test_reply_beyond_the_hard_limit_closes_and_frees(make_fake, make_gateway, cores):
    """The reply that is one too many ends its client from within, and with it the request that it answers."""
    options = {"limits.client_output_hard": "24KiB", "limits.client_output_soft": "4KiB", "limits.reply_max": "20KiB", "use_cases.max_value": "20KiB"}
    held = []

    def answer(connection, command):
        held.append(bulk(b"x" * 9000))
        if command[-1] != b"last":
            return b""
        replies = b"".join(held)
        held.clear()
        return replies

    gateway = make_gateway([make_fake(answer)], cores=cores, options=options)
    for _ in range(10):
        with gateway.raw() as raw:
            raw.send(encode("GET", "key") * 39 + encode("GET", "last"))
            assert len(read_all(raw)) < 40
    is_at_rest(gateway)


def test_replies_out_of_turn_count_against_the_limit(make_fake, make_gateway):
    """Large replies that waited for an older one are no way around the limits."""
    asked = {}
    answered = []
    goes = threading.Event()

    def answer(connection, command):
        asked[command[-1]] = connection.getsockname()[1]
        answered.append(command[-1])
        if command[-1] == b"slow":
            goes.wait(10 * SLOWNESS)
        return bulk(b"x" * 100000)

    options = {"limits.client_output_hard": "1MiB", "limits.client_output_soft": "64KiB", "limits.inline_bytes": "1KiB", "limits.reply_max": "512KiB", "use_cases.max_value": "512KiB"}
    gateway = make_gateway([make_fake(answer) for _ in range(2)], cores=1, options=options)
    draw = random.Random(5)
    names = [b"%x" % draw.getrandbits(128) for _ in range(100)]  # far apart: the hash of the ring keeps like names together
    with gateway.raw() as raw:
        for name in names:
            assert len(raw.command("GET", name)) == 100000
        goes.set()
        raw.command("GET", "slow")
        goes.clear()
    others = [name for name in names if asked[name] != asked[b"slow"]]
    # A new client: nothing is known yet about the size of its replies, which would shorten its pipeline.
    with gateway.raw() as raw:
        answered.clear()
        raw.send(encode("GET", "slow") + b"".join(encode("GET", name) for name in (others * 40)[:200]))
        eventually(lambda: len(answered) == 201, 20, lambda: "only %d were asked" % len(answered))
        time.sleep(0.5 * SLOWNESS)
        goes.set()
        eventually(lambda: gateway.metric("clients") == 1, 5, "beyond the hard limit, and still connected")
    is_at_rest(gateway)


@pytest.mark.parametrize("cores", [1, 2, 4])
def test_quit_ends_the_pipeline(cluster, make_gateway, prefix, cores):
    gateway = make_gateway(cluster, cores=cores)
    with gateway.raw() as raw:
        raw.send(encode("SET", prefix, "1") + encode("QUIT") + encode("SET", prefix, "2") + encode("GET", prefix))
        assert read_all(raw) == ["OK", "OK"]
    with gateway.raw() as raw:
        assert raw.command("GET", prefix) == b"1"


def expected_replies(commands):
    """What a connection answers to a list of (command, reply); CLIENT REPLY as Redis has it."""
    mode, replies = "on", []
    for command, reply in commands:
        if command[:2] == ["CLIENT", "REPLY"]:
            if command[2] == "ON":
                mode = "on"
                replies.append("OK")
            else:
                mode = "off" if command[2] == "OFF" else "skip" if mode != "off" else mode
            continue
        if mode == "on":
            replies.append(reply)
        elif mode == "skip":
            mode = "on"
    return replies


@pytest.mark.parametrize("cores", [1, 2, 4])
def test_modes_change_in_the_middle_of_pipelines(cluster, make_gateway, prefix, cores):
    """HELLO and CLIENT REPLY between commands of every kind: each command has the replies, in the protocol, that its place says."""
    gateway = make_gateway(cluster, cores=cores, options={"cores.lane_slots": 64})
    draw = random.Random(7)
    keys = ["%s%d" % (prefix, index) for index in range(200)]
    with gateway.raw() as raw:
        assert raw.command(*(["MSET"] + [word for key in keys for word in (key, key)])) == "OK"
        assert raw.command("HSET", prefix + "hash", "a", "1") in (0, 1)
    for _ in range(40):
        commands, protocol = [], 2
        for _ in range(150):
            kind = draw.randrange(8)
            key = draw.choice(keys)
            if kind == 0:
                protocol = draw.choice([2, 3])
                commands.append((["HELLO", str(protocol)], "hello"))
            elif kind == 1:
                commands.append((["CLIENT", "REPLY", draw.choice(["ON", "OFF", "SKIP"])], None))
            elif kind == 2:
                commands.append((["HGETALL", prefix + "hash"], {b"a": b"1"} if protocol == 3 else [b"a", b"1"]))
            elif kind == 3:
                some = draw.sample(keys, 20)
                commands.append((["MGET"] + some, [name.encode() for name in some]))
            elif kind == 4:
                commands.append((["PING", key], key.encode()))
            elif kind == 5:
                commands.append((["NOSUCH", key], "unknown"))
            else:
                commands.append((["GET", key], key.encode()))
        commands += [(["CLIENT", "REPLY", "ON"], None), (["ECHO", "end"], b"end")]
        with gateway.raw(20) as raw:
            raw.send(b"".join(encode(*command) for command, _ in commands))
            for index, want in enumerate(expected_replies(commands)):
                reply = raw.read()
                if want == "hello":
                    assert isinstance(reply, (dict, list)), (index, reply)
                elif want == "unknown":
                    assert isinstance(reply, Error) and reply.startswith("ERR unknown command"), (index, reply)
                else:
                    assert reply == want, (index, reply, want)
    is_at_rest(gateway)


def test_clients_that_die_at_any_moment(cluster, make_gateway, prefix):
    gateway = make_gateway(cluster, cores=4, options={"cores.lane_slots": 64})
    with gateway.raw() as raw:
        raw.command("SET", prefix + "large", b"x" * 300000)
    draw = random.Random(11)
    ends = time.monotonic() + 3
    while time.monotonic() < ends:
        raw = gateway.raw()
        data = b"".join(encode(*draw.choice([["GET", prefix + "large"], ["SET", prefix + str(draw.randrange(50)), b"y" * draw.choice([1, 30000])],
                                             ["MGET"] + ["%s%d" % (prefix, index) for index in range(50)], ["PING"]])) for _ in range(draw.randrange(1, 60)))
        raw.send(data[:draw.randrange(1, len(data) + 1)])
        if draw.randrange(2):
            time.sleep(draw.random() * 0.01)
        if draw.randrange(2):
            raw.socket.setsockopt(1, 13, b"\1\0\0\0\0\0\0\0")  # SO_LINGER 0: a reset instead of an orderly end
        raw.close()
    is_at_rest(gateway)
