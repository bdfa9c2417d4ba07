#!/usr/bin/env python3
"""Copies the counters and flags of a Tidemark server to tables of SQLite or PostgreSQL, and keeps them up to date.

    python3 write_behind.py 127.0.0.1:6399 sqlite:likes.db
    python3 write_behind.py 127.0.0.1:6399,127.0.0.1:6400 "postgresql:host=/run/postgresql dbname=likes"

The program is a consumer of a group on `tm:changes`. Entries contain values, not differences, so applying an entry
twice is safe. Each row stores the id of its entry, and older entries do not change it. The program commits a batch as
one transaction and then acknowledges it, so a kill loses nothing. Run one instance per database.

A space becomes a table of the same name. A table of counters has `id`, a column per counter, `_entry`, `_deleted`; a
table of flags has `id`, `member`, `_entry`, `_deleted`. A counter `id` becomes the column `counter.id`, a space `_x`
the table `space._x`. Query them with `WHERE _deleted = 0`. A dropped space keeps its table.

After TRIMMED or PARTED the program reads all rows again. It cannot list pairs, so pairs set in the unread part of the
log are missing then: keep enough of the log (durability.keep_log).
"""

import argparse
import sqlite3
import subprocess
import sys
import time

import redis

STREAM = "tm:changes"
BATCH = 500
# Reserved names of entries and tables. A counter with such a name gets the prefix "counter."; in entries the server adds
# it to counters with one of its own names. Databases ignore case.
OWN = {"space", "id", "deleted", "member", "member_hash", "set", "forgotten", "horizon", "_entry", "_deleted"}


def text(value):
    return "'" + str(value).replace("'", "''") + "'"


def name(word):
    return '"' + word.replace('"', '""') + '"'


def column(counter):
    """Returns the column of a counter."""
    return "counter." + counter if counter.lower() in OWN else counter


def table_of(space):
    """Returns the table of a space. Tables like `_followed` belong to this program, others to the database."""
    return "space." + space if space.lower().startswith(("_", "sqlite_", "pg_")) else space


def sortable(entry):
    """Returns an entry's id as text with the sort order of ids."""
    return "{:020d}-{:020d}".format(*map(int, entry.split("-")))


class Sqlite:
    def __init__(self, path):
        self.connection = sqlite3.connect(path, isolation_level=None, timeout=60)

    def run(self, statements):
        self.connection.executescript("BEGIN IMMEDIATE;\n" + "\n".join(statements) + "\nCOMMIT;")

    def rows(self, query):
        return [[str(value) for value in row] for row in self.connection.execute(query)]

    def columns(self, table):
        return {row[1] for row in self.connection.execute(f"PRAGMA table_info({name(table)})")}


class PostgreSql:
    """Runs psql, which every installation has."""

    def __init__(self, where):
        self.psql = ["psql", "-X", "-q", "-A", "-t", "-F", "\t", "-v", "ON_ERROR_STOP=1", where]

    def run(self, statements):
        script = "SET client_min_messages = warning;\n" + "\n".join(statements)
        subprocess.run([*self.psql, "-1", "-f", "-"], input=script, text=True, check=True)

    def rows(self, query):
        done = subprocess.run([*self.psql, "-c", query], capture_output=True, text=True, check=True)
        return [line.split("\t") for line in done.stdout.splitlines()]

    def columns(self, table):
        query = f"SELECT column_name FROM information_schema.columns WHERE table_name = {text(table)}"
        return {row[0] for row in self.rows(query)}


