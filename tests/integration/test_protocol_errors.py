"""What is no RESP is answered as Redis answers it, then the connection is closed; what came before it is answered first."""
import pytest

from resp import Closed, Error, encode

pytestmark = pytest.mark.smoke

BAD = {
    b"*abc\r\n": "invalid multibulk length",
    b"*99999999999\r\n": "invalid multibulk length",
    b"*1\r\n+PING\r\n": "expected '$', got '+'",
    b"*1\r\n$-5\r\n": "invalid bulk length",
    b"*1\r\n$abc\r\n": "invalid bulk length",
    b"*2\r\n$3\r\nGET\r\n:1\r\n": "expected '$', got ':'",
    b"SET k 'unbalanced\r\n": "unbalanced quotes in request",
    b"x" * 70000: "too big inline request",
    b"*" + b"1" * 70000: "too big mbulk count string",
    b"*1\r\n$" + b"1" * 70000: "too big bulk count string",
}


@pytest.mark.parametrize("data", list(BAD), ids=[value.replace(" ", "-")[:20] + str(index) for index, value in enumerate(BAD.values())])
def test_protocol_error_is_answered_then_closed(gateway, prefix, data):
    with gateway.raw(5) as raw:
        try:
            raw.send(encode("SET", prefix, "v") + encode("GET", prefix) + data)
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert raw.read() == "OK"
        assert raw.read() == b"v"
        reply = raw.read()
        assert isinstance(reply, Error) and reply.startswith("ERR Protocol error: " + BAD[data]), reply
        assert raw.is_closed_by_peer()


def test_empty_commands_are_ignored(gateway):
    with gateway.raw() as raw:
        raw.send(b"\r\n*0\r\n*-1\r\n\r\n" + encode("PING"))
        assert raw.read() == "PONG"


def test_a_cut_command_is_never_executed(gateway, prefix):
    data = encode("SET", prefix, "value")
    for cut in range(1, len(data)):
        raw = gateway.raw()
        raw.send(data[:cut])
        raw.close()
    with gateway.raw() as raw:
        assert raw.command("EXISTS", prefix) == 0


def test_half_closed_connection_gets_its_replies(gateway, prefix):
    """A client that shuts its sending side down still reads what it asked for."""
    import socket

    with gateway.raw() as raw:
        raw.send(b"".join(encode("SET", prefix, str(index)) for index in range(100)) + encode("GET", prefix))
        raw.socket.shutdown(socket.SHUT_WR)
        got = []
        try:
            while True:
                got.append(raw.read())
        except (Closed, ConnectionResetError):
            pass
        # Redis itself drops such a client, often before it has answered everything; what it answers is in order.
        assert got == (["OK"] * 100 + [b"99"])[: len(got)]
