"""Exchange sharded with the real program: workers that divide a model, without a server. sharded_test.py BIN_DIR"""

import json
import pathlib
import re
import shutil
import signal
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import DONE, FAILED, USAGE, Hold, free_port, main, wait_for
from harness.ctl import CtlTest
from harness.sharded import MODEL, Sharded

TOKENS = "transformer:layers=2,width=16,heads=2,context=64,vocabulary=17,classes=10"


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
        flags = ["--optimizer", "adam", "--rounds", 20, "--shard-replicas", 0]
        one, first = self.train(3, "full", *flags, run="-1", batch=8)
        _, second = self.train(3, "full", *flags, run="-2", batch=8)
        self.assertEqual(first.read_bytes(), second.read_bytes())
        none, _ = self.train(3, "none", *flags, run="-none", batch=8)
        for of_full, of_none in zip(one, none):
            self.assertLess(of_full["optimizer_bytes"], 0.4 * of_none["optimizer_bytes"])


    def test_codecs_send_fewer_bytes_and_learn_as_float32_does(self):
        goal = ["--optimizer", "adam", "--lr", "0.01", "--rounds", 60, "--shard-replicas", 0]
        wide = "mlp:64-256-256-10"
        should, exact = self.train(3, "full", *goal, run="-f32", batch=24, model=wide)
        for sharding, codec, down, share in (
            ("full", "bf16", "bf16", 0.5),
            ("grad", "bf16", "bf16", 0.5),
            ("full", "int8", "int8", 0.26),
            ("none", "int8", "f32", 0.26),
        ):
            with self.subTest(sharding=sharding, codec=codec):
                run, codecs = f"-{sharding}-{codec}", ["--codec", codec, "--codec-down", down]
                sent = should if sharding == "full" else self.train(3, sharding, *goal, run=run + "-f32", batch=24, model=wide)[0]
                summaries, file = self.train(3, sharding, *goal, *codecs, run=run, batch=24, model=wide)
                for is_, of_f32 in zip(summaries, sent):
                    self.assertEqual((is_["codec"], is_["codec_down"]), (codec, down))
                    self.assertLess(is_["test_loss"], should[0]["test_loss"] + 0.1)
                    self.assertGreater(is_["test_accuracy"], 0.9)
                    # The initial values are sent in f32, and the ends of steps.
                    self.assertLess(is_["bytes_out"], (share + 0.03) * of_f32["bytes_out"])
                # The model is saved as the shards have it.
                bits = [value for values in self.values(file).values() for value in values]
                self.assertGreater(sum(struct.pack("<f", value)[:2] != b"\0\0" for value in bits), 0.9 * len(bits))

    def test_what_cannot_be_encoded_so_is_refused_by_name(self):
        flags = ["--exchange", "sharded", "--world", 2, "--rank", 0, "--rendezvous", "127.0.0.1:1", "--rounds", 1]
        for number, (arguments, text) in enumerate(
            (
                (["--codec", "topk:0.01"], "codec is f32, bf16 or int8 without options, not topk:0.01"),
                (["--codec-down", "sign"], "codec_down is f32, bf16 or int8 without options, not sign"),
                (["--sharding", "none", "--codec-down", "bf16"], "sharding none sends no parameters"),
                (["--parallel", "tp=2", "--codec", "int8", "--micro-batches", "1"], "tp has no codec int8"),
                (["--exchange", "star", "--codec-down", "bf16"], "codec_down of a worker is for exchange sharded"),
            )
        ):
            self.assert_status(self.worker("127.0.0.1:1", f"refused{number}", *flags, *arguments, "--data", "digits-tokens", model=TOKENS), USAGE, text)

    def test_ranks_with_other_settings_refuse_the_job_by_name(self):
        for parallel in ("dp=2", "pp=2"):
            place = f"127.0.0.1:{free_port()}"
            flags = ["--exchange", "sharded", "--world", 2, "--rendezvous", place, "--rounds", 1, "--parallel", parallel]
            workers = [
                self.worker("127.0.0.1:1", f"r{rank}-{parallel}", *flags, "--rank", rank, "--codec-down", codec)
                for rank, codec in enumerate(("f32", "bf16"))
            ]
            for worker in workers:
                self.assert_status(worker, USAGE, "rank 1: --codec-down is bf16, and f32 in the job")


