"""`centroidctl plan`: what it prints is what workers then need, and its command line works. plan_test.py BIN_DIR"""

import json
import pathlib
import shlex
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import DONE, FAILED, USAGE, main
from harness.ctl import CtlTest
from harness.sharded import Sharded

MODEL = "mlp:64-" + 24 * "256-" + "10"  # the plan counts what at most two of many layers have at once
BASIC = ("--model", MODEL, "--bandwidth", "1Gb/s")


class Plan(Sharded, CtlTest):
    def plan(self, *arguments):
        return json.loads(self.ctl(None, "--output", "json", "plan", *arguments))

    def test_memory_is_that_of_workers_and_commands_work(self):
        for workers, codecs in ((2, ()), (3, ()), (2, ("--codec", "int8", "--codec-down", "bf16"))):
            for row in self.plan(*BASIC, *codecs, "--workers", workers, "--batch", 8)["rows"]:
                with self.subTest(workers=workers, codecs=codecs, flags=row["flags"]):
                    flags = shlex.split(row["command"])[1:]
                    own = dict(zip(flags[::2], flags[1::2]))
                    for left in ("--exchange", "--world", "--rendezvous", "--rank", "--data", "--epochs", "--model", "--batch"):
                        own.pop(left)
                    given = [word for pair in own.items() for word in pair]
                    run = f"-{len(self.processes)}"
                    ranks = self.ranks(workers, *given, "--rounds", 3, run=run, model=MODEL, batch=row["batch"])
                    self.assert_exit(DONE, *ranks)
                    summaries = [self.summary(f"r{rank}{run}") for rank in range(workers)]
                    keys = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
                    most = max(sum(one[key] for key in keys) for one in summaries)
                    planned = sum(row[key] for key in keys)
                    if "pp" in row["flags"]:  # the job measures again: stages may be others than those of the plan
                        continue
                    self.assertLessEqual(most, planned)
                    # Workers do not count a copy's gradient, which comes after the passes.
                    has_copy = workers > 2 and row["flags"] != "--sharding none"
                    self.assertLess(planned, (1.2 if has_copy else 1.1) * most)

    def test_shows_every_way_and_recommends_one_that_fits(self):
        text = self.ctl(None, "plan", *BASIC, "--workers", 4, "--step-time", "50ms")
        for way in ("--sharding full", "--sharding hybrid:2", "--parallel dp=2,pp=2 --sharding grad", "--parallel dp=1,pp=4"):
            self.assertIn(way, text)
        self.assertNotIn("does not fit", text)
        self.assertIn("\ncentroid-worker --exchange sharded --world 4 --", text)
        rows = self.plan(*BASIC, "--workers", 4, "--step-time", "50ms")["rows"]
        middle = sorted(row["bytes"] for row in rows)[len(rows) // 2]
        tight = self.plan(*BASIC, "--workers", 4, "--step-time", "50ms", "--memory", middle)
        self.assertEqual([row["fits"] for row in tight["rows"]], [row["bytes"] <= middle for row in tight["rows"]])
        fastest = min((row for row in tight["rows"] if row["fits"]), key=lambda row: row["step_seconds"])
        self.assertEqual(tight["recommended"], fastest["flags"])
        text = self.ctl(None, "plan", *BASIC, "--workers", 4, "--step-time", "50ms", "--memory", "1MiB", status=FAILED)
        self.assertIn("Nothing fits into 1.0 MiB", text)

    def test_bad_input_is_refused_with_what_to_give(self):
        cases = (
            (["--workers", 0, *BASIC], "--workers"),
            (["--workers", 1, *BASIC], "--workers"),
            (["--workers", 2, "--model", "mlp:64", "--bandwidth", "1Gb/s"], "mlp:64"),
            (["--workers", 2, "--model", "mlp:64-16-10,norm=batch", "--bandwidth", "1Gb/s"], "norm=none"),
            (["--workers", 2, "--model", MODEL, "--bandwidth", "1000"], "1Gb/s (bits)"),
            (["--workers", 2, "--model", MODEL], "--bandwidth"),
            (["--workers", 2, *BASIC, "--optimizer", "none-such"], "none-such"),
            (["--workers", 2, *BASIC, "--memory", "8 elephants"], "--memory"),
            (["--workers", 2, *BASIC, "--step-time", "soon"], "soon"),
            (["--workers", 2, *BASIC, "--batch", 0], "--batch"),
        )
        for arguments, text in cases:
            with self.subTest(arguments=arguments):
                self.assertIn(text, self.ctl(None, "plan", *arguments, status=USAGE))


if __name__ == "__main__":
    main()
