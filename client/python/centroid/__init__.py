"""Train a model of your own in a cluster, pull its tensors, and use its embedding tables (docs/how-to/pytorch.md).

The package needs libcentroid.so and no other package. An array is a NumPy array, a PyTorch tensor on any device, or any object
with a writable buffer of float32.

    with centroid.Trainer("server:7070", {"w": w, "b": b}, samples=60000, batch=32) as trainer:
        for share in trainer:                       # w and b are the cluster's parameters now
            gradients, loss_sum = compute(share.indices())
            trainer.finish(gradients, loss_sum=loss_sum)
"""

import ctypes
import dataclasses
import enum
import os
import pathlib
import threading
import time
import weakref

from ._abi import _ABI, _CODES, _PROTOTYPES, _Call, _GroupOptions, _Pulled, _Round, _Server, _Share, _Step, _Tensor, _Training, _keep, _memory, _text, _u64
from ._arrays import CentroidError, _bad, _check_writable, _checksum, _frozen_of, _number, _read, _shape, _size, _tensor_at, _tensors_of, _write
from ._blocking import Blocking
from ._overlap import Overlap
from ._servers import _bytes, _server, local
from .group import Group, Work, join
from .rows import Rows
from .sharded import Sharded

__all__ = ["CentroidError", "End", "Group", "Outcome", "Round", "Rows", "Share", "Sharded", "Tensors", "Trainer", "Work", "join", "load", "local", "log_level", "pull", "version"]

_library = None


class _Named(enum.IntEnum):
    """In text a member is its name, such as `stopped`."""

    def __str__(self) -> str:
        return self.name.lower()

    __format__ = enum.Enum.__format__


class End(_Named):
    """Why the loop ended.

    FINISHED  the job reached its goal
    STOPPED   the job or this program was stopped
    DRAINED   an operator drained this worker
    HALTED    the job halted, which also raises an error
    """

    FINISHED, STOPPED, DRAINED, HALTED = 1, 2, 3, 4


class Outcome(_Named):
    """What became of a contribution. After COMMITTED the tensors are the new parameters, after the others from the next share on.

    COMMITTED  it counts
    SKIPPED    the round had a number that is not finite and changed nothing
    LOST       the round continued without this worker
    LATE       the round closed first; settings `policy` and `late` decide whether it counts later
    """

    COMMITTED, SKIPPED, LOST, LATE = 0, 1, 2, 3


def load(path=None):
    """Load this libcentroid.so.

    Without a path: the file that LIBCENTROID names, else one beside this package, in a build folder of the source tree, or where the
    system's loader finds it.
    """
    global _library
    name = path or os.environ.get("LIBCENTROID") or next(iter(_libraries_near()), "libcentroid.so.1")
    try:
        found = ctypes.CDLL(os.fspath(name))
    except OSError as error:
        raise CentroidError("not_found", f"no libcentroid.so ({error}): build it (`./centroid build`), then centroid.load(PATH) or LIBCENTROID=PATH") from None
    abi = found.centroid_abi() if hasattr(found, "centroid_abi") else 0
    if abi != _ABI:
        raise CentroidError("failed_precondition", f"{found._name} has ABI {abi}, this package needs {_ABI}")
    for function, (result, arguments) in _PROTOTYPES.items():
        prototype = getattr(found, f"centroid_{function}", None)
        if prototype is not None:
            prototype.restype, prototype.argtypes = result, arguments
    for name, struct in {"server": _Server, "training": _Training, "step": _Step, "group": _GroupOptions, "call": _Call}.items():
        known = found.centroid_struct_size(name.encode()) if hasattr(found, "centroid_struct_size") else struct._first
        struct._newer = tuple(field for field, _ in struct._fields_ if getattr(struct, field).offset >= known)
    _library = found
    return found


def _lacks(what):
    return CentroidError("unimplemented", f"{_library._name} ({version()}) is older than this package and has no {what}: build it again (`./centroid build`), or load a newer one")


