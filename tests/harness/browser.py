"""What pictures of pages need."""

import os
import pathlib
import shutil

from harness import ROOT

PACKAGES = pathlib.Path(os.environ.get("OPS_NODE_PACKAGES", ROOT / ".cache" / "node"))


def missing():
    for program in ("chromium", "node"):
        if not shutil.which(program):
            return f"no {program} here"
    if not (PACKAGES / "node_modules" / "playwright-core").is_dir():
        return f"no playwright-core in {PACKAGES}; ./centroid test --ops fetches it"
    return None
