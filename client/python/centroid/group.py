"""Collectives for any program: a group of processes without a server (`centroid.join`)."""

import atexit
import ctypes
import itertools
import os
import threading
import weakref

import centroid

from ._abi import _Call, _GroupOptions, _memory, _u32, _u64
from ._arrays import CentroidError, _bad, _number
from ._servers import _tls_fields
from ._views import BYTES as _BYTES
from ._views import memory_of

__all__ = ["Group", "Work", "join"]

_REDUCTIONS = {"sum": 1, "mean": 2, "min": 4, "max": 5, "product": 6}
_SLICE_MS = 200  # Ctrl-C is noticed this often


def join(address=None, rank=None, world=None, *, exchange=None, host=None, token=None, timeout=None, tls=None):
    """Join a group of processes, without a server, and return a `Group`. Waits until all have come.

        group = centroid.join("node0:7100", rank=0, world=2)
        group.all_reduce(gradient, op="mean")

    address   HOST:PORT, where rank 0 listens; default: MASTER_ADDR and MASTER_PORT; under torchrun, whose store has that port, the next one
    rank      number of this process, from 0; default: RANK
    world     number of processes; default: WORLD_SIZE
    exchange  instead of `address`: a function that gets this rank's address, a short text, and returns the list of all by rank
    host      address of this machine that the others reach; default: the one that leads to rank 0, with `exchange` 127.0.0.1
    token     secret of the group; default: none
    timeout   seconds for the start, and for each operation; default: 60
    tls       dict of file names: `authority`, which signed all ranks' certificates, `certificate`, `key`; default: no TLS

    Fails with deadline_exceeded (ranks that did not come), failed_precondition (another world, token or authority), already_exists (the port is in use).
    """
    rank = int(_environment("RANK", "rank")) if rank is None else rank
    world = int(_environment("WORLD_SIZE", "world")) if world is None else world
    options = _GroupOptions(
        rank=_rank(rank),
        world=_number(world, "world", 1, 2**32 - 1),
        host=centroid._bytes(host),
        token=centroid._bytes(token),
        timeout_ms=_milliseconds(timeout),
        **_tls_fields(tls, "authority, certificate and key"),
    )
    handle = _memory()
    if exchange is None:
        _call("group_join", ctypes.byref(options), (address or _address()).encode(), ctypes.byref(handle))
        return Group(handle)
    _call("group_open", ctypes.byref(options), ctypes.byref(handle))
    try:
        addresses = [one.encode() for one in exchange(centroid._library.centroid_group_address(handle).decode())]
        _call("group_connect", handle, (ctypes.c_char_p * max(len(addresses), 1))(*addresses), len(addresses))
    except BaseException:
        centroid._library.centroid_group_close(handle)
        raise
    return Group(handle)


def _address():
    is_taken = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # by torchrun's store
    return f"{_environment('MASTER_ADDR', 'address')}:{int(_environment('MASTER_PORT', 'address')) + is_taken}"


def _environment(name, argument):
    if name not in os.environ:
        raise _bad(f"no {argument}, and the variable {name} is not set")
    return os.environ[name]


def _milliseconds(timeout):
    if timeout is None:
        return 0
    if not 0 < timeout <= 10**8:
        raise _bad(f"timeout {timeout} is not from 0 to 10^8 seconds")
    return max(int(1000 * timeout), 1)


def _call(function, *arguments):
    if centroid._library is None:
        centroid.load()
    return centroid._call(function, *arguments)


