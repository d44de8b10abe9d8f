"""Whole jobs: the same bits every time and everywhere, the operator's REST calls, numbers that blow up. training_test.py BIN_DIR"""

import array
import json
import math
import pathlib
import re
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import DONE, HALTED, USAGE, ClusterTest, main


class Repeating(ClusterTest):
    ROUNDS = 60

    def train(self, run, *arguments, codec="f32", names=("w0", "w1", "w2")):
        """Model file of one job with three workers of different batches; all must hold the same bits."""
        goal = ["--rounds", self.ROUNDS, "--min-workers", len(names), "--exit-when-finished"]
        server = self.server("--optimizer", "adam", "--lr", 0.003, *goal, *arguments, run=run, name=f"server-{run}")
        workers = []
        for number, name in enumerate(names):
            summary = ["--codec", codec, "--summary-file", self.folder / f"{run}-{name}.json"]
            workers.append(self.worker(server, f"{name}", *summary, model="mlp:64-32-10", batch=16 + 5 * number))
        self.assert_exit(DONE, *workers, server)
        summaries = [self.read_json(f"{run}-{name}.json") for name in names]
        self.assertEqual(len({summary["fingerprint"] for summary in summaries}), 1, summaries)
        self.assertEqual({summary["version"] for summary in summaries}, {self.ROUNDS + 1})
        self.assertEqual({summary["lost_rounds"] + summary["skipped_rounds"] for summary in summaries}, {0})
        self.last_summaries = summaries
        return (self.checkpoints(run)[-1] / "model.safetensors").read_bytes()

    def test_same_seed_gives_the_same_bytes_however_it_is_trained(self):
        models = {}
        for codec in ("f32", "bf16"):
            for apply in ("server", "worker"):
                for again in range(2):
                    models[codec, apply, again] = self.train(f"{codec}-{apply}-{again}", "--apply", apply, codec=codec)
        for codec in ("f32", "bf16"):
            one = {models[key] for key in models if key[0] == codec}
            self.assertEqual(len(one), 1, f"{codec}: {len(one)} different models of the same job")
        self.assertNotEqual(models["f32", "server", 0], models["bf16", "server", 0])

    def test_apply_makes_no_difference_for_any_optimizer(self):
        ftrl = ["--l1", 0.001, "--lr", 0.1]
        for optimizer, more in [(name, []) for name in ("sgd", "nesterov", "adagrad", "adamw", "yogi")] + [("ftrl", ftrl)]:
            with self.subTest(optimizer):
                flags = ["--optimizer", optimizer, "--weight-decay", 0.01, *more]
                models = [self.train(f"{optimizer}-{apply}", *flags, "--apply", apply) for apply in ("server", "worker")]
                self.assertEqual(models[0], models[1])

    def test_schedule_and_clipping_are_the_same_wherever_they_are_applied(self):
        flags = ["--optimizer", "momentum", "--lr-schedule", "cosine:rounds=60,warmup=5,floor=0.1", "--clip-norm", 0.3]
        on_server, cut_small = self.train("server", *flags), self.train("small", *flags, "--chunk-bytes", 256)
        self.assertEqual(on_server, cut_small)
        self.assertEqual(on_server, self.train("worker", *flags, "--apply", "worker"))
        self.assertNotEqual(on_server, self.train("unclipped", *flags[:-2]))
        self.assertNotEqual(on_server, self.train("constant", *flags[:2], *flags[-2:]))

    def test_operator_sees_learning_rate_and_clipping(self):
        flags = ["--lr", 0.5, "--lr-schedule", "step:every=8,factor=0.5", "--clip-norm", 1e-3]
        for apply in ("server", "worker"):
            with self.subTest(apply):
                server = self.server(*flags, "--rounds", 17, "--apply", apply, run=f"run-{apply}", name=f"server-{apply}")
                self.assert_exit(DONE, self.worker(server, f"w-{apply}"))
                cluster = server.wait_cluster("finished", lambda cluster: cluster["state"] == "finished")
                self.assertEqual(cluster["learning_rate"], 0.125)
                self.assertGreater(cluster["gradient_norm"], 1e-3)
                own = self.summary(f"w-{apply}")  # of one worker it is the cluster's, of the last round that it looked at
                self.assertAlmostEqual(own["gradient_norm"] / cluster["gradient_norm"], 1, 5)
                self.assertTrue(0 <= own["accuracy"] <= 1, own["accuracy"])
                self.assertEqual(cluster["clipped_rounds"], 17)
                self.assertEqual(server.metric("centroid_server_rounds_clipped_total"), 17)
                server.post("/v1/job:stop")
                self.assert_exit(DONE, server)

    def test_wrong_schedule_is_named(self):
        server = self.launch_server("--lr-schedule", "cosine:rounds=0")
        self.assert_status(server, USAGE, 'field "rounds" is "0", expected an integer, at least 1')

    def test_other_seed_gives_other_bytes(self):
        self.assertNotEqual(self.train("one", "--seed", 1), self.train("two", "--seed", 2))

    def test_cut_of_the_chunks_makes_no_difference(self):
        self.assertEqual(self.train("large"), self.train("small", "--chunk-bytes", 256))

    def test_job_learns(self):
        server = self.server("--epochs", 5, "--lr", 0.5, "--min-workers", 2, "--exit-when-finished")
        workers = [self.worker(server, name) for name in ("w0", "w1")]
        self.assert_exit(DONE, *workers, server)
        evaluated = server.events("model.evaluated")
        self.assertEqual(len(evaluated), 5)
        self.assertGreater(evaluated[-1]["accuracy"], 0.95)
        self.assertEqual(self.summary("w0")["test_accuracy"], evaluated[-1]["accuracy"])
        self.assertEqual(self.summary("w0")["samples"] + self.summary("w1")["samples"], 5 * 1600)
        for summary in (self.summary("w0"), self.summary("w1")):  # one of them evaluates; the other has nothing to say
            self.assertEqual(summary["test_perplexity"] == -1, summary["test_accuracy"] == -1, summary)

    def read_json(self, name):
        return json.loads((self.folder / name).read_text())


