"""Every query of the dashboards and alerts against a Prometheus that scrapes a training cluster; the panels as pictures.

dashboards_test.py BIN_DIR [unittest's arguments]     with OPS_WRITE_REFERENCE=1 docs/reference/metrics.md is made anew
Needs prometheus and promtool: in PATH, or in the folder that OPS_PROMETHEUS names; for pictures chromium, node and the packages of
tests/ops/package.json. OPS_PICTURES=DIR keeps them there.
"""

import array
import contextlib
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import ROOT
from harness.browser import PACKAGES, missing as missing_for_pictures
from harness.certificates import TlsTest
from harness.cluster import ClusterTest, Process, bar, free_port, main, wait_for
from harness.etcd import ETCD, Etcd
import catalog
import centroid
import generate
import reference

IS_WRITING = os.environ.get("OPS_WRITE_REFERENCE") == "1"
RULES = ROOT / "dashboards" / "prometheus"
SKIPPED = 77


def tool(name):
    """Path of a program of Prometheus, or None."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("OPS_PROMETHEUS", ""), os.environ.get("PATH", "")]))


def promtool(*arguments, text=None):
    return subprocess.run([tool("promtool"), *map(str, arguments)], input=text, capture_output=True, text=True, check=False)


UNSHOWN = {
    "centroid_server_round_number": "the version, and rounds by outcome, tell it",
    "centroid_worker_divergence_shift": "a difference of norms, to be read beside the cosine of one worker",
}
FIRST_METRICS_SECONDS = 15  # of docs/internals/benchmarks.md


class Files(unittest.TestCase):
    """What needs no cluster."""

    def assert_good(self, done):
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_committed_files_are_what_the_generator_makes(self):
        self.assertEqual(generate.main(["--check"]), 0)

    def test_rules_are_clean_and_their_cases_pass(self):
        self.assert_good(promtool("check", "rules", "--lint=all", "--lint-fatal", RULES / "alerts.yaml"))
        self.assert_good(promtool("test", "rules", RULES / "alerts_test.yaml"))

    def test_configuration_of_compose_is_right(self):
        self.assert_good(promtool("check", "config", "--syntax-only", ROOT / "deploy" / "compose" / "prometheus.yaml"))

    def test_every_alert_has_a_case_that_fires(self):
        cases = (RULES / "alerts_test.yaml").read_text()
        for alert in catalog.ALERTS:
            self.assertRegex(cases, rf"alertname: {alert.name}\n\s+exp_alerts:\n\s+- exp_labels", alert.name)

    def test_every_series_has_a_panel_or_an_alert(self):
        queries = "\n".join(query for dashboard in catalog.DASHBOARDS for _, row in dashboard.rows for panel in row for query, _ in panel.queries)
        queries += "\n".join(f"{alert.value} {alert.condition}" for alert in catalog.ALERTS)
        shown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"\b(?:centroid|process)_[a-z_]+", queries)}
        served = set(re.findall(r"^`([a-z_]+)`", (ROOT / "docs" / "reference" / "metrics.md").read_text(), re.MULTILINE))
        self.assertGreater(len(served), 100)
        self.assertEqual(served - shown, set(UNSHOWN), "series that nobody sees: a panel where a person would look, or a reason in UNSHOWN")
        self.assertEqual({name for name in shown if name not in served}, set(), "series in a query that nobody serves")

    def test_every_panel_is_complete(self):
        for dashboard in catalog.DASHBOARDS:
            made = generate.dashboard_json(dashboard)
            panels = [panel for panel in made["panels"] if panel["type"] != "row"]
            self.assertEqual(len({panel["id"] for panel in made["panels"]}), len(made["panels"]))
            for _, row in dashboard.rows:
                for line in generate.lines_of(row):
                    self.assertEqual(sum(panel.width for panel in line), generate.GRID_WIDTH, f"a hole beside {line[-1].title}")
            self.assertEqual([v["name"] for v in made["templating"]["list"]], ["datasource", "run", "job", "instance"])
            for panel in panels:
                with self.subTest(dashboard=dashboard.title, panel=panel["title"]):
                    self.assertGreater(len(panel["description"]), 20)
                    self.assertTrue(panel["fieldConfig"]["defaults"]["unit"])
                    self.assertLessEqual(panel["gridPos"]["x"] + panel["gridPos"]["w"], 24)
                    for target in panel["targets"]:
                        self.assertTrue(target["legendFormat"])
                        self.assertIn(generate.MATCHERS, target["expr"])
                        self.assertNotIn("[5m]", target["expr"])


class Scraped(ClusterTest):
    """A cluster of three workers and a Prometheus that scrapes it every second."""

    scrape_seconds = 1
    rules = RULES / "alerts.yaml"
    spread = ("--servers", "2", "--chunk-bytes", "512")  # a model on a leader and a shard server

    def shard(self, leaders, name, *arguments):
        places = ["--join", leaders, "--name", name, "--listen", "127.0.0.1:0", "--metrics.listen", "127.0.0.1:0", "--run-dir", self.folder / "shards"]
        return self._start(Process, "centroid-server", name, [*places, *arguments], None)

    def setUp(self):
        self.begun = time.monotonic()
        arguments = ["--epochs", "1000000", "--min-workers", "3", "--clip-norm", "1", "--checkpoint.every-rounds", "200", "--tables", "emb:dim=4", "--journal.mode", "on"]
        self.cluster = self.server(*arguments, *self.spread)
        self.shards = [self.shard(self.cluster.data, "s1").wait_event("shard.metrics_opened")["endpoint"]]
        gpus = self.stand_in_for_gpus()
        self.workers = [
            self.worker(self.cluster, f"w{k}", "--metrics.listen", "127.0.0.1:0", "--codec", codec, environment=gpus)
            for k, codec in enumerate(("f32", "int8", "topk:0.1"))
        ]
        self.endpoints = [worker.wait_event("worker.metrics_opened")["endpoint"] for worker in self.workers]
        self.prometheus = self.start_prometheus(self.cluster.api, *self.more_servers())

    def more_servers(self):
        return []

    def recorded(self, *arguments, **more):
        """A server to which a program of somebody else gives a number of its own with each contribution."""
        centroid.load(pathlib.Path(self.programs).parent / "lib" / "libcentroid.so")
        server = self.server("--min-workers", "1", *arguments, name="recorded", run="recorded")
        trainer = centroid.Trainer(server.data, {"w": array.array("f", [0, 0])}, name="recorder", samples=60, batch=4, timeout=30, **more)
        is_over = threading.Event()

        def train():
            with contextlib.suppress(centroid.CentroidError):  # the server ends first
                for _ in trainer:
                    trainer.record("reward", 0.5)
                    trainer.finish({"w": array.array("f", [0, 0])}, loss_sum=2.0)
                    if is_over.wait(0.05):
                        break

        thread = threading.Thread(target=train, daemon=True)
        thread.start()

        def end():
            is_over.set()
            thread.join(60)
            trainer.close()

        self.addCleanup(end)
        return server

    def averaged(self, *arguments, of_worker=lambda _: ()):
        """A server whose workers make local steps, which diverge from each other; slow ones, for the sake of the others here."""
        server = self.server("--epochs", "1000000", "--min-workers", "2", "--local-steps", "4", "--outer", "optimizer", *arguments, name="averaged", run="averaged")
        workers = [self.worker(server, name, "--metrics.listen", "127.0.0.1:0", "--slowdown", "20", *of_worker(name)) for name in ("a0", "a1")]
        self.endpoints += [worker.wait_event("worker.metrics_opened")["endpoint"] for worker in workers]
        return server

    def divided(self):
        """The endpoints of two ranks that divide a model, without a server."""
        flags = ["--exchange", "sharded", "--world", "2", "--rendezvous", f"127.0.0.1:{free_port()}", "--metrics.listen", "127.0.0.1:0", "--epochs", "1000000"]
        ranks = [self.worker("127.0.0.1:1", f"d{rank}", *flags, "--rank", str(rank)) for rank in range(2)]
        return [rank.wait_event("worker.metrics_opened")["endpoint"] for rank in ranks]

    def stand_in_for_gpus(self):
        """Where there is no GPU the workers find a library that says there is one, so that its queries have data."""
        if not shutil.which("nvidia-smi"):
            source = pathlib.Path(__file__).with_name("nvml_stand_in.c")
            subprocess.run(["cc", "-shared", "-fPIC", "-o", self.folder / "libnvidia-ml.so.1", source], check=True)
            return {"LD_LIBRARY_PATH": str(self.folder)}
        return None

    def start_prometheus(self, *targets, more=()):
        """It scrapes these servers, as lines `more` say, shard servers and workers."""
        jobs = {"centroid-server": targets or [self.cluster.api], "centroid-shard": self.shards, "centroid-worker": self.endpoints}
        lines = ["global:", f"  scrape_interval: {self.scrape_seconds}s", "  evaluation_interval: 1s", f"rule_files: [{json.dumps(str(self.rules))}]"]
        lines += ["scrape_configs:"]
        for job, targets in jobs.items():
            lines += [f"  - job_name: {job}", f"    static_configs: [{{targets: {json.dumps(targets)}, labels: {{run: test}}}}]"]
            lines += [f"    {line}" for line in more if job == "centroid-server"]
        config = self.folder / "prometheus.yml"
        config.write_text("\n".join(lines) + "\n")
        arguments = [f"--config.file={config}", "--web.listen-address=127.0.0.1:0", f"--storage.tsdb.path={self.folder / 'tsdb'}"]
        process = Process(tool("prometheus"), arguments, self.folder / "prometheus.log", dict(os.environ))
        self.processes.append(process)
        listening = re.compile(r'msg="Listening on" address=(\S+)')
        address = wait_for(lambda: listening.search(process.text()), "the port of Prometheus")[1]

        def is_ready():
            try:
                return self.fetch(f"http://{address}/-/ready")
            except urllib.error.HTTPError:
                return None

        wait_for(is_ready, "a ready Prometheus")
        return address

    def fetch(self, url):
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=20) as reply:
            return reply.read().decode()

    def points(self, query):
        """Finite values that Prometheus has for a query now."""
        url = f"http://{self.prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": query})
        try:
            answer = json.loads(self.fetch(url))
        except urllib.error.HTTPError as error:
            self.fail(f"{query}: {error.read().decode()}")
        values = [float(one["value"][1]) for one in answer["data"]["result"]]
        return [value for value in values if math.isfinite(value)]

    def assert_data(self, queries):
        """Every one of (name, query) has data before the deadline."""
        missing = dict(queries)

        def look():
            for name in [name for name, query in missing.items() if self.points(query)]:
                del missing[name]
            return not missing

        try:
            wait_for(look, "data", 60)
        except AssertionError:
            self.fail("queries without data:\n" + "\n".join(f"{name}: {query}" for name, query in missing.items()))


    def assert_panels_and_alerts(self, dashboards, alerts=catalog.ALERTS):
        queries = []
        for dashboard in dashboards:
            made = generate.dashboard_json(dashboard)
            for variable in made["templating"]["list"][1:]:  # after the data source
                selector, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"]).groups()
                queries.append((f"{dashboard.title} / variable {variable['name']}", f"count by ({label}) ({re.sub(r'[$](job|run)', '.*', selector)})"))
            for one in made["annotations"]["list"]:  # without its condition, which holds only now and then
                expression = re.sub(r"\$(job|instance|run)", ".*", one["expr"].removesuffix(" > 0")).replace("$__rate_interval", "5s")
                queries.append((f"{dashboard.title} / annotation {one['name']}", expression))
            for panel in made["panels"]:
                for target in panel.get("targets", []):
                    query = re.sub(r"\$(job|instance|run)", ".*", target["expr"]).replace("$__rate_interval", "5s")
                    queries.append((f"{dashboard.title} / {panel['title']} / {target['refId']}", query))
        self.assertGreater(len(queries), 20)
        self.assert_data(queries)
        measured = ("centroid_server_divergence_ratio > 0", "centroid_worker_divergence_ratio > 0", "abs(centroid_worker_divergence_cosine) <= 1")
        self.assert_data([(f"a divergence that was measured, {query}", query) for query in measured])
        self.assert_data([(alert.name, re.sub(r"(?<=\[)5m|(?<=\[)2h|(?<=offset )2h", "10s", alert.value)) for alert in alerts])
        firing = json.loads(self.fetch(f"http://{self.prometheus}/api/v1/alerts"))["data"]["alerts"]
        self.assertEqual([alert["labels"]["alertname"] for alert in firing if alert["state"] == "firing"], [])
        print(f"{len(queries)} queries of panels and {len(alerts)} of alerts have data", file=sys.stderr)

    def draw_panels(self):
        """Pictures of all dashboards, dark and light: no panel without a line, nothing cut off."""
        if reason := missing_for_pictures():
            print(f"no pictures of the panels: {reason}", file=sys.stderr)
            return
        pictures = pathlib.Path(os.environ.get("OPS_PICTURES", self.folder))
        command = ["node", ROOT / "dashboards" / "draw.mjs", PACKAGES, shutil.which("chromium"), f"http://{self.prometheus}", pictures, int(time.monotonic() - self.begun), "5s"]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600, check=False)  # a slow machine draws for minutes
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        seen = json.loads(done.stdout)
        self.assertEqual(len(seen), 2 * len(catalog.DASHBOARDS))
        for name, view in seen.items():
            self.assertEqual({what: view[what] for what in ("errors", "empty", "cut")}, {"errors": [], "empty": [], "cut": []}, name)
            self.assertGreater(view["charts"], 0)
            self.assertGreater((pictures / f"{name}.png").stat().st_size, 10_000)


class Live(Scraped):
    def more_servers(self):
        self.notes = self.recorded()
        self.ranks = self.divided()
        self.endpoints += self.ranks
        return [self.notes.api, self.averaged().api]

    def test_every_panel_and_every_alert_has_data(self):
        self.assert_panels_and_alerts(catalog.DASHBOARDS)
        self.draw_panels()

    def test_names_are_clean_and_the_reference_is_true(self):
        self.cluster.wait_round(250)  # a checkpoint has begun
        wait_for(lambda: self.cluster.get("/v1/checkpoints")["checkpoints"], "a checkpoint")
        wait_for(lambda: "centroid_shard_rounds_total" in self.cluster.call("GET", "/metrics")[1], "the first report of the shard server")
        server = self.cluster.call("GET", "/metrics")[1]
        shard, worker, rank = (self.fetch(f"http://{place}/metrics") for place in (self.shards[0], self.endpoints[0], self.ranks[0]))
        for text in (server, shard, worker, rank):
            done = promtool("check", "metrics", text=text)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertLess(len(text.splitlines()), 2000)  # that they do not grow: tests/process/metrics_test.py
        wait_for(lambda: "centroid_server_scalar{" in self.notes.call("GET", "/metrics")[1], "a number that was recorded")
        notes = [line for line in self.notes.call("GET", "/metrics")[1].splitlines(keepends=True) if "centroid_server_scalar" in line]
        divided = [line for line in rank.splitlines(keepends=True) if "centroid_worker_sharded_" in line]
        page, file = reference.page(server + "".join(notes), shard, worker + "".join(divided)), ROOT / "docs" / "reference" / "metrics.md"
        if IS_WRITING:
            file.write_text(page)
        self.assertEqual(file.read_text() if file.exists() else "", page, "docs/reference/metrics.md: OPS_WRITE_REFERENCE=1 ./centroid test --ops")


@unittest.skipIf(ETCD is None, "etcd is not installed (package etcd-server)")
@unittest.skipIf(shutil.which("openssl") is None, "no openssl here")
class Encrypted(TlsTest, Scraped):
    """A leader and a standby by etcd, REST as HTTPS behind a token for looking, journal on."""

    def setUp(self):
        etcd = Etcd(self.folder, free_port(), free_port())
        self.processes.append(etcd)
        secure = [*self.issue("server"), *self.trust, "--api.tls", "--api.token", "secret", "--api.viewer-token", "look"]
        common = ["--etcd.endpoints", etcd.url, "--cluster", "test", "--journal.mode", "on", "--epochs", "1000000", "--min-workers", "2", "--clip-norm", "1"]
        common += ["--checkpoint.every-rounds", "200", "--tables", "emb:dim=4"]
        servers = [self.server(*common, *self.spread, *secure, "--name", name, name=name) for name in ("a", "b")]
        places = ",".join(server.data for server in servers)
        self.shards = [self.shard(places, "s1", *self.issue("s1"), *self.trust).wait_event("shard.metrics_opened")["endpoint"]]
        gpus = self.stand_in_for_gpus()
        workers = [
            self.worker(places, f"w{k}", *self.trust, *self.issue(f"w{k}"), "--metrics.listen", "127.0.0.1:0", "--codec", codec, environment=gpus)
            for k, codec in enumerate(("int8", "topk:0.1"))
        ]
        self.endpoints = [worker.wait_event("worker.metrics_opened")["endpoint"] for worker in workers]
        authority = self.certificates / "ca.crt"
        more = ["scheme: https", f"tls_config: {{ca_file: {json.dumps(str(authority))}}}", "authorization: {credentials: look}"]
        shown = self.issue("recorder")
        self.endpoints += self.divided()
        notes = self.recorded(*secure, tls={"authority": str(authority), "certificate": str(shown[1]), "key": str(shown[3])})
        averaged = self.averaged(*secure, of_worker=lambda name: [*self.trust, *self.issue(name)])
        self.prometheus = self.start_prometheus(*(server.api for server in (*servers, notes, averaged)), more=more)

    def test_panels_and_alerts_have_data_with_two_servers_over_https(self):
        self.assert_data([("all servers", 'sum(up{job="centroid-server"}) == 4'), ("one leads", "sum(centroid_server_is_leader) == 3")])
        self.assert_panels_and_alerts(catalog.DASHBOARDS)


class Provoked(Scraped):
    """Alerts that fire because it happens, not because a series was made up."""

    def setUp(self):
        """Rules that wait a second in place of minutes; a target that can be taken away."""
        self.shards, self.endpoints, self.rules, self.targets = [], [], self.folder / "alerts.yaml", self.folder / "targets.json"
        self.rules.write_text(re.sub(r"for: [1-9]\w*", "for: 1s", (RULES / "alerts.yaml").read_text()))

    def alerts(self):
        found = json.loads(self.fetch(f"http://{self.prometheus}/api/v1/alerts"))["data"]["alerts"]
        return {(one["labels"]["alertname"], one["labels"].get("instance", one["labels"].get("run"))) for one in found if one["state"] == "firing"}

    def wait_alert(self, name, where):
        wait_for(lambda: (name, where) in self.alerts(), f"alert {name} of {where}")

    def test_a_halt_a_checkpoint_that_fails_and_a_server_that_is_gone(self):
        halts = self.server("--lr", "1e30", name="halts", run="halts")
        full, gone = (self.server(name=name, run=name) for name in ("full", "gone"))
        self.targets.write_text(json.dumps([{"targets": [gone.api], "labels": {"run": "gone"}}]))
        more = [f"file_sd_configs: [{{files: [{json.dumps(str(self.targets))}], refresh_interval: 1s}}]"]
        self.prometheus = self.start_prometheus(halts.api, full.api, more=more)
        self.worker(full, "f0")
        full.wait_round(5)
        self.assert_data([("three servers", 'count(up{job="centroid-server"} == 1) == 3')])
        self.assertEqual({name for name, _ in self.alerts()} - {"CentroidTooFewWorkers"}, set())

        self.worker(halts, "h0")
        self.wait_alert("CentroidJobHalted", halts.api)
        folder = self.folder / "full" / "checkpoints"
        folder.rename(folder.with_name("away"))
        folder.write_text("in its place")
        self.assertGreaterEqual(full.post("/v1/checkpoints")[0], 400)
        self.wait_alert("CentroidCheckpointFails", full.api)
        gone.kill()
        self.wait_alert("CentroidServerDown", gone.api)
        self.targets.write_text("[]")
        self.wait_alert("CentroidServerGone", "gone")
        wait_for(lambda: ("CentroidServerDown", gone.api) not in self.alerts(), "no alert of a target that is none")


class FirstMetrics(Scraped):
    """With the interval that deploy/compose brings."""

    scrape_seconds = int(re.search(r"scrape_interval: (\d+)s", (ROOT / "deploy" / "compose" / "prometheus.yaml").read_text())[1])

    def test_first_metrics_come_soon(self):
        window = f"{4 * self.scrape_seconds}s"  # what Grafana makes of $__rate_interval
        panel = next(panel for panel in generate.dashboard_json(catalog.TRAINING)["panels"] if panel["title"] == "Samples per second")
        query = re.sub(r"\$(job|instance|run)", ".*", panel["targets"][0]["expr"]).replace("$__rate_interval", window)
        self.assert_data([("Samples per second", query)])
        seconds = time.monotonic() - self.begun
        print(f"first rate on the dashboard {seconds:.1f} s after the start, scraped every {self.scrape_seconds} s", file=sys.stderr)
        self.assertLess(seconds, bar(FIRST_METRICS_SECONDS, slack=8))


if __name__ == "__main__":
    if not tool("prometheus") or not tool("promtool"):
        print("skipped: no prometheus and promtool here; ./centroid test --ops fetches them")
        sys.exit(SKIPPED)
    main()