class Checkpoints(Sharded):
    def setUp(self):
        self.place = self.folder / "checkpoints"
        self.flags = ["--optimizer", "adam", "--checkpoint.dir", self.place]

    def written(self):
        """Steps of the checkpoints on disk, oldest first."""
        return sorted(int(path.name.split("-")[1]) - 1 for path in self.place.glob("checkpoint-*"))

    def assert_refused(self, workers, *texts):
        for worker in workers:
            self.assert_status(worker, USAGE, *texts)

    def test_killed_ranks_are_resumed_by_fewer_as_if_nothing_had_been(self):
        workers = self.ranks(4, *self.flags, "--checkpoint.every-rounds", 7, "--epochs", 1_000_000, run="-killed", batch=10)
        wait_for(lambda: len(self.written()) >= 2, "two checkpoints")
        for worker in workers:
            worker.kill()
        step = self.written()[-1]
        self.assertEqual(step % 7, 0)
        resume = [*self.flags, "--resume", "--rounds", step + 90]
        after, model = self.train(3, "full", *resume, run="-after", batch=10, model="mlp:64-16-10")
        shutil.rmtree(self.place)
        self.assert_exit(DONE, *self.ranks(4, *self.flags, "--rounds", step, run="-undisturbed", batch=10))
        self.assertEqual(self.written(), [step])
        should, expected = self.train(3, "grad", *resume, run="-resumed", batch=10, model="mlp:64-16-10")
        for key in ("loss", "accuracy", "test_loss", "rounds", "samples"):
            self.assertEqual({one[key] for one in after}, {should[0][key]}, key)
        self.assertEqual(should[0]["rounds"], step + 90)
        self.assertEqual(model.read_bytes(), expected.read_bytes())
        self.assertEqual(self.written(), [step, step + 90])

    def test_a_stopped_job_writes_a_checkpoint_and_only_the_newest_are_kept(self):
        workers = self.ranks(3, *self.flags, "--checkpoint.every-rounds", 5, "--checkpoint.keep", 2, "--epochs", 1_000_000)
        workers[0].wait_event("checkpoint.written", version=31)
        workers[2].send(signal.SIGTERM)
        self.assert_exit(DONE, *workers)
        self.assertEqual(self.written()[-1], self.summary("r0")["rounds"])
        self.assertEqual(len(self.written()), 2)

    def test_the_others_write_the_last_checkpoint_without_a_rank_that_dies_in_it(self):
        hold = Hold(self, "checkpoint.file_written").close()
        workers = self.ranks(3, "--rounds", 5, "--checkpoint.dir", self.folder / "checkpoints", environments={1: hold.environment})
        hold.wait_reached()
        workers[1].kill()
        self.assert_exit(DONE, workers[0], workers[2])
        self.assertEqual(workers[0].wait_event("checkpoint.written")["version"], 6)

    def test_a_job_that_stops_does_not_go_on_without_a_rank_that_dies_then(self):
        hold = Hold(self, "checkpoint.file_written").close()
        workers = self.ranks(3, "--epochs", 1_000_000, "--checkpoint.dir", self.folder / "checkpoints", environments={1: hold.environment})
        workers[1].wait_event("epoch.ended")
        workers[1].send(signal.SIGTERM)
        hold.wait_reached()
        workers[1].kill()
        self.assert_exit(DONE, workers[0], workers[2])
        self.assertEqual({self.summary(f"r{rank}")["end"] for rank in (0, 2)}, {"stopped"})

    def test_a_last_checkpoint_that_cannot_be_written_is_a_failure(self):
        folder = self.folder / "checkpoints"
        hold = Hold(self, "sharded.stepped", count=5).close()
        workers = self.ranks(2, "--rounds", 5, "--checkpoint.dir", folder, environments={0: hold.environment})
        hold.wait_reached()
        shutil.rmtree(folder)
        folder.write_text("no folder")
        hold.open()
        for worker in workers:
            self.assertNotEqual(worker.exit_status(), DONE)
            self.assertIn("the last checkpoint was not written", worker.text())

    def test_without_a_checkpoint_resume_begins_the_job(self):
        workers = self.ranks(2, *self.flags, "--resume", "--rounds", 3)
        self.assert_exit(DONE, *workers)
        workers[1].wait_event("checkpoint.none_found", dir=self.place)
        self.assertEqual(self.written(), [3])

    def test_what_cannot_be_restored_is_refused_before_training(self):
        self.assert_exit(DONE, *self.ranks(2, *self.flags, "--rounds", 3))
        resume = [*self.flags, "--resume", "--rounds", 5]
        self.assert_refused(self.ranks(2, *self.flags, "--rounds", 5, run="-new"), "--resume")
        self.assert_refused(self.ranks(3, *resume, run="-model", model="mlp:64-17-10"), "another model", "[17, 64]")
        self.assert_refused(self.ranks(2, *resume, "--optimizer", "sgd", run="-rule"), "'adam'", "'sgd'")
        self.assert_refused(self.ranks(2, *resume, "--seed", 2, run="-seed"), "--seed 1")
        next(self.place.glob("checkpoint-*/model-00002-*")).unlink()
        self.assert_refused(self.ranks(3, *resume, run="-part"), "no checkpoint is sound", "model-00002")

    def test_a_folder_of_one_rank_only_is_refused(self):
        rendezvous = f"127.0.0.1:{free_port()}"
        flags = ["--exchange", "sharded", "--world", 2, "--rendezvous", rendezvous, "--rounds", 1]
        (self.folder / "other").mkdir()
        places = (self.place, self.folder / "other")
        workers = [self.worker("127.0.0.1:1", f"r{rank}", *flags, "--rank", rank, "--checkpoint.dir", place) for rank, place in enumerate(places)]
        self.assert_refused(workers, "every rank needs the same folder")
        self.assertEqual([*self.place.iterdir(), *places[1].iterdir()], [])


