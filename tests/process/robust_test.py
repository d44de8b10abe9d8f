"""One worker sends anything: a mean is spoiled, a median and a trimmed mean are not. robust_test.py BIN_DIR"""

import array
import concurrent.futures
import math
import pathlib
import random
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.client import ClientTest
from harness.cluster import DONE, USAGE, ClusterTest, Process, main, wait_for
from harness.peer import Peer

TRAINING = 2000 - 360  # of the digits that tests make, by digits.py
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


class Robust(ClientTest):
    def accuracy(self, run, aggregate, *flags, servers=1, value=1000.0):
        """Of three honest workers in the last epoch of a job, with a fourth that lies."""
        common = ["--min-workers", 4, "--rounds", 200, "--lr", "0.5", "--aggregate", aggregate, "--exit-when-finished"]
        if servers > 1:
            common += ["--servers", servers, "--chunk-bytes", 1024]
        server = self.server(*common, *flags, name=f"server-{run}", run=run)
        shards = [self._start(Process, "centroid-server", f"{run}-s{i}", ["--join", server.data, "--name", f"s{i}", "--listen", "127.0.0.1:0", "--run-dir", self.folder / "shards"], None) for i in range(1, servers)]
        honest = [self.example(server, f"{name}-{run}") for name in "abc"]
        liar = Liar(self, server, value)
        self.assert_exit(DONE, *honest, server, *shards)
        liar.join(20)
        self.assertFalse(liar.is_alive())
        return server.events("epoch.ended")[-1]["accuracy"] * 4 / 3  # nothing was right of the fourth's

    def test_a_mean_is_spoiled_by_one_and_the_others_are_not(self):
        spoiled = self.accuracy("mean", "mean")
        self.assertLess(spoiled, 0.5)
        for aggregate in ("median", "trimmed_mean:1"):
            with self.subTest(aggregate=aggregate):
                self.assertGreater(self.accuracy(aggregate.replace(":", ""), aggregate, value=1e30), 0.9)

    def test_on_several_servers_and_with_compressed_results(self):
        self.assertGreater(self.accuracy("servers", "trimmed_mean:1", servers=2, value=1e30), 0.9)
        self.assertGreater(self.accuracy("down", "median", "--codec-down", "sign", value=-1e30), 0.9)


class Refusals(ClusterTest):
    def test_settings_that_cannot_work_are_named(self):
        cases = {
            ("--aggregate", "average"): "expected mean, median or trimmed_mean:F",
            ("--aggregate", "trimmed_mean:0"): "an integer from 1",
            ("--aggregate", "median"): "it needs 3 workers",
            ("--aggregate", "trimmed_mean:2", "--min-workers", 4): "it needs 5 workers",
            ("--aggregate", "median", "--exchange", "ring"): "no process has all contributions",
            ("--aggregate", "median", "--policy", "asp"): "nothing to set it against",
            ("--aggregate", "median", "--policy", "backup:1"): "false contributions are fast",
            ("--aggregate", "median", "--nonfinite", "propagate"): "NaN has no place in an order",
            ("--aggregate", "median", "--weight-by", "steps"): "every worker has the same weight",
        }
        for number, (flags, text) in enumerate(cases.items()):
            with self.subTest(flags=flags):
                self.assert_status(self.launch_server(*flags, name=f"server{number}"), USAGE, text)

    def test_who_sends_few_numbers_is_refused_and_a_job_with_too_few_workers_waits(self):
        server = self.server("--min-workers", 3, "--aggregate", "median")
        self.assert_status(self.worker(server, "sparse", "--codec", "topk:0.1"), USAGE, "most of them 0")
        workers = [self.worker(server, f"w{i}") for i in range(3)]
        server.wait_round(5)
        workers.pop().kill()
        self.assertIn("2 of 3 workers are here (aggregate median)", server.wait_cluster("that it waits", lambda cluster: cluster["state"] == "waiting")["state_reason"])
        workers.append(self.worker(server, "w3"))
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
        server = self.server("--min-workers", 3, "--aggregate", "trimmed_mean:1", "--lease", "60s")
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


if __name__ == "__main__":
    main()
