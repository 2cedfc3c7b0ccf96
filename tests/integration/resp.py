"""A small RESP2/RESP3 client on a raw socket: what the tests need to see every byte that a server sends.

Replies: simple string -> Status (a str), error -> Error (a str, returned, never raised), integer -> int, bulk string -> bytes, null -> None,
array -> list, map -> dict, set -> Set (a list), double -> float, boolean -> bool, verbatim -> bytes, push -> Push (a list).
"""
import binascii
import socket


class Status(str):
    pass


class Error(str):
    pass


class Set(list):
    pass


class Push(list):
    pass


class Closed(Exception):
    """The peer closed the connection."""


def encode(*args):
    """One command as an array of bulk strings."""
    parts = [b"*%d\r\n" % len(args)]
    for arg in args:
        if isinstance(arg, str):
            arg = arg.encode()
        elif isinstance(arg, int):
            arg = b"%d" % arg
        parts.append(b"$%d\r\n" % len(arg))
        parts.append(arg)
        parts.append(b"\r\n")
    return b"".join(parts)


class Decoder:
    """Turns bytes into replies. feed() adds bytes; next() gives a reply, or raises NeedMore and leaves the state as it was."""

    class NeedMore(Exception):
        pass

    def __init__(self):
        self.buffer = bytearray()
        self.at = 0

    def feed(self, data):
        if self.at > 1 << 16:
            del self.buffer[: self.at]
            self.at = 0
        self.buffer += data

    def next(self):
        start = self.at
        try:
            return self._reply()
        except Decoder.NeedMore:
            self.at = start
            raise

    def _line(self):
        end = self.buffer.find(b"\r\n", self.at)
        if end < 0:
            raise Decoder.NeedMore
        line = bytes(self.buffer[self.at : end])
        self.at = end + 2
        return line

    def _bulk(self, length):
        if len(self.buffer) < self.at + length + 2:
            raise Decoder.NeedMore
        data = bytes(memoryview(self.buffer)[self.at : self.at + length])
        assert self.buffer[self.at + length : self.at + length + 2] == b"\r\n", "a bulk string does not end in CRLF"
        self.at += length + 2
        return data

    def _reply(self):
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return Status(rest.decode())
        if kind == b"-":
            return Error(rest.decode(errors="replace"))
        if kind in b":(":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self._bulk(int(rest))
        if kind == b"=":
            return self._bulk(int(rest))[4:]
        if kind == b"!":
            return Error(self._bulk(int(rest)).decode(errors="replace"))
        if kind == b"_":
            return None
        if kind == b"#":
            return rest == b"t"
        if kind == b",":
            return float(rest)
        if kind in (b"*", b"~", b">"):
            if rest == b"-1":
                return None
            items = [self._reply() for _ in range(int(rest))]
            return items if kind == b"*" else Set(items) if kind == b"~" else Push(items)
        if kind == b"%":
            return {_hashable(self._reply()): self._reply() for _ in range(int(rest))}
        if kind == b"|":
            for _ in range(2 * int(rest)):
                self._reply()
            return self._reply()
        raise AssertionError("not a RESP type: %r" % line[:80])


def _hashable(value):
    return tuple(value) if isinstance(value, list) else value


class Raw:
    """A connection. address: (host, port), or the path of a unix socket."""

    def __init__(self, address, timeout=10, protocol=None):
        if isinstance(address, str):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(timeout)
            self.socket.connect(address)
        else:
            self.socket = socket.create_connection(address, timeout)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.decoder = Decoder()
        if protocol is not None:
            reply = self.command("HELLO", str(protocol))
            assert not isinstance(reply, Error), reply

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def send(self, data):
        self.socket.sendall(data)

    def read(self):
        """The next reply. Raises Closed at the end of the stream, socket.timeout where none comes in time."""
        while True:
            try:
                return self.decoder.next()
            except Decoder.NeedMore:
                data = self.socket.recv(1 << 18)
                if not data:
                    raise Closed
                self.decoder.feed(data)

    def read_large(self):
        """A bulk string read without decoding it again for every piece that arrives: for values of megabytes."""
        header = bytearray()
        leftover = bytes(self.decoder.buffer[self.decoder.at :])
        self.decoder = Decoder()
        data = bytearray(leftover)
        while b"\r\n" not in data:
            piece = self.socket.recv(1 << 16)
            if not piece:
                raise Closed
            data += piece
        end = data.index(b"\r\n")
        header = bytes(data[:end])
        if header[:1] != b"$" or header == b"$-1":
            self.decoder.feed(data)
            return self.read()
        length = int(header[1:])
        value = bytearray(length + 2)
        have = min(len(data) - end - 2, length + 2)
        value[:have] = data[end + 2 : end + 2 + have]
        self.decoder.feed(data[end + 2 + have :])
        view = memoryview(value)
        while have < length + 2:
            got = self.socket.recv_into(view[have:])
            if not got:
                raise Closed
            have += got
        assert value[-2:] == b"\r\n"
        return view[:-2]

    def command(self, *args):
        self.send(encode(*args))
        return self.read()

    def pipeline(self, commands):
        self.send(b"".join(encode(*command) for command in commands))
        return [self.read() for _ in commands]

    def is_closed_by_peer(self, timeout=5):
        self.socket.settimeout(timeout)
        try:
            self.read()
        except (Closed, ConnectionResetError, BrokenPipeError):
            return True
        return False


def parse_info(text):
    """INFO's text as a dictionary of strings."""
    if isinstance(text, bytes):
        text = text.decode()
    return dict(line.split(":", 1) for line in text.split("\r\n") if ":" in line and not line.startswith("#"))


def key_slot(key):
    """The slot of a key, hash tags included (the cluster specification)."""
    if isinstance(key, str):
        key = key.encode()
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return binascii.crc_hqx(key, 0) % 16384
