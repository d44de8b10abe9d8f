"""Jobs with pipeline stages whose workers die and come back, with the real program. sharded_stages_test.py BIN_DIR"""

import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import DONE, FAILED, USAGE, Hold, free_port, main
from harness.sharded import Sharded

TOKENS = "transformer:layers=2,width=16,heads=2,context=64,vocabulary=17,classes=10,tied=no"
STEPS = 60


class Stages(Sharded):
    """The model has two layers, so that two stages are always the same."""

    RULE = ("--optimizer", "adam", "--clip-norm", "1")

    def start(self, world, *arguments, name, place, rank, environment=None, **settings):
        flags = ["--exchange", "sharded", "--world", world, "--rendezvous", place, "--rank", rank, *arguments]
        return self.worker("127.0.0.1:1", name, *flags, environment=environment, **settings)

    def held(self, world, *arguments, run, faults=None, **settings):
        """A job of which some ranks die or stand still. `faults`: environments by rank."""
        place = f"127.0.0.1:{free_port()}"
        flags = [*self.RULE, "--rounds", STEPS, *arguments]
        workers = [self.start(world, *flags, name=f"r{rank}{run}", place=place, rank=rank, environment=(faults or {}).get(rank), **settings) for rank in range(world)]
        return workers, place, flags

    def assert_as_replayed(self, workers, file, sharding, history, run):
        """The bytes of jobs that are stopped and resumed on the meshes that this one had. `history`: (mesh, ranks, step at which the next one began)."""
        flags = [*self.RULE, "--sharding", sharding, "--checkpoint.dir", self.folder / f"replay{run}"]
        replayed = self.folder / f"replayed{run}.safetensors"
        for number, (mesh, world, step) in enumerate(history):
            end = ["--save", replayed] if step == STEPS else []
            resume = ["--resume"] if number else []
            self.assert_exit(DONE, *self.ranks(world, *flags, "--parallel", mesh, "--rounds", step, *resume, *end, run=f"{run}-{number}"))
        self.assertEqual(file.read_bytes(), replayed.read_bytes())
        should = self.summary(f"r0{run}-{len(history) - 1}")
        for worker in workers:
            is_ = self.summary(worker.name)
            for key in ("loss", "test_loss", "rounds", "samples", "world"):
                self.assertEqual(is_[key], should[key], key)

    def test_a_killed_worker_that_is_started_again_makes_the_mesh_whole_with_the_bits_of_the_history(self):
        for sharding, victim, copies in (("none", 0, "auto"), ("hybrid:1", 2, "auto"), ("full", 3, 1)):
            with self.subTest(sharding=sharding, victim=victim):
                run = f"-{sharding}{victim}".replace(":", "")
                file = self.folder / f"model{run}.safetensors"
                # All stand still at a step until the worker is back: a rank that lives stops there.
                hold = Hold(self, "sharded.stepped", f"hold{run}", 30).close()
                faults = {victim: {"CENTROID_TEST_FAULT": "sharded.stepped:10"}, (victim + 1) % 4: hold.environment}
                workers, place, flags = self.held(4, "--parallel", "dp=2,pp=2", "--sharding", sharding, "--shard-replicas", copies, "--save", file, run=run, faults=faults)
                self.assert_status(workers[victim], -signal.SIGKILL)
                hold.wait_reached()
                others = [worker for rank, worker in enumerate(workers) if rank != victim]
                for one in others:
                    told = one.wait_event("sharded.regrouped", lost=str(victim), world=3, step=10)
                    self.assertEqual((told["from"], told["mesh"]), ("memory", "dp=1,pp=2,tp=1"))
                self.assertEqual([bool(one.events("sharded.waiting")) for one in others], [False, False, True])
                self.assertEqual(others[2].events("sharded.waiting")[0]["for"], "dp=2,pp=2,tp=1 needs 4 workers, there are 3")
                back = self.start(4, *flags, name=f"back{run}", place=place, rank=victim)
                others[0].wait_event("sharded.newcomer_came")
                hold.open()
                self.assert_exit(DONE, *others, back)
                came = [one.wait_event("sharded.regrouped", joined="4", world=4, mesh="dp=2,pp=2,tp=1") for one in others]
                came.append(back.wait_event("sharded.joined", world=4, mesh="dp=2,pp=2,tp=1"))
                self.assertEqual({(one["step"], one["from"]) for one in came}, {(came[0]["step"], "memory")})
                self.assertGreaterEqual(came[0]["step"], 30)
                history = [("dp=2,pp=2", 4, 10), ("pp=2", 2, came[0]["step"]), ("dp=2,pp=2", 4, STEPS)]
                self.assert_as_replayed([*others, back], file, "full" if sharding == "full" else "none", history, run)

    def test_a_stage_without_a_copy_comes_from_the_checkpoint_and_the_bits_are_those_of_all_stages(self):
        file, flags = self.folder / "model.safetensors", ["--parallel", "pp=2", "--save"]
        holds = [Hold(self, "sharded.stepped", f"hold{rank}", count).close() for rank, count in ((0, 30), (1, 10))]
        faults = {rank: hold.environment for rank, hold in enumerate(holds)}
        checkpoints = ["--checkpoint.dir", self.folder / "checkpoints", "--checkpoint.every-rounds", 4]
        (left, victim), place, all_flags = self.held(2, *flags, file, *checkpoints, run="-one", faults=faults)
        holds[1].wait_reached()
        left.wait_event("checkpoint.written", version=9)
        victim.kill()
        holds[0].wait_reached()
        told = left.wait_event("sharded.regrouped", lost="1", world=1, step=8, mesh="dp=1,pp=1,tp=1")
        self.assertEqual(told["from"], "checkpoint")
        back = self.start(2, *all_flags, name="back", place=place, rank=1)
        left.wait_event("sharded.newcomer_came")
        holds[0].open()
        self.assert_exit(DONE, left, back)
        for one in (left.wait_event("sharded.regrouped", joined="2", world=2), back.wait_event("sharded.joined", world=2)):
            self.assertEqual((one["from"], one["mesh"]), ("memory", "dp=1,pp=2,tp=1"))
        undisturbed = self.folder / "undisturbed.safetensors"
        workers = self.ranks(2, *self.RULE, "--rounds", STEPS, *flags, undisturbed, run="-undisturbed")
        self.assert_exit(DONE, *workers)
        self.assertEqual(file.read_bytes(), undisturbed.read_bytes())

    def test_a_worker_more_than_the_mesh_has_waits_and_takes_the_place_of_one_that_dies(self):
        file, hold = self.folder / "model.safetensors", Hold(self, "sharded.stepped", "hold", 10).close()
        faults = {0: hold.environment, 3: {"CENTROID_TEST_FAULT": "sharded.stepped:30"}}
        workers, place, flags = self.held(4, "--parallel", "dp=2,pp=2", "--sharding", "none", "--save", file, run="-more", faults=faults)
        hold.wait_reached()
        more = self.start(4, *flags, name="more", place=place, rank=3)
        workers[0].wait_event("sharded.newcomer_came")
        hold.open()
        self.assert_status(workers[3], -signal.SIGKILL)
        self.assert_exit(DONE, *workers[:3], more)
        self.assertEqual(more.events("sharded.waiting")[0]["for"], "the loss of a rank of dp=2,pp=2,tp=1: there are 5")
        for one in (*workers[:3], more):
            self.assertEqual(one.wait_event("sharded.regrouped", lost="3", world=4, mesh="dp=2,pp=2,tp=1", step=30)["from"], "memory")
        self.assert_as_replayed([*workers[:3], more], file, "none", [("dp=2,pp=2", 4, STEPS)], "-more")

    def test_a_waiting_worker_that_dies_costs_no_step(self):
        file, hold = self.folder / "model.safetensors", Hold(self, "sharded.stepped", "hold", 10).close()
        workers, place, flags = self.held(2, "--parallel", "pp=2", "--save", file, run="-waits", faults={0: hold.environment})
        hold.wait_reached()
        more = self.start(2, *flags, name="more", place=place, rank=1, environment={"CENTROID_TEST_FAULT": "sharded.stepped:5"})
        workers[0].wait_event("sharded.newcomer_came")
        hold.open()
        self.assert_status(more, -signal.SIGKILL)
        self.assert_exit(DONE, *workers)
        for one in workers:
            self.assertEqual(one.wait_event("sharded.regrouped", lost="2", world=2)["from"], "memory")
        self.assert_as_replayed(workers, file, "full", [("pp=2", 2, STEPS)], "-waits")

    def test_parts_of_layers_come_back_from_memory(self):
        hold = Hold(self, "sharded.stepped", "hold", 20).close()
        faults = {1: {"CENTROID_TEST_FAULT": "sharded.stepped:10"}, 2: hold.environment}
        settings = {"model": TOKENS, "batch": 8}
        arguments = ["--parallel", "dp=2,tp=2", "--sharding", "none", "--data", "digits-tokens"]
        workers, place, flags = self.held(4, *arguments, run="-parts", faults=faults, **settings)
        self.assert_status(workers.pop(1), -signal.SIGKILL)
        hold.wait_reached()
        for one in workers:
            told = one.wait_event("sharded.regrouped", lost="1", world=3, step=10, mesh="dp=1,pp=1,tp=2")
            self.assertEqual(told["from"], "memory")
        back = self.start(4, *flags, name="back", place=place, rank=1, **settings)
        workers[0].wait_event("sharded.newcomer_came")
        hold.open()
        self.assert_exit(DONE, *workers, back)
        back.wait_event("sharded.joined", world=4, mesh="dp=2,pp=1,tp=2")
        self.assertEqual(len({(self.summary(one.name)["loss"], self.summary(one.name)["rounds"]) for one in (*workers, back)}), 1)

    def outwait(self, seconds):
        """Longer than the others' --join-timeout: a worker that waits for one that never comes ends then."""
        alone = self.start(2, "--rounds", 1, "--join-timeout", f"{seconds}s", name="alone", place=f"127.0.0.1:{free_port()}", rank=0)
        self.assert_status(alone, FAILED, "rank 1 did not come")

    def test_a_slow_disk_ends_nobody_who_takes_over(self):
        hold = Hold(self, "checkpoint.folder_made", "slow", 3).close()
        checkpoints = ["--checkpoint.dir", self.folder / "checkpoints", "--checkpoint.every-rounds", 1, "--join-timeout", "8s"]
        faults = {0: hold.environment, 2: {"CENTROID_TEST_FAULT": "sharded.stepped:4"}}
        workers, _, _ = self.held(3, *checkpoints, run="-slow", faults=faults)
        self.assert_status(workers.pop(), -signal.SIGKILL)
        hold.wait_reached()
        self.outwait(11)
        hold.open()
        self.assert_exit(DONE, *workers)
        for one in workers:
            self.assertEqual(one.wait_event("sharded.regrouped", lost="2", world=2)["from"], "memory")
            self.assertEqual(one.events("sharded.regroup_failed"), [])

    def test_a_slow_disk_does_not_end_those_that_wait(self):
        hold = Hold(self, "checkpoint.verifying", "slow").close()
        flags = ["--parallel", "dp=2,pp=2", "--sharding", "full", "--shard-replicas", 0, "--join-timeout", "8s"]
        checkpoints = ["--checkpoint.dir", self.folder / "checkpoints", "--checkpoint.every-rounds", 1]
        faults = {1: hold.environment, 3: {"CENTROID_TEST_FAULT": "sharded.stepped:4"}}
        workers, _, _ = self.held(4, *flags, *checkpoints, run="-slow", faults=faults)
        self.assert_status(workers.pop(), -signal.SIGKILL)
        hold.wait_reached()
        self.outwait(11)
        hold.open()
        self.assert_exit(DONE, *workers)
        self.assertEqual([bool(one.events("sharded.waiting")) for one in workers], [False, False, True])
        for one in workers:
            self.assertEqual(one.wait_event("sharded.regrouped", lost="3", world=3)["from"], "checkpoint")
            self.assertEqual(one.events("sharded.regroup_failed"), [])

    def test_a_rank_that_hangs_is_found_also_by_those_that_wait(self):
        hold = Hold(self, "checkpoint.file_written", "writes")
        checkpoints = ["--checkpoint.dir", self.folder / "checkpoints", "--checkpoint.every-rounds", 300, "--join-timeout", "8s"]
        flags = ["--parallel", "pp=2", *checkpoints, "--rounds", 1_000_000]
        workers, place, flags = self.held(2, *flags, run="-hangs", faults={1: hold.environment})
        for one in workers:
            one.wait_event("pipeline.started")
        waits = self.start(2, *flags, name="waits", place=place, rank=1)
        waits.wait_event("sharded.waiting")
        workers[0].wait_event("checkpoint.written")
        hold.close().wait_reached()  # so that rank 0 waits for its part of a checkpoint, too
        workers[1].send(signal.SIGSTOP)
        for one in (workers[0], waits):
            self.assertEqual(one.wait_event("sharded.regrouped", lost="1", world=2)["from"], "checkpoint")
        workers[1].kill()
        workers[0].send(signal.SIGTERM)
        self.assert_exit(DONE, workers[0], waits)

    def test_parts_of_layers_without_a_copy_come_from_the_checkpoint(self):
        hold = Hold(self, "sharded.stepped", "hold", 10).close()
        settings = {"model": TOKENS, "batch": 8}
        arguments = ["--parallel", "tp=2", "--data", "digits-tokens", "--checkpoint.dir", self.folder / "checkpoints", "--checkpoint.every-rounds", 4]
        faults = {0: hold.environment, 1: {"CENTROID_TEST_FAULT": "sharded.stepped:30"}}
        workers, place, flags = self.held(2, *arguments, run="-parts", faults=faults, **settings)
        hold.wait_reached()
        more = self.start(2, *flags, name="more", place=place, rank=1, **settings)
        workers[0].wait_event("sharded.newcomer_came")
        hold.open()
        self.assert_status(workers[1], -signal.SIGKILL)
        self.assert_exit(DONE, workers[0], more)
        for one in (workers[0], more):
            told = one.wait_event("sharded.regrouped", lost="1", world=2, mesh="dp=1,pp=1,tp=2")
            self.assertEqual(told["from"], "checkpoint")
        self.assertEqual(self.summary("more")["loss"], self.summary(workers[0].name)["loss"])

    def test_fewer_stages_that_do_not_fit_end_the_job_with_the_numbers(self):
        limit, model = {"CENTROID_MEMORY_LIMIT": "8MB"}, "mlp:64-512-512-512-10"
        checkpoints = ["--checkpoint.dir", self.folder / "checkpoints", "--checkpoint.every-rounds", 1]
        faults = {0: limit, 1: {**limit, "CENTROID_TEST_FAULT": "sharded.stepped:3"}}
        workers, _, _ = self.held(2, "--parallel", "pp=2", *checkpoints, run="-small", faults=faults, model=model)
        self.assert_status(workers[1], -signal.SIGKILL)
        self.assert_status(workers[0], USAGE, "this rank needs", "rank 1, data rank 0 of stage 1, was lost; start all ranks again, with --resume")


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
            ([*goal, *place, "--world", 4, "--parallel", "dp=2,pp=3"], "2 x 3 x 1 must be 4"),
            ([*goal, *place, "--world", 4, "--parallel", "pp=2,tp=2"], "only transformers"),
            ([*goal, *place, "--world", 3, "--parallel", "tp=3", "--data", "digits-tokens", "--model", TOKENS], "heads 2 is no multiple of 3"),
            ([*goal, *place, "--world", 3, "--parallel", "pp=3", "--micro-batches", 2], "2 micro_batches for 3 stages"),
            ([*goal, *place, "--world", 3, "--parallel", "pp=3", "--model", "mlp:64-16-10"], "3 stages for 2 layers"),
            ([*goal, *place, "--world", 2, "--parallel", "pp=2", "--batch", 4], "8 micro_batches"),
            ([*goal, *place, "--world", 2, "--micro-batches", 2], "pp"),
            ([*goal, *place, "--world", 2, "--sharding", "half"], "half"),
            ([*goal, *place, "--world", 2, "--devices", "cpu:0,cpu:1"], "cpu:0"),
            ([*goal, *place, "--world", 2, "--resume"], "--checkpoint.dir"),
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
