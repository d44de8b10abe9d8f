"""One worker sends anything: a mean is spoiled, a median and a trimmed mean are not. robust_test.py BIN_DIR"""

import array
import concurrent.futures
import contextlib
import math
import os
import pathlib
import random
import struct
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.client import ClientTest
from harness.cluster import DONE, USAGE, ClusterTest, Hold, Process, main, wait_for
from harness.peer import TENSORS, Peer
from harness.wire import REQUEST, Client, text

TRAINING = 2000 - 360  # of the digits that tests make, by digits.py
OWN_DIGITS = pathlib.Path(__file__).resolve().parents[1] / "harness" / "own_digits.py"
AGGREGATES = ("trimmed_mean:1", "nnm_trimmed_mean:1")
SHAPES = {"hidden.weight": (64, 32), "hidden.bias": (32,), "output.weight": (32, 10), "output.bias": (10,)}


def floats(shape, number):
    numbers = array.array("f", [number(i) for i in range(math.prod(shape))])
    return memoryview(numbers).cast("B").cast("f", shape)


class Liar(threading.Thread):
    """A worker by the client library that brings the same large numbers in every round."""

    def __init__(self, test, server, value):
        super().__init__()
        noise = random.Random(5)  # where it is asked for the first values, those are sound
        self.tensors = {name: floats(shape, lambda _: noise.uniform(-0.2, 0.2)) for name, shape in SHAPES.items()}
        self.trainer = test.trainer(server, "z", self.tensors, samples=TRAINING, batch=32, model="digits-numpy")
        self.gradients = {name: floats(shape, lambda i: -value if i % 2 else value) for name, shape in SHAPES.items()}
        self.start()

    def run(self):
        for share in self.trainer:
            if len(share) == 0:
                self.trainer.finish()
            else:
                self.trainer.finish(self.gradients, loss_sum=0, correct=0)
        self.trainer.close()


class WithALiar(ClientTest):
    def train(self, run, aggregate, *flags, servers=1, value=1000.0):
        """Train to the end: three honest workers, and a fourth that lies."""
        common = ["--min-workers", 4, "--rounds", 200, "--lr", "0.5", "--aggregate", aggregate, "--exit-when-finished"]
        if servers > 1:
            common += ["--servers", servers, "--chunk-bytes", 1024]
        server = self.server(*common, *flags, name=f"server-{run}", run=run)
        shards = [self._start(Process, "centroid-server", f"{run}-s{i}", ["--join", server.data, "--name", f"s{i}", "--listen", "127.0.0.1:0", "--run-dir", self.folder / "shards"], None) for i in range(1, servers)]
        honest = self.honest(server, run)
        liar = Liar(self, server, value)
        self.assert_exit(DONE, *honest, server, *shards)
        liar.join(20)
        self.assertFalse(liar.is_alive())
        return server


class Robust(WithALiar):
    def honest(self, server, run):
        return [self.example(server, f"{name}-{run}") for name in "abc"]

    def accuracy(self, run, aggregate, *flags, servers=1, value=1000.0):
        """Of the honest workers in the last epoch."""
        server = self.train(run, aggregate, *flags, servers=servers, value=value)
        return server.events("epoch.ended")[-1]["accuracy"] * 4 / 3  # nothing was right of the fourth's

    def test_a_mean_is_spoiled_by_one_and_the_others_are_not(self):
        spoiled = self.accuracy("mean", "mean")
        self.assertLess(spoiled, 0.5)
        for aggregate in ("median", "trimmed_mean:1", "nnm_trimmed_mean:1"):
            with self.subTest(aggregate=aggregate):
                self.assertGreater(self.accuracy(aggregate.replace(":", ""), aggregate, value=1e30), 0.9)

    def test_on_several_servers_and_with_compressed_results(self):
        self.assertGreater(self.accuracy("servers", "trimmed_mean:1", servers=2, value=1e30), 0.9)
        self.assertGreater(self.accuracy("down", "median", "--codec-down", "sign", value=-1e30), 0.9)


