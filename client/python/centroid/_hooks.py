"""Communication hooks of DistributedDataParallel that compress gradients. Buckets travel during backward."""

import math
import threading

import numpy
import torch
import torch.distributed as dist

from ._arrays import _bad
from ._views import memory_of
from .group import Work
from .torch_backend import ProcessGroupCentroid, _shared_ends

__all__ = ["bf16_hook", "int8_hook", "topk_hook"]

_HOOKS = 2 << 32  # tags of hooks begin here; those of the backend are smaller
_CHUNK = 1 << 18  # numbers in one pass; 1 MiB of them stays in a core's cache
_SAMPLE = 1 << 14  # numbers that estimate a threshold
_TINY = 1e-37  # smaller numbers are not sent


def topk_hook(fraction):
    """Send the largest numbers of each bucket as 8 bytes.

    fraction  of the numbers: 0.01 sends 2 % of the bytes
    """
    if not isinstance(fraction, (int, float)) or not 0 < fraction <= 1:
        raise _bad(f"topk_hook: the fraction {fraction!r} is not above 0 and at most 1")
    return _TopK("topk_hook", fraction)


def int8_hook():
    """Send 8 bits a number and a scale for each 256: a quarter of the bytes."""
    return _Coded("int8_hook", _Int8)


def bf16_hook():
    """Send bfloat16, and add in float32: half of the bytes."""
    return _Coded("bf16_hook", _Bf16)


class _Steps:
    """The operations of one bucket, which follow each other: `steps` yields each, and goes on when it has ended."""

    def __init__(self, group, tag, steps):
        self.group, self.tag, self.steps = group, tag, steps
        self.work = self.failure = None
        self.lock = threading.Lock()  # an operation may end before the thread that started it returns
        self.base = torch.futures.Future()

    def future(self, result):
        """The future of this result. An error must be raised in a function of `then`: only so do callers in C++ see it."""

        def complete(_):
            if self.failure is not None:
                raise self.failure
            return result

        future = self.base.then(complete)
        self._advance()
        return future

    def _advance(self):
        with self.lock:
            try:
                if self.work is not None:
                    self.work.wait()
                if self._start_next():
                    return
            except BaseException as error:
                self.failure = error
        self.base.set_result(None)

    def _start_next(self):
        """Start the next operation; False: there is none."""
        step = next(self.steps, None)
        if step is None:
            return False
        function, arguments, keep = step
        ends = _shared_ends()
        number = ends.expect(self._advance)
        try:
            handle = self.group._start(function, arguments, tag=self.tag, ended=ends.queue, context=number)
        except BaseException:
            ends.forget(number)
            raise
        self.work = Work(handle, None, (keep, arguments), self.group)
        return True


class _Hook:
    """What DDP calls for each bucket. `residuals` has what was not sent yet, a flat tensor by the number of the bucket."""

    def __init__(self, name):
        self.__name__ = self.__qualname__ = name  # DDP reads them
        self.residuals, self._parameters, self._parts = {}, {}, {}
        self._group = self._tag = None

    def __call__(self, state, bucket):
        group, values, index = self._group_of(state), bucket.buffer(), bucket.index()
        if values.device.type != "cpu":
            raise _bad(f"{self.__name__} is for models on the CPU; this one is on {values.device}: use a hook of torch.distributed.algorithms with NCCL")
        if values.dtype != torch.float32:
            raise _bad(f"{self.__name__} is for float32 gradients, these are {values.dtype}: autocast keeps the parameters float32")
        if values.numel() >= 1 << 31:
            raise _bad(f"{self.__name__}: a bucket of {values.numel()} numbers; give DDP a smaller bucket_cap_mb")
        if group is not self._group:
            self._group, self._tag = group, _HOOKS + (next(group.hooks) << 20)
        residual = self._residual(bucket, self._padded(values.numel(), group.size()))
        return _Steps(group.group, self._tag + index, self._steps(group.group, residual, values)).future(values)

    def _group_of(self, state):
        group = dist.distributed_c10d._get_default_group() if state is None else state
        if not isinstance(group, ProcessGroupCentroid):
            found = dist.get_backend(group) if isinstance(group, dist.ProcessGroup) else f"a {type(group).__name__}"
            raise _bad(f'{self.__name__} needs a process group of the backend "centroid" as state, or None; this is {found}')
        return group

    def _residual(self, bucket, size):
        """Of this bucket, with zeros up to `size`. DDP divides its parameters into other buckets after the first step."""
        index, parameters = bucket.index(), bucket.parameters()
        known, residual = self._parameters.get(index, ()), self.residuals.get(index)
        if residual is not None and len(residual) == size and len(known) == len(parameters) and all(one is other for one, other in zip(known, parameters)):
            return residual
        residual, at = torch.zeros(size), 0
        for parameter in parameters:
            part = residual[at : at + parameter.numel()]
            if parameter in self._parts:
                part.copy_(self._parts[parameter])
            self._parts[parameter] = part
            at += parameter.numel()
        self.residuals[index], self._parameters[index] = residual, parameters
        return residual

    def _padded(self, count, world):
        return count


