"""What the images' files load is among them: deploy/image-root, which deploy/Dockerfile runs, and the dynamic loader over every file that it lays out.

image_root_test.py BIN_DIR     needs root (files keep their owners) and tini-static
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import ROOT, images
from harness.cluster import Runner
from harness.images import run

SKIPPED = 77
STUBS = ("libdl.so.2", "libpthread.so.0", "librt.so.1")  # of glibc, since 2.34 empty
NVIDIA = ("libcublas", "libcublasLt", "libnccl")


def installed(name):
    """Path of the newest library of this name with a release (libcublas.so.13), or None: as ldconfig knows it, else where CUDA is installed."""
    known = re.findall(rf"^\s*{name}\.so\.(\d+) .*=> (\S+)$", run("ldconfig", "-p").stdout, re.MULTILINE)
    places = [place for pattern in ("lib", "lib64", "targets/*/lib") for place in pathlib.Path("/usr/local").glob(f"cuda*/{pattern}/{name}.so.*")]
    known += [(found[1], str(place)) for place in places if (found := re.search(r"\.so\.(\d+)$", place.name))]
    return max(known, key=lambda one: int(one[0]), default=(None, None))[1]


class ImageRoot(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="centroid-image-root-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def make_root(self, kind, *libraries, programs=None):
        """The root folder of an image, as the Dockerfile's stage makes it."""
        root = self.folder / kind
        run(ROOT / "deploy" / "image-root", kind, programs or self.programs, root, *libraries, cwd=ROOT)
        return root

    def assert_closed(self, root):
        """All that any file of this root loads lies in it; returns the names of its libraries."""
        (loader,) = (root / "usr" / "lib").glob("ld-linux*")
        files = [file for folder in ("bin", "lib") for file in sorted((root / "usr" / folder).iterdir()) if file not in (loader, root / "usr" / "bin" / "tini")]
        faults = []
        for file in files:
            done = subprocess.run([loader, "--inhibit-cache", "--library-path", root / "usr" / "lib", "--list", file], capture_output=True, text=True, check=False,
                                  env={"PATH": os.environ["PATH"]})  # fmt: skip
            if "statically linked" in done.stdout + done.stderr:
                continue
            found = re.findall(r"^\s*(\S+) => (.+?)(?: \(0x\w+\))?$", done.stdout, re.MULTILINE)
            if done.returncode != 0 or not found:
                faults.append(f"{file.name}: status {done.returncode} {done.stderr.strip()}")
            faults += [f"{file.name}: {name} => {where}" for name, where in found if not where.startswith(str(root))]
        self.assertEqual(faults, [])
        return {file.name for file in files if file.parent.name == "lib"}

    def test_server_worker_and_etcd_find_all_that_they_load(self):
        for kind, programs in (("server", self.programs), ("worker", self.programs), ("etcd", images.etcd_folder())):
            with self.subTest(kind):
                if programs is None:
                    self.skipTest("no etcd here; ./centroid test --ops fetches it")
                root = self.make_root(kind, programs=programs)
                self.assert_closed(root)
                self.assertTrue((root / "usr" / "bin" / ("etcd" if kind == "etcd" else f"centroid-{kind}")).is_file())

    @unittest.skipUnless(shutil.which("cc"), "no cc here")
    def test_a_library_that_is_looked_up_brings_what_it_names(self):
        """A stand-in that names the stubs of glibc, as NVIDIA's libraries do."""
        source, library = self.folder / "standin.c", self.folder / "libstandin.so.1"
        source.write_text("int nothing;\n")
        if run("cc", "-shared", "-fPIC", "-o", library, source, "-Wl,--no-as-needed", *(f"-l:{name}" for name in STUBS), check=False).returncode != 0:
            self.skipTest(f"no {', '.join(STUBS)} of glibc here")
        names = self.assert_closed(self.make_root("worker", library))
        self.assertLessEqual({library.name, *STUBS}, names)

    def test_libraries_of_nvidia_bring_what_they_name(self):
        """Those of this machine, in place of the Dockerfile's; the driver's own come from the host."""
        paths = {name: installed(name) for name in NVIDIA}
        if missing := [name for name, path in paths.items() if path is None]:
            self.skipTest(f"no {', '.join(missing)} here (ldconfig -p, /usr/local/cuda*)")
        names = self.assert_closed(self.make_root("worker", *paths.values()))
        self.assertLessEqual({pathlib.Path(path).name for path in paths.values()}, names)

    def test_what_is_not_installed_is_named(self):
        root = self.folder / "none"
        done = run(ROOT / "deploy" / "image-root", "worker", self.programs, root, "libno-such.so.7", cwd=ROOT, check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("libno-such.so.7 is not installed here", done.stderr)


def missing():
    if os.geteuid() != 0:
        return "not root: images keep their files' owners"
    if not pathlib.Path("/usr/bin/tini-static").exists():
        return "no /usr/bin/tini-static here (package tini); ./centroid test --ops installs it"
    if not (ROOT / ".cache" / "data" / "digits.csv.gz").exists():
        return "no .cache/data/digits.csv.gz, which ./centroid setup fetches"
    return None


if __name__ == "__main__":
    if reason := missing():
        print(f"skipped: {reason}")
        sys.exit(SKIPPED)
    ImageRoot.programs = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main(verbosity=2, testRunner=Runner)
