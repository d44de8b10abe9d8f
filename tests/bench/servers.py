#!/usr/bin/env python3
"""What a server that comes, and one that is drained, costs a training that goes on: the pauses between rounds, and the rounds' time.

Usage: servers.py BIN_DIR [--model mlp:64-2000-2000-10] [--workers 2] [--rounds 20]
"""

import argparse
import pathlib
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "process"))
from cluster import Process, Server, digits, wait_for  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--model", default="mlp:64-2000-2000-10")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "data").mkdir()
        (folder / "data" / "digits.csv.gz").write_bytes(digits())
        endpoints = folder / "endpoints.json"
        flags = ["--listen", "127.0.0.1:0", "--api", "127.0.0.1:0", "--run-dir", folder / "run", "--endpoints-file", endpoints]
        flags += ["--log-format", "json", "--log-level", "debug", "--optimizer", "momentum", "--lr", "0.001"]
        flags += ["--min-workers", options.workers]
        leader = Server(options.bin / "centroid-server", flags, folder / "leader.log", None, endpoints).wait_ready()
        processes = [leader]
        for i in range(options.workers):
            flags = ["--server", leader.data, "--name", f"w{i}", "--data-cache-dir", folder / "data", "--model", options.model, "--batch", 32]
            processes.append(Process(options.bin / "centroid-worker", flags, folder / f"w{i}.log", None))

        def rounds():
            return leader.events("round.committed")

        def show(what, done):
            """The moves until `done`, and the rounds after them."""
            seen = len(leader.events("chunks.moved"))
            wait_for(done, what, 120)
            moves = leader.events("chunks.moved")[seen:]
            count = len(rounds())
            wait_for(lambda: len(rounds()) >= count + options.rounds, "rounds", 120)
            milliseconds = statistics.median(1000 * event["seconds"] for event in rounds()[count:])
            chunks = sum(event["chunks"] for event in moves)
            longest = max((1000 * event["held_seconds"] for event in moves), default=0)
            print(f"{what:20}  {chunks:6}  {len(moves):6}  {longest:16.1f}  {milliseconds:15.1f}", flush=True)

        print(f"{options.workers} workers, {options.model}, momentum")
        print("what                  chunks  pauses  longest pause ms  median round ms")
        wait_for(lambda: len(rounds()) >= 5, "rounds", 120)
        show("one server", lambda: True)
        join = ["--join", leader.data, "--listen", "127.0.0.1:0", "--log-format", "json", "--name", "b"]
        processes.append(Process(options.bin / "centroid-server", join, folder / "b.log", None))
        show("a second one comes", lambda: any(event["left"] == 0 for event in leader.events("chunks.moved")))
        leader.post("/v1/servers/b:drain")
        show("and is drained", lambda: leader.events("server.dropped"))
        for process in processes:
            process.kill()


if __name__ == "__main__":
    main()