class _TopK(_Hook):
    def __init__(self, name, fraction):
        super().__init__(name)
        self._fraction, self._turn = fraction, 0

    def _steps(self, group, residual, values):
        kept = max(1, round(self._fraction * values.numel()))
        message, received = torch.zeros(2 * kept, dtype=torch.int32), torch.empty((group.world, 2 * kept), dtype=torch.int32)
        indices = self._take(residual, values, kept)
        sent = residual[indices]
        message[: len(sent)], message[kept : kept + len(sent)] = sent.view(torch.int32), indices
        residual.index_fill_(0, indices, 0)
        _forget_infinite(residual, sent)
        one, other = memory_of(message), memory_of(received)
        yield "all_gather", (one.address, other.address, other.bytes, None), (message, received)
        for part in received:  # in the order of ranks: the same sums everywhere
            values.index_add_(0, part[kept:], part[:kept].view(torch.float32), alpha=1 / group.world)

    def _take(self, residual, values, kept):
        """Move `values` to `residual`, and return where its largest numbers are; fewer than `kept` where the others are 0."""
        threshold = self._threshold(residual, values, kept)
        if threshold is None:
            residual.add_(values)
            values.zero_()
            return _largest(residual, kept)
        found = []
        for begin in range(0, len(values), _CHUNK):
            some, given = residual[begin : begin + _CHUNK], values[begin : begin + _CHUNK]
            some.add_(given)
            given.zero_()
            found.append(_not_below(some, threshold).add_(begin))
        found = torch.cat(found)
        if len(found) < kept:
            return found if threshold == _TINY else _largest(residual, kept)
        return found[_largest(residual[found], kept)]

    def _threshold(self, residual, values, kept):
        """Below which few of the `kept` largest are, by a sample; None: there are few numbers."""
        if len(values) < 4 * _SAMPLE:
            return None
        step = len(values) // _SAMPLE | 1
        self._turn += 1
        begin = self._turn * 7919 % step
        sample = residual[begin::step].add(values[begin::step]).abs_()
        expected = len(sample) * kept / len(values)
        place = min(len(sample), math.ceil(expected + 3 * math.sqrt(expected)) + 1)  # three standard deviations more
        return max(torch.topk(sample, place, sorted=False).values.min().item(), _TINY)


def _largest(numbers, count):
    """Where the largest by magnitude are, in ascending order, which is quick to use; one that is not a number counts as largest."""
    count = min(count, len(numbers))
    least = numpy.partition(numpy.abs(numbers.numpy()), len(numbers) - count)[len(numbers) - count]
    found = _not_below(numbers, least)
    if len(found) == count:
        return found
    return torch.topk(numbers.abs(), count, sorted=False).indices  # some are equal


def _not_below(numbers, threshold):
    """Where the magnitude is not below the threshold. NumPy's comparison and `flatnonzero` are several times as fast as PyTorch's."""
    bits = numbers.numpy().view(numpy.uint32) & 0x7FFFFFFF  # they order as the magnitudes do, what is not a number last
    return torch.from_numpy(numpy.flatnonzero(bits >= numpy.float32(threshold).view(numpy.uint32)))


