"""kill -9 of a primary: the gateway serves its slots within a second of the moment at which a direct client could."""
import os
import signal
import threading
import time

import pytest

from resp import Error, Raw, key_slot
from servers import SLOWNESS, eventually

pytestmark = pytest.mark.gateway_only

ROUNDS = 20 if os.environ.get("ZG_FULL") == "1" else 2


class Trier(threading.Thread):
    """Writes until it is done, over and over, each time to the next of some addresses; keeps when it first was."""

    def __init__(self, addresses, key):
        super().__init__(daemon=True)
        self.addresses = addresses
        self.key = key
        self.done = None
        self.replies = {}
        self.ends = threading.Event()
        self.start()

    def run(self):
        raws = {}
        while not self.ends.is_set() and self.done is None:
            for address in self.addresses:
                try:
                    if address not in raws:
                        raws[address] = Raw(address, 2 * SLOWNESS)
                    reply = raws[address].command("SET", self.key, "v")
                except Exception:  # the node that is dead
                    raws.pop(address, None)
                    continue
                if reply == "OK":
                    self.done = time.monotonic()
                    break
                word = reply.split(" ")[0] if isinstance(reply, Error) else reply
                self.replies[word] = self.replies.get(word, 0) + 1
            time.sleep(0.002)
        for raw in raws.values():
            raw.close()


def key_of(cluster, port, prefix):
    ranges = [(entry[0], entry[1]) for entry in cluster.ask(port, "CLUSTER", "SLOTS") if entry[2][1] == port]
    return next(key for key in ("%s%d" % (prefix, index) for index in range(10000)) if any(first <= key_slot(key) <= last for first, last in ranges))


def is_primary(cluster, port):
    try:
        return cluster.ask(port, "ROLE")[0] == b"master"
    except (OSError, Exception):
        return False


@pytest.mark.parametrize("cores", [1, 2] if os.environ.get("ZG_FULL") == "1" else [2])
def test_service_is_back_within_a_second_of_the_clusters_own(own_cluster, make_gateway, prefix, cores):
    gateway = make_gateway(own_cluster, cores=cores, options={"use_cases.timeout": "%dms" % (500 * SLOWNESS), "backends.link_stall": "2s", "backends.connect_timeout": "500ms"})
    later = []
    for index in range(ROUNDS):
        victim = [port for port in own_cluster.ports if is_primary(own_cluster, port)][index % 3]
        key = key_of(own_cluster, victim, prefix)
        with gateway.raw() as raw:
            eventually(lambda: raw.command("SET", key, "v") == "OK", 10)
        own_cluster.signal(victim, signal.SIGKILL)
        direct = Trier([("127.0.0.1", port) for port in own_cluster.ports if port != victim], key)
        through = Trier([gateway.address], key)
        try:
            eventually(lambda: direct.done and through.done, 40, lambda: "direct %s, through the gateway %s" % (direct.replies, through.replies))
        finally:
            direct.ends.set()
            through.ends.set()
        later.append(through.done - direct.done)
        print("round %d: %.0f ms after a direct client; errors %s" % (index, later[-1] * 1000, through.replies))
        assert set(through.replies) <= {"CLUSTERDOWN", "TIMEOUT", "MOVED", "READONLY"}
        own_cluster.restart(victim)
        eventually(own_cluster.is_ok, 30, "the cluster is whole")
        eventually(lambda: own_cluster.ask(victim, "ROLE")[0] == b"slave" and own_cluster.ask(victim, "ROLE")[3] == b"connected", 30, "a replica again")
    assert max(later) < 1.0 * SLOWNESS, later
