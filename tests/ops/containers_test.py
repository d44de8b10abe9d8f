"""Clusters in containers: from the rendered manifests of Kubernetes, and from compose.

containers_test.py BIN_DIR     with images of the programs in BIN_DIR (images.py)
Needs podman and root (compose: podman-compose; manifests: kubectl and node; several servers: etcd; what compose's Prometheus sees: prometheus). Pods of StatefulSets and Jobs are played one
by one by podman, as a kubelet would start them (pods.py).
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import sys
import time
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import ROOT, image_suite, images
from harness.cluster import wait_for
from harness.images import IMAGES, MARK, NEXT, podman, run
from harness.kubernetes import action_of, missing as missing_for_kubernetes, next_release, objects, render, render_with
from harness.pods import DEADLINE_SECONDS, EVICTED, GOES_AWAY, Pods
import catalog

FOREVER = {"CENTROID_EPOCHS": "100000", "CENTROID_MIN_WORKERS": "1"}
SERVERS = ("centroid-server-0", "centroid-server-1")
LEARNED = 0.9  # accuracy on the held-out digits


class Image(image_suite.Image):
    """What is true of images by deploy/Dockerfile (images_test.py) is so of these."""


@unittest.skipIf(missing_for_kubernetes(), missing_for_kubernetes())
class Manifests(Pods):
    @unittest.skipIf(images.etcd_folder() is None, "no etcd here; ./centroid test --ops fetches it")
    def test_two_servers_and_etcd_train_through_what_happens_to_pods(self):
        """overlays/ha: a leader, a standby and three members of etcd. No round that a worker was told is committed may be lost."""
        self.rendered = objects(render("ha"))
        for index in (0, 1):  # before the servers, and these before etcd: any order will do
            self.play(f"centroid-worker-{index}")
        for server in SERVERS:
            self.play(server, **FOREVER)
        for index in range(self.owner("centroid-etcd")["spec"]["replicas"]):
            self.play(f"centroid-etcd-{index}")
        self.play("centroid-worker-2")
        self.reach("training of three workers", lambda view: view["world"] == 3 and view["version"] > 20)
        for pod in (*SERVERS, "centroid-worker-0", "centroid-etcd-0"):
            self.assert_probes(pod)
        self.assert_health_check("centroid-worker-0")

        self.kill("centroid-worker-1")
        self.reach_world(2, "after a kill")
        self.start("centroid-worker-1")
        self.reach_world(3, "again")

        self.play("centroid-worker-3")  # parallelism and completions were raised
        self.reach_world(4, "after scaling up")
        self.stop("centroid-worker-3", EVICTED)  # and lowered: the highest index goes, and is not started again
        self.remove("centroid-worker-3")
        self.reach_world(3, "after scaling down")

        self.cut("centroid-worker-2")
        self.reach_world(2, "after one was cut off")
        self.reach_rounds(20)
        self.join("centroid-worker-2")
        self.reach_world(3, "after it came back")

        with self.takeover("the leading server is killed"):
            old = self.leading
            self.kill(old)
        self.start(old)
        with self.takeover("the leading server is cut off"):
            old = self.leading
            self.cut(old)
        self.join(old)
        wait_for(lambda: self.role(old) == "standby", f"{old} as standby", DEADLINE_SECONDS)

        self.stop("centroid-worker-0", EVICTED)  # an eviction: in order, and to be started again
        self.start("centroid-worker-0")
        self.reach_world(3, "after an eviction")

        leader = self.leading  # an upgrade, one by one: the standby, the leader, the workers
        (standby,) = set(SERVERS) - {leader}
        self.replace(standby, 0, **FOREVER)
        wait_for(lambda: self.role(standby) == "standby", f"{standby} as standby", DEADLINE_SECONDS)
        with self.takeover("the leading server is upgraded"):
            self.stop(leader, 0)
            left = self.events(leader, "checkpoint.written")[-1]["version"]
        self.assertGreaterEqual(self.began(standby), left)
        self.upgrade(leader, **FOREVER)
        self.rendered += [one for one in objects(render_with(overlay="ha", more=next_release())) if one["kind"] == "Job"]
        for index in range(3):  # of the second Job one more, of the first one fewer: its highest index
            new, old = f"centroid-worker-2-{index}", f"centroid-worker-{2 - index}"
            self.upgrade(new)
            self.assert_probes(new)
            self.reach_world(4, f"with {new}")
            self.stop(old, EVICTED)
            self.remove(old)
            self.reach_world(3, f"after {old} has gone")
            self.reach_rounds(5)
        view = self.reach("digits that are learned", lambda view: (view["test_accuracy"] or 0) > LEARNED)
        self.say(f"accuracy {view['test_accuracy']:.3f}, version {view['version']}")

        self.call(self.leading, "/v1/job:stop", "POST")
        for index in range(3):
            self.assertEqual(self.exit_status(f"centroid-worker-2-{index}"), 0)

    def evict(self, pod):
        """An operator evicts one worker for good: its index ends, nobody else does. Then it is allowed again."""
        name = pod.removeprefix("centroid-")
        (member,) = [one["member"] for one in self.call("centroid-server-0", "/v1/workers")["workers"] if one["name"] == name and one["state"] == "active"]
        self.call("centroid-server-0", f"/v1/workers/{member}:evict", "POST")
        status = self.exit_status(pod)
        self.assertEqual(action_of(self.of(pod)["spec"], "worker", status), "FailIndex", f"exit status {status}")
        self.reach_world(1, "after one was evicted")
        self.reach_rounds(20)
        self.call("centroid-server-0", f"/v1/evictions/{name}", "DELETE")
        self.start(pod)
        self.reach_world(2, "after it was allowed again")

    def role(self, pod):
        with contextlib.suppress(*GOES_AWAY):
            return self.call(pod, "/v1/cluster")["role"]
        return None

    @contextlib.contextmanager
    def takeover(self, what):
        """The other server leads after this, and begins with all that workers were told."""
        old = self.reach("a leader", bool) and self.leading
        (heir,) = set(SERVERS) - {old}
        count, told, begin = len(self.events(heir, "leader.elected")), self.told(), time.monotonic()
        self.assertGreater(told, 0)
        yield
        after = self.told()  # it cannot grow until another server leads
        if len(self.events(heir, "leader.elected")) == count:
            told = max(told, after)
        view = self.reach(f"{heir} leads after {what}", lambda view: self.leading == heir and view["version"] > told and view["world"] == 3)
        self.assertGreaterEqual(self.began(heir), told, f"{what}: a committed round was lost")
        self.say(f"{what}: {time.monotonic() - begin:.1f} s; workers held version {told}, {heir} began with {self.began(heir)}, now {view['version']}")

    def began(self, pod):
        """The version with which this server began to lead, the last time it did."""
        return self.events(pod, "checkpoint.loaded", "journal.replayed")[-1]["version"]

    def test_a_leader_and_shard_servers_share_a_model_over_tls(self):
        """overlays/dev with components/shards and components/tls: servers come and go while it trains."""
        self.rendered = objects(render_with("shards", "tls"))
        self.issue("centroid-server-0.centroid-server", *(f"centroid-shard-{index}.centroid-shard" for index in range(2)))
        settings = FOREVER | {"CENTROID_CHUNK_BYTES": "65536"}  # enough chunks to place evenly
        for pod in ("centroid-worker-0", "centroid-worker-1", "centroid-shard-0"):
            self.play(pod)
        self.play("centroid-server-0", **settings)
        self.reach("training of two workers", lambda view: view["world"] == 2 and view["version"] > 20)
        self.reach_servers("leader", "centroid-shard-0")
        for pod in ("centroid-server-0", "centroid-shard-0", "centroid-worker-0"):
            self.assert_probes(pod)
        self.assert_health_check("centroid-server-0")
        self.assertEqual(self.events("centroid-shard-0", "connection.refused"), [])  # a kubelet's connections are no news

        self.play("centroid-shard-1")  # kubectl scale statefulset centroid-shard --replicas=2
        self.reach_servers("leader", "centroid-shard-0", "centroid-shard-1")
        self.reach_rounds(20)
        before = self.told()
        self.stop("centroid-shard-1", 0)  # --replicas=1
        self.reach_servers("leader", "centroid-shard-0")
        self.replace("centroid-shard-0", 0)  # an upgrade
        self.reach_servers("leader", "centroid-shard-0")
        view = self.reach_rounds(20)
        self.assertGreater(view["version"], before)
        self.assertEqual(self.events("centroid-server-0", "servers.chunks_lost"), [])
        self.reach_world(2, "as before")

        self.call("centroid-server-0", "/v1/checkpoints", "POST")
        self.kill("centroid-shard-0")  # its machine crashes: back to the checkpoint, on the leader alone when it stays away
        self.reach_servers("leader")
        self.start("centroid-shard-0")
        self.reach_servers("leader", "centroid-shard-0")
        self.reach_rounds(20)
        self.call("centroid-server-0", "/v1/job:stop", "POST")  # workers that are away at this moment hear of it later
        for index in range(2):
            self.assertEqual(self.exit_status(f"centroid-worker-{index}"), 0)

    def reach_servers(self, *names):
        """The model lies on these, and on each about as much."""

        def look():
            with contextlib.suppress(*GOES_AWAY):
                found = {one["name"]: one for one in self.call("centroid-server-0", "/v1/servers")["servers"]}
                sizes = [one["bytes"] for one in found.values()]
                return sorted(found) == sorted(names) and min(sizes) > 0.5 * max(sizes)
            return False

        try:
            wait_for(look, f"the model on {names}", DEADLINE_SECONDS)
        except AssertionError:
            print("\n".join(self.logs(pod)[-3000:] for pod in self.pods), file=sys.stderr)
            raise

    def test_one_server_goes_back_to_its_checkpoint(self):
        """overlays/dev: no standby. The server's machine crashes; then it is upgraded, which costs no round."""
        self.rendered = objects(render("dev"))
        for index in (0, 1):
            self.play(f"centroid-worker-{index}")
        begin = time.monotonic()
        self.play("centroid-server-0", **FOREVER)
        self.reach("training", lambda view: view["world"] == 2 and view["version"] > 20)
        self.say(f"training {time.monotonic() - begin:.1f} s after the server's pod was asked for")
        self.assert_probes("centroid-server-0")
        wait_for(lambda: self.events("centroid-server-0", "checkpoint.written"), "a checkpoint", DEADLINE_SECONDS)
        self.kill("centroid-server-0")
        self.start("centroid-server-0")
        self.reach_world(2, "after a crash of the server")
        self.reach_rounds(20)
        self.stop("centroid-server-0", 0)  # it leaves a checkpoint of all that was committed
        told = self.told()
        self.remove("centroid-server-0")
        self.play("centroid-server-0", NEXT, **FOREVER)
        self.reach_world(2, "after an upgrade of the server")
        self.reach_rounds(20)
        self.assertGreaterEqual(self.began("centroid-server-0"), told)
        self.evict("centroid-worker-1")
        self.cut("centroid-worker-1")
        self.reach_world(1, "after one was cut off")
        self.call("centroid-server-0", "/v1/job:stop", "POST")
        self.assertEqual(self.exit_status("centroid-worker-0"), 0)
        self.reach("a stopped job", lambda view: view["state"] == "stopped")  # podman starts the container again, as a kubelet does
        self.join("centroid-worker-1")
        for index in (0, 1):
            self.assertEqual(self.exit_status(f"centroid-worker-{index}"), 0)


    def test_prod_trains_and_ends(self):
        """overlays/prod as it is: one server that waits for four workers, which end with the job."""
        self.rendered = objects(render("prod"))
        workers = [f"centroid-worker-{index}" for index in range(self.owner("centroid-worker")["spec"]["completions"])]
        self.assertEqual(len(workers), 4)
        self.play("centroid-server-0", CENTROID_EPOCHS="100000")
        for pod in workers[:-1]:
            self.play(pod)

        def is_waiting():
            with contextlib.suppress(*GOES_AWAY):
                return "3 of 4 workers are here" in json.dumps(self.call("centroid-server-0", "/v1/waits"))
            return False

        wait_for(is_waiting, "a server that waits for the fourth worker", DEADLINE_SECONDS)
        self.assertEqual(self.view()["version"], 0)
        self.play(workers[-1])
        self.reach_world(4, "as prod has them")
        self.reach_rounds(20)
        for pod in ("centroid-server-0", workers[0]):
            self.assert_probes(pod)
            self.assert_health_check(pod)
        self.stop("centroid-server-0", 0)
        told = self.told()
        self.start("centroid-server-0")
        self.reach_world(4, "after the server was moved")
        self.assertGreaterEqual(self.began("centroid-server-0"), told)
        self.call("centroid-server-0", "/v1/job:stop", "POST")
        for pod in workers:
            self.assertEqual(self.exit_status(pod), 0)

    def test_a_jobset_trains_to_its_end(self):
        """overlays/jobset: the pods of its two Jobs, named as JobSet names them, with nothing changed. All end with status 0."""
        self.rendered = objects(render("jobset"))
        (jobset,) = [one for one in self.rendered if one["kind"] == "JobSet"]
        for one in jobset["spec"]["replicatedJobs"]:
            spec = {**one["template"]["spec"], "serviceName": jobset["metadata"]["name"]}
            self.rendered.append({"kind": "Job", "metadata": {"name": f"{jobset['metadata']['name']}-{one['name']}-0"}, "spec": spec})
        workers = [f"centroid-worker-0-{index}" for index in range(self.owner("centroid-worker-0")["spec"]["completions"])]
        for pod in (*workers, "centroid-server-0-0"):
            self.play(pod)
        for pod in (*workers, "centroid-server-0-0"):
            self.assertEqual(self.exit_status(pod), 0, self.logs(pod)[-3000:])
        (end,) = self.events("centroid-server-0-0", "job.ended")
        self.assertEqual(end["state"], "finished")
        self.assertGreater(end["version"], 100)


