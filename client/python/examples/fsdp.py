#!/usr/bin/env python3
"""PyTorch's own FSDP over Centroid's collectives: parameters, gradients and optimizer state divided among the ranks.

Usage: centroid run --workers 2 fsdp.py        (PyTorch 2.0 or newer)
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

import centroid.torch_backend  # makes the backend known

torch.set_num_threads(1)
dist.init_process_group("centroid")
torch.manual_seed(0)  # the same initial values everywhere: on CPUs, FSDP does not send them
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
torch.manual_seed(dist.get_rank())  # other data
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
truth = torch.linspace(-1, 1, 64)
for step in range(1, 61):
    x = torch.randn(32, 64)
    loss = (model(x).squeeze(1) - (x @ truth).tanh()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 and dist.get_rank() == 0:
        print(f"step {step}: loss {loss.item():.3f}", flush=True)
print(f"rank {os.environ['RANK']} is done with Centroid {centroid.version()}")
dist.destroy_process_group()
