"""What programs say they did when. trace_test.py BIN_DIR"""

import json
import pathlib
import subprocess
import time
import urllib.request

from cluster import ClusterTest, main, wait_for


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
        server = self.server("--epochs", "1000000", "--min-workers", "2", "--exchange", exchange, "--trace", self.folder / "server.json")
        more = ["--exchange", exchange, "--codec", "int8" if exchange == "star" else "f32", "--metrics-listen", "127.0.0.1:0"]
        workers = [self.worker(server, name, *more, "--devices", "cpu:0,cpu:1", "--trace", self.folder / f"{name}.json") for name in ("w0", "w1")]
        server.wait_round(50)
        return server, workers

    def read(self, name, stage):
        """The file of a program, once it holds a span of this stage."""

        def look():
            found = lanes(json.loads((self.folder / f"{name}.json").read_text()))
            return found if any(stage in stages(spans) for spans in found.values()) else None

        return wait_for(look, f"{stage} in the trace of {name}")

    def test_files_hold_every_stage_by_device_and_worker_and_outlive_a_kill(self):
        server, (first, _) = self.cluster()
        found = self.read("w0", "evaluate")
        for device in ("cpu:0", "cpu:1"):
            self.assertEqual(stages(found[device]), {"compute", "evaluate"})
        self.assertEqual(stages(found["server"]), {"encode", "send"})
        self.assertEqual(stages(found["loop"]), {"wait"})
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
        where = first.wait_event("worker.metrics_listening")["endpoint"]
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
        file.write_text("{}")
        program = [pathlib.Path(self.programs) / "centroidctl", "trace", "--from", file]
        done = subprocess.run(program, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn("no trace", done.stderr)


if __name__ == "__main__":
    main()
