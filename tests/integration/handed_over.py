"""What a service manager does for the gateway, without one: listening sockets that stay open from one process to the next, and the socket that it is told on."""
import fcntl
import os
import socket

from resp import Raw
from servers import SLOWNESS, Process, Target, eventually, free_port, gateway_program


def handing_over(args, sockets, names=None, pid=None, count=None):
    """The command that starts `args` as a service manager would: sockets from descriptor 3 on, and an environment that names the process itself. Also the descriptors that it must inherit."""
    high = [fcntl.fcntl(handed.fileno(), fcntl.F_DUPFD_CLOEXEC, 100) for handed in sockets]
    script = "export LISTEN_PID=%s LISTEN_FDS=%s; " % ("$$" if pid is None else pid, len(sockets) if count is None else count)
    if names:
        script += "export LISTEN_FDNAMES='%s'; " % ":".join(names)
    script += "".join("exec %d<&%d %d<&-; " % (3 + index, fd, fd) for index, fd in enumerate(high))
    return ["bash", "-c", script + 'exec "$@"', "bash"] + args, high


def listen_tcp(host="127.0.0.1", port=0, backlog=4096, dual=False):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if dual else 1)
    listening.bind((host, port or free_port()))
    listening.listen(backlog)
    return listening


def listen_unix(path):
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen(512)
    return listening


class NotifySocket:
    """The end of NOTIFY_SOCKET that a service manager reads."""

    def __init__(self, path):
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(path if not path.startswith("@") else "\0" + path[1:])
        self.socket.settimeout(10 * SLOWNESS)

    def next(self):
        return self.socket.recv(4096).decode().splitlines()

    def close(self):
        self.socket.close()
        if not self.path.startswith("@"):
            os.unlink(self.path)


class HandedOver(Target):
    """A gateway on sockets of ours. listen: addresses as its configuration has them."""

    is_direct = False

    def __init__(self, directory, backend, sockets, listen, cores=2, names=None, pid=None, count=None, options=None, notify=None, extra=(), config=None):
        args = [gateway_program()]
        if config is not None:
            path = os.path.join(directory, "zgateway.yaml")
            os.makedirs(directory, exist_ok=True)
            with open(path, "w") as file:
                file.write(config)
            args += ["-c", path]
        else:
            for address in listen:
                args += ["--listen", address]
            args += ["--servers" if hasattr(backend, "options") else "--cluster", "127.0.0.1:%d" % backend.port]
        args += ["--data-cores", str(cores)]
        for name, value in {"use_cases.timeout": "%ds" % (20 * SLOWNESS), "backends.connect_timeout": "5s", **(options or {})}.items():
            args += ["--set", "%s=%s" % (name, value)]
        env = dict(os.environ)
        if notify:
            env["NOTIFY_SOCKET"] = notify
        command, inherited = handing_over(args + list(extra), sockets, names, pid, count)
        self.process = Process("zgateway", command, directory, env=env, pass_fds=inherited)
        for fd in inherited:
            os.close(fd)

    def wait_ready(self, address):
        def is_ready():
            assert self.process.is_running(), self.process.log()
            try:
                # Each core has its own view, and a connection is on any of them.
                for _ in range(8):
                    with Raw(address, 5 * SLOWNESS) as raw:
                        if raw.command("PING") != "PONG" or b"loading:0" not in raw.command("INFO"):
                            return False
                return True
            except OSError:
                return False
        eventually(is_ready, 15, self.process.log)
        return self

    def stop(self):
        return self.process.stop(20)
