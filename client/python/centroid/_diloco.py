"""Local steps with a program's own optimizer; the server combines what they changed."""

import os
import pathlib
import weakref

import torch

import centroid

from ._arrays import CentroidError, _bad
from ._optimizer import Wrapped

_SAVED = 4  # files: one more than the checkpoints that a server keeps unless told otherwise

_trained = weakref.WeakKeyDictionary()  # module: a weak reference to the Trainer that trains it


def _refuse(module, *_):
    """A hook before `load_state_dict`, which copies of the module have too."""
    trainer = _trained.get(module, lambda: None)()
    if trainer is not None and trainer._handle and trainer.end is None:
        why = "DiLoCo trains this model, so the loaded values would count as a step"
        action = "Load them before you make DiLoCo. To continue a job, start the server with --resume, and give DiLoCo folder= for the optimizer"
        raise CentroidError("failed_precondition", f"load_state_dict: {why}. {action}")


class DiLoCo(Wrapped):
    """An optimizer that exchanges every so many steps, through a server with `--local-steps`. `centroid.local(local_steps=H, ...)` trains alone.

        optimizer = centroid.torch.DiLoCo(model, torch.optim.AdamW(model.parameters()), every=20, samples=len(data), batch=16)
        loader = centroid.torch.Loader(data, optimizer, batch=16, num_workers=2)
        while not optimizer.end:
            for batch in loader:
                ...
                optimizer.step(loss=loss)

    The last step of a round exchanges, and the model gets the cluster's parameters. With data of your own each batch counts as one of the
    share.

    every    steps of a round, to be checked; default: as the server says
    server, samples, batch, more  as for Trainer
    folder   for the state of the optimizer, and of what `keep` names, at each checkpoint of the server (`--checkpoint.every-rounds=50`): a job
             that continues takes the one that belongs to its checkpoint, a new worker its newest, whose schedulers are then behind. Not for
             fragments or overlap

    Load pretrained weights before: `load_state_dict` of the model then raises an error until the job is over.

    Each batch is a step, also one that a GradScaler of PyTorch 2 skips.

    `trainer` is the Trainer: where `share.evaluate` is true, evaluate and call `trainer.report`.
    """

    # GradScaler of PyTorch 2 then calls `step` also where it finds what is not finite.
    _step_supports_amp_scaling = int(torch.__version__.split(".")[0]) >= 2

    def __init__(self, model, optimizer, *, samples, batch, every=None, server=None, folder=None, **more):
        super().__init__(optimizer)
        self.every, self._share, self._end = every, None, None
        self._batch, self._samples, self._last = batch, samples, None  # last: number of the last round of this process
        self._folder = pathlib.Path(folder) / (more.get("name") or os.environ.get("CENTROID_NAME", "worker")) if folder else None
        if self._folder:
            self._folder.mkdir(parents=True, exist_ok=True)
            more["on_keep"] = self._save
        self.trainer = centroid.Trainer(server, model, samples=samples, batch=batch, **more)
        self._hooks = []
        for module in model.modules() if isinstance(model, torch.nn.Module) else ():
            _trained[module] = weakref.ref(self.trainer)
            self._hooks.append(module._register_load_state_dict_pre_hook(_refuse, with_module=True))
        self._open_share()

    @property
    def share(self):
        """the open Share, for which it waits; None after the end"""
        if self._share is None and self._end is None:
            self._open_share()
        return self._share

    @property
    def end(self):
        """the End of the job; until then None. Waits as `share`"""
        return None if self.share is not None else self._end

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._release()
        self.trainer.__exit__(*error)

    def close(self):
        self.__exit__(None, None, None)

    def _release(self):
        """A model that is saved now needs no Centroid to be loaded."""
        for hook in self._hooks:
            hook.remove()

    def step(self, closure=None, *, loss=None):
        """Make a step. `loss` is the mean of the batch, for the job's curves; default: what the closure returns."""
        if self.end:
            raise CentroidError("failed_precondition", f"the job is over ({self.trainer.end_reason}): end the loop when `end` is set")
        if self._folder and self._made == 0:
            self._resume()
        result = self._step_scaled(closure)
        loss = result if loss is None else loss
        self._made += 1
        self._loss_sum += float(loss or 0) * self._share.count / self._steps
        left = self._steps - self._made
        if left == 0:
            self.trainer.finish(**self._statistics())
            self._last, self._share = self._share.round, None
        elif left == self._share.overlap:
            self.trainer.contribute(**self._statistics())
        return result

    def _step_scaled(self, closure):
        """Step, unless a GradScaler has found what is not finite."""
        inner = self.optimizer
        if not hasattr(inner, "found_inf") or getattr(inner, "_step_supports_amp_scaling", False):
            return inner.step(closure)
        scale, found = inner.grad_scale, inner.found_inf  # scale: None after unscale_
        del inner.grad_scale, inner.found_inf  # others refuse to step where these are set
        try:
            for group in inner.param_groups if scale is not None else ():
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.div_(scale)
            return inner.step(closure) if float(found) == 0 else None
        finally:
            inner.grad_scale, inner.found_inf = scale, found  # which the GradScaler deletes

    def _statistics(self):
        """Of the steps since this was called last."""
        samples = self._share.count * self._made // self._steps - self._told
        loss_sum, self._loss_sum, self._told = self._loss_sum, 0.0, self._told + samples
        return {"samples": samples, "loss_sum": loss_sum}

    def _open_share(self):
        """Wait for a share with samples, or the end."""
        while True:
            self._share = next(self.trainer, None)
            if self._share is None:
                self._end = self.trainer.end
                self._release()
                if self._folder and self._last is not None:
                    self._save(self._last)
                return
            self._made = self._told = 0
            self._loss_sum, self._steps = 0.0, -(-self._share.count // self._batch)
            self._check()
            if self._steps:
                return
            self.trainer.finish()

    def _check(self):
        share = self._share
        if not share.is_local:
            raise CentroidError("failed_precondition", f"the server wants a gradient a round: start it with --local-steps={self.every or 'H'}, or give centroid.local(local_steps={self.every or 'H'})")
        is_tail = share.begin + share.count * share.world >= self._samples  # where an epoch ends shares are shorter
        if self.every and (self._steps > self.every or (self._steps < self.every and not is_tail)):
            raise _bad(f"every={self.every}, but a share of this server has {self._steps} steps: start it with --local-steps={self.every}")

    def _save(self, number):
        file = self._folder / f"{number:09}.pt"
        begun = file.with_suffix(".tmp")
        with begun.open("wb") as out:
            torch.save([one.state_dict() for one in self._kept], out)
            out.flush()
            os.fsync(out.fileno())
        begun.replace(file)  # a process that is killed leaves no half of one
        for old in sorted(self._folder.glob("*.pt"), key=lambda one: one.stat().st_mtime)[:-_SAVED]:
            old.unlink()

    def _resume(self):
        """Before the first step of a round: load the state that belongs to the round before, or in a new process the newest. A job begins without."""
        number, file = self._share.round - 1, self._folder / f"{self._share.round - 1:09}.pt"
        if number == 0:  # files are of another job
            return
        if self._last is None and not file.exists():
            file = max(self._folder.glob("*.pt"), default=file)
        if self._last != number and file.exists():
            for one, state in zip(self._kept, torch.load(file, map_location="cpu", weights_only=False)):
                one.load_state_dict(state)
