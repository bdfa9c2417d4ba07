"""The workers' model: bounds of each post's counters and members, from the writes sent and those acknowledged by WAIT.

    acknowledged by WAIT 2             counts in both bounds; the state of the member is certain
    replied, but not acknowledged      a failover may lose it: counts in the upper bound; the member is in doubt
    error reply                        no effect, unless the error says that the change is in memory: then like the second
    no reply                           like the second

WAIT requires all replicas: during a planned failover of Sentinel, the old master briefly continues with the replica that was not chosen.

Only one worker writes a post, so a master's values of it must be within the bounds. A post's `repost` and `comment` change only together, by
MULTI: a page where they differ shows half a change.
"""
import random, time

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

# Number of a worker's newest posts that get new likes. Older ones are only read and are soon on disk.
HOT = 2_000
# Distance of ids, as in a service with some hundred posts per second.
FIRST, STEP = 1 << 52, 4096
MEMBERS = 1 << 31
GROUP = "soak"
REPLICAS = 2
# Result of a change: 1 applied, 0 not applied.
IN_DOUBT = 2
IN_MEMORY = "The change is in memory"


class Post:
    __slots__ = ("read", "both", "members")

    def __init__(self):
        self.read, self.both = [0, 0], [0, 0]
        # By member: 1 liked, 0 not liked, 2 unknown.
        self.members = {}

    def likes(self):
        sure = sum(state == 1 for state in self.members.values())
        return sure, sure + sum(state == 2 for state in self.members.values())

    def wrong(self, row):
        """Returns what is impossible in a row of FEED.GET: like, repost, comment, read, ..."""
        like, repost, comment, read = row[:4]
        low, high = self.likes()
        if not low <= like <= high:
            return f"like {like}, not {low} to {high}"
        if repost != comment:
            return f"half a change: repost {repost}, comment {comment}"
        for name, value, (low, high) in (("repost", repost, self.both), ("read", read, self.read)):
            if not low <= value <= high:
                return f"{name} {value}, not {low} to {high}"
        return None


class Worker:
    """Writes and reads the posts number, number + workers, ... Runs in a process of its own; its posts are kept between runs of a soak
    test."""

    def __init__(self, number, workers, sentinel_ports, seed):
        self.number, self.workers, self.random = number, workers, random.Random(seed)
        self.posts, self.counts = [], {"requests": 0, "acknowledged": 0, "in doubt": 0, "refused": 0, "checks": 0, "pages": 0}
        self.sentinel = Sentinel([("127.0.0.1", port) for port in sentinel_ports], socket_timeout=2, decode_responses=True)
        # No retries: they would count an increment twice.
        self.master = self.sentinel.master_for(GROUP, socket_timeout=2, retry=Retry(NoBackoff(), 0))

    def id(self, at):
        return FIRST + (at * self.workers + self.number) * STEP

    def some(self):
        """Returns a post, most often a new one."""
        newest = len(self.posts) - 1
        if self.random.random() < 0.1:
            return self.random.randrange(len(self.posts))
        return max(0, newest - int(self.random.paretovariate(0.7)) % HOT)

    def step(self):
        """Sends a pipeline of changes with WAIT at its end."""
        if not self.posts or self.random.random() < 0.3:
            self.posts.append(Post())
        plan = []
        for _ in range(self.random.randrange(1, 20)):
            at = self.some()
            post = self.posts[at]
            what = self.random.random()
            if what < 0.5:
                plan.append(("like", at, self.random.randrange(MEMBERS)))
            elif what < 0.65 and post.members:
                plan.append((self.random.choice(["unlike", "like"]), at, self.random.choice(list(post.members)[-50:])))
            elif what < 0.85:
                plan.append(("read", at, self.random.randrange(1, 100)))
            else:
                plan.append(("both", at, self.random.randrange(1, 10)))
        # Only one change per post and kind, so that its result is known.
        plan = list({(what if what in ("read", "both") else member, at): (what, at, member) for what, at, member in plan}.values())
        try:
            replies = self.send(plan)
        except (redis.RedisError, OSError):
            replies = None
            time.sleep(0.05)
        self.note(plan, replies)

    def send(self, plan):
        with self.master.pipeline(transaction=False) as pipe:
            for what, at, value in plan:
                key = f"post:{self.id(at)}"
                if what == "read":
                    pipe.hincrby(key, "read", value)
                elif what == "both":
                    pipe.execute_command("MULTI").hincrby(key, "repost", value).hincrby(key, "comment", value).execute_command("EXEC")
                else:
                    pipe.execute_command("FEED.ACT" if what == "like" else "FEED.UNDO", "like", value, self.id(at))
            pipe.execute_command("WAIT", REPLICAS, 500)
            replies = pipe.execute(raise_on_error=False)
        taken, each = [], iter(replies)
        for what, _, _ in plan:
            reply = [next(each) for _ in range(4)][-1] if what == "both" else next(each)
            # FEED.ACT replies per id.
            error = next((r for r in ([reply] + list(reply if isinstance(reply, list) else [])) if isinstance(r, Exception)), None)
            taken.append(1 if error is None else IN_DOUBT if IN_MEMORY in str(error) else 0)
        return taken, next(each)

    def note(self, plan, replies):
        self.counts["requests"] += len(plan)
        taken, waited = replies or ([IN_DOUBT] * len(plan), 0)
        has_all = isinstance(waited, int) and waited >= REPLICAS
        for (what, at, value), is_taken in zip(plan, taken):
            post, sure = self.posts[at], has_all and is_taken == 1
            if is_taken and what in ("read", "both"):
                bounds = post.read if what == "read" else post.both
                bounds[0] += value if sure else 0
                bounds[1] += value
            elif is_taken:
                post.members[value] = int(what == "like") if sure else 2
            self.counts["acknowledged" if sure else "in doubt" if is_taken else "refused"] += 1

    def page(self):
        """Reads a page of own posts. Returns its duration and its errors."""
        at = sorted({self.some() for _ in range(20)})
        began = time.time()
        rows = self.master.execute_command("FEED.GET", "home", 7, *[self.id(a) for a in at])
        self.counts["pages"] += 1
        return time.time() - began, [f"post {self.id(a)}: {why}" for a, row in zip(at, rows) if (why := self.posts[a].wrong(row))]

    def check(self, which, node=None, draw=False):
        """Returns the errors of posts on a node or on the master, including members. `draw`: no request is in progress, so the values found
        become certain."""
        node, wrong = node or self.master, []
        for some in (which[i:i + 100] for i in range(0, len(which), 100)):
            rows = node.execute_command("FEED.GET", "home", 7, *[self.id(at) for at in some])
            with node.pipeline(transaction=False) as pipe:
                for at in some:
                    pipe.smembers(f"liked:{self.id(at)}")
                sets = pipe.execute()
            for at, row, members in zip(some, rows, sets):
                post, members = self.posts[at], {int(m) for m in members}
                why = post.wrong(row)
                if not why and row[0] != len(members):
                    why = f"like {row[0]}, members {len(members)}"
                sure = {m for m, state in post.members.items() if state == 1}
                never = members - {m for m, state in post.members.items() if state > 0}
                if not why and (sure - members or never):
                    why = f"{len(sure - members)} members are missing, {len(never)} never liked"
                self.counts["checks"] += 1
                if why:
                    wrong.append(f"post {self.id(at)}: {why}")
                elif draw:
                    post.read[:], post.both[:] = [row[3]] * 2, [row[1]] * 2
                    post.members = {m: int(m in members) for m in post.members}
        return wrong