class Composed(unittest.TestCase):
    """deploy/compose.yaml with three workers."""

    SERVERS = {"server": 8080, "server-b": 8081}
    WORKERS = ("worker-0", "worker-1", "worker-2")
    ROLES = ("leader",)
    ENVIRONMENT = None  # a file for `--env-file`

    def setUp(self):
        run(ROOT / "deploy" / "compose" / "make-secrets")
        self.token = (ROOT / "deploy" / "compose" / "secrets" / "api-token").read_text()
        self.images = {kind: f"localhost/{MARK}-{kind}:compose" for kind in ("server", "worker", "etcd") if images.exists(kind)}
        for kind, image in self.images.items():
            podman("tag", IMAGES[kind], image)
        self.addCleanup(run, "podman", "rmi", "-f", *self.images.values(), check=False)
        text = (ROOT / "deploy" / "compose.yaml").read_text()
        if images.prometheus():
            (theirs,) = re.findall(r"image: (docker\.io/prom/prometheus:\S+)", text)
            self.images["prometheus"] = f"localhost/{MARK}-prometheus:compose"
            images.build_prometheus(self.images["prometheus"])
            self.addCleanup(run, "podman", "rmi", "-f", self.images["prometheus"], check=False)
            text = text.replace(theirs, self.images["prometheus"])
        for kind in set(self.images) - {"prometheus"}:
            image = self.images[kind]
            self.assertIn(f"localhost/centroid-{kind}:dev", text)
            text = text.replace(f"localhost/centroid-{kind}:dev", image)
        for port in self.SERVERS.values():
            text = text.replace(f"127.0.0.1:{port}:8080", "127.0.0.1::8080")  # a free port
        file = ROOT / "deploy" / f".{MARK}.yaml"
        self.addCleanup(file.unlink)
        file.write_text(text)
        self.text = text
        self.compose = ["podman-compose", "-p", MARK, "-f", file]
        self.settings = {**os.environ, "EPOCHS": "100000"}
        lines = self.ENVIRONMENT.read_text().splitlines() if self.ENVIRONMENT else []
        for line in lines:  # podman-compose has no --env-file
            if not line.startswith("#"):
                name, _, value = line.partition("=")
                self.settings[name] = value
        self.addCleanup(podman, "network", "rm", "-f", f"{MARK}_centroid", check=False)
        self.addCleanup(podman, "volume", "rm", "-f", *(f"{MARK}_{volume}" for volume in ("run", "metrics", "etcd")), check=False)
        self.addCleanup(run, *self.compose, "down", "-t", "20", check=False)
        self.leading = None

    def up(self, *services):
        run(*self.compose, "up", "-d", "--no-build", *services, env=self.settings)

    @staticmethod
    def container(service):
        return f"{MARK}_{service}_1"

    def call(self, service, path, method="GET"):
        port = podman("port", self.container(service), "8080").rsplit(":", 1)[1]
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method, headers={"Authorization": f"Bearer {self.token}"})
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=5) as reply:
            return json.loads(reply.read() or "{}")

    def reach(self, what, condition):
        last = None

        def look():
            nonlocal last
            for service in self.SERVERS:
                with contextlib.suppress(*GOES_AWAY, AssertionError, IndexError):
                    view = self.call(service, "/v1/cluster")
                    if view["role"] in self.ROLES:
                        self.leading, last = service, view
                        return view if condition(view) else None
            return None

        try:
            return wait_for(look, what, DEADLINE_SECONDS)
        except AssertionError as error:
            names = podman("ps", "-a", "--format", "{{.Names}}", "--filter", f"name={MARK}_").split()
            logs = "\n".join(f"--- {name}\n{run('podman', 'logs', '--tail', 15, name, check=False).stderr}" for name in names)
            raise AssertionError(f"{error}; last {last}\n{logs}") from None

    def reach_world(self, count, why):
        return self.reach(f"{count} workers {why}", lambda view: view["world"] == count and view["state"] == "training")

    def watch(self):
        """Start compose's Prometheus, with what compose.yaml mounts: whether there is one here."""
        if "prometheus" not in self.images:
            print("skipped: what compose's Prometheus sees: no prometheus here; ./centroid test --ops fetches it", file=sys.stderr)
            return False
        self.up("prometheus")
        return True

    def prometheus(self, path):
        place = images.inspect(self.container("prometheus"))["NetworkSettings"]["Networks"][f"{MARK}_centroid"]["IPAddress"]
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"http://{place}:9090/api/v1/{path}", timeout=5) as reply:
            return json.loads(reply.read())["data"]

    def reach_targets(self, why, **instances):
        """Prometheus scrapes these and no others, by the names of compose, and finds their series under the labels of the dashboards."""
        wanted = {("centroid-" + job, instance, "compose") for job, names in instances.items() for instance in names}
        found = None

        def look():
            nonlocal found
            with contextlib.suppress(*GOES_AWAY):
                active = self.prometheus("targets?state=active")["activeTargets"]
                found = [(one["labels"], one["health"], one["lastError"]) for one in active]
                series = [self.prometheus(f"query?query={query}")["result"] for query in ("up==1", "centroid_build_info")]
                labels = [{(one["metric"]["job"], one["metric"]["instance"], one["metric"].get("run")) for one in some} for some in series]
                return labels == [wanted, wanted] and len(active) == len(wanted) and all(one["health"] == "up" for one in active)
            return False

        try:
            wait_for(look, f"Prometheus sees {sorted(wanted)} {why}", DEADLINE_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}; its targets: {found}\n{run('podman', 'logs', '--tail', 15, self.container('prometheus'), check=False).stderr}") from None

    def assert_healthy(self, service):
        """What compose.yaml or the image says of its health."""
        wait_for(lambda: run("podman", "healthcheck", "run", self.container(service), check=False).returncode == 0, f"the health of {service}", DEADLINE_SECONDS)


