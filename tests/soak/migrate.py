#!/usr/bin/env python3
"""Moves a large data set out of a real redis-server in each of the ways described in docs/migration.md.

A redis-server gets POSTS rows (hashes of two to four counters) and as many flags (members of sets). Then, each time
into a new server:

    migrate   Redis's own MIGRATE ... COPY REPLACE, 500 keys per command; each server is killed and restarted twice
    import    tidemark import --from; the importer and each server are killed and restarted twice
    follow    tidemark import --from --follow, while a writer changes both kinds; the same kills

After each, tidemark import --only-verify compares every row and flag. Finally, it compares a CSV import of as many rows
by `tidemark import` with `redis-cli --pipe` into the same server.

    tests/soak/migrate.py target/release/tidemark --posts 5000000

Prints a line per way: seconds, keys per second, memory of the servers, kills. The exit code is 1 if anything differs.
Needs Python 3.9, redis-server and redis-cli.
"""
import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

MEMBERS_PER_SET = 20
IDLE_S = 3


class Client:
    """A RESP2 connection without a library."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=120)
        self.file = self.socket.makefile("rb")

    def send(self, commands):
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
        if kind == b"-":
            raise RuntimeError(rest.decode())
        if kind in b"+:":
            return rest
        if kind == b"$":
            length = int(rest)
            return None if length < 0 else self.file.read(length + 2)[:-2]
        return [self.reply() for _ in range(max(int(rest), 0))]

    def call(self, *command):
        self.send([command])
        return self.reply()

    def all(self, commands):
        self.send(commands)
        return [self.reply() for _ in commands]

    def info(self, name):
        for line in self.call("INFO").decode().splitlines():
            if line.startswith(name + ":"):
                return int(line.split(":")[1])
        raise KeyError(name)


def free_port():
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return some.getsockname()[1]


class Server:
    """A server that can be killed and restarted on its data."""

    def __init__(self, name, port, command):
        self.name, self.port, self.command, self.process = name, port, command, None
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while True:
            try:
                if Client(self.port).call("PING") == b"PONG":
                    return
            except (OSError, RuntimeError, ConnectionError):
                pass
            time.sleep(0.2)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def again(self):
        self.kill()
        self.start()

    def resident_mib(self):
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) // 1024 for line in status if line.startswith("VmRSS"))


def fill(redis, posts):
    client = Client(redis.port)
    for start in range(1, posts + 1, 5000):
        commands = []
        for post in range(start, min(start + 5000, posts + 1)):
            row = [b"HSET", b"post:%d" % post, b"like", post % 5000, b"read", post % 70000]
            if post % 3 == 0:
                row += [b"comment", post % 300, b"repost", post % 40]
            commands.append(row)
            if post % MEMBERS_PER_SET == 0:
                viewers = range(post, post + MEMBERS_PER_SET)
                commands.append([b"SADD", b"liked:%d" % post] + [viewer * 7 for viewer in viewers])
        client.all(commands)


def keys(redis):
    client, cursor = Client(redis.port), b"0"
    while True:
        cursor, found = client.call("SCAN", cursor, "COUNT", 5000)
        yield found
        if cursor == b"0":
            return


class Move:
    def __init__(self, args, folder):
        self.args, self.folder, self.failed, self.number = args, folder, False, 0
        port = free_port()
        data = os.path.join(folder, "redis")
        os.mkdir(data)
        command = ["redis-server", "--port", str(port), "--dir", data, "--save", "", "--appendonly", "yes",
                   "--notify-keyspace-events", "K$ghsxe", "--auto-aof-rewrite-percentage", "0"]
        self.redis = Server("redis-server", port, command)
        started = time.time()
        fill(self.redis, args.posts)
        self.total = int(Client(port).call("DBSIZE"))
        print(f"redis-server has {self.total} keys, {args.posts} rows and {args.posts} flags, "
              f"{self.redis.resident_mib()} MiB, after {time.time() - started:.0f} s", flush=True)

    def target(self):
        port, self.number = free_port(), self.number + 1
        data = os.path.join(self.folder, f"tidemark{self.number}")
        command = [self.args.program, "serve", "--port", str(port), "--dir", data, "--admin-port", "0"]
        return Server("tidemark", port, command)

    def importer(self, target, *more):
        command = [self.args.program, "import", "--from", f"redis://127.0.0.1:{self.redis.port}",
                   "--port", str(target.port), "--retry", "300", *more]
        return subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def verify(self, target):
        started = time.time()
        process = self.importer(target, "--only-verify")
        text = process.communicate()[0].decode().strip()
        self.failed |= process.returncode != 0
        print(f"          {text} (exit {process.returncode}, {time.time() - started:.0f} s)", flush=True)

    def say(self, way, started, target, killed):
        seconds = time.time() - started
        client = Client(target.port)
        print(f"{way:<9} {seconds:.1f} s, {self.total / seconds:.0f} keys a second; tidemark "
              f"{target.resident_mib()} MiB resident, {client.info('used_memory_dataset') >> 20} MiB in tables; killed: {killed}",
              flush=True)

    def end(self, target):
        target.kill()
        shutil.rmtree(os.path.join(self.folder, f"tidemark{self.number}"))

    def migrate(self):
        target, started, kills = self.target(), time.time(), []
        # Kill each side twice on the way. SCAN cursors belong to a process, so a kill of the source means starting
        # over.
        due = [(sixth * self.total // 6, server) for sixth, server in
               [(1, self.redis), (2, target), (3, self.redis), (5, target)]] if self.args.kill else []
        while not self.migrate_all(target, due, kills):
            pass
        self.say("migrate", started, target, ", ".join(kills) or "nothing")
        self.verify(target)
        self.end(target)

    def migrate_all(self, target, due, kills):
        """Migrates all keys. Returns False after a kill of the source."""
        source, done, recent = Client(self.redis.port), 0, []
        for found in keys(self.redis):
            recent = (recent + [found])[-400:]
            batches = [found]
            if due and done >= due[0][0]:
                server = due.pop(0)[1]
                server.again()
                kills.append(server.name)
                if server is self.redis:
                    return False
                # fsync = "everysec": a kill may lose the acknowledged writes of the last second, so repeat the recent
                # batches.
                batches = recent
            for batch in batches:
                for at in range(0, len(batch), 500):
                    command = [b"MIGRATE", b"127.0.0.1", target.port, b"", 0, 60000, b"COPY", b"REPLACE", b"KEYS"]
                    source.call(*command, *batch[at:at + 500])
            done += len(found)
        return True

    def kills(self, target, state):
        """Kills and restarts each process. Returns the final importer process."""
        done = []
        process = self.importer(target, *state)
        for who in ["importer", "tidemark", "redis-server"] * 2 if self.args.kill else []:
            time.sleep(self.args.kill_after)
            if process.poll() is not None:
                print(f"          it ended before the kill of the {who}: choose a smaller --kill-after")
                break
            if who == "importer":
                process.kill()
                process.wait()
                process = self.importer(target, *state)
            else:
                (target if who == "tidemark" else self.redis).again()
            done.append(who)
        return process, done

    def copy(self):
        target, started = self.target(), time.time()
        process, killed = self.kills(target, [])
        text = process.communicate()[0].decode().strip()
        self.failed |= process.returncode != 0
        self.say("import", started, target, ", ".join(killed) or "nothing")
        print("          " + text.replace("\n", "\n          "), flush=True)
        self.verify(target)
        self.end(target)

    def write(self, stop, counts):
        """Writes continuously, through kills of redis-server."""
        post = 1
        while not stop.is_set():
            try:
                client = Client(self.redis.port)
                while not stop.is_set():
                    commands = []
                    for _ in range(100):
                        post = (post * 48271) % 2147483647
                        id = post % self.args.posts + 1
                        commands.append(["HINCRBY", f"post:{id}", "like", 1])
                        commands.append(["SADD", f"liked:{id}", post % 1000])
                    client.all(commands)
                    counts[0] += len(commands)
                    time.sleep(0.05)
            except (OSError, RuntimeError, ConnectionError):
                time.sleep(0.5)

    def follow(self):
        target, started = self.target(), time.time()
        stop, counts = threading.Event(), [0]
        writer = threading.Thread(target=self.write, args=(stop, counts))
        writer.start()
        # It ends when the scan is complete and the writer is idle.
        process, killed = self.kills(target, ["--follow", "--until-idle", str(IDLE_S)])
        time.sleep(self.args.follow_s)
        stop.set()
        writer.join()
        stopped = time.time()
        text = process.communicate()[0].decode().strip()
        self.failed |= process.returncode != 0
        self.say("follow", started, target, ", ".join(killed) or "nothing")
        print(f"          {counts[0]} writes meanwhile; it ended {time.time() - stopped:.1f} s after the last", flush=True)
        print("          " + "\n          ".join(text.splitlines()[-6:]), flush=True)
        self.verify(target)
        self.end(target)

    def csv(self):
        target = self.target()
        path = os.path.join(self.folder, "rows.csv")
        with open(path, "w") as out:
            out.write("id,like,repost,comment,read\n")
            for post in range(1, self.args.csv + 1):
                out.write(f"{post},{post % 5000},{post % 40},{post % 300},{post % 70000}\n")
        started = time.time()
        words = [self.args.program, "import", "--port", str(target.port), path]
        done = subprocess.run(words, capture_output=True, text=True)
        self.failed |= done.returncode != 0
        print(f"csv       {self.args.csv} rows in {time.time() - started:.1f} s", flush=True)
        pipe = os.path.join(self.folder, "pipe")
        with open(pipe, "w") as out:
            for post in range(1, self.args.csv + 1):
                out.write(f"CNT.SET post {post} like {post % 5000} repost {post % 40} comment {post % 300} "
                          f"read {post % 70000}\r\n")
        started = time.time()
        with open(pipe) as commands:
            subprocess.run(["redis-cli", "-p", str(target.port), "--pipe"], stdin=commands, capture_output=True)
        print(f"          by redis-cli --pipe in {time.time() - started:.1f} s", flush=True)
        self.end(target)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=os.path.abspath)
    parser.add_argument("--posts", type=int, default=5_000_000)
    parser.add_argument("--csv", type=int, default=1_000_000, help="rows of the CSV file")
    parser.add_argument("--ways", default="migrate,import,follow,csv")
    parser.add_argument("--kill-after", type=float, default=5, help="seconds between kills")
    parser.add_argument("--follow-s", type=float, default=20, help="seconds of writes after the last kill")
    parser.add_argument("--no-kill", dest="kill", action="store_false")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        move = Move(args, folder)
        try:
            ways = {"migrate": move.migrate, "import": move.copy, "follow": move.follow, "csv": move.csv}
            for way in args.ways.split(","):
                ways[way]()
        finally:
            move.redis.kill()
    print("something differs or failed" if move.failed else "all equal")
    return 1 if move.failed else 0


if __name__ == "__main__":
    sys.exit(main())
