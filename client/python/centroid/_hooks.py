"""Communication hooks of DistributedDataParallel that compress gradients. Buckets travel during backward."""

import ctypes
import threading
import weakref

import torch
import torch.distributed as dist

import centroid

from ._abi import _memory, _u64
from ._arrays import _bad
from .group import Work, _call
from .torch_backend import ProcessGroupCentroid, _shared_ends

__all__ = ["bf16_hook", "int8_hook", "topk_hook"]

_HOOKS = 2 << 32  # tags of hooks begin here; those of the backend are smaller


def topk_hook(fraction, *, scaler=None):
    """Send the largest numbers of each bucket, and where they are: about 5 bytes each.

    If a number is not finite, all of its bucket become NaN on every rank.

    fraction  of the numbers: 0.01 sends 1.3 % of the bytes
    scaler    the loss's GradScaler, if it has one: what was not sent follows the scale
    """
    if not isinstance(fraction, (int, float)) or not 1e-9 <= fraction <= 1:
        raise _bad(f"topk_hook: the fraction {fraction!r} is not from 1e-9 to 1")
    return _ToAll("topk_hook", f"topk:{fraction:.9f}", scaler)


def int8_hook(*, scaler=None):
    """Send 8 bits a number and a scale for each 256: a quarter of the bytes.

    Each rank adds up one part of a bucket. If a number is not finite, all of its part become NaN on every rank. `scaler` is as for
    `topk_hook`.
    """
    return _Parts("int8_hook", "int8:feedback=on", scaler)


def bf16_hook(*, scaler=None):
    """Send bfloat16, and add in float32: half of the bytes.

    If a number is not finite, only its mean is not finite. `scaler` is as for `topk_hook`.
    """
    return _Parts("bf16_hook", "bf16:feedback=on", scaler)


class _Codec:
    """A codec of `count` numbers. What a payload lacks stays in the residual. All payloads have `room` bytes, so receivers know how many come."""

    def __init__(self, spec, count):
        handle = _memory()
        _call("codec_open", spec.encode(), count, ctypes.byref(handle))
        weakref.finalize(self, centroid._library.centroid_codec_close, handle)
        self._handle, self.room = handle, centroid._library.centroid_codec_room(handle)

    def encode(self, values, residual, payload):
        """Write the payload of values + residual."""
        _call("codec_encode", self._handle, values.data_ptr(), residual.data_ptr(), payload.data_ptr(), ctypes.byref(_u64()))

    def decode(self, payload, scale, first, sums):
        """sums += scale * numbers; with `first` they become it."""
        _call("codec_decode", self._handle, payload.data_ptr(), len(payload), scale, first, sums.data_ptr())


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

    def __init__(self, name, spec, scaler):
        if scaler is not None and not hasattr(scaler, "get_scale"):
            raise _bad(f"{name}: scaler is a {type(scaler).__name__}, not a GradScaler")
        self.__name__ = self.__qualname__ = name  # DDP reads them
        self.residuals, self._parameters, self._parts, self._codecs = {}, {}, {}, {}
        self._spec, self._group, self._tag = spec, None, None
        self._scaler, self._scale = scaler, 1.0  # scale: that of the residuals

    def __call__(self, state, bucket):
        group, values, index = self._group_of(state), bucket.buffer(), bucket.index()
        if values.device.type != "cpu":
            raise _bad(f"{self.__name__} is for models on the CPU; this one is on {values.device}: use a hook of torch.distributed.algorithms with NCCL")
        if values.dtype != torch.float32:
            raise _bad(f"{self.__name__} is for float32 gradients, these are {values.dtype}: autocast keeps the parameters float32")
        self._follow_scale()
        if group is not self._group:
            self._codecs = {}
            self._group, self._tag = group, _HOOKS + (next(group.hooks) << 20)
        return _Steps(group.group, self._tag + index, self._steps(group.group, index, values, self._residual(bucket))).future(values)

    def _group_of(self, state):
        group = dist.distributed_c10d._get_default_group() if state is None else state
        if not isinstance(group, ProcessGroupCentroid):
            found = dist.get_backend(group) if isinstance(group, dist.ProcessGroup) else f"a {type(group).__name__}"
            raise _bad(f'{self.__name__} needs a process group of the backend "centroid" as state, or None; this is {found}')
        return group

    def _follow_scale(self):
        """Gradients of a scaled loss are scaled: convert the residuals when the scale has changed, which happens between two steps."""
        scale = self._scaler.get_scale() if self._scaler else self._scale
        if scale in (0, self._scale):  # 0: no step was finite for long
            return
        for residual in self.residuals.values():
            residual.mul_(scale / self._scale)
        self._scale = scale

    def _residual(self, bucket):
        """Of this bucket. DDP divides its parameters into other buckets after the first step."""
        index, parameters, size = bucket.index(), bucket.parameters(), bucket.buffer().numel()
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
        self._codecs = {key: codec for key, codec in self._codecs.items() if key[0] != index}
        return residual

    def _codec(self, index, count):
        """A bucket's codec. Operations of one bucket follow each other; those of several may overlap."""
        if (index, count) not in self._codecs:
            self._codecs[index, count] = _Codec(self._spec, count)
        return self._codecs[index, count]


