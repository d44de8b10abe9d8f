"""Rounds of local steps with the real programs: kills, resumes, slow workers, refusals. local_steps_test.py BIN_DIR"""

import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import DONE, USAGE, ClusterTest, Hold, main, wait_for

STEPS = ["--local-steps", "4", "--min-workers", "2"]
INNER = ["--inner.optimizer", "adamw", "--inner.lr", "0.002"]
MODEL = "mlp:64-16-10"


class LocalStepsTest(ClusterTest):
    def serve(self, *arguments, **places):
        return self.launch_server(*STEPS, *arguments, **places).wait_ready()

    def join(self, server, name, *arguments, environment=None):
        return self.worker(server, name, *INNER, *arguments, model=MODEL, environment=environment)

    def bits(self, run="run"):
        return (self.checkpoints(run)[-1] / "model.safetensors").read_bytes()


class Training(LocalStepsTest):
    def test_every_exchange_and_codec_learns_and_repeats(self):
        ways = {
            "star": ["--fragments", "2", "--overlap", "1"],
            "ring": ["--exchange", "ring", "--fragments", "2", "--overlap", "1"],
            "hierarchical": ["--exchange", "hierarchical", "--overlap", "1"],
            "average": ["--outer", "average", "--weight-by", "steps"],
        }
        for way, flags in ways.items():
            for codec in ("f32", "int8", "topk:0.1") if way == "star" else ("topk:0.1",):  # tests/component has them all
                with self.subTest(way=way, codec=codec):
                    prints = set()
                    for turn in ("a", "b"):
                        run = f"{way}-{codec.partition(':')[0]}-{turn}"
                        goal = ["--epochs", "20", "--exit-when-finished"]
                        server = self.serve(*flags, *goal, run=run, name=f"server-{run}")
                        exchange = flags[1] if flags[0] == "--exchange" else "star"
                        extra = ["--exchange", exchange, "--codec", codec]
                        names = [f"w{i}-{run}" for i in range(2)]
                        self.assert_exit(DONE, *[self.join(server, name, *extra) for name in names], server)
                        summaries = [self.summary(name) for name in names]
                        self.assertGreater(summaries[0]["test_accuracy"], 0.9)
                        self.assertEqual(sum(summary["samples"] for summary in summaries), 20 * 1600)
                        prints |= {summary["fingerprint"] for summary in summaries}
                    self.assertEqual(len(prints), 1, prints)


class Crash(LocalStepsTest):
    def check_resume(self, *flags, exchange="star"):
        """All of a job is killed in the middle of rounds; it goes on from its checkpoint to the bits of one that was not."""
        goal = ["--rounds", 240]
        worker = ["--exchange", exchange, "--codec", "topk:0.2"]
        common = [*flags, "--exchange", exchange, *goal]
        whole = self.serve(*common, "--exit-when-finished", run="whole", name="whole")
        self.assert_exit(DONE, *[self.join(whole, f"w{i}", *worker) for i in range(2)], whole)
        every = 100  # of the states of a worker the newest three stay: that of the checkpoint is one of them
        common += ["--checkpoint.every-rounds", every]
        # It dies with one checkpoint, at whatever round it begins the second.
        server = self.serve(*common, name="before", environment={"CENTROID_TEST_FAULT": "checkpoint.folder_made:2"})

        def start(server, turn):
            return [self.join(server, f"w{i}", *worker, "--state-dir", self.folder / f"state{i}") for i in range(2)]

        workers = start(server, 0)
        self.assertEqual(server.exit_status(), -signal.SIGKILL, server.text())
        for i, process in enumerate(workers):
            kept = f"state{i}/*/checkpoint-{every:012}/manifest.json"
            wait_for(lambda kept=kept: len(list(self.folder.glob(kept))) == 2, f"what {process.name} had after round {every}: what its codec had left, and what is its own")
            process.kill()
        again = self.serve(*common, "--resume", "--exit-when-finished", name="after")
        self.assert_exit(DONE, *start(again, 1), again)
        self.assertEqual(self.bits(), self.bits("whole"))

    def test_killed_job_ends_with_the_bits_of_one_that_was_not(self):
        self.check_resume()

    def test_killed_job_with_fragments_and_overlap_too(self):
        self.check_resume("--fragments", "2", "--overlap", "1")

    def test_killed_job_of_a_ring_too(self):
        self.check_resume("--fragments", "2", "--overlap", "1", exchange="ring")

    def test_journal_brings_the_rounds_of_fragments_back(self):
        for way in ([], ["--apply", "worker"], ["--codec-down", "topk:0.3"]):
            with self.subTest(way=way):
                run = "-".join(["journal", *way[1:]]).replace(":", "")
                flags = ["--fragments", "2", "--run-id", "r", *way]
                server = self.serve(*flags, "--journal.mode", "on", run=run, name=f"killed-{run}")
                workers = [self.join(server, f"w{i}-{run}") for i in range(2)]
                server.wait_round(31)
                for process in [server, *workers]:
                    process.kill()
                resume = ["--journal.mode", "on", "--resume", "--rounds", "1", "--exit-when-finished"]
                again = self.launch_server(*STEPS, *flags, *resume, run=run, name=f"again-{run}")
                rounds = again.wait_event("journal.replayed")["round"]
                self.assertGreater(rounds, 29)
                self.assert_exit(DONE, again)
                goal = ["--rounds", rounds, "--exit-when-finished"]
                whole = self.serve(*flags, *goal, run=f"whole-{run}", name=f"whole-{run}")
                self.assert_exit(DONE, *[self.join(whole, f"v{i}-{run}") for i in range(2)], whole)
                self.assertEqual(self.bits(run), self.bits(f"whole-{run}"))

    def test_worker_killed_in_the_middle_of_a_round_is_done_without(self):
        for exchange in ("star", "ring"):
            with self.subTest(exchange=exchange):
                run = f"kill-{exchange}"
                flags = ["--exchange", exchange, "--fragments", "2", "--overlap", "1", "--epochs", "1000000"]
                server = self.serve(*flags, "--min-workers", "3", run=run, name=f"server-{run}")
                workers = [self.join(server, f"{name}-{exchange}", "--exchange", exchange) for name in "abc"]
                server.wait_round(10)
                workers[2].kill()
                server.wait_worker(f"c-{exchange}", "dead")
                server.wait_cluster("150 epochs", lambda cluster: cluster["epoch"] >= 150)
                server.post("/v1/job:stop")
                self.assert_exit(DONE, *workers[:2], server)
                summaries = [self.summary(f"{name}-{exchange}") for name in "ab"]
                self.assertEqual(len({summary["fingerprint"] for summary in summaries}), 1)
                self.assertGreater(summaries[0]["test_accuracy"], 0.9)


