"""Transformers with the real programs: language models on text, classifiers, resumes, refusals. models_test.py BIN_DIR"""

import math
import pathlib
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import ROOT
from harness.cluster import DONE, USAGE, ClusterTest, main

SHAPE = "transformer:layers=1,width=32,heads=2,context=32"
TEXT = f"text:{ROOT}/LICENSE"


class ModelsTest(ClusterTest):
    def serve(self, *arguments, **places):
        return self.launch_server("--optimizer", "adamw", "--lr", "0.01", "--min-workers", 2, *arguments, **places).wait_ready()

    def join(self, server, name, *arguments, model=SHAPE, data=TEXT, batch=8):
        return self.worker(server, name, "--data", data, *arguments, model=model, batch=batch)

    def bits(self, run="run"):
        return (self.checkpoints(run)[-1] / "model.safetensors").read_bytes()


class Language(ModelsTest):
    def test_two_workers_learn_to_predict_text(self):
        for exchange in ("star", "ring"):
            with self.subTest(exchange):
                goal = ["--epochs", 6, "--exit-when-finished", "--exchange", exchange]
                server = self.serve(*goal, run=exchange, name=f"server-{exchange}")
                names = [f"{exchange}-{i}" for i in range(2)]
                workers = [self.join(server, name, "--exchange", exchange) for name in names]
                self.assert_exit(DONE, *workers, server)
                measured = workers[0].events("worker.memory_measured")
                self.assertEqual(len(measured), 1)  # after the first round
                self.assertGreater(measured[0]["peak_bytes"], measured[0]["planned_bytes"] // 4)
                self.assertLess(measured[0]["peak_bytes"], measured[0]["limit_bytes"])
                self.assertEqual(measured[0]["load_ahead"], 512)
                summaries = [self.summary(name) for name in names]
                self.assertEqual(len({summary["fingerprint"] for summary in summaries}), 1)
                evaluated = server.events("model.evaluated")[-1]
                self.assertLess(evaluated["loss"], 2.8)  # a guess that knows nothing: ln 256 = 5.5
                # every token of the training part was predicted once an epoch
                text = (ROOT / "LICENSE").stat().st_size
                trained = sum(summary["samples"] for summary in summaries) / 6
                self.assertTrue(0.85 * text < trained < 0.95 * text, (trained, text))
                last = [s for s in summaries if abs(s["test_loss"] - evaluated["loss"]) < 1e-12]
                self.assertTrue(last, summaries)
                self.assertAlmostEqual(math.log(last[0]["test_perplexity"]), evaluated["loss"], 6)

    def test_killed_job_ends_with_the_bits_of_one_that_was_not(self):
        model = SHAPE + ",dropout=0.1,tied=yes,mlp=swiglu,norm=layer"
        goal = ["--rounds", 60]
        whole = self.serve(*goal, "--exit-when-finished", run="whole", name="whole")
        self.assert_exit(DONE, *[self.join(whole, f"w{i}", model=model) for i in range(2)], whole)
        # It dies with one checkpoint, at whatever round it begins the second.
        server = self.serve(*goal, "--checkpoint.every-rounds", 10, name="before", environment={"CENTROID_TEST_FAULT": "checkpoint.folder_made:2"})
        workers = [self.join(server, f"w{i}", model=model) for i in range(2)]
        self.assertEqual(server.exit_status(), -signal.SIGKILL, server.text())
        for worker in workers:
            worker.kill()
        again = self.serve(*goal, "--resume", "--exit-when-finished", name="after")
        self.assert_exit(DONE, *[self.join(again, f"w{i}", model=model) for i in range(2)], again)
        self.assertEqual(self.bits(), self.bits("whole"))

    def test_contributions_are_weighed_by_tokens(self):
        """Of gradients, which count every place of a sample alike, and of local steps, by what was judged."""
        for steps in (1, 4):
            with self.subTest(local_steps=steps):
                goal = ["--epochs", 3, "--exit-when-finished", "--weight-by", "tokens", "--min-workers", 2]
                goal += ["--local-steps", steps, "--outer", "average"] if steps > 1 else ["--optimizer", "adamw", "--lr", "0.01"]
                server = self.launch_server(*goal, run=f"run-{steps}", name=f"server-{steps}").wait_ready()
                inner = ["--inner.optimizer", "adamw", "--inner.lr", "0.01"] if steps > 1 else []
                workers = [self.join(server, f"w{i}-{steps}", *inner, batch=4 + 4 * i) for i in range(2)]
                self.assert_exit(DONE, *workers, server)
                self.assertLess(server.events("model.evaluated")[-1]["loss"], 4)  # a guess that knows nothing: 5.5

    def test_vocabulary_of_a_file(self):
        words = self.folder / "words"
        words.write_text("the\n the\nand\nor\nof\nLicense\n")
        server = self.serve("--rounds", 20, "--exit-when-finished")
        model = SHAPE + ",vocabulary=262"
        self.assert_exit(DONE, *[self.join(server, f"w{i}", "--data-vocabulary", words, model=model) for i in range(2)], server)


class Classifier(ModelsTest):
    def test_sequences_of_grey_levels_are_told_apart(self):
        model = "transformer:layers=1,width=32,heads=2,context=64,vocabulary=17,classes=10"
        server = self.serve("--epochs", 8, "--exit-when-finished", "--lr", 0.005)
        workers = [self.join(server, f"w{i}", model=model, data="digits-tokens", batch=16) for i in range(2)]
        self.assert_exit(DONE, *workers, server)
        self.assertGreater(server.events("model.evaluated")[-1]["accuracy"], 0.9)


class Adapters(ModelsTest):
    """A base that has learned one text is adapted to another."""

    SHAPE = SHAPE + ",tied=yes"
    LORA = SHAPE + ",lora=2,lora_alpha=8,lora_targets=q_proj+v_proj+up_proj+down_proj"
    OTHER = f"text:{ROOT}/docs/explanation/durability.md"

    def alone(self, name, *arguments, model, data=TEXT, lr=0.01):
        """A worker without a server; its summary."""
        alone = ["--exchange", "local", "--optimizer", "adamw", "--lr", lr, "--data", data]
        worker = self.worker("127.0.0.1:1", name, *alone, *arguments, model=model, batch=8)
        self.assert_exit(DONE, worker)
        return self.summary(name)

    def base(self, name="base", seed=1):
        """Weights of a model that has learned the first text."""
        folder = self.folder / name
        self.alone(name, "--epochs", 6, "--seed", seed, "--checkpoint.dir", folder, model=self.SHAPE)
        return next(folder.glob("checkpoint-*")) / "model.safetensors"

    def tune(self, name, model, *arguments):
        """Two workers on the other text; their summaries and the bytes of the checkpoint's model."""
        server = self.serve("--epochs", 6, "--exit-when-finished", run=name, name=f"server-{name}")
        workers = [self.join(server, f"{name}-{i}", *arguments, model=model, data=self.OTHER) for i in range(2)]
        self.assert_exit(DONE, *workers, server)
        loss = server.events("model.evaluated")[-1]["loss"]
        size = (self.checkpoints(name)[-1] / "model.safetensors").stat().st_size
        return loss, [self.summary(f"{name}-{i}") for i in range(2)], size

    def test_adapters_learn_another_text_for_few_bytes(self):
        base = ["--base-weights", self.base()]
        before = self.alone("before", "--rounds", 1, *base, model=self.SHAPE, data=self.OTHER, lr=0)["test_loss"]
        saved = self.folder / "adapters"
        loss, summaries, size = self.tune("lora", self.LORA, *base, "--adapter.save", saved)
        whole_loss, whole, whole_size = self.tune("whole", self.SHAPE, *base)
        sent, whole_sent = (sum(s["bytes_out"] for s in all_of) for all_of in (summaries, whole))
        print(f"loss {before:.3f} of the base, {loss:.3f} with adapters, {whole_loss:.3f} with all weights; "
              f"bytes sent {sent} of {whole_sent}, checkpoints {size} of {whole_size}")
        self.assertLess(loss, before - 0.2)
        self.assertLess(sent, 0.1 * whole_sent)
        self.assertLess(size, 0.1 * whole_size)
        again = self.alone("again", "--rounds", 1, *base, "--adapter.load", saved, model=self.LORA, data=self.OTHER, lr=0)
        self.assertAlmostEqual(again["test_loss"], loss, 6)
        merged = self.folder / "merged.safetensors"
        command = [pathlib.Path(self.programs) / "centroidctl", "checkpoints", "merge", base[1], saved, "--to", merged]
        subprocess.run(command, capture_output=True, timeout=60, check=True)
        alike = self.alone("merged", "--rounds", 1, "--base-weights", merged, model=self.SHAPE, data=self.OTHER, lr=0)
        self.assertAlmostEqual(alike["test_loss"], loss, 4)

    def test_workers_with_different_bases_do_not_train_together(self):
        first, second = self.base("first", 1), self.base("second", 2)
        server = self.serve("--rounds", 50)
        worker = self.join(server, "w0", "--base-weights", first, model=self.LORA)
        worker.wait_event("cluster.joined")
        other = self.join(server, "w1", "--base-weights", second, model=self.LORA)
        self.assert_status(other, USAGE, "its model is 'transformer:", ",base=")
        self.assertTrue(worker.is_running())


class Refusals(ModelsTest):
    def test_what_does_not_fit_is_named(self):
        cases = (
            (dict(model="mlp:64-10"), "data set text needs a model of tokens"),
            (dict(model=SHAPE + ",vocabulary=300"), "tokens out of 300 without classes"),
            (dict(model=SHAPE + ",classes=4"), "and 4 classes"),
            (dict(model=SHAPE + ",heads=3"), "field heads is there twice"),
            (dict(model="transformer:width=30"), "width 30 is no multiple of heads 4"),
            (dict(data="text:/none"), "/none does not exist: name files or folders"),
            (dict(model=SHAPE + ",lora=2"), "set a file with --base-weights"),
            (dict(more=["--adapter.save", "x"]), "adapter.load and adapter.save are for transformers with lora=RANK"),
            (dict(more=["--memory-limit", 100000]), "memory_limit allows 100000"),
        )
        for number, (settings, words) in enumerate(cases):
            with self.subTest(words):
                more = settings.pop("more", [])
                self.assert_status(self.join("127.0.0.1:1", f"w{number}", *more, **settings), USAGE, words)


if __name__ == "__main__":
    main()
