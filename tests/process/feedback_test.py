"""What error feedback has left to send, on disk: stops, kills and resumes have the bits of a run without. feedback_test.py BIN_DIR"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import DONE, USAGE, ClusterTest, main, wait_for

MODEL = "mlp:64-128-10"
CODEC = "topk:0.05,momentum=0.5,warmup=70"
EXCHANGES = ("star", "ring", "hierarchical")


class FeedbackOnDisk(ClusterTest):
    def begin(self, exchange, run, *arguments, rounds=0, codec=CODEC, tag=""):
        nodes = {"hierarchical": ("a", "a", "b")}.get(exchange, ("", ""))
        goal = ["--min-workers", len(nodes), "--rounds", rounds, "--exit-when-finished"]
        server = self.server("--exchange", exchange, *goal, *arguments, name=f"server-{run}{tag}", run=run)
        flags = ["--exchange", exchange, "--codec", codec, "--state-dir", self.folder / "state" / run]
        return server, [self.worker(server, f"w{i}-{run}", *flags, "--peer.node", node, model=MODEL) for i, node in enumerate(nodes)]

    def end(self, server, workers, run):
        """The model that all of them end with."""
        self.assert_exit(DONE, *workers, server)
        return (self.checkpoints(run)[-1] / "model.safetensors").read_bytes()

    def saved_rounds(self, run, worker):
        (folder,) = (self.folder / "state" / run).glob(f"*@{worker}")
        return {int(path.name.removeprefix("checkpoint-")) for path in folder.glob("checkpoint-*") if (path / "manifest.json").exists()}

    def test_stopped_and_resumed(self):
        for exchange in ("ring", "hierarchical"):
            for codec in (CODEC, "int8:feedback=on"):
                with self.subTest(exchange=exchange, codec=codec):
                    run = f"{exchange}-{codec[:4]}"
                    whole = self.end(*self.begin(exchange, f"{run}-whole", rounds=100, codec=codec), f"{run}-whole")
                    self.end(*self.begin(exchange, run, rounds=50, codec=codec), run)
                    for worker in (f"w0-{run}", f"w1-{run}"):
                        self.summary_file(worker).unlink()
                    server, workers = self.begin(exchange, run, "--resume", rounds=100, codec=codec, tag="-2")
                    self.assertEqual(self.end(server, workers, run), whole)
                    self.assertEqual(workers[0].events("feedback.restored")[0]["after_round"], 50)

    def newest_checkpoint(self, run):
        """The round after which the newest whole checkpoint is."""
        whole = [path for path in self.checkpoints(run) if (path / "manifest.json").exists()]
        return int(whole[-1].name.removeprefix("checkpoint-")) - 1 if whole else 0

    def kill_after(self, exchange, run, save, *arguments):
        """A cluster that is killed as a whole behind the checkpoint that `save` makes, and resumed: it has the bits of one that was not."""
        server, workers = self.begin(exchange, run, *arguments, rounds=1_000_000)
        server.wait_round(5)
        save(server)
        server.wait_more_rounds(3)
        self.assertEqual(server.post("/v1/job:pause")[0], 202)
        server.wait_cluster("a pause", lambda cluster: cluster["state"] == "paused")
        self.assertEqual(server.call("DELETE", "/v1/checkpoints/999999999")[0], 404)  # comes behind one that is being written
        saved = self.newest_checkpoint(run)
        wait_for(lambda: all(saved in self.saved_rounds(run, worker.name) for worker in workers), f"state after {saved} of every worker")
        for process in (*workers, server):
            process.kill()
        server, workers = self.begin(exchange, run, *arguments, "--resume", rounds=saved + 60, tag="-2")
        self.assertEqual(server.post("/v1/job:resume")[0], 202)  # the pause holds over the kill
        model = self.end(server, workers, run)
        for worker in workers:
            self.assertEqual([event["after_round"] for event in worker.events("feedback.restored")], [saved])
        whole = self.end(*self.begin(exchange, f"{run}-whole", rounds=saved + 60), f"{run}-whole")
        self.assertEqual(model, whole)

    def test_killed_after_a_checkpoint_that_was_asked_for(self):
        for exchange in EXCHANGES:
            with self.subTest(exchange=exchange):

                def save(server):
                    status, made = server.post("/v1/checkpoints")
                    self.assertEqual(status, 201, made)

                self.kill_after(exchange, f"asked-{exchange}", save)

    def test_killed_after_a_checkpoint_of_every_so_many_rounds(self):
        for exchange in ("ring", "hierarchical"):
            with self.subTest(exchange=exchange):
                run = f"every-{exchange}"

                def save(server, run=run):
                    wait_for(lambda: self.newest_checkpoint(run), "a checkpoint")

                self.kill_after(exchange, run, save, "--checkpoint.every-rounds", 400)

    def test_exchange_local_has_none(self):
        worker = self.worker("127.0.0.1:1", "w", "--exchange", "local", "--rounds", 1, "--state-dir", self.folder / "state")
        self.assert_status(worker, USAGE, "state_dir", "exchange local")


if __name__ == "__main__":
    main()
