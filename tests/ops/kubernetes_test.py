"""Every object that the overlays of deploy/kubernetes render, with every set of components: strict types, and what the programs rely on.

kubernetes_test.py BIN_DIR     needs kubectl, node, and in the folder OPS_NODE_PACKAGES the packages of tests/ops/package.json
"""

import itertools
import json
import pathlib
import re
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import ROOT
from harness.browser import PACKAGES
from harness.cluster import Runner
from harness.kubernetes import KEEP, KUBERNETES, SPARE_SECONDS, action_of, missing, next_release, objects, render, render_with, seconds_of_checkpoint
import catalog

# What may be added to an overlay, in this order: what it has not, and what fits. Of the second tuple at most one: they exclude each other.
FITTING = {
    "dev": (("monitoring", "networkpolicy", "gpu", "tls"), ("etcd", "shards")),
    "prod": (("gpu", "tls"), ("etcd", "shards")),
    "jobset": (("monitoring", "networkpolicy", "gpu", "tls"), ()),
    "ha": (("gpu", "tls"), ()),
    "sharded": (("tls",), ()),
}
MONITORED = ("prod", "ha", "sharded")  # overlays with monitors, alerts, dashboards and network policies
SKIPPED = 77
ANNOTATION_BYTES = 256 * 1024  # what the API server takes of all annotations of an object
START_SECONDS = 600  # that a server may take to read its checkpoint, a worker its data, before it is restarted
# What each container's probes ask of it; of an update that goes on behind a standby there is a test of its own.
PROBES = {
    "server": {"startupProbe": ("/livez", "api"), "readinessProbe": ("/readyz", "api"), "livenessProbe": ("/livez", "api")},
    "worker": {"startupProbe": ("/healthz", "metrics"), "readinessProbe": ("/readyz", "metrics"), "livenessProbe": ("/healthz", "metrics")},
    "rank": {"startupProbe": ("/healthz", "metrics"), "readinessProbe": ("/readyz", "metrics"), "livenessProbe": ("/healthz", "metrics")},
    "shard": {"readinessProbe": ("/readyz", "metrics"), "livenessProbe": ("/livez", "metrics")},  # it listens from the start
    "etcd": {"readinessProbe": ("/health", "client"), "livenessProbe": ("", "client")},  # "": that its port is open
}


def combinations():
    """Every (overlay, components) that docs/how-to/deploy.md allows."""
    for overlay, (free, exclusive) in FITTING.items():
        for one in [(), *((name,) for name in exclusive)]:
            for count in range(len(free) + 1):
                for some in itertools.combinations(free, count):
                    yield overlay, tuple(sorted((*some, *one), key=lambda name: name == "tls"))  # tls patches what the others bring


# ENV of the images; the rest of them is where files are.
IMAGE_SETTINGS = {
    name: dict(re.findall(r"(CENTROID_(?!DATA_CACHE)[A-Z_]+)=(\S+)", stage))
    for name, stage in re.findall(r"^FROM scratch AS (\S+)\n((?:.+\n)+)", (ROOT / "deploy" / "Dockerfile").read_text(), re.MULTILINE)
    for name in [f"centroid-{name}"]
}


def strict_check(text):
    script = pathlib.Path(__file__).with_name("check_objects.mjs")
    return subprocess.run(["node", script, PACKAGES], input=text, capture_output=True, text=True, check=False)


def pod_specs(object_):
    """Pod specs inside an object."""
    return [template["spec"] for template in pod_templates(object_)]


def pod_templates(object_):
    found = []

    def walk(value):
        if isinstance(value, dict):
            if "containers" in value.get("spec", {}):
                found.append(value)
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    walk(object_)
    return found


def claims_of(all_objects):
    """The claim that the server's volume is of: an object of its own, or of the StatefulSet."""
    claims = [one for one in all_objects if one["kind"] == "PersistentVolumeClaim"]
    for one in all_objects:
        if one["kind"] == "StatefulSet" and one["metadata"]["name"] == "centroid-server":
            claims += one["spec"].get("volumeClaimTemplates", [])
    return claims


