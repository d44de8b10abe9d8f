#!/usr/bin/env python3
"""What a Trainer costs a small model's loop in Python: the loop with a Trainer that trains alone, beside the same loop without.

Usage: torch_overhead.py [LIBRARY] [--turns 30] [--bar MS]

A step is 32 samples forward and backward through 121 k parameters, and SGD, on one thread. Blocks of 50 steps take turns. Printed are the
medians of a step, and the median of the difference of neighbours. Exit status: 1 it is above the bar, 77 no PyTorch here.
"""

import argparse
import os
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness
from torch_backend import python_with_torch
from verdict import verdict

WIDTH, LAYERS, SAMPLES, STEPS, LR = 200, 3, 32, 50, 0.001


class Loops:
    def __init__(self):
        import centroid
        import torch

        torch.set_num_threads(1)
        nn = torch.nn
        self.plain, self.trained = (nn.Sequential(*[module for _ in range(LAYERS) for module in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]) for _ in range(2))
        self.x = torch.randn(SAMPLES, WIDTH)
        self.optimizer = torch.optim.SGD(self.plain.parameters(), lr=LR)
        self.trainer = centroid.Trainer(centroid.local(epochs=1, lr=LR), self.trained, samples=10**9, batch=SAMPLES)

    def without(self):
        self.optimizer.zero_grad(set_to_none=True)
        (self.plain(self.x) - 1).square().mean().backward()
        self.optimizer.step()

    def with_trainer(self):
        next(self.trainer)
        self.trained.zero_grad(set_to_none=True)
        (self.trained(self.x) - 1).square().mean().backward()
        self.trainer.finish()


def milliseconds(step):
    begin = time.perf_counter()
    for _ in range(STEPS):
        step()
    return 1000 * (time.perf_counter() - begin) / STEPS


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", nargs="?")
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--bar", type=float, default=0, help="milliseconds; 0: none")
    given = parser.parse_args()
    place = python_with_torch()
    if "OMP_NUM_THREADS" not in os.environ:
        library = {"LIBCENTROID": str(pathlib.Path(given.library).resolve())} if given.library else {}
        os.execve(place, [place, __file__, *sys.argv[1:]], {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(harness.PYTHON), **library})
    loops = Loops()
    without, with_trainer = [], []
    for _ in range(given.turns + 1):
        without.append(milliseconds(loops.without))
        with_trainer.append(milliseconds(loops.with_trainer))
    more = statistics.median(one - other for one, other in zip(with_trainer[1:], without[1:]))  # the first ones warm up
    print(f"a step: {statistics.median(without):.3f} ms, with a Trainer {statistics.median(with_trainer):.3f} ms: {more:.3f} ms more")
    return verdict("ms a step of a Trainer", more, given.bar)


if __name__ == "__main__":
    sys.exit(main())
