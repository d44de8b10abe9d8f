#!/usr/bin/env python3
"""Write golden.json beside this file: hashes of the final states of the jobs in tests/process/golden_test.py.

Usage: make_golden.py BIN_DIR [--runs 5]

Each job runs several times, and all runs must agree. The file in the repository has the bits of commit 9a33d03. Write it anew only for an
intended change of bits, and explain that in the commit.
"""

import argparse
import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.golden import GOLDEN, PEERS, STAR, GoldenJobs

HERE = pathlib.Path(__file__).resolve().parent


class Make(GoldenJobs):
    runs = 0

    def same(self, name, job):
        """The final state of the job, which is the same in every run."""
        found = {json.dumps(job(), sort_keys=True) for _ in range(self.runs)}
        self.assertEqual(len(found), 1, f"{name}: {self.runs} runs end with different bits: {found}")
        print(f"{name}: {self.runs} runs agree", flush=True)
        return json.loads(found.pop())

    def make(self):
        jobs = {name: self.same(name, lambda: self.star(name)) for name in STAR}  # noqa: B023
        jobs |= {name: self.same(name, lambda: self.peers(name)) for name in PEERS}  # noqa: B023
        jobs["tables"] = self.same("tables", lambda: self.tables(1))
        self.assertEqual(self.same("tables on two servers", lambda: self.tables(2)), jobs["tables"])
        GOLDEN.write_text(json.dumps({"probe": self.probe(), "jobs": jobs}, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    Make.programs, Make.runs = options.bin.resolve(), options.runs
    return 0 if unittest.TextTestRunner().run(Make("make")).wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
