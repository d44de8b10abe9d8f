"""Data parallel training that survives: the mean of the gradients comes back, and the program's own optimizer steps."""

import contextlib
import io
import os
import weakref

import torch
from torch import nn

import centroid

from ._arrays import CentroidError, _bad, _number
from ._optimizer import Wrapped
from ._peers import Peers
from .group import _address, _environment

_BUCKET_BYTES = 4 << 20
_FIRST_TAG = 1  # of buckets: operations of different tags may overtake each other
_NEWS, _CHANGED, _AHEAD, _USED = range(4)  # places in the flags, from _USED on one for each parameter

_models = weakref.WeakSet()


class _Bucket:
    """Tensors that travel together: gradients of parameters, or buffers."""

    def __init__(self, tag, tensors, numbers=None):
        self.tag, self.tensors, self.numbers = tag, tensors, numbers  # numbers: of the parameters; None: these are buffers
        self.sizes = [_real(tensor).numel() for tensor in tensors]
        # Of this step and of the one before, in turn: the means, for a process that did not get them before another one died.
        self.flats = [torch.zeros(sum(self.sizes), dtype=_sent_as(tensors[0])) for _ in range(2)]
        self.left, self.work = len(tensors), None  # left: gradients that this step has not found yet

    def start(self, group, step):
        flat = self.flats[step % 2]
        for part, tensor in zip(flat.split(self.sizes), self.tensors):
            value = tensor if self.numbers is None else tensor.grad
            if value is None:
                part.zero_()
            else:
                value = _real(value)
                part.view(value.shape).copy_(value)
        self.work = group.all_reduce(flat, wait=False, tag=self.tag)

    def end(self, step, world):
        self.work.wait()
        self.work = None
        self.flats[step % 2].div_(world)

    def forget(self):
        """Afterwards its memory is free."""
        work, self.work, self.left = self.work, None, len(self.tensors)
        if work is not None:
            with contextlib.suppress(CentroidError):
                work.wait()

    def give_back(self, step, is_used):
        """Put the means where they belong."""
        self.left = len(self.tensors)
        for at, (mean, tensor) in enumerate(zip(self.flats[step % 2].split(self.sizes), self.tensors)):
            if self.numbers is not None:
                if not is_used[self.numbers[at]]:
                    continue
                if tensor.grad is None:
                    tensor.grad = torch.zeros_like(tensor)
                tensor = tensor.grad
            tensor = _real(tensor)
            tensor.copy_(mean.view(tensor.shape))


def _sent_as(tensor):
    return torch.float64 if tensor.dtype in (torch.float64, torch.complex128) else torch.float32


def _real(tensor):
    """The same memory; of complex numbers the parts."""
    tensor = tensor.detach()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _buckets_of(parameters, buffers):
    """Backward finds the gradients of the last parameters first."""
    made, open_ = [], {}
    for number in reversed(range(len(parameters))):
        numbers = open_.setdefault(_sent_as(parameters[number]), [])
        numbers.append(number)
        if sum(parameters[one].numel() for one in numbers) * 4 >= _BUCKET_BYTES:
            made.append(open_.pop(_sent_as(parameters[number])))
    buckets = [_Bucket(_FIRST_TAG + at, [parameters[one] for one in numbers], numbers) for at, numbers in enumerate([*made, *open_.values()])]
    return buckets + ([_Bucket(_FIRST_TAG + len(buckets), buffers)] if buffers else [])


