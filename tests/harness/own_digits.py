"""A worker of the digits that has samples of some digits only: own_digits.py SERVER DIGITS_CSV_GZ NAME DIGITS"""

import importlib.util
import pathlib
import sys

import numpy as np

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "client" / "python" / "examples" / "digits.py"
spec = importlib.util.spec_from_file_location("example", EXAMPLE)
example = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)

server, file, name, mine = sys.argv[1:]
x, y = example.load(file)
held_out = slice(len(x) - example.HELD_OUT, None)
own = np.flatnonzero(np.isin(y[: -example.HELD_OUT], [int(digit) for digit in mine]))
tensors = example.initial()
with example.centroid.Trainer(server, tensors, name=name, samples=len(x) - example.HELD_OUT, batch=32, model="digits-numpy") as trainer:

    def evaluate():
        _, loss, right = example.step(tensors, x[held_out], y[held_out])  # of all digits
        trainer.report(samples=example.HELD_OUT, correct=right, loss_sum=loss)

    for share in trainer:
        if share.evaluate:
            evaluate()
        chosen = own[np.array(share.indices(), dtype=np.int64) % len(own)]
        gradients, loss, correct = example.step(tensors, x[chosen], y[chosen])
        trainer.finish(gradients, loss_sum=loss, correct=correct)
    if trainer.final_evaluation:
        evaluate()
