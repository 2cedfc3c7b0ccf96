"""A server that speaks just enough RESP for the gateway to start, and whatever a test wants after that."""
import socket
import threading
import time

from resp import Decoder, encode


class FakeBackend:
    """Listens on a port of its own. `answer(connection, command)` is called for each command, a list of bytes, on the connection's own thread; it
    returns the bytes to send (b"" for none), or None to close. `greeting` is sent at once to each connection, which then is closed. hello: the answer to HELLO; None: the
    connection is closed. command_delay: seconds before the answer (an error) to COMMAND. answers_checks: the gateway's checks of health go to `answer` too;
    otherwise they are always answered well."""

    def __init__(self, answer, greeting=b"", hello=b"%1\r\n$5\r\nproto\r\n:3\r\n", command_delay=0, answers_checks=False):
        self.answer = answer
        self.greeting = greeting
        self.hello = hello
        self.command_delay = command_delay
        self.answers_checks = answers_checks
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self.listener.getsockname()[1]
        self.accepted = 0
        self.connections = set()
        self.lock = threading.Lock()
        self.is_closed = False
        self.thread = threading.Thread(target=self._accept, daemon=True)
        self.thread.start()

    def _accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            with self.lock:
                self.accepted += 1
                self.connections.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        decoder = Decoder()
        try:
            if self.greeting:
                connection.sendall(self.greeting)
                return
            while True:
                try:
                    command = decoder.next()
                except Decoder.NeedMore:
                    data = connection.recv(1 << 18)
                    if not data:
                        return
                    decoder.feed(data)
                    continue
                name = command[0].upper()
                if name == b"COMMAND":
                    time.sleep(self.command_delay)
                    reply = b"-ERR unknown command\r\n"
                elif name == b"HELLO":
                    reply = self.hello
                elif name == b"EXISTS" and command[1].endswith(b"zgateway-health") and not self.answers_checks:
                    reply = b":0\r\n"
                else:
                    reply = self.answer(connection, command)
                if reply is None:
                    return
                if reply:
                    connection.sendall(reply)
        except OSError:
            pass
        finally:
            with self.lock:
                self.connections.discard(connection)
            connection.close()

    def close_connections(self):
        with self.lock:
            connections = list(self.connections)
        for connection in connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        self.listener.close()
        self.close_connections()


def bulk(data):
    return b"$%d\r\n%s\r\n" % (len(data), data)


__all__ = ["FakeBackend", "bulk", "encode"]