class Dissimilar(WithALiar):
    def honest(self, server, run):
        """Each has other digits."""
        data = self.data_dir() / "digits.csv.gz"
        environment = {**os.environ, **self.environment, "OPENBLAS_NUM_THREADS": "1"}
        programs = [(name, [OWN_DIGITS, server.data, data, name, digits]) for name, digits in (("a", "012"), ("b", "345"), ("c", "6789"))]
        started = [Process(self.numpy, program, self.folder / f"{name}-{run}.log", environment) for name, program in programs]
        self.processes += started
        server.wait_event("member.joined")  # the initial values are theirs
        return started

    def accuracy(self, run, aggregate, *flags, servers=1):
        """On held-out samples of all digits, as worker a reports it."""
        server = self.train(run, aggregate, *flags, servers=servers, value=1e30)
        last = server.events("model.evaluated")[-1]
        self.assertEqual(last["version"], 201)
        return last["accuracy"]

    def test_mixing_with_neighbours_learns_what_a_trimmed_mean_does_not(self):
        self.assertLess(self.accuracy("trimmed", "trimmed_mean:1"), 0.8)
        self.assertGreater(self.accuracy("mixed", "nnm_trimmed_mean:1"), 0.95)
        self.assertGreater(self.accuracy("servers", "nnm_trimmed_mean:1", "--codec-down", "int8", servers=2), 0.95)