class Work:
    """An operation in progress, from an operation with `wait=False`. Its arrays must not be used until it has ended."""

    def __init__(self, _handle, result, keep, group):
        self._handle, self._result, self._keep, self._group, self._lock = _handle, result, keep, group, threading.Lock()
        self._failure = None

    def done(self):
        """Return whether it has ended, well or not. Never waits."""
        with self._lock:
            return self._handle is None or bool(centroid._library.centroid_work_done(self._handle))

    def wait(self, timeout=None):
        """Wait for the end and return the result of the operation.

        timeout  seconds; then `deadline_exceeded`, and the operation goes on. Default: until the operation's own timeout
        """
        with self._lock:
            if self._handle is not None:
                self._end(_milliseconds(timeout))
            if self._failure is not None:
                raise self._failure
            return self._result

    def _end(self, milliseconds):
        library = centroid._library
        while True:
            part = min(milliseconds, _SLICE_MS) if milliseconds else _SLICE_MS
            code = library.centroid_work_wait(self._handle, part)
            is_done = library.centroid_work_done(self._handle)
            if is_done and code:  # it may have ended behind that wait
                code = library.centroid_work_wait(self._handle, 0)
            text = library.centroid_error().decode(errors="replace") if code else ""
            if is_done:
                break
            if milliseconds:
                milliseconds -= part
                if milliseconds <= 0:
                    raise CentroidError("deadline_exceeded", text)
        self._free()
        if code:
            self._failure = CentroidError(centroid._CODES[code], text)

    def _free(self):
        handle, self._handle, self._keep = self._handle, None, None
        centroid._library.centroid_work_free(handle)

    def error(self):
        """Return why it failed, a CentroidError; None while it goes on or after it went well."""
        if not self.done():
            return None
        try:
            self.wait()
        except CentroidError as error:
            return error
        return None

    def __del__(self):
        if getattr(self, "_handle", None) is not None and self._group._process == os.getpid():
            handle, self._handle = self._handle, None
            self._group._drop(handle, self._keep)  # its memory is in use until its end


