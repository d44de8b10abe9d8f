"""The OpenAPI document by redocly's rules, and a workflow of it against a running server.

openapi_test.py BIN_DIR [unittest's arguments]. Needs node and @redocly/cli in the folder that OPS_NODE_PACKAGES names.
"""

import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "process"))
from cluster import ClusterTest, main  # noqa: E402

SKIPPED = 77
REDOCLY = pathlib.Path(os.environ.get("OPS_NODE_PACKAGES", "")) / "node_modules" / ".bin" / "redocly"


class Document(ClusterTest):
    def redocly(self, *arguments):
        environment = {**os.environ, "REDOCLY_TELEMETRY": "off", "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true"}
        done = subprocess.run([REDOCLY, *map(str, arguments)], capture_output=True, text=True, timeout=200, check=False, env=environment)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_document_follows_the_recommended_rules(self):
        self.redocly("lint", ROOT / "server" / "api" / "openapi.json", "--max-problems", "20")

    def test_workflow_answers_as_documented(self):
        server = self.server("--api.token", "of-the-test")
        said = self.redocly(
            "respect", ROOT / "tests" / "ops" / "rest.arazzo.json", "--server", f"rest=http://{server.api}", "--input", "authorization=Bearer of-the-test"
        )
        self.assertIn("resume", said)


if __name__ == "__main__":
    if not shutil.which("node") or not REDOCLY.exists():
        print("skipped: no node or @redocly/cli here; ./centroid test --ops fetches them")
        sys.exit(SKIPPED)
    main()
