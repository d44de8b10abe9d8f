"""Jobs that are killed where they write, and end with the bits of one that was not."""

import pathlib
import signal
import subprocess

from harness.cluster import DONE, ClusterTest

ROUNDS = 24
CHECKPOINT_EVERY = 5
JOURNAL = ["--journal.mode", "on", "--journal.sync", "0"]


def state_bytes(checkpoint):
    """All planes of a checkpoint: parameters and optimizer slots (rows_test.py looks at tables)."""
    return {path.name: path.read_bytes() for path in sorted(checkpoint.glob("[mo]*.safetensors"))}


class DurabilityTest(ClusterTest):
    def launch(self, run, *arguments, name=None, rounds=ROUNDS, optimizer="momentum", **places):
        goal = ["--rounds", rounds, "--min-workers", 2, "--exit-when-finished", "--checkpoint.every-rounds", CHECKPOINT_EVERY]
        level = ["--log.level", "debug", "--optimizer", optimizer, "--checkpoint.keep", 2, "--run-id", "r"]
        name = name or f"server-{run}"
        return self.launch_server("--lr", "0.05", *goal, *level, *arguments, run=run, name=name, **places)

    def start(self, *arguments, **more):
        return self.launch(*arguments, **more).wait_ready()

    def workers(self, server, run, *arguments):
        return [self.worker(server, f"w{i}-{run}", *arguments) for i in range(2)]

    def whole(self, run, *arguments, worker=(), **more):
        """The state at the end of a run that nobody disturbs."""
        server = self.start(run, *arguments, **more)
        self.assert_exit(DONE, *self.workers(server, run, *worker), server)
        return state_bytes(self.checkpoints(run)[-1])

    def last_committed(self, server):
        return max((event["round"] for event in server.events("round.committed")), default=0)

    def disturbed(self, run, expected, *arguments, fault, worker=(), **more):
        """Kill the server at a fault point, start it again, and compare the end with `expected`. False: not reached."""
        environment = {"CENTROID_TEST_FAULT": fault}
        server = self.start(run, *arguments, name=f"before-{run}", environment=environment, **more)
        workers = self.workers(server, run, *worker)
        status = server.exit_status()
        if status == DONE:
            return False
        self.assertEqual(status, -signal.SIGKILL, server.text())
        committed = self.last_committed(server)
        again = self.launch(run, "--resume", *arguments, name=f"after-{run}", listen=server.data, **more)
        self.assert_status(again, DONE)
        replayed = again.events("journal.replayed")
        loaded = again.events("checkpoint.loaded")
        reached = replayed[0]["round"] if replayed else loaded[0]["round"] if loaded else 0
        if reached < ROUNDS:
            self.assert_exit(DONE, *workers)
        for worker in workers:  # who comes when the goal has been reached is not taken
            worker.kill()
        self.assertGreaterEqual(reached, committed, f"{fault}: a committed round was lost")
        self.assertEqual(len(again.events("round.committed")), ROUNDS - reached, "rounds done twice or left out")
        self.assertEqual(state_bytes(self.checkpoints(run)[-1]), expected, f"{fault}: other bits")
        checked = self.ctl("checkpoints", "verify", self.folder / run / "checkpoints")
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)
        return True

    def ctl(self, *arguments):
        command = [str(pathlib.Path(self.programs) / "centroidctl"), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)