class Tables:
    """The tables of a database, and the newest applied entry."""

    def __init__(self, where):
        kind, _, rest = where.partition(":")
        self.database = {"sqlite": Sqlite, "postgresql": PostgreSql}[kind](rest)
        self.known = {}
        self.database.run(["CREATE TABLE IF NOT EXISTS _followed (one INTEGER PRIMARY KEY, entry TEXT NOT NULL);"])

    def last(self):
        rows = self.database.rows("SELECT entry FROM _followed")
        return "-".join(str(int(part)) for part in rows[0][0].split("-")) if rows else None

    def _table(self, table, key, columns):
        """Yields statements that create the table or its missing columns."""
        there = self.known.get(table)
        if there is None:
            there = self.known[table] = self.database.columns(table)
        if not there:
            keys = ", ".join(f"{name(column)} TEXT NOT NULL" for column in key)
            yield (f"CREATE TABLE IF NOT EXISTS {name(table)} ({keys}, _entry TEXT NOT NULL, "
                   f"_deleted INTEGER NOT NULL, PRIMARY KEY ({', '.join(map(name, key))}));")
            there.update(key)
        for column in columns:
            if column not in there:
                yield f"ALTER TABLE {name(table)} ADD COLUMN {name(column)} BIGINT NOT NULL DEFAULT 0;"
                there.add(column)

    def put(self, table, key, entry, deleted, values, forced=False):
        """Yields statements that write a row, unless a newer entry has written it."""
        yield from self._table(table, list(key), values)
        columns = {**{column: text(value) for column, value in key.items()}, "_entry": text(sortable(entry)),
                   "_deleted": str(int(deleted)), **{column: str(int(value)) for column, value in values.items()}}
        changed = ", ".join(f"{name(c)} = excluded.{name(c)}" for c in columns if c not in key)
        newer = "" if forced else f" WHERE excluded._entry >= {name(table)}._entry"
        yield (f"INSERT INTO {name(table)} ({', '.join(map(name, columns))}) VALUES ({', '.join(columns.values())}) "
               f"ON CONFLICT ({', '.join(map(name, key))}) DO UPDATE SET {changed}{newer};")

    def forget(self, table, row, entry):
        """Yields statements that unset the pairs of an id, except those set by newer entries."""
        yield from self._table(table, ["id", "member"], [])
        yield (f"UPDATE {name(table)} SET _deleted = 1, _entry = {text(sortable(entry))} "
               f"WHERE id = {text(row)} AND _entry < {text(sortable(entry))};")

    def retire(self, table, low, entry):
        """Yields statements that delete the rows of all ids below `low`: TM.SPACE RETIRE, keep_newest."""
        yield from self._table(table, ["id"], [])
        below = f"(length(id) < {len(low)} OR (length(id) = {len(low)} AND id < {text(low)}))"
        yield (f"UPDATE {name(table)} SET _deleted = 1, _entry = {text(sortable(entry))} "
               f"WHERE {below} AND _entry < {text(sortable(entry))};")

    def apply(self, entries):
        statements = []
        for entry, fields in entries:
            # The log no longer has this pending entry; `begin` detects that and reads all data again.
            fields = dict(fields or {})
            for field, low in fields.items():
                if field.startswith("horizon."):
                    statements += self.retire(table_of(field.partition(".")[2]), low, entry)
            if "id" not in fields:
                continue
            table, key = table_of(fields.pop("space")), {"id": fields.pop("id")}
            if "forgotten" in fields:
                statements += self.forget(table, key["id"], entry)
            elif "set" in fields:
                member = fields.get("member", "#" + fields.get("member_hash", ""))
                statements += self.put(table, {**key, "member": member}, entry, fields["set"] == "0", {})
            else:
                deleted = fields.pop("deleted", "0") == "1"
                values = {column(field): value for field, value in fields.items()}
                statements += self.put(table, key, entry, deleted, values)
        statements += self.followed(max((entry for entry, _ in entries), key=sortable))
        try:
            self.database.run(statements)
        except Exception:
            # The failed transaction may have created tables or columns.
            self.known.clear()
            raise

    def followed(self, entry, forced=False):
        newer = "" if forced else " WHERE excluded.entry > _followed.entry"
        yield (f"INSERT INTO _followed VALUES (1, {text(sortable(entry))}) "
               f"ON CONFLICT (one) DO UPDATE SET entry = excluded.entry{newer};")


def master(servers):
    """Waits for a master and returns a connection to it."""
    while True:
        for address in servers:
            host, _, port = address.rpartition(":")
            server = redis.Redis(host, int(port), decode_responses=True, protocol=2, socket_timeout=30)
            try:
                if server.execute_command("ROLE")[0] == "master":
                    return server
            except redis.RedisError:
                pass
        time.sleep(0.1)


def spaces(server):
    """Yields each space with the names of its counters, or None for flags."""
    for space in server.execute_command("TM.SPACE", "LIST"):
        space = dict(zip(space[::2], space[1::2]))
        # Dropped fields start with "!".
        fields = [word.split(":")[0] for word in space.get("fields", "").split() if word[0] != "!"]
        yield space["name"], fields if space["kind"] == "counter" else None


def scan(server, space, fields):
    """Yields all rows of a space on the server."""
    cursor = "0"
    while True:
        cursor, rows = server.execute_command("CNT.SCAN", space, cursor, "COUNT", 1000)
        for row in rows:
            yield row[0], dict(zip(map(column, fields), row[1:]))
        if cursor == "0":
            return


