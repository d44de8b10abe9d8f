#!/usr/bin/env python3
"""Handwritten digits with NumPy and Centroid: one worker of a cluster.

Usage: digits.py SERVER DIGITS_CSV_GZ [--name NAME] [--batch 32] [--lr 0.1] [--out FILE.npz] [--step-seconds S]
SERVER is HOST:PORT of a centroid-server. DIGITS_CSV_GZ has 64 pixels and the digit in each line; `./centroid build` puts it at
.cache/data/digits.csv.gz. Start one process for each worker. It works with and without the server's setting local_steps.
"""

import argparse
import gzip
import pathlib
import sys
import time

try:
    import numpy as np
except ModuleNotFoundError:
    sys.exit("this example needs NumPy (Debian, Ubuntu: apt-get install python3-numpy); the package centroid itself needs nothing")

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import centroid  # noqa: E402

HELD_OUT = 360


def load(path):
    numbers = np.loadtxt(gzip.open(path), delimiter=",", dtype=np.float32)
    return (numbers[:, :64] / 16).astype(np.float32), numbers[:, 64].astype(np.int64)


def initial(seed=1):
    draw = np.random.default_rng(seed)
    tensors = {"hidden.weight": draw.normal(0, (2 / 64) ** 0.5, (64, 32)), "hidden.bias": np.zeros(32)}
    tensors |= {"output.weight": draw.normal(0, (1 / 32) ** 0.5, (32, 10)), "output.bias": np.zeros(10)}
    return {name: values.astype(np.float32) for name, values in tensors.items()}


def step(tensors, x, y):
    """Return the mean gradients, the sum of the losses, and how many samples are classified correctly."""
    hidden = np.maximum(x @ tensors["hidden.weight"] + tensors["hidden.bias"], 0)
    logits = hidden @ tensors["output.weight"] + tensors["output.bias"]
    logits -= logits.max(axis=1, keepdims=True)
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    rows = np.arange(len(y))
    loss = -np.log(np.maximum(chances[rows, y], 1e-30)).sum()
    back = chances.copy()
    back[rows, y] -= 1
    back /= max(len(y), 1)
    hidden_back = (back @ tensors["output.weight"].T) * (hidden > 0)
    gradients = {"hidden.weight": x.T @ hidden_back, "hidden.bias": hidden_back.sum(axis=0)}
    gradients |= {"output.weight": hidden.T @ back, "output.bias": back.sum(axis=0)}
    return gradients, float(loss), int((logits.argmax(axis=1) == y).sum())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server")
    parser.add_argument("digits")
    parser.add_argument("--name")
    parser.add_argument("--token")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.1, help="of local steps")
    parser.add_argument("--step-seconds", type=float, default=0, help="sleep so long in each step")
    parser.add_argument("--out", help="write the last parameters")
    options = parser.parse_args()
    x, y = load(options.digits)
    train, held_out = slice(0, len(x) - HELD_OUT), slice(len(x) - HELD_OUT, None)
    tensors, right = initial(), None
    places = {"token": options.token, "name": options.name, "model": "digits-numpy"}
    with centroid.Trainer(options.server, tensors, samples=len(x) - HELD_OUT, batch=options.batch, **places) as trainer:

        def evaluate():
            _, loss, found = step(tensors, x[held_out], y[held_out])
            trainer.report(samples=HELD_OUT, correct=found, loss_sum=loss)
            return found

        for share in trainer:
            if share.evaluate:
                right = evaluate()
            chosen = np.array(share.indices(), dtype=np.int64)
            if share.is_local:
                loss = correct = 0
                for at in range(0, len(chosen), options.batch):
                    part = chosen[at : at + options.batch]
                    gradients, more, found = step(tensors, x[train][part], y[train][part])
                    for name, gradient in gradients.items():
                        tensors[name] -= options.lr * gradient
                    loss, correct = loss + more, correct + found
                    time.sleep(options.step_seconds)
                trainer.finish(loss_sum=loss, correct=correct)
            else:
                gradients, loss, correct = step(tensors, x[train][chosen], y[train][chosen])
                time.sleep(options.step_seconds)
                trainer.finish(gradients, loss_sum=loss, correct=correct)
        if trainer.final_evaluation:
            right = evaluate()
        seen = "another worker looked at the held-out digits" if right is None else f"{100 * right / HELD_OUT:.2f} % of the held-out digits are right"
        print(f"{trainer.end.name.lower()}: {trainer.end_reason}; {seen}")
    if options.out:
        np.savez(options.out, **tensors)


if __name__ == "__main__":
    main()
