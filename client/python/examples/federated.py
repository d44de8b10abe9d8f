#!/usr/bin/env python3
"""Federated averaging (FedAvg): each client trains on its own data, which never leaves it, and sends the change of its model.

Usage: centroid run --workers 3 --local-steps=2 --outer=average --rounds=10 federated.py DIGITS_CSV_GZ
Here three clients have 60, 30 and 10 % of the digits. A round counts two batches of each client: with half of its samples as
`batch`, the server weights its change by what it has. On other machines: `centroid run --server HOST:7070 --token-file FILE --workers 1 federated.py ...` with data of their own.
"""

import os
import sys

import numpy
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import centroid

HELD_OUT, LOCAL_EPOCHS, BATCH = 360, 2, 16
PARTS = (0, 0.6, 0.9, 1)

numbers = torch.from_numpy(numpy.loadtxt(sys.argv[1], delimiter=",", dtype="float32"))
pixels, digits = numbers[:, :64] / 16, numbers[:, 64].long()
total = len(digits) - HELD_OUT
client = int(os.environ["RANK"])  # `centroid run` sets it
mine = torch.arange(int(PARTS[client] * total), int(PARTS[client + 1] * total))
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def right():
    with torch.no_grad():
        return int((model(pixels[-HELD_OUT:]).argmax(1) == digits[-HELD_OUT:]).sum())


with centroid.Trainer(None, model, samples=total, batch=len(mine) // 2) as trainer:
    for share in trainer:  # the share's numbers are not used: the client has its own data
        for _ in range(LOCAL_EPOCHS):
            loss_sum = 0.0
            for part in mine[torch.randperm(len(mine))].split(BATCH):
                loss = cross_entropy(model(pixels[part]), digits[part])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                loss_sum += loss.item() * len(part)
        trainer.finish(samples=len(mine), loss_sum=loss_sum)
    print(f"client {client}, {len(mine)} samples; {trainer.end.name.lower()}: {100 * right() / HELD_OUT:.1f} % of the held-out digits are right")
