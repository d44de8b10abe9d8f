"""Pods of podman in place of a kubelet's: what rendered StatefulSets and Jobs would start, one by one. Only what the test made is removed."""

import contextlib
import copy
import http.client
import json
import pathlib
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request

from harness.cluster import wait_for
from harness.images import IMAGES, MARK, NEXT, USER, inspect, podman, run

TOKEN = "for-development-only"
DEADLINE_SECONDS = 300
EVICTED = 143  # CENTROID_STOP_STATUS of the base
GOES_AWAY = (OSError, urllib.error.URLError, http.client.HTTPException)
EPHEMERAL = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")
# Whose images containers run: by the name of the container.
KIND = {"server": "server", "shard": "server", "worker": "worker", "etcd": "etcd"}


class Pods(unittest.TestCase):
    """A network of podman, folders in place of volumes, and the pods of `self.rendered`, a list of objects of Kubernetes."""

    rendered = ()
    authority = None  # the file of it, where REST is HTTPS

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="centroid-ops-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.folder.chmod(0o755)
        self.pods, self.addresses, self.leading = [], {}, None
        podman("network", "create", MARK)
        self.addCleanup(podman, "network", "rm", "-f", MARK, check=False)
        self.addCleanup(self.remove_pods)
        self.volume("tokens", 0o755)
        for name, text in (("token", TOKEN), ("servers-token", TOKEN + "-of-servers"), ("api-token", TOKEN), ("viewer-token", TOKEN + "-to-look")):
            (self.folder / "tokens" / name).write_text(text)

    def remove_pods(self):
        for name in reversed(self.pods):
            podman("pod", "rm", "-f", "-t", "0", f"{MARK}-{name}", check=False)

    def volume(self, name, mode=0o777):
        folder = self.folder / name
        if not folder.exists():
            folder.mkdir()
            folder.chmod(mode)
        return {"hostPath": {"path": str(folder)}}

    def issue(self, *names):
        """The Secret centroid-tls, with one certificate for servers and workers."""
        self.volume("tls", 0o755)

        def openssl(*words):
            subprocess.run(["openssl", *words], cwd=self.folder / "tls", check=True, capture_output=True)

        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-days", "2", "-subj", "/CN=ca")
        openssl("req", *key, "-keyout", "tls.key", "-out", "tls.csr", "-subj", "/CN=centroid")
        (self.folder / "tls" / "names").write_text("subjectAltName=" + ",".join(f"DNS:{name}" for name in names) + "\n")
        openssl("x509", "-req", "-in", "tls.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names", "-out", "tls.crt")
        (self.folder / "tls" / "tls.key").chmod(0o644)  # of root here; a kubelet gives it to the pod's group
        self.authority = self.folder / "tls" / "ca.crt"

    def owner(self, name):
        """The StatefulSet or Job of this name."""
        return next(one for one in self.rendered if one["kind"] in ("StatefulSet", "Job") and one["metadata"]["name"] == name)

    def of(self, pod):
        """The owner of a pod."""
        return self.owner(pod.rsplit("-", 1)[0])

    def container(self, pod):
        return f"{MARK}-{pod}-{self.of(pod)['spec']['template']['spec']['containers'][0]['name']}"

    @staticmethod
    def filled(values, text):
        """$(NAME) in a text, as a kubelet fills it in."""
        return EPHEMERAL.sub(lambda match: values.get(match[1], match[0]), text)

    def pod(self, name, images):
        """The Pod that a controller would make. podman publishes each port on the host and wants timers of systemd for probes, so both
        are left out (`assert_probes`)."""
        owner = self.of(name)
        template = owner["spec"]["template"]
        spec = copy.deepcopy(template["spec"])
        spec["hostname"] = name
        spec.pop("topologySpreadConstraints", None)
        spec["volumes"] = [{"name": one["name"], **self.volume(self.folder_of(one))} for one in spec.get("volumes", [])]
        for claim in owner["spec"].get("volumeClaimTemplates", []):
            spec["volumes"].append({"name": claim["metadata"]["name"], **self.volume(f"{claim['metadata']['name']}-{name}")})
        (container,) = spec["containers"]
        for part in ("ports", "livenessProbe", "readinessProbe", "startupProbe"):
            container.pop(part, None)
        values = {"JOB_COMPLETION_INDEX": name.rsplit("-", 1)[1]} if owner["kind"] == "Job" else {}
        for one in container.get("env", []):
            if "valueFrom" in one:
                self.assertEqual(one.pop("valueFrom"), {"fieldRef": {"fieldPath": "metadata.name"}})
                one["value"] = name
            one["value"] = values[one["name"]] = self.filled(values, one["value"])
        container["args"] = [self.filled(values, word) for word in container.get("args", [])]
        container["image"] = images[KIND[container["name"]]]
        container["imagePullPolicy"] = "Never"
        container["securityContext"] |= {"runAsUser": USER, "runAsGroup": USER}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{MARK}-{name}", "labels": template["metadata"]["labels"]}, "spec": spec}

    @staticmethod
    def folder_of(volume):
        if "persistentVolumeClaim" in volume:
            return volume["persistentVolumeClaim"]["claimName"]
        return volume["secret"]["secretName"].removeprefix("centroid-")

    def play(self, name, images=IMAGES, **settings):
        """Start the pod of this name, with its ConfigMap changed by `settings`; returns its container."""
        owner = self.of(name)
        maps = [copy.deepcopy(one) for one in self.rendered if one["kind"] == "ConfigMap" and "CENTROID" in "".join(one["data"])]
        for one in maps:
            one["data"] |= settings if one["metadata"]["name"].startswith(owner["metadata"]["name"]) else {}
        file = self.folder / f"{name}.yaml"
        file.write_text("\n---\n".join(json.dumps(one) for one in [*maps, self.pod(name, images)]))
        if name not in self.pods:
            self.pods.append(name)
        aliases = ",".join(f"alias={alias}" for alias in (name, f"{name}.{owner['spec'].get('serviceName', 'nobody')}"))
        podman("kube", "play", "--network", f"{MARK}:{aliases}", file)
        self.addresses.pop(name, None)
        return self.container(name)

    def infra(self, pod):
        return json.loads(podman("pod", "inspect", f"{MARK}-{pod}"))["InfraContainerID"]

    def address(self, pod):
        if pod not in self.addresses:
            networks = inspect(self.infra(pod))["NetworkSettings"]["Networks"]
            if MARK not in networks or not networks[MARK]["IPAddress"]:
                raise OSError(f"{pod} has no address")
            self.addresses[pod] = networks[MARK]["IPAddress"]
        return self.addresses[pod]

    def kill(self, pod):
        podman("kill", "-s", "KILL", self.container(pod))

    def start(self, pod):
        """As `restartPolicy` or a Job does."""
        # podman ends a pod with its last container, and what is started meanwhile too
        pod_now = json.loads(podman("pod", "inspect", f"{MARK}-{pod}"))
        if pod_now.get("ExitPolicy") == "stop":
            wait_for(lambda: not inspect(pod_now["InfraContainerID"])["State"]["Running"], f"the end of {pod}", DEADLINE_SECONDS)
        wait_for(lambda: run("podman", "start", self.container(pod), check=False).returncode == 0, f"{pod} to start", DEADLINE_SECONDS)
        self.addresses.pop(pod, None)

    def cut(self, pod):
        podman("network", "disconnect", "-f", MARK, self.infra(pod))

    def join(self, pod):
        self.addresses.pop(pod, None)
        name = f"{pod}.{self.of(pod)['spec'].get('serviceName', 'nobody')}"
        podman("network", "connect", "--alias", pod, "--alias", name, MARK, self.infra(pod))

    def open(self, pod, port, path, scheme="http", method="GET", is_checked=True):
        """Body of a request. By its address, as Prometheus and a kubelet call it, so a certificate is checked but for the name."""
        request = urllib.request.Request(f"{scheme}://{self.address(pod)}:{port}{path}", method=method, headers={"Authorization": f"Bearer {TOKEN}"})
        handlers = [urllib.request.ProxyHandler({})]
        if scheme == "https":
            context = ssl.create_default_context(cafile=self.authority)
            context.check_hostname = False
            if not is_checked:
                context.verify_mode = ssl.CERT_NONE
            handlers.append(urllib.request.HTTPSHandler(context=context))
        with urllib.request.build_opener(*handlers).open(request, timeout=5) as reply:
            return reply.read().decode()

    def call(self, pod, path, method="GET"):
        return json.loads(self.open(pod, 8080, path, "https" if self.authority else "http", method) or "{}")

    def assert_probes(self, pod):
        """Each probe of its manifest succeeds, asked as a kubelet asks."""
        container = self.of(pod)["spec"]["template"]["spec"]["containers"][0]
        ports = {one["name"]: one["containerPort"] for one in container["ports"]}
        count = 0
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            if how := container.get(kind):
                count += 1

                def passes(how=how):
                    with contextlib.suppress(*GOES_AWAY):
                        if "tcpSocket" in how:
                            socket.create_connection((self.address(pod), ports[how["tcpSocket"]["port"]]), 5).close()
                        else:
                            get = how["httpGet"]
                            self.open(pod, ports[get["port"]], get["path"], get.get("scheme", "HTTP").lower(), is_checked=False)
                        return True
                    return False

                wait_for(passes, f"{kind} of {pod}", DEADLINE_SECONDS)
        self.assertGreater(count, 0)

    def assert_health_check(self, pod):
        """What the image says of itself for engines other than Kubernetes; its REST may be HTTPS."""
        container = self.container(pod)
        image = json.loads(podman("image", "inspect", inspect(container)["Image"]))[0]
        kind, *command = image["Healthcheck"]["Test"]
        self.assertEqual(kind, "CMD")
        wait_for(lambda: run("podman", "exec", container, *command, check=False).returncode == 0, f"the health check of {pod}", DEADLINE_SECONDS)

    def servers(self):
        return [pod for pod in self.pods if pod.startswith("centroid-server-")]

    def workers(self):
        return [pod for pod in self.pods if pod.startswith("centroid-worker-")]

    def view(self):
        """GET /v1/cluster of the server that leads, or None."""
        for pod in self.servers():
            with contextlib.suppress(*GOES_AWAY):
                view = self.call(pod, "/v1/cluster")
                if view["role"] in ("alone", "leader"):
                    self.leading = pod
                    return view
        return None

    def logs(self, pod):
        done = run("podman", "logs", self.container(pod), check=False)
        return done.stdout + done.stderr

    def events(self, pod, *names):
        lines = [line for line in self.logs(pod).splitlines() if line.startswith("{") and line.endswith("}")]
        return [event for event in map(json.loads, lines) if event["event"] in names]

    def reach(self, what, condition):
        """The first view of the leader for which this holds."""
        last = None

        def look():
            nonlocal last
            last = self.view() or last
            return last if last and condition(last) else None

        try:
            return wait_for(look, what, DEADLINE_SECONDS)
        except AssertionError:
            logs = "\n".join("\n".join([f"--- {pod}", *self.logs(pod).splitlines()[-15:]]) for pod in self.pods)
            raise AssertionError(f"not reached: {what}; last {last}\n{logs}") from None

    def reach_world(self, count, why):
        return self.reach(f"{count} workers {why}", lambda view: view["world"] == count and view["state"] == "training")

    def reach_rounds(self, count):
        begin = self.reach("a leader", bool)["version"]
        return self.reach(f"{count} more rounds", lambda view: view["version"] >= begin + count)

    def told(self):
        """The newest version that a worker has been told is committed."""
        found, failures = [], []
        for pod in self.workers():
            try:
                text = self.open(pod, 9091, "/metrics")
                version = re.search(r"^centroid_worker_version_number (\S+)$", text, re.MULTILINE)
                found.append(int(float(version[1])) if version else 0)  # a worker that was started again has none before its first round
            except GOES_AWAY as error:
                failures.append(f"{pod} {self.addresses.get(pod)}: {error}")
        self.assertTrue(found, f"no worker says its version: {failures}")
        return max(found)

    def exit_status(self, pod):
        try:
            return int(podman("wait", self.container(pod), timeout=DEADLINE_SECONDS))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{pod} has not ended after {DEADLINE_SECONDS} s:\n{self.logs(pod)[-6000:]}") from None

    def stop(self, pod, status):
        """As a kubelet ends a pod: SIGTERM, time, and what it exits with."""
        podman("stop", "-t", 100, self.container(pod), timeout=DEADLINE_SECONDS)
        self.assertEqual(self.exit_status(pod), status, self.logs(pod)[-3000:])

    def remove(self, pod):
        podman("pod", "rm", "-f", "-t", "0", f"{MARK}-{pod}")
        self.pods.remove(pod)
        self.addresses.pop(pod, None)

    def replace(self, pod, status, **settings):
        """An upgrade of one pod: it is told to end, and one of the next image takes its place."""
        self.stop(pod, status)
        self.upgrade(pod, **settings)

    def upgrade(self, pod, **settings):
        """A pod of the next image, in the place of one of this name where there is one."""
        if pod in self.pods:
            self.remove(pod)
        container = self.play(pod, NEXT, **settings)
        self.assertEqual(inspect(container)["Config"]["Labels"]["release"], "next")

    def say(self, text):
        print(f"{self.id().rsplit('.', 1)[-1]}: {text}", file=sys.stderr)