class Operator(ClusterTest):
    def training(self, *arguments):
        server = self.server("--min-workers", 2, *arguments)
        workers = [self.worker(server, name) for name in ("w0", "w1")]
        server.wait_round(3)
        return server, workers

    def test_pause_and_resume(self):
        server, workers = self.training()
        self.assertEqual(server.post("/v1/job:resume")[0], 409)
        self.assertEqual(server.post("/v1/job:pause")[0], 202)
        paused = server.wait_cluster("paused", lambda cluster: cluster["state"] == "paused")
        self.assertIn("resume", paused["state_reason"])
        waits = server.get("/v1/waits")["waits"]
        self.assertIn("operator", [wait["waits_for"] for wait in waits])
        for _ in range(20):
            self.assertEqual(server.cluster()["round"], paused["round"])
        self.assertEqual(server.post("/v1/job:resume")[0], 202)
        server.wait_round(paused["round"] + 3)
        server.post("/v1/job:stop")
        self.assert_exit(DONE, server, *workers)

    def test_paused_job_can_be_stopped(self):
        server, workers = self.training()
        server.post("/v1/job:pause")
        server.wait_cluster("paused", lambda cluster: cluster["state"] == "paused")
        server.post("/v1/job:stop")
        self.assert_exit(DONE, server, *workers)
        self.assertEqual(len(self.checkpoints()), 1)

    def test_checkpoint_on_request_is_there_when_the_call_returns(self):
        server, workers = self.training("--checkpoint.keep", 10)
        versions = []
        for _ in range(5):
            before = server.cluster()["version"]
            status, made = server.post("/v1/checkpoints")
            self.assertEqual(status, 201, made)
            self.assertGreaterEqual(made["version"], before)
            self.assertIn(made["path"], [str(path) for path in self.checkpoints()])
            versions.append(made["version"])
            server.wait_more_rounds(2)
        listed = server.get("/v1/checkpoints")["checkpoints"]
        self.assertEqual(sorted(entry["version"] for entry in listed), versions)
        self.assertEqual({entry["problem"] for entry in listed}, {""})
        self.assertEqual(server.metric("centroid_server_checkpoints_total"), 5)
        server.post("/v1/job:stop")
        self.assert_exit(DONE, server, *workers)

    def test_checkpoint_before_there_is_anything(self):
        status, problem = self.server().post("/v1/checkpoints")
        self.assertEqual(status, 409)
        self.assertIn("no worker has sent", problem["detail"])

    def test_finished_job_stays_to_be_looked_at(self):
        server = self.server("--rounds", 10)
        worker = self.worker(server, "w0")
        self.assert_exit(DONE, worker)
        state = server.wait_cluster("finished", lambda cluster: cluster["state"] == "finished")
        self.assertEqual((state["progress"], state["version"]), (1, 11))
        self.assertEqual(server.post("/v1/job:pause")[0], 409)
        self.assert_exit(DONE, self.worker(server, "w1"))  # there is nothing to do for it
        server.post("/v1/job:stop")
        self.assert_exit(DONE, server)

    def test_metrics_and_views_tell_the_same(self):
        server, workers = self.training()
        server.post("/v1/job:pause")
        server.wait_cluster("paused", lambda cluster: cluster["state"] == "paused")
        cluster = server.cluster()
        committed = server.metric("centroid_server_rounds_total", outcome="committed")
        self.assertEqual(committed, cluster["round"] - 1)
        self.assertEqual(cluster["version"], cluster["round"])
        self.assertEqual(server.metric("centroid_server_samples_total"), cluster["samples_total"])
        self.assertEqual(sum(worker["samples"] for worker in server.workers()), cluster["samples_total"])
        server.post("/v1/job:stop")
        self.assert_exit(DONE, server, *workers)


