"""MGET, MSET, DEL, UNLINK, EXISTS and TOUCH over slots: the answers of a single server, duplicates included."""
import random

import pytest

from resp import Error, key_slot

pytestmark = pytest.mark.smoke


@pytest.fixture
def raw(gateway):
    with gateway.raw(20) as raw:
        yield raw


def test_mset_and_mget_in_order(raw, prefix):
    keys = ["%s%d" % (prefix, index) for index in range(300)]
    assert len({key_slot(key) for key in keys}) > 200
    assert raw.command("MSET", *[part for key in keys for part in (key, "v" + key)]) == "OK"
    shuffled = keys[:]
    random.Random(1).shuffle(shuffled)
    assert raw.command("MGET", *shuffled) == [b"v" + key.encode() for key in shuffled]


def test_mget_of_missing_keys_and_of_other_types(raw, prefix):
    raw.command("HSET", prefix + "h", "f", "v")
    raw.command("SET", prefix + "s", "v")
    assert raw.command("MGET", prefix + "h", prefix + "none", prefix + "s") == [None, None, b"v"]


def test_mget_with_duplicates(raw, prefix):
    raw.command("MSET", prefix + "a", "1", prefix + "b", "2")
    assert raw.command("MGET", prefix + "a", prefix + "b", prefix + "a", prefix + "a") == [b"1", b"2", b"1", b"1"]


def test_mset_with_duplicates_keeps_the_last(raw, prefix):
    assert raw.command("MSET", prefix + "a", "1", prefix + "b", "2", prefix + "a", "3") == "OK"
    assert raw.command("MGET", prefix + "a", prefix + "b") == [b"3", b"2"]


def test_exists_counts_duplicates(raw, prefix):
    raw.command("MSET", prefix + "a", "1", prefix + "b", "2")
    assert raw.command("EXISTS", prefix + "a", prefix + "a", prefix + "b", prefix + "c") == 3


@pytest.mark.parametrize("command", ["DEL", "UNLINK"])
def test_delete_counts_a_duplicate_once(raw, prefix, command):
    raw.command("MSET", prefix + "a", "1", prefix + "b", "2")
    assert raw.command(command, prefix + "a", prefix + "b", prefix + "a", prefix + "c") == 2
    assert raw.command("EXISTS", prefix + "a", prefix + "b") == 0


def test_touch(raw, prefix):
    raw.command("MSET", prefix + "a", "1", prefix + "b", "2")
    assert raw.command("TOUCH", prefix + "a", prefix + "b", prefix + "c") == 2


def test_mset_with_an_odd_number_of_arguments(raw, prefix):
    reply = raw.command("MSET", prefix + "a", "1", prefix + "b")
    assert isinstance(reply, Error) and reply.startswith("ERR wrong number of arguments for")
    assert raw.command("EXISTS", prefix + "a") == 0


@pytest.mark.parametrize("command", ["MGET", "DEL", "EXISTS", "TOUCH", "UNLINK", "MSET"])
def test_no_keys_is_a_wrong_number_of_arguments(raw, command):
    reply = raw.command(command)
    assert isinstance(reply, Error) and reply.startswith("ERR wrong number of arguments for '%s' command" % command.lower())


def test_many_keys_with_large_values(raw, prefix):
    keys = ["%s%d" % (prefix, index) for index in range(40)]
    values = [bytes([65 + index % 26]) * (50_000 + index) for index in range(40)]
    assert raw.command("MSET", *[part for pair in zip(keys, values) for part in pair]) == "OK"
    assert raw.command("MGET", *keys) == values
    assert raw.command("UNLINK", *keys) == 40


def test_ten_thousand_keys(raw, prefix):
    keys = ["%s%d" % (prefix, index) for index in range(10_000)]
    assert raw.command("MSET", *[part for key in keys for part in (key, key)]) == "OK"
    assert raw.command("MGET", *keys) == [key.encode() for key in keys]
    assert raw.command("EXISTS", *keys) == 10_000
    assert raw.command("DEL", *keys) == 10_000


@pytest.mark.gateway_only
def test_commands_that_cannot_be_split_answer_crossslot(raw, prefix):
    for command in (("MSETNX", prefix + "1", "a", prefix + "2", "b"), ("SINTER", prefix + "1", prefix + "2"), ("RENAME", prefix + "1", prefix + "2"),
                    ("SUNIONSTORE", prefix + "1", prefix + "2", prefix + "3"), ("ZUNION", "2", prefix + "1", prefix + "2")):
        reply = raw.command(*command)
        assert isinstance(reply, Error) and reply.startswith("CROSSSLOT "), (command, reply)
    assert raw.command("PING") == "PONG"
