"""Exchange sharded with the real program: workers that divide a model, without a server. sharded_test.py BIN_DIR"""

import array
import json
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import DONE, FAILED, HALTED, USAGE, ClusterTest, free_port, main

MODEL = "mlp:64-48-32-10"
TOKENS = "transformer:layers=2,width=16,heads=2,context=64,vocabulary=17,classes=10"


class Sharded(ClusterTest):
    def ranks(self, world, *arguments, run="", **settings):
        """The workers of a job, which find each other at a free port."""
        place = f"127.0.0.1:{free_port()}"
        flags = ["--exchange", "sharded", "--world", world, "--rendezvous", place, *arguments]
        return [self.worker("127.0.0.1:1", f"r{rank}{run}", *flags, "--rank", rank, **settings) for rank in range(world)]

    def values(self, file):
        """The tensors of a safetensors file by name."""
        data = file.read_bytes()
        length = int.from_bytes(data[:8], "little")
        out = {}
        for name, tensor in json.loads(data[8 : 8 + length]).items():
            if name != "__metadata__":
                begin, end = tensor["data_offsets"]
                out[name] = array.array("f", data[8 + length + begin : 8 + length + end])
        return out

    def assert_near(self, one, other, relative):
        self.assertEqual(one.keys(), other.keys())
        for name, values in one.items():
            difference = sum((x - y) ** 2 for x, y in zip(values, other[name])) ** 0.5
            self.assertLessEqual(difference, relative * (1e-3 + sum(x * x for x in values) ** 0.5), name)

    def train(self, world, sharding, *arguments, run, batch, model=MODEL, data="digits"):
        """A whole job; its summaries and its model."""
        file = self.folder / f"model-{run}.safetensors"
        flags = ["--sharding", sharding, "--data", data, "--save", file, *arguments]
        self.assert_exit(DONE, *self.ranks(world, *flags, run=run, batch=batch, model=model))
        return [self.summary(f"r{rank}{run}") for rank in range(world)], file


class Training(Sharded):
    def test_trains_as_one_worker_does(self):
        for model, data, rule in ((MODEL, "digits", ["sgd", "--lr", "0.1"]), (TOKENS, "digits-tokens", ["momentum", "--lr", "0.01"])):
            goal = ["--optimizer", *rule, "--clip-norm", "1", "--epochs", 2, "--seed", 3]
            folder = self.folder / f"local-{data}"
            alone = self.worker("127.0.0.1:1", f"alone-{data}", "--exchange", "local", "--data", data, "--checkpoint.dir", folder, *goal, model=model, batch=24)
            self.assert_exit(DONE, alone)
            should = self.summary(f"alone-{data}")
            expected = self.values(next(folder.glob("checkpoint-*/model.safetensors")))
            for world, sharding in ((3, "full"), (2, "grad"), (3, "none"), (4, "hybrid:2")):
                with self.subTest(model=model, sharding=sharding):
                    run = f"-{data}-{sharding}".replace(":", "")
                    summaries, file = self.train(world, sharding, *goal, run=run, batch=24 // world, model=model, data=data)
                    for is_ in summaries:
                        self.assertEqual((is_["rounds"], is_["samples"]), (should["rounds"], should["samples"]))
                        for key in ("loss", "test_loss"):
                            self.assertAlmostEqual(is_[key], should[key], delta=1e-4 * should[key])
                        self.assertEqual(is_["end"], "the goal is reached")
                    self.assert_near(self.values(file), expected, 1e-4)

    def test_has_the_same_bytes_in_every_run_and_full_needs_less_memory_than_none(self):
        flags = ["--optimizer", "adam", "--rounds", 20]
        one, first = self.train(3, "full", *flags, run="-1", batch=8)
        _, second = self.train(3, "full", *flags, run="-2", batch=8)
        self.assertEqual(first.read_bytes(), second.read_bytes())
        none, _ = self.train(3, "none", *flags, run="-none", batch=8)
        for of_full, of_none in zip(one, none):
            self.assertLess(of_full["optimizer_bytes"], 0.4 * of_none["optimizer_bytes"])


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

    def test_a_killed_rank_ends_the_others_who_name_it(self):
        workers = self.ranks(3, "--epochs", 1_000_000)
        self.wait_training(*workers)
        workers[1].kill()
        for rank in (0, 2):
            self.assert_status(workers[rank], FAILED, "rank 1")

    def test_a_loss_that_is_not_finite_halts_all(self):
        workers = self.ranks(2, "--optimizer", "sgd", "--lr", "1e30", "--rounds", 50)
        self.assert_exit(HALTED, *workers)
        self.assertIn("not finite", workers[0].text())

    def test_a_rank_that_does_not_come_is_named(self):
        place = f"127.0.0.1:{free_port()}"
        flags = ["--exchange", "sharded", "--world", 3, "--rendezvous", place, "--rounds", 1, "--join-timeout", "2s"]
        workers = [self.worker("127.0.0.1:1", f"r{rank}", *flags, "--rank", rank) for rank in (0, 1)]
        self.assert_status(workers[0], FAILED, "rank 2")
        self.assert_status(workers[1], USAGE, "rank 2")  # rank 0 refuses it


class Refusals(Sharded):
    def test_bad_settings_are_refused_with_what_to_change(self):
        goal = ["--rounds", 1]
        place = ["--rendezvous", "127.0.0.1:1"]
        cases = (
            ([*goal, *place], "--world"),
            ([*goal, *place, "--world", 1], "exchange local"),
            ([*goal, *place, "--world", 2, "--rank", 2], "0 to world - 1"),
            ([*goal, "--world", 2], "--rendezvous"),
            ([*place, "--world", 2], "--rounds"),
            ([*goal, *place, "--world", 4, "--sharding", "hybrid:3"], "hybrid:3"),
            ([*goal, *place, "--world", 2, "--sharding", "half"], "half"),
            ([*goal, *place, "--world", 2, "--devices", "cpu:0,cpu:1"], "cpu:0"),
            ([*goal, *place, "--world", 2, "--codec", "bf16"], "codec"),
            ([*goal, *place, "--world", 2, "--state-dir", self.folder], "state_dir"),
            ([*goal, *place, "--world", 2, "--model", "mlp:64-16-10,norm=batch"], "norm=none"),
            ([*goal, *place, "--world", 2, "--model", "mlp:64-1024-1024-10", "--memory-limit", "1MB"], "--batch"),
        )
        for arguments, text in cases:
            with self.subTest(arguments=arguments):
                worker = self.worker("127.0.0.1:1", f"w{len(self.processes)}", "--exchange", "sharded", *arguments)
                self.assert_status(worker, USAGE, text)


if __name__ == "__main__":
    main()
