"""A client that preserves the types of replies: every reply is a pair of its type and its value."""

import re
import socket

TIMEOUT = 10


class Closed(Exception):
    """The server has closed the connection."""


class Client:
    """One connection."""

    def __init__(self, port, protocol):
        self.port, self.protocol = port, protocol
        self.connect()

    def connect(self):
        self.socket = socket.create_connection(("127.0.0.1", self.port), TIMEOUT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.socket.makefile("rb")
        if self.protocol == 3:
            self.ask("HELLO", "3")

    def send(self, *requests):
        packed = []
        for words in requests:
            packed.append(b"*%d\r\n" % len(words))
            for word in words:
                word = word if isinstance(word, bytes) else word.encode("latin-1")
                packed.append(b"$%d\r\n%s\r\n" % (len(word), word))
        try:
            self.socket.sendall(b"".join(packed))
        except OSError:
            pass  # the next read reports it

    def read(self):
        try:
            line = self.file.readline()
        except ConnectionResetError:
            line = b""
        if not line.endswith(b"\r\n"):
            raise Closed
        kind, value = line[:1].decode(), line[1:-2].decode("latin-1")
        if kind in "*~>" and value != "-1":
            return kind, [self.read() for _ in range(int(value))]
        if kind == "%":
            return kind, [(self.read(), self.read()) for _ in range(int(value))]
        if kind in "$=" and value != "-1":
            length = int(value)
            return kind, self.file.read(length + 2)[:length].decode("latin-1")
        return kind, value

    def ask(self, *words):
        self.send(words)
        return self.read()


def parse(line):
    """Splits a line at spaces, except inside quotes."""
    return [quoted if quoted or word == '""' else word for word, quoted in re.findall(r'((?:"([^"]*)"|\S)+)', line)]


def plain(reply):
    """Returns a reply without types, as an application sees it."""
    kind, value = reply
    if kind in "*~>" and isinstance(value, list):
        return [plain(item) for item in value]
    if kind == "%":
        return {plain(key) if not isinstance(key, list) else str(key): plain(item) for key, item in value}
    return None if value == "-1" and kind in "$*" or kind == "_" else int(value) if kind == ":" else value
