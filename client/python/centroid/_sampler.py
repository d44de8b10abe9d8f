"""Which samples a process trains, as a sampler of batches for DataLoader."""

import warnings

import torch

from ._arrays import CentroidError, _bad, _number
from ._data_parallel import DataParallel
from ._diloco import DiLoCo


def sampler(dataset, source, *, batch, seed=0, shuffle=True, drop_last=False, accumulate=1):
    """Return a sampler of batches for one DataLoader, which may have worker processes.

        loader = DataLoader(data, batch_sampler=sampler, num_workers=2, persistent_workers=True)
        while sampler.epoch < 10:
            for x, y in loader: ...

    One pass over the loader is the open share of a Trainer or DiLoCo, or with a DataParallel the rest of the epoch, less where processes
    come or go. Batches are loaded ahead within a pass; for a Trainer's share, which is often one batch, take `Loader`.

    source      a DataParallel, DiLoCo or Trainer
    batch       most samples of a batch; with a DiLoCo the same as its own
    seed, shuffle, drop_last  order of an epoch, and whether its smaller last batches are left out; this and `accumulate` are for a
                DataParallel, alike in all processes
    accumulate  batches of a step, where all but the last are under `no_sync`

    With a DataParallel each sample is trained once an epoch, those of a process that died by others; fewer than there are processes are
    left out. Train each batch once.
    """
    batch, accumulate = _number(batch, "batch", 1, 2**62), _number(accumulate, "accumulate", 1, 2**31)
    if isinstance(source, DataParallel):
        return Epochs(len(dataset), source, batch, seed, shuffle, drop_last, accumulate)
    return Shares(source, batch)