class Refusals(ClusterTest):
    def test_settings_that_cannot_work_are_named(self):
        cases = {
            ("--aggregate", "average"): "expected mean, median, trimmed_mean:F or nnm_trimmed_mean:F",
            ("--aggregate", "nnm_trimmed_mean:0"): "expected nnm_trimmed_mean:F, F an integer from 1",
            ("--aggregate", "nnm_trimmed_mean:2", "--min-workers", 4): "it needs 5 workers",
            ("--aggregate", "nnm_trimmed_mean:1", "--exchange", "ring"): "no process has all contributions",
            ("--aggregate", "nnm_trimmed_mean:1", "--policy", "asp"): "nothing to set it against",
            ("--aggregate", "nnm_trimmed_mean:1", "--policy", "quorum:2"): "false contributions are fast",
            ("--aggregate", "nnm_trimmed_mean:1", "--nonfinite", "propagate"): "NaN has no place in an order",
            ("--aggregate", "trimmed_mean:0"): "an integer from 1",
            ("--aggregate", "median"): "it needs 3 workers",
            ("--aggregate", "trimmed_mean:2", "--min-workers", 4): "it needs 5 workers",
            ("--aggregate", "median", "--exchange", "ring"): "no process has all contributions",
            ("--aggregate", "median", "--policy", "asp"): "nothing to set it against",
            ("--aggregate", "median", "--policy", "backup:1"): "false contributions are fast",
            ("--aggregate", "median", "--nonfinite", "propagate"): "NaN has no place in an order",
            ("--aggregate", "median", "--weight-by", "steps"): "every worker has the same weight",
        }
        for number, (flags, why) in enumerate(cases.items()):
            with self.subTest(flags=flags):
                self.assert_status(self.launch_server(*flags, name=f"server{number}"), USAGE, why)

    def test_sparse_codecs_are_refused_and_too_few_workers_wait(self):
        server = self.server("--min-workers", 3, "--aggregate", "nnm_trimmed_mean:1")
        self.assert_status(self.worker(server, "sparse", "--codec", "topk:0.1"), USAGE, "most of them 0")
        workers = [self.worker(server, f"w{i}") for i in range(3)]
        server.wait_round(5)
        workers.pop().kill()
        self.assertIn("2 of 3 workers are here (aggregate nnm_trimmed_mean:1)", server.wait_cluster("that it waits", lambda cluster: cluster["state"] == "waiting")["state_reason"])
        workers.append(self.worker(server, "w3"))
        server.wait_more_rounds()
        self.assertEqual(server.post("/v1/job:stop")[0], 202)
        self.assert_exit(DONE, *workers)

    def test_other_threads_combine(self):
        for aggregate, combines in (("mean", False), ("median", True)):
            with self.subTest(aggregate=aggregate):
                server = self.server("--min-workers", 3, "--aggregate", aggregate, "--rounds", 1000000, name=aggregate, run=aggregate)
                workers = [self.worker(server, f"{aggregate}-{i}") for i in range(3)]
                server.wait_round(3)
                names = []
                for task in pathlib.Path(f"/proc/{server.pid}/task").iterdir():
                    with contextlib.suppress(OSError):  # it may end meanwhile
                        names.append((task / "comm").read_text())
                self.assertEqual(any(name.startswith("combine") for name in names), combines, names)
                self.assertEqual(server.post("/v1/job:stop")[0], 202)
                self.assert_exit(DONE, *workers)

    def test_a_round_whose_chunks_are_being_combined_says_so(self):
        combining = Hold(self, "trial.combining", count=4)
        server = self.server("--min-workers", 3, "--aggregate", "median", "--rounds", 1000000, environment=combining.close().environment)
        workers = [self.worker(server, f"w{i}") for i in range(3)]
        combining.wait_reached()
        wait = wait_for(lambda: next((one for one in server.get("/v1/waits")["waits"] if one["waits_for"].startswith("aggregate")), None), "a wait")
        self.assertEqual(wait["waits_for"], "aggregate median")
        self.assertRegex(wait["what"], r"^\d of \d chunks are being combined$")
        wait_for(lambda: server.metric("centroid_server_waits", cause="aggregate"), "the wait in /metrics")
        self.assertEqual(server.metric("centroid_server_waits", cause="credit"), 0)
        combining.open()
        server.wait_more_rounds()
        self.assertEqual(server.post("/v1/job:stop")[0], 202)
        self.assert_exit(DONE, *workers)

    def test_every_sample_of_an_epoch_is_trained_and_no_round_is_smaller_than_three(self):
        server = self.server("--min-workers", 3, "--epochs", 3, "--aggregate", "median", "--exit-when-finished")
        workers = [self.worker(server, f"w{i}", batch=13) for i in range(3)]  # 1600 = 41 * 39 + 1
        self.assert_exit(DONE, *workers, server)
        trained = [worker.events("worker.ended")[0]["samples"] for worker in workers]
        self.assertEqual(sum(trained), 3 * 1600)
        self.assertEqual([worker.events("samples.excluded") for worker in (server, *workers)], [[]] * 4)


