#!/usr/bin/env python3
"""Handwritten digits with PyTorch: digits_ddp.py with processes that may die and come back.

Usage: centroid run --workers 2 digits_parallel.py DIGITS_CSV_GZ
Kill a worker: the others go on, `centroid run` starts it again, and it gets the state from them.
"""

import sys

import numpy
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import centroid.torch

HELD_OUT, BATCH, EPOCHS = 360, 32, 6

numbers = torch.from_numpy(numpy.loadtxt(sys.argv[1], delimiter=",", dtype="float32"))
pixels, digits = numbers[:, :64].reshape(-1, 1, 8, 8) / 16, numbers[:, 64].long()
data = TensorDataset(pixels[:-HELD_OUT], digits[:-HELD_OUT])
torch.manual_seed(1)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
    nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(512, 10),
)  # fmt: skip

parallel = centroid.torch.DataParallel(model)
optimizer = centroid.torch.Optimizer(torch.optim.AdamW(parallel.parameters(), lr=0.003))
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(data) // (BATCH * parallel.world))
optimizer.keep(scheduler)
sampler = centroid.torch.sampler(data, parallel, batch=BATCH)
loader = DataLoader(data, batch_sampler=sampler, num_workers=1, persistent_workers=True)
while sampler.epoch < EPOCHS:  # the rest of an epoch each time: all of it, unless a worker dies or comes
    for x, y in loader:
        loss = cross_entropy(parallel(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parallel.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
model.eval()
with torch.no_grad():
    right = int((model(pixels[-HELD_OUT:]).argmax(1) == digits[-HELD_OUT:]).sum())
print(f"{100 * right / HELD_OUT:.1f} % of the held-out digits are right after {parallel.steps} steps", flush=True)
