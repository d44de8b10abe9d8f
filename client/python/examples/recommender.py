#!/usr/bin/env python3
"""A recommender: embeddings of users and items in tables of the server, a small network trained by all workers.

Usage: centroid run --workers 2 --rounds=300 --optimizer=adam --lr=0.01 \\
           "--tables=users:dim=8,lr=0.2,init=uniform:0.1;items:dim=8,lr=0.2,init=uniform:0.1" recommender.py
A worker pulls the rows of its batch only, so the tables may be larger than its memory. The ratings here are made up: each user
and item has hidden tastes, and a rating is how well these agree.
"""

import os

import torch
from torch import nn

import centroid

USERS, ITEMS, RATINGS, BATCH = 2000, 500, 40_000, 256

torch.manual_seed(1)  # the same data in all workers
tastes = torch.randn(USERS, 4), torch.randn(ITEMS, 4)
users, items = torch.randint(USERS, (RATINGS,)), torch.randint(ITEMS, (RATINGS,))
ratings = (tastes[0][users] * tastes[1][items]).sum(1) / 2
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))


def embeddings(table, keys):
    """The rows of these keys, each once, and where each key is among them."""
    once, places = keys.unique(return_inverse=True)
    rows = torch.empty(len(once), table.dim)
    return once.tolist(), table.pull(once.tolist(), out=rows).requires_grad_(), places


server = os.environ["CENTROID_SERVER"]  # `centroid run` sets it
with centroid.Rows(server, "users") as user_table, centroid.Rows(server, "items") as item_table:
    with centroid.Trainer(None, model, samples=RATINGS, batch=BATCH) as trainer:
        for share in trainer:
            chosen = torch.tensor(share.indices(), dtype=torch.long)
            model.zero_grad()
            loss_sum = 0.0
            if len(chosen) > 0:
                user_keys, user_rows, user_at = embeddings(user_table, users[chosen])
                item_keys, item_rows, item_at = embeddings(item_table, items[chosen])
                agreement = user_rows[user_at] * item_rows[item_at]
                rated = agreement.sum(1) + model(agreement).squeeze(1)
                loss = (rated - ratings[chosen]).square().mean()
                loss.backward()
                user_table.push(user_keys, user_rows.grad * len(chosen))  # of the sum: a row sees few samples of the batch
                item_table.push(item_keys, item_rows.grad * len(chosen))
                loss_sum = loss.item() * len(chosen)
            trainer.finish(loss_sum=loss_sum)
            if share.round % 50 == 0 and len(chosen) > 0:
                print(f"round {share.round}: squared error {loss_sum / len(chosen):.3f}", flush=True)
        print(f"{trainer.end.name.lower()}: {trainer.end_reason}")
