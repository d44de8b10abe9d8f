#!/usr/bin/env python3
"""How long training takes to an accuracy with each policy, with equal workers and where the last one is slower.

Usage: policies.py BIN_DIR [--workers 3] [--slowdown 3] [--accuracy 0.95] [--repeats 3] [--policies bsp,backup:1,quorum:2,ssp:3,asp] [--lr 0.02]

Digits, plain SGD, a batch a contribution. Where each contribution is a step by itself (asp, ssp) the learning rate is divided by the workers,
so that a sample moves the parameters as far as with bsp. Time counts from the moment when all workers are there until the held-out images
are classified so well, which is looked at at the end of each epoch; who does not come so far within --limit seconds has no time. Policies
take turns; printed are medians, and the accuracy where all samples of --epochs epochs are trained.
"""

import argparse
import pathlib
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import Process, Server, wait_for

ALONE = ("asp", "ssp")  # a contribution is a step


def run(options, folder, policy, slowdown):
    """Seconds and rounds to the accuracy (none: not reached), rounds a second, and the accuracy at the end."""
    endpoints = folder / "endpoints.json"
    lr = options.lr / options.workers if policy.startswith(ALONE) else options.lr
    flags = ["--listen", "127.0.0.1:0", "--api.listen", "127.0.0.1:0", "--run-dir", folder / "run", "--endpoints-file", endpoints, "--log.format", "json"]
    flags += ["--policy", policy, "--optimizer", "sgd", "--lr", lr, "--min-workers", options.workers, "--epochs", options.epochs, "--seed", options.seed]
    server = Server(options.bin / "centroid-server", flags, folder / "server.log", None, endpoints).wait_ready()
    processes = [server]
    try:
        for number in range(options.workers):
            flags = ["--server", server.data, "--name", f"w{number}", "--model", options.model, "--batch", options.batch, "--seed", options.seed]
            flags += ["--data-cache-dir", options.data_cache_dir.resolve(), "--log.level", "warn"]
            flags += ["--slowdown", slowdown if number == options.workers - 1 else 1]
            processes.append(Process(options.bin / "centroid-worker", flags, folder / f"w{number}.log", None))
        wait_for(lambda: server.cluster()["state"] == "finished", f"{options.epochs} epochs with {policy}", options.limit)
        formed = server.get("/v1/events?type=generation.formed&limit=1")["events"][0]["unix_seconds"]
        told = server.get("/v1/events?type=model.evaluated&limit=1000")["events"]
        good = next((event for event in told if event["accuracy"] >= options.accuracy), None)
        trained = told[-1]["unix_seconds"] - formed
        reached = (good["unix_seconds"] - formed, good["version"]) if good else (None, None)
        return *reached, told[-1]["version"] / trained, told[-1]["accuracy"]
    finally:
        for process in reversed(processes):
            process.kill()


def middle(values):
    """The median; none where one has none."""
    return None if None in values else statistics.median(values)


def show(what, value, form):
    return f"{'-' if value is None else format(value, form):>{what}}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--slowdown", type=float, default=3)
    parser.add_argument("--accuracy", type=float, default=0.95)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit", type=float, default=120)
    parser.add_argument("--policies", default="bsp,backup:1,quorum:2,ssp:3,asp")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--model", default="mlp:64-512-512-10")
    parser.add_argument("--data-cache-dir", type=pathlib.Path, default=pathlib.Path(".cache/data"))
    options = parser.parse_args()
    policies = options.policies.split(",")
    print(f"{options.workers} workers, {options.model}, batches of {options.batch}, sgd {options.lr}; to {options.accuracy:.0%} of the held-out images")
    print("slowest  policy      seconds    rounds  rounds/s  accuracy at the end")
    for slowdown in (1, options.slowdown):
        found = {policy: [] for policy in policies}
        for repeat in range(options.repeats):
            options.seed = repeat + 1
            for policy in policies:
                with tempfile.TemporaryDirectory(prefix="centroid-bench-") as name:
                    found[policy].append(run(options, pathlib.Path(name), policy, slowdown))
        for policy, runs in found.items():
            seconds, rounds, rate, accuracy = (middle(list(values)) for values in zip(*runs))
            line = show(9, seconds, ".2f") + show(10, rounds, ".0f") + show(10, rate, ".0f") + show(21, accuracy, ".3f")
            print(f"{slowdown:5.1f} x  {policy:10}{line}", flush=True)


if __name__ == "__main__":
    main()
