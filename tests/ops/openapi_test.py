"""The OpenAPI document by redocly's rules, and a workflow of it against a running server.

openapi_test.py BIN_DIR [unittest's arguments]. Needs node and @redocly/cli in the folder that OPS_NODE_PACKAGES names.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import ROOT
from harness.cluster import ClusterTest, main

SKIPPED = 77
REDOCLY = pathlib.Path(os.environ.get("OPS_NODE_PACKAGES", "")) / "node_modules" / ".bin" / "redocly"
WORKFLOW = ROOT / "tests" / "ops" / "rest.arazzo.json"
PICTURES = {"get_model_picture"}  # respect takes SVG for an object; tests/process/rest_contract_test.py has it


def steps():
    (workflow,) = json.loads(WORKFLOW.read_text())["workflows"]
    return workflow["steps"]


class Document(ClusterTest):
    def setUp(self):
        super().setUp()
        self.document, self.workflow = self.folder / "openapi.json", self.folder / WORKFLOW.name
        printed = subprocess.run([pathlib.Path(self.programs) / "centroid-server", "--print-openapi"], capture_output=True, text=True, check=True).stdout
        self.document.write_text(printed)
        shutil.copyfile(WORKFLOW, self.workflow)

    def redocly(self, *arguments):
        environment = {**os.environ, "REDOCLY_TELEMETRY": "off", "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true"}
        done = subprocess.run([REDOCLY, *map(str, arguments)], capture_output=True, text=True, timeout=200, check=False, env=environment)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_document_follows_the_recommended_rules(self):
        self.redocly("lint", self.document, "--max-problems", "20")

    def test_workflow_answers_as_documented(self):
        server = self.server("--api.token", "of-the-test", "--epochs", "1000000", "--min-workers", "3", "--checkpoint.keep", "5", "--tables", "words:dim=4")
        for k in range(3):
            self.worker(server, f"w{k}")
        server.wait_event("epoch.ended", epoch="0")
        where = ["--server", f"rest=http://{server.api}", "--input", "authorization=Bearer of-the-test"]
        said = self.redocly("respect", self.workflow, *where)
        for step in steps():
            self.assertIn(step["stepId"], said)

    def test_workflow_has_every_operation(self):
        document = json.loads(self.document.read_text())
        operations = {one["operationId"] for path in document["paths"].values() for one in path.values()}
        self.assertEqual({step["operationId"].rpartition(".")[2] for step in steps()}, operations - PICTURES)


if __name__ == "__main__":
    if not shutil.which("node") or not REDOCLY.exists():
        print("skipped: no node or @redocly/cli here; ./centroid test --ops fetches them")
        sys.exit(SKIPPED)
    main()
