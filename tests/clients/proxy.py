"""A TCP proxy whose link can be cut, half-open, delayed or reset."""
import random, socket, threading, time


def free_port():
    """Returns a free port outside the range of client ports, because its server is down at times."""
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
    """`deaf`: directions (0: to the target, 1: from it) whose bytes are discarded; `held`: directions whose bytes wait; `delay_s`: delay of all bytes;
    `refuses`: new connections are closed immediately."""

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
        # Discarded bytes leave a gap in the stream, so the connection must deliver nothing after it, as on a real network.
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
        """Closes all connections; new ones work."""
        for pair in list(self.pairs):
            self.close(pair)

    def cut(self):
        """Blocks both directions without closing connections."""
        self.deaf, self.refuses = {0, 1}, True

    def mend(self):
        """Restores the initial state. Closes connections that were cut, because they have lost data."""
        self.deaf, self.held, self.delay_s, self.refuses = set(), set(), 0.0, False
        self.reset()
