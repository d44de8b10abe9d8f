"""Batch normalisation on real servers: a worker's model, and a training program's. buffers_test.py BIN_DIR"""

import array
import importlib.util
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.client import ClientTest, tensors_of
from harness.cluster import DONE, USAGE, ClusterTest, main


class Worker(ClusterTest):
    model = "mlp:64-32-10,relu,norm=batch"

    def bits(self, run="run"):
        return (self.checkpoints(run)[-1] / "model.safetensors").read_bytes()

    def test_digits_are_learned_and_a_checkpoint_has_the_buffers(self):
        flags = ["--epochs", 4, "--min-workers", 2, "--optimizer", "adamw", "--lr", "0.005", "--exit-when-finished"]
        ways = (("star", "f32", "f32"), ("ring", "f32", "f32"), ("star", "int8", "f32"), ("star", "int8", "bf16"), ("ring", "int8", "f32"))
        for exchange, codec, down in ways:
            with self.subTest(exchange=exchange, codec=codec, down=down):
                run = f"learns-{exchange}-{codec}-{down}"
                server = self.server("--exchange", exchange, "--codec-down", down, *flags, run=run, name=f"server-{run}")
                workers = [self.worker(server, f"w{i}-{run}", "--exchange", exchange, "--codec", codec, model=self.model) for i in range(2)]
                self.assert_exit(DONE, *workers, server)
                self.assertGreater(self.summary(f"w0-{run}")["test_accuracy"], 0.95)
                found = tensors_of(self.checkpoints(run)[-1])
                self.assertEqual(sorted(name for name in found if "running" in name), ["norms.0.running_mean", "norms.0.running_var"])
                self.assertTrue(all(value > 0 for value in found["norms.0.running_var"]))
                self.assertGreater(max(map(abs, found["norms.0.running_mean"])), 0.1)

    def test_journal_brings_back_the_bits_of_a_job_that_was_not_killed(self):
        for way in (["--optimizer", "adam"], ["--clip-norm", "0.1"], ["--apply", "worker", "--optimizer", "momentum", "--clip-norm", "0.1"]):
            with self.subTest(way=way):
                run = "-".join(["journal", *way[1:]]).replace(".", "")
                flags = ["--min-workers", 2, "--run-id", "r", *way]
                server = self.server(*flags, "--journal.mode", "on", run=run, name=f"killed-{run}")
                workers = [self.worker(server, f"w{i}-{run}", model=self.model) for i in range(2)]
                server.wait_round(31)
                for process in [server, *workers]:
                    process.kill()
                resume = ["--journal.mode", "on", "--resume", "--rounds", "1", "--exit-when-finished"]
                again = self.launch_server("--optimizer", "sgd", "--lr", "0.05", *flags, *resume, run=run, name=f"again-{run}")
                rounds = again.wait_event("journal.replayed")["round"]
                self.assertGreater(rounds, 29)
                self.assert_exit(DONE, again)
                whole = self.server(*flags, "--rounds", rounds, "--exit-when-finished", run=f"whole-{run}", name=f"whole-{run}")
                self.assert_exit(DONE, *[self.worker(whole, f"v{i}-{run}", model=self.model) for i in range(2)], whole)
                self.assertEqual(self.bits(run), self.bits(f"whole-{run}"))

    def test_what_would_spoil_them_is_refused_by_name(self):
        server = self.server("--epochs", 1, "--policy", "asp")
        worker = self.worker(server, "w", model=self.model)
        self.assert_exit(USAGE, worker)
        self.assertIn("tensor norms.0.running_mean is a buffer", worker.text())
        self.assertIn("policy asp", worker.text())


