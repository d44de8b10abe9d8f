"""A cluster of the real programs on loopback, for process tests.

Ports are always free ones, files live in a folder of the test, conditions are waited for through REST or the logs under
a deadline. Only processes that the test started are ended. A failed test shows its logs. Exit statuses are those of
server/app.h and worker/app.h; of the SAMPLES of data one in five is held out.
"""

import concurrent.futures
import contextlib
import functools
import gzip
import http.client
import io
import json
import os
import pathlib
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from centroid.__main__ import hold_port

DEADLINE_SECONDS = 180 * int(os.environ.get("CENTROID_TEST_PATIENCE", "1"))  # programs under a sanitizer are slow
POLL_SECONDS = 0.02
HOLDS_BARS = os.environ.get("CENTROID_TEST_BARS") == "1"
LOG_TAIL_LINES = 40
SAMPLES = 2000
DONE, FAILED, USAGE, HALTED = 0, 1, 2, 3
DIES_WITH_ITS_STARTER = ["setpriv", "--pdeathsig", "KILL"]  # a preexec_fn would copy this process: 25 ms for each start
UNHURRIED = ["--slowdown", 100]  # of workers that train only beside what a test is about: they leave the processors to others
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and so would what they start


def bar(limit, slack):
    """What a time is held to: `slack` times the bar, as a machine that is busy with other tests may need, or with CENTROID_TEST_BARS=1, on an idle one, the bar itself."""
    return limit if HOLDS_BARS else slack * limit