def _libraries_near():
    """Libraries beside this package, then those in build folders of the source tree, the newest first."""
    here = pathlib.Path(__file__).resolve().parent
    root = here.parents[2] if len(here.parents) > 2 else here
    built = [found for pattern in ("build/lib", "build/*/lib") for found in root.glob(f"{pattern}/libcentroid.so")]
    return [one for one in [here / "libcentroid.so", *sorted(built, key=lambda one: -one.stat().st_mtime)] if one.exists()]


def _call(function, *arguments):
    """Call a function that returns a code. The error text belongs to the calling thread."""
    called = getattr(_library, f"centroid_{function}", None)
    if called is None:
        raise _lacks(f"centroid_{function}")
    code = called(*arguments)
    text = _library.centroid_error().decode(errors="replace")
    if code != 0:
        raise CentroidError(_CODES[code] if code < len(_CODES) else str(code), text)
    return text


def version():
    """Return the version of the library."""
    return (_library or load()).centroid_version().decode()


def log_level(level):
    """Set what the library logs to stderr: trace, debug, info, warn (the default), error or off."""
    _library or load()
    _call("log_level", level.encode())


@dataclasses.dataclass(frozen=True)
class Share:
    """The samples that this worker trains in one round. `len(share)` may be 0."""

    round: int  # number of the round, from 1
    version: int  # version of the parameters
    epoch: int  # number of the epoch
    rank: int  # place of this worker in the order of names; it changes when workers join or leave
    world: int  # number of workers
    begin: int  # position of the first sample in the epoch's order
    count: int  # number of samples
    is_local: bool  # True: train the tensors in place; False: compute gradients
    overlap: int  # local steps to make between `contribute` and `finish`
    evaluate: bool  # True: evaluate first, and call `Trainer.report`
    _trainer: object = dataclasses.field(repr=False, compare=False, default=None)

    def __len__(self):
        return self.count

    def indices(self):
        """Return the numbers of the samples, each below `samples`, while the round is open. No sample comes twice in an epoch."""
        numbers = (_u64 * max(self.count, 1))()
        _call("trainer_indices", self._open(), numbers)
        return numbers[: self.count]

    def _ahead(self, shares):
        """The samples of shares that probably come next, a list for each; fewer than `shares` near the end of an epoch."""
        numbers, count = (_u64 * max(shares * self.count, 1))(), _u64()
        _call("trainer_indices_ahead", self._open(), shares, numbers, ctypes.byref(count))
        return [numbers[at : min(at + self.count, count.value)] for at in range(0, count.value, max(self.count, 1))]

    def _open(self):
        trainer = self._trainer()
        if trainer is None or trainer._share is not self:
            raise CentroidError("failed_precondition", f"round {self.round} is over")
        return trainer._open()


@dataclasses.dataclass(frozen=True)
class Round:
    """The result of a round, from `Trainer.finish`."""

    outcome: Outcome  # what became of the contribution
    version: int  # version of the parameters after the round
    wait_seconds: float  # how long `finish` waited
    reason: str  # why the outcome is not COMMITTED


def _is_buffer(name):
    known = getattr(_library, "centroid_is_buffer", None)  # an older library has no such function
    return bool(known and known(name.encode()))