class Losses(Sharded):
    """Ranks are killed at a step that is certain, and the others go on."""

    RULE = ("--optimizer", "adam", "--clip-norm", "1")

    def assert_as_replayed(self, workers, file, step, before, sharding, run, more=()):
        """The bytes of a job that was stopped after this step with all ranks, and resumed with as many as are left."""
        flags = [*self.RULE, *more, "--checkpoint.dir", self.folder / f"replay{run}", "--sharding", sharding]
        self.assert_exit(DONE, *self.ranks(before, *flags, "--rounds", step, run=f"{run}-1"))
        replayed = self.folder / f"replayed{run}.safetensors"
        later = "full" if sharding.startswith("hybrid") else sharding
        flags[-1] = later
        self.assert_exit(DONE, *self.ranks(len(workers), *flags, "--resume", "--rounds", 40, "--save", replayed, run=f"{run}-2"))
        self.assertEqual(file.read_bytes(), replayed.read_bytes())
        should = self.summary(f"r0{run}-2")
        for worker in workers:
            is_ = self.summary(worker.name)
            for key in ("loss", "test_loss", "rounds", "samples", "world"):
                self.assertEqual(is_[key], should[key], key)
            self.assertEqual(is_["rounds"], 40)

    def test_after_the_loss_of_a_rank_the_others_go_on_from_the_step_that_was_made(self):
        bf16, int8 = ("--codec", "bf16", "--codec-down", "bf16"), ("--codec", "int8", "--codec-down", "int8")
        cases = (
            ("full", 2, "sharded.stepped", 10, ()),
            ("grad", 0, "sharded.computed", 9, ()),
            ("hybrid:2", 3, "sharded.stepped", 10, ()),
            ("full", 2, "sharded.stepped", 10, bf16),
            ("grad", 0, "sharded.computed", 9, int8),
            ("hybrid:2", 3, "sharded.stepped", 10, bf16),
        )
        for sharding, victim, point, step, codecs in cases:
            with self.subTest(sharding=sharding, codecs=codecs):
                run = f"-{sharding}{''.join(codecs[1:2])}".replace(":", "")
                file = self.folder / f"model{run}.safetensors"
                flags = [*self.RULE, *codecs, "--sharding", sharding, "--rounds", 40, "--save", file]
                workers = self.ranks(4, *flags, run=run, environments={victim: {"CENTROID_TEST_FAULT": f"{point}:10"}})
                self.assert_status(workers.pop(victim), -signal.SIGKILL)
                self.assert_exit(DONE, *workers)
                for worker in workers:
                    worker.wait_event("sharded.rank_lost", error=f"rank {victim}")
                    told = worker.wait_event("sharded.regrouped", lost=str(victim), world=3, step=step)
                    self.assertEqual(told["from"], "memory")
                self.assert_as_replayed(workers, file, step, 4, sharding, run, codecs)

    def lose_two(self, *victims, arguments, run):
        """The two ranks that are left of four, when these were killed in one step: the tenth."""
        holds = {rank: Hold(self, "sharded.stepped", f"hold{run}-{rank}", 10).close() for rank in victims}
        workers = self.ranks(4, *self.RULE, "--rounds", 40, *arguments, run=run, environments={rank: hold.environment for rank, hold in holds.items()})
        for hold in holds.values():
            hold.wait_reached()
        if "--checkpoint.dir" in arguments:
            workers[0].wait_event("checkpoint.written", version=9)
        for rank in victims:
            workers[rank].kill()
        return [worker for rank, worker in enumerate(workers) if rank not in victims]

    def test_a_rank_that_dies_while_the_others_take_over_is_one_more_loss(self):
        file = self.folder / "model.safetensors"
        flags = [*self.RULE, "--rounds", 40, "--save", file, "--checkpoint.dir", self.folder / "checkpoints", "--checkpoint.every-rounds", 4]
        faults = {1: "sharded.stepped:10", 3: "sharded.grouped:1"}
        workers = self.ranks(5, *flags, environments={rank: {"CENTROID_TEST_FAULT": point} for rank, point in faults.items()})
        for rank in (3, 1):
            self.assert_status(workers.pop(rank), -signal.SIGKILL)
        self.assert_exit(DONE, *workers)
        for worker in workers:
            self.assertEqual(worker.wait_event("sharded.regrouped", lost="1, 3", world=3, step=10)["from"], "memory")
        self.assert_as_replayed(workers, file, 10, 5, "full", "")

    def test_after_the_loss_of_partners_the_others_go_on_from_the_checkpoint(self):
        file = self.folder / "model.safetensors"
        arguments = ["--checkpoint.dir", self.folder / "checkpoints", "--checkpoint.every-rounds", 4, "--save", file]
        workers = self.lose_two(1, 2, arguments=arguments, run="-partners")
        self.assert_exit(DONE, *workers)
        for worker in workers:
            told = worker.wait_event("sharded.regrouped", lost="1, 2", world=2, step=8)
            self.assertEqual(told["from"], "checkpoint")
        self.assert_as_replayed(workers, file, 8, 4, "full", "-partners")

    def test_without_a_checkpoint_the_loss_of_partners_ends_the_job(self):
        for worker in self.lose_two(1, 2, arguments=[], run="-none"):
            self.assert_status(worker, FAILED, "no rank has shard 1", "--checkpoint.dir")

    def test_two_that_are_no_partners_are_lost_without_a_checkpoint(self):
        file = self.folder / "model.safetensors"
        workers = self.lose_two(1, 3, arguments=["--save", file], run="-others")
        self.assert_exit(DONE, *workers)
        for worker in workers:
            self.assertEqual(worker.wait_event("sharded.regrouped", lost="1, 3", step=10)["from"], "memory")
        self.assert_as_replayed(workers, file, 10, 4, "full", "-others")

    def test_without_copies_the_others_go_on_from_the_checkpoint(self):
        flags = [*self.RULE, "--rounds", 40, "--checkpoint.dir", self.folder / "checkpoints", "--checkpoint.every-rounds", 4]
        hold = Hold(self, "sharded.stepped", count=10).close()
        workers = self.ranks(2, *flags, environments={0: hold.environment})
        hold.wait_reached()
        workers[0].wait_event("checkpoint.written", version=9)
        workers[0].kill()
        self.assert_exit(DONE, workers[1])
        self.assertEqual(workers[1].wait_event("sharded.regrouped", lost="0", world=1, step=8)["from"], "checkpoint")
        self.assertEqual(self.summary("r1")["rounds"], 40)