class Liars(ClusterTest):
    def round_of(self, peers):
        with concurrent.futures.ThreadPoolExecutor(len(peers)) as pool:
            list(pool.map(lambda peer: peer.until_round(), peers))

    def test_a_contribution_that_is_not_finite_is_one_of_those_that_may_be_false(self):
        for number, aggregate in enumerate(AGGREGATES):
            with self.subTest(aggregate=aggregate):
                self.check_not_finite(aggregate, number)

    def check_not_finite(self, aggregate, number):
        server = self.server("--min-workers", 3, "--aggregate", aggregate, "--lease", "60s", name=f"server{number}", run=f"run{number}")
        peers = [Peer(server.data, f"p{i}").join() for i in range(3)]
        for version in (2, 3):
            self.round_of(peers)
            peers[2].end(nonfinite=True)
            for peer in peers[:2]:
                peer.whole()
            wait_for(lambda version=version: server.cluster()["version"] == version, "the round of the others")
        self.assertEqual(server.events("contribution.excluded")[0]["worker"], "p2")
        self.round_of(peers)
        for peer in peers[1:]:
            peer.end(nonfinite=True)  # more than F
        peers[0].whole()
        server.wait_event("job.halted", error="is not finite in round 3")
        for peer in peers:
            peer.close()

    def three(self, *flags, count=3, aggregate="trimmed_mean:1"):
        name = aggregate.partition(":")[0]
        server = self.server("--min-workers", count, "--aggregate", aggregate, "--lease", "60s", *flags, name=f"server-{name}", run=f"run-{name}")
        peers = [Peer(server.data, f"p{i}").join() for i in range(count)]
        for peer in peers:
            self.addCleanup(peer.close)
        self.round_of(peers)
        return server, peers

    def wait_version(self, server, version):
        wait_for(lambda: server.cluster()["version"] == version, f"version {version}")

    def test_a_contribution_that_is_lost_is_one_of_them(self):
        for aggregate in AGGREGATES:
            with self.subTest(aggregate=aggregate):
                self.check_lost(aggregate)

    def check_lost(self, aggregate):
        server, peers = self.three(aggregate=aggregate)
        peers[2].push(0, [9.0] * 8)
        peers[2].close()
        server.wait_worker("p2", "dead")
        for peer in peers[:2]:
            peer.whole()
        self.wait_version(server, 2)
        self.assertIn("2 of 3 workers are here", server.wait_cluster("that it waits", lambda cluster: cluster["state"] == "waiting")["state_reason"])

    def test_one_that_is_lost_when_a_part_of_it_counts_already_too(self):
        server, peers = self.three()
        for peer in peers:
            peer.push(0, [1.0] * 8)
        wait_for(lambda: server.metric("centroid_server_chunks_waiting") == 0 and server.metric("centroid_server_payload_received_bytes_total") >= 3 * 32, "the first chunk of all")
        peers[2].close()
        self.round_of(peers[:2])  # again, without it
        for peer in peers[:2]:
            peer.whole()
        self.wait_version(server, 2)

    def test_one_that_is_late_is_one_of_them_until_it_answers(self):
        for aggregate in AGGREGATES:
            with self.subTest(aggregate=aggregate):
                self.check_late(aggregate)

    def check_late(self, aggregate):
        server, peers = self.three("--round-timeout", "5s", aggregate=aggregate)
        for number in range(3):
            for peer in peers[:2]:
                peer.whole()
            if number == 0:
                self.round_of(peers[:2])  # again, without it
                for peer in peers[:2]:
                    peer.whole()
            self.wait_version(server, 2 + number)
            self.round_of(peers[:2])
        for peer in peers[:2]:
            peer.whole()
        self.wait_version(server, 5)
        peers[2].send(peers[2].READY, peers[2].place)
        server.wait_event("member.limit_exceeded", worker="p2")
        self.round_of(peers[:2])
        for peer in peers[:2]:
            peer.whole()
        self.round_of(peers)
        self.assertEqual(server.wait_missing("p0", "p1", "p2")["round"], 6)

    def test_more_than_that_are_waited_for(self):
        server, peers = self.three(count=4)
        for peer in peers[2:]:
            peer.close()
        server.wait_worker("p3", "dead")
        for peer in peers[:2]:
            peer.whole()
        self.assertIn("2 of 4 workers are here (min_workers)", server.wait_cluster("that it waits", lambda cluster: cluster["state"] == "waiting")["state_reason"])
        self.assertEqual(server.cluster()["version"], 1)


class Returning(Peer):
    """Answers only what would keep it out, or the server from its end."""

    def next(self):
        frame = super().next()
        if frame[0] == self.ROUND_CLOSED and frame[2][12] in (self.LATE, self.CARRIED):
            self.send(self.READY, self.place)
        if frame[0] == self.FINISH:
            self.send(self.LEAVE, text("done"), flags=REQUEST, identity=1 << 50)
            raise ConnectionError("the job is over")
        return frame


