#!/usr/bin/env python3
"""The star exchange, compressed and not, between network namespaces that stand for machines on a slow network.

Makes one namespace for the server, one for each worker and one with a bridge, joined by veth pairs whose ends send at most
RATE (tc tbf), and runs centroid-bench-star in them once for each pair of codecs, "UP/DOWN": rounds whose gradients are there at
once. With --training the real programs train a model instead, and the time is that of the whole training; --local adds
rows of local steps (docs/how-to/diloco.md) that train on as many samples. Every row is compared with the first. Removes everything at the end. Needs root, ip and tc; without them it says so and ends well.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from collectives_namespaces import Network

PAIRS = "f32/f32,bf16/bf16,int8/int8,topk:0.01/topk:0.01,topk:0.001/topk:0.001"
START_SECONDS, END_SECONDS = 30, 600


def pairs_of(text):
    """Codec specs hold commas, so pairs are separated by ';' or, where no spec has options, by ','."""
    return [tuple(pair.split("/")) for pair in text.split(";" if ";" in text else ",")]


def measure_rounds(folder, network, options, up, down):
    """Median seconds of a round."""
    workers = len(network.names) - 1
    command = [folder / "centroid-bench-star", "--namespaces", ",".join(network.names), "--host", network.hosts[0],
               "--workers", workers, "--parameters", options.parameters, "--rounds", options.rounds,
               "--no-memory", "--json", "--codec", up, "--codec-down", down]
    row = json.loads(subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE).stdout)["rounds"][0]
    return row["median_seconds"], f"{1e3 * row['server_cpu_seconds']:7.1f} {1e3 * row['members_cpu_seconds'] / workers:7.1f}"


def wait_for(path, process):
    deadline = time.monotonic() + START_SECONDS
    while not path.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"{process.args[4:]} does not start")
        time.sleep(0.01)  # lint-ok: no test
    return json.loads(path.read_text())


def measure_training(folder, network, options, up, down, local=(1, 1, 0)):
    """Seconds from the first worker's start to the last one's end. `local`: steps, fragments, overlap."""
    steps, fragments, overlap = local
    inner = []
    update = ["--optimizer", "sgd", "--lr", options.lr]
    if steps > 1:
        inner = ["--inner.optimizer", "sgd", "--inner.lr", options.lr]
        update = ["--local-steps", steps, "--fragments", fragments, "--overlap", overlap]
    rounds = options.rounds * fragments // steps
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    children = []

    def start(name, program, *arguments):
        command = ["ip", "netns", "exec", name, folder / program, *arguments, "--token", "bench", "--log.level", "error"]
        children.append(subprocess.Popen([str(word) for word in command], env=environment))
        return children[-1]

    with tempfile.TemporaryDirectory() as run:
        run = pathlib.Path(run)
        try:
            workers = network.names[1:]
            server = start(network.names[0], "centroid-server", "--listen", f"{network.hosts[0]}:0", "--api.listen", "127.0.0.1:0", "--run-dir", run,
                           "--endpoints-file", run / "endpoints.json", "--min-workers", len(workers), "--rounds", rounds,
                           *update, "--codec-down", down, "--exit-when-finished")  # fmt: skip
            endpoint = wait_for(run / "endpoints.json", server)["data"]
            begin = time.monotonic()
            members = [start(name, "centroid-worker", "--server", endpoint, "--name", f"w{i}", "--data-cache-dir", options.data,
                             "--model", options.model, "--codec", up, "--summary-file", run / f"w{i}.json", *inner)
                       for i, name in enumerate(workers)]  # fmt: skip
            for member in members:
                if member.wait(END_SECONDS) != 0:
                    raise SystemExit(f"a worker failed with {up}/{down}")
            seconds = time.monotonic() - begin
            summary = json.loads((run / "w0.json").read_text())
            server.wait(END_SECONDS)
        finally:
            for child in children:
                if child.poll() is None:
                    child.kill()
                    child.wait()
    sent = summary["compression"]["encoded_bytes_out"] / 2**20
    return seconds, f"{100 * summary['test_accuracy']:7.2f} {sent:9.2f} {summary['compute_seconds']:8.1f}"


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=root / "build/release/bin", help="folder of the programs")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--mtu", type=int, default=1500)
    parser.add_argument("--congestion-control", default="reno")
    parser.add_argument("--pairs", default=PAIRS, help="UP/DOWN,...; separated by ; when a spec has a comma")
    parser.add_argument("--parameters", type=int, default=25_000_000)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--training", action="store_true", help="train a model with the real programs, --rounds rounds")
    parser.add_argument("--local", default="", help="--training: more rows, STEPS/FRAGMENTS/OVERLAP,...")
    parser.add_argument("--lr", type=float, default=0.05, help="--training: of the only optimizer, or of the workers' own")
    parser.add_argument("--model", default="mlp:64-3200-3200-10", help="--training: 10.5 M parameters by default")
    parser.add_argument("--data", type=pathlib.Path, default=root / ".cache/data", help="--training: folder of digits.csv.gz")
    options = parser.parse_args()
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        print("skipped: needs root, ip and tc (package iproute2)")
        return 0
    # So that a signal leaves through __exit__.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    what = options.model if options.training else f"{options.parameters} parameters"
    print(f"{options.workers} workers, {what}, {options.rate}")
    more = f"{'test %':>7} {'MiB sent':>9} {'comp. s':>8}" if options.training else f"{'server':>7} {'worker':>7}  (cpu, ms)"
    print(f"{'up / down':<44} {'seconds':>9} {'times':>7}  {more}")
    first = None
    locals_ = [tuple(int(n) for n in row.split("/")) for row in options.local.split(",") if row]
    with Network(1 + options.workers, options.rate, options.mtu, options.congestion_control) as network:
        for up, down in pairs_of(options.pairs):
            for local in [(1, 1, 0), *locals_] if options.training else [None]:
                if local:
                    seconds, rest = measure_training(options.bin, network, options, up, down, local)
                else:
                    seconds, rest = measure_rounds(options.bin, network, options, up, down)
                first = first or seconds
                name = f"{up} / {down}"
                if local and local[0] > 1:
                    name += ", {} steps, {} fragments, overlap {}".format(*local)
                print(f"{name:<44} {seconds:9.4f} {first / seconds:7.1f}  {rest}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