class _Coded(_Hook):
    """Each rank gets one part of the bucket from all, adds it up, and sends the mean to all: both ways in a format.

    source  Tang et al. 2019, "DoubleSqueeze: Parallel Stochastic Gradient Descent with Double-pass Error-Compensated Compression"
    """

    def __init__(self, name, form):
        super().__init__(name)
        self._form = form

    def _padded(self, count, world):
        return -(-count // (world * self._form.block)) * world * self._form.block

    def _steps(self, group, residual, values):
        form, world = self._form, group.world
        residual[: len(values)].add_(values)
        parts = residual.view(world, -1)
        own, size = parts[group.rank], form.bytes(parts.shape[1])
        given, received = (torch.empty((world, size), dtype=torch.uint8) for _ in range(2))
        for rank in range(world):
            if rank != group.rank:
                form.encode(parts[rank], given[rank])
        one, other = memory_of(given), memory_of(received)
        yield "all_to_all", (one.address, one.bytes, None, other.address, other.bytes, None), (given, received)
        for rank in range(world):
            if rank != group.rank:
                for begin, some in form.decode(received[rank]):
                    own[begin : begin + len(some)].add_(some)
        own.mul_(1 / world)
        form.encode(own, given[group.rank])
        own.mul_(world)  # what the mean lacks counts once for each rank
        one = memory_of(given[group.rank])
        yield "all_gather", (one.address, other.address, other.bytes, None), (given, received)
        for target, data in zip(values.split(parts.shape[1]), received):
            for begin, some in form.decode(data):
                rest = target[begin : begin + len(some)]
                rest.copy_(some[: len(rest)])


class _Int8:
    """256 numbers are a scale, the largest magnitude / 127, and 8 bits each. Scales come first."""

    block = 256

    @staticmethod
    def bytes(count):
        return count + count // 64

    @staticmethod
    def encode(numbers, out):
        """Write the numbers; what they lost stays in them."""
        blocks, scales, codes = numbers.view(-1, 256), *_Int8._parts(out)
        for begin in range(0, len(blocks), _CHUNK // 256):
            some, part = blocks[begin : begin + _CHUNK // 256], slice(begin, begin + _CHUNK // 256)
            scale = some.abs().amax(1, keepdim=True).div_(127).clamp_(min=_TINY)
            scaled = some.div(scale).round_()
            codes[part], scales[part] = scaled, scale
            some.sub_(scaled.mul_(scale))
            _forget_infinite(some, scale)

    @staticmethod
    def decode(data):
        """Yield where each chunk begins, and its numbers."""
        scales, codes = _Int8._parts(data)
        for begin in range(0, len(codes), _CHUNK // 256):
            part = slice(begin, begin + _CHUNK // 256)
            yield 256 * begin, codes[part].to(torch.float32).mul_(scales[part]).view(-1)

    @staticmethod
    def _parts(data):
        count = len(data) // 260
        return data[: 4 * count].view(torch.float32).view(-1, 1), data[4 * count :].view(torch.int8).view(-1, 256)


class _Bf16:
    block = 2

    @staticmethod
    def bytes(count):
        return 2 * count

    @staticmethod
    def encode(numbers, out):
        for some, codes in zip(numbers.split(_CHUNK), out.view(torch.bfloat16).split(_CHUNK)):
            codes.copy_(some)
            some.sub_(codes)
            _forget_infinite(some, some)

    @staticmethod
    def decode(data):
        for number, codes in enumerate(data.view(torch.bfloat16).split(_CHUNK)):
            yield _CHUNK * number, codes.to(torch.float32)


def _forget_infinite(numbers, signs):
    """If `signs`, which was sent, has a number that is not finite, this step is lost on all ranks: keep no such number for the next."""
    if not math.isfinite(signs.sum().item()):
        numbers.nan_to_num_(0, 0, 0)
