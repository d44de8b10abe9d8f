"""What programs say they did when. trace_test.py BIN_DIR"""

import csv
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import PYTHON
from harness.cluster import DONE, ClusterTest, main, wait_for
import centroid

PROGRAM = """
import array, sys, threading
import centroid, centroid.trace
centroid.trace.open(sys.argv[2], process="my program")
w = array.array("f", [1])
with centroid.Trainer(sys.argv[1], {"w": w}, samples=60, batch=4, name="t0", timeout=60) as trainer:
    for share in trainer:
        with centroid.trace.span("step"):
            with centroid.trace.span("compute"):
                gradient = array.array("f", [len(share)])
            trainer.finish({"w": gradient}, loss_sum=1.0)
    centroid.trace.mark("ended", trainer.end_reason)
def load():
    centroid.trace.lane("loader")
    centroid.trace.span("load")(lambda: None)()
thread = threading.Thread(target=load)
thread.start()
thread.join()
try:
    centroid.trace.mark("", "")
except centroid.CentroidError as error:
    print(error.code)
"""


def lanes(events):
    """Name of each lane -> its spans."""
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    found = {}
    for event in events:
        if event["ph"] == "X":
            found.setdefault(names[event["tid"]], []).append(event)
    return found


def stages(spans):
    return {span["name"] for span in spans}


