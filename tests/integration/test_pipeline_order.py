"""A hundred thousand commands in one write: one reply each, in order, whatever core and shard each went to."""
import threading

import pytest

from resp import encode

COUNT = 100_000


def run(raw, commands, expected):
    data = b"".join(commands)
    writer = threading.Thread(target=raw.send, args=(data,))
    writer.start()
    for index, want in enumerate(expected):
        reply = raw.read()
        assert reply == want, "reply %d: %r, not %r" % (index, reply, want)
    writer.join()


def test_mixed_commands(gateway, prefix):
    """SET, GET, INCR, local commands and an error in turn over a thousand keys."""
    commands, expected, counters = [], [], {}
    for index in range(COUNT // 5):
        key = "%s%d" % (prefix, index * 7919 % 1000)
        counter = "%sc%d" % (prefix, index % 97)
        value = b"%d" % index
        counters[counter] = counters.get(counter, 0) + 1
        commands += [encode("SET", key, value), encode("GET", key), encode("INCR", counter), encode("ECHO", value), encode("GET", prefix + "none")]
        expected += ["OK", value, counters[counter], value, None]
    with gateway.raw(120) as raw:
        run(raw, commands, expected)


@pytest.mark.smoke
@pytest.mark.parametrize("protocol", [2, 3])
def test_pipeline_split_commands(gateway, prefix, protocol):
    """MSET, MGET and DEL over slots between single-key commands: a merge must not let a later reply pass."""
    commands, expected = [], []
    for index in range(1000):
        keys = ["%s%d" % (prefix, (index + step) % 50) for step in range(5)]
        values = [b"%d-%d" % (index, step) for step in range(5)]
        commands += [encode("MSET", *[part for pair in zip(keys, values) for part in pair]), encode("GET", keys[2]), encode("MGET", *keys),
                     encode("DEL", *keys), encode("EXISTS", keys[0])]
        expected += ["OK", values[2], values, 5, 0]
    with gateway.raw(60, protocol) as raw:
        run(raw, commands, expected)


@pytest.mark.smoke
def test_pipeline_in_pieces_of_every_size(gateway, prefix):
    """The same commands cut at every byte between two writes."""
    commands = encode("SET", prefix, "0123456789") + encode("APPEND", prefix, "x") + encode("GET", prefix) + b"PING\r\n"
    with gateway.raw(30) as raw:
        for cut in range(1, len(commands)):
            raw.send(commands[:cut])
            # Small enough to be sent at once with TCP_NODELAY, and a reply between the two makes sure that the first part has been read.
            raw.send(commands[cut:])
            assert [raw.read() for _ in range(4)] == ["OK", 11, b"0123456789x", "PONG"], cut


def test_pipeline_one_byte_a_write(gateway, prefix):
    commands = encode("SET", prefix, "v") + encode("GET", prefix)
    with gateway.raw(30) as raw:
        for index in range(len(commands)):
            raw.send(commands[index : index + 1])
        assert [raw.read(), raw.read()] == ["OK", b"v"]


def test_pipeline_inline_commands(gateway, prefix):
    with gateway.raw() as raw:
        raw.send(b"SET %s 'a b'\r\nGET %s\nping\r\n\r\nECHO \"\\x41\\n\"\r\n" % (prefix.encode(), prefix.encode()))
        assert [raw.read() for _ in range(4)] == ["OK", b"a b", "PONG", b"A\n"]
