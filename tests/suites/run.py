#!/usr/bin/env python3
"""Runs test suites that were written for Redis against Tidemark, through a proxy that renames keys (rename_proxy.py).

    tests/suites/run.py redis /path/to/redis-8.0.2            the supported units of the tcl suite, in external-server mode
    tests/suites/run.py redisbloom /path/to/RedisBloom        tests/flow of RedisBloom
    tests/suites/run.py redis /path/to/redis-8.0.2 unit/acl   only these units
    tests/suites/run.py check                                 the lists of failures, and the proxy; needs no sources
    options: --tidemark PROGRAM  --port FIRST  --verbose  --write

The sources are not in this repository: use any checkout or release tarball. Requires python3; `redis` also needs tclsh 8.5 or later,
and `redisbloom` needs redis-py (tests/clients/setup installs it).

Each unit gets a new server and a new proxy. redis.txt and redisbloom.txt in this folder list the expected failures with their reasons.
The exit code is 0 if exactly those tests fail. Otherwise the script reports unexpected failures, listed tests that pass, and tests that
are no longer reached, and exits with 1. `--write` rewrites the list: known failures keep their reasons, and new ones get the reason
`unsorted`, which is an error until it is replaced.
"""

import argparse
import asyncio
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

import rename_proxy

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
UNITS = [
    "unit/acl", "unit/acl-v2", "unit/auth", "unit/client-eviction", "unit/info", "unit/info-command", "unit/introspection",
    "unit/introspection-2", "unit/keyspace", "unit/latency-monitor", "unit/limits", "unit/multi", "unit/networking",
    "unit/obuf-limits", "unit/other", "unit/pause", "unit/protocol", "unit/pubsub", "unit/pubsubshard", "unit/querybuf",
    "unit/quit", "unit/replybufsize", "unit/scan", "unit/shutdown", "unit/slowlog", "unit/tls", "unit/tracking", "unit/type/hash",
    "unit/type/incr", "unit/type/set", "unit/type/string", "unit/violations", "unit/wait",
]
FLOWS = ["test_overall", "test_cuckoo", "test_resp3", "test_acl", "test_configs"]
TAGS = "-slow -needs:debug -needs:pfdebug -needs:config-maxmemory -needs:save"
# A test that has not ended after this time hangs.
TEST_TIMEOUT_S = 30