class Shares(torch.utils.data.Sampler):
    """The batches of the open share of a Trainer or DiLoCo, of equal size where they can be."""

    def __init__(self, source, batch):
        if isinstance(source, DiLoCo) and source._batch != batch:
            raise _bad(f"batch={batch}, but the DiLoCo has batch={source._batch}, by which it counts the steps of a share: give both the same")
        self._source, self._batch = source, batch
        self._begun = None  # the share of the last pass

    def _share(self):
        share = self._source.share if isinstance(self._source, DiLoCo) else self._source._share
        if share is None:
            raise CentroidError("failed_precondition", "no share is open: for each share of the Trainer iterate over the loader, until the job is over")
        return share

    def __iter__(self):
        share = self._share()
        if share is self._begun and isinstance(self._source, DiLoCo) and self._source._made > 0:
            warnings.warn(f"a share is iterated over again after {self._source._made} of {self._source._steps} steps: its samples are trained twice. DiLoCo wants a step for each batch", stacklevel=2)
        self._begun = share
        return iter(self._divide(share.indices()))

    def __len__(self):
        return -(-len(self._share()) // self._batch)

    def _divide(self, indices):
        count = -(-len(indices) // self._batch)
        return [indices[number::count] for number in range(count)]

    def _plan(self, batches):
        """The batches of the open share, and at least so many that probably follow, up to the end of the epoch."""
        open_ = list(self)
        shares = self._share()._ahead(-(-batches // len(open_))) if open_ and batches else []
        return open_, [batch for indices in shares for batch in self._divide(indices)]


class Epochs(torch.utils.data.Sampler):
    """The batches of one process of a DataParallel, pass by pass.

    In a pass the samples that an epoch still has are divided among the processes, in steps of a batch for each. It ends before they
    do, after the same step in all processes, when one has died or wants to come in. What nobody has trained is for the next pass.
    """

    def __init__(self, samples, model, batch, seed, shuffle, drop_last, accumulate):
        if model._sampler is not None:
            raise _bad("this DataParallel has a sampler already")
        self._samples, self._model, self._batch = samples, model, batch
        self._seed, self._shuffle, self._drop_last, self._accumulate = seed, shuffle, drop_last, accumulate
        self._epoch, self._rest = 0, None  # rest: samples of the epoch that no pass has trained; None: all
        self._pass, self._has_warned = None, False
        model._sampler = self

    @property
    def epoch(self):
        """Epochs that are over."""
        if self._pass is not None and self._pass.trained() >= self._pass.limit:
            self._end_pass()
        return self._epoch

    def __iter__(self):
        self._end_pass()
        self._model._meet_between()
        begun = self._pass = self._next_pass()
        while begun.given < begun.limit:
            begun.given += 1
            yield begun.batch(begun.given - 1)

    def __len__(self):
        """Batches of the next pass, if no process comes or goes."""
        return self._next_pass().limit

    def state_dict(self):
        epoch, rest = self._left()
        return {"seed": self._seed, "epoch": epoch, "rest": rest}

    def load_state_dict(self, state):
        self._seed, self._epoch, self._rest, self._pass = state["seed"], state["epoch"], state["rest"], None

    def _next_pass(self):
        order = self._order() if self._rest is None else self._rest
        made = _Pass(order, self._model, self._batch, self._drop_last, self._accumulate)
        if made.limit == 0:
            raise _bad(f"{self._samples} samples are fewer than a step of {self._model.world} processes needs")
        return made

    def _order(self):
        if not self._shuffle:
            return torch.arange(self._samples)
        return torch.randperm(self._samples, generator=torch.Generator().manual_seed(self._seed + self._epoch))

    def _left(self):
        """The epoch, and its samples that are not trained."""
        if self._pass is None:
            return self._epoch, self._rest
        rest = self._pass.untrained()
        if _Pass(rest, self._model, self._batch, self._drop_last, self._accumulate).limit == 0:
            return self._epoch + 1, None
        return self._epoch, rest

    def _end_pass(self):
        self._epoch, self._rest = self._left()
        self._pass = None

    # ---- for the DataParallel

    def _check_passes(self, passes):
        if passes != self._accumulate and not self._has_warned:
            self._has_warned = True
            warnings.warn(f"{passes} backward passes made a step, but the sampler counts {self._accumulate} batches a step: if each had a batch of its own, give sampler accumulate={passes}, or batches are trained again", stacklevel=2)

    def _ahead(self):
        """Batches that were given to the loader, of steps that have not ended."""
        return self._pass.given - self._pass.trained() if self._pass else 0

    def _stop_after(self, batches):
        """While a step ends: as many more batches, with those of this step. The same in all processes."""
        if self._pass is not None:
            steps = -(-batches // self._accumulate)
            self._pass.limit = min(self._pass.limit, self._pass.trained() + steps * self._accumulate)

    def _regroup(self, was, steps):
        """These former ranks are left; those that are gone had their part in all steps before `steps`."""
        if self._pass is not None:
            self._pass.regroup(was, steps)


class _Pass:
    """Samples in the order in which they are trained: step by step, and in a step process by process."""

    def __init__(self, order, model, batch, drop_last, accumulate):
        self.order, self.model, self.world, self.slot = order, model, model.world, model.rank
        self.first, self.accumulate = model.steps, accumulate
        self.full = len(order) // (batch * self.world)  # batches of each process
        self.size, tail = batch, len(order) - self.full * batch * self.world
        self.last = 0 if drop_last else tail // self.world  # samples of one more batch
        batches = self.full + (self.last > 0)
        self.limit = batches - batches % accumulate
        self.given = 0  # to the loader
        self.slots = list(range(self.world))  # of the processes that are left, by rank
        self.lost = {}  # batches that those trained that are not

    def trained(self):
        return (self.model.steps - self.first) * self.accumulate

    def batch(self, number):
        size = self.size if number < self.full else self.last
        begin = number * self.size * self.world + self.slot * size
        return self.order[begin : begin + size].tolist()

    def regroup(self, was, steps):
        for rank, slot in enumerate(self.slots):
            if rank not in was:
                self.lost[slot] = (steps - self.first) * self.accumulate
        self.slots = [self.slots[rank] for rank in was]

    def untrained(self):
        at = torch.arange(len(self.order))
        number = at // (self.size * self.world)
        size = torch.where(number < self.full, self.size, max(self.last, 1))
        slot = (at - number * self.size * self.world) // size
        trained = torch.full((self.world,), self.trained())
        for lost, batches in self.lost.items():
            trained[lost] = batches
        is_trained = (slot < self.world) & (number < trained[slot.clamp(max=self.world - 1)])
        return self.order[~is_trained]
