"""A DataLoader that also loads the batches of later shares."""

import collections

import torch

from ._arrays import _bad, _number
from ._data_parallel import DataParallel
from ._sampler import Shares


class Loader(torch.utils.data.DataLoader):
    """A DataLoader for a Trainer or DiLoCo. Its processes load the batches of the next shares during a round.

        loader = centroid.torch.Loader(data, trainer, batch=32, num_workers=2)
        for share in trainer:
            for x, y in loader: ...

    One pass is the open share. The next shares are guessed from the ones before: where an epoch ends, or workers come or go, what was
    loaded for nothing is dropped, and nothing is loaded ahead until a guess is right again. So shares of unequal size (`--cadence.mode`,
    asp, ssp) are not loaded ahead. No sample is trained twice or left out.

    source  a Trainer or DiLoCo
    batch   most samples of a batch; that of the DiLoCo
    more    as for DataLoader, without its ways to choose samples; num_workers * prefetch_factor batches are loaded ahead
    """

    def __init__(self, dataset, source, *, batch, num_workers=0, **more):
        if isinstance(source, DataParallel):
            raise _bad("Loader: a pass of a DataParallel is the rest of the epoch: take a DataLoader of centroid.torch.sampler")
        if not more.get("in_order", True):
            raise _bad("Loader: in_order=False would mix the batches of shares")
        if num_workers:
            more.setdefault("persistent_workers", True)
        super().__init__(dataset, batch_sampler=_Stream(Shares(source, _number(batch, "batch", 1, 2**62))), num_workers=num_workers, **more)
        self._batches = None  # an iterator of the base class, for as long as its batches are wanted
        self._pass = self._guess = ()  # batches of the last pass; those that were to follow

    def __iter__(self):
        stream = self.batch_sampler
        wanted, probable = stream.shares._plan(self.num_workers and self.num_workers * self.prefetch_factor)
        is_right = not self._guess or wanted in (self._pass, self._guess[: len(wanted)])
        self._pass, self._guess = wanted, probable
        if wanted and not stream.continues_with(wanted + probable if is_right else wanted):
            self._batches = None  # ends its processes before others start
            try:
                self._batches = super().__iter__()
            except BaseException:
                stream.given.clear()
                raise
        for _ in wanted:
            try:
                data = next(self._batches)
            except BaseException:  # it is not known which batch comes next
                stream.given.clear()
                raise
            stream.given.popleft()
            yield data


class _Stream:
    """What a DataLoader takes batches of sample numbers from. `given`: those that it has not returned yet."""

    def __init__(self, shares):
        self.shares, self.given, self._coming = shares, collections.deque(), collections.deque()

    def __iter__(self):
        return self

    def __next__(self):
        if not self._coming:
            raise StopIteration  # the DataLoader asks again when more have come
        self.given.append(self._coming.popleft())
        return self.given[-1]

    def __len__(self):
        return len(self.shares)

    def continues_with(self, batches):
        """Give these batches next. False: the DataLoader loads other batches, and has to begin again."""
        known = len(self.given)
        continues = known > 0 and list(self.given) == batches[:known]
        if not continues:
            self.given.clear()
        self._coming = collections.deque(batches[len(self.given) :])
        return continues
