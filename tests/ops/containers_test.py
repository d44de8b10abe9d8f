"""The images, and clusters of them: from the rendered manifests of Kubernetes, and from compose.

containers_test.py BIN_DIR                 images of the programs in BIN_DIR, laid out as deploy/Dockerfile does: needs no registry
containers_test.py BIN_DIR --dockerfile    images as deploy/Dockerfile builds them, from the sources; only what they hold is tested
Needs podman and root (compose: podman-compose; manifests: kubectl and node). Pods of StatefulSets and Jobs are played one by one by podman, as a kubelet would start them. Only what
the test made is removed.
"""

import contextlib
import copy
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "process")]
from cluster import wait_for  # noqa: E402
from kubernetes_test import missing as missing_for_kubernetes  # noqa: E402
from kubernetes_test import objects, render  # noqa: E402

SKIPPED = 77
USER = 10001
MAX_IMAGE_BYTES = 120e6
MARK = f"centroid-ops-{os.getpid()}"
TOKEN = "for-development-only"
IMAGES = {"server": f"localhost/{MARK}-server:test", "worker": f"localhost/{MARK}-worker:test"}
NEXT = {kind: image.replace(":test", ":next") for kind, image in IMAGES.items()}  # what an upgrade brings
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
DEADLINE_SECONDS = 120


def run(*words, timeout=120, check=True, **more):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=timeout, check=False, **more)
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, words))}: status {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done


def podman(*words, **more):
    return run("podman", *words, **more).stdout.strip()


def why_not(with_dockerfile):
    """Reason to skip, or None. Takes the settings of containers.conf where podman's own do not work."""
    if not shutil.which("podman"):
        return "no podman here; ./centroid test --ops installs it"
    if os.geteuid() != 0:
        return "not root: images keep their files' owners"
    if with_dockerfile:
        if os.environ.get("OPS_DOCKERFILE") != "1":
            return "compiles everything in a container; ./centroid test --ops runs it"
        if run("podman", "image", "exists", "debian:bookworm-slim", check=False).returncode != 0:
            return "no image debian:bookworm-slim"
    elif not pathlib.Path("/usr/bin/tini-static").exists():
        return "no /usr/bin/tini-static here (package tini)"
    return None


def why_not_build():
    """Reason why podman can build nothing here, or None: storage in a container, no rights."""
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "Dockerfile").write_text("FROM scratch\nLABEL smallest=yes\n")
        done = run("podman", "build", "-t", f"localhost/{MARK}-smallest", folder, check=False)
        run("podman", "rmi", "-f", f"localhost/{MARK}-smallest", check=False)
    return None if done.returncode == 0 else "podman cannot build an image: " + (done.stderr.strip().splitlines() or ["?"])[-1]


def why_not_run():
    """Reason why podman cannot run the images, or None."""
    for settings in (os.environ.get("CONTAINERS_CONF"), str(pathlib.Path(__file__).with_name("containers.conf"))):
        if settings:
            os.environ["CONTAINERS_CONF"] = settings
        done = run("podman", "run", "--rm", "--network", "none", IMAGES["server"], "--version", check=False)
        if done.returncode == 0:
            return None
    return "podman cannot start a container: " + (done.stderr.strip().splitlines() or ["?"])[-1]


def build_by_dockerfile():
    for target, image in IMAGES.items():
        words = ["build", "--network", "host", "--layers", "--format", "docker", "-f", DOCKERFILE, "--target", target, "-t", image, ROOT]
        podman(*words, timeout=3000)


def build_of_programs(programs):
    """The last stages of the Dockerfile, over files that deploy/image-root lays out here as it does there."""
    text = DOCKERFILE.read_text()
    with tempfile.TemporaryDirectory(prefix="centroid-images-") as folder:
        for kind, image in IMAGES.items():
            run(ROOT / "deploy" / "image-root", kind, programs, f"{folder}/root-{kind}", cwd=ROOT)
            stage = re.search(rf"^FROM scratch AS {kind}\n(?:.+\n)+", text, re.MULTILINE)[0]
            run("tar", "-C", f"{folder}/root-{kind}", "-cf", f"{folder}/{kind}.tar", ".")  # keeps owners, which COPY from a folder does not
            stage, count = re.subn(rf"COPY --from=build /root-{kind} /", f"ADD {kind}.tar /", stage)
            assert count == 1, stage
            file = pathlib.Path(folder) / f"Dockerfile.{kind}"
            file.write_text(stage)
            podman("build", "--format", "docker", "-f", file, "-t", image, folder)
            podman("build", "--format", "docker", "-f", file, "--label", "release=next", "-t", NEXT[kind], folder)