class BlowUp(ClusterTest):
    """A step so large that the second round's gradients are not finite."""

    STEP = ["--optimizer", "sgd", "--lr", "1e30"]

    def start(self, policy, *arguments):
        server = self.server(*self.STEP, "--nonfinite", policy, "--min-workers", 2, *arguments)
        return server, [self.worker(server, name) for name in ("w0", "w1")]

    def values(self):
        data = (self.checkpoints()[-1] / "model.safetensors").read_bytes()
        (header,) = struct.unpack_from("<Q", data)
        return array.array("f", data[8 + header :])

    def test_halt_ends_everybody_and_says_why(self):
        for apply in ("server", "worker"):
            with self.subTest(apply):
                run = {"run": f"run-{apply}", "name": f"server-{apply}"}
                flags = [*self.STEP, "--nonfinite", "halt", "--min-workers", 2, "--apply", apply, "--exit-when-finished"]
                server = self.server(*flags, **run)
                workers = [self.worker(server, f"w{i}-{apply}") for i in range(2)]
                self.assert_exit(HALTED, *workers, server)
                halted = server.events("job.halted")[0]["error"]
                pattern = r"JIDOKA HALT: worker \d \(w\d-" + apply + r"\): the gradient of tensor layers\.\d\.\w+ is not finite in round 2"
                self.assertRegex(halted, pattern)
                for worker in workers:
                    summary = self.summary(worker.name)
                    self.assertTrue(summary["end"].startswith("JIDOKA HALT: worker "), summary)
                    self.assertIn(re.search(pattern, halted).group(), summary["error"])

    def test_halt_keeps_the_last_good_state(self):
        server, workers = self.start("halt", "--exit-when-finished")
        self.assert_exit(HALTED, server, *workers)
        self.assertTrue(all(map(math.isfinite, self.values())))

    def test_skip_goes_on_and_counts(self):
        server, workers = self.start("skip", "--rounds", 30)
        self.assert_exit(DONE, *workers)
        self.assertEqual(server.cluster()["skipped_rounds"], 29)
        self.assertEqual(server.metric("centroid_server_rounds_total", outcome="skipped"), 29)
        self.assertGreaterEqual(server.metric("centroid_server_contributions_nonfinite_total"), 29)
        self.assertIn("not finite", server.events("round.skipped")[0]["why"])
        self.assertEqual(self.summary("w0")["skipped_rounds"], 29)
        server.post("/v1/job:stop")
        self.assert_exit(DONE, server)
        self.assertTrue(all(map(math.isfinite, self.values())))

    def test_propagate_goes_on_with_what_there_is(self):
        server, workers = self.start("propagate", "--rounds", 30, "--exit-when-finished")
        self.assert_exit(DONE, *workers, server)
        self.assertEqual(server.events("round.skipped"), [])
        self.assertFalse(all(map(math.isfinite, self.values())))
        self.assertEqual(self.summary("w0")["version"], 31)


if __name__ == "__main__":
    main()
