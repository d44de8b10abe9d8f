"""The examples of client/python/examples as their users run them, by `centroid run`. examples_test.py BIN_DIR"""

import os
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import PYTHON, ROOT
from harness.cluster import Process, main
from harness.groups import GroupTest

EXAMPLES = PYTHON / "examples"
DIGITS = ROOT / ".cache" / "data" / "digits.csv.gz"
RUN_SECONDS = 120


class Examples(GroupTest):
    def setUp(self):
        super().setUp()
        self.interpreter = self.python_with("torch")
        for program in ("centroid-server", "centroidctl"):
            (self.folder / program).symlink_to(pathlib.Path(self.programs) / program)
        self.command = self.folder / "centroid"
        self.command.write_text("import sys\nfrom centroid.__main__ import main\nsys.exit(main())\n")

    def run_example(self, *words):
        """Run to the end, and return the output."""
        log = self.folder / f"example-{len(self.processes)}.log"
        variables = {**{key: value for key, value in os.environ.items() if not key.startswith("CENTROID_")}, **self.environment, "OMP_NUM_THREADS": "1"}
        process = Process("/usr/bin/env", ["-C", EXAMPLES, self.interpreter, "-B", *words], log, variables)
        self.processes.append(process)
        self.assertEqual(process.exit_status(RUN_SECONDS), 0, process.text())
        return process.text()

    def run_workers(self, count, *words):
        """What the workers write, without what the command says of the job."""
        output = self.run_example(self.command, "run", "--workers", count, f"--run-dir={self.folder / 'job'}", *words)
        return "\n".join(line for line in output.splitlines() if line.startswith("["))

    def numbers(self, output, pattern):
        found = [float(number) for number in re.findall(pattern, output)]
        self.assertTrue(found, output)
        return found

    def test_digits(self):
        output = self.run_workers(2, "--epochs=6", "--optimizer=adamw", "--lr=0.003", "digits_torch.py", DIGITS)
        self.assertGreater(self.numbers(output, r"([\d.]+) % of the held-out digits are right")[-1], 93, output)

    def test_digits_with_ddp(self):
        for backend in ("gloo", "centroid"):
            output = self.run_workers(2, "digits_ddp.py", DIGITS, backend)
            self.assertGreater(self.numbers(output, r"([\d.]+) % of the held-out digits are right")[-1], 93, output)

    def test_digits_with_processes_that_come_back(self):
        output = self.run_workers(2, "digits_parallel.py", DIGITS)
        ends = re.findall(r"([\d.]+) % of the held-out digits are right after (\d+) steps", output)
        self.assertEqual(len(ends), 2, output)
        self.assertEqual(ends[0], ends[1])
        self.assertGreater(float(ends[0][0]), 93, output)

    def test_diloco(self):
        output = self.run_workers(2, "--local-steps=5", "--rounds=10", "text_diloco.py", ROOT / "ARCHITECTURE.md")
        self.assertLess(self.numbers(output, r"round 10: loss ([\d.]+)")[-1], 3.5, output)  # of one who knows nothing: 5.5

    def test_lora(self):
        base = self.folder / "base.pt"
        pretrained = self.numbers(self.run_example("lora.py", "--pretrain", 20, base, ROOT / "ARCHITECTURE.md"), r"loss ([\d.]+)")[0]
        self.assertLess(pretrained, 4)
        output = self.run_workers(2, "--rounds=25", "--optimizer=adamw", "--lr=0.01", "lora.py", base, ROOT / "tests" / "process" / "examples_test.py")
        trained, every = map(int, re.search(r"(\d+) of (\d+) parameters are trained", output).groups())
        self.assertLess(trained, every / 20)
        first, *_, last = self.numbers(output, r"loss ([\d.]+)")
        self.assertLess(last, first, output)

    def test_recommender(self):
        tables = "--tables=" + ";".join(f"{name}:dim=8,lr=0.2,init=uniform:0.1" for name in ("users", "items"))
        output = self.run_workers(2, "--rounds=300", "--optimizer=adam", "--lr=0.01", tables, "recommender.py")
        first, *_, last = self.numbers(output, r"squared error ([\d.]+)")
        self.assertLess(last, first / 2, output)

    def test_federated(self):
        output = self.run_workers(2, "--local-steps=2", "--outer=average", "--rounds=10", "federated.py", DIGITS)
        self.assertEqual(len(set(self.numbers(output, r"([\d.]+) % of the held-out digits are right"))), 1, output)
        self.assertGreater(self.numbers(output, r"([\d.]+) % of the held-out digits are right")[0], 80, output)

    def test_fsdp(self):
        output = self.run_example("-c", "import importlib.metadata; print('version', importlib.metadata.version('torch').split('.')[0])")
        if "version 1" in output:
            self.skipTest("FSDP on the CPU needs PyTorch 2")
        output = self.run_workers(2, "fsdp.py")
        first, *_, last = self.numbers(output, r"loss ([\d.]+)")
        self.assertLess(last, first, output)


if __name__ == "__main__":
    main(at_a_time=2)