class Returns(Sharded):
    """Workers are started again after a kill, or come later, and the others let them join between two steps."""

    RULE = ("--optimizer", "adam", "--clip-norm", "1")
    STEPS = 60

    def start(self, world, *arguments, name, place, rank, environment=None, **settings):
        flags = ["--exchange", "sharded", "--world", world, "--rendezvous", place, "--rank", rank, *arguments]
        return self.worker("127.0.0.1:1", name, *flags, environment=environment, **settings)

    def assert_as_replayed(self, workers, file, sharding, history, run):
        """The bytes of jobs that are stopped and resumed with as many ranks as this one had. `history`: (ranks, step at which others came or went)."""
        flags = [*self.RULE, "--checkpoint.dir", self.folder / f"replay{run}"]
        replayed = self.folder / f"replayed{run}.safetensors"
        for number, (world, step) in enumerate([*history, (len(workers), self.STEPS)]):
            way = sharding if not sharding.startswith("hybrid") or world % 2 == 0 else "full"
            end = ["--save", replayed] if step == self.STEPS else []
            resume = ["--resume"] if number else []
            self.assert_exit(DONE, *self.ranks(world, *flags, "--sharding", way, "--rounds", step, *resume, *end, run=f"{run}-{number}"))
        self.assertEqual(file.read_bytes(), replayed.read_bytes())
        should = self.summary(f"r0{run}-{len(history)}")
        for worker in workers:
            is_ = self.summary(worker.name)
            for key in ("loss", "test_loss", "rounds", "samples", "world"):
                self.assertEqual(is_[key], should[key], key)

    def test_a_killed_worker_that_is_started_again_joins_and_the_bits_are_those_of_the_history(self):
        for sharding, victim in (("full", 2), ("grad", 0), ("hybrid:2", 3)):
            with self.subTest(sharding=sharding):
                run = f"-{sharding}".replace(":", "")
                place, file = f"127.0.0.1:{free_port()}", self.folder / f"model{run}.safetensors"
                flags = [*self.RULE, "--sharding", sharding, "--rounds", self.STEPS, "--save", file]
                # All stand still at a step until the worker is back: a rank that lives stops there.
                hold = Hold(self, "sharded.stepped", f"hold{run}", 30).close()
                environments = {victim: {"CENTROID_TEST_FAULT": "sharded.stepped:10"}, (victim + 1) % 4: hold.environment}
                workers = [self.start(4, *flags, name=f"r{rank}{run}", place=place, rank=rank, environment=environments.get(rank)) for rank in range(4)]
                self.assert_status(workers[victim], -signal.SIGKILL)
                hold.wait_reached()
                back = self.start(4, *flags, name=f"back{run}", place=place, rank=victim)
                others = [worker for rank, worker in enumerate(workers) if rank != victim]
                others[0].wait_event("sharded.newcomer_came")
                hold.open()
                self.assert_exit(DONE, *others, back)
                lost = [one.wait_event("sharded.regrouped", lost=str(victim), world=3)["step"] for one in others]
                came = [one.wait_event("sharded.regrouped", joined="4", world=4)["step"] for one in others]
                self.assertEqual({*lost}, {10})
                self.assertEqual({*came, back.wait_event("sharded.joined", world=4)["step"]}, {came[0]})
                self.assertGreaterEqual(came[0], 30)
                self.assert_as_replayed([*others, back], file, sharding, [(4, 10), (3, came[0])], run)

    def held(self, world, *arguments, run, step=10):
        """A job whose last rank stands still at this step."""
        place, hold = f"127.0.0.1:{free_port()}", Hold(self, "sharded.stepped", f"hold{run}", step).close()
        flags = [*self.RULE, "--rounds", self.STEPS, *arguments]
        workers = [self.start(world, *flags, name=f"r{rank}{run}", place=place, rank=rank, environment=hold.environment if rank + 1 == world else None) for rank in range(world)]
        hold.wait_reached()
        return workers, hold, place, flags

    def test_one_more_worker_joins_than_the_job_began_with(self):
        file = self.folder / "model.safetensors"
        workers, hold, place, flags = self.held(2, "--save", file, run="-more")
        more = self.start(3, *flags, name="more", place=place, rank=2)
        workers[0].wait_event("sharded.newcomer_came")
        hold.open()
        self.assert_exit(DONE, *workers, more)
        changes = [one.wait_event("sharded.regrouped") for one in workers]
        self.assertEqual({(one["lost"], one["joined"], one["world"]) for one in changes}, {("", "2", 3)})
        came = [one["step"] for one in changes]
        self.assertEqual({one.wait_event("sharded.regrouped")["from"] for one in workers}, {"memory"})
        self.assert_as_replayed([*workers, more], file, "full", [(2, came[0])], "-more")

    def test_a_worker_with_other_settings_is_refused_and_the_job_does_not_notice(self):
        workers, hold, place, flags = self.held(2, run="-refused")
        for arguments, settings, text in (
            (["--optimizer", "sgd"], {}, "--optimizer is sgd, and adam in the job"),
            ([], {"batch": 8}, "--batch is 8, and 16 in the job"),
            (["--codec", "bf16"], {}, "--codec is bf16, and f32 in the job"),
            ([], {"model": "mlp:64-17-10"}, "--model is mlp:64-17-10,relu, and mlp:64-16-10,relu in the job"),
        ):
            other = self.start(2, *flags, *arguments, name=f"other{len(self.processes)}", place=place, rank=1, **settings)
            self.assert_status(other, USAGE, text)
        stranger = self.start(2, *flags, "--token", "a guess", name="stranger", place=place, rank=1)
        self.assert_status(stranger, USAGE, "the token is refused")
        hold.open()
        self.assert_exit(DONE, *workers)
        for worker in workers:
            self.assertEqual(worker.events("sharded.regrouped"), [])
            self.assertEqual(self.summary(worker.name)["rounds"], self.STEPS)

    def test_a_worker_for_which_another_has_no_memory_is_refused(self):
        """From 3 ranks on each one has a copy of another shard too."""
        needs = {}
        for world in (2, 3):
            flags = ["--rounds", self.STEPS, *self.RULE, "--memory-limit", 1]
            asked = self.start(world, *flags, name=f"needs{world}", place="127.0.0.1:1", rank=0)
            self.assert_status(asked, USAGE)
            needs[world] = int(re.search(r"this rank needs (\d+) bytes", asked.text())[1])
        self.assertGreater(needs[3], needs[2])
        # Enough for its part, and not for both until all have theirs.
        workers, hold, place, flags = self.held(2, "--memory-limit", needs[3], run="-full")
        more = self.start(2, *flags, "--memory-limit", "1GB", name="more", place=place, rank=1)
        workers[0].wait_event("sharded.newcomer_came")
        hold.open()
        self.assert_status(more, USAGE, "with one more worker rank 0: this rank needs")
        self.assert_exit(DONE, *workers)
        for worker in workers:
            refused = worker.wait_event("sharded.newcomers_refused")["error"]
            self.assertGreater(int(re.search(r"needs (\d+) bytes", refused)[1]), needs[3])
            self.assertEqual(worker.events("sharded.regrouped"), [])

    def test_a_worker_that_dies_while_it_joins_is_one_more_loss(self):
        file = self.folder / "model.safetensors"
        workers, hold, place, flags = self.held(3, "--save", file, run="-dies")
        fault = {"CENTROID_TEST_FAULT": "sharded.divided:1"}  # it has its part, and the others do not know
        more = self.start(3, *flags, name="more", place=place, rank=1, environment=fault)
        workers[0].wait_event("sharded.newcomer_came")
        hold.open()
        self.assert_status(more, -signal.SIGKILL)
        self.assert_exit(DONE, *workers)
        for worker in workers:
            changes = [(one["lost"], one["joined"], one["world"]) for one in worker.events("sharded.regrouped")]
            self.assertEqual(changes, [("", "", 3)])
        self.assert_as_replayed(workers, file, "full", [(3, 20)], "-dies")

    def test_a_member_that_dies_while_another_joins_is_one_more_loss(self):
        file = self.folder / "model.safetensors"
        place, hold = f"127.0.0.1:{free_port()}", Hold(self, "sharded.stepped", "hold", 10).close()
        flags = [*self.RULE, "--rounds", self.STEPS, "--save", file]
        environments = {1: {"CENTROID_TEST_FAULT": "sharded.divided:1"}, 3: hold.environment}
        workers = [self.start(4, *flags, name=f"r{rank}", place=place, rank=rank, environment=environments.get(rank)) for rank in range(4)]
        hold.wait_reached()
        more = self.start(4, *flags, name="more", place=place, rank=1)
        workers[0].wait_event("sharded.newcomer_came")
        hold.open()
        self.assert_status(workers.pop(1), -signal.SIGKILL)
        self.assert_exit(DONE, *workers, more)
        told = [one.wait_event("sharded.regrouped", lost="1", joined="4", world=4)["step"] for one in workers]
        self.assert_as_replayed([*workers, more], file, "full", [(4, told[0])], "")


