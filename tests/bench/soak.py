#!/usr/bin/env python3
"""A server that runs for long, with workers that come and go: does what it holds grow?

Usage: soak.py BIN_DIR [--minutes 60] [--workers 4] [--churn 10] [--keep 0.5] [--bar 1.1]

One server with a journal, checkpoints by time, and a table of rows with a bound and keys that never end; workers (top-k with error
feedback), of which every --churn seconds one is killed (SIGKILL), or asked to leave, and another one comes, every third under a new
name; a client of rows, a stream of events, and now and then a change of the configuration, a token that is made and revoked, a pause, a
checkpoint that is asked for. Each line of the table is what the server holds: resident memory, open files, threads, series of /metrics, and
what lies in its folder. At the end what it held in the last quarter is compared with what it held in the second (medians), and must have
grown to no more than --bar times that; files and threads by no more than --spare. Of the folder the most counts: a checkpoint is its beginning.
"""

import argparse
import array
import http.client
import os
import pathlib
import random
import statistics
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import Process, Server, wait_for
import centroid

DIM, BATCH, KEYS_STEP = 16, 512, 64
TABLE = f"t:dim={DIM},max_bytes=8388608"


class Soak:
    def __init__(self, options, folder):
        self.options, self.folder, self.draw = options, folder, random.Random(options.seed)
        self.names, self.workers, self.is_over = 0, [], threading.Event()
        self.turns, self.pushes, self.events = 0, 0, 0

    def start_server(self):
        endpoints = self.folder / "endpoints.json"
        flags = ["--listen", "127.0.0.1:0", "--api.listen", "127.0.0.1:0", "--run-dir", self.folder / "run", "--endpoints-file", endpoints, "--log.level", "warn"]
        flags += ["--log.format", "json", "--optimizer", "adam", "--lr", "0.0001", "--journal.mode", "on", "--checkpoint.interval", "20s", "--tables", TABLE]
        self.server = Server(self.options.bin / "centroid-server", flags, self.folder / "server.log", None, endpoints).wait_open()

    def start_worker(self, name=None):
        if name is None:
            self.names += 1
            name = f"w{self.names}"
        flags = ["--server", self.server.data, "--name", name, "--data-cache-dir", self.options.data_cache_dir.resolve(), "--model", self.options.model]
        flags += ["--codec", "topk:0.05", "--slowdown", self.options.slowdown, "--log.level", "error"]
        self.workers.append(Process(self.options.bin / "centroid-worker", flags, self.folder / f"{name}.log", None))

    def rows(self):
        """Keys that come, are used for a while, and never again."""
        gradients = memoryview(array.array("f", BATCH * DIM * [0.01])).cast("B").cast("f", [BATCH, DIM])
        draw, first = random.Random(self.options.seed), 0
        with centroid.Rows(self.server.data, "t", timeout=120) as rows:
            while not self.is_over.wait(self.options.rest):
                keys = array.array("Q", (first + draw.randrange(100 * KEYS_STEP) for _ in range(BATCH)))
                rows.push(keys, gradients)
                rows.pull(keys)
                first += KEYS_STEP
                self.pushes += 1

    def follow(self):
        """Who reads the stream of events, and comes anew every now and then."""
        host, port = self.server.api.split(":")
        while not self.is_over.is_set():
            connection = http.client.HTTPConnection(host, int(port), timeout=60)
            connection.request("GET", "/v1/events", headers={"Accept": "text/event-stream"})
            answer = connection.getresponse()
            for _ in range(300):
                if self.is_over.is_set() or not answer.readline():
                    break
                self.events += 1
            connection.close()

    def turn(self):
        """One of those that train goes, and another one comes."""
        self.turns += 1
        gone = self.workers.pop(self.draw.randrange(len(self.workers)))
        if self.turns % 2:
            gone.kill()
        else:
            gone.child.terminate()
            gone.child.wait(60)
        self.start_worker(None if self.turns % 3 == 0 else gone.name)
        call = self.server.call
        if self.turns % 5 == 0:
            call("PATCH", "/v1/config", {"lr": 0.0001 + 0.00001 * (self.turns % 7)})
            call("POST", "/v1/checkpoints")
        if self.turns % 7 == 0:
            call("POST", "/v1/tokens", {"name": f"t{self.turns}", "role": "viewer"})
            call("DELETE", f"/v1/tokens/t{self.turns}")
        if self.turns % 11 == 0:
            call("POST", "/v1/job:pause")
            call("POST", "/v1/job:resume")

    def held(self):
        """Bytes of memory, files, threads, series, bytes in the folder."""
        place = pathlib.Path(f"/proc/{self.server.pid}")
        status = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
        _, metrics = self.server.call("GET", "/metrics")
        series = sum(1 for line in metrics.splitlines() if line and not line.startswith("#"))
        disk = 0
        for path in (self.folder / "run").rglob("*"):
            try:
                disk += path.stat().st_size
            except FileNotFoundError:
                pass  # a checkpoint that went meanwhile
        return int(status["VmRSS"].split()[0]) * 1024, len(os.listdir(place / "fd")), int(status["Threads"]), series, disk

    def run(self):
        options = self.options
        centroid.load(options.bin.parent / "lib" / "libcentroid.so")
        self.start_server()
        for _ in range(options.workers):
            self.start_worker()
        wait_for(lambda: self.server.cluster()["round"] > 10, "training")
        threads = [threading.Thread(target=work, daemon=True) for work in (self.rows, self.follow)]
        for thread in threads:
            thread.start()
        print(f"{options.workers} workers, {options.model}, adam, topk:0.05; one goes and one comes every {options.churn:g} s; table {TABLE}", flush=True)
        print("minute   rounds  admissions  pushes of rows  events  memory MB  files  threads  series  folder MB", flush=True)
        begin, seen, shown = time.monotonic(), [], 0
        while (passed := time.monotonic() - begin) < 60 * options.minutes:
            time.sleep(options.churn)  # lint-ok: the time that a worker has
            self.turn()
            seen.append(self.held())
            if not all(thread.is_alive() for thread in threads):
                raise SystemExit("pushes of rows, or the stream of events, have ended")
            if passed >= shown:
                memory, files, running, series, disk = seen[-1]
                cluster = self.server.cluster()
                counts = f"{passed / 60:6.1f}  {cluster['round']:7}  {self.turns + options.workers:10}  {self.pushes:14}  {self.events:6}"
                print(f"{counts}  {memory / 1e6:9.1f}  {files:5}  {running:7}  {series:6}  {disk / 1e6:9.1f}", flush=True)
                shown += 60 * options.every
        return self.verdict(seen)

    def verdict(self, seen):
        quarter = len(seen) // 4
        if quarter < 3:
            raise SystemExit("too short to tell: four quarters of at least three looks each are needed")
        missed = 0
        ways = (*4 * [statistics.median], max)
        parts = [[way(one[place] for one in part) for place, way in enumerate(ways)] for part in (seen[quarter : 2 * quarter], seen[-quarter:])]
        for place, (what, is_counted) in enumerate((("memory", False), ("open files", True), ("threads", True), ("series", False), ("folder", False))):
            before, after = parts[0][place], parts[1][place]
            is_held = after <= before + self.options.spare if is_counted else after <= self.options.bar * before
            bound = f"{self.options.spare} more" if is_counted else f"{self.options.bar:g} times"
            print(f"bar: {what}, last quarter against the second, at most {bound}: {after:.0f} against {before:.0f}, {'held' if is_held else 'MISSED'}")
            missed += not is_held
        return missed

    def close(self):
        self.is_over.set()
        for process in [*self.workers, self.server]:
            process.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--every", type=float, default=5, help="minutes between two lines")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--churn", type=float, default=10, help="seconds from one worker that goes to the next")
    parser.add_argument("--slowdown", type=float, default=4, help="of the workers, so that they leave the machine to others")
    parser.add_argument("--rest", type=float, default=0.05, help="seconds between two pushes of rows")
    parser.add_argument("--model", default="mlp:64-128-10")
    parser.add_argument("--data-cache-dir", type=pathlib.Path, default=pathlib.Path(".cache/data"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bar", type=float, default=1.1)
    parser.add_argument("--spare", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="centroid-bench-") as name:
        soak = Soak(options, pathlib.Path(name))
        try:
            missed = soak.run()
        finally:
            soak.close()
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
