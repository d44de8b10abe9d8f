"""Fault points are of tests only: released programs ignore what kills and stops those of the tests. fault_points_test.py BIN_DIR TEST_BIN_DIR"""

import os
import pathlib
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import DEADLINE_SECONDS, DONE, ClusterTest, main, wait_for

PROGRAMS = ("centroid-server", "centroid-worker", "centroidctl")
OF_FAULT_POINTS = (b"CENTROID_TEST_FAULT", b"CENTROID_TEST_FAULT_LOG", b"CENTROID_TEST_HOLD")


class FaultPoints(ClusterTest):
    released = tested = None  # folders of programs

    def setUp(self):
        self.reached, self.hold = self.folder / "reached", self.folder / "hold"

    def names(self):
        """Of the points that were reached."""
        return self.reached.read_text().split() if self.reached.exists() else []

    def train(self, programs, fault):
        """A server, once it has ended with its job of three rounds, or before."""
        self.programs = programs
        run = f"run-{programs.name}"
        goal = ("--rounds", 3, "--exit-when-finished", "--journal.mode", "on")
        environment = {"CENTROID_TEST_FAULT": fault, "CENTROID_TEST_FAULT_LOG": str(self.reached)}
        server = self.server(*goal, name=run, run=run, environment=environment)
        self.worker(server, f"worker-{programs.name}")
        server.exit_status()
        return server

    def test_a_released_server_is_not_killed(self):
        self.assertEqual(self.train(self.tested, "round.committed:2").exit_status(), -signal.SIGKILL)
        self.assertIn("round.committed", self.names())
        self.reached.unlink()
        self.assert_status(self.train(self.released, "round.committed:2"), DONE)
        self.assertEqual(self.names(), [])

    def test_a_released_server_is_not_stopped(self):
        self.hold.write_text("")
        environment = {"CENTROID_TEST_HOLD": f"endpoints.drafted:{self.hold}", "CENTROID_TEST_FAULT_LOG": str(self.reached)}
        self.programs = self.tested
        server = self.launch_server(name="tested", run="tested", environment=environment)
        wait_for(lambda: "endpoints.drafted" in self.names(), "a server that has reached the point")
        self.assertFalse(server.endpoints_file.exists())
        self.hold.unlink()
        server.wait_open()
        self.hold.write_text("")
        self.reached.unlink()
        self.programs = self.released
        self.launch_server(name="released", run="released", environment=environment).wait_ready()
        self.assertEqual(self.names(), [])

    def test_a_released_centroidctl_is_not_killed(self):
        self.assert_status(self.train(self.released, "none"), DONE)
        environment = {**os.environ, "CENTROID_TEST_FAULT": "checkpoint.verifying"}
        for programs, status in ((self.tested, -signal.SIGKILL), (self.released, DONE)):
            command = [programs / "centroidctl", "checkpoints", "verify", self.folder / f"run-{self.released.name}" / "checkpoints"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, env=environment, check=False)
            self.assertEqual(done.returncode, status, done.stdout + done.stderr)

    def test_nothing_that_is_released_reads_the_variables(self):
        released = [path for path in self.released.iterdir() if path.is_file()] + [self.released.parent / "lib" / "libcentroid.so"]
        self.assertLessEqual({*PROGRAMS, "libcentroid.so"}, {path.name for path in released})
        for path, has in (*((path, False) for path in released), *((self.tested / name, True) for name in PROGRAMS)):
            for variable in OF_FAULT_POINTS:
                self.assertEqual(variable + b"\0" in path.read_bytes(), has, f"{path}: {variable}")


if __name__ == "__main__":
    FaultPoints.released, FaultPoints.tested = (pathlib.Path(name).resolve() for name in (sys.argv[1], sys.argv.pop(2)))
    main()