class Server:
    """A server behind its proxy."""

    names = rename_proxy.Names()

    def __init__(self, program, port, settings=""):
        self.port = port
        self.program = program
        self.folder = tempfile.mkdtemp(prefix="tidemark-suites-")
        self.log = os.path.join(self.folder, "log")
        self.config = os.path.join(self.folder, "tidemark.toml")
        default = subprocess.run([program, "config", "--all"], capture_output=True, text=True, check=True).stdout
        with open(self.config, "w", encoding="utf-8") as file:
            text = rename_proxy.configuration(default, port, os.path.join(self.folder, "data"))
            for name, value in (settings or {}).items():
                text = re.sub(rf"(?m)^(\w+\.)?{name} = .*$", lambda m, name=name, value=value: f"{m[1] or ''}{name} = {value}", text, count=1)
            file.write(text)
        self.starts = 0
        self.process = None
        self.spawn()
        self.loop = asyncio.new_event_loop()
        self.proxy = rename_proxy.Proxy(port, self.names)
        self.listener = self.loop.run_until_complete(self.proxy.start(0))
        self.proxy_port = self.listener.sockets[0].getsockname()[1]
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def output(self):
        with open(self.log, encoding="utf-8", errors="replace") as log:
            return log.read()

    def spawn(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([self.program, "serve", "--config", self.config], stdout=log, stderr=log)
        self.starts += 1
        end = time.monotonic() + 30
        while self.output().count("ready to accept connections") < self.starts:
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError("the server does not start: " + self.output()[-1000:])
            time.sleep(0.02)

    def ask(self, *words):
        """Sends a command on the proxy's own connection."""
        return asyncio.run_coroutine_threadsafe(self.proxy.ask(*(word.encode() for word in words)), self.loop).result(10)

    def restart(self):
        """Restarts the server with its data folder."""
        self.process.terminate()
        self.process.wait(timeout=30)
        self.spawn()

    async def end(self):
        self.listener.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def stop(self):
        """Stops both. Returns the last lines of the log if the server was killed by a signal or panicked."""
        ended = self.process.poll()
        if ended is None:
            self.process.kill()
            self.process.wait()
        asyncio.run_coroutine_threadsafe(self.end(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(timeout=5)
        last = self.output()
        shutil.rmtree(self.folder)
        if "panicked" in last or (ended is not None and ended != 0):
            return f"the server ended with {ended}: {last[-1500:]}"
        return None


class Control:
    """Starts and stops servers for external.tcl: one request per connection, words between tabs."""

    def __init__(self, options, source):
        self.options, self.source = options, source
        self.servers, self.notes = {}, []
        self.next_port = options.port + 2
        self.listener = socket.create_server(("127.0.0.1", options.port))
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rw", encoding="utf-8", newline="\n") as stream:
                try:
                    answer = self.answer(stream.readline().rstrip("\n").split("\t"))
                except Exception as problem:  # the suite reports it as a failure of the block
                    answer = "error " + " ".join(str(problem).split())
                stream.write(answer + "\n")

    def answer(self, words):
        if words[0] == "start":
            overrides = list(zip(words[1::2], words[2::2]))
            folder = next((value for name, value in overrides if name == "dir"), ".")
            settings = {}
            users = [value for name, value in overrides if name == "user"]
            if users:
                settings["users"] = "[" + ", ".join(f'"{user}"' for user in users) + "]"
            for name, value in overrides:
                if name == "aclfile":
                    settings["acl_file"] = '"' + os.path.abspath(os.path.join(self.source, folder, value)) + '"'
            port = self.next_port
            self.next_port += 2
            server = self.servers[port + 1] = Server(self.options.tidemark, port, settings)
            for name, value in overrides:
                if name not in ("dir", "aclfile", "user") and name not in rename_proxy.ABSENT_PARAMETERS:
                    server.ask("CONFIG", "SET", name, value)
        else:
            server = self.servers[int(words[1])]
            if words[0] == "restart":
                server.restart()
            elif words[0] == "unpause":
                server.ask("CLIENT", "UNPAUSE")
            else:
                self.notes.append(self.servers.pop(int(words[1])).stop())
        return f"{server.proxy_port} {server.process.pid} {server.log}"

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.notes += [server.stop() for server in self.servers.values()]
        return [note for note in self.notes if note]


class Outcome:
    """Results of a unit's tests: name -> (passed, text)."""

    def __init__(self):
        self.tests = {}
        self.ignored = 0
        self.notes = []

    def add(self, name, passed, text=""):
        # A repeated name in a unit gets a number.
        number = 1
        unique = name = " ".join(name.split())
        while unique in self.tests:
            number += 1
            unique = f"{name} #{number}"
        self.tests[unique] = (passed, text)


def copy_of(source):
    """A copy of the suite in which external.tcl starts the servers. Blocks that only need to start servers are not skipped."""
    copy = tempfile.mkdtemp(prefix="tidemark-suites-redis-")
    shutil.copytree(os.path.join(source, "tests"), os.path.join(copy, "tests"), symlinks=True)
    shutil.copy(os.path.join(source, "runtest"), copy)
    os.mkdir(os.path.join(copy, "src"))
    shutil.copy(os.path.join(HERE, "external.tcl"), os.path.join(copy, "tests", "support"))
    helper = os.path.join(copy, "tests", "test_helper.tcl")
    with open(helper, encoding="utf-8") as file:
        text = file.read()
    with open(helper, "w", encoding="utf-8") as file:
        file.write(re.sub(r"(?m)^source tests/support/util.tcl$", r"\g<0>\nsource tests/support/external.tcl", text))
    for unit in UNITS:
        path = os.path.join(copy, "tests", unit + ".tcl")
        with open(path, encoding="latin1") as file:
            text = file.read()
        text = re.sub(r"(?m)^(start_server|tags) .*external:skip.*$", lambda line: line[0].replace("external:skip", ""), text)
        with open(path, "w", encoding="latin1") as file:
            file.write(text)
    return copy


def run_redis_unit(source, unit, options):
    """Runs one unit. If a test hangs, runs the unit again without that test."""
    hung = {}
    while True:
        outcome, hangs = run_redis_unit_once(source, unit, options, list(hung))
        if hangs is None or hangs in hung:
            break
        hung[hangs] = True
    for name in hung:
        outcome.add(name, False, f"hangs for {options.timeout} s")
    return outcome


def run_redis_unit_once(source, unit, options, skip):
    control = Control(options, source)
    command = [
        "./runtest", "--host", "127.0.0.1", "--port", "1", "--single", unit, "--singledb", "--ignore-encoding", "--ignore-digest",
        "--durable", "--no-latency", "--clients", "1", "--baseport", str(options.port + 300), "--portcount", "60",
        "--timeout", str(options.timeout), "--tags", TAGS,
    ]
    for name in skip:
        command += ["--skiptest", name]
    outcome = Outcome()
    process = subprocess.run(
        command, cwd=source, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
        env={**os.environ, "TIDEMARK_SUITE": str(options.port)},
    )
    outcome.notes += control.close()
    text = re.sub(r"\x1b\[[0-9;]*m", "", process.stdout)
    hangs, name = None, None
    for line in text.split("The End")[0].splitlines():
        found = re.match(r"\[(ok|err|ignore|exception|TIMEOUT)\]: (.*)", line)
        running = re.search(r"=> \(IN PROGRESS\) (.*)", line)
        if running:
            hangs = running[1]
        elif found and found[1] == "ok":
            outcome.add(re.sub(r" \(\d+ ms\)$", "", found[2]), True)
        elif found and found[1] == "ignore":
            outcome.ignored += 1
        elif found and found[1] == "err":
            outcome.add(normal(found[2].split(f" in tests/{unit}.tcl")[0]), False)
            name = list(outcome.tests)[-1]
        elif found:
            outcome.notes.append(found[2])
        elif name and not re.match(r"\[\d+/\d+ done\]", line):
            outcome.tests[name] = (False, outcome.tests[name][1] + line + "\n")
        if found and found[1] != "err":
            name = None
    return outcome, hangs


def normal(name):
    """Returns the name of a test. For a failure outside of a test, returns the start of its text without parts that vary between runs."""
    return re.sub(r"\d{3,}|0x[0-9a-f]+|sock[0-9a-f]+", "N", name)[:120] if name.startswith("(outside") else name


def run_flow(source, flow, options):
    server = Server(options.tidemark, options.port)
    try:
        return run_flow_on(source, flow, server, options)
    finally:
        server.stop()


def run_flow_on(source, flow, server, options):
    python = os.path.join(ROOT, "target", "clients", "redis-py-5", "bin", "python")
    outcome = Outcome()
    command = [python if os.path.exists(python) else sys.executable, os.path.join(HERE, "flow.py"), source, flow, str(server.proxy_port)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, errors="replace")
    # A file of RedisBloom has dozens of tests, some of which send 100,000 requests.
    limit = 20 * options.timeout
    timer = threading.Timer(limit, process.kill)
    timer.start()
    last = None
    for line in process.stdout:
        word, _, rest = line.rstrip("\n").partition(" ")
        if word == "restart":
            server.restart()
            process.stdin.write("restarted\n")
            process.stdin.flush()
        elif word in ("ok", "err"):
            outcome.add(rest, word == "ok")
            last = list(outcome.tests)[-1]
        elif word == "skip":
            outcome.ignored += 1
        elif last:
            outcome.tests[last] = (outcome.tests[last][0], outcome.tests[last][1] + line)
    if process.wait() < 0:
        outcome.notes.append(f"stopped after {limit} s")
    timer.cancel()
    return outcome


# Reason of tests whose result is random: they are never reported.
UNSTEADY = "unsteady"


class Expected:
    """The list of failures: `reason NAME: text` lines, then per unit the minimum number of passing tests, and `NAME | test` lines."""

    def __init__(self, path):
        self.path = path
        self.head, self.reasons, self.failures, self.passes = [], {}, {}, {}
        unit = None
        for line in open(path, encoding="utf-8") if os.path.exists(path) else []:
            line = line.rstrip("\n")
            if line.startswith("#"):
                self.head.append(line)
            elif line.startswith("reason "):
                name, text = line[len("reason ") :].split(": ", 1)
                self.reasons[name] = text
            elif line.startswith("["):
                unit, passes = re.fullmatch(r"\[(\S+)\] (\d+) pass", line).groups()
                self.passes[unit], self.failures[unit] = int(passes), {}
            elif line:
                reason, name = line.split(" | ", 1)
                self.failures[unit][name] = reason

    def write(self, outcomes):
        for unit, outcome in outcomes.items():
            old = self.failures.get(unit, {})
            failed = {name: reason for name, reason in old.items() if reason == UNSTEADY}
            for name, (passed, _) in outcome.tests.items():
                if not passed:
                    failed[name] = old.get(name, "unsorted")
            passes = sum(passed for name, (passed, _) in outcome.tests.items() if name not in failed)
            self.failures[unit], self.passes[unit] = failed, passes
        with open(self.path, "w", encoding="utf-8") as file:
            print(*self.head, sep="\n", file=file)
            for name, text in self.reasons.items():
                print(f"reason {name}: {text}", file=file)
            for unit, failures in self.failures.items():
                print(f"\n[{unit}] {self.passes[unit]} pass", file=file)
                for name, reason in failures.items():
                    print(f"{reason} | {name}", file=file)

    def compare(self, unit, outcome):
        """Returns the differences from the list."""
        problems = []
        failures = self.failures.get(unit, {})
        for name, (passed, _) in outcome.tests.items():
            if not passed and name not in failures:
                problems.append(f"NEW FAILURE: {name}")
            elif passed and failures.get(name, UNSTEADY) != UNSTEADY:
                problems.append(f"PASSES NOW: {name}")
        for name, reason in failures.items():
            if name not in outcome.tests and reason != UNSTEADY:
                problems.append(f"NOT REACHED: {name}")
            if reason not in self.reasons:
                problems.append(f"NO REASON ({reason}): {name}")
        passes = sum(passed for passed, _ in outcome.tests.values())
        if passes < self.passes.get(unit, 0):
            problems.append(f"{passes} pass, where {self.passes[unit]} did")
        return problems


def check(options):
    """Checks that each listed failure has a reason, and that the proxy restores the texts that it has replaced."""
    problems = []
    for suite in ("redis", "redisbloom"):
        expected = Expected(os.path.join(HERE, suite + ".txt"))
        used = {reason for failures in expected.failures.values() for reason in failures.values()}
        problems += [f"{suite}.txt: a test has the reason '{reason}', which is not there" for reason in used - set(expected.reasons)]
        problems += [f"{suite}.txt: nothing needs the reason '{reason}'" for reason in set(expected.reasons) - used]
    server = Server(options.tidemark, options.port)
    try:
        with socket.create_connection(("127.0.0.1", server.proxy_port)) as client, client.makefile("rb") as replies:
            for request, wanted in [
                ("SET foo bar", "+OK"), ("GET foo", "$3|bar"), ("INCRBY foo:1 7", ":7"), ("GET foo:1", "$1|7"),
                ("HSET hash field value", ":1"), ("HGET hash field", "$5|value"), ("SADD set a", ":1"), ("SISMEMBER set a", ":1"),
                ("DEL set", ":0"), ("SADD set b", ":1"), ("SISMEMBER set a", ":0"), ("KEYS foo*", "*2|$3|foo|$5|foo:1"),
                ("TYPE foo", "+string"), ("OBJECT ENCODING foo", "$3|int"), ("COMMAND GETKEYS GET foo", "*1|$3|foo"), ("FLUSHALL", "+OK"),
                ("DBSIZE", ":0"), ("GET foo", "$-1"), ("SCRIPT FLUSH", "+OK"),
            ]:
                client.sendall(request.encode() + b"\r\n")
                reply = "|".join(replies.readline().decode().rstrip("\r\n") for _ in wanted.split("|"))
                if reply != wanted:
                    problems.append(f"{request}: {reply}, not {wanted}")
    finally:
        server.stop()
    for problem in problems:
        print(problem)
    return 1 if problems else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=["redis", "redisbloom", "check"])
    parser.add_argument("source", nargs="?", help="the source tree of Redis or RedisBloom")
    parser.add_argument("units", nargs="*", help="which units; all by default")
    parser.add_argument("--tidemark", default=os.path.join(ROOT, "target", "debug", "tidemark"))
    parser.add_argument("--port", type=int, default=28100, help="first of some hundred free ports")
    parser.add_argument("--timeout", type=int, default=TEST_TIMEOUT_S, help="most seconds of one test")
    parser.add_argument("--verbose", action="store_true", help="show why each test fails")
    parser.add_argument("--write", action="store_true", help="write the list of failures anew")
    options = parser.parse_args()
    # The suites break connections on purpose.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    if options.suite == "check":
        return check(options)
    if not options.source:
        parser.error("the source tree is not in this repository: name its path")
    redis = options.suite == "redis"
    units = options.units or (UNITS if redis else FLOWS)
    expected = Expected(os.path.join(HERE, options.suite + ".txt"))
    outcomes, problems = {}, []
    source = copy_of(options.source) if redis else os.path.abspath(options.source)
    for unit in units:
        begin = time.monotonic()
        outcome = (run_redis_unit if redis else run_flow)(source, unit, options)
        outcomes[unit] = outcome
        passes = sum(passed for passed, _ in outcome.tests.values())
        seconds = time.monotonic() - begin
        print(f"{unit}: {passes} of {len(outcome.tests)} pass, {outcome.ignored} do not apply ({seconds:.0f} s)", flush=True)
        for note in outcome.notes:
            print(f"    note: {note}")
        if options.verbose:
            for name, (passed, text) in outcome.tests.items():
                if not passed:
                    print(f"  FAILS {expected.failures.get(unit, {}).get(name, '')} | {name}\n        " + text.strip().replace("\n", "\n        "))
        for problem in expected.compare(unit, outcome) if not options.write else []:
            print(f"  {problem}")
            problems.append(problem)
    if redis:
        shutil.rmtree(source)
    if options.write:
        expected.write(outcomes)
    total = [passed for outcome in outcomes.values() for passed, _ in outcome.tests.values()]
    by_reason = {}
    for unit in outcomes:
        for reason in expected.failures.get(unit, {}).values():
            by_reason[reason] = by_reason.get(reason, 0) + 1
    print(f"{sum(total)} of {len(total)} pass; expected failures by reason: {by_reason}; {len(problems)} surprises")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