def jobs(object_):
    """(name of the container, JobSpec) of a Job, or of those of a JobSet."""
    specs = [object_["spec"]] if object_["kind"] == "Job" else []
    if object_["kind"] == "JobSet":
        specs = [one["template"]["spec"] for one in object_["spec"]["replicatedJobs"]]
    return [(spec["template"]["spec"]["containers"][0]["name"], spec) for spec in specs]


def passes(all_objects, source, target, port):
    """Whether the NetworkPolicies let pods of the component `source` reach the named port of pods of `target`. What no policy selects may do all."""
    templates = {one["metadata"]["labels"]["app.kubernetes.io/component"]: one for object_ in all_objects for one in pod_templates(object_)}
    (container,) = templates[target]["spec"]["containers"]
    number = next(one["containerPort"] for one in container["ports"] if one["name"] == port)

    def is_of(place):
        return place["port"] in (port, number) or ("endPort" in place and place["port"] <= number <= place["endPort"])

    def selects(selector, component):
        labels = templates[component]["metadata"]["labels"]
        wanted = selector.get("matchLabels", {}).items() <= labels.items()
        return wanted and all(one["operator"] == "In" and labels.get(one["key"]) in one["values"] for one in selector.get("matchExpressions", []))

    def allows(kind, mine, other, peers):
        policies = [one["spec"] for one in all_objects if one["kind"] == "NetworkPolicy" and selects(one["spec"]["podSelector"], mine)]
        policies = [one for one in policies if kind in one["policyTypes"]]
        rules = [rule for one in policies for rule in one.get(kind.lower(), []) if any(is_of(place) for place in rule["ports"])]
        return not policies or any("podSelector" in peer and selects(peer["podSelector"], other) for rule in rules for peer in rule[peers])

    return allows("Egress", source, target, "to") and allows("Ingress", target, source, "from")


FREE = ("labels", "annotations", "matchLabels", "data", "stringData", "limits", "requests", "nodeSelector")  # whose keys are anybody's


def mappings(node, place=""):
    """The place of every mapping in an object that has fields of its own, such as /spec/template."""
    if isinstance(node, dict):
        yield place
        for name, value in node.items():
            if name not in FREE:
                yield from mappings(value, f"{place}/{name}")
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from mappings(value, f"{place}/{number}")


