#!/usr/bin/env python3
"""Soak test of memory: the process must release the memory that its clients made it use.

Starts a server and, for MINUTES, runs all kinds of clients that make a server hold memory: pipelines of pages
and likes, requests with many arguments, MONITOR, slow readers of large replies, subscribers that do not read,
client-side caches, open transactions, scans, connections that come and go. Then all of them disconnect. After a
quiet minute, the process may have at most LIMIT MiB resident beyond `used_memory_dataset`.

    tests/soak/memory.py target/release/tidemark --minutes 25

Prints one line per minute (resident, accounted, requests) and the result; the exit code is 1 above the limit.
Needs only Python 3.9.
"""
import argparse
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time

POSTS = 3_000_000
VIEWERS = 100_000


class Client:
    """A RESP2 connection without a library, so that it can read late, partially, or never."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.file = self.socket.makefile("rb")

    def send(self, *commands):
        out = bytearray()
        for command in commands:
            out += b"*%d\r\n" % len(command)
            for part in command:
                part = part if isinstance(part, bytes) else str(part).encode()
                out += b"$%d\r\n%s\r\n" % (len(part), part)
        self.socket.sendall(out)

    def reply(self):
        line = self.file.readline()
        if not line:
            raise ConnectionError("closed")
        kind, rest = line[:1], line[1:-2]
        if kind in b"+-:":
            return rest
        if kind == b"$":
            length = int(rest)
            if length < 0:
                return None
            return self.file.read(length + 2)[:-2]
        return [self.reply() for _ in range(max(int(rest), 0))]

    def call(self, *command):
        self.send(command)
        return self.reply()

    def close(self):
        self.file.close()
        self.socket.close()


class Soak:
    def __init__(self, port):
        self.port = port
        self.stop = threading.Event()
        self.requests = 0
        self.unexpected = []

    def ids(self, count):
        # Most requests go to the newest tenth, as in a feed.
        low = POSTS * 9 // 10 if random.random() < 0.9 else 0
        return [random.randrange(low, POSTS) for _ in range(count)]

    def pages(self, client):
        viewer = random.randrange(VIEWERS)
        batch = [["FEED.GET", "home", viewer, *self.ids(20)] for _ in range(32)]
        batch += [["FEED.ACT", "like", viewer, *self.ids(4)] for _ in range(8)]
        client.send(*batch)
        for command in batch:
            reply = client.reply()
            if len(reply) != (20 if command[0] == "FEED.GET" else 4):
                raise AssertionError(f"{command[0]} answers {reply!r:.200}")
        self.requests += len(batch)
        # The mix matters, not the rate; other work may run on the machine.
        time.sleep(0.05)

    def large_requests(self, client):
        client.call("FEED.GET", "home", 7, *self.ids(4_000))
        client.send(*(["HGETALL", f"post:{id}"] for id in self.ids(20_000)))
        for _ in range(20_000):
            client.reply()
        self.requests += 20_001
        time.sleep(2)

    def slow_reader(self, client):
        client.send(*(["FEED.GET", "home", 7, *self.ids(500)] for _ in range(200)))
        time.sleep(random.uniform(1, 5))
        if random.random() < 0.5:
            for _ in range(200):
                client.reply()
        else:
            client.close()

    def monitor(self, client):
        client.call("MONITOR")
        until = time.time() + random.uniform(1, 20)
        while time.time() < until and not self.stop.is_set():
            time.sleep(0.5)
            client.socket.recv(1 << 20)
        client.close()

    def subscriber(self, client):
        client.send(*(["SUBSCRIBE", f"room:{random.random()}"] for _ in range(2_000)), ["SUBSCRIBE", "news"])
        other = Client(self.port)
        for _ in range(200):
            other.call("PUBLISH", "news", b"x" * 10_000)
        other.close()
        time.sleep(2)
        client.close()

    def cache(self, client):
        time.sleep(0.05)
        client.call("CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "post:", "REDIRECT", client.call("CLIENT", "ID"))
        client.close()

    def transaction(self, client):
        client.call("MULTI")
        client.send(*(["HINCRBY", f"post:{id}", "like", 1] for id in self.ids(5_000)))
        for _ in range(5_000):
            client.reply()
        if random.random() < 0.5:
            client.call("EXEC")
        else:
            client.close()
        self.requests += 5_000
        time.sleep(0.5)

    def scan(self, client):
        cursor = b"0"
        for _ in range(200):
            cursor, _keys = client.call("SCAN", cursor, "COUNT", 1_000)
            if cursor == b"0":
                break
        time.sleep(1)

    def storm(self, _client):
        clients = [Client(self.port) for _ in range(300)]
        for client in clients:
            client.call("PING")
            client.send(["HGETALL", "post:1"] + ["x" * 1_000])
        for client in clients:
            client.close()
        time.sleep(2)

    def run(self, kind):
        client = None
        while not self.stop.is_set():
            try:
                if client is None or client.socket.fileno() < 0:
                    client = Client(self.port)
                kind(client)
            except (OSError, ConnectionError, ValueError):
                # The server closes slow readers at their limit, which is expected.
                if client is not None:
                    client.close()
                client = None
            except Exception as error:  # an unexpected reply is a defect
                self.unexpected.append(f"{kind.__name__}: {error!r}")
                client = None
        if client is not None:
            client.close()


def resident(pid):
    with open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    return 0


def accounted(port):
    client = Client(port)
    text = client.call("INFO", "memory").decode()
    client.close()
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return int(fields["used_memory_dataset"]) / 2**20


def load(port):
    client = Client(port)
    for first in range(0, POSTS, 10_000):
        client.send(*(["HSET", f"post:{id}", "like", id % 100, "read", id % 1_000] for id in range(first, first + 10_000)))
        for _ in range(10_000):
            client.reply()
    client.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tidemark")
    parser.add_argument("--minutes", type=float, default=25)
    parser.add_argument("--port", type=int, default=26399)
    parser.add_argument("--limit", type=float, default=30, help="MiB resident beyond what is accounted (30)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidemark-soak-") as folder:
        server = subprocess.Popen(
            [args.tidemark, "serve", "--dir", folder, "--port", str(args.port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            return soak(args, server)
        finally:
            server.terminate()
            server.wait(60)


def soak(args, server):
    for _ in range(100):
        try:
            Client(args.port).close()
            break
        except OSError:
            time.sleep(0.1)
    load(args.port)
    run = Soak(args.port)
    kinds = [run.pages, run.pages, run.large_requests, run.slow_reader, run.slow_reader, run.monitor, run.subscriber]
    kinds += [run.cache, run.transaction, run.scan, run.storm]
    print(f"start: resident {resident(server.pid):.0f} MiB, accounted {accounted(args.port):.0f} MiB", flush=True)
    threads = [threading.Thread(target=run.run, args=(kind,), daemon=True) for kind in kinds]
    for thread in threads:
        thread.start()
    ends = time.time() + args.minutes * 60
    while time.time() < ends:
        time.sleep(min(60, max(ends - time.time(), 0)))
        print(f"resident {resident(server.pid):.0f} MiB, accounted {accounted(args.port):.0f} MiB, {run.requests} requests", flush=True)
    run.stop.set()
    for thread in threads:
        thread.join(90)
    time.sleep(60)
    has, says = resident(server.pid), accounted(args.port)
    for line in sorted(set(run.unexpected)):
        print("unexpected:", line)
    over = has - says > args.limit or run.unexpected or server.poll() is not None
    print(f"after a quiet minute: resident {has:.0f} MiB, accounted {says:.0f} MiB, {has - says:.0f} MiB beyond it: {'OVER' if over else 'ok'}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