class _ToAll(_Hook):
    """Each rank sends its payload to all, which add them up in the order of ranks: the same sums everywhere."""

    def _steps(self, group, index, values, residual):
        codec = self._codec(index, len(values))
        payload = torch.empty(codec.room, dtype=torch.uint8)
        codec.encode(values, residual, payload)
        received = yield from _gather(group, payload, [codec.room] * group.world)
        for rank, part in enumerate(received):
            codec.decode(part, 1 / group.world, rank == 0, values)


class _Parts(_Hook):
    """Each rank gets one part of the bucket from all, adds it up, and sends the mean to all: both ways as payloads.

    source  Tang et al. 2019, "DoubleSqueeze: Parallel Stochastic Gradient Descent with Double-pass Error-Compensated Compression"
    """

    def _steps(self, group, index, values, residual):
        world, me = group.world, group.rank
        counts = [len(values) // world + (rank < len(values) % world) for rank in range(world)]
        parts, rests = values.split(counts), residual.split(counts)
        codecs = [self._codec(index, count) for count in counts]
        rooms = [codec.room for codec in codecs]
        sent = [0 if rank == me else room for rank, room in enumerate(rooms)]
        payload = torch.empty(sum(sent), dtype=torch.uint8)
        for rank, part in enumerate(payload.split(sent)):
            if rank != me:
                codecs[rank].encode(parts[rank], rests[rank], part)
        received = yield from _exchange(group, payload, sent, [0 if rank == me else rooms[me] for rank in range(world)])
        own, rest = parts[me], rests[me]
        for rank, part in enumerate(received):
            if rank != me:
                codecs[me].decode(part, 1, False, own)
        own.mul_(1 / world)
        rest.mul_(1 / world)
        payload = torch.empty(rooms[me], dtype=torch.uint8)
        codecs[me].encode(own, rest, payload)
        means = yield from _gather(group, payload, rooms)
        rest.mul_(world)  # what the mean lacks counts once for each rank
        for codec, mean, part in zip(codecs, means, parts):
            codec.decode(mean, 1, True, part)


def _gather(group, payload, sizes):
    """The payloads of all ranks; that of rank i has `sizes[i]` bytes."""
    received = torch.empty(sum(sizes), dtype=torch.uint8)
    yield "all_gather", (payload.data_ptr(), received.data_ptr(), len(received), group._numbers(sizes)), (payload, received)
    return received.split(sizes)


def _exchange(group, payload, sent, sizes):
    """Send `sent[i]` bytes of the payload to rank i, one after the other. Returns what came from each rank, `sizes[i]` bytes."""
    received = torch.empty(sum(sizes), dtype=torch.uint8)
    memory = payload.data_ptr(), len(payload), group._numbers(sent), received.data_ptr(), len(received), group._numbers(sizes)
    yield "all_to_all", memory, (payload, received)
    return received.split(sizes)