class Fabulist(threading.Thread):
    """A worker that sends anything, in every field, until the server is gone."""

    NUMBERS = (0.0, -0.0, 1.0, -1.0, 4.0, 1e-300, 1e15, 1e16, 3e38, -3e38, 1e300, -1e300, math.inf, -math.inf, math.nan)
    COUNTS = (0, 1, 2, 4, 7, 1 << 31, (1 << 32) - 1)
    LARGE = (*COUNTS, 10**15, 10**15 + 1, 1 << 63, (1 << 64) - 1)

    def __init__(self, endpoint, seed):
        super().__init__(daemon=True)
        self.endpoint, self.random = endpoint, random.Random(seed)
        self.acts = (self.chunk, self.chunk, self.good_chunks, self.end, self.end, self.good_end, self.keyed, self.report, self.beat, self.state, self.failed, self.leave, self.unknown, self.again, self.silence)
        self.rounds = 0
        self.start()

    def pick(self, *usual, of=NUMBERS):
        """Mostly what is usual, else anything."""
        return self.random.choice(usual) if usual and self.random.random() < 0.6 else self.random.choice(of)

    def place(self, peer):
        fields = list(struct.unpack("<QQI", peer.place))
        if self.random.random() < 0.2:
            fields[self.random.randrange(3)] = self.pick(of=self.COUNTS)
        return struct.pack("<QQI", *fields)

    def numbers(self, count):
        return struct.pack(f"<{count}f", *(self.random.choice((0.0, 1.0, -1e9, 1e30, -3e38, 3e38)) if self.random.random() < 0.98 else math.nan for _ in range(count)))

    def chunk(self, peer):
        number = self.pick(0, 1, 2, of=self.COUNTS)
        count = self.pick(dict(enumerate((8, 6, 1))).get(number, 1), of=(0, 1, 7, 9, 1000))
        peer.send(peer.PUSH, self.place(peer) + struct.pack("<Id", number, self.pick(peer.weight)), self.numbers(count))

    def good_chunks(self, peer):
        for number, count in enumerate((8, 6, 1)):
            peer.send(peer.PUSH, peer.place + struct.pack("<Id", number, peer.weight), self.numbers(count))

    def end(self, peer):
        real, count = self.pick, lambda *usual: self.pick(*usual, of=self.LARGE)
        short = lambda *usual: self.pick(*usual, of=self.COUNTS)
        told = struct.pack("<dQQdddB", real(peer.weight), count(peer.weight), count(0), real(0.0), real(0.0), real(0.0), self.pick(0, 1, of=(0, 1, 2, 255)))
        told += text(self.pick("a", "b", of=("", "x" * 256, "\x1b[2J")))
        told += struct.pack("<dddQQIIddddddd", real(0.0), real(0.0), real(0.0), count(0), count(0), short(0), short(0), real(0.0), real(-1.0), real(-1.0), real(-1.0), real(0.0), real(0.0), real(0.0))
        scalars = self.random.choice((0, 0, 1, 2, 17))
        told += struct.pack("<I", scalars) + b"".join(text(self.pick("loss", f"s{i}", of=("", "a b"))) + struct.pack("<dQ", real(1.0), count(1)) for i in range(scalars))
        peer.send(peer.PUSH_END, self.place(peer) + told + self.pick(b"", of=(b"", b"\0" * 8, struct.pack("<Q", 7))))

    def good_end(self, peer):
        peer.end(nonfinite=self.random.random() < 0.3)

    def keyed(self, peer):
        peer.send(self.random.choice((33, peer.READY)), self.place(peer))  # Computed

    def failed(self, peer):
        peer.send(34, self.place(peer) + struct.pack("<BI", self.pick(0, 1, of=(0, 1, 2)), self.pick(of=self.COUNTS)) + text("why"))

    def report(self, peer):
        peer.send(29, struct.pack("<QQQd", self.pick(1, of=self.LARGE), self.pick(4, of=self.LARGE), self.pick(0, of=self.LARGE), self.pick(0.0)))

    def beat(self, peer):
        peer.send(peer.HEARTBEAT, self.pick(b"", of=(b"", struct.pack("<d", math.nan) + text("v"), struct.pack("<d", -1e300) + text("v" * 256), b"\0")))

    def state(self, peer):
        kind = self.random.choice((18, 19, 20, 32, 39))  # InitChunk, InitDone, StateChunk, StateDone, Kept
        head = {18: struct.pack("<I", 0), 19: b"", 20: struct.pack("<QBI", 1, 0, 0), 32: struct.pack("<Q", 1), 39: struct.pack("<QB", 1, self.pick(0, 1, of=(0, 1, 2, 3))) + text("why")}[kind]
        peer.send(kind, head, self.numbers(8) if kind in (18, 20) else b"")

    def leave(self, peer):
        peer.send(peer.LEAVE, text("bye"), flags=REQUEST, identity=self.random.randrange(2, 1 << 40))

    def unknown(self, peer):
        peer.send(self.random.choice((0, 5, 15, 22, 23, 40, 97, 119, 65535)), self.random.randbytes(self.random.randrange(40)))

    def again(self, _):
        raise ConnectionError("it comes again")

    def silence(self, peer):
        """Until the others have gone on."""
        peer.until_round()

    def run(self):
        while not self.is_over():
            pass

    def is_over(self):
        try:
            peer = Returning(self.endpoint, "zz")
        except (OSError, EOFError, ConnectionError):
            return True
        try:
            peer.join()
            while True:
                peer.until_round()
                self.rounds += 1
                for _ in range(self.random.randrange(1, 5)):
                    self.random.choice(self.acts)(peer)
                if self.random.random() < 0.5:
                    self.good_chunks(peer)
                    self.good_end(peer)
        except (OSError, EOFError, AssertionError):
            return False
        finally:
            peer.close()