class Trainer:
    """A worker of a cluster. Iterate over it for shares, and call `finish` for each.

    Use it from one thread, but for `stop`. A process may have several.

    server   HOST:PORT; several servers are separated by commas. None: what `centroid run` has set (CENTROID_SERVER, CENTROID_NAME and so on).
             Or `centroid.local()`
    tensors  a PyTorch module, or a dict of names and arrays. They are changed in place, and are the cluster's parameters in each round.
             The first worker's values are the initial ones, unless there is a checkpoint. A name whose last part begins with running_ is
             a buffer: it is averaged and needs no gradient. A PyTorch parameter that requires no gradient, beside others that do, is
             frozen: it must be the same in all workers
    samples  samples of the whole training data, the same for all workers
    batch    samples of one step of this worker
    token    the workers' token
    name     unique name of this worker; default: host name and process id
    model    name of the model, the same for all workers
    codec    codec of the contributions, such as bf16 (docs/how-to/slow-networks.md); default: f32
    state_dir         folder that keeps the codec's error feedback for the next start; needs `name`
    data_fingerprint  number that identifies the training data; workers with another are refused
    sample_tokens     most tokens of a sample, where the server has `weight_by tokens`; `samples=` of `finish` then counts tokens
    on_keep  with local steps called with a round's number, when the server saves the state after that round: save your optimizer
    timeout  seconds after which a worker without a server gives up; default: 60
    tls      dict of file names: `authority` (or "system"), and where needed `certificate`, `key`, `server_name`
    exchange  "star": accept no connections of other workers; default: as the server says
    overlap   of a module each gradient leaves as soon as backward has made it. False: when `finish` is called, for programs with
              several calls of backward in a round, or that change gradients after it
    buffers   "own": they stay with each worker and out of checkpoints, as asp and ssp need

    After the loop `end` is an `End` and `end_reason` its text. Where `final_evaluation` is true, call `report` before `close`.
    """

    def __init__(self, server, tensors, *, samples, batch=1, token=None, name=None, model=None, codec=None, state_dir=None, data_fingerprint=0, sample_tokens=0, on_keep=None, timeout=None, tls=None, exchange=None, overlap=True, buffers="mean"):
        self._handle = self._overlap = None
        _library or load()
        is_module = hasattr(tensors, "named_parameters")
        if buffers not in ("mean", "own"):
            raise _bad(f"buffers is {buffers!r}, not mean or own")
        self.tensors = _tensors_of(tensors, _is_buffer)
        if buffers == "own":
            self.tensors = {name_: tensor for name_, tensor in self.tensors.items() if not _is_buffer(name_)}
        self._buffers = {name_ for name_ in self.tensors if _is_buffer(name_)}
        self._owners = {name_: tensors.get_submodule(name_.rpartition(".")[0]) for name_ in self._buffers} if is_module else {}
        self._frozen = _frozen_of({name_: self.tensors[name_] for name_ in self.tensors.keys() - self._buffers})
        for name_ in self._frozen:
            del self.tensors[name_]
        if self._frozen:  # workers whose frozen parameters differ train different models
            model = f"{model or 'external'}, frozen {_checksum(self._frozen):08x}"
        self._names = sorted(self.tensors)  # the same order in all workers
        self._shapes = [_shape(self.tensors[name_], name_) for name_ in self._names]
        for name_ in self._names:
            _check_writable(self.tensors[name_], name_)
        keep, structs = [], (_Tensor * max(len(self._names), 1))()
        for struct, name_, shape in zip(structs, self._names, self._shapes):
            address, memory = _read(self.tensors[name_], name_)
            dimensions = (_u64 * max(len(shape), 1))(*shape)
            keep.append((memory, dimensions))
            struct.name, struct.shape, struct.rank, struct.initial = name_.encode(), dimensions, len(shape), address
        training = _Training(model=_bytes(model), codec=_bytes(codec), state_dir=_bytes(state_dir), samples=_number(samples, "samples", 1, 2**62), batch=_number(batch, "batch", 1, 2**62), data_fingerprint=_number(data_fingerprint, "data_fingerprint", 0, 2**64 - 1), sample_tokens=_number(sample_tokens, "sample_tokens", 0, 2**32), on_keep=self._keeper(on_keep), exchange=_bytes(exchange))
        if server is None and name is None:
            name = os.environ.get("CENTROID_NAME")
        where = _server(server, token, name, timeout, tls)
        handle = _memory()
        _call("trainer_open", ctypes.byref(where), ctypes.byref(training), structs, len(self._names), ctypes.byref(handle))
        self._handle, self._worker, self._share, self._is_contributed, self._began = handle, Blocking(), None, False, 0.0
        self._version, self._process, self._closing = 0, os.getpid(), threading.Lock()
        self._made = {}  # tensors over the library's memory, by address
        self.end = self.end_reason = None  # after the last share: an End and its text
        self.final_evaluation = False  # call report before close
        if is_module and overlap:
            self._overlap = Overlap(self, {at: self.tensors[name_] for at, name_ in enumerate(self._names) if name_ not in self._buffers})

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.close(None if kind is None else f"{kind.__name__}: {error}")

    def _keeper(self, on_keep):
        """Make the function that C calls. An exception of the program is raised by `__next__`."""
        errors = self._on_keep_errors = []

        def call(_, number):
            try:
                on_keep(number)
            except BaseException as error:
                errors.append(error)

        self._on_keep = _keep(call) if on_keep else _keep()  # as long as the trainer lives
        return self._on_keep

    def __iter__(self):
        return self

    def __next__(self):
        """Wait for the next round and return its share. Ends with the job; a halted job raises failed_precondition."""
        if self.end is not None:
            raise StopIteration
        out = _Share()
        text = self._wait("trainer_next", self._open(), ctypes.byref(out))
        self._version = out.version
        if out.end:
            self.end, self.end_reason, self.final_evaluation = End(out.end), text, bool(out.evaluate)
            if self.end != End.STOPPED:  # where the state may have been arriving
                self._take()
            if self.end == End.HALTED:
                raise CentroidError("failed_precondition", text)
            if self._on_keep_errors:
                raise self._on_keep_errors.pop(0)
            raise StopIteration
        self._share = Share(out.round, out.version, out.epoch, out.rank, out.world, out.begin, out.count, bool(out.is_local), out.overlap, bool(out.evaluate), weakref.ref(self))
        self._is_contributed = False
        if self._overlap:
            self._overlap.begin()
        self._take()
        self._versions = self._versions_now()
        self._began = time.monotonic()
        if self._on_keep_errors:  # the share stays open: finish comes next
            raise self._on_keep_errors.pop(0)
        return self._share

    def contribute(self, gradients=None, *, samples=None, loss_sum=0.0, correct=0):
        """Send the work of this share and return at once; `finish` then waits for the round's end.

        Steps that are trained between the two calls are kept and count in the next round.
        """
        self._open()
        self._give(gradients)
        _call("trainer_contribute", self._handle, ctypes.byref(self._step(samples, loss_sum, correct)))
        self._is_contributed, self._began = True, time.monotonic()

    def finish(self, gradients=None, *, samples=None, loss_sum=0.0, correct=0):
        """Send the contribution, wait for the end of the round, and return a `Round`.

        gradients  dict of names and mean gradients over the share; None counts as 0. Default: the `.grad` of PyTorch parameters. With
                   local steps give none: the tensors are sent
        samples    samples trained since the share or `contribute`; default: all of the share
        loss_sum   sum of their losses
        correct    how many were classified correctly
        """
        self._open()
        if self._is_contributed:
            if gradients is not None:
                raise CentroidError("invalid_argument", "this round has had its gradients, with contribute")
            if self._share.is_local:
                self._give(None)  # steps since `contribute` are kept
        else:
            self._give(gradients)
        out = _Round()
        reason = self._wait("trainer_finish", self._open(), ctypes.byref(self._step(samples, loss_sum, correct)), ctypes.byref(out))
        self._share, self._is_contributed = None, False
        self._take()
        return Round(Outcome(out.outcome), out.version, out.wait_seconds, reason)

    def record(self, name, value):
        """Record a number of your own, such as a perplexity, for REST and metrics.

        A contribution carries the mean of each name since the one before. A job has at most 16 names, of 1 to 64 letters, digits,
        _ . / or -, with a letter or _ first.
        """
        _call("trainer_record", self._open(), str(name).encode(), float(value))

    def report(self, *, samples, correct, loss_sum):
        """Report the results of the cluster's parameters on held-out data."""
        samples, correct = _number(samples, "samples", 0, 2**62), _number(correct, "correct", 0, 2**62)
        _call("trainer_report", self._open(), self._version, samples, correct, loss_sum)
        self._began = time.monotonic()  # evaluation is no training time

    def committed(self, name):
        """Return the committed parameters of a tensor as bytes of float32; with fragments or overlap they differ from the tensor."""
        if name not in self.tensors:
            raise CentroidError("not_found", f"no tensor {name}")
        at = self._names.index(name)
        address = _library.centroid_trainer_committed(self._open(), at)
        return ctypes.string_at(address, 4 * _size(self._shapes[at]))

    def stop(self, why="the program stops"):
        """End the loop of this worker soon, from any thread; the job continues. A round that `finish` waits for is lost."""
        with self._closing:
            if self._handle and self._process == os.getpid():
                _library.centroid_trainer_stop(self._handle, _bytes(why))

    def close(self, why=None):
        """Leave the cluster."""
        if not self._handle:
            return
        if self._process != os.getpid():  # a forked child has no threads of the library
            self._handle = None
            return
        if self.end is None:
            self.stop(why or "the program stops")
        if not self._worker.is_free():  # a signal handler called, within a call of this thread
            return
        with self._closing:
            handle, self._handle = self._handle, None
        if self._overlap:
            self._overlap.close()
        self._made.clear()
        _library.centroid_trainer_close(handle, _bytes(why))

    def __del__(self):
        if getattr(self, "_handle", None):
            self.close()

    def _open(self):
        if not self._handle or self._process != os.getpid():
            raise CentroidError("failed_precondition", "a forked child cannot use the trainer of its parent" if self._handle else "this trainer is closed")
        return self._handle

    def _wait(self, function, *arguments):
        return self._worker.call(self.stop, _call, function, *arguments)

    def _step(self, samples, loss_sum, correct):
        count = samples if samples is not None else 0 if self._is_contributed or self._share is None else self._share.count
        count, correct = _number(count, "samples", 0, 2**62), _number(correct, "correct", 0, 2**62)
        return _Step(samples=count, correct=correct, loss_sum=float(loss_sum), compute_seconds=time.monotonic() - self._began)

    def _find_buffers(self):
        """`.to` of a module replaces them."""
        for name, owner in self._owners.items():
            self.tensors[name] = owner._buffers[name.rpartition(".")[2]]

    def _give(self, gradients):
        """Copy the gradients, or with local steps the tensors, into the library's memory."""
        self._find_buffers()
        share = self._share
        if share is None:
            raise CentroidError("failed_precondition", "no round is open: next comes before finish")
        if share.is_local and gradients is not None:
            raise CentroidError("invalid_argument", "the server wants local steps: train the tensors in place and give no gradients")
        if not share.is_local and gradients is None and share.count > 0:
            if not all(hasattr(self.tensors[name], "grad") for name in self._names):
                raise CentroidError("invalid_argument", "the server wants gradients: give one for each tensor")
            gradients = {name: self.tensors[name].grad for name in self._names}
            if all(gradient is None for gradient in gradients.values()):
                raise CentroidError("invalid_argument", "no parameter has a gradient: call backward before finish")
            if self._versions != self._versions_now():
                raise CentroidError("failed_precondition", "the parameters were changed, but the server wants gradients: make no optimizer step, or start the server with local_steps")
        given = self.tensors if share.is_local else gradients or {}
        # PyTorch gives None as the gradient of a buffer and of a frozen parameter: treat it as not given.
        given = {name: value for name, value in given.items() if value is not None or name not in self._buffers and name not in self._frozen}
        thawed = sorted(name for name, tensor in self._frozen.items() if name in given or getattr(tensor, "requires_grad", False))
        if thawed:
            raise CentroidError("invalid_argument", f"{', '.join(thawed)}: frozen when the Trainer was made: close it and make a new one")
        changed = set() if share.is_local or share.count == 0 else self._buffers - set(given)
        given = {**given, **{name: self.tensors[name] for name in changed}}
        if share.count > 0 or share.is_local:
            odd = [name for name in self._names if name not in given] + [name for name in given if name not in self.tensors]
            if odd:
                raise CentroidError("invalid_argument", f"gradients and tensors differ: {', '.join(odd)}")
        left = {self._names[at] for at in self._overlap.take([given.get(name) for name in self._names])} if self._overlap else set()
        # Check all arrays before anything is sent.
        read = {name: _read(given[name], name, shape) for name, shape in zip(self._names, self._shapes) if given.get(name) is not None and name not in left}
        memory = _library.centroid_trainer_parameters if share.is_local else _library.centroid_trainer_gradient
        for at in reversed(range(len(self._names))):
            name, size = self._names[at], 4 * _size(self._shapes[at])
            if name in left:
                continue
            if name in given and size > 0:
                if name in changed:  # a buffer: what it was less what it is
                    before, now, out = (
                        (ctypes.c_float * (size // 4)).from_address(address)
                        for address in (_library.centroid_trainer_parameters(self._handle, at), read[name][0], memory(self._handle, at))
                    )
                    out[:] = [old - new for old, new in zip(before, now)]
                elif name in read:
                    ctypes.memmove(memory(self._handle, at), read[name][0], size)
                else:  # PyTorch's None: the loss does not depend on it, so 0
                    ctypes.memset(memory(self._handle, at), 0, size)
            if name in given and not share.is_local:
                _call("trainer_ready", self._handle, at)

    def _send(self, at, gradient):
        """Have one gradient leave."""
        if _shape(gradient, self._names[at]) != self._shapes[at]:
            raise _bad(f"{self._names[at]} has shape {list(gradient.shape)}, not {list(self._shapes[at])}")
        if gradient.numel() > 0:
            _tensor_at(_library.centroid_trainer_gradient(self._handle, at), self._shapes[at], self._made).copy_(gradient.detach())
        _call("trainer_ready", self._handle, at)

    def _versions_now(self):
        """How often PyTorch has changed each tensor in place; buffers change in a forward pass."""
        return [getattr(self.tensors[name], "_version", None) for name in self._names if name not in self._buffers]

    def _take(self):
        self._find_buffers()
        for at, (name, shape) in enumerate(zip(self._names, self._shapes)):
            _write(self.tensors[name], name, _library.centroid_trainer_parameters(self._handle, at), shape, self._made)


class Tensors(dict):
    """A dict of names and memoryviews of float32. All have the committed version `version`."""

    version = 0


def pull(server, names=None, *, token=None, name=None, timeout=None, tls=None):
    """Return the cluster's tensors of these names (None: all). The program need not be a worker.

    Waits at most `timeout` seconds (60) for a leader, for the first values, and for its turn among readers.
    """
    _library or load()
    if isinstance(names, (str, bytes)):
        raise _bad(f"names is one string: give a list, [{names!r}]")
    requested = [_bytes(one) for one in names or ()]
    if names is not None and not requested:
        raise _bad("names is empty: None is all tensors")
    handle = _memory()
    _call("pull", ctypes.byref(_server(server, token, name, timeout, tls)), (_text * max(len(requested), 1))(*requested), len(requested), ctypes.byref(handle))
    try:
        out = Tensors()
        out.version = _library.centroid_pulled_version(handle)
        for at in range(_library.centroid_pulled_count(handle)):
            tensor = _Pulled()
            _call("pulled_get", handle, at, ctypes.byref(tensor))
            shape = tuple(tensor.shape[: tensor.rank])
            values = (ctypes.c_float * _size(shape))()
            ctypes.memmove(values, tensor.values, ctypes.sizeof(values))
            # A memoryview cannot have a 0 in its shape: an empty tensor is flat, as in `Rows.pull`.
            out[tensor.name.decode()] = memoryview(values).cast("B").cast("f", shape) if _size(shape) else memoryview(values)
        return out
    finally:
        _library.centroid_pulled_free(handle)
