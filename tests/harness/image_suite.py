"""The tests of what images hold, for images of either making, and the entry of test files that need images."""

import contextlib
import datetime
import json
import pathlib
import re
import sys
import tarfile
import tempfile
import time
import unittest
import urllib.error
import urllib.request

from harness import images
from harness.cluster import Runner, bar, wait_for
from harness.images import IMAGES, MARK, USER, podman, run

SKIPPED = 77
MAX_IMAGE_BYTES = 120e6
READY_BAR_SECONDS = 1
NOT_FOUND = 127  # podman's exit status for a program that the image has not
SHELLS = {"sh", "bash", "dash", "ash", "zsh", "busybox", "toybox", "python3", "perl", "apt", "apt-get", "dpkg", "apk", "rpm"}
TOKEN = "for-development-only"


def fetch(url):
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as reply:
        return reply.read().decode()


def seconds(stamp):
    """Unix time of a time stamp of podman, which has nanoseconds."""
    whole, fraction, zone = re.fullmatch(r"([^.]*)\.?(\d*)(Z|[+-]\d\d:\d\d)", stamp).groups()
    return datetime.datetime.fromisoformat(whole + zone.replace("Z", "+00:00")).timestamp() + float(f"0.{fraction or 0}")


class Image(unittest.TestCase):
    def test_images_are_small_and_bare(self):
        for kind in images.KINDS:
            with self.subTest(kind):
                if not images.exists(kind):
                    self.skipTest(REASONS.get(kind, f"no image {kind}"))
                about = json.loads(podman("image", "inspect", IMAGES[kind]))[0]
                print(f"image {kind}: {about['Size'] / 1e6:.1f} MB", file=sys.stderr)
                if kind != "worker-cuda":  # which holds NVIDIA's libraries
                    self.assertLess(about["Size"], MAX_IMAGE_BYTES)
                self.assertEqual(about["Config"]["User"], f"{USER}:{USER}")
                program = "etcd" if kind == "etcd" else "centroid-" + kind.removesuffix("-cuda")
                self.assertEqual(about["Config"]["Entrypoint"], ["/usr/bin/tini", "--", f"/usr/bin/{program}"])
                for label in ("title", "description", "licenses"):
                    self.assertIn(f"org.opencontainers.image.{label}", about["Config"]["Labels"])
                for label, value in images.LABELLED.items():
                    self.assertEqual(about["Config"]["Labels"].get(f"org.opencontainers.image.{label}"), None if kind == "etcd" else value)
                if kind != "etcd":
                    self.assertEqual(about["Healthcheck"]["Test"][1:3], ["/usr/bin/centroidctl", "probe"])
                self.assert_no_shell(IMAGES[kind], program)

    def assert_no_shell(self, image, program):
        """None of its files is one, or installs one; asked for it is not found, which is another failure than that of a shell."""
        container = podman("create", image)
        self.addCleanup(podman, "rm", "-f", "-v", container)
        with tempfile.NamedTemporaryFile(suffix=".tar") as archive:
            podman("export", "-o", archive.name, container)
            with tarfile.open(archive.name) as files:
                names = {pathlib.PurePosixPath(one.name).name for one in files if not one.isdir()}
        self.assertIn(program, names)
        self.assertEqual(names & SHELLS, set())
        shell = run("podman", "run", "--rm", "--network", "none", "--entrypoint", "/bin/sh", image, "-c", "true", check=False)
        self.assertEqual(shell.returncode, NOT_FOUND, shell.stderr)
        self.assertRegex(shell.stderr, "(?i)not found|no such file")

    def test_programs_start_with_nothing_writable(self):
        hardened = ["--rm", "--network", "none", "--read-only", "--read-only-tmpfs=false", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
        for kind in filter(images.exists, images.KINDS):
            text = podman("run", *hardened, IMAGES[kind], "--version")
            self.assertIn("etcd" if kind == "etcd" else "centroid-" + kind.removesuffix("-cuda"), text)

    def test_stages_of_the_worker_with_cuda_are_those_of_the_worker(self):
        """Where its base image cannot be had nobody builds it, so at least it must not drift from what is built."""
        text = images.DOCKERFILE.read_text()
        plain, cuda = (re.search(rf"^FROM \S+ AS {name}\n((?:.+\n)+)", text, re.MULTILINE)[1] for name in ("build", "build-cuda"))
        comments = re.compile(r"^#.*\n", re.MULTILINE)
        plain = comments.sub("", plain).replace("deploy/image-root server build/release/bin /root-server \\\n && ", "")
        cuda = re.sub(r"(?<=/root-worker)( lib\S+)+$", "", comments.sub("", cuda), flags=re.MULTILINE)  # NVIDIA's
        self.assertEqual(cuda, plain)
        stages = [images.last_stage(kind)[0] for kind in ("worker", "worker-cuda")]
        for line in ("USER 10001:10001", "EXPOSE 9091", "STOPSIGNAL SIGTERM", 'ENTRYPOINT ["/usr/bin/tini", "--", "/usr/bin/centroid-worker"]'):
            for stage in stages:
                self.assertIn(line + "\n", stage)

    def test_server_is_ready_soon(self):
        """A server that finds a checkpoint of the digits task: from `podman run`, and from the start of the container, until /readyz says so."""
        podman("network", "create", MARK)
        self.addCleanup(podman, "network", "rm", "-f", MARK, check=False)
        self.addCleanup(podman, "volume", "rm", "-f", f"{MARK}-run", check=False)
        self.addCleanup(podman, "rm", "-f", "-t", "0", "-i", f"{MARK}-first", f"{MARK}-worker", f"{MARK}-server")
        hardened = ["-d", "--network", MARK, "--read-only", "--cap-drop", "ALL", "-e", f"CENTROID_TOKEN={TOKEN}"]
        serving = [*hardened, "-e", f"CENTROID_API_TOKEN={TOKEN}", "-v", f"{MARK}-run:/var/lib/centroid"]
        podman("run", *serving, "--name", f"{MARK}-first", IMAGES["server"], "--epochs", "2", "--exit-when-finished")
        podman("run", *hardened, "--name", f"{MARK}-worker", IMAGES["worker"], "--server", f"{MARK}-first:7070")
        self.assertEqual(podman("wait", f"{MARK}-first", f"{MARK}-worker").split(), ["0", "0"])

        self.assertLess(self.time_until_ready(serving), bar(READY_BAR_SECONDS, slack=60))

    def time_until_ready(self, serving):
        """Seconds from the start of the container, of a new one."""
        podman("rm", "-f", "-t", "0", "-i", f"{MARK}-server")
        begin = time.time()
        podman("run", *serving, "--name", f"{MARK}-server", IMAGES["server"], "--epochs", "1000", "--resume")
        address = images.inspect(f"{MARK}-server")["NetworkSettings"]["Networks"][MARK]["IPAddress"]
        url = f"http://{address}:8080"

        def is_ready():
            with contextlib.suppress(OSError, urllib.error.URLError):
                return fetch(f"{url}/readyz")
            return None

        wait_for(is_ready, "a server that is ready")
        ready = time.time()
        started = seconds(images.inspect(f"{MARK}-server")["State"]["StartedAt"])
        logged = podman("logs", f"{MARK}-server", timeout=20) + run("podman", "logs", f"{MARK}-server").stderr
        self.assertIn("checkpoint.loaded", logged)
        print(f"server ready {ready - started:.2f} s after its container started, {ready - begin:.2f} s after `podman run` (bar {READY_BAR_SECONDS} s)",
              file=sys.stderr)  # fmt: skip
        return ready - started

    def test_health_checks_say_whether_a_program_answers(self):
        """What Docker and podman ask by themselves; of a worker before it is a member, too. One that answers elsewhere is not healthy."""
        hardened = ["-d", "--network", "none", "--read-only", "--cap-drop", "ALL", "-e", f"CENTROID_TOKEN={TOKEN}"]
        serving = [*hardened, "-v", "/var/lib/centroid", "-e", f"CENTROID_API_TOKEN={TOKEN}"]
        waiting = ["--server", "127.0.0.1:7070", "--join-timeout", "10m"]
        cases = {
            "server": (True, [*serving, IMAGES["server"]], "server.initialized"),
            "worker": (True, [*hardened, IMAGES["worker"], *waiting], "worker.metrics_opened"),
            "server-elsewhere": (False, [*serving, "-e", "CENTROID_API_LISTEN=127.0.0.1:8081", IMAGES["server"]], "server.initialized"),
            "worker-elsewhere": (False, [*hardened, "-e", "CENTROID_METRICS_LISTEN=127.0.0.1:9092", IMAGES["worker"], *waiting], "worker.metrics_opened"),
        }
        for name, (is_healthy, words, event) in cases.items():
            with self.subTest(name):
                container = f"{MARK}-health-{name}"
                self.addCleanup(podman, "rm", "-f", "-v", "-t", "0", "-i", container)
                podman("run", "--name", container, *words)

                def said(container=container):
                    done = run("podman", "logs", container)
                    return done.stdout + done.stderr

                try:
                    wait_for(lambda: f'"{event}"' in said(), f"{event} of {name}", 60)
                except AssertionError as error:
                    self.fail(f"{error}: {said()}")
                check = run("podman", "healthcheck", "run", container, check=False)
                self.assertEqual(check.returncode, 0 if is_healthy else 1, f"{check.stdout}{check.stderr}{said()[-2000:]}")
                self.assertEqual(images.inspect(container)["State"]["Health"]["Log"][-1]["ExitCode"], 0 if is_healthy else 1)


REASONS = {}  # kind -> why there is no image of it


def main():
    """Build the images, run the tests of the file: FILE_test.py BIN_DIR [--dockerfile] [unittest's arguments]."""
    programs = pathlib.Path(sys.argv.pop(1)).resolve()
    with_dockerfile = "--dockerfile" in sys.argv
    if reason := images.why_not(with_dockerfile) or images.why_not_build():
        print(f"skipped: {reason}")
        return SKIPPED
    try:
        if with_dockerfile:
            sys.argv.remove("--dockerfile")
            begin = time.monotonic()
            if reason := images.why_not_cuda():
                REASONS["worker-cuda"] = f"not built by the Dockerfile: {reason}"
                print(f"skipped: target worker-cuda: {reason}", file=sys.stderr)
            images.build_by_dockerfile(kind for kind in images.KINDS if kind not in REASONS)
            print(f"images built by deploy/Dockerfile in {time.monotonic() - begin:.0f} s", file=sys.stderr)
        else:
            if images.etcd_folder() is None:
                REASONS["etcd"] = "no etcd here; ./centroid test --ops fetches it"
            images.build_of_programs(programs)
        if reason := images.why_not_run():
            print(f"skipped: {reason}")
            return SKIPPED
        return 0 if unittest.main(verbosity=2, testRunner=Runner, exit=False).result.wasSuccessful() else 1
    finally:
        images.remove_images()