@unittest.skipUnless(shutil.which("podman-compose"), "no podman-compose here")
class Alone(Composed):
    """Without a profile, as the guide begins: one server, no etcd; and a shard server beside it."""

    SERVERS = {"server": 8080}
    ROLES = ("alone", "leader")

    def test_one_server_trains_with_a_part_of_the_model_elsewhere_and_ends(self):
        self.up(*self.WORKERS[:-1], "server")
        if is_watched := self.watch():
            self.reach_targets("while two wait for a third", server=["server:8080"], worker=self.WORKERS[:-1])
            rules = [rule["name"] for group in self.prometheus("rules")["groups"] for rule in group["rules"]]
            self.assertEqual(rules, [alert.name for alert in catalog.ALERTS])
        self.up(self.WORKERS[-1])
        self.reach("training of three", lambda view: view["world"] == 3 and view["version"] > 20)
        if is_watched:
            self.reach_targets("after the third has come", server=["server:8080"], worker=self.WORKERS)
        for service in ("server", "worker-0"):
            self.assert_healthy(service)
        self.addCleanup(podman, "rm", "-f", "-v", "-i", "-t", "0", self.container("shard-b"))  # and the image's volume, which `down` leaves
        self.up("shard-b")
        self.reach_servers(["server", "shard-b"])
        if is_watched:
            self.reach_targets("beside a shard server", server=["server:8080"], shard=["shard-b"], worker=self.WORKERS)
        kind, *check = json.loads(re.sub(r"([A-Z]+|/[\w/]+|probe),", r'"\1",', re.search(r"^      test: (\[CMD, .*\])$", self.text.split("\n  shard-b:\n")[1], re.MULTILINE)[1]))
        self.assertEqual((kind, check[1]), ("CMD", "probe"))
        run("podman", "exec", self.container("shard-b"), *check)  # by itself: podman-compose 1.0.3 makes a command of /bin/sh of it, which the image has not
        elsewhere = run("podman", "exec", self.container("shard-b"), *check[:-1], "http://127.0.0.1:8080/livez", check=False)
        self.assertEqual(elsewhere.returncode, 3, elsewhere.stderr)  # what the image has for a server
        podman("stop", "-t", 100, self.container("shard-b"), timeout=DEADLINE_SECONDS)
        self.assertEqual(podman("wait", self.container("shard-b")), "0")
        self.reach_servers(["server"])
        if is_watched:
            self.reach_targets("after the shard server has gone", server=["server:8080"], worker=self.WORKERS)
        view = self.reach("digits that are learned", lambda view: (view["test_accuracy"] or 0) > LEARNED)
        self.assertEqual(view["world"], 3)
        podman("exec", self.container("server"), "/usr/bin/centroidctl", "config", "set", f"epochs={view['epoch'] + 3}")
        for worker in self.WORKERS:
            self.assertEqual(podman("wait", self.container(worker), timeout=DEADLINE_SECONDS), "0")
        self.reach("a finished job, of which the server still tells", lambda view: view["state"] == "finished")

    def reach_servers(self, names):
        def look():
            with contextlib.suppress(*GOES_AWAY):
                return sorted(one["name"] for one in self.call("server", "/v1/servers")["servers"] if one["chunks"] > 0) == names
            return False

        wait_for(look, f"the model on {names}", DEADLINE_SECONDS)


