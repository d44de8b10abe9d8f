"""Compressed gradients with the real programs. codec_test.py BIN_DIR"""

import json
import pathlib
import shutil
import signal
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import wire
from harness.cluster import DONE, USAGE, ClusterTest, main, wait_for

WIDE = "mlp:64-256-10"
CODECS = (
    "bf16",
    "f16",
    "int8",
    "int8:rounding=stochastic",
    "int8:feedback=on",
    "sign",
    "topk:0.05",
    "topk:0.05,values=int8",
    "topk:0.05,values=bf16,scope=global",
    "topk:0.05,momentum=0.9,clip=1,warmup=20",
)
# They draw numbers or compare all tensors; golden_test.py has the bits of others.
REPEATED = ("int8:rounding=stochastic", "topk:0.05,values=int8,scope=global", "topk:0.05,momentum=0.9,clip=1,warmup=20")
DOWN = ("bf16", "int8:rounding=stochastic", "int8:feedback=on", "sign", "topk:0.05", "topk:0.05,values=int8,scope=global")


class Codecs(ClusterTest):
    def train(self, run, codec, *arguments, rounds=150, worker=()):
        """A whole job of two workers; its bytes on the wire and the model."""
        server = self.server("--min-workers", 2, "--rounds", rounds, "--exit-when-finished", *arguments, name=f"server-{run}", run=run)
        names = [f"w{i}-{run}" for i in range(2)]
        workers = [self.worker(server, name, "--codec", codec, *worker, model=WIDE) for name in names]
        self.assert_exit(DONE, *workers, server)
        summaries = [self.summary(name) for name in names]
        self.assertEqual(len({summary["fingerprint"] for summary in summaries}), 1)
        self.assertGreater(summaries[0]["test_accuracy"], 0.95, codec)
        return summaries[1]["bytes_out"], (self.checkpoints(run)[-1] / "model.safetensors").read_bytes()

    def test_every_codec_trains_saves_bytes_and_repeats_its_bits(self):
        dense, _ = self.train("f32", "f32")
        for number, codec in enumerate(CODECS):
            with self.subTest(codec=codec):
                sent, model = self.train(f"{number}-a", codec)
                self.assertLess(sent, dense * (0.55 if "f16" in codec else 0.3 if "int8" in codec else 0.06 if codec == "sign" else 0.25))
                if codec in REPEATED:
                    self.assertEqual(self.train(f"{number}-b", codec)[1], model)

    def test_results_may_be_compressed_too(self):
        dense, _ = self.train("f32", "f32", "--apply", "worker")
        for number, codec in enumerate(DOWN):
            with self.subTest(codec_down=codec):
                flags = ["--codec-down", codec]
                sent, model = self.train(f"{number}-a", "topk:0.05", *flags)
                received = self.summary(f"w1-{number}-a")["bytes_in"]
                self.assertLess(sent, dense * 0.25)
                self.assertLess(received, dense * (0.6 if "bf16" == codec[:4] else 0.35 if "int8" in codec else 0.25))
                if codec in REPEATED:
                    self.assertEqual(self.train(f"{number}-b", "topk:0.05", *flags)[1], model)

    def test_metrics_and_summaries_tell_what_codecs_did(self):
        server = self.server("--min-workers", 2, "--rounds", 40, "--codec-down", "int8")
        workers = [self.worker(server, f"w{i}", "--codec", f"topk:{(0.05, 1)[i]}", model=WIDE) for i in range(2)]
        self.assert_exit(DONE, *workers)
        up, down = ({"codec": codec, "direction": way} for codec, way in (("topk", "up"), ("int8", "down")))
        for labels, name, ratio in ((up, "out", (14, 18)), (down, "in", (3.8, 4))):
            told = [self.summary(worker.name)["compression"] for worker in workers]
            for kind in ("raw", "encoded"):
                of_server = server.metric(f"centroid_server_codec_{kind}_bytes_total", **labels)
                self.assertEqual(of_server, sum(summary[f"{kind}_bytes_{name}"] for summary in told))
            self.assertTrue(ratio[0] < told[0][f"ratio_{name}"] < ratio[1], told)
            self.assertGreater(server.metric("centroid_server_codec_encode_seconds_total", **labels), 0)
            self.assertGreater(server.metric("centroid_server_codec_decode_seconds_total", **labels), 0)
        self.assertGreater(server.metric("centroid_server_codec_residual_norm", direction="up"), 0)
        self.assertEqual(server.metric("centroid_server_codec_residual_norm", direction="down"), 0)
        dense, chunks = (server.metric(f"centroid_server_codec_{kind}chunks_total", **up) for kind in ("dense_", ""))
        self.assertEqual(chunks, sum(summary["chunks"] for summary in told))
        self.assertEqual((dense, told[0]["dense_chunks"]), (40 * 4, 0))
        ended = workers[0].wait_event("worker.compressed")
        self.assertEqual((ended["codec"], ended["codec_down"]), ("topk:0.05", "int8"))
        self.assertGreater(ended["residual_norm"], 0)
        self.assertEqual(server.post("/v1/job:stop")[0], 202)
        self.assert_exit(DONE, server)

    def test_compressed_results_are_the_workers_to_apply(self):
        for arguments, texts in (
            (["--codec-down", "topk:0.01", "--apply", "server"], ["codec_down topk:0.01", "apply"]),
            (["--codec-down", "topk:0.01", "--exchange", "ring"], ["codec_down topk:0.01", "exchange ring"]),
            (["--codec-down", "topk:0.01,momentum=0.9"], ["momentum", "workers' codec"]),
            (["--codec-down", "f16:feedback=on"], ["bf16:feedback=on"]),
            (["--codec-down", "zip"], ["codec_down", "zip"]),
        ):
            with self.subTest(arguments):
                self.assert_status(self.launch_server(*arguments, name=f"server-{len(self.processes)}"), USAGE, *texts)

    def test_loss_of_a_worker_leaves_no_trace_in_what_the_server_left_out(self):
        server = self.server("--min-workers", 3, "--lease", 1500, "--codec-down", "topk:0.05")
        workers = [self.worker(server, f"w{i}", "--codec", "topk:0.05", model=WIDE) for i in range(3)]
        server.wait_round(10)
        workers[1].kill()
        server.wait_worker("w1", "dead")
        server.wait_more_rounds(5)
        late = self.worker(server, "w3", "--codec", "topk:0.05", model=WIDE)
        server.wait_worker("w3", "active")
        server.wait_more_rounds(5)
        self.assertEqual(server.post("/v1/job:stop")[0], 202)
        self.assert_exit(DONE, server, workers[0], workers[2], late)
        prints = {self.summary(name)["fingerprint"] for name in ("w0", "w2", "w3")}
        self.assertEqual(len(prints), 1)

    def test_a_resumed_server_continues_with_its_residual(self):
        flags = ["--codec-down", "topk:0.03,warmup=80", "--optimizer", "momentum"]
        _, whole = self.train("whole", "f32", *flags, rounds=120)
        self.train("half", "f32", *flags, rounds=60)
        for name in ("w0-half", "w1-half"):
            self.summary_file(name).unlink()
        _, resumed = self.train("half", "f32", *flags, "--resume", rounds=120)
        self.assertEqual(resumed, whole)
        self.assertIn(b"codec_down_residual/", (self.checkpoints("half")[-1] / "optimizer.safetensors").read_bytes())

    def test_norm_of_what_is_decoded_is_clipped_alike_by_workers_and_server(self):
        for codec_down, optimizer, bound in (("topk:0.05", "sgd", 2), ("topk:0.05", "momentum", 0.4), ("int8", "sgd", 0.4), ("bf16:feedback=on", "adam", 0.4)):
            with self.subTest(codec_down=codec_down, optimizer=optimizer):
                flags = ["--codec-down", codec_down, "--optimizer", optimizer, "--lr", 0.005 if optimizer == "adam" else 0.05]
                run = f"{codec_down[:4]}-{optimizer}"
                _, free = self.train(f"{run}-free", "f32", *flags)
                clipped = [*flags, "--clip-norm", bound]
                _, whole = self.train(f"{run}-whole", "f32", *clipped)
                self.assertNotEqual(whole, free)
                if optimizer == "momentum":
                    self.assertEqual(self.train(f"{run}-loose", "f32", *flags, "--clip-norm", 1e6)[1], free)
                self.train(f"{run}-half", "f32", *clipped, rounds=75)
                for name in (f"w0-{run}-half", f"w1-{run}-half"):
                    self.summary_file(name).unlink()
                _, resumed = self.train(f"{run}-half", "f32", *clipped, "--resume")  # from the server's copy
                self.assertEqual(resumed, whole)

    def test_a_resumed_cluster_continues_with_all_residuals(self):
        flags = ["--codec-down", "topk:0.03", "--optimizer", "sgd"]
        kept = ["--state-dir", self.folder / "state"]
        codec = "topk:0.05,momentum=0.5,warmup=70"
        _, whole = self.train("whole", codec, *flags, rounds=120)
        self.train("half", codec, *flags, rounds=60, worker=kept)
        _, resumed = self.train("half", codec, *flags, "--resume", rounds=120, worker=kept)
        self.assertEqual(resumed, whole)

    def stopped_and_started(self, spoil, *arguments):
        """A worker that leaves after round 40 or later and comes back to the same round; `spoil` gets its files in between."""
        server = self.server("--min-workers", 1, "--checkpoint.every-rounds", 20, *arguments)
        flags = ["--codec", "topk:0.02", "--state-dir", self.folder / "state"]
        worker = self.worker(server, "w0", *flags, model=WIDE)
        server.wait_round(45)
        worker.send(signal.SIGTERM)
        self.assert_exit(DONE, worker)
        (folder,) = (self.folder / "state").glob("*@w0")
        self.assertRegex(" ".join(path.name for path in folder.glob("checkpoint-*")), r"checkpoint-\d{10}[24680]0\b")
        spoil(folder)
        again = self.worker(server, "w0", *flags, model=WIDE)
        server.wait_more_rounds(5)
        self.assertEqual(server.post("/v1/job:stop")[0], 202)
        self.assert_exit(DONE, again, server)
        return again

    def test_a_returning_worker_has_its_residual(self):
        again = self.stopped_and_started(lambda folder: None)
        restored = again.events("feedback.restored")[0]
        self.assertEqual(restored["after_round"], restored["round"] - 1)
        self.assertEqual(again.events("feedback.reset"), [])

    def test_altered_state_is_refused_and_training_goes_on_from_zero(self):
        def alter(folder):
            path = max(folder.glob("checkpoint-*")) / "model.safetensors"
            data = bytearray(path.read_bytes())
            data[-5] ^= 1
            path.write_bytes(data)

        again = self.stopped_and_started(alter)
        self.assertIn("CRC-32C differs", again.events("feedback.reset")[0]["why"])
        self.assertEqual(again.events("feedback.restored"), [])

    def test_state_of_another_round_is_not_taken(self):
        def age(folder):
            (folder / "left").unlink()
            shutil.rmtree(max(folder.glob("checkpoint-*")))

        again = self.stopped_and_started(age)
        self.assertIn("no state after round", again.events("feedback.reset")[0]["why"])

    def test_worker_that_left_takes_its_state_once_also_later(self):
        server = self.server("--min-workers", 2)
        flags = ["--codec", "topk:0.02", "--state-dir", self.folder / "state"]
        workers = [self.worker(server, f"w{i}", *flags, model=WIDE) for i in range(2)]
        server.wait_round(10)
        workers[1].send(signal.SIGTERM)
        self.assert_exit(DONE, workers[1])
        server.wait_more_rounds(5)
        again = self.worker(server, "w1", *flags, model=WIDE)
        restored = again.wait_event("feedback.restored")
        self.assertLess(restored["after_round"], restored["round"] - 1)
        server.wait_more_rounds(3)
        again.kill()
        third = self.worker(server, "w1", *flags, model=WIDE)
        third.wait_event("feedback.reset")
        self.assertEqual(server.post("/v1/job:stop")[0], 202)
        self.assert_exit(DONE, workers[0], third, server)

    def test_resume_tells_when_the_residual_cannot_be_used(self):
        self.train("run", "f32", "--codec-down", "topk:0.03", rounds=60)
        server = self.server("--rounds", 70, "--resume", "--apply", "worker", name="server-2")
        self.assertIn("it is lost", server.wait_event("checkpoint.residual_mismatched")["why"])

    def results_beside(self, run, data, *bad_rounds):
        """What a second worker, whose own gradients are 0, gets while one sends everything with error feedback and nobody steps."""
        server = self.server("--min-workers", 2, "--rounds", 6, "--lr", 0, "--apply", "worker", "--nonfinite", "skip", name=f"server-{run}", run=run)
        self.worker(server, f"w0-{run}", "--codec", "topk:1")
        shapes = [("layers.0.weight", (16, 64)), ("layers.0.bias", (16,)), ("layers.1.weight", (10, 16)), ("layers.1.bias", (10,))]
        beside = wire.Client(f"w1-{run}", shapes, 16, int(data["train_samples"]), int(data["data_fingerprint"]))
        beside.model = "mlp:64-16-10,relu"
        beside.train(server.data, lambda _, chunk: bytes(4 * beside.elements(chunk)), bad_rounds)
        return {number: b"".join(chunks[i] for i in range(4)) for number, chunks in beside.results.items() if number not in bad_rounds}

    def test_a_skipped_round_returns_to_the_workers_residual(self):
        server = self.server("--rounds", 1, "--exit-when-finished", run="first", name="first")
        self.assert_exit(DONE, self.worker(server, "w"), server)
        data = json.loads((self.checkpoints("first")[-1] / "manifest.json").read_text())["extra"]
        whole, skipped = self.results_beside("a", data), self.results_beside("b", data, 3)
        self.assertEqual(sorted(skipped), [1, 2, 4, 5, 6])
        numbers = {number: struct.unpack(f"<{len(values) // 4}f", values) for number, values in whole.items()}
        both = struct.pack(f"<{len(numbers[3])}f", *map(sum, zip(numbers[3], numbers[4])))
        self.assertEqual(skipped.pop(4), both)
        for number, values in skipped.items():
            self.assertEqual(values, whole[number], number)

    def test_skipped_round_leaves_no_trace_in_what_the_server_has_left(self):
        server = self.server("--rounds", 4, "--codec-down", "topk:0.25", "--nonfinite", "skip")
        gradients = {1: (4, 3, 2, 1), 2: (9, 9, 9, 9), 3: (0, 0, 0, 0), 4: (0, 0, 0, 0)}
        client = wire.Client("w0", [("w", (4,))])
        client.train(server.data, lambda number, _: struct.pack("<4f", *gradients[number]), {2})
        sent = {number: struct.unpack("<f", chunks[0][-4:])[0] for number, chunks in client.results.items() if number != 2}
        self.assertEqual(sent, {1: 4, 3: 3, 4: 2})

    def test_workers_may_differ_in_codec(self):
        server = self.server("--min-workers", 3, "--rounds", 100, "--exit-when-finished")
        workers = [self.worker(server, f"w{i}", "--codec", codec) for i, codec in enumerate(("f32", "int8", "topk:0.1"))]
        self.assert_exit(DONE, *workers, server)

    def test_momentum_is_the_codecs_or_the_optimizers(self):
        for optimizer in ("nesterov", "adam", "yogi"):
            with self.subTest(optimizer):
                server = self.server("--optimizer", optimizer, name=f"server-{optimizer}", run=optimizer)
                worker = self.worker(server, f"w-{optimizer}", "--codec", "topk:0.05,momentum=0.9")
                self.assert_status(worker, USAGE, "topk:0.05,momentum=0.9", f"optimizer '{optimizer}'", "optimizer sgd")

    def test_wrong_spec_names_the_field(self):
        server = self.server()
        for number, (codec, text) in enumerate((("topk:2", "ratio"), ("topk:0.01,values=int4", "values"), ("zip", "zip"))):
            with self.subTest(codec=codec):
                self.assert_status(self.worker(server, f"w{number}", "--codec", codec), USAGE, text)

    def test_loss_of_a_worker_repeats_the_same_payloads(self):
        server = self.server("--min-workers", 3, "--lease", 1500)
        workers = [self.worker(server, f"w{i}", "--codec", "topk:0.05", model=WIDE) for i in range(3)]
        server.wait_round(10)
        workers[1].send(signal.SIGSTOP)
        server.wait_worker("w1", "dead")
        server.wait_more_rounds(5)
        workers[1].send(signal.SIGCONT)
        server.wait_worker("w1", "active")
        server.wait_more_rounds(5)
        self.assertEqual(server.post("/v1/job:stop")[0], 202)
        self.assert_exit(DONE, server, *workers)
        prints = {self.summary(f"w{i}")["fingerprint"] for i in range(3)}
        self.assertEqual(len(prints), 1)

    def test_not_finite_gradient_is_named(self):
        server = self.server("--min-workers", 2, "--lr", 1e30)
        for i in range(2):
            self.worker(server, f"w{i}", "--codec", "topk:0.05")
        halted = server.wait_event("job.halted")
        self.assertRegex(halted["error"], r"JIDOKA HALT: (worker \d \(w\d\): the gradient|the sum or result) of tensor layers")

    def test_not_finite_gradient_goes_in_when_told(self):
        server = self.server("--min-workers", 2, "--lr", 1e30, "--nonfinite", "propagate")
        workers = [self.worker(server, f"w{i}", "--codec", "topk:0.05") for i in range(2)]
        wait_for(lambda: server.cluster()["round"] > 10, "rounds")
        self.assertEqual(server.post("/v1/job:stop")[0], 202)
        self.assert_exit(DONE, server, *workers)


if __name__ == "__main__":
    main(at_a_time=2)
