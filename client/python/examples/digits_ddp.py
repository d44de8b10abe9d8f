#!/usr/bin/env python3
"""Handwritten digits with PyTorch's DistributedDataParallel: what digits_torch.py is without a cluster that survives.

Usage: centroid run --workers 2 digits_ddp.py DIGITS_CSV_GZ [BACKEND]     BACKEND: gloo, or centroid, which is faster over TCP
"""

import sys

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import centroid.torch_backend  # makes the backend centroid known

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

dist.init_process_group(sys.argv[2] if len(sys.argv) > 2 else "gloo")
parallel = DistributedDataParallel(model)
sampler = DistributedSampler(data)
optimizer = torch.optim.AdamW(parallel.parameters(), lr=0.003)
for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for x, y in DataLoader(data, batch_size=BATCH, sampler=sampler):
        loss = cross_entropy(parallel(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
model.eval()
with torch.no_grad():
    right = int((model(pixels[-HELD_OUT:]).argmax(1) == digits[-HELD_OUT:]).sum())
print(f"Centroid {centroid.version()}: {100 * right / HELD_OUT:.1f} % of the held-out digits are right", flush=True)
dist.destroy_process_group()
