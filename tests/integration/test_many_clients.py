"""A thousand connections that each check their own replies by a nonce: nobody ever gets what is somebody else's."""
import asyncio
import os

import pytest

from resp import Decoder, encode


async def one_client(address, prefix, rounds, depth):
    nonce = os.urandom(8).hex()
    reader, writer = await asyncio.open_connection(*address)
    decoder = Decoder()
    try:
        for round_index in range(rounds):
            commands, expected = [], []
            for index in range(depth):
                mark = "%s-%d-%d" % (nonce, round_index, index)
                key = "%s%s-%d" % (prefix, nonce, index)
                commands += [encode("SET", key, mark), encode("GET", key), encode("ECHO", mark), encode("MGET", key, key + "none", key), encode("DEL", key, key)]
                expected += ["OK", mark.encode(), mark.encode(), [mark.encode(), None, mark.encode()], 1]
            writer.write(b"".join(commands))
            for want in expected:
                while True:
                    try:
                        reply = decoder.next()
                        break
                    except Decoder.NeedMore:
                        data = await reader.read(65536)
                        assert data, "closed by the peer"
                        decoder.feed(data)
                assert reply == want
    finally:
        writer.close()


def run(gateway, prefix, clients, rounds, depth):
    async def everybody():
        await asyncio.gather(*[one_client(gateway.address, prefix, rounds, depth) for _ in range(clients)])

    asyncio.run(asyncio.wait_for(everybody(), 300))


def test_a_thousand_clients(gateway, prefix):
    run(gateway, prefix, 1000, 5, 3)


@pytest.mark.smoke
def test_fifty_clients(gateway, prefix):
    run(gateway, prefix, 50, 5, 5)


@pytest.mark.smoke
def test_clients_that_leave_in_the_middle(gateway, prefix):
    """Connections closed with commands in flight, again and again, beside one that is served all the time."""
    with gateway.raw() as steady:
        for index in range(200):
            raw = gateway.raw()
            raw.send(b"".join(encode("SET", "%s%d" % (prefix, key), "x" * 100) + encode("GET", "%s%d" % (prefix, key)) for key in range(50)))
            if index % 2:
                raw.read()
            raw.close()
            assert steady.command("ECHO", prefix + str(index)) == (prefix + str(index)).encode()
            assert steady.command("SET", prefix + "steady", str(index)) == "OK"
            assert steady.command("GET", prefix + "steady") == str(index).encode()
