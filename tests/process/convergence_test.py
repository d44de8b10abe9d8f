"""Compressed gradients lose no accuracy: real digits, four workers, several seeds. convergence_test.py BIN_DIR DATA_DIR

Prints the table of docs/how-to/slow-networks.md#accuracy. SGD, because Adam divides by the root of what arrives, and a top-k gradient arrives in bursts.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import DEMO

SEEDS = range(1, 6)
SKIPPED = 77
CODECS = ("f32", "int8", "int8 / int8", "sign", "sign / sign", "sign:feedback=off", "topk:0.01", "topk:0.01 / topk:0.01", "topk:0.01,values=int8", "topk:0.01,feedback=off")
PEER_CODECS = ("f32", "int8", "sign", "topk:0.01", "topk:0.01,values=int8")
ROWS = [("star", codec) for codec in CODECS] + [(exchange, codec) for exchange in ("ring", "hierarchical") for codec in PEER_CODECS]


def train(exchange, codec, seed):
    """Test accuracy in percent, bytes that the workers sent and got. `codec`: UP, or UP / DOWN. Hierarchical: two nodes of two workers."""
    up, _, down = codec.partition(" / ")
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--bin", BIN, "--data-dir", DATA, "--runs", folder, "--json", "--codec", up, "--seed", str(seed)]
        flags += ["--exchange", exchange, "--codec-down", down or "f32", "--nodes", "2" if exchange == "hierarchical" else "1"]
        flags += ["--optimizer", "sgd", "--lr", "0.1", "--epochs", "20"]
        done = subprocess.run([*DEMO, *flags], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise AssertionError(f"{exchange}, {codec}, seed {seed}: {done.stderr}")
        result = json.loads(done.stdout)
        return 100 * result["test_accuracy"], *(sum(worker[way] for worker in result["workers"]) for way in ("bytes_out", "bytes_in"))


class Convergence(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.mean = {}
        print(f"seeds {list(SEEDS)}\n{'exchange':<14}{'codec':<28}{'mean':>8}{'least':>8}{'most':>8}{'MiB up':>10}{'MiB down':>10}")
        for exchange, codec in ROWS:
            runs = [train(exchange, codec, seed) for seed in SEEDS]
            accuracy = [run[0] for run in runs]
            mean = statistics.mean(accuracy)
            cls.mean[codec if exchange == "star" else (exchange, codec)] = mean
            moved = "".join(f"{statistics.mean(run[way] for run in runs) / 2**20:>10.1f}" for way in (1, 2))
            print(f"{exchange:<14}{codec:<28}{mean:>8.2f}{min(accuracy):>8.2f}{max(accuracy):>8.2f}{moved}", flush=True)

    def test_top_k_with_error_feedback_is_as_good_as_dense(self):
        self.assertGreaterEqual(self.mean["topk:0.01"], self.mean["f32"] - 0.3)

    def test_top_k_without_error_feedback_is_worse(self):
        self.assertLess(self.mean["topk:0.01,feedback=off"], self.mean["f32"] - 1)

    def test_compressed_results_are_as_good_as_dense(self):
        self.assertGreaterEqual(self.mean["topk:0.01 / topk:0.01"], self.mean["f32"] - 0.3)
        self.assertLessEqual(abs(self.mean["int8 / int8"] - self.mean["f32"]), 0.3)

    def test_rings_are_as_good_as_dense(self):
        for exchange, codec in ROWS[len(CODECS) :]:
            with self.subTest(exchange=exchange, codec=codec):
                self.assertGreaterEqual(self.mean[exchange, codec], self.mean["f32"] - 0.3)

    def test_signs_with_error_feedback_are_as_good_as_dense(self):
        for codec in ("sign", "sign / sign"):
            self.assertGreaterEqual(self.mean[codec], self.mean["f32"] - 0.3)

    def test_int8_is_as_good_as_dense(self):
        self.assertLessEqual(abs(self.mean["int8"] - self.mean["f32"]), 0.1)


if __name__ == "__main__":
    BIN, DATA = sys.argv[1:3]
    if not (pathlib.Path(DATA) / "digits.csv.gz").exists():
        sys.exit(SKIPPED)
    del sys.argv[1:3]
    unittest.main(verbosity=2)
