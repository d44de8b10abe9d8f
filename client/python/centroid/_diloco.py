"""Local steps with a program's own optimizer; the server combines what they changed."""

import os
import pathlib

import torch

import centroid

from ._arrays import CentroidError, _bad
from ._optimizer import Wrapped


class DiLoCo(Wrapped):
    """An optimizer of which each worker makes `every` steps before the cluster combines the results.

        optimizer = centroid.torch.DiLoCo(model, torch.optim.AdamW(model.parameters()), every=20, samples=len(data), batch=16)
        sampler = centroid.torch.sampler(data, optimizer, batch=16)
        loader = DataLoader(data, batch_sampler=sampler)
        while not optimizer.end:
            for batch in loader:
                ...
                optimizer.step(loss=loss)

    Start the server with `--local-steps=20`. The last step of a round sends what has changed, waits for the others, and puts the
    cluster's parameters into the model. Other data than the sampler's may be used: then each batch counts as one of the share.

    model      a PyTorch module
    optimizer  of torch.optim, of the module's parameters
    every      steps of a round, which must be what the server says; default: as it says
    samples, batch  as for Trainer, and so is what is not named here, such as `name`
    server     default: what `centroid run` has set
    keep       folder for the optimizer's state at each of the server's checkpoints, of this worker alone. A job that continues from a
               checkpoint finds the state that belongs to it. Not for fragments or overlap

    `end` is None, and the End when the job is over. `share` is the open Share: where `share.evaluate` is true evaluate and call
    `trainer.report`. `trainer` is the Trainer.
    """

    def __init__(self, model, optimizer, *, samples, batch, every=None, server=None, keep=None, **more):
        super().__init__(optimizer)
        self.every, self.share, self.end = every, None, None
        self._batch, self._samples, self._kept = batch, samples, None  # kept: number of the last round of this process
        self._folder = pathlib.Path(keep) / (more.get("name") or os.environ.get("CENTROID_NAME", "worker")) if keep else None
        if self._folder:
            self._folder.mkdir(parents=True, exist_ok=True)
            more["on_keep"] = self._save
        self.trainer = centroid.Trainer(server, model, samples=samples, batch=batch, **more)
        self._open_share()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.trainer.__exit__(*error)

    def close(self):
        """Leave the cluster."""
        self.trainer.close()

    def step(self, closure=None, *, loss=None):
        """Make a step; the last one of a round exchanges.

        loss  mean loss of the batch, for the job's curves; default: what the closure returns, or nothing
        """
        if self.end:
            raise CentroidError("failed_precondition", f"the job is over ({self.trainer.end_reason}): end the loop when `end` is set")
        result = self.optimizer.step(closure)
        loss = result if loss is None else loss
        self._made += 1
        self._loss_sum += float(loss or 0) * self.share.count / self._steps
        left = self._steps - self._made
        if left == 0:
            self.trainer.finish(**self._statistics())
            self._kept = self.share.round
            self._open_share()
        elif left == self.share.overlap:
            self.trainer.contribute(**self._statistics())
        return result

    def _statistics(self):
        """Of the steps since this was called last."""
        samples = self.share.count * self._made // self._steps - self._told
        loss_sum, self._loss_sum, self._told = self._loss_sum, 0.0, self._told + samples
        return {"samples": samples, "loss_sum": loss_sum}

    def _open_share(self):
        """Wait for a share with samples, or the end."""
        while True:
            self.share = next(self.trainer, None)
            if self.share is None:
                self.end = self.trainer.end
                if self._folder and self._kept is not None:
                    self._save(self._kept)
                return
            self._made = self._told = 0
            self._loss_sum, self._steps = 0.0, -(-self.share.count // self._batch)
            self._check()
            if self._folder:
                self._resume()
            if self._steps:
                return
            self.trainer.finish()
            self._kept = self.share.round

    def _check(self):
        share = self.share
        if not share.is_local:
            raise CentroidError("failed_precondition", f"the server wants a gradient a round: start it with --local-steps={self.every or 'H'}")
        is_tail = share.begin + share.count * share.world >= self._samples  # where an epoch ends shares are shorter
        if self.every and (self._steps > self.every or (self._steps < self.every and not is_tail)):
            raise _bad(f"every={self.every}, but a share of this server has {self._steps} steps: start it with --local-steps={self.every}")

    def _save(self, number):
        torch.save(self.optimizer.state_dict(), self._folder / f"{number:09}.pt")

    def _resume(self):
        """Take the state that belongs to the round before; a new process without it the newest."""
        number, file = self.share.round - 1, self._folder / f"{self.share.round - 1:09}.pt"
        if self._kept is None and not file.exists():
            file = max(self._folder.glob("*.pt"), default=file)
        if self._kept != number and file.exists():
            self.optimizer.load_state_dict(torch.load(file, map_location="cpu"))
