#!/usr/bin/env python3
"""Two workers, one of them slower, on digits: what they train together, against what each trains alone.

Usage: cadence.py BIN_DIR [--slowdown 3] [--seconds 8] [--cadence off|speed|tuned] [--local-steps 10] [--overlap N] [--model SPEC] ...
Ideal is the sum of the samples a second that each makes alone, as a whole program without a cluster (exchange local): forward,
backward, its optimizer's step, held-out data at each epoch's end, by its clock on the wall. The cluster is measured in the middle of
its training, from the number of samples that the server has counted. Of computing alone is the same against forward and backward
only, which nobody reaches who also learns. Side by side is what the two reach at the same time on this machine without a cluster: what they
take from each other, caches, memory and cores, no cluster gives back. Busy is from the workers' own clocks: the part of a round that they
computed, weighted by their speed. Of the repeats the median counts; alone, side by side and together take turns.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.request

from verdict import verdict


def begin_solo(options, summary, slowdown, rounds):
    flags = ["--exchange", "local", "--rounds", str(rounds), "--slowdown", str(slowdown), "--summary-file", str(summary)]
    return subprocess.Popen([options.bin / "centroid-worker", *flags, *common(options)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def speeds(summary):
    """Samples a second of a worker that has ended: in all, and while it computed."""
    told = json.loads(summary.read_text())
    return told["samples"] / told["seconds"], told["samples"] / told["compute_seconds"]


def solo(options, folder, slowdown):
    """Those of one worker alone."""
    summary = folder / "solo.json"
    if begin_solo(options, summary, slowdown, options.solo_rounds).wait() != 0:
        raise SystemExit("a worker alone did not end well")
    return speeds(summary)


def side_by_side(options, folder, alone):
    """Samples a second of both at the same time, each for itself; their rounds are such that they end together."""
    summaries = [folder / f"beside-{number}.json" for number in range(len(alone))]
    fastest = max(one[0] for one in alone)
    rounds = [max(round(options.solo_rounds * one[0] / fastest), 1) for one in alone]
    slowdowns = (1, options.slowdown)
    children = [begin_solo(options, *each) for each in zip(summaries, slowdowns, rounds)]
    if any([child.wait() != 0 for child in children]):
        raise SystemExit("a worker beside another one did not end well")
    return sum(speeds(summary)[0] for summary in summaries)


def common(options):
    return ["--model", options.model, "--batch", str(options.batch), "--data-cache-dir", str(options.data_cache_dir), "--log.level", "warn"]


def get(api, path):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{api}{path}", timeout=10) as reply:
        return json.loads(reply.read())


def wait_samples(api, count):
    deadline = time.monotonic() + 60
    while get(api, "/v1/cluster")["samples_total"] < count:
        if time.monotonic() > deadline:
            raise SystemExit(f"no {count} samples within 60 s")
        time.sleep(0.02)  # lint-ok: a benchmark measures time


def together(options, folder):
    """Samples a second of both, and what REST says of them."""
    endpoints = folder / "endpoints.json"
    server = [options.bin / "centroid-server", "--listen", "127.0.0.1:0", "--api.listen", "127.0.0.1:0", "--endpoints-file", str(endpoints)]
    server += ["--run-dir", str(folder / "run"), "--min-workers", "2", "--cadence.mode", options.cadence, "--log.level", "warn"]
    server += ["--local-steps", str(options.local_steps), "--outer", "average"]
    if options.overlap:
        server += ["--overlap", str(options.overlap)]
    for name in ("overhead",):
        if (value := getattr(options, name)) is not None:
            server += ["--cadence." + name.replace("_", "-"), str(value)]
    children = [subprocess.Popen(server)]
    try:
        while not endpoints.exists():
            time.sleep(0.02)  # lint-ok: a benchmark measures time
        places = json.loads(endpoints.read_text())
        for name, slowdown in (("fast", 1), ("slow", options.slowdown)):
            flags = ["--server", places["data"], "--name", name, "--slowdown", str(slowdown), "--inner.lr", "0.05"]
            children.append(subprocess.Popen([options.bin / "centroid-worker", *flags, *common(options)]))
        wait_samples(places["api"], options.warm_up)
        begin, before = time.monotonic(), get(places["api"], "/v1/cluster")
        workers = {worker["name"]: worker for worker in get(places["api"], "/v1/workers")["workers"]}
        time.sleep(options.seconds)  # lint-ok: a benchmark measures time
        end, after = time.monotonic(), get(places["api"], "/v1/cluster")
        last = {worker["name"]: worker for worker in get(places["api"], "/v1/workers")["workers"]}
        rate = (after["samples_total"] - before["samples_total"]) / (end - begin)
        busy, possible = 0, 0
        for name, worker in last.items():
            computed = worker["compute_seconds"] - workers[name]["compute_seconds"]
            speed = (worker["samples"] - workers[name]["samples"]) / computed
            busy += speed * computed / (end - begin)
            possible += speed
        return rate, busy / possible, after, last
    finally:
        for child in reversed(children):
            child.terminate()
        for child in children:
            child.wait(30)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("--slowdown", type=float, default=3)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--cadence", default="tuned")
    parser.add_argument("--local-steps", type=int, default=10)
    parser.add_argument("--overlap", type=int, default=0, help="steps that are made while a contribution and its result travel")
    parser.add_argument("--model", default="mlp:64-512-512-10")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--overhead", type=float, help="instead of the server's default")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--solo-rounds", type=int, default=1000)
    parser.add_argument("--warm-up", type=int, default=10_000)
    parser.add_argument("--data-cache-dir", default=".cache/data")
    parser.add_argument("--bar", type=float, default=0, help="exit status 1 when less percent of ideal is reached; 0: none")
    options = parser.parse_args()
    runs = []
    for _ in range(options.repeats):
        with tempfile.TemporaryDirectory(prefix="centroid-bench-") as name:
            folder = pathlib.Path(name)
            alone = [solo(options, folder, 1), solo(options, folder, options.slowdown)]
            beside = side_by_side(options, folder, alone)
            rate, busy, cluster, workers = together(options, folder)
        ideal, computing = (sum(one[which] for one in alone) for which in (0, 1))
        runs.append((rate / ideal, rate, ideal, computing, beside, busy, alone, cluster, workers))
    part, rate, ideal, computing, beside, busy, alone, cluster, workers = sorted(runs, key=lambda run: run[0])[len(runs) // 2]
    print(f"alone: {alone[0][0]:.0f} and {alone[1][0]:.0f} samples/s, ideal {ideal:.0f} (computing alone: {computing:.0f})")
    print(
        f"side by side, without a cluster: {beside:.0f} samples/s, {100 * beside / ideal:.1f} % of ideal "
        f"({', '.join(f'{100 * run[4] / run[2]:.1f}' for run in runs)})"
    )
    print(
        f"cadence {options.cadence}: {rate:.0f} samples/s, {100 * part:.1f} % of ideal ({', '.join(f'{100 * run[0]:.1f}' for run in runs)}); "
        f"{100 * rate / beside:.1f} % of side by side; {100 * rate / computing:.1f} % of computing alone; busy {100 * busy:.1f} %"
    )
    for worker in workers.values():
        print(f"  {worker['name']}: {worker['local_steps']} steps a round, {1e3 * worker['pace_seconds']:.2f} ms a step, divergence {worker['divergence']:.4f}")
    print(
        f"  rounds {cluster['round'] - 1}, anchor {cluster['cadence_steps']}, exchange {1e3 * cluster['exchange_seconds']:.2f} ms, "
        f"overhead {cluster['exchange_overhead']:.3f}, test accuracy {cluster['test_accuracy']:.3f}"
    )
    sys.exit(verdict("of ideal", 100 * part, options.bar, "%", at_least=True))


if __name__ == "__main__":
    main()
