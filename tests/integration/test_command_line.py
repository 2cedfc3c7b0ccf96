"""zgateway's own command line: --version, --print-config, --check, and what is wrong with a configuration, named by file, line and key."""
import os
import subprocess

import pytest

from servers import gateway_program

pytestmark = pytest.mark.gateway_only


def run(*args):
    assert os.path.exists(gateway_program()), gateway_program() + " does not exist"
    return subprocess.run([gateway_program()] + list(args), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=20)


def test_version():
    result = run("--version")
    assert result.returncode == 0 and "zgateway" in result.stdout and "0." in result.stdout


def test_print_config_names_every_option_and_is_itself_a_configuration(tmp_path):
    result = run("--print-config")
    assert result.returncode == 0
    for word in ("listeners:", "cores:", "limits:", "clients_per_core", "multishot_recv", "max_value", "64MiB", "500ms"):
        assert word in result.stdout, word


def test_check_accepts_a_right_file(tmp_path):
    path = tmp_path / "right.yaml"
    path.write_text("listeners:\n  - address: 127.0.0.1:6380\nbackends:\n  - {name: main, cluster: [\"127.0.0.1:7000\"]}\n")
    result = run("-c", str(path), "--check")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("text,line,words", [
    ("listeners:\n  - address: 127.0.0.1:6380\nnosuch: 1\n", 3, ["nosuch"]),
    ("cores: {data: 2, idel: spin}\n", 1, ["idel"]),
    ("cores:\n  idle: fast\n", 2, ["idle", "sleep", "adaptive", "spin"]),
    ("cores:\n  data: 1000\n", 2, ["data", "64"]),
    ("limits:\n  arena_bytes_per_core: 5\n", 2, ["arena_bytes_per_core"]),
    ("use_cases:\n  - {name: default, timeout: 500}\n", 2, ["timeout"]),
    ("limits:\n  rx_buffers_per_core: 100\n", 2, ["rx_buffers_per_core"]),
    ("listeners: 5\n", 1, ["listeners"]),
    ("cores: [1\n", 0, []),
], ids=lambda value: None if not isinstance(value, str) else value.split("\n")[-2].strip()[:30])
def test_check_names_file_line_and_key(tmp_path, text, line, words):
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    result = run("-c", str(path), "--check")
    assert result.returncode not in (0, -6, -11)
    message = result.stderr + result.stdout
    assert "wrong.yaml:%d" % line in message if line else "wrong.yaml:" in message, message
    for word in words:
        assert word in message, message


def test_wrong_arguments():
    for args in (["--nosuch"], ["--listen"], ["--data-cores", "x", "--cluster", "127.0.0.1:1"], ["--set", "nosuch.key=1", "--cluster", "127.0.0.1:1"],
                 ["--idle", "fast", "--cluster", "127.0.0.1:1"], ["-c", "/nonexistent/file.yaml"], []):
        result = run(*args)
        assert result.returncode not in (0, -6, -11), args
        assert result.stderr, args
