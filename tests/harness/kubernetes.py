"""What deploy/kubernetes renders."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

from harness import ROOT
from harness.browser import PACKAGES

KUBERNETES = ROOT / "deploy" / "kubernetes"
KEEP = 3  # checkpoint.keep, where nothing is said of it
DISK_BYTES_PER_SECOND = 100e6  # of docs/how-to/capacity.md, "Sizing"
SPARE_SECONDS = 20


def kustomize(folder):
    return subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, check=True).stdout


def render(overlay):
    return kustomize(KUBERNETES / "overlays" / overlay)


def render_with(*components, overlay="dev", more=""):
    """An overlay and components, and what else its kustomization says."""
    with tempfile.TemporaryDirectory() as folder:
        base = os.path.relpath(KUBERNETES, os.path.realpath(folder))
        text = f"""apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [{base}/overlays/{overlay}]
components: [{", ".join(f"{base}/components/{component}" for component in components)}]
{more}"""
        (pathlib.Path(folder) / "kustomization.yaml").write_text(text)
        return kustomize(folder)


def next_release():
    """What docs/how-to/deploy.md puts into an overlay for workers of the next image: they are a second Job."""
    text = (ROOT / "docs" / "how-to" / "deploy.md").read_text()
    (found,) = [block for block in re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL) if "allowNameChange" in block]
    return found


def objects(text):
    """Rendered objects, by way of the same YAML reader as the check."""
    program = "const {parseAllDocuments:p}=require('yaml');process.stdout.write(JSON.stringify(p(require('fs').readFileSync(0,'utf8')).map(d=>d.toJS())))"
    done = subprocess.run(["node", "-e", program], input=text, capture_output=True, text=True, check=True, cwd=PACKAGES)
    return json.loads(done.stdout)


def bytes_of(quantity):
    """Bytes of a quantity such as 50Gi."""
    number, unit = re.fullmatch(r"(\d+)([KMGT]i)", quantity).groups()
    return int(number) * 1024 ** ("KMGT".index(unit[0]) + 1)


def seconds_of_checkpoint(claim, memory, keep):
    """Of the largest that claim or memory allows, as docs/how-to/capacity.md reckons: `keep` of them and the one that is written lie on the disk, and one
    is smaller than the memory."""
    return max(bytes_of(claim) / (keep + 1), bytes_of(memory)) / DISK_BYTES_PER_SECOND


def action_of(spec, container, status):
    """The action of the first rule of a Job's podFailurePolicy that an exit status meets; None: it is counted, as without rules."""
    for rule in spec["podFailurePolicy"]["rules"]:
        codes = rule.get("onExitCodes")
        if codes and codes["operator"] == "In" and codes["containerName"] == container and status in codes["values"]:
            return rule["action"]
    return None


def missing():
    for program in ("kubectl", "node"):
        if not shutil.which(program):
            return f"no {program} here"
    if not (PACKAGES / "node_modules" / "kubernetes-models").is_dir():
        return f"no packages in {PACKAGES}; ./centroid test --ops fetches them"
    return None
