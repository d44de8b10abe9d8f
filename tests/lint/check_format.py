#!/usr/bin/env python3
"""Check that clang-format 19 with the repository's .clang-format would change nothing.

Usage: check_format.py [ROOT]         exit status 1 when a file would change, 77 (skipped) without clang-format 19.
"""

import concurrent.futures
import os
import shutil
import subprocess
import sys

from sources import CPP, files, report, root_argument

VERSION = "version 19."
SKIPPED = 77


def formatter():
    """Path of clang-format 19, or None. Other versions break lines elsewhere."""
    for name in ("clang-format-19", "clang-format"):
        path = shutil.which(name)
        if path and VERSION in subprocess.run([path, "--version"], capture_output=True, text=True).stdout:
            return path
    return None


def findings(root, program):
    names = [name for name, _ in files(root, CPP)]
    workers = os.cpu_count() or 1
    parts = [names[k::workers] for k in range(workers) if names[k::workers]]
    command = [program, "--dry-run", "-Werror", "--ferror-limit=1"]
    run = lambda part: subprocess.run(command + part, cwd=root, capture_output=True, text=True)
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for result in pool.map(run, parts):
            errors = [line for line in result.stderr.splitlines() if ": error: " in line]
            yield from (line.split(": error: ")[0] + ": not as clang-format 19 writes it" for line in errors)
            if result.returncode and not errors:
                yield f"{program} failed: {result.stderr.strip()}"


if __name__ == "__main__":
    program_path = formatter()
    if program_path is None:
        print("format check skipped: no clang-format 19 here (package clang-format-19)")
        sys.exit(SKIPPED)
    sys.exit(report(findings(root_argument(), program_path)))
