"""IPv4, IPv6 and unix sockets, several listeners at once, and how each presents itself."""
import os

import pytest

from resp import Error, Raw
from servers import Process, free_port, gateway_program

pytestmark = pytest.mark.gateway_only


def check(address, prefix):
    with Raw(address) as raw:
        assert raw.command("SET", prefix, "v") == "OK"
        assert raw.command("GET", prefix) == b"v"
        info = raw.command("CLIENT", "INFO").decode()
        assert "addr=" in info
        return info


@pytest.mark.parametrize("cores", [1, 2])
def test_unix_socket(cluster, make_gateway, run_dir, prefix, cores):
    path = os.path.join(run_dir, prefix + ".sock")
    gateway = make_gateway(cluster, cores=cores, listen=["unix:" + path])
    for _ in range(20):
        check(path, prefix)
    check(gateway.address, prefix)
    gateway.stop()
    assert not os.path.exists(path), "the socket's file is left behind"


def test_unix_socket_file_of_a_dead_process_is_replaced(cluster, make_gateway, run_dir, prefix):
    import socket

    path = os.path.join(run_dir, prefix + ".sock")
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(path)
    make_gateway(cluster, cores=2, listen=["unix:" + path])
    check(path, prefix)


def test_ipv6(cluster, make_gateway, prefix):
    port = free_port()
    make_gateway(cluster, cores=2, listen=["[::1]:%d" % port])
    info = check(("::1", port), prefix)
    assert "addr=[::1]:" in info, info


def test_peer_address_is_each_clients_own(gateway_two, prefix):
    """Accepting many at once must not show one client's address for all."""
    raws = [gateway_two.raw() for _ in range(50)]
    for raw in raws:
        port = raw.socket.getsockname()[1]
        assert "addr=127.0.0.1:%d " % port in raw.command("CLIENT", "INFO").decode()
    for raw in raws:
        raw.close()


@pytest.fixture
def gateway_two(cluster, make_gateway):
    return make_gateway(cluster, cores=2)


CONFIG = """\
listeners:
  - address: 127.0.0.1:{port}
    announce: 127.0.0.1:{port}
cores: {{data: 2, idle: adaptive}}
limits: {{pipeline_per_client: 1000}}
backends:
  - {{name: main, cluster: ["127.0.0.1:FIRST"]}}
use_cases:
  - {{name: default, backend: main, timeout: 10s, max_value: 64MiB}}
"""


def test_configuration_file(cluster, make_gateway, prefix):
    gateway = make_gateway(cluster, config=CONFIG.replace("FIRST", str(cluster.port)))
    check(gateway.address, prefix)


def test_standalone_presentation_of_a_cluster(cluster, make_gateway, prefix):
    config = CONFIG.replace("FIRST", str(cluster.port)).replace("    announce: 127.0.0.1:{port}\n", "    present: standalone\n")
    gateway = make_gateway(cluster, config=config)
    with gateway.raw() as raw:
        assert raw.command("SET", prefix, "v") == "OK"
        assert b"cluster_enabled:0" in raw.command("INFO")
        assert isinstance(raw.command("CLUSTER", "SLOTS"), Error)


def test_announce_is_what_clients_are_told(cluster, make_gateway):
    config = CONFIG.replace("FIRST", str(cluster.port)).replace("announce: 127.0.0.1:{port}", "announce: gateway.example:7777")
    gateway = make_gateway(cluster, config=config)
    with gateway.raw() as raw:
        assert {tuple(entry[2][:2]) for entry in raw.command("CLUSTER", "SLOTS")} == {(b"gateway.example", 7777)}


def test_a_taken_port_is_a_clear_error(cluster, standalone, run_dir, prefix):
    if not os.path.exists(gateway_program()):
        pytest.fail(gateway_program() + " does not exist")
    process = Process("taken", [gateway_program(), "--listen", "127.0.0.1:%d" % standalone.port, "--cluster", cluster.addresses()], os.path.join(run_dir, "taken" + prefix))
    try:
        assert process.child.wait(20) not in (0, -6, -11)
        assert str(standalone.port) in process.log()
    finally:
        if process.is_running():
            process.kill()