class Image(unittest.TestCase):
    def test_images_are_small_and_bare(self):
        for kind, image in IMAGES.items():
            with self.subTest(kind):
                about = json.loads(podman("image", "inspect", image))[0]
                self.assertLess(about["Size"], MAX_IMAGE_BYTES)
                self.assertEqual(about["Config"]["User"], f"{USER}:{USER}")
                self.assertEqual(about["Config"]["Entrypoint"], ["/usr/bin/tini", "--", f"/usr/bin/centroid-{kind}"])
                self.assertIn("org.opencontainers.image.title", about["Config"]["Labels"])
                self.assertEqual(about["Healthcheck"]["Test"][1:3], ["/usr/bin/centroidctl", "probe"])
                shell = run("podman", "run", "--rm", "--entrypoint", "/bin/sh", image, "-c", "true", check=False)
                self.assertNotEqual(shell.returncode, 0)

    def test_programs_start_with_nothing_writable(self):
        for kind, image in IMAGES.items():
            hardened = ["--rm", "--network", "none", "--read-only", "--read-only-tmpfs=false", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
            text = podman("run", *hardened, image, "--version")
            self.assertIn(f"centroid-{kind}", text)


class Cluster(unittest.TestCase):
    """A server and workers in pods of podman, as deploy/kubernetes/overlays/dev renders them."""

    PARTS = {"StatefulSet": "server", "Job": "worker"}

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="centroid-ops-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.pods, self.address = [], None
        podman("network", "create", MARK)
        self.addCleanup(podman, "network", "rm", "-f", MARK, check=False)
        self.addCleanup(self.remove_pods)
        for name, mode in (("tokens", 0o755), ("run", 0o777)):
            (self.folder / name).mkdir()
            (self.folder / name).chmod(mode)
        self.folder.chmod(0o755)
        for name, text in (("token", TOKEN), ("api-token", TOKEN), ("viewer-token", TOKEN + "-to-look")):
            (self.folder / "tokens" / name).write_text(text)

    def remove_pods(self):
        for name in reversed(self.pods):
            podman("pod", "rm", "-f", "-t", "0", name, check=False)

    def pod(self, template, name, images):
        """The Pod that a controller would make of a template. Volumes become folders of this test; podman publishes each port on
        the host and wants timers of systemd for probes, so both are left out."""
        spec = copy.deepcopy(template["spec"])
        spec["hostname"] = name
        spec.pop("topologySpreadConstraints", None)
        spec["volumes"] = [{"name": part, "hostPath": {"path": str(self.folder / part)}} for part in ("tokens", "run")]
        (container,) = spec["containers"]
        for part in ("ports", "livenessProbe", "readinessProbe", "startupProbe"):
            container.pop(part, None)
        container["image"] = images[container["name"]]
        container["imagePullPolicy"] = "Never"
        container["args"] = [word.replace("$(JOB_COMPLETION_INDEX)", name.rsplit("-", 1)[1]) for word in container.get("args", [])]
        container["securityContext"] |= {"runAsUser": USER, "runAsGroup": USER}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{MARK}-{name}", "labels": template["metadata"]["labels"]}, "spec": spec}

    def play(self, rendered, kind, index, images=IMAGES, **settings):
        """Start pod number `index` of the StatefulSet or the Job."""
        owner = next(one for one in rendered if one["kind"] == kind)
        name = f"{owner['metadata']['name']}-{index}"
        maps = [copy.deepcopy(one) for one in rendered if one["kind"] == "ConfigMap"]
        for one in maps:
            one["data"] |= settings if f"centroid-{self.PARTS[kind]}" in one["metadata"]["name"] else {}
        file = self.folder / f"{name}.yaml"
        file.write_text("\n---\n".join(json.dumps(one) for one in [*maps, self.pod(owner["spec"]["template"], name, images)]))
        if f"{MARK}-{name}" not in self.pods:
            self.pods.append(f"{MARK}-{name}")
        podman("kube", "play", "--network", f"{MARK}:alias={name},alias={name}.centroid-server", file)
        return self.container(kind, index)

    def container(self, kind, index):
        return f"{MARK}-centroid-{self.PARTS[kind]}-{index}-{self.PARTS[kind]}"

    def call(self, path, method="GET"):
        request = urllib.request.Request(f"http://{self.address}:8080{path}", method=method, headers={"Authorization": f"Bearer {TOKEN}"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=10) as reply:
            return json.loads(reply.read())

    def find_server(self):
        pod = json.loads(podman("pod", "inspect", f"{MARK}-centroid-server-0"))
        infra = json.loads(podman("inspect", pod["InfraContainerID"]))[0]
        self.address = infra["NetworkSettings"]["Networks"][MARK]["IPAddress"]

    def wait_cluster(self, what, condition):
        last = None

        def look():
            nonlocal last
            with contextlib.suppress(OSError, urllib.error.URLError):
                last = self.call("/v1/cluster")
                return condition(last)
            return False

        try:
            return wait_for(look, what, DEADLINE_SECONDS)
        except AssertionError:
            logs = "\n".join(f"--- {c}\n{run('podman', 'logs', '--tail', 15, c, check=False).stderr}" for c in podman("ps", "-a", "--format", "{{.Names}}", "--filter", f"name={MARK}").split())
            raise AssertionError(f"not reached: {what}; last {last}\n{logs}") from None

    def wait_rounds(self, count):
        now = self.call("/v1/cluster")["round"]
        self.wait_cluster(f"{count} more rounds", lambda view: view["round"] >= now + count)

    def exit_status(self, container):
        return int(podman("wait", container, timeout=DEADLINE_SECONDS))

    def wait_answer(self, path):
        """Until this path is answered with 200."""

        def look():
            with contextlib.suppress(OSError, urllib.error.URLError):
                return self.call(path)
            return None

        return wait_for(look, path, DEADLINE_SECONDS)

    def replace(self, rendered, kind, index, status, **settings):
        """An upgrade of one pod: it is told to end, and one of the next image takes its place."""
        name = f"{MARK}-centroid-{self.PARTS[kind]}-{index}"
        podman("stop", "-t", 100, self.container(kind, index), timeout=DEADLINE_SECONDS)
        self.assertEqual(self.exit_status(self.container(kind, index)), status)
        podman("pod", "rm", "-f", "-t", "0", name)
        container = self.play(rendered, kind, index, images=NEXT, **settings)
        labels = json.loads(podman("inspect", container))[0]["Config"]["Labels"]
        self.assertEqual(labels["release"], "next")
        return container

    @unittest.skipIf(missing_for_kubernetes(), missing_for_kubernetes())
    def test_rendered_pods_train_through_what_happens_to_pods(self):
        rendered = objects(render("dev"))
        goal = {"CENTROID_EPOCHS": "100000", "CENTROID_MIN_WORKERS": "1"}
        first, second = (self.play(rendered, "Job", index) for index in (0, 1))  # before the server: any order will do
        server = self.play(rendered, "StatefulSet", 0, **goal)
        begin = time.monotonic()
        self.find_server()
        self.wait_answer("/healthz")
        print(f"server: {time.monotonic() - begin:.2f} s after its pod was made until it answers", file=sys.stderr)
        third = self.play(rendered, "Job", 2)
        self.wait_cluster("training of three workers", lambda view: view["world"] == 3 and view["round"] > 20)

        podman("kill", "-s", "KILL", second)
        self.wait_cluster("two workers after a kill", lambda view: view["world"] == 2)
        self.wait_rounds(20)
        podman("start", second)
        self.wait_cluster("three workers again", lambda view: view["world"] == 3)

        self.play(rendered, "Job", 3)  # parallelism and completions were raised
        self.wait_cluster("four workers after scaling up", lambda view: view["world"] == 4)

        infra = json.loads(podman("pod", "inspect", f"{MARK}-centroid-worker-2"))["InfraContainerID"]
        podman("network", "disconnect", "-f", MARK, infra)
        self.wait_cluster("three workers after one was cut off", lambda view: view["world"] == 3)
        self.wait_rounds(20)
        podman("network", "connect", MARK, infra)
        self.wait_cluster("four workers after it came back", lambda view: view["world"] == 4)

        podman("stop", "-t", 60, first, timeout=DEADLINE_SECONDS)  # an eviction: in order, and to be started again
        self.assertEqual(self.exit_status(first), 143)
        podman("start", first)
        self.wait_cluster("four workers after an eviction", lambda view: view["world"] == 4)

        version = self.call("/v1/cluster")["version"]
        podman("kill", "-s", "KILL", server)  # its machine crashes: back to the last checkpoint
        podman("start", server)
        self.find_server()
        self.wait_cluster("training after a crash of the server", lambda view: view["world"] == 4 and view["round"] > 0)

        version = self.call("/v1/cluster")["version"]
        self.replace(rendered, "StatefulSet", 0, 0, **goal)  # an upgrade, one by one: the server, then the workers
        begin = time.monotonic()
        self.find_server()
        self.wait_answer("/readyz")
        print(f"server: {time.monotonic() - begin:.2f} s after its successor's pod was made until it is ready", file=sys.stderr)
        self.wait_cluster("training goes on after the server", lambda view: view["world"] == 4 and view["version"] > version)
        for index in range(4):
            self.replace(rendered, "Job", index, 143)
            self.wait_cluster(f"four workers after worker {index}", lambda view: view["world"] == 4)
            self.wait_rounds(5)
        view = self.call("/v1/cluster")
        self.assertGreater(view["version"], version)

        self.call("/v1/job:stop", "POST")
        for index in range(4):
            self.assertEqual(self.exit_status(self.container("Job", index)), 0)

    @unittest.skipUnless(shutil.which("podman-compose"), "no podman-compose here")
    def test_compose_trains_through_a_kill_and_a_cut(self):
        run(ROOT / "deploy" / "compose" / "make-secrets")
        token = (ROOT / "deploy" / "compose" / "secrets" / "api-token").read_text()
        text = (ROOT / "deploy" / "compose.yaml").read_text().replace("localhost/centroid-server:dev", IMAGES["server"])
        text = text.replace("localhost/centroid-worker:dev", IMAGES["worker"]).replace("127.0.0.1:8080:8080", "127.0.0.1::8080")
        file = ROOT / "deploy" / f".{MARK}.yaml"
        self.addCleanup(file.unlink)
        file.write_text(text)
        compose = ["podman-compose", "-p", MARK, "-f", file]
        self.addCleanup(podman, "network", "rm", "-f", f"{MARK}_centroid", check=False)
        self.addCleanup(podman, "volume", "rm", "-f", f"{MARK}_run", f"{MARK}_metrics", check=False)
        self.addCleanup(run, *compose, "down", "-t", "20", check=False)
        run(*compose, "up", "-d", "--no-build", "worker-0", "worker-1", "worker-2", "server", env={**os.environ, "EPOCHS": "100000"})
        published = podman("port", f"{MARK}_server_1", "8080")
        self.assertIn(":", published, run("podman", "ps", "-a", check=False).stdout + run("podman", "logs", f"{MARK}_server_1", check=False).stderr)
        port = published.rsplit(":", 1)[1]

        def call(path, method="GET"):
            request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method, headers={"Authorization": f"Bearer {token}"})
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as reply:
                return json.loads(reply.read())

        def reached(what, condition):
            def look():
                with contextlib.suppress(OSError, urllib.error.URLError):
                    view = call("/v1/cluster")
                    return view if condition(view) else None
                return None

            return wait_for(look, what, DEADLINE_SECONDS)

        before = reached("training of three", lambda view: view["world"] == 3 and view["round"] > 20)
        podman("kill", "-s", "KILL", f"{MARK}_worker-1_1")
        reached("the end of a killed worker", lambda view: view["generation"] > before["generation"])
        podman("start", f"{MARK}_worker-1_1")  # as `restart: on-failure` does, where podman's service runs
        before = reached("three workers again", lambda view: view["world"] == 3)
        podman("network", "disconnect", "-f", f"{MARK}_centroid", f"{MARK}_worker-2_1")
        reached("two workers after one was cut off", lambda view: view["world"] == 2)
        podman("network", "connect", f"{MARK}_centroid", f"{MARK}_worker-2_1")
        reached("three workers after it came back", lambda view: view["world"] == 3)
        view = reached("digits that are learned", lambda view: view["test_accuracy"] > 0.8)
        print(f"compose: accuracy {view['test_accuracy']:.3f} in epoch {view['epoch']}", file=sys.stderr)
        self.assertEqual(podman("healthcheck", "run", f"{MARK}_server_1"), "")
        call("/v1/job:stop", "POST")
        for worker in range(3):
            self.assertEqual(podman("wait", f"{MARK}_worker-{worker}_1", timeout=DEADLINE_SECONDS), "0")


def main():
    programs = pathlib.Path(sys.argv.pop(1)).resolve()
    with_dockerfile = "--dockerfile" in sys.argv
    if reason := why_not(with_dockerfile):
        print(f"skipped: {reason}")
        return SKIPPED
    os.environ.setdefault("CONTAINERS_CONF", str(pathlib.Path(__file__).with_name("containers.conf")))
    if reason := why_not_build():
        print(f"skipped: {reason}")
        return SKIPPED
    try:
        if with_dockerfile:
            sys.argv[sys.argv.index("--dockerfile")] = "Image"
            build_by_dockerfile()
        else:
            build_of_programs(programs)
        if reason := why_not_run():
            print(f"skipped: {reason}")
            return SKIPPED
        return 0 if unittest.main(verbosity=2, exit=False).result.wasSuccessful() else 1
    finally:
        for image in [*IMAGES.values(), *NEXT.values()]:
            run("podman", "rmi", "-f", image, check=False)


if __name__ == "__main__":
    sys.exit(main())
