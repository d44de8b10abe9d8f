#!/usr/bin/env python3
"""Seconds until a worker of exchange sharded that was killed (SIGKILL) and started again is back: from its start to its first step.

Usage: sharded_return.py BIN_DIR [--model mlp:64-2048-2048-2048-2048-2048-2048-2048-10] [--ranks 4] [--batch 4] [--kills 5] [--sharding full] [--bar 5]

BIN_DIR has the programs of process tests (build/release/test-bin), whose fault points say when the first step is made. The model has 25.3 million
parameters, with Adam.
"""

import argparse
import os
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import Process, digits, free_port, wait_for
from recovery import unix_seconds
from verdict import verdict


class Job:
    def __init__(self, options, folder):
        self.options, self.folder, self.started = options, folder, 0
        self.place = f"127.0.0.1:{free_port()}"
        (folder / "data").mkdir()
        (folder / "data" / "digits.csv.gz").write_bytes(digits())
        self.workers = [self.start(rank) for rank in range(options.ranks)]

    def start(self, rank):
        options = self.options
        self.started += 1
        worker = self.folder / f"w{self.started}"
        flags = ["--exchange", "sharded", "--world", options.ranks, "--rank", rank, "--rendezvous", self.place, "--sharding", options.sharding]
        flags += ["--optimizer", "adam", "--model", options.model, "--batch", options.batch, "--epochs", 1_000_000]
        flags += ["--data-cache-dir", self.folder / "data", "--log.format", "json"]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "CENTROID_TEST_FAULT_LOG": str(worker.with_suffix(".points"))}
        return Process(options.bin / "centroid-worker", flags, worker.with_suffix(".log"), environment)

    def wait_step(self, worker):
        points = worker.log.with_suffix(".points")
        wait_for(lambda: points.exists() and "sharded.stepped" in points.read_text(), f"a step of {worker.name}")

    def kill_and_return(self, rank):
        """Seconds since its start until a worker is at the leader, has joined, and has made a step."""
        self.workers[rank].kill()
        begin, begin_of_day = time.monotonic(), time.time() % 86400
        self.workers[rank] = worker = self.start(rank)
        self.wait_step(worker)
        took = time.monotonic() - begin
        joined = worker.wait_event("sharded.joined")
        waiting = unix_seconds(worker.events("sharded.newcomer_waiting")[-1]) - begin_of_day
        return waiting, unix_seconds(joined) - begin_of_day, took, joined

    def end(self):
        for worker in self.workers:
            worker.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--model", default="mlp:64" + 7 * "-2048" + "-10")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--sharding", default="full")
    parser.add_argument("--bar", type=float, default=0, help="status 1 where a worker was back later than so many seconds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        job = Job(options, pathlib.Path(name))
        for worker in job.workers:
            job.wait_step(worker)
        print(f"{options.ranks} ranks, {options.model}, sharding {options.sharding}, Adam, {options.batch} samples a rank")
        print("kill  rank  step  at the leader s  joined s  of which state s  first step s")
        longest = 0
        try:
            for number in range(options.kills):
                rank = number % options.ranks
                waiting, joined, took, told = job.kill_and_return(rank)
                longest = max(longest, took)
                print(f"{number + 1:4}  {rank:4}  {told['step']:4}  {waiting:15.2f}  {joined:8.2f}  {told['seconds']:16.2f}  {took:12.2f}", flush=True)
        finally:
            job.end()
        sys.exit(verdict("a worker is back after", longest, options.bar, "s"))


if __name__ == "__main__":
    main()