@unittest.skipUnless(shutil.which("podman-compose"), "no podman-compose here")
@unittest.skipIf(images.etcd_folder() is None, "no etcd here; ./centroid test --ops fetches it")
class Compose(Composed):
    """With the profile ha: two servers, etcd."""

    ENVIRONMENT = ROOT / "deploy" / "compose" / "ha.env"

    def upgrade(self, service):
        """`docker compose up -d --no-deps SERVICE` with a newer image."""
        podman("stop", "-t", 100, self.container(service), timeout=DEADLINE_SECONDS)
        podman("rm", self.container(service))
        self.up(service)
        self.assertEqual(images.inspect(self.container(service))["Config"]["Labels"]["release"], "next")

    def test_two_servers_train_through_kills_cuts_and_an_upgrade(self):
        self.up(*self.WORKERS, "server", "server-b", "etcd")  # in this order
        self.reach("training of three", lambda view: view["world"] == 3 and view["version"] > 20)
        if self.watch():
            self.reach_targets("of two servers", server=["server:8080", "server-b"], worker=self.WORKERS)

        podman("kill", "-s", "KILL", self.container("worker-1"))
        self.reach_world(2, "after a kill")
        podman("start", self.container("worker-1"))  # as `restart: on-failure` does, where podman's service runs
        self.reach_world(3, "again")
        podman("network", "disconnect", "-f", f"{MARK}_centroid", self.container("worker-2"))
        self.reach_world(2, "after one was cut off")
        podman("network", "connect", f"{MARK}_centroid", self.container("worker-2"))
        self.reach_world(3, "after it came back")
        self.up("worker-3")
        self.reach_world(4, "after scaling up")
        podman("stop", "-t", 100, self.container("worker-3"), timeout=DEADLINE_SECONDS)
        self.reach_world(3, "after scaling down")

        old, version = self.leading, self.reach("a leader", bool)["version"]
        podman("kill", "-s", "KILL", self.container(old))
        self.reach("a takeover", lambda view: self.leading != old and view["world"] == 3 and view["version"] > version)
        podman("start", self.container(old))

        for kind in ("server", "worker"):
            podman("tag", NEXT[kind], self.images[kind])
        for service in (old, self.leading, *self.WORKERS):
            version = self.reach("a leader", bool)["version"]
            self.upgrade(service)
            self.reach(f"three workers after the upgrade of {service}", lambda view: view["world"] == 3 and view["version"] > version)
        view = self.reach("digits that are learned", lambda view: (view["test_accuracy"] or 0) > LEARNED)
        print(f"compose: accuracy {view['test_accuracy']:.3f} in epoch {view['epoch']}", file=sys.stderr)
        for service in (self.leading, self.WORKERS[0]):
            self.assert_healthy(service)
        self.call(self.leading, "/v1/job:stop", "POST")
        for worker in self.WORKERS:
            self.assertEqual(podman("wait", self.container(worker), timeout=DEADLINE_SECONDS), "0")


if __name__ == "__main__":
    sys.exit(image_suite.main())