def wait_for(condition, what, seconds=DEADLINE_SECONDS):
    """The first true value of `condition()`; `what` names it when the deadline passes."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(POLL_SECONDS)  # lint-ok: the step of a poll under a deadline


@functools.lru_cache(maxsize=1)
def digits():
    """A data set in the form of digits.csv.gz that a small model can learn: a pattern a class, and noise."""
    noise = random.Random(3)
    patterns = [[noise.randrange(13) for _ in range(64)] for _ in range(10)]
    lines = []
    for i in range(SAMPLES):
        lines.append(",".join(str(pixel + noise.randrange(4)) for pixel in patterns[i % 10]) + f",{i % 10}\n")
    return gzip.compress("".join(lines).encode(), 1)


def free_port():
    """A port that no process is given until this one ends; a program that sets SO_REUSEADDR can listen there."""
    held_ports.append(hold_port())
    return held_ports[-1].getsockname()[1]


held_ports = []
RENAMED_EVENTS = {"server.ready": "server.initialized"}  # in programs of 9a33d03, which process.upgrade starts too


class Process:
    """One started program with its log."""

    def __init__(self, program, arguments, log, environment):
        command = [*DIES_WITH_ITS_STARTER, str(program), *map(str, arguments)]
        with log.open("ab") as out:
            self.begin(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment), log)

    @classmethod
    def forked(cls, forks, program, log, environment):
        """One that `forks` (forks.py) starts."""
        process = cls.__new__(cls)
        process.begin(forks.start(program, log, environment), log)
        return process

    def begin(self, child, log):
        self.child, self.name, self.log = child, log.stem, log
        self.told, self.read_bytes = [], 0  # events, and the bytes of the log that have them

    @property
    def pid(self):
        return self.child.pid

    def is_running(self):
        return self.child.poll() is None

    def text(self):
        return self.log.read_text(errors="replace")

    def events(self, name):
        """Lines of the JSON log with this event."""
        with self.log.open("rb") as log:
            log.seek(self.read_bytes)
            whole = log.read().rpartition(b"\n")[:2]
        self.read_bytes += len(b"".join(whole))
        lines = [line for line in whole[0].decode(errors="replace").splitlines() if line.startswith("{") and line.endswith("}")]
        self.told += map(json.loads, lines)
        return [entry for entry in self.told if RENAMED_EVENTS.get(entry["event"], entry["event"]) == name]

    def wait_event(self, name, seconds=DEADLINE_SECONDS, **fields):
        """The first event of this name whose fields contain the given texts, or are the given numbers."""

        def is_it(told, wanted):
            return told == wanted if isinstance(wanted, (int, float)) else str(wanted) in str(told)

        def find():
            is_running = self.is_running()
            for event in self.events(name):
                if all(is_it(event.get(field), wanted) for field, wanted in fields.items()):
                    return event
            if not is_running:
                raise AssertionError(f"{self.name} ended with {self.child.returncode} before {name} {fields}:\n{self.text()}")
            return None

        return wait_for(find, f"{name} {fields} in the log of {self.name}", seconds)

    def exit_status(self, seconds=DEADLINE_SECONDS):
        if self.is_running():
            end = os.pidfd_open(self.pid)
            has_ended = select.select([end], [], [], seconds)[0]  # at once: child.wait(seconds) polls
            os.close(end)
            if not has_ended:
                raise AssertionError(f"{self.name} still runs after {seconds} s:\n{self.text()}")
        return self.child.wait()

    def send(self, number):
        self.child.send_signal(number)
        if number == signal.SIGSTOP:  # its threads stop a moment later
            wait_for(lambda: not self.is_running() or self.is_stopped(), f"{self.name} to stand still")

    def is_stopped(self):
        stats = [(task / "stat").read_text() for task in pathlib.Path(f"/proc/{self.pid}/task").iterdir()]
        return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)

    def kill(self):
        self.child.kill()
        self.child.wait()

    def memory_bytes(self):
        """The most memory it ever held."""
        for line in pathlib.Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise AssertionError(f"{self.name} has no VmHWM")


class Server(Process):
    """A running server and its REST interface."""

    def __init__(self, program, arguments, log, environment, endpoints_file):
        super().__init__(program, arguments, log, environment)
        self.endpoints_file = endpoints_file
        self.data = self.api = None
        self.leads_alone = not {"--etcd.endpoints", "--join"} & set(map(str, arguments))

    def wait_open(self):
        """Until its ports are open: it may still read what it goes on from."""

        def read():
            is_running = self.is_running()
            if self.endpoints_file.exists():  # also of one that has ended since
                return json.loads(self.endpoints_file.read_text())
            if not is_running:
                raise AssertionError(f"the server ended with {self.child.returncode}:\n{self.text()}")
            return None

        endpoints = wait_for(read, "the server's endpoints")
        self.data, self.api = endpoints["data"], endpoints["api"]
        return self

    def wait_ready(self):
        self.wait_open()
        if self.leads_alone:
            self.wait_event("server.initialized")
        return self

    def call(self, method, path, body=None):
        """Status and body of one REST call."""
        data = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        with contextlib.closing(http.client.HTTPConnection(self.api, timeout=DEADLINE_SECONDS)) as connection:
            connection.request(method, path, data, headers)
            reply = connection.getresponse()
            return reply.status, reply.read().decode()

    def get(self, path):
        status, body = self.call("GET", path)
        if status != 200:
            raise AssertionError(f"GET {path}: {status} {body}")
        return json.loads(body)

    def post(self, path):
        status, body = self.call("POST", path)
        return status, json.loads(body) if body else {}

    def cluster(self):
        return self.get("/v1/cluster")

    def workers(self, name=None):
        """Every admission, oldest first."""
        workers = sorted(self.get("/v1/workers")["workers"], key=lambda worker: worker["member"])
        return [worker for worker in workers if name in (None, worker["name"])]

    def wait_cluster(self, what, condition, seconds=DEADLINE_SECONDS):
        return wait_for(lambda: next(filter(condition, [self.cluster()]), None), what, seconds)

    def wait_round(self, number):
        return self.wait_cluster(f"round {number}", lambda cluster: cluster["round"] >= number)

    def wait_more_rounds(self, count=3):
        return self.wait_round(self.cluster()["round"] + count)

    def wait_worker(self, name, state, index=-1):
        """The admission `index` of the worker `name`, once it is in `state`."""

        def find():
            admissions = self.workers(name)
            is_there = -len(admissions) <= index < len(admissions)
            return admissions[index] if is_there and admissions[index]["state"] == state else None

        return wait_for(find, f"worker {name} (admission {index}) {state}")

    def wait_missing(self, *names):
        """The open round, once it waits for exactly these workers."""

        def find():
            rounds = self.get("/v1/rounds?limit=1")["rounds"]
            return next((r for r in rounds if r["state"] == "open" and sorted(r["missing"]) == sorted(names)), None)

        return wait_for(find, f"an open round that waits for {names}")

    def wait_rows(self):
        """Until the tables are loaded on all servers."""

        def is_loaded():
            return not any(wait.get("waiter", wait.get("who")) in ("tables", "clients of rows") for wait in self.get("/v1/waits")["waits"])

        wait_for(is_loaded, "the tables on all servers")

    def wait_buckets(self, count):
        """Until so many servers have rows, and none moves. Their buckets are shown before they are loaded."""
        self.wait_rows()

        def is_settled():
            servers = self.get("/v1/servers")["servers"]
            return len(servers) == count and all(one["buckets"] and not one["bucket_moves"] for one in servers)

        wait_for(is_settled, f"buckets on {count} servers")

    def metric(self, name, /, **labels):
        """Value of one series of /metrics."""
        _, text = self.call("GET", "/metrics")
        wanted = name + ("{" + ",".join(f'{key}="{labels[key]}"' for key in sorted(labels)) + "}" if labels else "")
        for line in text.splitlines():
            series, _, value = line.rpartition(" ")
            if series == wanted:
                return float(value)
        raise AssertionError(f"no series {wanted} in /metrics")


class Hold:
    """A fault point (common/checkpoint/fault_point.h) at which the program with this `environment` is stopped, from the `count`th time on, from `close` to `open`."""

    def __init__(self, test, point, name="hold", count=1):
        self.file = test.folder / name
        self.said = self.file.with_name(f"{name}.held")
        self.environment = {"CENTROID_TEST_HOLD": f"{point}:{self.file}:{count}"}
        test.addCleanup(lambda: self.file.unlink(missing_ok=True))

    def close(self):
        self.file.write_text("")
        return self

    def wait_reached(self):
        """Until a thread of the program is stopped there."""
        wait_for(self.said.exists, f"a program at {self.environment}")

    def open(self):
        self.file.unlink()
        wait_for(lambda: not self.said.exists(), f"a program that goes on from {self.environment}")


class ClusterTest(unittest.TestCase):
    """Base of the tests: a folder, data, and starters for both programs."""

    programs = None

    def run(self, result=None):
        result = self.defaultTestResult() if result is None else result
        self.processes = []
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="centroid-test-"))
        bad = len(result.failures) + len(result.errors)
        try:
            return super().run(result)
        finally:
            is_bad = len(result.failures) + len(result.errors) > bad
            if is_bad:
                self.show_state()
            self.end_all()
            if is_bad:
                self.show_logs()
            shutil.rmtree(self.folder, ignore_errors=True)

    def end_all(self):
        for process in self.processes:
            if process.is_running():
                process.kill()

    def show_state(self):
        """What servers that still run are waiting for."""
        for server in self.processes:
            if isinstance(server, Server) and server.api and server.is_running():
                for path in ("/v1/rounds?limit=2", "/v1/waits", "/metrics"):
                    with contextlib.suppress(OSError):
                        lines = server.call("GET", path)[1].splitlines()
                        shown = [line for line in lines if path != "/metrics" or "waiting" in line or "in_use" in line]
                        print(f"--- {server.name} {path}", *shown, sep="\n", file=sys.stderr)

    def show_logs(self):
        for process in self.processes:
            tail = "\n".join(process.text().splitlines()[-LOG_TAIL_LINES:])
            print(f"--- {self.id()}: {process.name}, status {process.child.returncode}\n{tail}", file=sys.stderr)

    def data_dir(self):
        """The folder of this test's data; a test may change what is in it."""
        folder = self.folder / "data"
        if not folder.exists():
            folder.mkdir()
            (folder / "digits.csv.gz").write_bytes(digits())
        return folder

    def _start(self, kind, program, name, arguments, environment, *more):
        log = self.folder / f"{name}.log"
        arguments = ["--log.format", "json", *arguments]
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("CENTROID_")}
        place = pathlib.Path(self.programs) / program
        process = kind(place, arguments, log, {**inherited, "OPENBLAS_NUM_THREADS": "1", **(environment or {})}, *more)
        self.processes.append(process)
        return process

    def launch_server(self, *arguments, name="server", environment=None, listen="127.0.0.1:0", api="127.0.0.1:0", run="run"):
        """A server that may fail to start. Its exchange is star, unless told otherwise: auto would be another one at times."""
        if not {"--exchange", "--join"} & set(arguments):
            arguments = ["--exchange", "star", *arguments]
        endpoints = self.folder / f"{name}.{len(self.processes)}.json"
        places = ["--listen", listen, "--api.listen", api, "--run-dir", self.folder / run, "--endpoints-file", endpoints]
        return self._start(Server, "centroid-server", name, [*places, *arguments], environment, endpoints)

    def server(self, *arguments, **places):
        """A server that listens. It trains with plain SGD unless told otherwise."""
        return self.launch_server("--optimizer", "sgd", "--lr", "0.05", *arguments, **places).wait_ready()

    def worker(self, server, name, *arguments, model="mlp:64-16-10", batch=16, environment=None):
        """A worker of the server (or of an endpoint)."""
        endpoint = server if isinstance(server, str) else server.data
        places = ["--server", endpoint, "--name", name, "--data-cache-dir", self.data_dir()]
        places += ["--summary-file", self.summary_file(name), "--model", model, "--batch", batch]
        return self._start(Process, "centroid-worker", name, [*places, *arguments], environment)

    def summary_file(self, name):
        return self.folder / f"{name}.summary.json"

    def summary(self, name):
        return json.loads(self.summary_file(name).read_text())

    def checkpoints(self, run="run"):
        """Folders of the checkpoints on disk, oldest first."""
        return sorted((self.folder / run / "checkpoints").glob("checkpoint-*"))

    def assert_status(self, process, status, *texts):
        """It exits with this status, and its log says each of the texts."""
        self.assertEqual(process.exit_status(), status, process.text())
        for text in texts:
            self.assertIn(text, process.text())

    def assert_exit(self, status, *processes):
        for process in processes:
            self.assert_status(process, status)


