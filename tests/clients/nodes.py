"""A server process: Tidemark, or redis-server for comparison. Others reach it through its proxy, whose link can be cut."""
import contextlib, os, shutil, signal, subprocess, sys, tempfile, time

import redis

from proxy import Proxy, free_port


class Node:
    def __init__(self, server, folder, number, timeout_s=60):
        """`server`: path of Tidemark, None for redis-server. `timeout_s`: replication timeout."""
        self.server, self.number, self.timeout_s = server, number, timeout_s
        self.folder = os.path.join(folder, f"node{number}")
        os.mkdir(self.folder)
        self.port = free_port()
        self.proxy = Proxy(self.port)
        self.process = None

    @property
    def address(self):
        """Port through which others reach the node."""
        return self.proxy.port

    def start(self, follows=None):
        """`follows`: port of its master. Used only at the first start."""
        conf = os.path.join(self.folder, "conf")
        if not os.path.exists(conf):
            with open(conf, "w") as f:
                f.write(self.redis_config(follows) if self.server is None else self.config(follows))
        command = ["redis-server", conf] if self.server is None else [self.server, "serve", "--config", conf]
        with open(os.path.join(self.folder, "log"), "a") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def redis_config(self, follows):
        lines = [f"port {self.port}", "bind 127.0.0.1", f"dir {self.folder}", "save ''", "appendonly yes", f"repl-timeout {self.timeout_s}",
                 "replica-announce-ip 127.0.0.1", f"replica-announce-port {self.proxy.port}", "repl-diskless-sync-delay 0"]
        return "\n".join(lines + ([f"replicaof 127.0.0.1 {follows}"] if follows else [])) + "\n"

    def config(self, follows):
        lines = ["[server]", f"port = {self.port}", "workers = 1", "[durability]", f'dir = "{self.folder}/data"', "[replication]",
                 f"timeout = {self.timeout_s}", 'replica_announce_ip = "127.0.0.1"', f"replica_announce_port = {self.proxy.port}"]
        return "\n".join(lines + ([f'replicaof = "127.0.0.1 {follows}"'] if follows else [])) + "\n"

    def client(self, timeout_s=3):
        return redis.Redis(port=self.port, socket_timeout=timeout_s, decode_responses=True)

    def info(self):
        try:
            return self.client().info("replication")
        except redis.RedisError:
            return {}

    def is_up(self):
        """Whether the node is a replica with all data of its master and a live link."""
        return self.info().get("master_link_status") == "up"

    def end(self):
        if self.process:
            # The process may be stopped.
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()


def start_sentinels(folder, masters, ports=None, down_after_ms=1000, failover_timeout_ms=10000):
    """Starts three stock Sentinels with a quorum of two. `masters`: ports by name. Returns the ports and processes of the Sentinels."""
    ports, processes = ports or [free_port() for _ in range(3)], []
    for number, port in enumerate(ports):
        conf = os.path.join(folder, f"sentinel{number}.conf")
        with open(conf, "w") as f:
            f.write(f"port {port}\nbind 127.0.0.1\ndir {folder}\n")
            for name, master in masters.items():
                f.write(f"sentinel monitor {name} 127.0.0.1 {master} 2\nsentinel down-after-milliseconds {name} {down_after_ms}\n"
                        f"sentinel failover-timeout {name} {failover_timeout_ms}\n")
        with open(conf + ".log", "w") as log:
            processes.append(subprocess.Popen(["redis-sentinel", conf], stdout=log, stderr=log))
    return ports, processes


@contextlib.contextmanager
def scratch(prefix, keep=False):
    """A temporary folder, deleted after success unless `keep` is set."""
    folder = tempfile.mkdtemp(prefix=prefix)
    try:
        yield folder
    except BaseException:
        keep = True
        raise
    finally:
        if keep:
            print(f"kept: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def freeze(process):
    """Stops a process (SIGSTOP) and waits until all of its threads are stopped."""
    process.send_signal(signal.SIGSTOP)
    tasks = f"/proc/{process.pid}/task"
    state = lambda task: open(f"{tasks}/{task}/stat").read().rsplit(")", 1)[1].split()[0]
    until("the process is stopped", lambda: all(state(task) == "T" for task in os.listdir(tasks)))


def until(what, done, seconds=90):
    """Waits until done() returns a true value, and returns it."""
    end = time.time() + seconds
    while time.time() < end:
        try:
            if result := done():
                return result
        except redis.RedisError:
            pass
        time.sleep(0.02)
    raise SystemExit(f"timed out after {seconds} s: {what}")
