#!/usr/bin/env python3
"""The largest resident memory of a shard server by the number of workers.

Usage: shard_memory.py BIN_DIR [--model mlp:64-5000-5000-10] [--workers 2 8 16] [--rounds 6] [--policy bsp] [--credit 16777216] [--bar MIB]

A leader and one shard server; momentum. A shard server has its share of the parameters, the slot, the spare plane and results on their way: 4 planes. The
rest is credit of contributions that wait for their turn, and the process. --bar: MiB beside the planes and the credit. Exit status 1: it is missed.
"""

import argparse
import pathlib
import re
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import Process, Server, digits, wait_for
from verdict import verdict

MIB = 1 << 20
PLANES = 4


def peak(process):
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024


def measure(options, workers):
    """The shard server's largest memory, and the bytes of parameters that lie on it."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "data").mkdir()
        (folder / "data" / "digits.csv.gz").write_bytes(digits())
        endpoints = folder / "endpoints.json"
        flags = ["--listen", "127.0.0.1:0", "--api.listen", "127.0.0.1:0", "--run-dir", folder / "run", "--endpoints-file", endpoints, "--log.format", "json"]
        flags += ["--log.level", "debug", "--optimizer", "momentum", "--lr", "0.001", "--servers", 2, "--min-workers", workers, "--policy", options.policy]
        flags += ["--credit-bytes", options.credit]
        leader = Server(options.bin / "centroid-server", flags, folder / "leader.log", None, endpoints).wait_ready()
        join = ["--join", leader.data, "--listen", "127.0.0.1:0", "--log.format", "json", "--name", "b"]
        shard = Process(options.bin / "centroid-server", join, folder / "b.log", None)
        processes = [leader, shard]
        for i in range(workers):
            flags = ["--server", leader.data, "--name", f"w{i}", "--data-cache-dir", folder / "data", "--model", options.model, "--batch", 1]
            processes.append(Process(options.bin / "centroid-worker", flags, folder / f"w{i}.log", None))
        wait_for(lambda: len(leader.events("round.committed")) >= options.rounds, "rounds", 600)
        largest = peak(shard)
        share = next(view for view in leader.get("/v1/servers")["servers"] if view["name"] == "b")["bytes"]
        for process in processes:
            process.kill()
        return largest, share


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("--model", default="mlp:64-5000-5000-10")
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 8, 16])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--policy", default="bsp")
    parser.add_argument("--credit", type=int, default=16 * MIB, help="bytes of one worker")
    parser.add_argument("--bar", type=float, default=0, help="MiB; 0: none")
    options = parser.parse_args()
    print(f"{options.model}, momentum, policy {options.policy}, 2 servers")
    print("workers  share MiB  peak MiB  beside planes MiB  beside planes and credit MiB")
    most = 0
    for workers in options.workers:
        largest, share = measure(options, workers)
        beside = largest - PLANES * share
        rest = (beside - workers * options.credit) / MIB
        most = max(most, rest)
        print(f"{workers:7}  {share / MIB:9.1f}  {largest / MIB:8.1f}  {beside / MIB:17.1f}  {rest:28.1f}", flush=True)
    sys.exit(verdict("memory beside planes and credit", most, options.bar, "MiB"))


if __name__ == "__main__":
    main()