class Timed(unittest.TextTestResult):
    """Says how long each test took; `./centroid test --ops` lists the longest."""

    def startTest(self, test):  # noqa: N802
        self.begun = time.monotonic()
        super().startTest(test)

    def stopTest(self, test):  # noqa: N802
        super().stopTest(test)
        self.stream.writeln(f"time: {time.monotonic() - self.begun:.1f} s {test.id()}")


class SideBySide:
    """The tests of a suite, each with a result of its own, `width` at a time."""

    def __init__(self, suite, width):
        self.suite, self.width = suite, width

    def __call__(self, result):
        # A thread outlives all its tests: a program dies with the thread that has started it.
        with concurrent.futures.ThreadPoolExecutor(self.width) as pool:
            running = [pool.submit(self.run_one, test) for test in self.each_of(self.suite)]
            for ended in concurrent.futures.as_completed(running):
                own, said = ended.result()
                result.stream.write(said)
                result.testsRun += own.testsRun
                for kind in ("failures", "errors", "skipped", "expectedFailures", "unexpectedSuccesses"):
                    getattr(result, kind).extend(getattr(own, kind))

    def each_of(self, suite):
        for one in suite:
            yield from self.each_of(one) if isinstance(one, unittest.TestSuite) else [one]

    def run_one(self, test):
        said = io.StringIO()
        own = Timed(unittest.runner._WritelnDecorator(said), descriptions=True, verbosity=2)
        test(own)
        return own, said.getvalue()


class Runner(unittest.TextTestRunner):
    resultclass = Timed
    width = 1

    def run(self, test):
        return super().run(test if self.width == 1 else SideBySide(test, self.width))


def main(at_a_time=1):
    """Entry of a test file: FILE_test.py BIN_DIR [unittest's arguments]. Tests that wait more than they compute run several at a time."""
    ClusterTest.programs = pathlib.Path(sys.argv.pop(1)).resolve()
    Runner.width = 1 if HOLDS_BARS else at_a_time
    unittest.main(verbosity=2, testRunner=Runner)
