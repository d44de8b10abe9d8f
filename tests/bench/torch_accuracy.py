#!/usr/bin/env python3
"""What codecs and local steps cost in accuracy with AdamW, paired by seed: a CNN with BatchNorm on handwritten digits, or a language model of bytes.

Usage: torch_accuracy.py BIN [LIBRARY] [--task digits|text] [--seeds 10] [--epochs 20] [--ways NAME;...] [--data FILE] [--check]

A seed is that of the initial values and of the order of the samples. With each, two workers train in every way. Printed are, on held-out data,
the accuracy or the loss in bits per byte, and what is lost against float32, in percentage points of accuracy or in per cent of the loss, with its
95 % interval (Student's t, paired by seed). Digits with a codec have `buffers="own"`. The text is by default the standard library of this Python.
BIN has centroid-server, LIBRARY is libcentroid.so. Needs PyTorch.

Bars with --check, lost: int8 and local steps 0.5, where the interval does not include 0; topk 1. Exit status: 1 one is missed, 77 something is
not here.
"""

import argparse
import concurrent.futures
import math
import os
import pathlib
import runpy
import statistics
import sys
import sysconfig
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness
from harness.cluster import Server
from torch_backend import SKIPPED, python_with_torch
from verdict import verdict

BATCH, WORKERS, LR = 32, 2, 0.003
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


class Digits:
    """Accuracy on held-out images, in per cent."""

    score_name, held_out, has_buffers = "accuracy, %", 360, True

    def __init__(self, path):
        import numpy
        import torch

        numbers = torch.from_numpy(numpy.loadtxt(path, delimiter=",", dtype="float32"))
        self.pixels, self.digits = numbers[:, :64].reshape(-1, 1, 8, 8) / 16, numbers[:, 64].long()
        self.samples = len(numbers) - self.held_out

    def model(self):
        from torch import nn

        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(512, 10),
        )  # fmt: skip

    def loss(self, model, chosen):
        import torch

        chosen = torch.tensor(chosen if len(chosen) > 1 else chosen * 2)  # BatchNorm refuses one sample
        return torch.nn.functional.cross_entropy(model(self.pixels[chosen]), self.digits[chosen])

    def score(self, model):
        found = model(self.pixels[-self.held_out :]).argmax(1) == self.digits[-self.held_out :]
        return 100 * found.float().mean().item()

    def lost(self, score, base):
        return base - score


class Text:
    """Loss of the next byte in held-out windows, in bits."""

    score_name, held_out, has_buffers = "bits per byte", 512, False
    windows = 4096 + held_out

    def __init__(self, path):
        import torch

        text_model = runpy.run_path(str(harness.ROOT / "client" / "python" / "examples" / "text_model.py"))
        files = [path] if path else sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
        with tempfile.NamedTemporaryFile() as joined:
            for file in files:
                joined.write(file.read_bytes())
            joined.flush()
            found = text_model["read"](joined.name)
        order = torch.randperm(len(found), generator=torch.Generator().manual_seed(1))
        self.text, self.make = found[order[: self.windows]], text_model["TextModel"]
        self.samples = len(self.text) - self.held_out

    def model(self):
        return self.make()

    def loss(self, model, chosen):
        return model.loss(self.text[chosen])

    def score(self, model):
        return model.loss(self.text[-self.held_out :]).item() / math.log(2)

    def lost(self, score, base):
        return 100 * (score - base) / base


def work(server, name, model, task, codec):
    """One worker until the job's end."""
    import centroid
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0)  # of local steps
    more = {"codec": codec} if codec else {}
    if codec and task.has_buffers:
        more["buffers"] = "own"
    with centroid.Trainer(server, model, samples=task.samples, batch=BATCH, name=name, **more) as trainer:
        for share in trainer:
            indices = share.indices()
            for begin in range(0, len(indices), BATCH):
                optimizer.zero_grad()
                task.loss(model, indices[begin : begin + BATCH]).backward()
                if share.is_local:
                    optimizer.step()
            trainer.finish()


def score(given, way, seed, task):
    """Of worker 0's model at the end."""
    import torch

    flags, codec, _, _ = WAYS[way]
    rounds = given.epochs * -(-task.samples // (BATCH * WORKERS))
    lengths = {"rounds": rounds, "warmup": rounds // 2}
    models = []
    for _ in range(WORKERS):
        torch.manual_seed(seed)
        models.append(task.model())
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        words = ["--listen", "127.0.0.1:0", "--api.listen", "127.0.0.1:0", "--run-dir", folder / "run", "--endpoints-file", folder / "endpoints.json", "--exchange", "star"]
        words += ["--epochs", given.epochs, "--min-workers", WORKERS, "--seed", seed, "--log.format", "json"]
        server = Server(given.bin / "centroid-server", [*words, *(word.format(**lengths) for word in flags)], folder / "server.log", None, folder / "endpoints.json").wait_ready()
        try:
            with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
                for done in [pool.submit(work, server.data, f"w{rank}", model, task, codec and codec.format(**lengths)) for rank, model in enumerate(models)]:
                    done.result()
        finally:
            server.kill()
    models[0].eval()
    with torch.no_grad():
        return task.score(models[0])


def report(found, task, check):
    """Print the table. Returns how many bars are missed."""
    missed = 0
    print(f"{'way':30}{task.score_name:>14}{'lost':>8}   95 % interval")
    for way, values in found.items():
        _, _, bar, may_include = WAYS[way]
        lost = [task.lost(value, base) for value, base in zip(values, found["float32"])]
        mean, half = statistics.mean(lost), T_95[len(values) - 2] * statistics.stdev(lost) / len(values) ** 0.5
        print(f"{way:30}{statistics.mean(values):14.3f}{mean:8.2f}   {mean - half:.2f} to {mean + half:.2f}", flush=True)
        if check and bar and not (may_include and mean - half <= 0):
            missed += verdict(f"what {way} loses", mean, bar)
    return missed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("library", nargs="?")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--ways", default=";".join(WAYS), help="float32 is always one of them")
    parser.add_argument("--task", choices=("digits", "text"), default="digits")
    parser.add_argument("--data", type=pathlib.Path, help="the digits, default .cache/data/digits.csv.gz, or a text")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    if not 2 <= given.seeds <= len(T_95) + 1:
        parser.error(f"--seeds {given.seeds} is not from 2 to {len(T_95) + 1}")
    if unknown := set(given.ways.split(";")) - WAYS.keys():
        parser.error(f"no way {', '.join(unknown)}; there are {', '.join(WAYS)}")
    if given.task == "digits":
        given.data = given.data or pathlib.Path(".cache/data/digits.csv.gz")
    if given.data and not given.data.exists():
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
    task = {"digits": Digits, "text": Text}[given.task](given.data)
    found = {way: [] for way in WAYS if way in ("float32", *given.ways.split(";"))}
    for seed in range(1, given.seeds + 1):
        for way in found:
            found[way].append(score(given, way, seed, task))
        print(f"seed {seed}: " + ", ".join(f"{way} {values[-1]:.2f}" for way, values in found.items()), flush=True)
    return 1 if report(found, task, given.check) else 0


if __name__ == "__main__":
    sys.exit(main())
