"""The demo with the real programs: it trains, it repeats, and Ctrl-C leaves nothing behind. demo_test.py BIN_DIR DATA_DIR"""

import importlib.util
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import DEMO, PYTHON

DEADLINE_SECONDS = 300
SKIPPED = 77


class Demo(unittest.TestCase):
    programs = data = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def start(self, *flags):
        places = ["--bin", self.programs, "--data-dir", self.data, "--runs", self.folder]
        command = [*DEMO, *places, "--model", "mlp:64-32-10", "--batch", "16", "--json", *flags]
        driver = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(driver.stdout.close)
        self.addCleanup(driver.stderr.close)
        self.addCleanup(driver.kill)
        return driver

    def train(self, *flags):
        driver = self.start(*flags)
        out, err = driver.communicate(timeout=DEADLINE_SECONDS)
        self.assertEqual(driver.returncode, 0, err)
        return json.loads(out)

    def test_cluster_learns_and_leaves_a_checkpoint(self):
        result = self.train("--workers", "2", "--epochs", "4", "--lr", "0.005")
        self.assertGreater(result["test_accuracy"], 0.9)
        self.assertEqual([worker["name"] for worker in result["workers"]], ["worker-0", "worker-1"])
        self.assertEqual(sum(worker["samples"] for worker in result["workers"]), result["samples"])
        self.assertTrue(pathlib.Path(result["checkpoint"]).exists(), result["checkpoint"])

    def test_same_seed_gives_the_same_parameters_on_every_worker_and_in_every_run(self):
        runs = [self.train("--workers", "2", "--epochs", "2", "--seed", "5") for _ in range(2)]
        prints = {worker["fingerprint"] for result in runs for worker in result["workers"]}
        self.assertEqual(len(prints), 1, prints)

    def test_local_steps_learn_in_every_exchange(self):
        steps = ["--local-steps", "20", "--workers", "2", "--epochs", "30", "--lr", "0.005"]
        for exchange in ("star", "ring"):
            result = self.train(*steps, "--fragments", "2", "--overlap", "4", "--exchange", exchange)
            self.assertGreater(result["test_accuracy"], 0.95)
            self.assertEqual(sum(worker["samples"] for worker in result["workers"]), result["samples"])

    def test_local_training_learns(self):
        result = self.train("--exchange", "local", "--workers", "2", "--epochs", "4", "--lr", "0.005")
        self.assertGreater(result["test_accuracy"], 0.9)

    def test_interrupt_leaves_no_process(self):
        driver = self.start("--workers", "2", "--epochs", "100000")
        for line in driver.stderr:
            if "loss" in line:
                break
        driver.send_signal(signal.SIGINT)
        driver.communicate(timeout=DEADLINE_SECONDS)
        self.assertEqual(driver.returncode, 130)
        needle = str(self.folder).encode()
        for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                self.assertNotIn(needle, entry.read_bytes(), entry)
            except OSError:
                continue

    def test_an_installed_demo_without_a_data_set_says_what_to_do(self):
        if importlib.util.find_spec("sklearn"):
            self.skipTest("this Python has scikit-learn, and so the data set")
        command = self.folder / "centroid"
        command.write_text("import sys\nfrom centroid.__main__ import main\nsys.exit(main())\n")
        (self.folder / "centroid-server").symlink_to(pathlib.Path(self.programs).resolve() / "centroid-server")
        environment = {"PATH": str(self.folder), "HOME": str(self.folder), "PYTHONPATH": str(PYTHON)}  # no apt-get
        done = subprocess.run([sys.executable, command, "demo"], env=environment, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("pip install scikit-learn", done.stderr)
        self.assertIn(str(self.folder / ".cache" / "centroid" / "digits.csv.gz"), done.stderr)


if __name__ == "__main__":
    Demo.programs, Demo.data = sys.argv.pop(1), pathlib.Path(sys.argv.pop(1))
    if not (Demo.data / "digits.csv.gz").exists():
        print(f"skipped: no {Demo.data}/digits.csv.gz; ./centroid setup fetches it")
        sys.exit(SKIPPED)
    unittest.main()
