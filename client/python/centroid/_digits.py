"""The demo's data set: 1,797 handwritten digits of UCI, 57 kB, which are a part of scikit-learn.

    python3 -m centroid._digits [--has] FOLDER     put digits.csv.gz there; --has: only tell by the exit status whether it is
"""

import gzip
import hashlib
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

NAME = "digits.csv.gz"
MEMBER = "sklearn/datasets/data/digits.csv.gz"
SHA256 = "6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8"  # of the unpacked lines


def has(folder):
    """Whether the file is there and whole."""
    try:
        return hashlib.sha256(gzip.decompress((pathlib.Path(folder) / NAME).read_bytes())).hexdigest() == SHA256
    except (OSError, EOFError, ValueError):
        return False


def fetch(folder):
    """Put the file into a folder, from scikit-learn or from Debian's and Ubuntu's signed package of it, which is not installed; whether it worked."""
    folder = pathlib.Path(folder)
    if has(folder):
        return True
    with tempfile.TemporaryDirectory() as download:
        if not (from_module(download) or from_package(download)) or not has(download):
            return False
        folder.mkdir(parents=True, exist_ok=True)
        shutil.move(pathlib.Path(download) / NAME, folder / NAME)
    return True


def from_module(download):
    found = importlib.util.find_spec("sklearn")
    for place in (found and found.submodule_search_locations) or ():
        file = pathlib.Path(place).parent / MEMBER
        if file.is_file():
            shutil.copy(file, download)
            return True
    return False


def from_package(download):
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        return False
    get = ["apt-get", "-q", "download", "python3-sklearn"]
    if not run(get, download):
        update = ["apt-get", "-q", "update"]
        if not run(update if os.geteuid() == 0 else ["sudo", "--non-interactive", *update], download) or not run(get, download):
            return False
    package = next(pathlib.Path(download).glob("python3-sklearn_*.deb"))
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as unpack:
        with tarfile.open(fileobj=unpack.stdout, mode="r|") as files:
            for member in files:
                if member.name.endswith(MEMBER):
                    (pathlib.Path(download) / NAME).write_bytes(files.extractfile(member).read())
    return True


def run(command, folder):
    """Return whether it ended well. What it writes goes to stderr."""
    try:
        return subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False).returncode == 0
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(not (has(sys.argv[2]) if sys.argv[1] == "--has" else fetch(sys.argv[1])))
