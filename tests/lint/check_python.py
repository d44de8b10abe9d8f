#!/usr/bin/env python3
"""Check Python with pyflakes: names that nothing defines, imports that nothing uses.

Usage: check_python.py [ROOT]         exit status 1 when it finds one, 77 (skipped) without pyflakes3 (package pyflakes3).
"""

import shutil
import subprocess
import sys

from sources import PYTHON, files, report, root_argument

SKIPPED = 77


def findings(root):
    names = [name for name, _ in files(root, PYTHON)]
    result = subprocess.run(["pyflakes3", *names], cwd=root, capture_output=True, text=True)
    return (result.stdout + result.stderr).splitlines()


if __name__ == "__main__":
    if shutil.which("pyflakes3") is None:
        print("Python check skipped: no pyflakes3 here (package pyflakes3)")
        sys.exit(SKIPPED)
    sys.exit(report(findings(root_argument())))
