#!/usr/bin/env python3
"""Real jobs under faults: killed, stopped and parted processes and full disks. A ledger says what was lost.

Usage: chaos.py BIN_DIR [--seconds S] [--every S] [--longest S] [--rate R] [--seed N] [--modes NAME ...] [--keep FOLDER]

For each mode a job of three workers runs in network namespaces whose links have the rate R: a minute in peace, then S seconds with a fault
every EVERY seconds: SIGKILL and a start again within 5 s, SIGSTOP until SIGCONT, a partition of any subset, a full disk, each of the last
three for 1 to LONGEST seconds. Then all faults end, the job gets a goal, and the ledger checks:

- every program ends with status 0, within a deadline;
- no version was seen that a later answer took back (exchange star with its journal; ring goes back to its newest checkpoint where the
  server was killed);
- all workers end with the same version and the same bits, which are those of an undisturbed job of as many rounds (not in mode auto, whose
  exchange is chosen by time);
- a row of a table was changed by each confirmed push, and once;
- a program that ended by itself is a finding.

Goodput is the rounds/s under the faults by those of the minute in peace. Prints the seed, which decides the faults, though not their
moment within a round. Needs root, ip and tc, and etcd for mode standby. Exit status 1: a finding.
"""

import argparse
import contextlib
import http.client
import json
import os
import pathlib
import random
import shutil
import signal
import struct
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from machines import Disk, Network, Program
from harness.cluster import digits
from harness.rows import RowsClient

TOKEN, OPERATOR = "of-workers", "of-operators"
WORKERS = ["w0", "w1", "w2"]
MODES = {
    "star": [],
    "ring": [],
    "auto": [],
    "servers": ["s1", "s2"],
    "tables": [],
    "standby": ["t", "e"],  # another server, and etcd
}
LEADS = ("alone", "leader")
SKIPPED = 77
DISK_MEGABYTES, SETTLE_SECONDS, PEACE_SECONDS, LAST_ROUNDS = 64, 180, 60, 200
DIM, KEY, RATE = 4, 7, 0.5
EVEN = struct.pack(f"<{DIM}f", *[1.0] * DIM)


class TableClient(RowsClient):
    names, token = ("t",), TOKEN


class Ledger:
    """What was seen, and what must not be so."""

    def __init__(self):
        self.findings, self.version, self.lock = [], 0, threading.Lock()

    def find(self, text):
        with self.lock:
            self.findings.append(text)
        print(f"FINDING: {text}", flush=True)


class Pushes(threading.Thread):
    """Pushes the same gradient to one row, each once, until `end`."""

    def __init__(self, endpoint):
        super().__init__(daemon=True)
        self.endpoint, self.end, self.count, self.client = endpoint, threading.Event(), 0, None

    def attempt(self, act):
        """`act` on a session, which is opened again as often as needed."""
        while True:
            try:
                if self.client is None:
                    self.client = TableClient(self.endpoint, 1)
                    self.client.peer.settimeout(10)
                return act(self.client)
            except (OSError, EOFError, RuntimeError, struct.error):
                if self.client is not None:
                    self.client.close()
                    self.client = None
                time.sleep(0.2)  # lint-ok: no test

    def run(self):
        while not self.end.is_set():
            self.attempt(lambda client: client.push("t", self.count + 1, [KEY], struct.unpack(f"<{DIM}f", EVEN)))
            self.count += 1
            time.sleep(0.01)  # lint-ok: no test

    def value(self):
        return struct.unpack_from("<f", self.attempt(lambda client: client.pull("t", [KEY])))[0]


