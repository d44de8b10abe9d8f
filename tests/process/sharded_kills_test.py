"""Workers of exchange sharded that are killed at random moments and started again. sharded_kills_test.py BIN_DIR

CENTROID_KILLS: of each strategy (40). CENTROID_STRATEGIES: "full grad hybrid:2 none+dp=2,pp=2 none+dp=2,tp=2". CENTROID_SEED: which workers are killed, and how long they are
away; printed. Prints the kills of each strategy when its model has the bits of a replay, and those of all.
"""

import os
import pathlib
import random
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import DEADLINE_SECONDS, DONE, free_port, main, wait_for
from harness.sharded import Sharded

KILLS = int(os.environ.get("CENTROID_KILLS", "40"))
STRATEGIES = os.environ.get("CENTROID_STRATEGIES", "full grad hybrid:2 none+dp=2,pp=2 none+dp=2,tp=2").split()
SEED = int(os.environ.get("CENTROID_SEED", "0")) or random.randrange(1, 1 << 32)
WORLD, LONGEST_AWAY = 4, 0.5
BATCH = 32
# (model, data). Two layers make two stages in one way only.
MODEL, OF_STAGES = ("mlp:64-256-256-10", "digits"), ("mlp:64-512-10", "digits")
OF_PARTS = ("transformer:layers=1,width=16,heads=2,context=64,vocabulary=17,classes=10,tied=no", "digits-tokens")


class Kills(Sharded):
    RULE = ("--optimizer", "adam", "--clip-norm", "1")

    def start_one(self, rank, run):
        self.started += 1
        flags = ["--exchange", "sharded", "--world", WORLD, "--rendezvous", self.place, "--rank", rank, "--data", self.data, *self.flags]
        worker = self.worker("127.0.0.1:1", f"w{run}-{self.started}", *flags, model=self.model, batch=BATCH)
        self.alive[rank] = worker

    def members(self):
        """Ranks whose worker is in the job."""
        return [rank for rank, worker in self.alive.items() if any(worker.events(event) for event in ("sharded.started", "pipeline.started", "sharded.joined"))]

    def size(self, world):
        """Ranks that train: with stages or parts all four workers, or two."""
        return world if not self.mesh else 4 if world == 4 else 2

    def kill(self, chance):
        """One worker, or two at once; two are left, so that one has what the others had or reads the checkpoint."""
        for rank, worker in self.alive.items():
            self.assertTrue(worker.is_running(), f"{worker.name} ended: {worker.text()[-2000:]}")
        members = self.members()
        count = min(chance.choice([1, 1, 1, 2]), len(members) - 2)
        victims = chance.sample(members, count) if count > 0 else []
        for rank in victims:
            self.alive[rank].child.send_signal(signal.SIGKILL)
        for rank in victims:
            self.alive.pop(rank).child.wait()
        return victims

    def history(self):
        """(ranks, step at which the next group began) of the steps that count: those behind a checkpoint that was restored do not."""
        groups = {}
        for worker in self.processes[self.first :]:
            for event in [*worker.events("sharded.regrouped"), *worker.events("sharded.joined")]:
                told = (event["world"], event["step"], event["from"])
                self.assertEqual(groups.setdefault(event["generation"], told), told, f"generation {event['generation']}")
        world, segments = WORLD, []
        for _, (next_world, step, source) in sorted(groups.items()):
            before = segments[-1][1] if segments else 0
            self.assertTrue(step >= before or source == "checkpoint", f"step {before} was lost: {groups}")
            undone = [one for one in segments if one[1] >= step]
            segments = [one for one in segments if one[1] < step]
            segments.append((undone[0][0] if undone else world, step))
            world = next_world
        return world, segments

    def replay(self, sharding, steps, run):
        """The model of jobs that are stopped and resumed where the history has another number of ranks."""
        world, segments = self.history()
        merged = []
        for one in [*segments, (world, steps)]:
            ranks = self.size(one[0])
            if merged and merged[-1][0] == ranks:
                merged.pop()
            if one[1] > (merged[-1][1] if merged else 0):
                merged.append((ranks, one[1]))
        file = self.folder / f"replayed{run}.safetensors"
        flags = [*self.RULE, "--data", self.data, "--checkpoint.dir", self.folder / f"replay{run}"]
        for number, (ranks, step) in enumerate(merged):
            way = sharding if not sharding.startswith("hybrid") or ranks % 2 == 0 else "full"
            mesh = ["--parallel", self.mesh if ranks == WORLD else self.mesh.partition(",")[2]] if self.mesh else []
            end = ["--save", file] if step == steps else []
            resume = ["--resume"] if number else []
            workers = self.ranks(ranks, *flags, "--sharding", way, *mesh, "--rounds", step, *resume, *end, run=f"{run}-replay{number}", model=self.model, batch=BATCH)
            self.assert_exit(DONE, *workers)
        return file, len(merged)

    def test_no_step_is_lost_and_the_bits_are_those_of_the_membership(self):
        print(f"CENTROID_SEED={SEED} CENTROID_KILLS={KILLS}", flush=True)
        all_killed = 0
        for number, strategy in enumerate(STRATEGIES):
            with self.subTest(strategy=strategy):
                sharding, _, self.mesh = strategy.partition("+")
                self.model, self.data = OF_PARTS if "tp" in self.mesh else OF_STAGES if self.mesh else MODEL
                run = f"-{number}"
                chance = random.Random(SEED + number)
                self.place, self.started, self.alive, self.first = f"127.0.0.1:{free_port()}", 0, {}, len(self.processes)
                file = self.folder / f"model{run}.safetensors"
                self.flags = [*self.RULE, "--sharding", sharding, "--parallel", self.mesh, "--epochs", 1_000_000, "--save", file]
                self.flags += ["--checkpoint.dir", self.folder / f"checkpoints{run}", "--checkpoint.every-rounds", 20]
                for rank in range(WORLD):
                    self.start_one(rank, run)
                wait_for(lambda: len(self.members()) == WORLD, "the job's begin")
                # Two partners may die at once: then the newest checkpoint is all there is.
                wait_for(lambda: any(one.events("checkpoint.written") for one in self.alive.values()), "a checkpoint")
                killed = 0
                while killed < KILLS:
                    wait_for(lambda: len(self.members()) > 2, "a worker that is back")
                    time.sleep(chance.uniform(0, LONGEST_AWAY))  # lint-ok: a random moment is what is tested
                    victims = self.kill(chance)
                    killed += len(victims)
                    time.sleep(chance.uniform(0, LONGEST_AWAY))  # lint-ok: as above
                    for rank in victims:
                        self.start_one(rank, run)
                wait_for(lambda: len(self.members()) == WORLD, "all workers", DEADLINE_SECONDS)
                min(self.alive.values(), key=lambda worker: worker.pid).send(signal.SIGTERM)
                workers = [self.alive[rank] for rank in range(WORLD)]
                self.assert_exit(DONE, *workers)
                steps = {self.summary(worker.name)["rounds"] for worker in workers}
                self.assertEqual(len(steps), 1)
                replayed, groups = self.replay(sharding, steps.pop(), run)
                self.assertEqual(file.read_bytes(), replayed.read_bytes())
                print(f"{strategy}: {killed} kills, {groups} groups, {self.summary(workers[0].name)['rounds']} steps", flush=True)
                all_killed += killed
        print(f"{all_killed} kills in jobs whose models have the bits of a replay", flush=True)


if __name__ == "__main__":
    main()
