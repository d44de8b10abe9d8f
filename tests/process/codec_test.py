"""Compressed gradients with the real programs. codec_test.py BIN_DIR"""

import signal

from cluster import DONE, USAGE, ClusterTest, main, wait_for

WIDE = "mlp:64-256-10"
CODECS = (
    "bf16",
    "f16",
    "int8",
    "int8:rounding=stochastic",
    "int8:feedback=on",
    "topk:0.05",
    "topk:0.05,values=int8",
    "topk:0.05,values=bf16,scope=global",
    "topk:0.05,momentum=0.9,clip=1,warmup=20",
)


class Codecs(ClusterTest):
    def train(self, run, codec, *arguments, rounds=150):
        """A whole job of two workers; its bytes on the wire and the model."""
        server = self.server("--min-workers", 2, "--rounds", rounds, "--exit-when-finished", *arguments, name=f"server-{run}", run=run)
        names = [f"w{i}-{run}" for i in range(2)]
        workers = [self.worker(server, name, "--codec", codec, model=WIDE) for name in names]
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
                self.assertLess(sent, dense * (0.55 if "f16" in codec else 0.3 if "int8" in codec else 0.25))
                self.assertEqual(self.train(f"{number}-b", codec)[1], model)

    def test_workers_may_differ_in_codec(self):
        server = self.server("--min-workers", 3, "--rounds", 100, "--exit-when-finished")
        workers = [self.worker(server, f"w{i}", "--codec", codec) for i, codec in enumerate(("f32", "int8", "topk:0.1"))]
        self.assert_exit(DONE, *workers, server)

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
        server.wait_worker("w1", "active", index=1)
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
        self.assertRegex(halted["error"], r"JIDOKA HALT: worker \d \(w\d\): the gradient of tensor layers")

    def test_not_finite_gradient_goes_in_when_told(self):
        server = self.server("--min-workers", 2, "--lr", 1e30, "--nonfinite", "propagate")
        workers = [self.worker(server, f"w{i}", "--codec", "topk:0.05") for i in range(2)]
        wait_for(lambda: server.cluster()["round"] > 10, "rounds")
        self.assertEqual(server.post("/v1/job:stop")[0], 202)
        self.assert_exit(DONE, server, *workers)


if __name__ == "__main__":
    main()
