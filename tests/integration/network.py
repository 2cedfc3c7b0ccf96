"""A network namespace with servers in it, whose packets can be dropped: what a client sees of a host that is gone without a word."""
import os
import shutil
import subprocess
import time

import pytest

from resp import Raw
from servers import SLOWNESS, Process, Target, eventually, free_port


def run(*args, check=True):
    return subprocess.run(args, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=check)


class Network:
    """One namespace and a pair of virtual interfaces to it; addresses from the range that is reserved for tests of networks (RFC 2544)."""

    def __init__(self, directory):
        for program in ("ip", "nft"):
            if not shutil.which(program):
                pytest.skip("no %s (packages iproute2 and nftables; scripts/setup.sh test)" % program)
        self.directory = directory
        self.name = "zg-%d-%x" % (os.getpid(), time.monotonic_ns() & 0xffff)
        self.outside = "zgo%x" % (os.getpid() & 0xffffff)
        self.servers = []
        result = run("ip", "netns", "add", self.name, check=False)
        if result.returncode != 0:
            pytest.skip("network namespaces are not permitted here: " + result.stdout.strip())
        try:
            net = "198.18.%d" % (os.getpid() % 250)
            self.here, self.there = net + ".1", net + ".2"
            result = run("ip", "link", "add", self.outside, "type", "veth", "peer", "name", "inside", "netns", self.name, check=False)
            if result.returncode != 0:
                pytest.skip("virtual interfaces are not permitted here: " + result.stdout.strip())
            run("ip", "address", "add", self.here + "/30", "dev", self.outside)
            run("ip", "link", "set", self.outside, "up")
            self.inside("ip", "address", "add", self.there + "/30", "dev", "inside")
            self.inside("ip", "link", "set", "inside", "up")
            self.inside("ip", "link", "set", "lo", "up")
            self.inside("nft", "add", "table", "inet", "zg")
            for hook in ("input", "output"):
                self.inside("nft", "add", "chain", "inet", "zg", hook, "{ type filter hook %s priority 0; policy accept; }" % hook)
        except BaseException:
            self.close()
            raise

    def inside(self, *args):
        return run("ip", "netns", "exec", self.name, *args)

    def drop(self, port):
        """From now on nothing comes from or gets to that port, and nobody is told."""
        self.inside("nft", "add", "rule", "inet", "zg", "input", "tcp", "dport", str(port), "drop")
        self.inside("nft", "add", "rule", "inet", "zg", "output", "tcp", "sport", str(port), "drop")

    def lift(self):
        for hook in ("input", "output"):
            self.inside("nft", "flush", "chain", "inet", "zg", hook)

    def server(self):
        server = Inside(self)
        self.servers.append(server)
        return server

    def close(self):
        for server in self.servers:
            server.process.stop()
        run("ip", "netns", "del", self.name, check=False)
        run("ip", "link", "del", self.outside, check=False)


class Inside(Target):
    """A standalone redis-server in the namespace."""

    def __init__(self, network):
        self.host = network.there
        self.port = free_port()
        directory = os.path.join(network.directory, "inside-%d" % self.port)
        os.makedirs(directory)
        self.process = Process("redis-%d" % self.port, ["ip", "netns", "exec", network.name, "redis-server", "--port", str(self.port), "--bind", self.host, "--protected-mode", "no",
                                                        "--save", "", "--dir", directory], directory)
        eventually(self.answers_ping, 10, self.process.log)

    def raw(self, timeout=10, protocol=None):
        return Raw(self.address, timeout * SLOWNESS, protocol)
