#!/usr/bin/env python3
"""A language model trained with DiLoCo: each worker makes many steps with its own AdamW, and sends only what has changed.

Usage: centroid run --workers 2 --local-steps=20 --rounds=30 text_diloco.py TEXT_FILE
A round of 20 steps moves the model once, not 20 times: for slow links.
"""

import sys

import torch
from text_model import TextModel, read
from torch.utils.data import DataLoader

import centroid.torch

BATCH = 16
windows = read(sys.argv[1])
torch.manual_seed(1)
model = TextModel()

with centroid.torch.DiLoCo(model, torch.optim.AdamW(model.parameters(), lr=0.003), samples=len(windows), batch=BATCH) as optimizer:
    loader = DataLoader(windows, batch_sampler=centroid.torch.sampler(windows, optimizer, batch=BATCH))
    while not optimizer.end:
        round, losses = optimizer.share.round, []
        for batch in loader:
            loss = model.loss(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step(loss=loss)  # the last one of a round exchanges
            losses.append(loss.item())
        if round % 10 == 0:
            print(f"round {round}: loss {sum(losses) / len(losses):.3f}", flush=True)
    print(f"{optimizer.end}: {optimizer.trainer.end_reason}")
