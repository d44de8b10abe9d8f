"""A small language model of bytes, for text_diloco.py and lora.py."""

import pathlib

import torch
from torch import nn
from torch.nn.functional import cross_entropy

CONTEXT, WIDTH = 64, 96


def read(path):
    """The bytes of a file, as windows of CONTEXT + 1."""
    data = torch.frombuffer(bytearray(pathlib.Path(path).read_bytes()), dtype=torch.uint8).long()
    count = (len(data) - 1) // CONTEXT
    return torch.stack([data[CONTEXT * i : CONTEXT * i + CONTEXT + 1] for i in range(count)])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attend, self.join = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        query, key, value = self.attend(self.before(x)).chunk(3, dim=-1)
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        weights = (query @ key.transpose(1, 2) / WIDTH**0.5).masked_fill(future, float("-inf")).softmax(-1)
        x = x + self.join(weights @ value)
        return x + self.narrow(torch.relu(self.wide(self.after(x))))


class TextModel(nn.Module):
    def __init__(self, blocks=2):
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks, self.last, self.head = nn.Sequential(*(Block() for _ in range(blocks))), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)

    def loss(self, windows):
        """The mean loss of the next byte, at each place of each window."""
        x = self.bytes(windows[:, :-1]) + self.places(torch.arange(CONTEXT))
        return cross_entropy(self.head(self.last(self.blocks(x))).flatten(0, 1), windows[:, 1:].flatten())
