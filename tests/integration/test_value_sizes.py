"""Values of 0, 1 and every power of two +-1 up to 64 MiB, binary, come back as they went."""
import hashlib
import random

import pytest

from resp import Error, encode

MAXIMUM = 64 << 20
SIZES = sorted({size for power in range(27) for size in ((1 << power) - 1, 1 << power, (1 << power) + 1) if size <= MAXIMUM})
# One buffer of random bytes; every value is a piece of it that begins elsewhere, so a value of another size or place is seen.
POOL = random.Random(20).randbytes(MAXIMUM + 4096)


def value_of(size):
    start = size * 31 % 4096
    return memoryview(POOL)[start : start + size]


def digest(data):
    return hashlib.blake2b(data, digest_size=16).digest()


@pytest.mark.parametrize("protocol", [2, 3])
def test_sizes_small(gateway, prefix, protocol):
    with gateway.raw(60, protocol) as raw:
        for size in [size for size in SIZES if size <= 1 << 17]:
            key = "%s%d" % (prefix, size)
            assert raw.command("SET", key, bytes(value_of(size))) == "OK", size
            reply = raw.command("GET", key)
            assert len(reply) == size and digest(reply) == digest(value_of(size)), size
            assert raw.command("STRLEN", key) == size
            assert raw.command("DEL", key) == 1


def test_sizes_large(gateway, prefix):
    with gateway.raw(120) as raw:
        for size in [size for size in SIZES if size > 1 << 17]:
            key = "%s%d" % (prefix, size)
            raw.send(b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n" % (len(key), key.encode(), size))
            raw.send(value_of(size))
            raw.send(b"\r\n")
            assert raw.read() == "OK", size
            raw.send(encode("GET", key))
            reply = raw.read_large()
            assert len(reply) == size and digest(reply) == digest(value_of(size)), size
            assert raw.command("DEL", key) == 1


def test_sizes_mixed_in_one_pipeline(gateway, prefix):
    """Large and small values in turn: what goes by another path inside must not overtake."""
    sizes = [10, 1 << 20, 1, 70000, 0, 300000, 5, 16385, 2 << 20, 3]
    with gateway.raw(60) as raw:
        for round_index in range(3):
            commands = []
            for index, size in enumerate(sizes):
                commands.append(("SET", "%s%d" % (prefix, index), bytes(value_of(size))))
                commands.append(("GET", "%s%d" % (prefix, index)))
            replies = raw.pipeline(commands)
            assert replies[0::2] == ["OK"] * len(sizes)
            assert [digest(reply) for reply in replies[1::2]] == [digest(value_of(size)) for size in sizes]
        assert raw.command("DEL", *["%s%d" % (prefix, index) for index in range(len(sizes))]) == len(sizes)


def test_keys_are_binary_safe(gateway, prefix):
    with gateway.raw() as raw:
        for index in range(256):
            key = prefix.encode() + bytes([index]) + b"\r\n\0" + bytes([255 - index])
            assert raw.command("SET", key, bytes([index])) == "OK"
            assert raw.command("GET", key) == bytes([index])


@pytest.mark.gateway_only
def test_value_above_the_maximum_is_refused_and_others_are_served(gateway, prefix):
    with gateway.raw(30) as raw, gateway.raw() as other:
        try:
            raw.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n" % (1 << 32))
            reply = raw.read()
            assert isinstance(reply, Error) and reply.startswith("ERR"), reply
        except (ConnectionResetError, BrokenPipeError):
            pytest.fail("closed without an answer")
        assert other.command("SET", prefix, "1") == "OK"
        assert other.command("GET", prefix) == b"1"
