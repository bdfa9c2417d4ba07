"""Posts and reposts, read from a file of the data set or generated with the same columns.

A row is `created_at,post_id,origin_post_id,user_id`. Without an origin it is a new post, otherwise a repost."""

import csv
import gzip
import random
from collections import namedtuple
from datetime import datetime, timedelta, timezone

COLUMNS = ["created_at", "post_id", "origin_post_id", "user_id"]
Event = namedtuple("Event", "at post origin user")

WEIBO_EPOCH = 515_483_463  # seconds; an id is (unix time - this) << 22, plus a sequence


def read(path):
    """Yields the events of a CSV file, gzipped or not. The first line names the columns."""
    with open(path, "rb") as file:
        opened = gzip.open if file.read(2) == b"\x1f\x8b" else open
    with opened(path, "rt", encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        missing = set(COLUMNS) - set(rows.fieldnames or [])
        if missing:
            raise ValueError(f"{path}: missing columns {', '.join(sorted(missing))} in the first line")
        for row in rows:
            try:
                at, post, origin, user = (row[name] for name in COLUMNS)
                yield Event(datetime.fromisoformat(at), int(post), int(origin) if origin else None, int(user))
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path}, line {rows.line_num}: {error}") from None


def generated(posts=300, seed=7):
    """Yields events of a generated week: few posts have many reposts, most have few, and some users repost twice."""
    rng = random.Random(seed)
    week = datetime(2026, 1, 1)
    users = [10**11 + rng.randrange(9 * 10**11) for _ in range(3_000)]
    authors = users[:80]

    def new_id(at):
        seconds = int(at.replace(tzinfo=timezone.utc).timestamp()) - WEIBO_EPOCH
        return seconds << 22 | rng.randrange(1 << 22)

    for at in sorted(week + timedelta(seconds=rng.randrange(7 * 86_400)) for _ in range(posts)):
        post = new_id(at)
        yield Event(at, post, None, rng.choice(authors))
        for _ in range(min(2_000, int(4 * rng.paretovariate(0.9)))):
            later = at + timedelta(seconds=int(rng.expovariate(1 / 3_600)) + 1)
            yield Event(later, new_id(later), post, rng.choice(users))
