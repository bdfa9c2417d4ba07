"""Compares FAILOVER with that of redis-server, from the view of a client. Both servers run the same steps, with links that are cut at certain points.
The transcripts must be equal, line by line.

    handover.py --server PATH_TO_TIDEMARK
"""
import argparse, threading, time

import redis

from nodes import Node, scratch, until
from proxy import Proxy


class Play:
    def __init__(self, server, folder):
        self.lines, self.nodes = [], [Node(server, folder, n, timeout_s=30) for n in range(2)]
        self.master, self.replica = self.nodes
        self.port = str(self.replica.proxy.port)
        # The replica reaches its master through this link; others reach the replica through its own proxy.
        self.link = Proxy(self.master.port)

    def say(self, node, *words):
        try:
            answer = node.client().execute_command(*words)
        except redis.RedisError as error:
            answer = f"{type(error).__name__} {error}"
        name = "master" if node is self.master else "replica"
        asked = " ".join(words).replace(f"127.0.0.1 {self.port}", "127.0.0.1 PORT")
        self.lines.append(f"{name}: {asked} -> {answer}")

    def state(self, what):
        info = [n.info() for n in (self.master, self.replica)]
        self.lines.append(f"{what}: {info[0].get('role')}, {info[0].get('master_failover_state')}; {info[1].get('role')}, {info[1].get('master_failover_state')}")

    def until_state(self, state):
        until(state, lambda: self.master.info().get("master_failover_state") == state)

    def write(self):
        return self.ask("HINCRBY", self.key, "like", 1)

    def ask(self, *words):
        """Sends a request to the master, which has received it when this returns. Returns a function that waits for the outcome."""
        client = self.master.client(timeout_s=60)
        connection = client.connection_pool.get_connection()
        connection.send_command("CLIENT", "ID")
        number = connection.read_response()
        connection.send_command(*words)
        # Three more round trips, so that the master has read the request.
        for _ in range(3):
            self.master.client().ping()
        box, done = [], threading.Event()

        def run():
            try:
                box.append(connection.read_response())
            except redis.RedisError as error:
                box.append(f"{type(error).__name__} {error}")
            # Otherwise the pool would close the connection.
            client.connection_pool.disconnect()
            box.append(time.monotonic())
            done.set()

        threading.Thread(target=run, daemon=True).start()

        def became(what=None, seconds=20, since=None):
            """`what`: label in the transcript. `since`: (a time, seconds); the reply may not come earlier than that many seconds after the time."""
            done.wait(seconds)
            outcome = box[0] if done.is_set() else "no answer"
            if what:
                self.lines.append(f"{what}: {outcome}")
            if since:
                began, waits = since
                # The server's clock has milliseconds.
                assert not done.is_set() or box[1] - began > waits - 0.01, f"{what}: reply {box[1] - began:.3f} s after FAILOVER"
            return outcome

        became.client = number
        return became

    def attached(self):
        """Waits until the replica has everything and the master counts it as connected. A replica reports its link as up before that."""
        def is_attached():
            said, end = self.master.info(), self.replica.info().get("slave_repl_offset")
            fed = said.get("slave0", {})
            return self.replica.is_up() and fed.get("state") == "online" and fed["offset"] == said["master_repl_offset"] == end

        until("the replica has all writes", is_attached)

    def without_replicas(self):
        for words in ["", "ABORT", "ABORT ABORT", "NOW", "TO", "TO h", "TO h x", "TO h 1", "TO h 1 TO h 1", "TIMEOUT", "TIMEOUT 0", "TIMEOUT -1", "TIMEOUT x",
                      "TIMEOUT 1 TIMEOUT 1", "FORCE", "FORCE FORCE", "FORCE TIMEOUT 1", "TO h 1 FORCE", "TO h 1 TIMEOUT 5 FORCE", "TO h 99999999999999999999"]:
            self.say(self.master, "FAILOVER", *words.split())
        self.state("alone")

    def with_a_replica(self):
        for words in ["FORCE", "FORCE TIMEOUT 5", "TO h 1", "TO 127.0.0.1 1 TIMEOUT 5", "TO 127.0.0.1 1 FORCE TIMEOUT 5", f"TO 127.0.0.1 {self.port} FORCE", "ABORT"]:
            self.say(self.master, "FAILOVER", *words.split())
        for words in ["", "ABORT", "TIMEOUT 5", "FORCE"]:
            self.say(self.replica, "FAILOVER", *words.split())
        self.say(self.replica, "WAIT", "1", "1")
        self.state("with a replica")
        for reason in [[], ["TIMEOUT"], ["ERROR"]]:
            waits = self.ask("WAIT", "2", "0")
            answers = [self.master.client().execute_command("CLIENT", "UNBLOCK", waits.client, *reason) for _ in range(2)]
            # The number of replicas varies: redis-server asks the replica by a log record, which the replica may not have acknowledged yet.
            outcome = waits()
            self.lines.append(f"CLIENT UNBLOCK {reason}, twice: {answers}; {'a number' if isinstance(outcome, int) else outcome}")

    def waits(self):
        """Holds back the replies of the replica, so that the master does not know whether it has everything."""
        self.link.held = {0}
        self.write()("before")

    def hears_again(self):
        self.link.held = set()
        self.attached()

    def orders(self):
        """No other command may change the role."""
        for words in [f"REPLICAOF 127.0.0.1 {self.port}", "SLAVEOF NO ONE", "REPLICAOF h x"]:
            self.say(self.master, *words.split())
        self.state("ordered")

    def aborted_while_waiting(self):
        self.waits()
        self.say(self.master, "FAILOVER", "TO", "127.0.0.1", self.port, "TIMEOUT", "600000")
        self.state("waiting")
        self.say(self.master, "FAILOVER")
        self.say(self.master, "FAILOVER", "TO", "h", "1")
        self.say(self.master, "FAILOVER", "NOW")
        self.orders()
        became = self.write()
        became("a write meanwhile", 0.5)
        self.say(self.master, "CLIENT", "PAUSE", "1", "WRITE")
        self.say(self.master, "CLIENT", "UNPAUSE")
        became("the write: that is not CLIENT's to end", 0.5)
        self.say(self.master, "HGET", self.key, "like")
        self.say(self.replica, "FAILOVER", "ABORT")
        self.say(self.master, "FAILOVER", "ABORT")
        became("the write, aborted")
        self.state("aborted")
        self.say(self.master, "FAILOVER", "ABORT")
        self.hears_again()

    def too_late(self):
        self.waits()
        began = time.monotonic()
        self.say(self.master, "FAILOVER", "TIMEOUT", "700")
        self.write()("a write, when the time is over", since=(began, 0.7))
        self.until_state("no-failover")
        self.state("too late")
        self.hears_again()

    def aborted_while_handing_over(self):
        """The replica has everything eventually, but cannot be reached."""
        self.waits()
        self.replica.proxy.cut()
        self.say(self.master, "FAILOVER", "TO", "127.0.0.1", self.port)
        self.state("waiting")
        waiting = [self.write(), self.write()]
        waiting[0]("a write meanwhile", 0.5)
        self.link.held = set()
        self.until_state("failover-in-progress")
        self.state("handing over")
        waiting[0]("the write meanwhile", 0.5)
        self.write()("a write to a replica")
        self.say(self.master, "FAILOVER")
        self.orders()
        self.say(self.master, "FAILOVER", "ABORT")
        outcomes = sorted(str(became()) for became in waiting)
        self.lines.append(f"the writes that waited: {outcomes}")
        self.state("aborted")
        self.write()("a write, aborted")
        self.replica.proxy.mend()
        self.attached()

    def handed_over(self):
        became, is_begun, is_enough = [], threading.Event(), threading.Event()

        def many():
            while not is_enough.is_set():
                became.append(self.write())
                is_begun.set()
            # These writes arrive at about the same time as the command.
            became.extend(self.write() for _ in range(5))

        waits = self.ask("WAIT", "2", "0")
        writers = threading.Thread(target=many)
        writers.start()
        is_begun.wait()
        self.say(self.master, "FAILOVER", "TO", "127.0.0.1", self.port, "TIMEOUT", "60000")
        is_enough.set()
        writers.join()
        until("the old master is a connected replica", self.master.is_up)
        self.state("handed over")
        waits("the client that waited for two replicas")
        self.write()("a write to the old master")
        # Which of them arrived before the pause varies.
        outcomes = [outcome() for outcome in became]
        others = {outcome for outcome in outcomes if not isinstance(outcome, int)}
        self.lines.append(f"other answers: {others or 'none'}")
        written = sum(isinstance(outcome, int) for outcome in outcomes)
        assert written > 0, "no write was before the failover"
        self.lines.append(f"acknowledged and not written, or otherwise: {int(self.value(self.replica)) - written}")
        self.master, self.replica = self.replica, self.master
        self.port = str(self.replica.proxy.port)
        # It is available immediately when the log of the new master begins.
        self.master.client().hincrby("post:1", "like", 1)
        self.attached()

    def forced(self):
        """The replica lacks data and takes over anyway. Since the previous step, it follows through its master's proxy."""
        self.master.proxy.deaf = {1}
        self.write()("a write that the replica does not get")
        began = time.monotonic()
        self.say(self.master, "FAILOVER", "TO", "127.0.0.1", self.port, "FORCE", "TIMEOUT", "500")
        self.write()("a write, when the time is over", since=(began, 0.5))
        until("the old master is a connected replica", self.master.is_up)
        self.master.proxy.mend()
        self.state("forced")
        self.lines.append(f"it is gone from both: {[self.value(n) for n in self.nodes]}")

    def value(self, node):
        return node.client().hget(self.key, "like") or 0

    def run(self):
        try:
            self.master.start()
            until("the master is up", lambda: self.master.client().ping())
            self.without_replicas()
            self.replica.start(self.link.port)
            self.attached()
            self.with_a_replica()
            for part in [self.aborted_while_waiting, self.too_late, self.aborted_while_handing_over, self.handed_over, self.forced]:
                self.lines.append(f"-- {part.__name__}")
                self.key = f"post:{len(self.lines)}"
                part()
        finally:
            for node in self.nodes:
                node.end()
        return self.lines


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    args = parser.parse_args()
    transcripts = []
    for server in [None, args.server]:
        with scratch(f"handover-{'redis' if server is None else 'tidemark'}-") as folder:
            transcripts.append(Play(server, folder).run())
    theirs, ours = transcripts
    differ = [f"redis-server  {a}\n  tidemark      {b}" for a, b in zip(theirs, ours) if a != b]
    print("\n".join(theirs))
    assert theirs == ours, "\n  ".join(["these lines differ:", *differ])


main()
