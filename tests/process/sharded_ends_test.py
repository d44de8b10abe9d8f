"""How a job of exchange sharded ends: by signals, losses, and what is not finite. sharded_ends_test.py BIN_DIR"""

import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import DONE, FAILED, HALTED, Hold, free_port, main
from harness.sharded import Sharded


class Ends(Sharded):
    def wait_training(self, *workers):
        for worker in workers:
            worker.wait_event("epoch.ended")

    def test_a_signal_to_one_rank_stops_all_and_the_model_is_saved(self):
        file = self.folder / "model.safetensors"
        workers = self.ranks(3, "--epochs", 1_000_000, "--save", file)
        self.wait_training(*workers)
        workers[1].send(signal.SIGTERM)
        self.assert_exit(DONE, *workers)
        self.assertEqual({self.summary(f"r{rank}")["end"] for rank in range(3)}, {"stopped"})
        self.assertEqual(len({self.summary(f"r{rank}")["rounds"] for rank in range(3)}), 1)
        self.assertTrue(file.exists())

    def test_without_copies_a_killed_rank_ends_the_others_who_name_it(self):
        workers = self.ranks(3, "--epochs", 1_000_000, "--shard-replicas", 0)
        self.wait_training(*workers)
        workers[1].kill()
        for rank in (0, 2):
            self.assert_status(workers[rank], FAILED, "rank 1")

    def test_with_the_whole_model_on_each_rank_the_others_go_on(self):
        for world, flags in ((2, ["--sharding", "none"]), (4, ["--sharding", "hybrid:2", "--shard-replicas", 0])):
            with self.subTest(world=world, flags=flags):
                run = f"-{len(self.processes)}"
                hold = Hold(self, "sharded.stepped", name=f"hold{run}", count=5).close()
                workers = self.ranks(world, "--rounds", 20, *flags, run=run, environments={1: hold.environment})
                hold.wait_reached()
                workers[1].kill()
                self.assert_exit(DONE, *(worker for rank, worker in enumerate(workers) if rank != 1))
                self.assertEqual(workers[0].events("sharded.regrouped")[0]["from"], "memory")
                self.assertEqual(self.summary(f"r0{run}")["rounds"], 20)

    def test_where_the_model_cannot_be_saved_nothing_is_trained(self):
        there = self.folder / "model.safetensors"
        there.write_bytes(b"of another job")
        for path, why in ((there, "the file is there"), (self.folder / "missing" / "model.safetensors", "there is no folder")):
            with self.subTest(path=path.name):
                workers = self.ranks(2, "--rounds", 1, "--save", path, run=f"-{len(self.processes)}")
                for worker in workers:
                    self.assertNotEqual(worker.exit_status(), DONE)
                    self.assertIn(why, worker.text())
                    self.assertEqual(worker.events("sharded.started"), [])
        self.assertEqual(there.read_bytes(), b"of another job")

    def test_what_is_not_finite_is_neither_kept_nor_saved(self):
        """The loss of a step is that before it, so it is finite."""
        file, kept = self.folder / "model.safetensors", self.folder / "checkpoints"
        for flags, run in ((["--save", file], "-saves"), (["--checkpoint.dir", kept], "-keeps")):
            workers = self.ranks(2, *flags, "--optimizer", "sgd", "--lr", "1e39", "--rounds", 1, run=run)
            self.assertNotIn(workers[0].exit_status(), (DONE, None))
            self.assertIn("is not finite", workers[0].text())
        self.assertFalse(file.exists())
        self.assertEqual([path.name for path in kept.iterdir() if not path.name.startswith(".")], [])

    def test_a_loss_that_is_not_finite_halts_all(self):
        for world, flags in ((2, []), (4, []), (4, ["--sharding", "hybrid:2"]), (4, ["--parallel", "dp=2,pp=2"])):
            with self.subTest(world=world, flags=flags):
                run = f"-{len(self.processes)}"
                workers = self.ranks(world, *flags, "--optimizer", "sgd", "--lr", "1e30", "--rounds", 50, run=run)
                self.assert_exit(HALTED, *workers)
                self.assertEqual(len({self.summary(f"r{rank}{run}")["rounds"] for rank in range(world)}), 1)
        self.assertIn("not finite", workers[0].text())

    def test_a_rank_that_does_not_come_is_named(self):
        place = f"127.0.0.1:{free_port()}"
        flags = ["--exchange", "sharded", "--world", 3, "--rendezvous", place, "--rounds", 1]
        waits = {1: "60s", 0: "2s"}  # rank 1 calls already when rank 0 begins to wait, and hears from it
        workers = [self.worker("127.0.0.1:1", f"r{rank}", *flags, "--rank", rank, "--join-timeout", time) for rank, time in waits.items()]
        for worker in workers:
            self.assert_status(worker, FAILED, "rank 2")


if __name__ == "__main__":
    main(at_a_time=2)
