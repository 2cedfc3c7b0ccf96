"""Moving a slot of a real cluster from one primary to another, step by step or all at once."""
from resp import Error, key_slot


class Migration:
    """One slot on its way. The steps are those of `redis-cli --cluster reshard`."""

    def __init__(self, cluster, slot, target=None):
        self.cluster = cluster
        self.slot = slot
        self.source = cluster.slot_owner(slot)
        self.target = target or next(port for port in cluster.primaries if port != self.source)
        self.source_id = cluster.ask(self.source, "CLUSTER", "MYID").decode()
        self.target_id = cluster.ask(self.target, "CLUSTER", "MYID").decode()

    def begin(self):
        self.cluster.ask(self.target, "CLUSTER", "SETSLOT", self.slot, "IMPORTING", self.source_id)
        self.cluster.ask(self.source, "CLUSTER", "SETSLOT", self.slot, "MIGRATING", self.target_id)

    def move_keys(self, keys):
        for key in keys:
            assert key_slot(key) == self.slot
        reply = self.cluster.ask(self.source, "MIGRATE", "127.0.0.1", self.target, "", "0", "10000", "KEYS", *keys)
        assert not isinstance(reply, Error), reply

    def move_all_keys(self, at_once=10):
        while True:
            keys = self.cluster.ask(self.source, "CLUSTER", "GETKEYSINSLOT", self.slot, at_once)
            if not keys:
                return
            self.cluster.ask(self.source, "MIGRATE", "127.0.0.1", self.target, "", "0", "10000", "KEYS", *keys)

    def end(self):
        """The target first, then the source, then everybody else."""
        for port in [self.target, self.source] + [port for port in self.cluster.primaries if port not in (self.source, self.target)]:
            self.cluster.ask(port, "CLUSTER", "SETSLOT", self.slot, "NODE", self.target_id)

    def run(self):
        self.begin()
        self.move_all_keys()
        self.end()