class Slow(LocalStepsTest):
    def test_worker_that_stands_still_is_left_out_and_comes_back(self):
        flags = ["--policy", "quorum:2", "--fragments", "2", "--overlap", "1", "--lease", "60s"]
        server = self.serve(*flags, "--min-workers", "3")
        computes = Hold(self, "worker.share_taken", count=5).close()
        workers = [self.join(server, "w0"), self.join(server, "w1"), self.join(server, "w2", environment=computes.environment)]
        computes.wait_reached()
        workers[2].send(signal.SIGSTOP)
        server.wait_more_rounds(20)
        workers[2].send(signal.SIGCONT)
        computes.open()
        wait_for(lambda: server.cluster()["late_dropped"] > 0, "a late contribution")
        rounds = server.workers("w2")[-1]["rounds"]
        wait_for(lambda: server.workers("w2")[-1]["rounds"] > rounds + 5, "w2 in rounds again")
        server.post("/v1/job:stop")
        self.assert_exit(DONE, *workers)
        self.assertEqual(len({self.summary(name)["fingerprint"] for name in ("w0", "w1", "w2")}), 1)


class Refusals(LocalStepsTest):
    def test_settings_that_cannot_work_are_named(self):
        for flags, words in (
            (["--fragments", "3"], ["local_steps 4", "fragments 3"]),
            (["--overlap", "4"], ["overlap 4", "below"]),
            (["--optimizer", "adam"], ["outer", "optimizer"]),
            (["--local-steps", "1", "--overlap", "1"], ["set local_steps"]),
            (["--local-steps", "1", "--outer", "average"], ["set local_steps to 2 or more"]),
        ):
            with self.subTest(flags=flags):
                self.assert_status(self.launch_server(*STEPS, *flags, name="-".join(flags[:2]).strip("-")), USAGE, *words)

    def test_more_fragments_than_tensors_are_refused(self):
        server = self.launch_server("--local-steps", "8", "--fragments", "8").wait_ready()
        self.assert_status(self.join(server, "w0"), USAGE, "8 fragments of a model of 4 tensors")

    def test_checkpoint_of_other_fragments_is_refused(self):
        server = self.serve("--fragments", "2", "--rounds", "3", "--exit-when-finished")
        self.assert_exit(DONE, self.join(server, "w0"), self.join(server, "w1"), server)
        again = self.launch_server(*STEPS, "--rounds", "9", "--resume", name="again")
        self.assert_status(again, USAGE, "made with 2 fragments")


if __name__ == "__main__":
    main(at_a_time=2)