class Pipeline(Sharded, CtlTest):
    TEXT = "transformer:layers=2,width=16,heads=2,context=16"
    GOAL = ("--optimizer", "sgd", "--lr", "0.1", "--clip-norm", "0.5", "--seed", 3, "--rounds", 30)

    def texts(self):
        folder = self.folder / "texts"
        folder.mkdir()
        (folder / "a.txt").write_text("the quick brown fox jumps over the lazy dog. " * 200)
        return f"text:{folder}"

    def assert_as_one_worker(self, *jobs):
        """Jobs (mesh, ranks, batch, flags) train on text as one worker with exchange local does, and save a model with the same tensors."""
        data, folder = self.texts(), self.folder / "local"
        alone = self.worker(
            "127.0.0.1:1", "alone", "--exchange", "local", "--data", data, "--checkpoint.dir", folder, *self.GOAL, model=self.TEXT, batch=24
        )
        self.assert_exit(DONE, alone)
        should, whole = self.summary("alone"), next(folder.glob("checkpoint-*/model.safetensors"))
        for mesh, world, batch, flags in jobs:
            with self.subTest(mesh=mesh, flags=flags):
                run = f"-{len(self.processes)}"
                arguments = ["--parallel", mesh, *flags, *self.GOAL]
                summaries, file = self.train(world, "none", *arguments, run=run, batch=batch, model=self.TEXT, data=data)
                for is_ in summaries:
                    self.assertEqual(is_["rounds"], should["rounds"])
                    self.assertEqual(is_["gradient_norm"], summaries[0]["gradient_norm"])
                    self.assertGreater(is_["gradient_norm"], 0.5)
                    for key in ("loss", "test_loss"):
                        self.assertAlmostEqual(is_[key], should[key], delta=1e-4 * should[key])
                    self.assertGreater(is_["pipeline"]["bubble_of_useful"], is_["pipeline"]["bubble_of_total"])
                sizes = dict(axis.split("=") for axis in mesh.split(","))
                self.assertEqual(sorted({is_["pipeline"]["stage"] for is_ in summaries}), list(range(int(sizes.get("pp", 1)))))
                self.assertEqual(self.shapes(file), self.shapes(whole))
                self.assert_near(self.values(file), self.values(whole), 1e-4)

    def test_two_by_two_ranks_train_on_text_as_one_worker_does(self):
        self.assert_as_one_worker(
            ("dp=2,pp=2", 4, 12, ["--micro-batches", 4]), ("dp=2,pp=2", 4, 12, ["--schedule", "gpipe"]), ("pp=3", 3, 24, [])
        )

    def test_parts_of_tensors_train_on_text_as_one_worker_does(self):
        self.assert_as_one_worker(
            ("tp=2", 2, 24, []), ("dp=2,tp=2", 4, 12, ["--micro-batches", 2]), ("dp=2,pp=2,tp=2", 8, 12, ["--micro-batches", 2])
        )

    def test_stages_and_parts_train_with_bf16_as_with_float32(self):
        data, codecs = self.texts(), ["--codec", "bf16", "--codec-down", "bf16"]
        for mesh, sharding in (("dp=2,pp=2", "full"), ("dp=2,pp=2", "grad"), ("dp=2,tp=2", "full")):
            with self.subTest(mesh=mesh, sharding=sharding):
                flags = ["--parallel", mesh, *self.GOAL]
                run = f"-{len(self.processes)}"
                should, _ = self.train(4, sharding, *flags, run=run, batch=12, model=self.TEXT, data=data)
                summaries, _ = self.train(4, sharding, *flags, *codecs, run=run + "-bf16", batch=12, model=self.TEXT, data=data)
                for is_, of_f32 in zip(summaries, should):
                    self.assertEqual(is_["loss"], summaries[0]["loss"])
                    self.assertAlmostEqual(is_["test_loss"], of_f32["test_loss"], delta=0.02 * of_f32["test_loss"])
                    self.assertLess(is_["bytes_out"], of_f32["bytes_out"])

    def assert_resumed(self, wrote, *onto):
        """A killed job on a mesh of four goes on from its checkpoint on each of these: (mesh, ranks, sharding, batch)."""
        place = self.folder / "checkpoints"
        common = ["--data", self.texts(), "--optimizer", "adam", "--lr", "0.003", "--clip-norm", "0.5", "--seed", 3]
        workers = self.ranks(
            4, "--parallel", wrote, *common, "--epochs", 1_000_000, "--checkpoint.dir", place, "--checkpoint.every-rounds", 5, model=self.TEXT, batch=12
        )
        wait_for(lambda: len(list(place.glob("checkpoint-*"))) >= 2, "two checkpoints")
        for worker in workers:  # at once, so that none goes on without the others
            worker.child.send_signal(signal.SIGKILL)
        for worker in workers:
            worker.child.wait()
        newest = sorted(place.glob("checkpoint-*"))[-1]
        step = int(newest.name.split("-")[1]) - 1
        self.assertEqual(json.loads((newest / "manifest.json").read_text())["format_version"], 2 if "tp" in wrote else 1)
        goal = ["--rounds", step + 10]
        undisturbed = ["--parallel", wrote, *common, *goal]
        summaries, file = self.train(4, "full", *undisturbed, run="-undisturbed", batch=12, model=self.TEXT, data=common[1])
        should, expected = summaries[0], self.values(file)
        exported = self.folder / "exported.safetensors"
        self.ctl(None, "checkpoints", "export", place, "--to", exported)
        self.assertEqual(self.values(exported).keys(), expected.keys())
        for mesh, world, sharding, batch in onto:
            with self.subTest(mesh=mesh, sharding=sharding):
                folder = self.folder / f"resumed{len(self.processes)}"
                shutil.copytree(newest, folder / newest.name)
                flags = [*common, *goal, "--parallel", mesh, "--checkpoint.dir", folder, "--resume"]
                summaries, file = self.train(world, sharding, *flags, run=folder.name, batch=batch, model=self.TEXT, data=common[1])
                for is_ in summaries:
                    self.assertEqual((is_["rounds"], is_["samples"]), (should["rounds"], should["samples"]))
                    for key in ("loss", "test_loss", "gradient_norm"):
                        self.assertAlmostEqual(is_[key], should[key], delta=1e-3 * should[key])
                self.assert_near(self.values(file), expected, 1e-3)
                if mesh == wrote:  # equal bytes
                    self.assertEqual({is_["loss"] for is_ in summaries}, {should["loss"]})

    def test_a_killed_job_is_resumed_on_other_stages_and_without_stages(self):
        self.assert_resumed(
            "dp=2,pp=2", ("dp=2,pp=2", 4, "full", 12), ("pp=2", 2, "none", 24), ("pp=3", 3, "none", 24), ("tp=2", 2, "none", 24), ("", 4, "full", 6), ("", 2, "none", 12)
        )

    def test_a_killed_job_with_parts_of_tensors_is_resumed_on_other_parts_and_without_parts(self):
        self.assert_resumed(
            "dp=2,tp=2", ("dp=2,tp=2", 4, "full", 12), ("pp=2,tp=2", 4, "none", 24), ("tp=2", 2, "none", 24), ("pp=2", 2, "none", 24), ("", 2, "full", 12)
        )

    def test_stages_are_divided_by_measured_cost(self):
        model, flags = "mlp:64-64-64-64-10", ["--parallel", "pp=2", "--micro-batches", 2, "--rounds", 3]
        workers = self.ranks(2, *flags, model=model, batch=8)
        self.assert_exit(DONE, *workers)
        told = [worker.wait_event("pipeline.started") for worker in workers]
        self.assertEqual({one["imbalance"] for one in told}, {told[0]["imbalance"]})
        self.assertGreater(told[0]["imbalance"], 0)
        self.assertEqual([one["first_layer"] for one in told], [0, told[0]["layers"]])
        self.assertEqual(told[0]["layers"] + told[1]["layers"], 4)
        self.assertEqual(self.summary("r1")["pipeline"]["imbalance"], told[0]["imbalance"])

    def test_a_rank_without_memory_for_its_stage_ends_all_before_training(self):
        workers = self.ranks(2, "--parallel", "pp=2", "--rounds", 3, batch=8, environments={1: {"CENTROID_MEMORY_LIMIT": "100000"}})
        for worker in workers:
            self.assert_status(worker, USAGE, "rank 1: this rank needs", "100000")

    def test_without_memory_to_measure_the_layers_their_elements_count(self):
        limits = {0: {"CENTROID_MEMORY_LIMIT": "4MB"}}  # a layer of the other stage has 4 MB
        workers = self.ranks(2, "--parallel", "pp=2", "--rounds", 3, model="mlp:64-64-1024-1024-10", batch=8, environments=limits)
        self.assert_exit(DONE, *workers)
        workers[0].wait_event("pipeline.not_measured", error="measuring a layer needs")
        self.assertEqual(workers[1].wait_event("pipeline.started")["first_layer"], 2)

    def test_a_killed_rank_ends_the_job_with_its_place_and_what_to_do(self):
        data = self.texts()
        for mesh, place in (("dp=2,pp=2", "rank 3, data rank 1 of stage 1,"), ("dp=2,tp=2", "rank 3, data rank 1 of stage 0, tensor rank 1,")):
            with self.subTest(mesh=mesh):
                workers = self.ranks(4, "--parallel", mesh, "--data", data, "--epochs", 1_000_000, model=self.TEXT, batch=8, run=f"-{mesh}")
                for worker in workers:
                    worker.wait_event("epoch.ended")
                workers[3].kill()
                for rank in (0, 1, 2):
                    self.assert_status(workers[rank], FAILED, place, "start all ranks again")


if __name__ == "__main__":
    main(at_a_time=2)
