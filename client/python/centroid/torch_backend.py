"""The backend "centroid" of torch.distributed, for CPU tensors and, copied through the host, those of a GPU.

It does what gloo does; reduce_scatter moves only its own bytes. When a rank dies, pending operations fail at once with its number.
PyTorch 1.13 or later, rendezvous as ever, or with `init_method="centroid://HOST:PORT"`, which needs no RANK.

CENTROID_HOST is the address of this machine that the other ranks reach; default: the one that leads to MASTER_ADDR.
CENTROID_TLS_AUTHORITY, CENTROID_TLS_CERTIFICATE and CENTROID_TLS_KEY switch on TLS.
"""

import atexit
import ctypes
import functools
import itertools
import os
import socket
import threading
import urllib.parse
import weakref

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work as TorchWork
from torch._C._distributed_c10d import _create_work_from_future

import centroid

from ._abi import _memory, _u64
from ._views import memory_of
from .group import Work, _call, join

__all__ = ["ProcessGroupCentroid", "abort", "reconfigure"]

_REDUCED = {torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64}
_OPS = {"SUM": "sum", "AVG": "mean", "MIN": "min", "MAX": "max", "PRODUCT": "product"}
_BITWISE = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}
_VERSION = tuple(map(int, torch.__version__.split(".")[:2]))
_COLLECTIVES, _PAIRS = 0, 1 << 32  # tags: point to point has those from _PAIRS


class _Ends:
    """A thread that completes the futures of operations that have ended. One a process."""

    def __init__(self):
        self.queue, self.numbers, self.pending, self.lock = _memory(), itertools.count(), {}, threading.Lock()
        _call("ended_open", ctypes.byref(self.queue))
        self.process = os.getpid()
        self.thread = threading.Thread(target=self._run, name="centroid-works", daemon=True)
        self.thread.start()
        atexit.register(self.stop)  # the interpreter must not end it in the middle of a function of C++

    def stop(self):
        if self.process == os.getpid():
            centroid._library.centroid_ended_shutdown(self.queue)
            self.thread.join()

    def _run(self):
        context = _u64()
        while centroid._library.centroid_ended_next(self.queue, 0, ctypes.byref(context)) == 0:
            with self.lock:
                call = self.pending.pop(context.value)
            call()
            call = None  # it holds tensors

    def expect(self, call):
        """Run this when the operation of the returned number has ended."""
        number = next(self.numbers)
        with self.lock:
            self.pending[number] = call
        return number

    def forget(self, number):
        with self.lock:
            self.pending.pop(number, None)


_ends = None


def _shared_ends():
    global _ends
    if _ends is None or _ends.process != os.getpid():
        _ends = _Ends()
    return _ends


class _Post:
    """Operations of the group that make one operation of torch, and the future of their end."""

    def __init__(self, group):
        self.group, self.works, self.left, self.lock, self.finishes = group, [], 1, threading.Lock(), []
        self.base = torch.futures.Future()

    def start(self, function, arguments, keep, op=None, dtype=None, tag=_COLLECTIVES):
        ends = _shared_ends()
        with self.lock:
            self.left += 1
        number = ends.expect(self._ended)
        how = {} if op is None else {"op": op, "dtype": dtype}
        try:
            handle = self.group._start(function, arguments, tag=tag, ended=ends.queue, context=number, **how)
        except BaseException:
            ends.forget(number)
            raise
        self.works.append(Work(handle, None, (keep, arguments), self.group))

    def _ended(self):
        with self.lock:
            self.left -= 1
            if self.left:
                return
        self.base.set_result(None)

    def work(self, result):
        """The torch Work. An error of a future must be raised in a function of `then`: only so do callers in C++ see it."""

        def complete(_):
            for work in self.works:
                work.wait()
            for finish in self.finishes:
                finish()
            return result

        future = self.base.then(complete)
        self._ended()  # all are started
        work = _create_work_from_future(future)
        _futures[work] = future
        return work


# PyTorch's `wait` of a work that is made of a future returns also when the future has an error. A subclass cannot mend that: in
# PyTorch 1.13 its half in Python dies before the half in C++.
_futures = weakref.WeakKeyDictionary()
_plain_wait = TorchWork.wait