class Rendered(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.texts = {chosen: render_with(*chosen[1], overlay=chosen[0]) if chosen[1] else render(chosen[0]) for chosen in combinations()}
        separator = "\n---\n"
        joined = separator.join(cls.texts.values())
        cls.objects, rest = {}, iter(objects(joined))
        for chosen, text in cls.texts.items():
            cls.objects[chosen] = list(itertools.islice(rest, len(re.split(r"^---$", text, flags=re.MULTILINE))))

    def specs(self):
        for chosen, all_objects in self.objects.items():
            for one in all_objects:
                for spec in pod_specs(one):
                    yield f"{chosen}: {one['kind']}/{one['metadata']['name']}", spec

    def test_every_object_of_every_combination_fits_its_type(self):
        distinct = {json.dumps(one, sort_keys=True) for all_objects in self.objects.values() for one in all_objects}
        done = strict_check("\n---\n".join(sorted(distinct)))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        print(f"{len(self.objects)} combinations, {len(distinct)} distinct objects", file=sys.stderr)

    def test_every_component_changes_what_it_is_added_to(self):
        components = {folder.name for folder in (KUBERNETES / "components").iterdir()}
        self.assertEqual(components, {name for free, exclusive in FITTING.values() for name in (*free, *exclusive)})
        for (overlay, chosen), found in self.objects.items():
            for name in chosen:
                without = self.objects[overlay, tuple(one for one in chosen if one != name)]
                self.assertNotEqual(found, without, f"{overlay} with {chosen}: {name} changes nothing")

    def test_probes_and_monitors_speak_what_rest_speaks(self):
        for chosen, all_objects in self.objects.items():
            for spec in [spec for one in all_objects for spec in pod_specs(one)]:
                (container,) = spec["containers"]
                has_tls = {"name": "CENTROID_API_TLS", "value": "true"} in container.get("env", [])
                self.assertEqual(has_tls, container["name"] == "server" and "tls" in chosen[1], chosen)
                probes = [container[kind]["httpGet"] for kind in ("startupProbe", "readinessProbe", "livenessProbe") if "httpGet" in container.get(kind, {})]
                self.assertEqual({probe.get("scheme", "HTTP") for probe in probes} or {"HTTP"}, {"HTTPS"} if has_tls else {"HTTP"}, chosen)
                self.assertTrue(container["livenessProbe"])
                if container["name"] in ("worker", "rank"):  # it is a member, which an upgrade one by one waits for
                    self.assertEqual(container["readinessProbe"]["httpGet"], {"path": "/readyz", "port": "metrics"}, chosen)
            monitors = [one for one in all_objects if one["kind"] == "ServiceMonitor"]
            self.assertEqual(bool(monitors), "monitoring" in chosen[1] or chosen[0] in ("prod", "ha"), chosen)
            for monitor in monitors:
                self.assert_finds_pods(monitor, all_objects)
                self.assertEqual(monitor["spec"]["endpoints"][0].get("scheme", "http"), "https" if "tls" in chosen[1] else "http", chosen)

    def test_every_probe_asks_what_it_is_there_for(self):
        seen = set()
        for chosen, all_objects in self.objects.items():
            for one in all_objects:
                for spec in pod_specs(one):
                    (container,) = spec["containers"]
                    wanted = dict(PROBES[container["name"]])
                    if container["name"] == "server" and one["spec"].get("replicas", 1) > 1:
                        wanted["readinessProbe"] = ("/healthz", "api")  # a standby is never ready
                    found = {}
                    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
                        if probe := container.get(kind):
                            place = probe.get("httpGet") or probe["tcpSocket"]
                            found[kind] = (place.get("path", ""), place["port"])
                            self.assertIn(place["port"], [port["name"] for port in container["ports"]])
                    self.assertEqual(found, wanted, f"{chosen}: {one['kind']} {container['name']}")
                    if start := container.get("startupProbe"):
                        self.assertGreaterEqual(start["periodSeconds"] * start["failureThreshold"], START_SECONDS, f"{chosen}: {container['name']}")
                    seen.add((one["kind"], container["name"]))
        sets = {("StatefulSet", name) for name in ("server", "shard", "etcd", "rank")}
        self.assertEqual(seen, sets | {("Job", "worker"), ("JobSet", "server"), ("JobSet", "worker")})

    def test_a_drained_node_takes_one_server_at_a_time(self):
        """Each StatefulSet has a PodDisruptionBudget, which selects its pods and nobody else's."""
        seen = set()
        for chosen, all_objects in self.objects.items():
            sets = {one["metadata"]["name"]: one["spec"]["template"] for one in all_objects if one["kind"] == "StatefulSet"}
            pods = [(one["metadata"]["name"], template["metadata"]["labels"]) for one in all_objects for template in pod_templates(one)]
            self.assertEqual("centroid-server" in sets, chosen[0] not in ("jobset", "sharded"), chosen)
            selected = []
            for one in [one for one in all_objects if one["kind"] == "PodDisruptionBudget"]:
                self.assertEqual(one["spec"].keys(), {"maxUnavailable", "unhealthyPodEvictionPolicy", "selector"}, chosen)
                self.assertEqual((one["spec"]["maxUnavailable"], one["spec"]["unhealthyPodEvictionPolicy"]), (1, "AlwaysAllow"), chosen)
                self.assertEqual(one["spec"]["selector"].keys(), {"matchLabels"}, chosen)
                wanted = one["spec"]["selector"]["matchLabels"].items()
                selected.append([name for name, labels in pods if wanted <= labels.items()])
            self.assertEqual(sorted(selected), sorted([name] for name in sets), f"{chosen}: what the budgets select")
            seen |= sets.keys()
        self.assertEqual(seen, {"centroid-server", "centroid-shard", "centroid-etcd", "centroid-sharded"})

    def test_monitoring_brings_every_alert_and_every_dashboard(self):
        committed = {path.name: json.loads(path.read_text()) for path in (ROOT / "dashboards" / "grafana").glob("*.json")}
        self.assertEqual({one["uid"] for one in committed.values()}, {one.uid for one in catalog.DASHBOARDS})
        alerts = [(one.name, f"{one.value} {one.condition}", one.wait, one.severity, one.summary, one.do) for one in catalog.ALERTS]
        count = 0
        for chosen, all_objects in self.objects.items():
            rules = [one for one in all_objects if one["kind"] == "PrometheusRule"]
            maps = [one["data"] for one in all_objects if one["kind"] == "ConfigMap" and one["metadata"].get("labels", {}).get("grafana_dashboard") == "1"]
            boards = [(name, json.loads(text)) for data in maps for name, text in data.items()]
            if "monitoring" not in chosen[1] and chosen[0] not in MONITORED:
                self.assertEqual((rules, boards), ([], []), chosen)
                continue
            count += 1
            (rule,) = rules
            found = [one for group in rule["spec"]["groups"] for one in group["rules"]]
            texts = [(one["alert"], one["expr"], one["for"], one["labels"]["severity"], *map(one["annotations"].get, ("summary", "runbook"))) for one in found]
            self.assertEqual(texts, alerts, chosen)
            self.assertEqual(len(boards), len(committed), chosen)
            self.assertEqual(dict(boards), committed, chosen)
            self.assertLess(max(len(json.dumps(data)) for data in maps), ANNOTATION_BYTES, "kubectl apply writes the whole object into an annotation")
        self.assertGreater(count, len(self.objects) // 4)

    def test_pod_monitors_find_a_port_of_the_pods_that_are_there(self):
        found = set()
        for all_objects in self.objects.values():
            templates = [template for one in all_objects for template in pod_templates(one)]
            for monitor in [one for one in all_objects if one["kind"] == "PodMonitor"]:
                wanted = monitor["spec"]["selector"]["matchLabels"].items()
                for template in [one for one in templates if wanted <= one["metadata"]["labels"].items()]:
                    (container,) = template["spec"]["containers"]
                    self.assertIn(monitor["spec"]["podMetricsEndpoints"][0]["port"], [port["name"] for port in container["ports"]])
                    found.add(container["name"])
        self.assertEqual(found, {"worker", "shard", "rank"})

    def test_an_update_proceeds_with_a_standby_and_waits_for_a_shard_server(self):
        """A StatefulSet's update waits until the pod that it replaced is ready: a standby never leads, a shard server gets its chunks again."""
        seen = set()
        for all_objects in self.objects.values():
            for one in [one for one in all_objects if one["kind"] == "StatefulSet"]:
                (container,) = one["spec"]["template"]["spec"]["containers"]
                if container["name"] == "etcd":
                    continue
                path = container["readinessProbe"]["httpGet"]["path"]
                has_standby = container["name"] == "server" and one["spec"]["replicas"] > 1
                self.assertEqual(path, "/healthz" if has_standby else "/readyz")
                if container["name"] == "shard":
                    self.assertGreater(one["spec"]["minReadySeconds"], container["readinessProbe"]["periodSeconds"])
                seen.add((container["name"], path))
        self.assertEqual(seen, {("server", "/healthz"), ("server", "/readyz"), ("shard", "/readyz"), ("rank", "/readyz")})

    def test_workers_of_the_next_image_are_a_second_job_beside_the_first(self):
        """As the guide says: another name, other names of its workers, another image; all else as it was."""
        for overlay in ("dev", "prod", "ha"):
            text = render_with(overlay=overlay, more=next_release())
            self.assertEqual(strict_check(text).returncode, 0)
            first, second = ({(one["kind"], one["metadata"]["name"]): one for one in objects(found)} for found in (self.texts[overlay, ()], text))
            self.assertEqual(first.keys() - second.keys(), {("Job", "centroid-worker")})
            self.assertEqual(second.keys() - first.keys(), {("Job", "centroid-worker-2")})
            before, after = first["Job", "centroid-worker"], second["Job", "centroid-worker-2"]
            (old,), (new,) = (one["spec"]["template"]["spec"]["containers"] for one in (before, after))
            self.assertEqual((old["args"], new["args"]), (["--name", "worker-$(JOB_COMPLETION_INDEX)"], ["--name", "worker-2-$(JOB_COMPLETION_INDEX)"]))
            self.assertNotEqual(old["image"], new["image"])
            old |= {"args": new["args"], "image": new["image"]}
            before["metadata"]["name"] = "centroid-worker-2"
            self.assertEqual(before, after)

    def assert_finds_pods(self, monitor, all_objects):
        """A ServiceMonitor looks for Services by label, these for pods, and the port is one of theirs."""
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        services = [one for one in all_objects if one["kind"] == "Service" and wanted <= one["metadata"]["labels"].items()]
        self.assertEqual(len(services), 1, f"{[one['metadata']['name'] for one in services]} of {monitor['metadata']['name']}")
        (service,) = services
        endpoint = monitor["spec"]["endpoints"][0]
        self.assertIn(endpoint["port"], [port["name"] for port in service["spec"]["ports"]])
        selected = service["spec"]["selector"].items()
        found = [template for one in all_objects for template in pod_templates(one) if selected <= template["metadata"]["labels"].items()]
        self.assertEqual([template["spec"]["containers"][0]["name"] for template in found], ["server"])

    def test_policies_let_through_what_programs_and_centroidctl_need_and_no_more(self):
        needed = {("worker", "server", "data"), ("worker", "worker", "peers"), ("worker", "shard", "data"), ("shard", "server", "data")}
        needed |= {("server", "shard", "data"), ("server", "shard", "metrics"), ("server", "worker", "metrics")}  # doctor, bench and trace in the server's container
        needed |= {("rank", "rank", "rendezvous"), ("rank", "rank", "metrics")}
        others = {("worker", "server", "api"), ("shard", "worker", "metrics"), ("worker", "shard", "metrics"), ("worker", "worker", "metrics"), ("shard", "server", "api")}
        seen = set()
        for chosen, all_objects in self.objects.items():
            if "networkpolicy" not in chosen[1] and chosen[0] not in MONITORED:
                continue
            components = {one["metadata"]["labels"]["app.kubernetes.io/component"] for object_ in all_objects for one in pod_templates(object_)}
            for way in needed | others:
                if {way[0], way[1]} <= components:
                    seen.add(way)
                    self.assertEqual(passes(all_objects, *way), way in needed, f"{chosen}: {way}")
        self.assertEqual(seen, needed | others)

    def test_a_workload_selects_its_own_pods(self):
        """The API server refuses one that does not."""
        for chosen, all_objects in self.objects.items():
            for one in all_objects:
                if one["kind"] in ("StatefulSet", "Deployment"):
                    labels = one["spec"]["template"]["metadata"]["labels"]
                    self.assertLessEqual(one["spec"]["selector"]["matchLabels"].items(), labels.items(), f"{chosen}: {one['metadata']['name']}")

    def test_every_overlay_trains_with_the_optimizer_of_the_base(self):
        base = re.search(r"^CENTROID_OPTIMIZER=(.*)$", (KUBERNETES / "base" / "server.env").read_text(), re.MULTILINE).group(1)
        for chosen, all_objects in self.objects.items():
            names = [one["data"]["CENTROID_OPTIMIZER"] for one in all_objects if one["kind"] == "ConfigMap" and "CENTROID_EPOCHS" in one["data"]]
            self.assertEqual(names, [base], chosen)

    def test_pods_have_time_to_end_in_order(self):
        """A server's round and its checkpoint, of the size that its claim or its memory allows; a shard server's chunks; a worker's round."""
        seen = set()
        for chosen, all_objects in self.objects.items():
            maps = {one["metadata"]["name"]: one["data"] for one in all_objects if one["kind"] == "ConfigMap"}
            for spec in [spec for one in all_objects for spec in pod_specs(one)]:
                (container,) = spec["containers"]
                if container["name"] == "etcd":
                    continue
                grace, settings = spec["terminationGracePeriodSeconds"], maps[container["envFrom"][0]["configMapRef"]["name"]]
                if container["name"] == "worker":
                    self.assertGreaterEqual(grace, 120, chosen)
                    continue
                if container["name"] == "rank":  # its part of the checkpoint is written while the others write theirs on the same disk
                    (claim,) = claims_of(all_objects)
                    needed = seconds_of_checkpoint(claim["spec"]["resources"]["requests"]["storage"], container["resources"]["limits"]["memory"], KEEP)
                    self.assertGreater(grace, needed + SPARE_SECONDS, chosen)
                    continue
                self.assertIn("CENTROID_DRAIN_TIMEOUT", settings, chosen)
                needed = int(settings["CENTROID_DRAIN_TIMEOUT"].removesuffix("s"))
                if container["name"] == "server":
                    (claim,) = claims_of(all_objects)
                    keep = int(settings.get("CENTROID_CHECKPOINT_KEEP", KEEP))
                    needed += seconds_of_checkpoint(claim["spec"]["resources"]["requests"]["storage"], container["resources"]["limits"]["memory"], keep)
                self.assertGreater(grace, needed + SPARE_SECONDS, f"{chosen}: {container['name']}")
                seen.add((container["name"], grace))
        self.assertEqual(seen, {("server", 180), ("server", 240), ("shard", 180)})
        printed = subprocess.run([self.programs / "centroid-server", "--print-config"], capture_output=True, text=True, check=True).stdout
        self.assertEqual(json.loads(printed)["checkpoint.keep"]["default"], KEEP)

    def test_the_check_finds_what_is_wrong(self):
        prod = self.texts["prod", ()]
        faults = [("enableServiceLinks", "enableServiceLink"), ("completionMode: Indexed", "completionMode: Indexd"), ("maxUnavailable: 1", "maxUnavailble: 1")]
        for right, wrong in faults:
            self.assertIn(right, prod)
            self.assertNotEqual(strict_check(prod.replace(right, wrong)).returncode, 0, wrong)
        for right, wrong in (("podMetricsEndpoints", "podMetricEndpoints"), ("port: metrics", "prot: metrics")):
            self.assertIn(right, prod)
            self.assertNotEqual(strict_check(prod.replace(right, wrong)).returncode, 0, wrong)
        jobset = self.texts["jobset", ()]
        for right, wrong in (("maxRestarts", "maxRestart"), ("action: FailJobSet", "action: FailSet"), ("action: FailIndex", "action: FailIndices"),
                             ("replicatedJobs", "replicatedJob")):
            self.assertIn(right, jobset)
            self.assertNotEqual(strict_check(jobset.replace(right, wrong)).returncode, 0, wrong)

    def test_the_check_finds_an_unknown_field_anywhere(self):
        """In every mapping of every kind that is rendered, one object each."""
        planted, faulty, seen = [], [], set()
        for one in [one for all_objects in self.objects.values() for one in all_objects]:
            for place in mappings(one):
                if (one["kind"], re.sub(r"\d+", "0", place)) in seen:
                    continue
                seen.add((one["kind"], re.sub(r"\d+", "0", place)))
                copy = json.loads(json.dumps(one))
                copy["metadata"]["name"] = f"fault-{len(planted)}"
                at = copy
                for step in filter(None, place.split("/")):
                    at = at[int(step) if isinstance(at, list) else step]
                at["noSuchField"] = True
                planted.append(f"{one['kind']}/fault-{len(planted)} {place}")
                faulty.append(json.dumps(copy))
        kinds = {one.partition("/")[0] for one in planted}
        self.assertLessEqual({"JobSet", "NetworkPolicy", "PrometheusRule", "ServiceMonitor", "PodMonitor", "StatefulSet", "Job", "Service"}, kinds)
        said = strict_check("\n---\n".join(faulty)).stdout
        found = set(re.findall(r"^(\w+/fault-\d+):", said, re.MULTILINE))
        self.assertEqual([one for one in planted if one.partition(" ")[0] not in found], [])
        print(f"{len(planted)} unknown fields in {len(kinds)} kinds were found", file=sys.stderr)

    def test_pods_obey_the_restricted_profile(self):
        count = 0
        for name, spec in self.specs():
            count += 1
            with self.subTest(name):
                self.assertFalse(spec["automountServiceAccountToken"])
                self.assertTrue(spec["securityContext"]["runAsNonRoot"])
                self.assertEqual(spec["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"})
                for container in spec["containers"]:
                    context = container["securityContext"]
                    self.assertEqual(context["capabilities"], {"drop": ["ALL"]})
                    self.assertFalse(context["allowPrivilegeEscalation"])
                    self.assertTrue(context["readOnlyRootFilesystem"])
                    self.assertIn("memory", container["resources"]["limits"])
        self.assertGreater(count, 2 * len(self.objects) - 1)

    def test_pods_get_no_variables_of_services(self):
        for name, spec in self.specs():  # they would begin with CENTROID_ and be refused as unknown settings
            self.assertIs(spec["enableServiceLinks"], False, name)

    def test_every_setting_is_known_to_its_program(self):
        """Start each program with the settings of its container: it must not call any of them unknown or wrong."""
        seen = set()
        for chosen, all_objects in self.objects.items():
            maps = {one["metadata"]["name"]: one["data"] for one in all_objects if one["kind"] == "ConfigMap"}
            for spec in [spec for one in all_objects for spec in pod_specs(one)]:
                container = spec["containers"][0]
                if container["name"] == "etcd":
                    continue
                settings = dict(IMAGE_SETTINGS[container["image"].split("/")[-1].split(":")[0]])
                for source in container["envFrom"]:
                    settings |= maps[source["configMapRef"]["name"]]
                settings |= {one["name"]: one["value"] for one in container.get("env", []) if "value" in one and not one["name"].endswith("_FILE")}
                settings = {name: value.replace("$(POD_NAME)", "centroid-server-0") for name, value in settings.items()}
                if (key := (container["name"], *sorted(settings.items()))) in seen:
                    continue
                seen.add(key)
                self.assertIn("CENTROID_" + {"worker": "SERVER", "server": "EPOCHS", "shard": "JOIN", "rank": "RENDEZVOUS"}[container["name"]], settings)
                program = self.programs / ("centroid-worker" if container["name"] in ("worker", "rank") else "centroid-server")
                done = subprocess.run([program, "--print-config"], env=settings, capture_output=True, text=True, timeout=30, check=False)
                self.assertEqual(done.returncode, 0, f"{chosen}: {done.stderr}")

    def test_names_that_objects_refer_to_exist(self):
        for chosen, all_objects in self.objects.items():
            names = {(one["kind"], one["metadata"]["name"]) for one in all_objects}
            for spec in [spec for one in all_objects for spec in pod_specs(one)]:
                self.assertIn(("ServiceAccount", spec["serviceAccountName"]), names, chosen)
                for source in spec["containers"][0].get("envFrom", []):
                    self.assertIn(("ConfigMap", source["configMapRef"]["name"]), names, chosen)
                for volume in spec.get("volumes", []):
                    if "persistentVolumeClaim" in volume:
                        self.assertIn(("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]), names)
            for one in all_objects:
                if one["kind"] == "StatefulSet":
                    self.assertIn(("Service", one["spec"]["serviceName"]), names)

    def test_ranks_of_a_sharded_job_are_the_pods_by_number(self):
        """As many as the settings say; each knows its number, and all find the first one at its name."""
        (ranks,) = [one for one in self.objects["sharded", ()] if one["kind"] == "StatefulSet"]
        (settings,) = [one["data"] for one in self.objects["sharded", ()] if one["kind"] == "ConfigMap" and "CENTROID_WORLD" in one["data"]]
        self.assertEqual(int(settings["CENTROID_WORLD"]), ranks["spec"]["replicas"])
        self.assertEqual(ranks["spec"]["podManagementPolicy"], "Parallel")  # none is ready before all are there
        (container,) = ranks["spec"]["template"]["spec"]["containers"]
        number = next(one["valueFrom"]["fieldRef"]["fieldPath"] for one in container["env"] if one["name"] == "CENTROID_RANK")
        self.assertEqual(number, "metadata.labels['apps.kubernetes.io/pod-index']")
        port = next(one["containerPort"] for one in container["ports"] if one["name"] == "rendezvous")
        name = ranks["metadata"]["name"]
        self.assertEqual(settings["CENTROID_RENDEZVOUS"], f"{name}-0.{ranks['spec']['serviceName']}:{port}")
        (service,) = [one for one in self.objects["sharded", ()] if one["kind"] == "Service"]
        self.assertTrue(service["spec"]["publishNotReadyAddresses"])
        place = next(one["mountPath"] for one in container["volumeMounts"] if one["name"] == "run")
        self.assertTrue(settings["CENTROID_CHECKPOINT_DIR"].startswith(place))
        (claim,) = claims_of(self.objects["sharded", ()])
        self.assertEqual(claim["spec"]["accessModes"], ["ReadWriteMany"])  # all ranks share the folder

    def test_what_an_exit_status_makes_a_job_do(self):
        """One worker that ends for good must not end the others: only a halt does. Of a server's Job there is nobody else."""
        header = (ROOT / "common" / "base" / "exit_status.h").read_text()
        statuses = {name: int(number) for name, number in re.findall(r"kExit(\w+) = (\d+)", header)}
        usage, halted, again = statuses["Usage"], statuses["Halted"], None  # None: counted, and started again
        wanted = {
            "worker": {0: again, statuses["Failed"]: again, usage: "FailIndex", halted: "FailJob", 137: again, 143: again},
            "server": {0: again, statuses["Failed"]: again, usage: "FailJob", halted: "FailJob", 137: again, 143: again},
        }
        seen = set()
        for chosen, all_objects in self.objects.items():
            for one in all_objects:
                for name, spec in jobs(one):
                    seen.add((one["kind"], name))
                    for status, action in wanted[name].items():
                        self.assertEqual(action_of(spec, name, status), action, f"{chosen} {one['kind']} {name}: exit status {status}")
                    self.assertNotIn("maxFailedIndexes", spec)  # 0 of them would end the Job with the first
                if one["kind"] == "JobSet":  # what its Jobs took for final is
                    (rule,) = one["spec"]["failurePolicy"]["rules"]
                    self.assertEqual((rule["action"], set(rule["onJobFailureReasons"])), ("FailJobSet", {"PodFailurePolicy", "FailedIndexes"}))
        self.assertEqual(seen, {("Job", "worker"), ("JobSet", "server"), ("JobSet", "worker")})


if __name__ == "__main__":
    if reason := missing():
        print(f"skipped: {reason}")
        sys.exit(SKIPPED)
    Rendered.programs = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main(verbosity=2, testRunner=Runner)