def read_anew(server, tables, group):
    """Reads the position of the log, then all rows. Changes during the scan follow after that position."""
    # A log without entries has no position; wait for the next change.
    while not (newest := server.xrevrange(STREAM, count=1)):
        time.sleep(0.1)
    end = newest[0][0]
    for space, fields in spaces(server):
        table = table_of(space)
        statements, there = [], tables.database.columns(table)
        if there:
            statements.append(f"UPDATE {name(table)} SET _deleted = 1, _entry = {text(sortable(end))};")
        if fields is not None:
            for row, values in scan(server, space, fields):
                statements += tables.put(table, {"id": row}, end, False, values, forced=True)
        elif there:
            # Pairs cannot be listed, so check the known ones. A member known only by its hash stays as it is.
            pairs = tables.database.rows(f"SELECT id, member, _deleted FROM {name(table)}")
            for first in range(0, len(pairs), 10_000):
                some = pairs[first:first + 10_000]
                pipe = server.pipeline(transaction=False)
                for row, member, _ in some:
                    pipe.execute_command("PH.EXISTS", space, member, row)
                for (row, member, deleted), (is_set,) in zip(some, pipe.execute()):
                    gone = deleted == "1" if member.startswith("#") else is_set != 1
                    statements += tables.put(table, {"id": row, "member": member}, end, gone, {}, forced=True)
        tables.known.pop(table, None)
        tables.database.run(statements)
    tables.database.run(tables.followed(end, forced=True))
    try:
        server.xgroup_create(STREAM, group, end)
    except redis.ResponseError as error:
        if not str(error).startswith("BUSYGROUP"):
            raise
        server.xgroup_setid(STREAM, group, end)


def is_passing(error):
    """Returns whether to retry, possibly on another node. redis-py strips the code from READONLY errors."""
    codes = ("UNBLOCKED", "LOADING", "NOGROUP", "MISCONF")
    return isinstance(error, (redis.exceptions.ReadOnlyError, redis.exceptions.BusyLoadingError)) or str(error).startswith(codes)


def is_lost(error):
    return str(error).startswith(("PARTED", "TRIMMED"))


def begin(server, tables, group):
    """Creates the group or sets it to the database's position. Reads all data again if the history differs."""
    last = tables.last()
    try:
        if last:
            server.xread({STREAM: last}, count=1)
        try:
            server.xgroup_create(STREAM, group, last or "0")
        except redis.ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise
            # The group belongs to another database, or is ahead of a restored one.
            server.xgroup_setid(STREAM, group, last or "0")
    except redis.ResponseError as error:
        if not is_lost(error):
            raise
        read_anew(server, tables, group)


def follow(server, tables, group, until_idle):
    """Applies entries, first those that are pending since a kill."""
    begin(server, tables, group)
    start = "0"
    while True:
        answer = server.xreadgroup(group, "1", {STREAM: start}, count=BATCH, block=1000)
        entries = answer[0][1] if answer else []
        if entries:
            tables.apply(entries)
            server.xack(STREAM, group, *(entry for entry, _ in entries))
        elif start == "0":
            start = ">"
        elif until_idle:
            return


def compare(server, tables):
    """Compares both sides row by row and prints the number of differences."""
    differences, rows, pairs = 0, 0, 0
    for space, fields in spaces(server):
        table = table_of(space)
        if not tables.database.columns(table):
            differences += 0 if fields is None else sum(1 for _ in scan(server, space, fields))
        elif fields is not None:
            names = ", ".join(["id", *(name(column(field)) for field in fields)])
            stored = tables.database.rows(f"SELECT {names} FROM {name(table)} WHERE _deleted = 0")
            stored = {row[0]: row[1:] for row in stored}
            for row, values in scan(server, space, fields):
                differences += stored.pop(row, None) != [str(value) for value in values.values()]
                rows += 1
            differences += len(stored)
        else:
            for row, member, deleted in tables.database.rows(f"SELECT id, member, _deleted FROM {name(table)}"):
                if not member.startswith("#"):
                    is_set = server.execute_command("PH.EXISTS", space, member, row)[0] == 1
                    differences += is_set != (deleted == "0")
                    pairs += deleted == "0"
    print(f"{rows} rows, {pairs} pairs, {differences} differences")
    return differences == 0


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("servers", help="host:port of each node, separated by commas")
    options.add_argument("database", help="sqlite:FILE or postgresql:CONNECTION")
    options.add_argument("--group", default="write-behind", help="consumer group (default: %(default)s)")
    options.add_argument("--until-idle", action="store_true", help="exit when all changes are applied")
    options.add_argument("--compare", action="store_true", help="compare both sides, and exit with 1 if they differ")
    given = options.parse_args()
    servers, tables = given.servers.split(","), Tables(given.database)
    if given.compare:
        sys.exit(0 if compare(master(servers), tables) else 1)
    while True:
        server = master(servers)
        try:
            return follow(server, tables, given.group, given.until_idle)
        except redis.ResponseError as error:
            if is_lost(error):
                read_anew(server, tables, given.group)
            elif not is_passing(error):
                raise
        except redis.RedisError as error:
            print(f"lost the connection to the server: {error}", file=sys.stderr)
        time.sleep(0.1)


if __name__ == "__main__":
    main()
