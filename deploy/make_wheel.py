#!/usr/bin/env python3
"""Make a wheel of the Python package, libcentroid.so and the programs, without setuptools.

Usage: make_wheel.py VERSION BUILD_DIR OUT_DIR     prints the path of the wheel
BUILD_DIR has lib/libcentroid.so and wheel-bin, the programs that need only libraries of a plain system (target wheel_programs). The wheel
says what it needs of the C library: that of this machine. source packaging.python.org/specifications/binary-distribution-format
"""

import base64
import hashlib
import pathlib
import platform
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROGRAMS = ("centroid-server", "centroid-worker", "centroidctl")
# Beside the C library: libstdc++ and zlib are on every system with a package manager, and OpenSSL where Python's ssl is.
BUNDLED = "libprometheus-cpp-core.so.1."  # taken along in lib/centroid, where the programs look for it
PLAIN = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6", "libz.so.1", "libssl.so.3", "libcrypto.so.3"}
METADATA = """\
Metadata-Version: 2.1
Name: centroid
Version: {version}
Summary: Data-parallel training over ordinary TCP networks
License: Apache-2.0
Requires-Python: >=3.9
Description-Content-Type: text/markdown

"""
WHEEL = """\
Wheel-Version: 1.0
Generator: centroid (deploy/make_wheel.py)
Root-Is-Purelib: false
Tag: {tag}
"""
ENTRY_POINTS = """\
[console_scripts]
centroid = centroid.__main__:main

[torch.distributed.backends]
centroid = centroid.torch_backend:_register
"""


def check_needs(file, beside):
    """Refuse a file that needs a library which neither a plain system nor the wheel has."""
    dynamic = subprocess.run(["readelf", "-d", file], capture_output=True, text=True, check=True).stdout
    needed = {line.split("[")[1].rstrip("]") for line in dynamic.splitlines() if "(NEEDED)" in line}
    lacking = {name for name in needed - PLAIN if not name.startswith(("ld-linux", *beside))}
    if lacking:
        sys.exit(f"make_wheel.py: {file} needs {', '.join(sorted(lacking))}, which a plain system lacks")


def stripped(file, folder, beside=()):
    """The bytes of a program or library without its symbols."""
    check_needs(file, beside)
    out = pathlib.Path(folder) / file.name
    subprocess.run(["strip", "--strip-unneeded", "-o", out, file.resolve()], check=True)
    return out.read_bytes()


def bundled(file):
    """The libraries that `file` loads and the wheel takes along."""
    lines = subprocess.run(["ldd", file], capture_output=True, text=True, check=True).stdout.splitlines()
    return [pathlib.Path(line.split()[2]) for line in lines if line.split()[0].startswith(BUNDLED)]


def contents(version, build):
    """Names in the wheel, in order, and of each the bytes and the mode."""
    info = f"centroid-{version}.dist-info"
    tag = f"py3-none-manylinux_{platform.libc_ver()[1].replace('.', '_')}_{platform.machine()}"
    files = {f"centroid/{one.name}": (one.read_bytes(), 0o644) for one in sorted((ROOT / "client/python/centroid").glob("*.py"))}
    files |= {f"centroid-{version}.data/data/share/centroid/examples/{one.name}": (one.read_bytes(), 0o644) for one in sorted((ROOT / "client/python/examples").glob("*.py"))}
    with tempfile.TemporaryDirectory() as folder:
        files["centroid/libcentroid.so"] = stripped(build / "lib" / "libcentroid.so", folder), 0o755
        for program in PROGRAMS:
            files[f"centroid-{version}.data/scripts/{program}"] = stripped(build / "wheel-bin" / program, folder, (BUNDLED,)), 0o755
        for library in bundled(build / "wheel-bin" / PROGRAMS[0]):
            files[f"centroid-{version}.data/data/lib/centroid/{library.name}"] = library.read_bytes(), 0o755
    texts = {
        "METADATA": METADATA.format(version=version) + (ROOT / "README.md").read_text(),
        "WHEEL": WHEEL.format(tag=tag),
        "entry_points.txt": ENTRY_POINTS,
        "LICENSE": (ROOT / "LICENSE").read_text(),
    }
    files |= {f"{info}/{name}": (text.encode(), 0o644) for name, text in texts.items()}
    record = "".join(f"{name},sha256={digest(data)},{len(data)}\n" for name, (data, _) in files.items())
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode(), 0o644
    return tag, files


def digest(data):
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def main(version, build, out):
    tag, files = contents(version, pathlib.Path(build))
    path = pathlib.Path(out) / f"centroid-{version}-{tag}.whl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        for name, (data, mode) in files.items():
            entry = zipfile.ZipInfo(name)  # of 1980: the same files make the same wheel
            entry.external_attr, entry.compress_type = (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
    print(path)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