class Job:
    """The programs of one job on their machines."""

    def __init__(self, options, network, mode, folder, ledger):
        self.options, self.network, self.mode, self.folder, self.ledger = options, network, mode, folder, ledger
        folder.mkdir()
        self.disk = Disk(folder / "disk", DISK_MEGABYTES)
        self.programs, self.busy, self.lock = {}, set(), threading.Lock()
        self.is_over = threading.Event()

    def host(self, name):
        return self.network.hosts[name]

    def servers(self):
        return ["s0", "t"] if self.mode == "standby" else ["s0"]

    def add(self, name, program, *flags):
        path = program if os.path.isabs(program) else self.options.bin / program
        self.programs[name] = Program(self.network, name, [path, *flags], self.folder / f"{name}.log")

    def begin(self, rounds=0):
        mode = self.mode
        if mode == "standby":
            url, peer = f"http://{self.host('e')}:2379", f"http://{self.host('e')}:2380"
            self.add("e", shutil.which("etcd"), "--name", "e", "--data-dir", self.folder / "etcd", "--listen-client-urls", url, "--advertise-client-urls", url,
                     "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"e={peer}", "--log-level", "error")  # fmt: skip
        common = ["--token", TOKEN, "--log.format", "json"]
        flags = ["--api.token", OPERATOR, "--exchange", mode if mode in ("ring", "auto") else "star", "--optimizer", "momentum", "--lr", "0.01", "--resume",
                 "--min-workers", len(WORKERS), "--keep-min-workers", len(WORKERS), "--checkpoint.every-rounds", 20 if mode in ("ring", "auto") else 500, "--lease", "3s",
                 "--exit-when-finished", "--rounds", rounds, "--run-dir", self.disk.folder]  # fmt: skip
        if mode not in ("ring", "auto"):
            flags += ["--journal.mode", "on"]
        if mode == "servers":
            flags += ["--servers", 3]
        if mode == "tables":
            flags += ["--tables", f"t:dim={DIM},optimizer=sgd,lr={RATE},init=zeros"]
        for name in self.servers():
            places = ["--listen", f"{self.host(name)}:7070", "--api.listen", f"{self.host(name)}:8080", "--name", name]
            own = ["--etcd.endpoints", url, "--cluster", "chaos", "--advertise", self.host(name), "--api.advertise", self.host(name)] if mode == "standby" else []
            self.add(name, "centroid-server", *places, *common, *flags, *own)
        for name in MODES[mode] if mode == "servers" else []:
            self.add(name, "centroid-server", "--join", f"{self.host('s0')}:7070", "--name", name, "--listen", f"{self.host(name)}:7070", *common,
                     "--run-dir", self.disk.folder, "--join-timeout", "10m")  # fmt: skip
        places = ",".join(f"{self.host(name)}:7070" for name in self.servers())
        for name in WORKERS:
            peers = ["--peer.listen", f"{self.host(name)}:7071"] if mode in ("ring", "auto") else []
            self.add(name, "centroid-worker", "--server", places, "--name", name, "--data-cache-dir", self.options.data, "--model", "mlp:64-16-10", "--batch", 16,
                     "--join-timeout", "10m", "--summary-file", self.folder / f"{name}.json", *common, *peers)  # fmt: skip

    def ask(self, name, path, method="GET", body=None):
        """The answer of a server; None: there is none now."""
        connection = http.client.HTTPConnection(self.host(name), 8080, timeout=2)
        with contextlib.closing(connection):
            try:
                fields = {"Authorization": f"Bearer {OPERATOR}", "Content-Type": "application/json"}
                connection.request(method, path, None if body is None else json.dumps(body), fields)
                reply = connection.getresponse()
                text = reply.read()
                return json.loads(text) if reply.status < 300 else None
            except (OSError, ValueError, http.client.HTTPException):
                return None

    def cluster(self):
        """What the leader says of the job; None: nobody answers as one."""
        for name in self.servers():
            found = self.ask(name, "/v1/cluster")
            if found and found["role"] in LEADS:
                return found
        return None

    def set_goal(self, goals):
        """Some rounds more; whether the leader took it."""
        found = self.cluster()
        if found is None:
            return False
        goals.append(found["round"] + LAST_ROUNDS)
        return any(self.ask(name, "/v1/config", "PATCH", {"rounds": goals[-1]}) for name in self.servers())

    def wait(self, condition, what, seconds=SETTLE_SECONDS):
        limit = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > limit:
                waits = [self.ask(name, "/v1/waits") for name in self.servers()]
                self.ledger.find(f"{self.mode}: no {what} within {seconds} s; waits: {json.dumps(waits)[:2000]}")
                return False
            time.sleep(0.1)  # lint-ok: no test
        return True

    def speed_of(self, seconds):
        """Rounds/s from now on."""
        first, begun = self.cluster()["round"], time.monotonic()
        time.sleep(seconds)  # lint-ok: no test
        return (self.cluster()["round"] - first) / (time.monotonic() - begun)

    def watch(self):
        """Start again who ended, and see that versions do not fall."""
        while not self.is_over.wait(0.2):
            with self.lock:
                ended = [one for name, one in self.programs.items() if name not in self.busy and one.child.poll() is not None]
                for one in ended:
                    self.ledger.find(f"{self.mode}: {one.name} ended by itself with status {one.child.returncode}:\n{one.tail()}")
                    one.start()
            found = self.cluster()
            if found and found["state"] in ("training", "paused"):
                if found["version"] < self.ledger.version and self.mode not in ("ring", "auto"):
                    self.ledger.find(f"{self.mode}: version {found['version']} after {self.ledger.version}")
                self.ledger.version = max(found["version"], self.ledger.version)

    def end_all(self):
        self.is_over.set()
        for one in self.programs.values():
            if one.child.poll() is None:
                one.send(signal.SIGCONT)
                one.kill()
        self.disk.close()


class Faults:
    """One fault after another, each in a thread of its own."""

    def __init__(self, job, draw, options):
        self.job, self.draw, self.options, self.threads = job, draw, options, []
        self.counts, self.begun = {}, time.monotonic()

    def run(self, seconds):
        over = time.monotonic() + seconds
        while time.monotonic() < over:
            kind = self.draw.choice(["kill", "kill", "stop", "part", "disk"])
            span = self.draw.uniform(1, self.options.longest)
            names = sorted(self.job.programs)
            victims = self.draw.sample(names, self.draw.randint(1, len(names) - 1) if kind == "part" else 1)
            self.counts[kind] = self.counts.get(kind, 0) + 1
            print(f"  {time.monotonic() - self.begun:6.1f} s: {kind} {' '.join(victims)}, {span:.1f} s", flush=True)
            thread = threading.Thread(target=getattr(self, kind), args=(victims, span), daemon=True)
            thread.start()
            self.threads.append(thread)
            time.sleep(max(0, min(self.options.every, over - time.monotonic())))  # lint-ok: no test
        for thread in self.threads:
            thread.join()

    @contextlib.contextmanager
    def own(self, name):
        """The program, if no other fault has it."""
        with self.job.lock:
            is_free = name not in self.job.busy
            self.job.busy.add(name)
        try:
            yield self.job.programs[name] if is_free else None
        finally:
            if is_free:
                with self.job.lock:
                    self.job.busy.discard(name)

    def kill(self, names, span):
        with self.own(names[0]) as one:
            if one:
                one.kill()
                time.sleep(min(span, 5))  # lint-ok: no test
                one.start()

    def stop(self, names, span):
        with self.own(names[0]) as one:
            if one:
                one.send(signal.SIGSTOP)
                time.sleep(span)  # lint-ok: no test
                one.send(signal.SIGCONT)

    def part(self, names, span):
        self.job.network.part(names)
        time.sleep(span)  # lint-ok: no test
        self.job.network.join(names)

    def disk(self, _, span):
        self.job.disk.fill()
        time.sleep(span)  # lint-ok: no test
        self.job.disk.free()


def finish(job):
    """The job's workers' summaries at its end; None: it did not end."""
    ends = job.wait(lambda: all(one.child.poll() is not None for name, one in job.programs.items() if name != "e" and name != "t"), "end of the job")
    for name, one in job.programs.items():
        if name not in ("e", "t") and one.child.poll() not in (0, None):
            job.ledger.find(f"{job.mode}: {name} ended with status {one.child.returncode}:\n{one.tail()}")
            ends = False
    return [json.loads((job.folder / f"{name}.json").read_text()) for name in WORKERS] if ends else None


def disturb(options, network, mode, folder, ledger):
    """A job with faults: the rounds it made, its rounds/s in peace and under the faults, and the summaries."""
    job = Job(options, network, mode, folder, ledger)
    try:
        job.begin()
        if not job.wait(lambda: (job.cluster() or {"round": 0})["round"] > 50, "first rounds"):
            return None
        watcher = threading.Thread(target=job.watch, daemon=True)
        watcher.start()
        pushes = Pushes(f"{job.host('s0')}:7070") if mode == "tables" else None
        if pushes:
            pushes.start()
        calm = job.speed_of(PEACE_SECONDS)
        first, begun = job.cluster()["round"], time.monotonic()
        faults = Faults(job, random.Random(f"{options.seed} {mode}"), options)
        faults.run(options.seconds)
        spent, last = time.monotonic() - begun, ledger.version
        is_back = lambda: (job.cluster() or {"round": 0, "state": ""})["round"] > last + 20  # noqa: E731
        if not job.wait(is_back, f"round beyond {last + 20} after the faults"):
            return None
        if pushes:
            pushes.end.set()
            pushes.join(60)
            changed = pushes.value() / -RATE
            print(f"  {pushes.count} pushes confirmed, {changed:g} in the row")
            if changed != pushes.count:
                ledger.find(f"{mode}: {pushes.count} pushes confirmed, {changed:g} in the row")
        job.is_over.set()
        watcher.join()
        goals = []
        if not job.wait(lambda: job.set_goal(goals), "server that takes a goal"):
            return None
        goal = goals[-1]
        summaries = finish(job)
        print(f"  faults: {faults.counts}; starts: { {name: one.starts for name, one in job.programs.items()} }")
        return (goal, calm, (last - first) / spent, summaries) if summaries else None
    finally:
        job.end_all()


def repeat_undisturbed(options, network, mode, folder, ledger, rounds):
    """The summaries of a job of so many rounds without faults."""
    job = Job(options, network, mode, folder, ledger)
    try:
        job.begin(rounds)
        job.wait(lambda: all(job.programs[name].child.poll() is not None for name in WORKERS), "end of the undisturbed job", 4 * options.seconds + SETTLE_SECONDS)
        return finish(job)
    finally:
        job.end_all()


def play(options, mode, folder):
    ledger = Ledger()
    names = ["s0", *MODES[mode], *WORKERS]
    with Network(names) as network:
        print(f"{mode}: seed {options.seed}", flush=True)
        network.limit(options.rate)
        ended = disturb(options, network, mode, folder / mode, ledger)
        if ended is None:
            return ledger.findings
        rounds, calm, speed, summaries = ended
        network.unlimit()
        wanted = repeat_undisturbed(options, network, mode, folder / f"{mode}-calm", ledger, rounds)
    versions, bits = ({one[key] for one in summaries} for key in ("version", "fingerprint"))
    if len(versions) > 1 or len(bits) > 1:
        ledger.find(f"{mode}: workers end with versions {versions} and fingerprints {bits}")
    if wanted and mode != "auto" and bits != {one["fingerprint"] for one in wanted}:
        ledger.find(f"{mode}: the parameters after {rounds} rounds are not those of an undisturbed job")
    print(f"{mode}: {rounds} rounds, goodput {speed / calm:.2f} ({speed:.0f} of {calm:.0f} rounds/s), {len(ledger.findings)} findings", flush=True)
    return ledger.findings


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("--seconds", type=float, default=1200)
    parser.add_argument("--every", type=float, default=30)
    parser.add_argument("--longest", type=float, default=30)
    parser.add_argument("--rate", default="4mbit", help="of each machine's link, so that rounds cost little processor time")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--modes", nargs="*", choices=MODES, default=list(MODES))
    parser.add_argument("--keep", type=pathlib.Path, help="folder for the logs")
    options = parser.parse_args()
    if os.geteuid() != 0 or shutil.which("tc") is None:
        print("skipped: chaos needs root, ip and tc", file=sys.stderr)
        sys.exit(SKIPPED)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that all programs end, and the namespaces go
    findings = []
    with tempfile.TemporaryDirectory(prefix="centroid-chaos-") as folder:
        options.data = pathlib.Path(folder) / "data"
        options.data.mkdir()
        (options.data / "digits.csv.gz").write_bytes(digits())
        for mode in options.modes:
            if mode == "standby" and shutil.which("etcd") is None:
                print("standby: left out, there is no etcd")
                continue
            findings += play(options, mode, pathlib.Path(options.keep or folder))
    print(f"{len(findings)} findings, seed {options.seed}")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
