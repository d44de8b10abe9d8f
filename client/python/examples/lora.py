#!/usr/bin/env python3
"""Fine-tune a language model by LoRA: the base is frozen and never travels, the adapters are trained by all workers.

Usage: lora.py --pretrain 300 BASE.pt TEXT_FILE                                              makes a base
       centroid run --workers 2 --rounds=100 --optimizer=adamw --lr=0.01 lora.py BASE.pt OTHER_TEXT_FILE
All workers need the same BASE.pt: the cluster refuses a worker with another.
"""

import argparse

import torch
from text_model import TextModel, read
from torch import nn

import centroid

BATCH, RANK = 16, 4


class Lora(nn.Module):
    """A frozen linear layer, with the product of two small matrices added to it."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(RANK, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, RANK))

    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("base")
parser.add_argument("text")
parser.add_argument("--pretrain", type=int, metavar="STEPS")
options = parser.parse_args()
windows = read(options.text)
torch.manual_seed(1)
model = TextModel()

if options.pretrain:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    for _ in range(options.pretrain):
        loss = model.loss(windows[torch.randint(len(windows), (BATCH,))])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(model.state_dict(), options.base)
    print(f"{options.base}: loss {loss.item():.3f}")
    raise SystemExit

model.load_state_dict(torch.load(options.base))
model.requires_grad_(False)
for block in model.blocks:
    block.attend, block.wide = Lora(block.attend), Lora(block.wide)

with centroid.Trainer(None, model, samples=len(windows), batch=BATCH) as trainer:
    numbers = sum(tensor.numel() for tensor in trainer.tensors.values())
    print(f"{numbers} of {sum(p.numel() for p in model.parameters())} parameters are trained", flush=True)
    for share in trainer:
        model.zero_grad()
        loss_sum = 0.0
        if len(share) > 0:
            loss = model.loss(windows[torch.tensor(share.indices())])
            loss.backward()
            loss_sum = loss.item() * len(share)
        trainer.finish(loss_sum=loss_sum)
        if share.round in (1, 25, 50, 100) and len(share) > 0:
            print(f"round {share.round}: loss {loss_sum / len(share):.3f}", flush=True)
    print(f"{trainer.end.name.lower()}: {trainer.end_reason}")
