#!/usr/bin/env python3
"""A language model trained with DiLoCo: each worker makes many steps with its own AdamW, and sends only what has changed.

Usage: centroid run --workers 2 --local-steps=20 --rounds=30 text_diloco.py TEXT_FILE
A round of 20 steps moves the model once, not 20 times: for slow links.
"""

import sys

import torch
from text_model import TextModel, read

import centroid

BATCH = 16
windows = read(sys.argv[1])
torch.manual_seed(1)
model = TextModel()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)

with centroid.Trainer(None, model, samples=len(windows), batch=BATCH) as trainer:
    for share in trainer:
        if not share.is_local:
            sys.exit("start the server with --local-steps=20")
        indices, loss_sum = torch.tensor(share.indices(), dtype=torch.long), 0.0
        for part in indices.split(BATCH):
            loss = model.loss(windows[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_sum += loss.item() * len(part)
        trainer.finish(loss_sum=loss_sum)
        if share.round % 10 == 0 and len(indices) > 0:
            print(f"round {share.round}: loss {loss_sum / len(indices):.3f}", flush=True)
    print(f"{trainer.end.name.lower()}: {trainer.end_reason}")
