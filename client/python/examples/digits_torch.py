#!/usr/bin/env python3
"""Handwritten digits with PyTorch: a CNN with BatchNorm, trained by all workers of a cluster.

Usage: centroid run --workers 2 --epochs=6 --optimizer=adamw --lr=0.003 digits_torch.py DIGITS_CSV_GZ
DIGITS_CSV_GZ has 64 pixels and the digit in each line; `./centroid build` puts it at .cache/data/digits.csv.gz.
Kill a worker or the server: the others go on, and `centroid run` starts it again.
"""

import sys

import numpy
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import centroid

HELD_OUT, BATCH = 360, 32

numbers = torch.from_numpy(numpy.loadtxt(sys.argv[1], delimiter=",", dtype="float32"))
pixels, digits = numbers[:, :64].reshape(-1, 1, 8, 8) / 16, numbers[:, 64].long()
torch.manual_seed(1)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
    nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(512, 10),
)  # fmt: skip


def evaluate(trainer):
    model.eval()
    with torch.no_grad():
        out = model(pixels[-HELD_OUT:])
        right = int((out.argmax(1) == digits[-HELD_OUT:]).sum())
        trainer.report(samples=HELD_OUT, correct=right, loss_sum=cross_entropy(out, digits[-HELD_OUT:], reduction="sum").item())
    print(f"{100 * right / HELD_OUT:.1f} % of the held-out digits are right", flush=True)
    model.train()


with centroid.Trainer(None, model, samples=len(digits) - HELD_OUT, batch=BATCH) as trainer:
    for share in trainer:  # the model has the cluster's parameters now
        if share.evaluate:
            evaluate(trainer)
        indices = share.indices()
        model.zero_grad()
        loss = correct = 0
        if len(indices) > 0:  # the last share of an epoch may be empty, or one sample, which BatchNorm refuses
            chosen = torch.tensor(indices if len(indices) > 1 else indices * 2)
            out = model(pixels[chosen])
            cross_entropy(out, digits[chosen]).backward()
            loss = cross_entropy(out, digits[chosen], reduction="sum").item()
            correct = min(int((out.argmax(1) == digits[chosen]).sum()), len(indices))
        trainer.finish(loss_sum=loss, correct=correct)
    if trainer.final_evaluation:
        evaluate(trainer)
    print(f"{trainer.end.name.lower()}: {trainer.end_reason}")
