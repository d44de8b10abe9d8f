"""Jobs with the same bits on every machine, and hashes of their final state.

Trainers of the client library (client/python) send gradients that this file computes: an integer for each element and sample, plus the sign
of the parameter, so that a wrong parameter on a worker changes the sum. Integers are exact in float32; means and steps are single IEEE 754
operations, each rounded separately. No BLAS is involved.
"""

import array
import contextlib
import hashlib
import json
import math
import struct
import threading

from harness.client import ClientTest
from harness.cluster import DEADLINE_SECONDS, Process
import centroid

SHAPES = {"first.bias": (12,), "first.weight": (16, 12), "second.weight": (12, 20)}  # 444 numbers, 1,776 bytes
SAMPLES, BATCH = 60, 4  # 3 workers: 5 rounds an epoch
CHUNKS = ("--chunk-bytes", 256)
INNER_RATE = 1 / 64
TABLES = "emb:dim=4,lr=0.1,init=uniform:0.05;seldom:dim=2,optimizer=ftrl,admit_after=2;stepped:dim=3,optimizer=sgd,lr=0.5,schedule=step:every=4,factor=0.5"

TABLE_NAMES = ("emb", "seldom", "stepped")


def tensor_of(shape, numbers):
    return memoryview(array.array("f", numbers)).cast("B").cast("f", shape)


def flat(tensor):
    return tensor.cast("B").cast("f")


def first_tensors():
    """Initial values of every trainer."""
    return {name: tensor_of(shape, [((37 * i + len(name)) % 41 - 20) / 64 for i in range(math.prod(shape))]) for name, shape in SHAPES.items()}


def gradients_at(tensors, samples):
    """The mean gradient over these samples."""
    out = {}
    for name, tensor in tensors.items():
        values = flat(tensor)
        sums = [len(samples) * (2 if value > 0 else -2 if value < 0 else 0) for value in values]
        for sample in samples:
            for i in range(len(sums)):
                sums[i] += (sample * 29 + i * 13 + sample * i * 7 + len(name)) % 17 - 8
        out[name] = tensor_of(tensor.shape, [one / len(samples) for one in sums])
    return out


def train_share(trainer, share, steps=None):
    """Compute and send the contribution of one round: gradients, or local steps of SGD."""
    if len(share) == 0:
        return trainer.finish()
    samples = share.indices()
    if not share.is_local:
        return trainer.finish(gradients_at(trainer.tensors, samples), loss_sum=float(len(samples)), correct=len(samples) // 2)
    batches = [samples[at : at + BATCH] for at in range(0, len(samples), BATCH)]
    before = len(batches) - share.overlap
    for number, batch in enumerate(batches):
        if share.overlap and number == before:
            trainer.contribute(samples=sum(map(len, batches[:before])))
        for name, gradient in gradients_at(trainer.tensors, batch).items():
            values = flat(trainer.tensors[name])
            for i, g in enumerate(flat(gradient)):
                values[i] -= INNER_RATE * g
    return trainer.finish(samples=sum(map(len, batches[before:] if share.overlap else batches)))


def tensors_in(files):
    """Dtype, shape and bytes by name of the tensors in these safetensors files, without metadata."""
    found = {}
    for path in files:
        data = path.read_bytes()
        (size,) = struct.unpack_from("<Q", data)
        for name, entry in json.loads(data[8 : 8 + size]).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                found[name] = (entry["dtype"], tuple(entry["shape"]), data[8 + size + begin : 8 + size + end])
    return found


def hash_of(tensors):
    """SHA-256 over names, dtypes, shapes and bytes in the order of the names."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        dtype, shape, data = tensors[name]
        total.update(f"{name} {dtype} {list(shape)} {len(data)}\n".encode())
        total.update(data)
    return total.hexdigest()


def hash_of_live(tensors):
    """`hash_of` the tensors of a trainer or a pull."""
    return hash_of({name: ("F32", tuple(tensor.shape), bytes(tensor.cast("B"))) for name, tensor in tensors.items()})


def hash_of_committed(trainer):
    """`hash_of` the last committed parameters of an open trainer."""
    return hash_of({name: ("F32", tuple(tensor.shape), trainer.committed(name)) for name, tensor in trainer.tensors.items()})


def state_of(checkpoint):
    """Hashes of a checkpoint's parameters, and of its optimizer slots and residuals where it has any."""
    hashes = {"parameters": hash_of(tensors_in(checkpoint.glob("model*.safetensors")))}
    slots = tensors_in(checkpoint.glob("optimizer*.safetensors"))
    if slots:
        hashes["slots"] = hash_of(slots)
    return hashes


def nth_push(number):
    """Table, keys, gradients and step of push `number`, from 1."""
    table, dim = (("emb", 4), ("seldom", 2), ("stepped", 3))[number % 3]
    keys = [(number * number * 31 + 7 * i) % 40 for i in range(1 + number % 7)]
    gradients = [((number * 11 + i * 5) % 31 - 15) / 8 for i in range(dim * len(keys))]
    return table, keys, gradients, number if table == "stepped" else None


class Gate:
    """Stops trainers at the beginning of the round behind `rounds`."""

    def __init__(self, rounds):
        self.rounds, self.here, self.is_shut, self.changed = rounds, [], False, threading.Condition()

    def passes(self, number):
        """Wait until this round may be trained; false after `shut`."""
        with self.changed:
            self.here.append(number)
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.is_shut or number <= self.rounds)
            self.here.remove(number)
            return not self.is_shut

    def wait_for(self, count):
        """Wait until `count` trainers wait here."""
        with self.changed:
            if not self.changed.wait_for(lambda: sum(number > self.rounds for number in self.here) == count, DEADLINE_SECONDS):
                raise AssertionError(f"at round {self.rounds + 1}, in rounds {self.here}: {count} trainers expected")

    def allow(self, more, count):
        """Permit `more` rounds and wait until `count` trainers wait again."""
        with self.changed:
            self.rounds += more
            self.changed.notify_all()
        self.wait_for(count)

    def shut(self):
        with self.changed:
            self.is_shut = True
            self.changed.notify_all()


