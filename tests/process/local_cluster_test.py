"""The demo driver against a stand-in cluster: result, faults, Ctrl-C, and that no process stays behind."""

import itertools
import json
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import DEMO
from centroid import _progress as progress

HERE = pathlib.Path(__file__).resolve().parent
DEADLINE_SECONDS = 120


class Driver(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for role in ("server", "worker"):
            program = self.folder / f"centroid-{role}"
            program.write_text(f'#!/bin/sh\nexec {sys.executable} -S {HERE}/fake_cluster.py {role} "$@"\n')
            program.chmod(0o755)

    def start(self, *flags, fault=""):
        command = [*DEMO, "--bin", str(self.folder), "--runs", str(self.folder / "run"), *flags]
        environment = {**os.environ, "FAKE_FAULT": fault}
        driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        self.addCleanup(driver.stdout.close)
        self.addCleanup(driver.stderr.close)
        self.addCleanup(driver.kill)
        return driver

    def run_driver(self, *flags, fault=""):
        driver = self.start(*flags, fault=fault)
        out, err = driver.communicate(timeout=DEADLINE_SECONDS)
        return driver.returncode, out, err

    def read_until(self, driver, words):
        text = ""
        while words not in text:
            self.assertTrue(select.select([driver.stdout], [], [], DEADLINE_SECONDS)[0], f"no {words!r} in {text!r}")
            piece = os.read(driver.stdout.fileno(), 65536).decode()
            self.assertNotEqual(piece, "", f"ended without {words!r}: {text!r}")
            text += piece
        return text

    def assert_nothing_left(self):
        """No process on this machine runs a program of this test's folder or knows one of its files."""
        needle = str(self.folder).encode()
        for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                self.assertNotIn(needle, entry.read_bytes(), entry)
            except OSError:
                continue

    def test_trained_cluster_is_reported(self):
        status, out, err = self.run_driver("--workers", "2", "--epochs", "3")
        self.assertEqual((status, err), (0, ""), out)
        self.assertRegex(out, r"test accuracy +95\.00 %")
        self.assertRegex(out, r"trained in +1\.5 s, 5,748 samples")
        self.assertRegex(out, r"checkpoint +checkpoints/4")
        self.assertRegex(out, r"REST +http://127\.0\.0\.1:\d+/v1/cluster")
        self.assertRegex(out, r"again +\./centroid demo --workers 2 --epochs 3\n")
        self.assertEqual(len(re.findall(r"^worker-\d ", out, re.M)), 2, out)
        self.assertRegex(out, r"epoch \d/3 ")
        self.assertNotIn("\r", out)
        self.assert_nothing_left()

    def test_settings_reach_the_server(self):
        self.run_driver("--run-dir", str(self.folder / "here"), "--optimizer", "sgd", "--lr", "0.5", "--seed", "7")
        settings = json.loads((self.folder / "here" / "server.json").read_text())
        self.assertEqual((settings["optimizer"], settings["lr"]), ("sgd", 0.5))
        self.assertEqual((settings["seed"], settings["min_workers"], settings["listen"]), (7, 4, "127.0.0.1:0"))

    def test_used_run_folder_is_refused(self):
        (self.folder / "here").mkdir()
        (self.folder / "here" / "file").touch()
        status, _, err = self.run_driver("--run-dir", str(self.folder / "here"))
        self.assertEqual(status, 1)
        self.assertIn("is not empty", err)

    def test_runs_have_folders_of_their_own(self):
        for _ in range(2):
            self.assertEqual(self.run_driver("--workers", "1")[0], 0)
        self.assertEqual(len(list((self.folder / "run").iterdir())), 2)

    def test_json_is_alone_on_stdout(self):
        status, out, err = self.run_driver("--json", "--workers", "1")
        self.assertEqual(status, 0, err)
        result = json.loads(out)
        self.assertEqual((result["test_accuracy"], result["seconds"], len(result["workers"])), (0.95, 1.5, 1))
        self.assertIn("test accuracy", err)

    def test_dead_worker_fails_the_run_with_its_log(self):
        status, _, err = self.run_driver("--workers", "3", fault="worker-dies")
        self.assertEqual(status, 1)
        self.assertIn("worker-1 exited with status 4", err)
        self.assertIn("worker: planted fault", err)
        self.assert_nothing_left()

    def test_worker_without_a_summary_fails_the_run(self):
        status, _, err = self.run_driver("--workers", "1", fault="no-summary")
        self.assertEqual(status, 1)
        self.assertIn("worker-0 left no summary", err)

    def test_dead_server_fails_the_run_with_its_log(self):
        status, _, err = self.run_driver(fault="server-dies")
        self.assertEqual(status, 1)
        self.assertIn("server exited with status 3", err)
        self.assertIn("server: planted fault", err)
        self.assert_nothing_left()

    def test_halted_job_fails_the_run_with_its_reason(self):
        status, _, err = self.run_driver(fault="halted")
        self.assertEqual(status, 1)
        self.assertIn("the job is halted: planted", err)
        self.assert_nothing_left()

    def test_interrupt_stops_everything_and_a_second_run_works(self):
        for number, gap in itertools.product((signal.SIGINT, signal.SIGTERM), (0, 0.0005, 0.005, 0.05)):
            with self.subTest(signal=number.name, seconds_to_the_second_signal=gap):
                driver = self.start("--run-dir", str(self.folder / f"{number.name}-{gap}"), "--workers", "1", fault="endless")
                self.read_until(driver, "epoch 1/")
                driver.send_signal(number)
                time.sleep(gap)  # lint-ok: the time between two signals is what this test varies
                driver.send_signal(signal.SIGINT)
                driver.communicate(timeout=DEADLINE_SECONDS)
                self.assertEqual(driver.returncode, 130)
                self.assert_nothing_left()
        self.assertEqual(self.run_driver("--workers", "1")[0], 0)

    def test_killed_driver_takes_its_processes_along(self):
        driver = self.start("--workers", "2", fault="endless")
        self.read_until(driver, "epoch 1/")
        children = pathlib.Path(f"/proc/{driver.pid}/task/{driver.pid}/children").read_text().split()
        self.assertEqual(len(children), 3)
        descriptors = [os.pidfd_open(int(child)) for child in children]
        driver.kill()
        for descriptor in descriptors:
            self.assertTrue(select.select([descriptor], [], [], DEADLINE_SECONDS)[0], "a child outlives its driver")
            os.close(descriptor)

    def test_kept_cluster_stays_until_interrupted(self):
        driver = self.start("--keep", "--workers", "1")
        self.read_until(driver, "Ctrl-C ends it")
        self.assertIsNone(driver.poll())
        driver.send_signal(signal.SIGINT)
        driver.communicate(timeout=DEADLINE_SECONDS)
        self.assertEqual(driver.returncode, 0)
        self.assert_nothing_left()

    def test_local_training_needs_no_server(self):
        status, out, err = self.run_driver("--exchange", "local", "--workers", "3", "--epochs", "2")
        self.assertEqual((status, err), (0, ""), out)
        self.assertIn("epoch 1 of 2 on cpu:0,cpu:1,cpu:2", out)
        self.assertRegex(out, r"test accuracy +50\.00 %")
        self.assertRegex(out, r"worker-0 +2 +10 +250\.0 ms")


class Text(unittest.TestCase):
    VIEW = {"epoch": 3, "epochs": 20, "progress": 0.5, "loss": 0.25, "train_accuracy": 0.9, "samples_per_second": 12345.6}

    def test_line_fits_every_width(self):
        for width in range(8, 160):
            with self.subTest(width=width):
                self.assertLessEqual(len(progress.line(self.VIEW, 12.0, width, "#-")), width)

    def test_wide_line_shows_everything(self):
        line = progress.line(self.VIEW, 12.0, 140, "#-")
        for words in ("#" * 20 + "-" * 20, "epoch 3/20", "loss 0.2500", "90.00 %", "12,346 samples/s", "12.0 s left"):
            self.assertIn(words, line)

    def test_quantities_read_well(self):
        self.assertEqual([progress.seconds(x) for x in (0.0123, 7.31, 187)], ["12.3 ms", "7.3 s", "3 min 07 s"])
        self.assertEqual([progress.size(x) for x in (10, 2306867, 5 << 30)], ["10 B", "2.2 MiB", "5.0 GiB"])


if __name__ == "__main__":
    unittest.main()