class Honest(Client):
    """Brings other numbers in each round."""

    def __init__(self, name):
        super().__init__(name, TENSORS)

    def gradient_of(self, number, chunk):
        drawn = random.Random(f"{self.name} {number} {chunk}")
        return [drawn.uniform(-1, 1) for _ in range(self.elements(chunk))]

    def run(self, endpoint):
        self.train(endpoint, lambda number, chunk: array.array("f", self.gradient_of(number, chunk)).tobytes())


class Lies(ClusterTest):
    ROUNDS = 40

    def test_whatever_one_sends_in_any_field_the_others_train_within_their_bounds(self):
        for seed in (1, 2):
            for aggregate in ("median", "trimmed_mean:1"):
                with self.subTest(seed=seed, aggregate=aggregate):
                    self.check(seed, aggregate)

    def check(self, seed, aggregate):
        run = f"{aggregate.replace(':', '')}-{seed}"
        flags = ["--min-workers", 4, "--rounds", self.ROUNDS, "--lr", 1, "--aggregate", aggregate, "--round-timeout", "400ms", "--lease", "60s", "--exit-when-finished"]
        server = self.server(*flags, name=f"server-{run}", run=run)
        honest = [Honest(name) for name in ("a", "b", "c")]
        with concurrent.futures.ThreadPoolExecutor(len(honest)) as pool:
            ends = [pool.submit(one.run, server.data) for one in honest]
            liar = Fabulist(server.data, seed)
            for end in ends:
                end.result()
        self.assert_exit(DONE, server)
        self.assertGreater(liar.rounds, self.ROUNDS // 4, "it has had its say")
        before = {chunk: [0.0] * count for chunk, count in enumerate(honest[0].chunks)}
        for number in range(1, self.ROUNDS + 1):
            results = next(one.results[number] for one in honest if number in one.results)
            for chunk, payload in results.items():
                after = list(array.array("f", payload))
                bounds = list(zip(*(one.gradient_of(number, chunk) for one in honest)))
                for old, new, of in zip(before[chunk], after, bounds):
                    self.assertTrue(min(of) - 1e-4 <= old - new <= max(of) + 1e-4, f"round {number}, chunk {chunk}: {old - new} is not within {of}")
                before[chunk] = after


if __name__ == "__main__":
    main(at_a_time=2)
