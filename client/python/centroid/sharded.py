"""A model of which each process has a part (`centroid.Sharded`)."""

import collections
import ctypes
import json
import math
import os

import centroid

from ._abi import _GroupOptions, _memory, _ShardedState, _Tensor, _u32, _u64
from ._arrays import CentroidError, _bad, _number, _read, _shape
from ._servers import _tls_fields
from .group import _address, _call, _environment, _milliseconds, _open, _rank

__all__ = ["Sharded"]

State = collections.namedtuple("State", [name for name, _ in _ShardedState._fields_[1:]])


def _layer(layer):
    return _number(layer, "layer", 0, 2**32 - 1)


class Sharded:
    """Train a model of your own that is divided among processes, without a server (docs/how-to/larger-models.md).

    tensors   dict of name: array, the same names and shapes on all ranks; values are those of rank 0: others may give any arrays of the shapes
    layers    by tensor, ascending: those of a layer are gathered together; default: each one is a layer
    settings  sharding, shard_replicas, codec, codec_down, checkpoint_dir, checkpoint_keep, optimizer, lr and the others of an optimizer

    The other arguments are those of `centroid.join`. Every rank makes the same calls. A call that waits heeds Ctrl-C when it returns.
    """

    LOSSES = ("unavailable", "aborted", "deadline_exceeded")  # codes of another rank's failure: call `regroup`

    def __init__(self, address, tensors, *, layers=None, rank=None, world=None, host=None, token=None, timeout=None, tls=None, **settings):
        self._handle, self._process = None, os.getpid()
        group = _GroupOptions(
            rank=_rank(int(_environment("RANK", "rank")) if rank is None else rank),
            world=_number(int(_environment("WORLD_SIZE", "world")) if world is None else world, "world", 1, 2**32 - 1),
            host=centroid._bytes(host),
            token=centroid._bytes(token),
            timeout_ms=_milliseconds(timeout),
            **_tls_fields(tls, "authority, certificate and key"),
        )
        self._shapes = {name: _shape(array, name) for name, array in tensors.items()}
        self._layers = [_layer(layer) for layer in (range(len(tensors)) if layers is None else layers)]
        if len(self._layers) != len(tensors):
            raise _bad(f"{len(self._layers)} layers of {len(tensors)} tensors")
        keep, described = [], (_Tensor * max(len(tensors), 1))()
        for at, (name, array) in enumerate(tensors.items()):
            values = _read(array, name) if group.rank == 0 else (None, None)
            shape = (_u64 * max(len(self._shapes[name]), 1))(*self._shapes[name])
            keep.append((values, shape))
            described[at] = _Tensor(name.encode(), shape, len(self._shapes[name]), values[0])
        numbers, handle = (_u32 * max(len(tensors), 1))(*self._layers), _memory()
        place = (address or _address()).encode()
        _call("sharded_open", ctypes.byref(group), place, json.dumps(settings).encode(), described, numbers, len(tensors), ctypes.byref(handle))
        self._handle = handle
        _open.add(self)

    def state(self):
        """Return rank, world, step, position, parameter_bytes, gradient_bytes and optimizer_bytes, as of now."""
        state = _ShardedState()
        self._run("get", ctypes.byref(state))
        return State(*(getattr(state, name) for name in State._fields))

    def prefetch(self, layer):
        """Begin to gather a layer."""
        self._run("prefetch", _layer(layer))

    def gather(self, layer):
        """Return the parameters of a layer, name: memoryview of float32. After `release`, `step`, `regroup` or `close` do not use them, nor arrays made from them: the memory is freed."""
        self._run("gather", _layer(layer))
        return self._views(layer, "parameters", False)

    def release(self, layer):
        """Free the parameters of a layer."""
        self._run("release", _layer(layer))

    def gradients(self, layer):
        """Return the gradients of a layer, name: memoryview to add to. After `reduce`, `step`, `regroup` or `close` do not use them, nor arrays made from them: the memory is freed."""
        return self._views(layer, "gradient", True)

    def reduce(self, layer):
        """The gradients of a layer are complete: reduce them to the mean of all ranks."""
        self._run("reduce", _layer(layer))

    def step(self, position=0):
        """Make the optimizer's step. `position`: in the program's data after it, the same on all ranks."""
        self._run("step", _number(position, "position", 0, 2**64 - 1))

    def sum(self, *numbers):
        """Return the sums of these numbers over all ranks."""
        values = (ctypes.c_double * max(len(numbers), 1))(*numbers)
        self._run("sum", values, len(numbers))
        return list(values)[: len(numbers)]

    def regroup(self):
        """Go on without the ranks that were lost and with those that wait. `state()` says where."""
        self._run("regroup")

    def save(self, wait=False):
        """Write a checkpoint to checkpoint_dir, in the background. Raises the failure of an earlier one."""
        self._run("save", int(wait))

    def end(self):
        """The training is complete: ranks that wait or come get an error `cancelled`. Finishes the checkpoint."""
        self._run("end")

    def close(self):
        """Leave the group, when a checkpoint in progress is written. Others may go on, unless `end` was called."""
        handle, self._handle = self._handle, None
        if handle and self._process == os.getpid():
            centroid._library.centroid_sharded_close(handle)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if getattr(self, "_handle", None) and centroid._library is not None:
            self.close()

    def _run(self, function, *arguments):
        if not self._handle:
            raise CentroidError("failed_precondition", "this model is closed")
        _call(f"sharded_{function}", self._handle, *arguments)

    def _views(self, layer, kind, writes):
        if layer not in self._layers:
            raise _bad(f"no tensor is of layer {layer}")
        views = {}
        for at, (name, shape) in enumerate(self._shapes.items()):
            if self._layers[at] == layer:
                address = _memory()
                self._run(kind, at, ctypes.byref(address))
                memory = memoryview((ctypes.c_float * math.prod(shape)).from_address(address.value)).cast("B").cast("f", shape or (1,))
                views[name] = memory if writes else memory.toreadonly()
        return views
