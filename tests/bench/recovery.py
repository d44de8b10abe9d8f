#!/usr/bin/env python3
"""Seconds until workers train again after the server was killed (SIGKILL) under load and started again at once.

Usage: recovery.py BIN_DIR [--model mlp:64-2000-2000-10] [--workers 2] [--kills 5] [--checkpoint-every 20]
"""

import argparse
import pathlib
import re
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "process"))
from cluster import Process, Server, digits, free_port, wait_for  # noqa: E402


def unix_seconds(event):
    """Of a log line's time, as seconds of its day."""
    hours, minutes, seconds = re.search(r"T(\d+):(\d+):([\d.]+)Z", event["time"]).groups()
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--model", default="mlp:64-2000-2000-10")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--checkpoint-every", type=int, default=20)
    parser.add_argument("--bar", type=float, default=0, help="status 1 where workers trained again later than so many seconds, or a round was lost")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "data").mkdir()
        (folder / "data" / "digits.csv.gz").write_bytes(digits())
        listen, api = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"

        def start(number):
            endpoints = folder / f"endpoints-{number}.json"
            flags = ["--listen", listen, "--api", api, "--run-dir", folder / "run", "--endpoints-file", endpoints]
            flags += ["--log-format", "json", "--log-level", "debug", "--optimizer", "momentum", "--lr", "0.001", "--journal", "on"]
            flags += ["--checkpoint-every", options.checkpoint_every, "--min-workers", options.workers]
            flags += ["--resume"] if number else []
            return Server(options.bin / "centroid-server", flags, folder / f"server-{number}.log", None, endpoints)

        server = start(0)
        workers = []
        for i in range(options.workers):
            flags = ["--server", listen, "--name", f"w{i}", "--data-cache-dir", folder / "data", "--model", options.model, "--batch", 32]
            workers.append(Process(options.bin / "centroid-worker", flags, folder / f"w{i}.log", None))
        print(f"{options.workers} workers, {options.model}, momentum, a checkpoint every {options.checkpoint_every} rounds")
        print("kill  round  replayed  replay s  trains again after s  committed rounds lost")
        longest, all_lost = 0, 0
        for number in range(1, options.kills + 1):
            wait_for(lambda: len(server.events("round.committed")) >= 30, "30 rounds")
            committed = server.events("round.committed")[-1]["round"]
            server.kill()
            committed = max(committed, max(event["round"] for event in server.events("round.committed")))
            begin = time.time() % 86400
            server = start(number)
            first = server.wait_event("round.committed")
            replayed = server.events("journal.replayed")[0]
            took, lost = unix_seconds(first) - begin, max(0, committed - replayed["round"])
            longest, all_lost = max(longest, took), all_lost + lost
            print(f"{number:4}  {committed:5}  {replayed['rounds']:8}  {replayed['seconds']:8.2f}  {took:20.2f}  {lost:21}", flush=True)
        for process in [*workers, server]:
            process.kill()
        if options.bar:
            is_met = longest <= options.bar and all_lost == 0
            print(f"bar: {options.bar:g} s and no round lost: {'met' if is_met else 'missed'} ({longest:.2f} s, {all_lost} lost)")
            sys.exit(0 if is_met else 1)


if __name__ == "__main__":
    main()
