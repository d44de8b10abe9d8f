#!/usr/bin/env python3
"""What codecs and local steps cost in accuracy: a CNN with BatchNorm on handwritten digits, AdamW, paired by seed.

Usage: torch_accuracy.py BIN [LIBRARY] [--seeds 10] [--epochs 20] [--ways NAME;...] [--data .cache/data/digits.csv.gz] [--check]

A seed is that of the initial values and of the order of the samples. With each, two workers train in every way. Printed are the accuracy on 360
held-out images and the mean difference to float32 in percentage points, with its 95 % interval (Student's t, paired by seed). A way with a codec
has `buffers="own"`. BIN has centroid-server, LIBRARY is libcentroid.so. Needs PyTorch.

Bars with --check, in points below float32: int8 and local steps 0.5, where the interval does not include 0; topk 1. Exit status: 1 one is missed,
77 something is not here.
"""

import argparse
import concurrent.futures
import os
import pathlib
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import Server
from torch_backend import SKIPPED, python_with_torch
from verdict import verdict

HELD_OUT, BATCH, WORKERS, LR = 360, 32, 2, 0.003
ADAMW = ["--optimizer", "adamw", "--lr", str(LR)]
TOPK = "topk:0.01,warmup={warmup}"
# Name: flags of the server, the workers' codec, the bar in points, and whether an interval with 0 is enough.
WAYS = {
    "float32": (ADAMW, None, 0, False),
    "int8 both ways": ([*ADAMW, "--codec-down", "int8"], "int8", 0.5, True),
    "10 local steps, DiLoCo": (["--local-steps", "10"], None, 0.5, True),
    "10 local steps, outer average": (["--local-steps", "10", "--outer", "average"], None, 0.5, True),
    "topk:0.01 both ways, warm-up": ([*ADAMW, "--codec-down", TOPK], TOPK, 1, False),
    "the same, learning rate to 0": ([*ADAMW, "--codec-down", TOPK, "--lr-schedule", "cosine:rounds={rounds}"], TOPK, 1, False),
}
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093)


def read(path):
    """Pixels and digits."""
    import numpy
    import torch

    numbers = torch.from_numpy(numpy.loadtxt(path, delimiter=",", dtype="float32"))
    return numbers[:, :64].reshape(-1, 1, 8, 8) / 16, numbers[:, 64].long()


def make_model(seed):
    import torch
    from torch import nn

    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


def work(server, name, model, data, codec):
    """One worker until the job's end."""
    import centroid
    import torch

    pixels, digits = data
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0)  # of local steps
    more = {"codec": codec, "buffers": "own"} if codec else {}
    with centroid.Trainer(server, model, samples=len(digits) - HELD_OUT, batch=BATCH, name=name, **more) as trainer:
        for share in trainer:
            indices = share.indices()
            for begin in range(0, len(indices), BATCH):
                chosen = indices[begin : begin + BATCH]
                chosen = torch.tensor(chosen if len(chosen) > 1 else chosen * 2)  # BatchNorm refuses one sample
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(pixels[chosen]), digits[chosen]).backward()
                if share.is_local:
                    optimizer.step()
            trainer.finish()


def accuracy(given, way, seed, data):
    """Per cent of the held-out images that worker 0 classifies correctly at the end."""
    import torch

    flags, codec, _, _ = WAYS[way]
    rounds = given.epochs * -(-(len(data[1]) - HELD_OUT) // (BATCH * WORKERS))
    lengths = {"rounds": rounds, "warmup": rounds // 2}
    models = [make_model(seed) for _ in range(WORKERS)]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        words = ["--listen", "127.0.0.1:0", "--api.listen", "127.0.0.1:0", "--run-dir", folder / "run", "--endpoints-file", folder / "endpoints.json", "--exchange", "star"]
        words += ["--epochs", given.epochs, "--min-workers", WORKERS, "--seed", seed, "--log.format", "json"]
        server = Server(given.bin / "centroid-server", [*words, *(word.format(**lengths) for word in flags)], folder / "server.log", None, folder / "endpoints.json").wait_ready()
        try:
            with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
                for done in [pool.submit(work, server.data, f"w{rank}", model, data, codec and codec.format(**lengths)) for rank, model in enumerate(models)]:
                    done.result()
        finally:
            server.kill()
    models[0].eval()
    with torch.no_grad():
        return 100 * (models[0](data[0][-HELD_OUT:]).argmax(1) == data[1][-HELD_OUT:]).float().mean().item()


def report(found, check):
    """Print the table. Returns how many bars are missed."""
    missed = 0
    print(f"{'way':30}{'accuracy, %':>12}{'difference':>12}   95 % interval")
    for way, values in found.items():
        _, _, bar, may_include = WAYS[way]
        differences = [value - base for value, base in zip(values, found["float32"])]
        mean, half = statistics.mean(differences), T_95[len(values) - 2] * statistics.stdev(differences) / len(values) ** 0.5
        print(f"{way:30}{statistics.mean(values):12.2f}{mean:12.2f}   {mean - half:.2f} to {mean + half:.2f}", flush=True)
        if check and bar and not (may_include and mean + half >= 0):
            missed += verdict(f"points that {way} loses", -mean, bar)
    return missed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("library", nargs="?")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--ways", default=";".join(WAYS), help="float32 is always one of them")
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path(".cache/data/digits.csv.gz"))
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    if not 2 <= given.seeds <= len(T_95) + 1:
        parser.error(f"--seeds {given.seeds} is not from 2 to {len(T_95) + 1}")
    if unknown := set(given.ways.split(";")) - WAYS.keys():
        parser.error(f"no way {', '.join(unknown)}; there are {', '.join(WAYS)}")
    if not given.data.exists():
        print(f"skipped: {given.data} is missing: ./centroid setup")
        return SKIPPED
    try:
        import torch
    except ImportError:
        python = python_with_torch()
        os.execv(python, [python, *sys.argv])
    import centroid

    centroid.load(given.library)
    torch.set_num_threads(1)
    data = read(given.data)
    found = {way: [] for way in WAYS if way in ("float32", *given.ways.split(";"))}
    for seed in range(1, given.seeds + 1):
        for way in found:
            found[way].append(accuracy(given, way, seed, data))
        print(f"seed {seed}: " + ", ".join(f"{way} {values[-1]:.1f}" for way, values in found.items()), flush=True)
    return 1 if report(found, given.check) else 0


if __name__ == "__main__":
    sys.exit(main())