class DataParallel(nn.Module):
    """Averages the gradients of all processes during `backward()`, and survives the loss of some.

        model = centroid.torch.DataParallel(model)
        optimizer = centroid.torch.Optimizer(torch.optim.AdamW(model.parameters()))

    After `backward()` each `.grad` is the mean, the same bits in all processes: clip, unscale and step as ever. What is infinite in one
    process is so in all, and a GradScaler skips the step in all. BatchNorm's running statistics are averaged too.

    When a process dies the others finish the step with their mean. One that comes later gets their state, between two steps. A process
    meets the others in its first `forward` in training mode. Without `address` and MASTER_ADDR it trains alone.

    module   on the CPU or a GPU; gradients travel through the host as float32 or float64, which needs memory for two copies of them
    address  HOST:PORT where the processes meet; default: as for `join`. Rank 0 starts a small process there, which ends with the last one
    rank, world  place and number of processes at the start; default: RANK, WORLD_SIZE
    host     as for `join`, or CENTROID_HOST
    token    secret of the job: who has it can send a state, which is a pickle
    timeout  seconds for the start and each exchange; then a process that does not come is left out

    Models that train together are parts of one module. `close` it before another.

    All processes make as many backward passes. Activation checkpoints need `use_reentrant=False`.
    """

    def __init__(self, module, address=None, *, rank=None, world=None, host=None, token=None, timeout=600):
        super().__init__()
        self.module, self._peers = module, None
        centroid.version()  # loads the library, which knows what a buffer is
        self._hooks = []
        self._find_tensors()
        if address is not None or "MASTER_ADDR" in os.environ:
            rank = int(_environment("RANK", "rank")) if rank is None else rank
            world = int(_environment("WORLD_SIZE", "world")) if world is None else world
            self._peers = Peers(address or _address(), _number(rank, "rank", 0, 2**31), _number(world, "world", 1, 2**31), host, token, timeout)
        self._steps = -1  # that have ended; -1: it has not met the others
        self._syncs, self._is_armed, self._failure = True, False, None  # armed: a backward pass that exchanges is under way
        self._is_between = True  # two steps
        self._is_local, self._passes = False, 0  # local: a backward pass that does not exchange is under way; passes: such, since the last step
        self._is_changed = False  # a process is gone, which the sampler does not know
        self._sampler, self._optimizers = None, []  # what a new process needs besides the module
        _models.add(self)

    def _find_tensors(self):
        """What is exchanged."""
        parameters = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        if not parameters:
            raise _bad("the module has no parameter that requires a gradient")
        buffers = [buffer for name, buffer in self.module.named_buffers() if centroid._is_buffer(name)]
        self._buckets = _buckets_of(parameters, buffers)
        self._bucket_of = {parameter: bucket for bucket in self._buckets if bucket.numbers for parameter in bucket.tensors}
        self._flags = torch.zeros(_USED + len(parameters), dtype=torch.int64)
        for hook in self._hooks:
            hook.remove()
        itself = weakref.ref(self)
        self._hooks = [_watch(parameter, itself) for parameter in parameters]
        places = [(one._parameters, name) for one in self.module.modules() for name in one._parameters]
        places += [(one._buffers, name) for one in self.module.modules() for name in one._buffers if centroid._is_buffer(name)]
        places = [(place, name) for place, name in places if place[name] is not None]
        self._found = [(place, name, place[name], (place[name].dtype, place[name].device), place[name].requires_grad) for place, name in places]

    def _check_tensors(self):
        """`.to` gives a module other buffers, and its parameters other nodes, which have no hooks. A parameter may be frozen, for then it has no gradient."""
        if all(place.get(name) is tensor and kind == (tensor.dtype, tensor.device) and tensor.requires_grad <= is_trained for place, name, tensor, kind, is_trained in self._found):
            return
        if self._steps < 0:
            return self._find_tensors()
        raise CentroidError("failed_precondition", "since the first forward pass the module was moved, got another type or other tensors, or a parameter requires a gradient that did not: do that before. A parameter that is to be trained later may be frozen after the first forward pass")

    # place of this process now
    rank = property(lambda self: self._peers.rank if self._peers else 0)
    # number of processes now
    world = property(lambda self: self._peers.world if self._peers else 1)
    # backward passes of the job that have averaged gradients
    steps = property(lambda self: max(self._steps, 0))

    def forward(self, *inputs, **named):
        if self.training and torch.is_grad_enabled():
            if not self._hooks:
                raise CentroidError("failed_precondition", "this DataParallel is closed: make a new one, or train its module alone")
            self._check_tensors()
            self._is_local = False
            if self._is_armed:  # the program's own error ended the last backward pass
                self._forget()
            if self._steps < 0 or (self._is_between and self._sampler is None and self._peers and self._peers.has_news):
                self._meet_between()
        return self.module(*inputs, **named)

    @contextlib.contextmanager
    def no_sync(self):
        """Accumulate gradients in this process alone, as DistributedDataParallel's."""
        before, self._syncs = self._syncs, False
        try:
            yield
        finally:
            self._syncs = before

    def close(self):
        """Leave the others, which go on. The module stays as it is."""
        if self._peers:
            self._peers.leave()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        _models.discard(self)

    def state_dict(self, *arguments, **named):
        """The module's, so names have no prefix; `load_state_dict` too."""
        return self.module.state_dict(*arguments, **named)

    def load_state_dict(self, *arguments, **named):
        return self.module.load_state_dict(*arguments, **named)

    # ---- a step

    def _ready(self, parameter):
        """Its gradient is in `.grad`."""
        self._is_between = False
        if not self._syncs:
            if not self._is_local:
                self._is_local = True
                torch.autograd.Variable._execution_engine.queue_callback(self._end_local)
            return
        if not self._is_armed:
            if self._steps < 0 or (self._peers and self._peers.group is None):
                raise CentroidError("failed_precondition", "backward before a forward pass of the DataParallel in training mode")
            self._is_armed = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)
        bucket = self._bucket_of[parameter]
        bucket.left -= 1
        if bucket.left == 0 and self._peers and self._failure is None:
            try:
                bucket.start(self._peers.group, self._steps)
            except CentroidError as error:
                self._failure = error  # which _end_backward handles

    def _end_local(self):
        self._is_local, self._passes = False, self._passes + 1

    def _end_backward(self):
        if self._peers:
            self._exchange()
            for bucket in self._buckets:
                bucket.give_back(self._steps, self._flags[_USED:])
            self._peers.has_news |= bool(self._flags[_NEWS])
        if self._sampler is not None:
            self._sampler._check_passes(self._passes + 1)
        self._passes = 0
        if self._sampler is not None and (self._flags[_NEWS] or self._flags[_CHANGED]):
            self._sampler._stop_after(int(self._flags[_AHEAD]))
        self._steps += 1
        self._is_armed, self._is_between = False, not self._optimizers

    def _exchange(self):
        """Until it has ended `.grad` is what this process found, so after a loss it begins again."""
        while True:
            try:
                self._reduce()
                self._is_changed = False
                return
            except CentroidError as error:
                if error.code == "invalid_argument":
                    raise
            self._forget()
            if self._meet(False):
                return

    def _reduce(self):
        if self._failure is not None:
            raise self._failure
        for bucket in self._buckets:
            if bucket.work is None:
                bucket.start(self._peers.group, self._steps)
        self._peers.look_for_news()
        used = [0] * (len(self._flags) - _USED)
        for bucket in self._buckets:
            for number, parameter in zip(bucket.numbers or (), bucket.tensors):
                used[number] = parameter.grad is not None
        self._flags[:] = torch.tensor([self._peers.has_news, self._is_changed, self._sampler._ahead() if self._sampler else 0, *used])
        self._peers.group.all_reduce(self._flags, "max")
        for bucket in self._buckets:
            bucket.end(self._steps, self._peers.world)

    def _forget(self):
        """End what is under way, here and on the other ranks."""
        if self._peers and self._peers.group is not None:
            self._peers.group.abort(f"rank {self.rank} makes another group")
        for bucket in self._buckets:
            bucket.forget()
        if self._peers:
            self._peers.drop_group()
        self._is_armed, self._failure = False, None

    # ---- other processes

    def _meet_between(self):
        """Meet the others between two steps, where new ones may come in."""
        self._check_tensors()
        if self._peers:
            self._meet(True)
        self._steps = max(self._steps, 0)

    def _meet(self, is_open):
        """Make a group of those that are there. Returns whether another process had the mean of this step already."""
        while True:
            answer = self._peers.meet(self._steps, is_open)
            try:
                has_mean = not answer["same"] and self._catch_up(answer)
            except CentroidError as error:
                if error.code == "invalid_argument":
                    raise
                self._forget()
                continue
            if answer["open"] or not is_open:
                return has_mean

    def _catch_up(self, answer):
        versions, group = answer["versions"], self._peers.group
        newest = max(versions)
        source = versions.index(newest)
        if answer["open"]:
            self._give_state(source, [rank for rank, version in enumerate(versions) if version < max(newest, 0) and rank != source])
            return False
        self._is_changed = True
        if self._sampler is not None:
            self._sampler._regroup(answer["was"], newest)
        if min(versions) == newest:
            return False
        if min(versions) < newest - 1:
            raise _bad(f"processes are {newest - min(versions)} steps apart: all must make the same number of backward passes")
        for bucket in self._buckets:
            group.broadcast(bucket.flats[(newest - 1) % 2], source)
        flags = self._flags.clone()
        group.broadcast(flags, source)
        if self._steps < newest:
            self._flags = flags
        return self._steps < newest

    def _give_state(self, source, others):
        group, size = self._peers.group, torch.zeros(1, dtype=torch.int64)
        if self.rank == source and others:
            kept = [one.state_dict() for one in self._kept()]
            sampler = self._sampler and self._sampler.state_dict()
            file = io.BytesIO()
            torch.save({"steps": self.steps, "module": self.module.state_dict(), "kept": kept, "sampler": sampler}, file)
            size[0] = file.tell()
            for rank in others:
                group.send(size, rank)
                group.send(file.getvalue(), rank)
        elif self.rank in others:
            data = bytearray(int(group.recv(size, source)))
            group.recv(data, source)
            self._load(torch.load(io.BytesIO(data), map_location="cpu", weights_only=False))

    def _kept(self):
        return [one for optimizer in self._optimizers for one in optimizer._kept]

    def _load(self, state):
        if len(state["kept"]) != len(self._kept()) or bool(state["sampler"]) != bool(self._sampler):
            raise _bad(f"the job has {len(state['kept'])} optimizers, schedulers and so on, this process {len(self._kept())}: make them, and the sampler, before the first step")
        self.module.load_state_dict(state["module"])
        for one, values in zip(self._kept(), state["kept"]):
            one.load_state_dict(values)
        if self._sampler is not None:
            self._sampler.load_state_dict(state["sampler"])
        self._steps = state["steps"]


def _watch(parameter, model):
    """Call `_ready` whenever a backward pass has added to the gradient. Who keeps the returned hook keeps that."""
    with torch.enable_grad():
        node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
    hook = node.register_hook(lambda *_: model()._ready(parameter))
    hook.node = node
    return hook


class Optimizer(Wrapped):
    """An optimizer of a DataParallel's parameters. A process that comes later gets its state.

        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
        optimizer.keep(scheduler)                    # and of this, or of a GradScaler

    Make it before the first step.
    """

    def __init__(self, optimizer):
        super().__init__(optimizer)
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.requires_grad]
        self._model = next((model for model in _models if any(parameter in model._bucket_of for parameter in parameters)), None)
        if self._model is None:
            raise _bad("the optimizer has no parameter of a DataParallel: make the DataParallel first, and the optimizer of its parameters")
        self._model._optimizers.append(self)

    def step(self, *arguments, **named):
        result = self.optimizer.step(*arguments, **named)
        self._model._is_between = True
        return result