class Group:
    """Some processes, for collective operations; from `join` or `Group.subgroup`.

    An array is a NumPy array, a PyTorch tensor on the CPU, or any object with DLPack or a buffer (bytearray, array.array), without
    gaps. Reductions know float32, float64, float16, bfloat16, int32 and int64; the others move any type.

    Every rank issues the same operations with the same sizes in the same order. Arguments of several operations:

    op       sum, mean, min, max or product
    wait     False: return a `Work` at once
    tag      operations of different tags may overtake each other, for threads that share a group
    timeout  seconds, instead of the group's

    When a rank dies, every operation it takes part in fails on all others at once: `unavailable`, with its number. After a failure
    make another group. Other errors are `deadline_exceeded`, which names the rank that did not come, `aborted`, `failed_precondition`
    for a rank that issued another operation, and `invalid_argument`, after which nothing was sent.

    A forked child cannot use its parent's group, and does not keep its connections open.
    """

    def __init__(self, _handle):
        self._handle, self._process, self._dropped = _handle, os.getpid(), []
        _open.add(self)
        self.rank = centroid._library.centroid_group_rank(_handle)  # of this process in the group
        self.world = centroid._library.centroid_group_world(_handle)

    def __repr__(self):
        return f"<centroid.Group rank {self.rank} of {self.world}{'' if self._handle else ', closed'}>"

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.close()

    def all_reduce(self, array, op="sum", *, out=None, wait=True, tag=0, timeout=None):
        """Combine the arrays of all ranks, of one shape; every rank gets the result, in place or in `out`. Returns that array."""
        source, target = memory_of(array), memory_of(array if out is None else out, writes=True)
        _check_same(source, target)
        if source.count != target.count:
            raise _bad(f"out has {target.count} elements, the array {source.count}")
        return self._run("all_reduce", (source.address, target.address, source.count), target.array, (source, target), op, source, wait, tag, timeout)

    def reduce_scatter(self, array, out, op="sum", *, counts=None, wait=True, tag=0, timeout=None):
        """Combine the arrays of all ranks; rank i gets part i in `out`, which is returned.

        counts  elements of each part; default: even parts, the first ones longer by one where it does not divide
        """
        source, target = memory_of(array), memory_of(out, writes=True)
        _check_same(source, target)
        counts = self._parts(source, counts, target, "out")
        arguments = (source.address, source.count, target.address, self._numbers(counts))
        return self._run("reduce_scatter", arguments, out, (source, target), op, source, wait, tag, timeout)

    def all_gather(self, array, out=None, *, counts=None, wait=True, tag=0, timeout=None):
        """Collect the arrays of all ranks in `out`, in rank order, and return it.

        array   without `out`: bytes, whose lengths may differ, and a list of those of all ranks is returned
        counts  elements of each rank; default: even parts
        """
        if out is None:
            return self._all_gather_bytes(array, wait, tag, timeout)
        source, target = memory_of(array), memory_of(out, writes=True)
        _check_same(source, target)
        counts = self._parts(target, counts, source, "array")
        arguments = (source.address, target.address, target.bytes, self._numbers(counts, target.width))
        return self._run("all_gather", arguments, out, (source, target), None, None, wait, tag, timeout)

    def broadcast(self, array, root=0, *, wait=True, tag=0, timeout=None):
        """Give the root's array to every rank, in place. Returns the array."""
        target = memory_of(array, writes=self.rank != root)
        return self._run("broadcast", (target.address, target.bytes, _rank(root)), array, (target,), None, None, wait, tag, timeout)

    def all_to_all(self, array, out, *, send_counts=None, receive_counts=None, wait=True, tag=0, timeout=None):
        """Send part i of the array to rank i, and receive its part for us as part i of `out`, which is returned.

        send_counts, receive_counts  elements of each part; default: even parts
        """
        source, target = memory_of(array), memory_of(out, writes=True)
        _check_same(source, target)
        for memory, counts, name in ((source, send_counts, "send_counts"), (target, receive_counts, "receive_counts")):
            if counts is None and memory.count % self.world:
                raise _bad(f"{memory.count} elements are not {self.world} even parts: give {name}")
        sent, received = (None if counts is None else self._numbers(counts, source.width) for counts in (send_counts, receive_counts))
        arguments = (source.address, source.bytes, sent, target.address, target.bytes, received)
        return self._run("all_to_all", arguments, out, (source, target), None, None, wait, tag, timeout)

    def gather(self, array, out=None, root=0, *, wait=True, tag=0, timeout=None):
        """Collect the arrays of all ranks, of one size, in `out` of the root. Returns `out`."""
        source, target = memory_of(array), self._of_root(out, root, True)
        self._check_whole(target, source)
        arguments = (source.address, source.bytes, target and target.address, _rank(root))
        return self._run("gather", arguments, out, (source, target), None, None, wait, tag, timeout)

    def scatter(self, array, out, root=0, *, wait=True, tag=0, timeout=None):
        """Give part i of the root's array to rank i, in `out`, which is returned. `array` is None on the others."""
        source, target = self._of_root(array, root, False), memory_of(out, writes=True)
        self._check_whole(source, target)
        arguments = (source and source.address, target.address, target.bytes, _rank(root))
        return self._run("scatter", arguments, out, (source, target), None, None, wait, tag, timeout)

    def send(self, array, to, *, wait=True, tag=0, timeout=None):
        """Send an array to a rank, which receives it with the same tag and size."""
        source = memory_of(array)
        return self._run("send", (source.address, source.bytes, _rank(to)), array, (source,), None, None, wait, tag, timeout)

    def recv(self, array, source, *, wait=True, tag=0, timeout=None):
        """Receive from the rank `source` into this array, and return it."""
        target = memory_of(array, writes=True)
        return self._run("receive", (target.address, target.bytes, _rank(source)), array, (target,), None, None, wait, tag, timeout)

    def barrier(self, *, wait=True, tag=0, timeout=None):
        """Wait until every rank has called it."""
        return self._run("barrier", (), None, (), None, None, wait, tag, timeout)

    def subgroup(self, ranks):
        """Make the group of these ranks of this one, ours among them, in ascending order. Each of them calls it; nothing is sent."""
        numbers = [_rank(rank) for rank in ranks]
        handle = _memory()
        _call("group_subgroup", self._open(), (_u32 * max(len(numbers), 1))(*numbers), len(numbers), ctypes.byref(handle))
        return Group(handle)

    def abort(self, why="the program aborted it"):
        """End every operation of the group on all ranks with `aborted`. From any thread."""
        _call("group_abort", self._open(), why.encode())

    def close(self):
        """Leave the group: waits up to 2 s until the others have read everything. At the end of the program this happens by itself."""
        handle, self._handle = self._handle, None
        if not handle or self._process != os.getpid():
            return
        self._free_dropped()
        if self._dropped:
            centroid._library.centroid_group_abort(handle, f"rank {self.rank} ended in the middle of an operation".encode())
        for work, _ in self._dropped:
            centroid._library.centroid_work_free(work)
        self._dropped = []
        centroid._library.centroid_group_close(handle)

    def __del__(self):
        if getattr(self, "_handle", None) and centroid._library is not None:
            self.close()

    def _drop(self, work, keep):
        """Nobody waits for this operation."""
        if not self._handle:  # it was closed, which does not end it
            centroid._library.centroid_work_free(work)
            return
        self._dropped.append((work, keep))
        self._free_dropped()

    def _free_dropped(self):
        is_done = centroid._library.centroid_work_done
        ended = [one for one in self._dropped if is_done(one[0])]
        self._dropped = [one for one in self._dropped if one not in ended]
        for work, _ in ended:
            centroid._library.centroid_work_free(work)

    def _open(self):
        if not self._handle:
            raise CentroidError("failed_precondition", "this group is closed")
        return self._handle

    def _start(self, function, arguments, op=None, dtype=_BYTES, tag=0, timeout=None, waits_next=False, ended=None, context=0):
        """Begin an operation; the handle of its work."""
        call = _Call(dtype=dtype, tag=_number(tag, "tag", 0, 2**64 - 1), timeout_ms=_milliseconds(timeout), waits_next=waits_next, ended=ended, context=context)
        if op is not None:
            call.reduction = _REDUCTIONS[op]
        work = _memory()
        _call(f"group_{function}", self._open(), *arguments, ctypes.byref(call), ctypes.byref(work))
        return work

    def _run(self, function, arguments, result, keep, op, reduced, wait, tag, timeout):
        """`reduced`: the memory whose numbers are combined by `op`; without it bytes are moved."""
        if reduced is not None:
            if op not in _REDUCTIONS:
                raise _bad(f"op {op!r} is not one of {', '.join(_REDUCTIONS)}")
            if reduced.dtype == _BYTES:
                raise _bad(f"{function} of {reduced.name}: reductions know float32, float64, float16, bfloat16, int32 and int64")
        dtype = _BYTES if reduced is None else reduced.dtype
        work = Work(self._start(function, arguments, op, dtype, tag, timeout, wait), result, (keep, arguments), self)
        if not wait:
            return work
        try:
            return work.wait()
        except CentroidError:
            raise
        except BaseException as error:  # Ctrl-C
            self.abort(f"rank {self.rank} was interrupted: {type(error).__name__}")
            raise

    def _numbers(self, counts, width=1):
        """As C takes them."""
        numbers = [width * _number(count, "count", 0, 2**48) for count in counts]
        if len(numbers) != self.world:
            raise _bad(f"{len(numbers)} counts for a group of {self.world}")
        return (_u64 * self.world)(*numbers)

    def _parts(self, whole, counts, part, name):
        """The elements of each rank's part of `whole`, of which `part` is ours."""
        if counts is None:
            counts = [whole.count // self.world + (rank < whole.count % self.world) for rank in range(self.world)]
        mine = counts[self.rank] if len(counts) == self.world else part.count
        if part.count != mine:
            raise _bad(f"{name} has {part.count} elements, not {mine}")
        return counts

    def _of_root(self, array, root, writes):
        return memory_of(array, writes=writes) if self.rank == root else None

    def _check_whole(self, whole, part):
        if whole is None:
            return
        _check_same(whole, part)
        if whole.count != self.world * part.count:
            raise _bad(f"the root has {whole.count} elements, not {self.world} times {part.count}")

    def _all_gather_bytes(self, data, wait, tag, timeout):
        if not wait:
            raise _bad("all_gather with wait=False needs out")
        data = memory_of(data)
        lengths = (_u64 * self.world)()
        self.all_gather((_u64 * 1)(data.bytes), lengths, tag=tag, timeout=timeout)
        out = bytearray(sum(lengths))
        target = memory_of(out, writes=True)
        arguments = (data.address, target.address, target.bytes, lengths)
        self._run("all_gather", arguments, out, (data, target), None, None, True, tag, timeout)
        ends = list(itertools.accumulate(lengths))
        return [bytes(out[end - length : end]) for end, length in zip(ends, lengths)]


_open = weakref.WeakSet()  # groups and models of `centroid.Sharded`


@atexit.register
def _leave():
    """Peers learn that this rank has left, and no thread of the library outlives the interpreter."""
    for one in list(_open):
        one.close()


def _rank(number):
    return _number(number, "rank", 0, 2**32 - 1)


def _check_same(one, other):
    if (one.dtype, one.width) != (other.dtype, other.width):
        raise _bad(f"the arrays have different types, {one.name} and {other.name}")
