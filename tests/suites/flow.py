"""Runs one file of RedisBloom's tests/flow against a server: flow.py SOURCE FILE PORT. Called by run.py.

The tests are written for RLTest; this file implements the parts of its `Env` that they use. As in RLTest, a failed assertion does not
end its test. Prints the result of each test as a line; the line `restart` asks run.py to restart the server, and waits for a line.
"""

import contextlib
import importlib
import inspect
import os
import re
import signal
import sys
import types

import redis

REPORT = sys.stdout
PORT = int(sys.argv[3])
TEST_TIMEOUT_S = 60


class Skip(Exception):
    pass


class Failures(list):
    def check(self, good, text):
        if not good:
            caller = next(frame for frame in inspect.stack() if "/flow/" in frame.filename)
            self.append(f"{os.path.basename(caller.filename)}:{caller.lineno}: {text}")
        return good


FAILURES = Failures()


class Query:
    """env.expect(command): the result of a command, and assertions about it."""

    def __init__(self, env, words):
        self.failed = None
        try:
            self.reply = env.cmd(*words)
        except redis.ResponseError as problem:
            self.failed = self.reply = problem
        self.words = words

    def check(self, good, wanted):
        FAILURES.check(good, f"{self.words}: {self.reply!r}, wanted {wanted}")
        return self

    def error(self):
        return self.check(self.failed is not None, "an error")

    def noError(self):
        return self.check(self.failed is None, "no error")

    def contains(self, text):
        return self.check(text in str(self.reply), f"...{text}...")

    def notContains(self, text):
        return self.check(text not in str(self.reply), f"nothing with {text}")

    def equal(self, value):
        return self.check(self.reply == value, value)

    def ok(self):
        return self.check(self.reply in ("OK", b"OK", True), "OK")

    def true(self):
        return self.check(bool(self.reply) and self.failed is None, "true")


class Env:
    def __init__(self, decodeResponses=False, protocol=2, useSlaves=False, **_others):
        if useSlaves:
            raise Skip
        self.connection = redis.Redis(port=PORT, decode_responses=decodeResponses, protocol=protocol)
        self.connection.flushall()

    def cmd(self, *words, **options):
        return self.connection.execute_command(*words, **options)

    execute_command = cmd

    def expect(self, *words):
        return Query(self, words)

    def getConnection(self, _shard=1):
        return self.connection

    @contextlib.contextmanager
    def getClusterConnectionIfNeeded(self):
        yield self.connection

    def dumpAndReload(self, **_options):
        self.connection.connection_pool.disconnect()
        print("restart", file=REPORT, flush=True)
        sys.stdin.readline()

    restartAndReload = dumpAndReload

    def skip(self):
        raise Skip

    def isCluster(self):
        return False

    def skipOnCluster(self):
        pass

    skipOnSlave = skipOnCluster

    def skipOnVersionSmaller(self, wanted):
        if version(self.connection.info()["redis_version"]) < version(wanted):
            raise Skip

    def debugPrint(self, *_words):
        pass

    def assertEqual(self, first, second, message=""):
        FAILURES.check(first == second, f"{first!r} == {second!r} {message}")

    def assertNotEqual(self, first, second):
        FAILURES.check(first != second, f"{first!r} != {second!r}")

    def assertOk(self, value):
        FAILURES.check(value in ("OK", b"OK", True), f"{value!r} is OK")

    def assertTrue(self, value):
        FAILURES.check(bool(value), f"{value!r} is true")

    def assertFalse(self, value):
        FAILURES.check(not value, f"{value!r} is false")

    def assertGreater(self, first, second):
        FAILURES.check(first > second, f"{first!r} > {second!r}")

    def assertGreaterEqual(self, first, second):
        FAILURES.check(first >= second, f"{first!r} >= {second!r}")

    def assertLess(self, first, second):
        FAILURES.check(first < second, f"{first!r} < {second!r}")

    def assertLessEqual(self, first, second):
        FAILURES.check(first <= second, f"{first!r} <= {second!r}")

    def assertAlmostEqual(self, first, second, delta):
        FAILURES.check(abs(first - second) <= delta, f"{first!r} is {second!r}, by {delta}")

    def assertRaises(self, kind, call, *words):
        try:
            reply = call(*words)
        except kind:
            return
        FAILURES.check(False, f"{words} is refused, not answered {reply!r}")

    @contextlib.contextmanager
    def assertResponseError(self, msg=None, contained=None):
        try:
            yield
        except redis.ResponseError as problem:
            FAILURES.check(contained is None or contained in str(problem), f"{problem} has {contained}")
        else:
            FAILURES.check(False, f"is refused {msg or ''}")


def version(text):
    return tuple(int(number) for number in re.findall(r"\d+", str(text)))


def stand_ins():
    """Creates the modules that the tests import: RLTest, and two for the platform and for comparing versions."""
    rltest = types.ModuleType("RLTest")
    rltest.Env, rltest.Defaults = Env, types.SimpleNamespace()
    paella = types.ModuleType("paella")
    paella.Platform = lambda: types.SimpleNamespace(osnick="", os="linux", arch="")
    packaging = types.ModuleType("packaging")
    packaging.version = types.ModuleType("packaging.version")
    packaging.version.parse, packaging.version.Version = version, tuple
    for module in (rltest, paella, packaging, packaging.version):
        sys.modules[module.__name__] = module


def too_long(_signal, _frame):
    raise TimeoutError(f"longer than {TEST_TIMEOUT_S} s")


def run(name, call):
    FAILURES.clear()
    signal.alarm(TEST_TIMEOUT_S)
    try:
        for _ in call() or ():
            pass
    except Skip:
        print(f"skip {name}", file=REPORT, flush=True)
        return
    except Exception as problem:
        line = "".join(f"{step.lineno}: " for step in inspect.trace() if "/flow/" in step.filename)
        FAILURES.append(f"{line}{type(problem).__name__}: {problem}")
    signal.alarm(0)
    print("err" if FAILURES else "ok", name, file=REPORT)
    for failure in FAILURES[:5]:
        print("   ", failure[:300].replace("\n", " "), file=REPORT)
    REPORT.flush()


def main():
    stand_ins()
    signal.signal(signal.SIGALRM, too_long)
    sys.stdout = sys.stderr
    sys.path.insert(0, os.path.join(sys.argv[1], "tests", "flow"))
    module = importlib.import_module(sys.argv[2])
    for name, found in list(vars(module).items()):
        if not name.startswith("test"):
            continue
        if inspect.isclass(found):
            tests = found()
            for method in vars(found):
                if method.startswith("test"):
                    run(f"{name}.{method}", getattr(tests, method))
        elif inspect.isfunction(found):
            run(name, found)


main()
