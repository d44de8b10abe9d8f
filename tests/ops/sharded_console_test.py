"""The page of a rank of exchange sharded in Chromium. sharded_console_test.py BIN_DIR     needs what console_test.py needs; OPS_PICTURES=DIR keeps the pictures there"""

import json
import os
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import ROOT
from harness.browser import PACKAGES, missing
from harness.cluster import DEADLINE_SECONDS, main
from harness.sharded import Sharded

VIEWS = [f"{width} {scheme}" for width in (1600, 900, 380) for scheme in ("dark", "light")]


class ShardedConsole(Sharded):
    def test_page_shows_what_each_rank_has_and_where_its_time_goes(self):
        if reason := missing():
            self.skipTest(reason)
        flags = ["--optimizer", "adam", "--epochs", 1_000_000, "--metrics.listen", "127.0.0.1:0"]
        workers = self.ranks(3, *flags)
        place = workers[1].wait_event("worker.metrics_opened")["endpoint"]
        workers[0].wait_event("sharded.started")
        pictures = pathlib.Path(os.environ.get("OPS_PICTURES", self.folder))
        pictures.mkdir(exist_ok=True)
        command = ["node", ROOT / "tests/ops/sharded_console_check.mjs", PACKAGES, shutil.which("chromium"), f"http://{place}/", pictures]
        looked = subprocess.run(command, capture_output=True, text=True, timeout=4 * DEADLINE_SECONDS, check=False)
        self.assertEqual(looked.returncode, 0, looked.stderr)
        seen = json.loads(looked.stdout)
        self.assertEqual((seen["errors"], seen["foreign"], list(seen["views"])), ([], [], VIEWS))
        for name, view in seen["views"].items():
            with self.subTest(view=name):
                self.assertEqual((view["overflow"], view["axe"]), (0, []))
                self.assertTrue(view["state"].startswith("training"), view["state"])
                expected = [[str(rank), f"r{rank}", f"shard {rank} of 3, copy of {(rank + 2) % 3}"] for rank in range(3)]
                self.assertEqual([row[:3] for row in view["parts"][1:]], expected)
                self.assertEqual(len(view["moves"]), 4)
                self.assertRegex(view["moves"][1][1], r"^[\d.]+ (KiB|MiB|B) in [\d.]+ ms$")
                for label in view["memory"]:
                    self.assertRegex(label, r"^\d r\d.*: parameters .*, gradients .*, state .*, activations ")
                for label in view["times"]:
                    self.assertRegex(label, r"^\d r\d: compute .*, gather .*, reduce .*, copy .*, activations .*, agree ")


if __name__ == "__main__":
    main()