class Trace(ClusterTest):
    def cluster(self, exchange="star"):
        server = self.server("--epochs", "1000000", "--min-workers", "2", "--exchange", exchange, "--trace.file", self.folder / "server.json")
        more = ["--exchange", exchange, "--codec", "int8" if exchange == "star" else "f32", "--metrics.listen", "127.0.0.1:0"]
        workers = [self.worker(server, name, *more, "--devices", "cpu:0,cpu:1", "--trace.file", self.folder / f"{name}.json") for name in ("w0", "w1")]
        server.wait_round(50)
        return server, workers

    def read(self, name, stage, *wanted):
        """The file of a program, once it holds a span of this stage, in each of the lanes if some are named."""

        def look():
            try:
                found = lanes(json.loads((self.folder / f"{name}.json").read_text()))
            except json.JSONDecodeError:  # it is being written
                return None
            looked_at = [stages(found.get(lane, [])) for lane in wanted] or [set().union(*map(stages, found.values()))]
            return found if all(stage in one for one in looked_at) else None

        return wait_for(look, f"{stage} in the trace of {name}")

    def test_files_hold_every_stage_by_device_and_worker_and_outlive_a_kill(self):
        server, (first, _) = self.cluster()
        found = self.read("w0", "evaluate", "cpu:0", "cpu:1")
        for device in ("cpu:0", "cpu:1"):
            self.assertEqual(stages(found[device]), {"compute", "evaluate"})
        self.assertEqual(stages(found["server"]), {"encode", "send"})
        self.assertEqual(stages(found["loop"]), {"wait", "apply"})
        now = time.time() * 1e6
        for span in found["loop"]:
            self.assertLess(abs(span["ts"] - now), 300e6)
            self.assertGreater(span["args"]["round"], 0)
        first.kill()
        self.assertGreater(len(lanes(json.loads((self.folder / "w0.json").read_text()))["cpu:0"]), 10)
        found = self.read("server", "apply")
        self.assertEqual(stages(found["w0"]), {"receive", "aggregate"})
        self.assertEqual(stages(found["w1 out"]), {"send"})
        self.assertEqual(stages(found["rounds"]), {"apply"})
        server.send(15)
        server.exit_status()
        json.loads((self.folder / "server.json").read_text())

    def test_peers_show_their_additions(self):
        self.cluster("ring")
        self.assertIn("exchange", stages(self.read("w1", "exchange")["peers"]))

    def test_ctl_tells_what_devices_wait_for(self):
        server, (first, _) = self.cluster()
        where = first.wait_event("worker.metrics_opened")["endpoint"]
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"http://{where}/v1/trace", timeout=20) as reply:
            self.assertIn("cpu:0", lanes(json.loads(reply.read())["traceEvents"]))
        out = self.folder / "all.json"
        program = [pathlib.Path(self.programs) / "centroidctl", "--server", server.api, "--output", "json", "trace", where, "--out", out]
        rows = json.loads(subprocess.run(program, capture_output=True, text=True, timeout=60, check=True).stdout)
        device = next(row for row in rows if row["lane"] == "cpu:0")
        self.assertEqual(device["process"], "centroid-worker w0")
        self.assertAlmostEqual(device["busy_seconds"] + device["idle_seconds"], device["window_seconds"], delta=1e-3)
        self.assertIn("wait", device["meanwhile_seconds"])
        self.assertLessEqual(device["meanwhile_seconds"]["wait"], device["idle_seconds"] + 1e-3)
        self.assertTrue(any(row["process"] == "centroid-server" for row in rows))
        again = self.trace_of(out)
        self.assertEqual([row for row in again if row["lane"] == "cpu:0"], [row for row in rows if row["lane"] == "cpu:0"])
        self.read("w0", "compute")
        first.kill()
        written = self.trace_of(self.folder / "w0.json")
        self.assertEqual({row["process"] for row in written}, {"centroid-worker w0"})
        processes = {event["pid"] for event in json.loads(out.read_text())["traceEvents"]}
        self.assertEqual(processes, {1, 2})

    def trace_of(self, *files):
        program = [pathlib.Path(self.programs) / "centroidctl", "--output", "json", "trace", *[f"--from={file}" for file in files]]
        return json.loads(subprocess.run(program, capture_output=True, text=True, timeout=60, check=True).stdout)

    def ctl(self, *arguments):
        program = [pathlib.Path(self.programs) / "centroidctl", *arguments]
        return subprocess.run(program, capture_output=True, text=True, timeout=60)

    def ctl_trace(self, server, where, *arguments):
        """What it prints, once programs do not refuse it for too many traces within the second."""

        def once():
            done = self.ctl("--server", server.api, "trace", where, *arguments)
            if done.returncode != 0:
                self.assertIn("429", done.stderr)
            return done if done.returncode == 0 else None

        return wait_for(once, "a trace")

    def get(self, address, path):
        """The answer, once it is not that too many were asked for within the second."""
        return wait_for(lambda: next((got for got in [self.get_once(address, path)] if got[0] != 429), None), f"{address}{path}")

    def get_once(self, address, path):
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://{address}{path}", timeout=20) as reply:
                return reply.status, reply.headers, reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read().decode()

    def test_all_forms_hold_stages_periods_events_and_samples(self):
        """One GPU is there by a library that stands in for NVIDIA's."""
        gpus = None
        if shutil.which("cc") and not shutil.which("nvidia-smi"):
            source = pathlib.Path(__file__).parents[1] / "ops" / "nvml_stand_in.c"
            subprocess.run(["cc", "-shared", "-fPIC", "-o", self.folder / "libnvidia-ml.so.1", source], check=True)
            gpus = {"LD_LIBRARY_PATH": str(self.folder)}
        server = self.server("--epochs", "1000000", "--trace.file", self.folder / "server.json")
        worker = self.worker(server, "w0", "--metrics.listen", "127.0.0.1:0", environment=gpus)
        where = worker.wait_event("worker.metrics_opened")["endpoint"]
        server.wait_cluster("two epochs", lambda cluster: cluster["epoch"] >= 2)

        def rows():
            done = self.ctl_trace(server, where, "--seconds", "60", "--format", "csv")
            found = list(csv.DictReader(io.StringIO(done.stdout)))
            has = {(row["kind"], row["name"]) for row in found}
            wanted = {("stage", "apply"), ("stage", "compute"), ("period", "round"), ("period", "epoch"), ("mark", "epoch.ended"), ("mark", "member.joined")}
            wanted |= {("sample", "busy"), ("sample", "resident_bytes")} | ({("sample", "ratio")} if gpus else set())
            return found if wanted <= has and any(row["kind"] == "idle" for row in found) else None

        found = wait_for(rows, "all kinds of rows")
        self.assertEqual({row["process"] for row in found}, {"centroid-server", "centroid-worker w0"})
        if gpus:
            self.assertEqual({float(row["value"]) for row in found if row["lane"] == "gpu 0 utilization"}, {0.75})
        joined = next(row for row in found if row["name"] == "member.joined")
        self.assertIn("w0", joined["text"])
        self.assertLess(abs(float(joined["begin_unix_seconds"]) - time.time()), 300)
        page = self.folder / "all.html"
        done = self.ctl_trace(server, where, "--format", "html", "--out", page)
        self.assertIn("while idle", done.stdout)  # the summary
        text = page.read_text()
        for word in ("centroid-worker w0", "cpu:0", "epoch.ended", "Longest gaps"):
            self.assertIn(word, text)
        for word in ("<script", "src=", "http:", "https:"):
            self.assertNotIn(word, text)
        for address in (server.api, where):
            status, fields, text = self.get(address, "/v1/trace?format=csv")
            self.assertEqual((status, fields["Content-Type"].partition(";")[0]), (200, "text/csv"))
            self.assertTrue(text.startswith("kind,process,lane,"), text[:100])
            status, fields, text = self.get(address, "/v1/trace?format=html")
            self.assertEqual((status, fields["Content-Type"].partition(";")[0]), (200, "text/html"))
            self.assertIn("default-src 'none'", fields["Content-Security-Policy"])
            status, _, text = self.get(address, "/v1/trace?format=pdf")
            self.assertEqual(status, 400)
            self.assertIn("json, csv or html", text)
        self.assertEqual(server.post("/v1/job:stop")[0], 202)  # a file that grows may end in half a line
        self.assert_exit(DONE, server, worker)
        from_file = self.ctl("trace", "--from", self.folder / "server.json", "--format", "csv")
        self.assertIn("period,centroid-server,", from_file.stdout, from_file.stderr)

    def test_a_picture_of_the_model(self):
        server, _ = self.cluster()
        status, fields, text = self.get(server.api, "/v1/model.svg")
        self.assertEqual((status, fields["Content-Type"]), (200, "image/svg+xml"))
        shapes = [tensor["shape"] for tensor in server.get("/v1/parameters")["parameters"]]
        picture = xml.etree.ElementTree.fromstring(text)
        words = [element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")]
        for shape in shapes:
            self.assertIn("[" + " × ".join(map(str, shape)) + "]", words)

    def test_gaps_of_a_file_are_summed(self):
        spans = [("compute", 1, 0, 100), ("compute", 1, 150, 250), ("wait", 2, 100, 150), ("wait", 2, 250, 350), ("compute", 1, 400, 500)]
        names = [{"name": "process_name", "ph": "M", "pid": 7, "args": {"name": "worker"}}]
        names += [{"name": "thread_name", "ph": "M", "pid": 7, "tid": lane, "args": {"name": name}} for lane, name in ((1, "cpu:0"), (2, "loop"))]
        events = [{"name": name, "ph": "X", "pid": 7, "tid": lane, "ts": 1e9 + 1e3 * begin, "dur": 1e3 * (end - begin)} for name, lane, begin, end in spans]
        file = self.folder / "made.json"
        file.write_text(json.dumps({"traceEvents": names + events}))
        device, loop = sorted(self.trace_of(file), key=lambda row: row["lane"])
        expected = {"window_seconds": 0.5, "busy_seconds": 0.3, "idle_seconds": 0.2, "gaps": 2, "longest_gap_seconds": 0.15}
        for name, value in expected.items():
            self.assertAlmostEqual(device[name], value, 9, name)
        self.assertAlmostEqual(device["meanwhile_seconds"]["wait"], 0.15, 9)
        self.assertAlmostEqual(loop["busy_seconds"], 0.15, 9)
        self.assertEqual(loop["gaps"], 3)
        whole = "[\n" + ",\n".join(json.dumps(event) for event in names + events)
        rows = self.trace_of(file)
        for cut in (len(whole), len(whole) - 1, whole.rindex(",\n"), whole.rindex(",\n") + 1, whole.rindex(",\n") + 2):
            file.write_text(whole[:cut])
            done = self.ctl("--output", "json", "trace", "--from", file)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("made.json ends in an incomplete line", done.stderr)
            found = {row["lane"]: row["spans"] for row in json.loads(done.stdout)}
            self.assertEqual(found["loop"], 1 if cut == whole.rindex(",\n") + 1 else 2)
        file.write_text(whole + "\n]\n")
        self.assertEqual(self.trace_of(file), rows)
        file.write_text("{}")
        program = [pathlib.Path(self.programs) / "centroidctl", "trace", "--from", file]
        done = subprocess.run(program, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn("no trace", done.stderr)


class Program(ClusterTest):
    """A training program of others: its own spans, beside the library's."""

    def test_spans_and_marks_of_a_program_are_in_one_file_with_the_librarys(self):
        library = pathlib.Path(self.programs).parent / "lib" / "libcentroid.so"
        try:
            centroid.load(library)
        except centroid.CentroidError as error:
            self.skipTest(f"a library with a sanitizer cannot be loaded by Python: {error.message}")
        server = self.server("--rounds", 5, "--min-workers", 1, "--exit-when-finished")
        file = self.folder / "program.json"
        environment = {**os.environ, "LIBCENTROID": str(library), "PYTHONPATH": str(PYTHON)}
        done = subprocess.run([sys.executable, "-c", PROGRAM, server.data, file], env=environment, capture_output=True, text=True, timeout=300, check=False)
        self.assertEqual((done.returncode, done.stdout), (0, "invalid_argument\n"), done.stderr)
        self.assertEqual(server.exit_status(), DONE)
        events = json.loads(file.read_text())  # nobody has closed it
        found = lanes(events)
        self.assertEqual(stages(found["loop"]), {"wait", "apply"})
        self.assertEqual(stages(found["program"]), {"step", "compute"})
        self.assertEqual(stages(found["loader"]), {"load"})
        steps, computed = ([span for span in found["program"] if span["name"] == name] for name in ("step", "compute"))
        self.assertEqual((len(steps), len(computed)), (5, 5))
        for outer, inner in zip(steps, computed):
            self.assertLessEqual(outer["ts"], inner["ts"])
            self.assertLessEqual(inner["ts"] + inner["dur"], outer["ts"] + outer["dur"] + 1)
        self.assertIn("my program", [event["args"]["name"] for event in events if event["name"] == "process_name"])
        self.assertEqual(len([event for event in events if event["ph"] == "i" and event["name"] == "ended"]), 1)
        summary = subprocess.run([pathlib.Path(self.programs) / "centroidctl", "--output", "json", "trace", "--from", file], capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(summary.returncode, 0, summary.stderr)
        self.assertIn("compute", summary.stdout)


if __name__ == "__main__":
    main(at_a_time=3)
