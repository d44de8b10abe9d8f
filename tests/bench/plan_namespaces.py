#!/usr/bin/env python3
"""What `centroidctl plan` predicts, beside what workers measure on links of that bandwidth.

Makes a network namespace for each worker (collectives_namespaces.py), whose link sends at most RATE, and trains in every way of
the plan. A worker has its part of this machine's cores, or one that others share; so has the plan, which is made for each worker
at the same time. Prints predicted over measured time of a step, and memory. Needs root, ip, tc and taskset; without them it says so
and ends well. The link of a worker is limited in both directions; a rate near the speed of this machine's processors measures these.
"""

import argparse
import json
import os
import pathlib
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile

from collectives_namespaces import Network

BYTES = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
UNITS = {"gbit": "Gb/s", "mbit": "Mb/s"}


def pinned(rank, ranks):
    """Begin of a command that runs on this rank's cores."""
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // ranks)
    return ["taskset", "-c", ",".join(str(cores[(rank * share + i) % len(cores)]) for i in range(share))]


def plan_of(arguments):
    """The first worker's."""
    number, unit = arguments.rate[:-4], UNITS[arguments.rate[-4:]]
    command = [arguments.bin / "centroidctl", "--output", "json", "plan", "--model", arguments.model, "--workers", str(arguments.ranks)]
    command += ["--bandwidth", number + unit, "--optimizer", arguments.optimizer, "--batch", str(arguments.batch)]
    command += ["--codec", arguments.codec, "--codec-down", arguments.codec_down]
    plans = [subprocess.Popen([*pinned(rank, arguments.ranks), *command], stdout=subprocess.PIPE) for rank in range(arguments.ranks)]
    outputs = [plan.communicate()[0] for plan in plans]
    if any(plan.returncode != 0 for plan in plans):
        sys.exit("a plan failed")
    return json.loads(outputs[0])


def train(arguments, network, row, folder):
    """The summaries of the ranks, and the seconds of a step without the first ones."""
    words = shlex.split(row["command"].replace("HOST:PORT", f"{network.hosts[0]}:7080").replace("DATA", f"text:{folder / 'texts'}").replace("--epochs 1", ""))
    seconds = {}
    for rounds in (arguments.warm_up, arguments.warm_up + arguments.rounds):
        files = [folder / f"summary-{rank}.json" for rank in range(arguments.ranks)]
        ranks = []
        for rank, name in enumerate(network.names):
            own = [str(rank) if word == "RANK" else word for word in words[1:]]
            command = [*pinned(rank, arguments.ranks), "ip", "netns", "exec", name, arguments.bin / "centroid-worker", *own]
            command += ["--rounds", str(rounds), "--summary-file", files[rank], "--log.level", "error"]
            ranks.append(subprocess.Popen(command))
        if any(rank.wait() != 0 for rank in ranks):
            sys.exit(f"a worker failed: {row['flags']}")
        summaries = [json.loads(file.read_text()) for file in files]
        seconds[rounds] = max(one["seconds"] for one in summaries)
    return summaries, (seconds[arguments.warm_up + arguments.rounds] - seconds[arguments.warm_up]) / arguments.rounds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="folder of the programs")
    parser.add_argument("--model", default="transformer:layers=4,width=256,heads=4,context=64")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--optimizer", default="adam")
    parser.add_argument("--codec", default="f32")
    parser.add_argument("--codec-down", default="f32")
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--turns", type=int, default=1)
    arguments = parser.parse_args()
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc", "taskset"))):
        print("skipped: needs root, ip and tc (package iproute2), and taskset (util-linux)")
        return 0
    # So that a signal leaves through __exit__.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    print(f"{arguments.model}, {arguments.ranks} workers, batch {arguments.batch}, {arguments.optimizer}, codecs {arguments.codec} and {arguments.codec_down}, {arguments.rate}, {arguments.turns} turns")
    print(f"{'':<36} {'predicted, s':>12} {'measured, s':>12} {'ratio':>6} {'planned, MB':>12} {'counted, MB':>12} {'ratio':>6}")
    missed = 0
    with tempfile.TemporaryDirectory() as path, Network(arguments.ranks, arguments.rate, 1500) as network:
        folder = pathlib.Path(path)
        (folder / "texts").mkdir()
        (folder / "texts" / "a.txt").write_text("the quick brown fox jumps over the lazy dog. " * 2000)
        plans, measured, memory = [], {}, {}
        for _ in range(arguments.turns):
            plans.append(plan_of(arguments)["rows"])
            for row in plans[-1]:
                summaries, seconds = train(arguments, network, row, folder)
                measured.setdefault(row["flags"], []).append(seconds)
                memory[row["flags"]] = max(sum(one[key] for key in BYTES) for one in summaries)
        for index, row in enumerate(plans[0]):
            flags = row["flags"]
            predicted = statistics.median(plan[index]["step_seconds"] for plan in plans)
            seconds, planned = statistics.median(measured[flags]), sum(row[key] for key in BYTES)
            times, bytes_ = predicted / seconds, planned / memory[flags]
            missed += not 0.8 <= times <= 1.2 or not 0.9 <= bytes_ <= 1.1
            print(f"{flags:<36} {predicted:12.3f} {seconds:12.3f} {times:6.2f} {planned / 1e6:12.1f} {memory[flags] / 1e6:12.1f} {bytes_:6.2f}")
    print(f"{missed} of {len(plans[0])} are outside of 20 % in time or 10 % in memory")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
