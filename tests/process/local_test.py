"""Trainers without a server, `centroid.local()`: the bits of a server with one worker. local_test.py BIN_DIR"""

import array
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import PYTHON
from harness.client import ClientTest, tensors_of
from harness.cluster import DONE, main
import centroid

SETTINGS = {"optimizer": "adamw", "lr": 0.1, "lr_schedule": "cosine:rounds=9", "clip_norm": 0.5, "weight_decay": 0.1, "epochs": 2}
PROGRAM = """
import array, os
import centroid
w = array.array("f", [1])
with centroid.Trainer(None, {"w": w}, samples=4) as trainer:
    for share in trainer:
        trainer.finish({"w": array.array("f", [1])})
print(str(trainer.end), share.round, share.world, w[0])
"""


class Alone(ClientTest):
    def train(self, where):
        """The bits at the end, with buffers between the parameters, and what the shares were."""
        tensors = {"a": array.array("f", [1, 2]), "n.running_mean": array.array("f", [0]), "z": array.array("f", [3])}
        shares, evaluated = [], []
        with centroid.Trainer(where, tensors, samples=10, batch=3, timeout=30) as trainer:
            for share in trainer:
                shares.append((share.round, share.version, share.epoch, share.world, share.is_local, share.indices()))
                evaluated += [share.round] if share.evaluate else []
                tensors["n.running_mean"][0] += share.round
                first = sum(share.indices()) / 10
                trainer.record("first", first)
                done = trainer.finish({"a": array.array("f", [first, -1]), "z": array.array("f", [tensors["z"][0]])}, loss_sum=1.0)
                self.assertEqual((done.outcome, done.version), (centroid.Outcome.COMMITTED, share.version + 1))
            self.assertTrue(trainer.final_evaluation)
            trainer.report(samples=1, correct=1, loss_sum=0.1)
        self.assertEqual(trainer.end, centroid.End.FINISHED)
        return {name: bytes(values) for name, values in tensors.items()}, shares, evaluated

    def test_has_the_bits_of_a_server_with_one_worker(self):
        alone = self.train(centroid.local(**SETTINGS, checkpoint_dir=str(self.folder / "kept")))
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items()]
        server = self.server(*flags, "--exit-when-finished")
        self.assertEqual(alone, self.train(server.data))
        self.assertEqual(server.exit_status(), DONE)
        self.assertEqual(len(alone[1]), 8)
        self.assertEqual(len({tuple(share[-1]) for share in alone[1]}), 8)
        kept = tensors_of(next((self.folder / "kept").glob("checkpoint-*")))
        self.assertEqual({name: bytes(array.array("f", values)) for name, values in kept.items()}, alone[0])

    def train_locally(self, where):
        """Steps of a program's own, of which some come after the contribution; batches of 3, whose weight rounds."""
        tensors = {"a": array.array("f", [1, 2]), "n.running_mean": array.array("f", [0]), "z": array.array("f", [3])}
        said = []
        with centroid.Trainer(where, tensors, samples=20, batch=3, timeout=30) as trainer:
            for share in trainer:
                numbers = share.indices()
                steps = [numbers[at : at + 3] for at in range(0, len(numbers), 3)]
                sent = len(steps) - min(share.overlap, len(steps) - 1)
                for number, step in enumerate(steps):
                    if number == sent:
                        trainer.contribute()
                    for name, values in tensors.items():
                        for at, value in enumerate(values):
                            values[at] = value - 0.1 * (value - sum(step) / (at + 7)) if name != "n.running_mean" else value + 0.3 * step[0]
                done = trainer.finish()
                said.append((share.round, share.version, share.epoch, share.is_local, share.overlap, numbers, done.outcome, done.version))
                said.append([trainer.committed(name) for name in tensors])
        self.assertEqual(trainer.end, centroid.End.FINISHED)
        return said, {name: bytes(values) for name, values in tensors.items()}

    def test_local_steps_have_the_bits_of_a_server_too(self):
        for settings in (
            {"local_steps": 2, "epochs": 2},
            {"local_steps": 3, "outer": "average", "overlap": 1, "rounds": 7},
            {"local_steps": 4, "fragments": 2, "overlap": 1, "epochs": 3},
            {"local_steps": 2, "outer": "optimizer", "optimizer": "adam", "lr": 0.3, "lr_schedule": "cosine:rounds=9", "clip_norm": 0.5, "epochs": 2},
        ):
            with self.subTest(settings):
                alone = self.train_locally(centroid.local(**settings))
                server = self.launch_server(*[f"--{name.replace('_', '-')}={value}" for name, value in settings.items()], "--exit-when-finished", name=f"server-{len(self.processes)}", run=f"run-{len(self.processes)}").wait_ready()
                self.assertEqual(alone, self.train_locally(server.data))
                self.assertEqual(server.exit_status(), DONE)
                self.assertTrue(all(step[3] for step in alone[0][::2]))

    def test_a_program_that_names_no_server_runs_alone_by_the_environment(self):
        variables = {**os.environ, **self.environment, "PYTHONPATH": str(PYTHON), "CENTROID_SERVER": centroid.local(lr=0.25, rounds=3)}
        done = subprocess.run([sys.executable, "-c", PROGRAM], env=variables, capture_output=True, text=True, check=False)
        self.assertEqual((done.stdout, done.stderr), ("finished 3 1 0.25\n", ""))

    def test_a_number_that_is_not_finite_halts_or_is_skipped(self):
        for policy in ("halt", "skip"):
            w = array.array("f", [1])
            trainer = self.trainer(centroid.local(rounds=1, nonfinite=policy), "alone", {"w": w})
            next(trainer)
            if policy == "halt":
                self.assert_fails("failed_precondition", "the gradient of tensor w is not finite", trainer.finish, {"w": array.array("f", [float("nan")])})
            else:
                self.assertEqual(trainer.finish({"w": array.array("f", [float("nan")])}).outcome, centroid.Outcome.SKIPPED)
            self.assertEqual(w[0], 1)

    def test_a_sum_that_overflows_halts_or_is_skipped(self):
        for policy in ("halt", "skip"):
            for batch in (3, 4):  # a power of two rounds nothing
                with self.subTest(policy=policy, batch=batch):
                    w = array.array("f", [1])
                    with centroid.Trainer(centroid.local(rounds=1, nonfinite=policy), {"w": w}, samples=4, batch=batch, name="alone") as trainer:
                        next(trainer)
                        given = {"w": array.array("f", [3e38])}
                        if policy == "halt":
                            self.assert_fails("failed_precondition", "the sum or result of tensor w is not finite", trainer.finish, given)
                        else:
                            self.assertEqual(trainer.finish(given).outcome, centroid.Outcome.SKIPPED)
                        self.assertEqual(w[0], 1)

    def test_wrong_settings_are_named(self):
        for settings, text in (
            ({}, "a goal: epochs or rounds"),
            ({"epochs": 1, "optimiser": "adam"}, "optimizer"),
            ({"epochs": 1, "optimizer": "adam2"}, "adam2"),
            ({"epochs": 1, "lr": -1}, "lr"),
            ({"epochs": 1, "local_steps": 4, "fragments": 3}, "local_steps 4 is no multiple of fragments 3"),
            ({"epochs": 1, "local_steps": 4, "lr": 0.1}, "local_steps 4 with outer nesterov sets the optimizer by itself"),
        ):
            with self.subTest(settings):
                self.assert_fails("invalid_argument", text, self.trainer, centroid.local(**settings), "alone", {"w": array.array("f", [1])})


if __name__ == "__main__":
    main()
