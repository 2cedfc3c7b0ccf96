"""The open-loop generator: it keeps to its times whatever the server does, and charges the server with all that was due meanwhile."""
import os
import subprocess
import threading
import time

import pytest

from servers import SLOWNESS, gateway_program

pytestmark = pytest.mark.gateway_only
VALUE = "x" * 64


def open_loop(port, connections, lines, meanwhile=None):
    """(exit status, [figures by name], errors) of one process with these lines on its standard input."""
    program = os.path.join(os.path.dirname(os.path.abspath(gateway_program())), "bench", "open_loop")
    process = subprocess.Popen([program, str(port), str(connections)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    ready = process.stdout.readline()
    helper = threading.Thread(target=meanwhile) if meanwhile and ready else None
    if helper:
        helper.start()
    out, errors = process.communicate("".join(line + "\n" for line in lines), timeout=60 * SLOWNESS)
    if helper:
        helper.join()
    rows = [dict(pair.split("=") for pair in line.split()) for line in out.splitlines()]
    return process.returncode, [{name: float(value) for name, value in row.items()} for row in rows], errors


@pytest.fixture
def server(make_standalone):
    server = make_standalone()
    with server.raw() as raw:
        raw.command("SET", "key:__rand_int__", VALUE)
    return server


@pytest.mark.parametrize("arrivals", ["constant", "poisson"])
def test_every_request_is_sent_at_its_rate_and_answered(server, arrivals):
    status, rows, errors = open_loop(server.port, 20, ["5000 400 %s 7" % arrivals, "1000 300 %s 8" % arrivals])
    assert status == 0, errors
    for row, due in zip(rows, (2000, 300)):
        assert row["answered"] == row["issued"] and row["errors"] == row["refused"] == 0
        # Poisson: its standard deviation is the root; what is counted does not depend on how busy the machine is.
        spread = 1 if arrivals == "constant" else 6 * due**0.5
        assert abs(row["issued"] - due) <= spread, row
        assert 0 < row["p50_ns"] <= row["p90_ns"] <= row["p99_ns"] <= row["p999_ns"] <= row["max_ns"]
    with server.raw() as raw:
        seen = raw.command("INFO", "commandstats").decode().split("cmdstat_get:calls=")[1].split(",")[0]
    # And one a connection for warming up.
    assert int(seen) == 20 + sum(row["answered"] for row in rows)


def test_same_seed_gives_the_same_load(server):
    _, rows, _ = open_loop(server.port, 5, ["2000 200 poisson 42", "2000 200 poisson 42", "2000 200 poisson 43"])
    assert rows[0]["issued"] == rows[1]["issued"]


def test_a_server_that_stands_still_is_charged_with_all_that_was_due(server):
    # It stops for half a second of a run of two. A closed loop would see one slow request a connection, 4 of 2,000.
    def stop():
        time.sleep(0.3)
        with server.raw(30) as raw:
            raw.command("DEBUG", "SLEEP", "0.5")

    status, rows, errors = open_loop(server.port, 4, ["1000 2000 constant 1"], stop)
    assert status == 0, errors
    row = rows[0]
    assert row["answered"] == 2000
    assert row["max_ns"] >= 0.45e9
    # 200 were due in the first fifth of a second of it, and waited 0.3 s and more. A busy machine only adds to that.
    assert row["p99_ns"] >= 0.3e9


def test_errors_are_counted_and_values_are_not_guessed(make_standalone):
    server = make_standalone()
    with server.raw() as raw:
        raw.command("SET", "key:__rand_int__", VALUE)

    def spoil():
        with server.raw() as raw:
            raw.command("LPUSH", "list", "x")
            raw.command("RENAME", "list", "key:__rand_int__")

    status, rows, errors = open_loop(server.port, 3, ["500 1500 constant 1"], spoil)
    assert status == 0, errors
    assert rows[0]["errors"] > 0, rows
    assert rows[0]["answered"] + rows[0]["errors"] == 750
    # No value at all is neither an error nor the value.
    with server.raw() as raw:
        raw.command("DEL", "key:__rand_int__")
    status, _, errors = open_loop(server.port, 3, [])
    assert status == 1 and "open_loop: " in errors


@pytest.mark.parametrize("line", ["", "100", "0 100 constant 1", "100 100 uniform 1", "100 100 constant x", "100 0 constant 1", "10000000 600000 constant 1", "100 100 constant 1 2"])
def test_a_run_that_makes_no_sense_is_refused(standalone, line):
    with standalone.raw() as raw:
        raw.command("SET", "key:__rand_int__", VALUE)
    status, rows, errors = open_loop(standalone.port, 1, [line])
    assert status == 2 and rows == [] and "not a run" in errors


def test_a_connection_that_ends_ends_the_program(server):
    def kill():
        time.sleep(0.1)
        server.process.kill()

    status, rows, errors = open_loop(server.port, 2, ["1000 5000 constant 1"], kill)
    assert status == 1 and rows == [] and "open_loop: " in errors


@pytest.mark.parametrize("arguments", [[], ["1"], ["0", "1"], ["65536", "1"], ["1", "0"], ["1", "10001"], ["1", "1", "1"]])
def test_wrong_arguments_are_explained(arguments):
    program = os.path.join(os.path.dirname(os.path.abspath(gateway_program())), "bench", "open_loop")
    result = subprocess.run([program, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=20 * SLOWNESS)
    assert result.returncode == 2 and result.stderr.startswith("usage: open_loop ")