class Program(ClientTest):
    def test_buffers_are_averaged_and_not_trained(self):
        for codec, down in ((None, "f32"), ("int8", "f32"), ("topk:0.1", "f32"), ("topk:0.1", "bf16"), ("bf16", "topk:0.1")):
            with self.subTest(codec=codec, down=down):
                self.train_once(codec, down, f"{codec}-{down}".replace(":", ""))

    def train_once(self, codec, down, run):
        flags = ["--exchange", "star", "--codec-down", down] if down != "f32" else []
        server = self.server("--rounds", 2, "--min-workers", 2, "--optimizer", "adam", "--lr", "0.5", "--exit-when-finished", *flags, run=run, name=run)
        tensors = [{"w": array.array("f", [1]), "n.running_mean": array.array("f", [0, 8]), "n.running_var": array.array("f", [1])} for _ in range(2)]

        def run(i):
            mine = tensors[i]
            with self.trainer(server, f"t{i}-{run}", mine, batch=2 + 4 * i, codec=codec) as trainer:
                for share in trainer:
                    self.assertEqual(len(share), 2 + 4 * i)
                    # What a forward pass does: half of the way to 4 and 0, or to 8 and 0.
                    mean, goal = mine["n.running_mean"], 4 + 4 * i
                    mean[0], mean[1] = (mean[0] + goal) / 2, mean[1] / 2
                    # As PyTorch has it: {name: tensor.grad for ...}
                    gradients = {"w": array.array("f", [0]), "n.running_mean": None}
                    if i == 1:  # given by itself
                        gradients["n.running_var"] = array.array("f", [0.5])
                    trainer.finish(gradients)

        self.at_once(run)
        # The goal's weighted mean is 7; the variance loses 3/4 of 0.5 a round.
        for one in tensors:
            self.assertEqual(list(one["w"]), [1])
            self.assertEqual(list(one["n.running_mean"]), [5.25, 2])
            self.assertEqual(list(one["n.running_var"]), [0.25])
        self.assertEqual(server.exit_status(), DONE)

    @unittest.skipUnless(importlib.util.find_spec("torch"), "no PyTorch here")
    def test_statistics_of_a_module_have_the_same_bits_with_a_codec(self):
        import torch

        def statistics(codec, down, run):
            server = self.server("--rounds", 3, "--min-workers", 2, "--exit-when-finished", "--exchange", "star", "--codec-down", down, "--apply", "worker", run=run, name=run)
            modules = [torch.nn.BatchNorm1d(4) for _ in range(2)]

            def work(i):
                with self.trainer(server, f"{run}{i}", modules[i], batch=3 + i, codec=codec) as trainer:
                    for share in trainer:
                        modules[i].zero_grad()
                        x = torch.arange(len(share) * 4.0).reshape(-1, 4) * share.round * (i + 1)
                        modules[i](x).pow(2).mean().backward()
                        trainer.finish()

            self.at_once(work)
            self.assertEqual(server.exit_status(), DONE)
            return [values.tolist() for module in modules for values in (module.running_mean, module.running_var)]

        exact = statistics(None, "f32", "exact")
        self.assertEqual(exact[:2], exact[2:])
        self.assertNotIn(0, exact[0][1:])
        self.assertEqual(statistics("topk:0.25", "f32", "up"), exact)
        self.assertEqual(statistics("topk:0.25", "topk:0.25", "both"), exact)

    def test_each_worker_may_have_its_own_beside_what_would_spoil_them(self):
        for flags, codec in ((["--codec-down", "int8"], "int8"), (["--policy", "asp"], "topk:0.5")):
            with self.subTest(flags=flags):
                run = flags[1]
                server = self.server("--rounds", 4, "--min-workers", 2, "--exit-when-finished", "--exchange", "star", *flags, run=run, name=run)
                tensors = [{"w": array.array("f", [1, 2]), "n.running_mean": array.array("f", [0])} for _ in range(2)]

                def work(i):
                    with self.trainer(server, f"{run}{i}", tensors[i], buffers="own", codec=codec) as trainer:
                        for share in trainer:
                            tensors[i]["n.running_mean"][0] = share.round * (i + 1)
                            trainer.finish({"w": array.array("f", [1, 1])})

                self.at_once(work)
                self.assertEqual(server.exit_status(), DONE)
                self.assertEqual(sorted(tensors_of(self.checkpoints(run)[-1])), ["w"])
                self.assertLess(tensors[0]["w"][0], 1)
                for i in range(2):
                    self.assertEqual(tensors[i]["n.running_mean"][0] % (i + 1), 0)
                self.assertGreater(tensors[0]["n.running_mean"][0] + tensors[1]["n.running_mean"][0], 0)
        self.assert_fails("invalid_argument", "not mean or own", self.trainer, server, "x", {"w": array.array("f", [1])}, buffers="none")

    def test_with_local_steps_they_are_trained_in_place(self):
        server = self.launch_server("--rounds", 1, "--min-workers", 2, "--local-steps", 2, "--exit-when-finished").wait_ready()
        tensors = [{"w": array.array("f", [1]), "n.running_mean": array.array("f", [0])} for _ in range(2)]

        def run(i):
            with self.trainer(server, f"t{i}", tensors[i]) as trainer:
                for share in trainer:
                    self.assertTrue(share.is_local)
                    tensors[i]["n.running_mean"][0] = 2 + 4 * i
                    trainer.finish()

        self.at_once(run)
        for one in tensors:  # not 0.7 * 1.9 of it
            self.assertEqual((list(one["w"]), list(one["n.running_mean"])), ([1], [4]))
        self.assertEqual(server.exit_status(), DONE)


if __name__ == "__main__":
    main()