class FixedJobs(ClientTest):
    """Starts servers and trainers. Workers are named a, b, c; ranks follow names."""

    def serve(self, *arguments, run="run", name=None, wait=True, **places):
        rate = [] if "--local-steps" in arguments else ["--lr", "0.0625"]  # else that of the outer step
        flags = ["--run-id", "r", *rate, *CHUNKS, *arguments]
        server = self.launch_server(*flags, run=run, name=name or f"server-{run}-{len(self.processes)}", **places)
        return server.wait_ready() if wait else server

    def shard(self, leader, name, run="run", *arguments):
        places = ["--join", leader.data, "--name", name, "--listen", "127.0.0.1:0", "--run-dir", self.folder / run]
        return self._start(Process, "centroid-server", f"{name}-{run}-{len(self.processes)}", [*places, *arguments], None)

    def join(self, server, name, codec="f32", **more):
        return self.trainer(server, name, first_tensors(), samples=SAMPLES, batch=BATCH, codec=codec, model="fixed", **more)

    def train(self, server, count=3, codec="f32", **more):
        """Run `count` trainers to the job's end."""
        trainers = [self.join(server, "abc"[i], codec, **more) for i in range(count)]

        def run(i):
            for share in trainers[i]:
                train_share(trainers[i], share)

        self.at_once(run, count)
        for one in trainers:
            one.close()
        return trainers

    def train_to(self, server, rounds, count=3, codec="f32", **more):
        """Run trainers through `rounds` rounds. Returns the gate at which they wait in the next round, and the trainers."""
        gate = Gate(rounds)
        trainers = [self.join(server, "abc"[i], codec, **more) for i in range(count)]

        def run(trainer):
            with contextlib.suppress(centroid.CentroidError):  # when its server has been killed
                for share in trainer:
                    if not gate.passes(share.round):
                        break
                    train_share(trainer, share)

        threads = [threading.Thread(target=run, args=(one,), daemon=True) for one in trainers]
        for thread in threads:
            thread.start()
        self.addCleanup(lambda: [gate.shut(), *(one.stop() for one in trainers), *(thread.join(DEADLINE_SECONDS) for thread in threads)])
        gate.wait_for(count)
        return gate, trainers

    def train_in_turn(self, server, count=2, rounds=None):
        """Let the trainers contribute one after the other, which makes policies deterministic that depend on the order of arrival.

        With `rounds` they stay open after so many contributions; otherwise they train to the job's end.
        """
        trainers = [self.join(server, "abc"[i]) for i in range(count)]
        shares = [None] * count

        def begin(i):
            shares[i] = next(trainers[i])

        self.at_once(begin, count)
        turn = 0
        while any(shares) and turn != rounds:
            i = turn % count
            turn += 1
            if shares[i] is not None:
                train_share(trainers[i], shares[i])
                shares[i] = next(trainers[i], None)
        if rounds is None:
            for one in trainers:
                one.close()
        return trainers

    def push(self, endpoint, first, last, client=None):
        """Send pushes `first` to `last`. A wire client sends those to tables without a schedule, with the number as the sequence."""
        rows = {name: centroid.Rows(endpoint, name, timeout=30) for name in TABLE_NAMES}
        for number in range(first, last + 1):
            table, keys, gradients, step = nth_push(number)
            if client and step is None:
                self.assertTrue(client.push(table, number, keys, gradients), "it was applied before")
            else:
                rows[table].push(keys, tensor_of((len(keys), rows[table].dim), gradients), step)
        for one in rows.values():
            one.close()

    def rows_of(self, endpoint):
        """Hash of rows 0 to 47 of each table, as a client pulls them."""
        total = hashlib.sha256()
        for name in TABLE_NAMES:
            with centroid.Rows(endpoint, name, timeout=30) as rows:
                total.update(bytes(rows.pull(range(48)).cast("B")))
        return total.hexdigest()
