"""The wheel and the Debian packages, each installed in bare systems and used there; cmake --install, find_package and pkg-config.

packages_test.py BIN_DIR     needs root, bare systems (./centroid test --ops makes them), and the target wheel_programs
"""

import os
import pathlib
import platform
import re
import shutil
import signal
import socket
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import ROOT, roots
from harness.cluster import DEADLINE_SECONDS, Process, Runner, digits, wait_for
from harness.images import run
from harness.roots import BareRoot

SKIPPED = 77
WHEEL_BYTES = 15_000_000
TRAIN = """
import os
import centroid
w = memoryview(bytearray(32)).cast("f")
with centroid.Trainer(None, {"w": w}, samples=400, batch=10) as trainer:
    for share in trainer:
        trainer.finish({"w": memoryview(bytearray(32)).cast("f")})
print(trainer.end, os.environ["RANK"])
"""
PROGRAM = """
#include <centroid.h>
#include <cstdio>
int main() { return std::puts(centroid_version()) < 0 || centroid_abi() != CENTROID_ABI; }
"""
PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(program CXX)
find_package(Centroid {version} REQUIRED)
add_executable(program program.cc)
target_link_libraries(program PRIVATE Centroid::centroid)
"""


class Packages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.made = pathlib.Path(tempfile.mkdtemp(prefix="centroid-packages-"))
        cls.addClassCleanup(shutil.rmtree, cls.made)
        cls.version = re.search(r"^CMAKE_PROJECT_VERSION:\w+=(.*)$", (cls.build / "CMakeCache.txt").read_text(), re.MULTILINE)[1]
        if (cls.build / "wheel-bin" / "centroid-server").exists():
            run(sys.executable, ROOT / "deploy" / "make_wheel.py", cls.version, cls.build, cls.made)
        run("cpack", "--config", cls.build / "CPackConfig.cmake", "-B", cls.made)
        shutil.rmtree(cls.made / "_CPack_Packages")

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="centroid-root-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def package(self, pattern):
        found = list(self.made.glob(pattern))
        if not found and pattern.endswith(".whl"):
            self.skipTest("no wheel-bin: ninja wheel_programs, or ./centroid test --ops")
        self.assertEqual(len(found), 1, list(self.made.iterdir()))
        return found[0]

    def systems(self, releases=roots.RELEASES):
        """A fresh system of each of these releases that is there, each a subtest."""
        for release in releases:
            with self.subTest(release):
                if not roots.archive_of(release).exists():
                    self.skipTest(f"no bare {release} here; ./centroid test --ops makes it")
                folder = self.folder / release
                try:
                    yield BareRoot(release, folder)
                finally:
                    shutil.rmtree(folder, ignore_errors=True)

    def assert_trains(self, system, command, folder=""):
        """`centroid run` with a program in Python, then with the worker of built-in models."""
        (system.folder / "root" / "train.py").write_text(TRAIN)
        (system.folder / "root" / "digits.csv.gz").write_bytes(digits())
        said = system.run(command, "run", "--workers", 2, "--rounds=40", "train.py")
        self.assertIn("[0] finished 0", said)
        self.assertIn("[1] finished 1", said)
        worker = [f"{folder}centroid-worker", "--data", "digits", "--data-cache-dir", "/root", "--model", "mlp:64-16-10", "--batch", 16]
        said = system.run(command, "run", "--workers", 2, "--rounds=20", *worker)
        self.assertIn("job.ended state=finished round=20", said)

    def test_the_wheel_is_small(self):
        wheel = self.package("*.whl")
        print(f"{wheel.name}: {wheel.stat().st_size:,} bytes")
        self.assertLessEqual(wheel.stat().st_size, WHEEL_BYTES)

    def test_the_wheel_trains_in_a_new_environment_without_a_compiler_or_a_network(self):
        wheel = self.package("*.whl")
        for system in self.systems():
            system.bring(wheel)
            for file in system.folder.glob("usr/lib/*/libprometheus-cpp-core.so*"):
                file.unlink()  # the wheel has its own
            system.run("python3", "-m", "venv", "venv")
            system.run("venv/bin/pip", "install", "--no-index", f"./{wheel.name}")
            self.assertEqual(system.run("venv/bin/centroid", "version").strip(), self.version)
            self.assertIn(self.version, system.run("venv/bin/centroidctl", "--version"))
            self.assert_trains(system, "venv/bin/centroid", "venv/bin/")
            self.assertIn("digits_parallel.py", [file.name for file in (system.folder / "root/venv/share/centroid/examples").iterdir()])
            status, said = system.run("venv/bin/centroid", "demo", check=False, http_proxy="http://127.0.0.1:9")
            self.assertEqual(status, 1, said)
            self.assertIn("pip install scikit-learn", said)
            said = system.run("venv/bin/centroid", "demo", "--data-dir", "/root", "--epochs", 4, "--lr", 0.005)
            self.assertGreater(float(re.search(r"test accuracy +([0-9.]+) %", said)[1]), 80)
            found = system.run("venv/bin/python", "-c", "from importlib.metadata import entry_points as e; print([p.value for p in e(group='torch.distributed.backends')])")
            self.assertEqual(found.strip(), "['centroid.torch_backend:_register']")
            system.run("venv/bin/pip", "uninstall", "-y", "centroid")
            self.assertEqual([file.name for file in (system.folder / "root/venv/bin").glob("centroid*")], [])

    def own_system(self):
        """Of this machine's release: a Debian package needs the libraries that it was built with."""
        return self.systems([platform.freedesktop_os_release().get("VERSION_CODENAME", "unknown")])

    def install(self, system):
        packages = [self.package("centroid_*.deb"), self.package("libcentroid-dev_*.deb")]
        system.bring(*packages)
        system.run("dpkg", "-i", *(package.name for package in packages))

    def test_the_debian_package_trains_and_leaves_nothing_when_it_is_purged(self):
        for system in self.own_system():
            self.install(system)
            self.assertIn(self.version, system.run("centroid", "version"))
            self.assert_trains(system, "centroid")
            settings = system.folder / "etc/centroid/server.json"
            settings.write_text(settings.read_text().replace("7070", "7171"))
            self.install(system)  # once more, as an upgrade does
            self.assertIn("7171", settings.read_text())
            system.run("dpkg", "-P", "libcentroid-dev", "centroid")
            left = [path for path in ("etc/centroid", "var/lib/centroid", "usr/lib/python3/dist-packages/centroid", "usr/bin/centroid") if (system.folder / path).exists()]
            self.assertEqual(left, [])

    def test_the_service_says_when_it_listens_and_when_it_stops(self):
        """As systemd starts it: its command, its user, and a socket for Type=notify."""
        for system in self.own_system():
            self.install(system)
            unit = (system.folder / "usr/lib/systemd/system/centroid-server.service").read_text()
            command = re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)[1].split()
            user = re.search(r"^User=(.*)$", unit, re.MULTILINE)[1]
            place = system.folder / "run" / "notify"
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
                manager.settimeout(DEADLINE_SECONDS)
                manager.bind(str(place))
                os.chmod(place, 0o777)
                ports = {"NOTIFY_SOCKET": "/run/notify", "CENTROID_LISTEN": "127.0.0.1:0", "CENTROID_API_LISTEN": "127.0.0.1:0"}
                words = system.command("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs", *command, **ports)
                server = Process(words[0], words[1:], self.folder / f"{system.release}.log", os.environ)
                try:
                    self.assertEqual(manager.recv(100), b"READY=1", server.text())
                    api = re.search(r"api=(http://\S+)", server.text())[1]
                    system.run("centroidctl", "probe", f"{api}/livez")
                    inner = wait_for(lambda: pathlib.Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split(), "the server's process")
                    os.kill(int(inner[0]), signal.SIGTERM)
                    self.assertEqual(manager.recv(100), b"STOPPING=1", server.text())
                    self.assertEqual(server.exit_status(), 0, server.text())
                finally:
                    server.kill()

    @unittest.skipUnless(shutil.which("systemd-analyze"), "no systemd-analyze here")
    def test_systemd_reads_the_units(self):
        for system in self.own_system():
            self.install(system)
            for unit in ("centroid-server.service", "centroid-worker@.service"):
                text = (system.folder / "usr/lib/systemd/system" / unit).read_text()
                copy = self.folder / unit.replace("@", "@0")
                copy.write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", text))  # verify looks for it on this machine
                done = run("systemd-analyze", "verify", "--man=no", copy, check=False)
                self.assertEqual([line for line in done.stderr.splitlines() if "centroid" in line], [])

    def program_of(self, prefix, folder):
        """A program that is built against what is installed below `prefix`, by CMake and, where it is there, with pkg-config."""
        folder.mkdir()
        (folder / "program.cc").write_text(PROGRAM)
        (folder / "CMakeLists.txt").write_text(PROJECT.format(version=self.version))
        run("cmake", "-S", folder, "-B", folder / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
        run("cmake", "--build", folder / "build")
        self.assertEqual(run(folder / "build" / "program").stdout.strip(), self.version)
        if shutil.which("pkg-config"):
            flags = run("pkg-config", "--cflags", "--libs", "centroid", env={**os.environ, "PKG_CONFIG_PATH": f"{prefix}/lib/pkgconfig"}).stdout.split()
            run("c++", "-o", folder / "other", folder / "program.cc", *flags)
            self.assertEqual(run(folder / "other", env={"LD_LIBRARY_PATH": f"{prefix}/lib"}).stdout.strip(), self.version)
        return folder / "build" / "program"

    def test_a_program_finds_the_library(self):
        """Below any prefix, and from the Debian packages, whose library it then loads in a bare system."""
        prefix = self.folder / "installed"
        run("cmake", "--install", self.build, "--prefix", prefix)
        self.program_of(prefix, self.folder / "one")
        for package in ("centroid_*.deb", "libcentroid-dev_*.deb"):
            run("dpkg-deb", "-x", self.package(package), self.folder / "unpacked")
        program = self.program_of(self.folder / "unpacked" / "usr", self.folder / "two")
        for system in self.own_system():
            self.install(system)
            system.bring(program)
            self.assertEqual(system.run("./program", LD_LIBRARY_PATH="/usr/lib").strip(), self.version)


def missing():
    for program in ("cpack", "dpkg-deb", "dpkg-shlibdeps", "readelf", "strip"):
        if not shutil.which(program):
            return f"no {program} here; ./centroid package installs it"
    return roots.why_not()


if __name__ == "__main__":
    if reason := missing():
        print(f"skipped: {reason}")
        sys.exit(SKIPPED)
    Packages.build = pathlib.Path(sys.argv.pop(1)).resolve().parent
    unittest.main(verbosity=2, testRunner=Runner)
