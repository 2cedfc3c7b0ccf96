"""Runs: pipelined commands of one client that share a request (net/request.h). Whatever is not plain divides them: errors, redirects, lost links, time-outs, leaving clients."""
import random
import signal
import time

import pytest

from resp import Error
from servers import SLOWNESS, eventually


@pytest.fixture(params=["one-server", "cluster"])
def run_gateway(request, make_gateway, make_standalone):
    backend = make_standalone() if request.param == "one-server" else request.getfixturevalue("cluster")
    return make_gateway(backend, cores=1)


@pytest.mark.parametrize("protocol", [2, 3])
def test_errors_anywhere_in_a_run_stay_in_their_place(run_gateway, prefix, protocol):
    rng = random.Random(prefix)
    with run_gateway.raw(30) as raw:
        raw.command("HELLO", protocol)
        for index in range(50):
            raw.command("DEL", "%s%d" % (prefix, index))
        raw.command("RPUSH", prefix + "list", "x")
        for _ in range(20):
            commands, expected = [], []
            for index in range(300):
                value = "%d" % rng.randrange(10 ** 9)
                kind = rng.randrange(6)
                if kind == 0:
                    commands.append(["GET", prefix + "list"])
                    expected.append("WRONGTYPE")
                elif kind == 1:
                    commands.append(["EXISTS", prefix + "none"])
                    expected.append(0)
                elif kind == 2:
                    commands.append(["ECHO", value])
                    expected.append(value.encode())
                else:
                    commands.append(["SETRANGE", "%s%d" % (prefix, index % 50), "0", value.zfill(10)])
                    expected.append(10)
            replies = raw.pipeline(commands)
            for reply, want in zip(replies, expected):
                if want == "WRONGTYPE":
                    assert isinstance(reply, Error) and str(reply).startswith(want)
                else:
                    assert reply == want


def test_every_command_of_a_run_is_answered_when_the_backend_hangs(make_standalone, make_gateway, prefix):
    server = make_standalone()
    gateway = make_gateway(server, cores=1, options={"use_cases.timeout": "300ms", "backends.link_stall": "20s"})
    with gateway.raw(30) as raw:
        assert raw.command("SET", prefix, "v") == "OK"
        server.process.signal(signal.SIGSTOP)
        try:
            replies = raw.pipeline([["GET", prefix]] * 200)
        finally:
            server.process.signal(signal.SIGCONT)
        assert all(isinstance(reply, Error) and str(reply).startswith("TIMEOUT") for reply in replies)
        # The late replies reach nobody: what is asked next gets its own.
        for index in range(50):
            assert raw.pipeline([["SET", prefix, str(index)], ["GET", prefix]] * 5) == ["OK", b"%d" % index] * 5
    eventually(lambda: gateway.metric("requests_inflight") == 0, 5, "all requests are freed")


def test_clients_that_leave_in_the_middle_of_a_run_disturb_nobody(run_gateway, prefix):
    with run_gateway.raw(30) as steady:
        assert steady.command("SET", prefix, "x" * 1000) == "OK"
        for round_number in range(30):
            leaving = run_gateway.raw(5)
            leaving.send(b"".join(b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(prefix), prefix.encode()) for _ in range(500)))
            if round_number % 2:
                time.sleep(0.002 * SLOWNESS)
            leaving.close()
            assert steady.pipeline([["APPEND", prefix + "log", "y"], ["STRLEN", prefix + "log"]] * 3) == [
                reply for step in range(1, 4) for reply in (round_number * 3 + step, round_number * 3 + step)]
    eventually(lambda: run_gateway.metric("requests_inflight") == 0, 5, "all requests are freed")


def test_a_backend_that_dies_answers_every_command_of_a_run(make_standalone, make_gateway, prefix):
    server = make_standalone()
    gateway = make_gateway(server, cores=1)
    with gateway.raw(30) as raw:
        assert raw.command("SET", prefix, "v") == "OK"
        server.process.signal(signal.SIGSTOP)
        for index in range(300):
            raw.send(b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(prefix), prefix.encode()) if index % 3 else
                     b"*3\r\n$6\r\nAPPEND\r\n$%d\r\n%s\r\n$1\r\nx\r\n" % (len(prefix) + 1, prefix.encode() + b"a"))
        time.sleep(0.2)
        server.process.signal(signal.SIGKILL)
        replies = [raw.read() for _ in range(300)]
        assert all(isinstance(reply, Error) for reply in replies)
        assert raw.command("PING") == "PONG"
    eventually(lambda: gateway.metric("requests_inflight") == 0, 5, "all requests are freed")
