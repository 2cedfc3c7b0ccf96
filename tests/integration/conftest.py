"""Fixtures. Environment:

ZG_GATEWAY   the program under test; default build/zgateway
ZG_CORES     data-core counts that `gateway` runs with; default 1,2,4
ZG_DIRECT    1: `gateway` is a plain redis-server, to see that a test tells the truth about Redis; tests of the gateway alone are skipped
ZG_SLOWNESS  multiplies every time-out; for sanitizer builds
ZG_SEED      order of the tests; default random, printed
"""
import os
import random
import shutil
import sys
import tempfile
import time

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from fake_backend import FakeBackend  # noqa: E402
from servers import Cluster, Gateway, Standalone, gateway_program  # noqa: E402

DIRECT = os.environ.get("ZG_DIRECT") == "1"
CORES = [int(text) for text in os.environ.get("ZG_CORES", "1,2,4").split(",")]
SEED = int(os.environ.get("ZG_SEED") or random.SystemRandom().randrange(1 << 32))
_running = []  # everything that has a log to show


def pytest_configure(config):
    config.addinivalue_line("markers", "smoke: short enough to run under a sanitizer, and wide enough to be worth it")
    config.addinivalue_line("markers", "gateway_only: says nothing about a plain server")
    config.addinivalue_line("markers", "full: long; only with test.sh --full (ZG_FULL=1)")


def pytest_report_header(config):
    return "zgateway: %s, order seed ZG_SEED=%d" % ("direct" if DIRECT else gateway_program() + ", cores " + str(CORES), SEED)


def pytest_collection_modifyitems(items):
    """A random order of files (and of core counts within them) and of the tests within each, so that no test leans on another. Files stay together:
    their gateway is started once a core count."""
    shuffled = random.Random(SEED)
    groups = {}
    for item in sorted(items, key=lambda item: item.nodeid):
        params = getattr(item, "callspec", None)
        groups.setdefault((item.fspath.strpath, str(params.params.get("gateway")) if params else ""), []).append(item)
    order = sorted(groups)
    shuffled.shuffle(order)
    items[:] = []
    for name in order:
        shuffled.shuffle(groups[name])
        items.extend(groups[name])
    for item in items:
        if item.get_closest_marker("gateway_only") and DIRECT:
            item.add_marker(pytest.mark.skip(reason="direct"))
        if item.get_closest_marker("full") and os.environ.get("ZG_FULL") != "1":
            item.add_marker(pytest.mark.skip(reason="only with --full"))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        for server in _running:
            process = getattr(server, "process", None)
            if process is not None and os.path.exists(process.log_path):
                report.sections.append(("log of " + process.name, process.log(4096)))


@pytest.fixture(scope="session")
def run_dir():
    path = tempfile.mkdtemp(prefix="zgateway-test-")
    yield path
    shutil.rmtree(path, ignore_errors=True)


class _Names:
    count = 0

    @classmethod
    def next(cls, kind):
        cls.count += 1
        return "%s-%d" % (kind, cls.count)


@pytest.fixture(scope="session")
def cluster(run_dir):
    """Three primaries and three replicas, shared: tests use keys of their own and change nothing about the cluster."""
    server = Cluster(os.path.join(run_dir, "cluster"))
    yield server
    server.stop()


@pytest.fixture
def own_cluster(run_dir):
    """A cluster that the test may harm."""
    server = Cluster(os.path.join(run_dir, _Names.next("cluster")))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def standalone(run_dir):
    server = Standalone(os.path.join(run_dir, "standalone"))
    _running.append(server)
    yield server
    _running.remove(server)
    server.stop()


@pytest.fixture
def make_standalone(run_dir):
    """Starts standalone servers that the test may harm."""
    made = []

    def make(**options):
        server = Standalone(os.path.join(run_dir, _Names.next("standalone")), **options)
        made.append(server)
        _running.append(server)
        return server

    yield make
    for server in made:
        _running.remove(server)
        server.stop()


@pytest.fixture(scope="module", params=["direct"] if DIRECT else CORES, ids=lambda value: value if DIRECT else "%d-cores" % value)
def gateway(request, run_dir):
    """The gateway in front of the shared cluster, once for each number of data cores; with ZG_DIRECT a plain server."""
    if DIRECT:
        yield request.getfixturevalue("standalone")
        return
    server = Gateway(os.path.join(run_dir, _Names.next("gateway")), request.getfixturevalue("cluster"), cores=request.param)
    _running.append(server)
    yield server
    _running.remove(server)
    server.stop()


@pytest.fixture
def make_fake():
    """Starts backends that a test plays: make_fake(answer, greeting=b"..."). See fake_backend.FakeBackend."""
    made = []

    def make(answer, **options):
        made.append(FakeBackend(answer, **options))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


@pytest.fixture
def make_gateway(run_dir):
    """Starts gateways with options of the test's own: make_gateway(backend, cores=2, options={"limits.x": 1}, ...). See servers.Gateway."""
    if DIRECT:
        pytest.skip("direct")
    made = []

    def make(backend, **options):
        server = Gateway(os.path.join(run_dir, _Names.next("gateway")), backend, **options)
        made.append(server)
        _running.append(server)
        return server

    yield make
    failures = []
    for server in made:
        _running.remove(server)
        try:
            server.stop()
        except AssertionError as failure:
            failures.append(str(failure))
    assert not failures, "\n".join(failures)


@pytest.fixture
def prefix():
    """A beginning for the test's keys that no other test has. Keys of one prefix spread over all slots."""
    _Names.count += 1
    return "t%d-%x-" % (_Names.count, time.monotonic_ns())
