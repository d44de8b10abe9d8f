"""Every object that the overlays of deploy/kubernetes render: strict types, and what the programs rely on.

kubernetes_test.py BIN_DIR     needs kubectl, node, and in the folder OPS_NODE_PACKAGES the packages of tests/ops/package.json
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
OVERLAYS = ("dev", "prod", "jobset", "ha")
PACKAGES = pathlib.Path(os.environ.get("OPS_NODE_PACKAGES", ROOT / ".cache" / "node"))
SKIPPED = 77


def render(overlay):
    folder = ROOT / "deploy" / "kubernetes" / "overlays" / overlay
    return subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, check=True).stdout


def render_with(component):
    """The overlay dev and one component."""
    with tempfile.TemporaryDirectory() as folder:
        base = os.path.relpath(ROOT / "deploy" / "kubernetes", os.path.realpath(folder))
        text = f"""apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [{base}/overlays/dev]
components: [{base}/components/{component}]
"""
        (pathlib.Path(folder) / "kustomization.yaml").write_text(text)
        return subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, check=True).stdout


def strict_check(text):
    script = pathlib.Path(__file__).with_name("check_objects.mjs")
    return subprocess.run(["node", script, PACKAGES], input=text, capture_output=True, text=True, check=False)


def objects(text):
    """Rendered objects, by way of the same YAML reader as the check."""
    program = "const {parseAllDocuments:p}=require('yaml');process.stdout.write(JSON.stringify(p(require('fs').readFileSync(0,'utf8')).map(d=>d.toJS())))"
    done = subprocess.run(["node", "-e", program], input=text, capture_output=True, text=True, check=True, cwd=PACKAGES)
    return json.loads(done.stdout)


def pod_specs(object_):
    """Pod specs inside an object, with the kind of what runs them."""
    found = []

    def walk(value):
        if isinstance(value, dict):
            if "containers" in value:
                found.append(value)
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    walk(object_)
    return found


class Rendered(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.texts = {overlay: render(overlay) for overlay in OVERLAYS}
        cls.objects = {overlay: objects(text) for overlay, text in cls.texts.items()}

    def specs(self):
        for overlay, all_objects in self.objects.items():
            for one in all_objects:
                for spec in pod_specs(one):
                    yield f"{overlay}: {one['kind']}/{one['metadata']['name']}", spec

    def test_every_object_fits_its_type(self):
        for overlay, text in self.texts.items():
            with self.subTest(overlay):
                done = strict_check(text)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_every_component_fits_alone(self):
        for folder in sorted((ROOT / "deploy" / "kubernetes" / "components").iterdir()):
            with self.subTest(folder.name):
                text = render_with(folder.name)
                self.assertNotEqual(text, self.texts["dev"])
                done = strict_check(text)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_check_finds_what_is_wrong(self):
        faults = [("enableServiceLinks", "enableServiceLink"), ("completionMode: Indexed", "completionMode: Indexd"), ("maxUnavailable: 1", "maxUnavailble: 1")]
        for right, wrong in faults:
            self.assertIn(right, self.texts["prod"])
            self.assertNotEqual(strict_check(self.texts["prod"].replace(right, wrong)).returncode, 0, wrong)
        for right, wrong in (("podMetricsEndpoints", "podMetricEndpoints"), ("port: metrics", "prot: metrics")):
            self.assertNotEqual(strict_check(self.texts["prod"].replace(right, wrong)).returncode, 0, wrong)

    def test_pods_obey_the_restricted_profile(self):
        count = 0
        for name, spec in self.specs():
            count += 1
            with self.subTest(name):
                self.assertFalse(spec["automountServiceAccountToken"])
                self.assertTrue(spec["securityContext"]["runAsNonRoot"])
                self.assertEqual(spec["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"})
                for container in spec["containers"]:
                    context = container["securityContext"]
                    self.assertEqual(context["capabilities"], {"drop": ["ALL"]})
                    self.assertFalse(context["allowPrivilegeEscalation"])
                    self.assertTrue(context["readOnlyRootFilesystem"])
                    self.assertIn("memory", container["resources"]["limits"])
        self.assertEqual(count, 9)

    def test_pods_get_no_variables_of_services(self):
        for name, spec in self.specs():  # they would begin with CENTROID_ and be refused as unknown settings
            self.assertIs(spec["enableServiceLinks"], False, name)

    def test_every_setting_is_known_to_its_program(self):
        """Start each program with the settings of its container: it must not call any of them unknown or wrong."""
        for overlay, all_objects in self.objects.items():
            maps = {one["metadata"]["name"]: one["data"] for one in all_objects if one["kind"] == "ConfigMap"}
            for spec in [spec for one in all_objects for spec in pod_specs(one)]:
                container = spec["containers"][0]
                if container["name"] == "etcd":
                    continue
                settings = {}
                for source in container["envFrom"]:
                    settings |= maps[source["configMapRef"]["name"]]
                settings |= {one["name"]: one["value"] for one in container.get("env", []) if "value" in one and not one["name"].endswith("TOKEN_FILE")}
                settings = {name: value.replace("$(POD_NAME)", "centroid-server-0") for name, value in settings.items()}
                self.assertIn("CENTROID_" + ("SERVER" if container["name"] == "worker" else "EPOCHS"), settings)
                program = self.programs / f"centroid-{container['name']}"
                done = subprocess.run([program, "--print-config"], env=settings, capture_output=True, text=True, timeout=30, check=False)
                self.assertEqual(done.returncode, 0, f"{overlay}: {done.stderr}")

    def test_names_that_objects_refer_to_exist(self):
        for overlay, all_objects in self.objects.items():
            names = {(one["kind"], one["metadata"]["name"]) for one in all_objects}
            for spec in [spec for one in all_objects for spec in pod_specs(one)]:
                self.assertIn(("ServiceAccount", spec["serviceAccountName"]), names, overlay)
                for volume in spec.get("volumes", []):
                    if "persistentVolumeClaim" in volume:
                        self.assertIn(("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]), names)
            for one in all_objects:
                if one["kind"] == "StatefulSet":
                    self.assertIn(("Service", one["spec"]["serviceName"]), names)

    def test_exit_statuses_are_those_of_the_programs(self):
        header = (ROOT / "worker" / "app.h").read_text() + (ROOT / "server" / "app.h").read_text()
        no_retry = {int(number) for name, number in re.findall(r"k(ExitUsage|ExitHalted) = (\d+)", header)}
        self.assertEqual(no_retry, {2, 3})
        for overlay in OVERLAYS:
            for values in re.findall(r"values:\n((?: +- \d+\n)+)", self.texts[overlay]):
                self.assertEqual({int(number) for number in re.findall(r"\d+", values)}, no_retry)


def missing():
    for program in ("kubectl", "node"):
        if not shutil.which(program):
            return f"no {program} here"
    if not (PACKAGES / "node_modules" / "kubernetes-models").is_dir():
        return f"no packages in {PACKAGES}; ./centroid test --ops fetches them"
    return None


if __name__ == "__main__":
    if reason := missing():
        print(f"skipped: {reason}")
        sys.exit(SKIPPED)
    Rendered.programs = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main(verbosity=2)
