"""A link between two programs that can be treated badly: cut, half-open, delayed, reset. One port of ours that forwards to another."""
import random, socket, threading, time


def free_port():
    """A port that is free, and that the system gives to no client that connects: its server will be away at times."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as f:
        given_from = int(f.read().split()[0])
    while True:
        port = random.randrange(given_from // 3, given_from)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass


class Proxy:
    """`deaf`: directions (0: to the target, 1: from it) in which bytes are swallowed; `held`: in which they wait; `delay_s`: each waits so long;
    `refuses`: connections are closed at once."""

    def __init__(self, target):
        self.target, self.deaf, self.held, self.delay_s, self.refuses = target, set(), set(), 0.0, False
        self.pairs, self.opened = set(), 0
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            a, _ = self.listener.accept()
            try:
                if self.refuses:
                    raise OSError("refused")
                b = socket.create_connection(("127.0.0.1", self.target), timeout=2)
                b.settimeout(None)
            except OSError:
                a.close()
                continue
            for s in (a, b):
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.opened += 1
            self.pairs.add((a, b))
            for x, y, way in ((a, b, 0), (b, a, 1)):
                threading.Thread(target=self.pump, args=(x, y, way, (a, b)), daemon=True).start()

    def pump(self, x, y, way, pair):
        # Bytes that were swallowed leave a hole in the stream: nothing behind it may come through on this connection, as on a real one.
        broken = False
        try:
            while data := x.recv(65536):
                broken = broken or way in self.deaf
                if self.delay_s:
                    time.sleep(self.delay_s)
                while way in self.held:
                    time.sleep(0.005)
                if not broken:
                    y.sendall(data)
        except OSError:
            pass
        self.close(pair)

    def close(self, pair):
        for s in pair:
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self.pairs.discard(pair)

    def reset(self):
        """Closes all connections; new ones come through."""
        for pair in list(self.pairs):
            self.close(pair)

    def cut(self):
        """Nothing gets through, in either direction, and no side is told."""
        self.deaf, self.refuses = {0, 1}, True

    def mend(self):
        """As in the beginning. Connections that were cut are closed: what they lost cannot come any more."""
        self.deaf, self.held, self.delay_s, self.refuses = set(), set(), 0.0, False
        self.reset()
