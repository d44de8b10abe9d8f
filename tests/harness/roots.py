"""Bare systems for tests of packages: what debootstrap makes of Debian, in an archive that ./centroid test --ops makes."""

import os
import pathlib
import shutil
import subprocess

from harness import ROOT

ARCHIVES = ROOT / ".cache" / "roots"
RELEASES = ("bookworm", "trixie")
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}


def why_not():
    """Reason to skip, or None."""
    if os.geteuid() != 0:
        return "not root: a bare system is entered with chroot"
    if not any(archive_of(release).exists() for release in RELEASES):
        return f"no {ARCHIVES}/*.tar, which ./centroid test --ops makes with debootstrap"
    tried = subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True, text=True, check=False)
    return f"no namespaces here: {tried.stderr.strip()}" if tried.returncode != 0 else None


def archive_of(release):
    return ARCHIVES / f"{release}.tar"


class BareRoot:
    """A fresh system in `folder`. What runs in it ends with the command that started it."""

    def __init__(self, release, folder):
        self.release, self.folder = release, pathlib.Path(folder)
        self.folder.mkdir(parents=True)
        subprocess.run(["tar", "-C", self.folder, "-xf", archive_of(release)], check=True)

    def bring(self, *files):
        """Copy files into /root."""
        for file in files:
            shutil.copy(file, self.folder / "root")

    def command(self, *words, **environment):
        """The words that run a command in /root of the system, and the environment for them."""
        enter = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", f"--root={self.folder}", "--wd=/root"]
        return [*enter, "/usr/bin/env", "-i", *(f"{name}={value}" for name, value in {**ENVIRONMENT, **environment}.items()), *map(str, words)]

    def run(self, *words, check=True, timeout=300, **environment):
        """Run to the end; returns stdout and stderr together, and where `check` is False the exit status too."""
        done = subprocess.run(self.command(*words, **environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout, check=False)
        if not check:
            return done.returncode, done.stdout
        if done.returncode != 0:
            raise AssertionError(f"{self.release}: {' '.join(map(str, words))}: status {done.returncode}\n{done.stdout[-4000:]}")
        return done.stdout