def _wait(work, *timeout, **named):
    done = _plain_wait(work, *timeout, **named)
    if work in _futures:
        _futures[work].wait()
    return done


TorchWork.wait = _wait


def _host_memory(tensor):
    """A contiguous tensor on the CPU with the same elements: itself where it can be."""
    return tensor.detach().to("cpu").contiguous()


class ProcessGroupCentroid(dist.ProcessGroup):
    """A group of torch.distributed on a `centroid.Group`."""

    def __init__(self, group, store, timeout):
        super().__init__(group.rank, group.world)
        self.group, self._rank, self._world = group, group.rank, group.world
        self.store, self.timeout, self.hooks = store, timeout, itertools.count()

    def getBackendName(self):
        return "centroid"

    def rank(self):
        return self._rank

    def size(self):
        return self._world

    getRank, getSize = rank, size  # names that later versions of PyTorch ask for; more below

    def abort(self, *_):
        """End every operation, on all ranks."""
        self.group.abort(f"rank {self._rank} aborted the group")

    def shutdown(self, *_):
        self.group.close()

    # Reductions

    def allreduce(self, tensors, opts=None):
        post = _Post(self.group)
        for tensor in tensors:
            self._reduce_into(post, tensor, tensor, opts)
        return post.work(tensors)

    def allreduce_coalesced(self, tensors, opts=None):
        return self.allreduce(tensors, opts)

    def reduce(self, tensors, opts):
        post = _Post(self.group)
        for tensor in tensors:
            self._reduce_into(post, tensor, tensor if opts.rootRank == self._rank else torch.empty_like(tensor), opts)
        return post.work(tensors)

    def reduce_scatter(self, outputs, inputs, opts=None):
        post = _Post(self.group)
        for output, parts in zip(outputs, inputs):
            flat = _joined(parts)
            if flat is None:
                flat = torch.cat([_host_memory(part).reshape(-1) for part in parts])
            self._scatter_into(post, output, flat, [part.numel() for part in parts], opts)
        return post.work(outputs)

    def _reduce_scatter_base(self, output, source, opts=None):
        return self.reduce_scatter_tensor_coalesced([output], [source], opts)

    def reduce_scatter_tensor_coalesced(self, outputs, inputs, opts=None):
        post = _Post(self.group)
        for output, source in zip(outputs, inputs):
            self._scatter_into(post, output, _host_memory(source), None, opts)
        return post.work(outputs)

    def _reduce_into(self, post, source, target, opts):
        name = _name_of(opts)
        if name in _BITWISE:
            return self._fold_into(post, source, target, _BITWISE[name])
        given, received = _numbers(source), _host_memory(target)
        if given.dtype != received.dtype or (given.data_ptr() == received.data_ptr() and source is not target):
            received = torch.empty_like(given)
        if source is target and given.data_ptr() != target.data_ptr():
            received = given  # a copy already
        one, other = memory_of(given), memory_of(received)
        post.start("all_reduce", (one.address, other.address, one.count), (given, received), _op_of(name), one.dtype)
        _copy_back(post, received, target)

    def _scatter_into(self, post, output, source, counts, opts):
        given = _numbers(source)
        counts = counts or [given.numel() // self._world] * self._world
        received = torch.empty(counts[self._rank], dtype=given.dtype)
        if output.dtype == given.dtype and output.device.type == "cpu" and output.is_contiguous() and output.numel() == received.numel():
            received = output.detach()
        one, other = memory_of(given), memory_of(received)
        arguments = (one.address, one.count, other.address, self.group._numbers(counts))
        post.start("reduce_scatter", arguments, (given, received), _op_of(_name_of(opts)), one.dtype)
        _copy_back(post, received, output)

    def _fold_into(self, post, source, target, function):
        given = _host_memory(source)
        parts = torch.empty((self._world, *given.shape), dtype=given.dtype)
        self._gather_into(post, given, parts)
        post.finishes.append(lambda: target.copy_(functools.reduce(function, parts)))

    # Moves

    def broadcast(self, tensors, opts=None):
        post, root = _Post(self.group), opts.rootRank if opts is not None else 0
        for tensor in tensors:
            plain = _host_memory(tensor)
            memory = memory_of(plain)
            post.start("broadcast", (memory.address, memory.bytes, root), plain)
            if self._rank != root:
                _copy_back(post, plain, tensor)
        return post.work(tensors)

    def allgather(self, outputs, inputs, opts=None):
        post = _Post(self.group)
        for parts, source in zip(outputs, inputs):
            counts, flat = [part.numel() for part in parts], _joined(parts)
            if flat is None:
                flat = torch.empty(sum(counts), dtype=source.dtype)
                post.finishes.append(functools.partial(_copy_parts, flat.split(counts), parts))
            self._gather_into(post, _host_memory(source), flat, counts)
        return post.work(outputs)

    def allgather_coalesced(self, output_lists, inputs, opts=None):
        """`output_lists` by rank, then by tensor."""
        return self.allgather([list(parts) for parts in zip(*output_lists)], inputs, opts)

    def _allgather_base(self, output, source, opts=None):
        return self.allgather_into_tensor_coalesced([output], [source], opts)

    def allgather_into_tensor_coalesced(self, outputs, inputs, opts=None):
        post = _Post(self.group)
        for output, source in zip(outputs, inputs):
            plain = _host_memory(output)
            self._gather_into(post, _host_memory(source), plain)
            _copy_back(post, plain, output)
        return post.work(outputs)

    def _gather_into(self, post, source, target, counts=None):
        one, other = memory_of(source), memory_of(target)
        if one.width != other.width or (counts is None and one.count * self._world != other.count):
            raise RuntimeError(f"all_gather: {self._world} times {one.count} elements of {one.name} do not fill {other.count} of {other.name}")
        numbers = None if counts is None else self.group._numbers(counts, one.width)
        post.start("all_gather", (one.address, other.address, other.bytes, numbers), (source, target))

    def gather(self, outputs, inputs, opts):
        post, is_root = _Post(self.group), opts.rootRank == self._rank
        for index, source in enumerate(inputs):
            plain = _host_memory(source)
            flat = torch.empty((self._world if is_root else 0, plain.numel()), dtype=plain.dtype)
            one, other = memory_of(plain), memory_of(flat)
            post.start("gather", (one.address, one.bytes, other.address, opts.rootRank), (plain, flat))
            if is_root:
                post.finishes.append(functools.partial(_copy_parts, flat.unbind(), outputs[index]))
        return post.work(outputs)

    def scatter(self, outputs, inputs, opts):
        post, is_root = _Post(self.group), opts.rootRank == self._rank
        for index, output in enumerate(outputs):
            flat = torch.cat([_host_memory(part).reshape(-1) for part in inputs[index]]) if is_root else None
            plain = _host_memory(output)
            one, source = memory_of(plain), memory_of(flat) if is_root else None
            post.start("scatter", (source and source.address, one.address, one.bytes, opts.rootRank), (plain, flat))
            _copy_back(post, plain, output)
        return post.work(outputs)

    def alltoall(self, outputs, inputs, opts=None):
        post = _Post(self.group)
        given = torch.cat([_host_memory(part).reshape(-1) for part in inputs])
        received = torch.empty(sum(part.numel() for part in outputs), dtype=given.dtype)
        counts = [part.numel() for part in outputs]
        self._exchange(post, given, received, [part.numel() for part in inputs], counts)
        post.finishes.append(lambda: _copy_parts(received.split(counts), outputs))
        return post.work(outputs)

    def alltoall_base(self, output, source, output_splits, input_splits, opts=None):
        post, given, received = _Post(self.group), _host_memory(source), _host_memory(output)
        rows = [tensor.numel() // max(tensor.shape[0], 1) if tensor.dim() else 1 for tensor in (source, output)]
        sent, taken = (splits and [row * part for part in splits] for row, splits in zip(rows, (input_splits, output_splits)))
        self._exchange(post, given, received, sent, taken)
        _copy_back(post, received, output)
        return post.work([output])

    def _exchange(self, post, given, received, sent, taken):
        one, other = memory_of(given), memory_of(received)
        sent, taken = (self.group._numbers(counts or [memory.count // self._world] * self._world, memory.width) for counts, memory in ((sent, one), (taken, other)))
        post.start("all_to_all", (one.address, one.bytes, sent, other.address, other.bytes, taken), (given, received))

    def send(self, tensors, rank, tag=0):
        post = _Post(self.group)
        for tensor in tensors:
            plain = _host_memory(tensor)
            memory = memory_of(plain)
            post.start("send", (memory.address, memory.bytes, rank), plain, tag=_PAIRS + tag)
        return post.work(tensors)

    def recv(self, tensors, rank, tag=0):
        post = _Post(self.group)
        for tensor in tensors:
            plain = _host_memory(tensor)
            memory = memory_of(plain)
            post.start("receive", (memory.address, memory.bytes, rank), plain, tag=_PAIRS + tag)
            _copy_back(post, plain, tensor)
        return post.work(tensors)

    def recv_anysource(self, tensors, tag=0):
        raise RuntimeError("the backend centroid receives from a rank that is named: give src")

    def barrier(self, opts=None):
        post = _Post(self.group)
        post.start("barrier", (), None)
        return post.work([])

    all_gather_single, all_gather_single_coalesced, all_to_all_single = _allgather_base, allgather_into_tensor_coalesced, alltoall_base
    reduce_scatter_single, reduce_scatter_single_coalesced = _reduce_scatter_base, reduce_scatter_tensor_coalesced


def _joined(parts):
    """The tensor of which these are the pieces, where they lie one behind the other, as FSDP has them; else None."""
    first, at = parts[0], parts[0].data_ptr()
    for part in parts:
        if part.device.type != "cpu" or part.dtype != first.dtype or not part.is_contiguous() or part.data_ptr() != at:
            return None
        at += part.numel() * part.element_size()
    try:
        return first.detach().as_strided((sum(part.numel() for part in parts),), (1,))
    except RuntimeError:  # pieces of several storages
        return None


def _name_of(opts):
    """The reduction, such as SUM."""
    given = getattr(opts, "reduceOp", None)
    if given is None:
        return "SUM"
    for name in (*_OPS, *_BITWISE):
        if given == getattr(dist.ReduceOp, name, None):
            return name
    raise RuntimeError(f"the backend centroid does not reduce by {given}")


def _op_of(name):
    if name not in _OPS:
        raise RuntimeError(f"the backend centroid has no {name} here")
    return _OPS[name]


def _numbers(tensor):
    """A contiguous tensor on the CPU that can be reduced; small integers and booleans as int32."""
    plain = _host_memory(tensor)
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    return plain if plain.dtype in _REDUCED else plain.to(torch.int32)


def _copy_back(post, received, target):
    if target.is_complex() and not received.is_complex():
        target = torch.view_as_real(target)
    if received.data_ptr() != target.data_ptr():
        post.finishes.append(lambda: target.detach().copy_(received.view(target.shape)))


def _copy_parts(parts, targets):
    for part, target in zip(parts, targets):
        target.detach().copy_(part.view(target.shape))


def _address_towards(host, port=9):
    """The address of this machine on the way to another. Nothing is sent."""
    family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as route:
        route.connect(place)
        return route.getsockname()[0]


_towards = None  # HOST of centroid://HOST:PORT


def _host():
    """Where the others reach this process."""
    if os.environ.get("CENTROID_HOST"):
        return os.environ["CENTROID_HOST"]
    master = _towards or os.environ.get("MASTER_ADDR")
    try:
        found = _address_towards(master) if master else None
        # Names of the own machine often lead to a loopback address, which the other machines do not reach.
        if found is None or (found.startswith("127.") and not master.startswith(("127.", "localhost"))):
            found = _address_towards("192.0.2.1")
        return found
    except OSError:
        return "127.0.0.1"


def _tls():
    """As `join` takes it. Workers of a server have an authority only."""
    given = {key: os.environ.get(f"CENTROID_TLS_{key.upper()}") for key in ("authority", "certificate", "key")}
    return given if given["certificate"] else None


def _create(store, rank, size, timeout):
    def exchange(address):
        store.set(f"centroid/{rank}", address)
        return [store.get(f"centroid/{other}").decode() for other in range(size)]

    group = join(rank=rank, world=size, exchange=exchange, host=_host(), timeout=timeout.total_seconds(), tls=_tls())
    return ProcessGroupCentroid(group, store, timeout)


# When a rank has died


def _default_group():
    group = dist.distributed_c10d._get_default_group()
    if not isinstance(group, ProcessGroupCentroid):
        raise RuntimeError(f"the default group has the backend {dist.get_backend()}, not centroid")
    return group


def abort():
    """End every operation of the default group with an error, on all ranks."""
    _default_group().abort()


_reconfigured = itertools.count()


def reconfigure(world, store=None):
    """Make the default group anew from the ranks that are left. Each calls it, and then makes subgroups and models anew.

    Ranks keep their order. Fails after the group's timeout if fewer come, and in a rank that is one too many.

    world  ranks that are left
    store  one that they all reach; default: the group's, which ends with the process that has it, often rank 0
    """
    old = _default_group()
    old.abort()
    place = dist.PrefixStore(f"centroid-{next(_reconfigured)}", old.store if store is None else store)
    place.set_timeout(old.timeout)
    try:
        number = place.add("arrived", 1)
        place.set(str(number), str(old.rank()))
        if number > world:
            raise RuntimeError(f"reconfigure: {world} ranks have come already, and rank {old.rank()} is one too many")
        ranks = sorted(int(place.get(str(one))) for one in range(1, world + 1))
    except RuntimeError as error:
        if "one too many" in str(error):
            raise
        raise RuntimeError(f"reconfigure: the store ended with its process, or fewer than {world} ranks have come: {error}") from error
    dist.destroy_process_group()
    dist.init_process_group("centroid", store=place, rank=ranks.index(old.rank()), world_size=world, timeout=old.timeout)


# centroid://HOST:PORT


def _rendezvous(url, timeout, **_):
    """The store at HOST:PORT, the rank, and how many there are: by the address, init_process_group, or the environment.

    Without ranks they are numbered as they come.
    """
    found = urllib.parse.urlsplit(url)
    given = dict(urllib.parse.parse_qsl(found.query))
    rank, world = (int(given.get(name, os.environ.get(variable, -1))) for name, variable in (("rank", "RANK"), ("world_size", "WORLD_SIZE")))
    if not found.hostname or not found.port:
        raise ValueError(f"{url}: expected centroid://HOST:PORT")
    if world < 1:
        raise ValueError(f"{url}: how many processes? Give init_process_group world_size, or set WORLD_SIZE")
    global _towards
    _towards = found.hostname
    store = _store(found.hostname, found.port, rank, timeout)
    if rank < 0:
        rank = store.add("centroid/ranks", 1) - 1
    if rank >= world:
        raise ValueError(f"{url}: rank {rank} of {world}: is one process too many, or an earlier job still there?")
    yield store, rank, world
    raise RuntimeError("the address centroid:// serves one group: give the next one another port")


def _store(host, port, rank, timeout):
    """Rank 0 has the store; without ranks the first process on HOST."""
    is_master = rank == 0 or (rank < 0 and _is_here(host) and _is_first(port))
    uv = {"use_libuv": os.environ.get("USE_LIBUV") != "0"} if _VERSION >= (2, 4) else {}
    return dist.TCPStore(host, port, is_master=is_master, timeout=timeout, wait_for_workers=False, **uv)


def _is_here(host):
    family, kind, _, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)[0]
    try:
        with socket.socket(family, kind) as probe:
            probe.bind(place)
    except OSError:
        return False
    return True


def _is_first(port):
    """Whether this process is the first of this machine; it is until it ends. A name in Linux's abstract space belongs to one process."""
    global _first
    _first = socket.socket(socket.AF_UNIX)
    try:
        _first.bind(f"\0centroid-{port}")
    except OSError:
        return False
    return True


def _register():
    """Make the backend and centroid:// known. PyTorch calls it by the package's entry point."""
    devices = {"devices": ["cpu", "cuda"]} if _VERSION >= (2, 0) else {}
    if "CENTROID" not in dist.Backend._plugins:
        dist.Backend.register_backend("centroid", _create, **devices)
        dist.distributed_c10d.register_rendezvous_handler("centroid", _rendezvous)


_register()
