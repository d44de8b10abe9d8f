"""REST against real programs: events, tokens on the data plane, settings, evictions, checkpoints, parameters. rest_test.py BIN_DIR"""

import array
import http.client
import json
import math
import pathlib
import signal
import socket
import sys
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import DONE, USAGE, ClusterTest, main, wait_for

STOPPED = 143
OPERATOR = "the-operator"


class Stream:
    """Server-Sent Events of one connection."""

    def __init__(self, server, path="/v1/events", **fields):
        self.connection = http.client.HTTPConnection(server.api, timeout=40)
        self.connection.request("GET", path, headers={"Accept": "text/event-stream", **fields})
        self.answer = self.connection.getresponse()

    def next(self, *types):
        """The next event, of these types when some are given."""
        while True:
            line = self.answer.readline().decode()
            if line == "":
                raise AssertionError("the stream ended")
            if line.startswith("data: "):
                event = json.loads(line[6:])
                if not types or event["type"] in types:
                    return event

    def close(self):
        self.connection.close()


class Rest(ClusterTest):
    def ask(self, server, method, path, body=None, token=None, **fields):
        """Status, fields and body of one call."""
        headers = {name.replace("_", "-"): value for name, value in fields.items()}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if token:
            headers["Authorization"] = f"Bearer {token}"
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{server.api}{path}", data=data, method=method, headers=headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=40) as reply:
                return reply.status, reply.headers, reply.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read()

    def json(self, server, method, path, body=None, status=200, **more):
        got, _, text = self.ask(server, method, path, body, **more)
        self.assertEqual(got, status, text)
        return json.loads(text)

    def training(self, *arguments, workers=("w0", "w1"), **more):
        server = self.server("--epochs", "1000000", "--min-workers", str(len(workers)), *arguments, **more)
        started = [self.worker(server, name, "--stop-status", STOPPED) for name in workers]
        server.wait_round(3)
        return server, started

    def test_events_tell_of_the_life_of_a_job(self):
        server = self.server("--epochs", "1000000", "--min-workers", "2")
        stream = Stream(server)
        self.addCleanup(stream.close)
        first = self.worker(server, "w0")
        self.assertEqual(stream.next("member.joined")["worker"], "w0")
        second = self.worker(server, "w1")
        self.assertEqual(stream.next("generation.formed")["world"], 2)
        committed = stream.next("round.committed")
        self.assertEqual(committed["contributors"], 2)
        second.kill()
        lost = stream.next("member.lost")
        self.assertEqual(lost["worker"], "w1")
        server.post("/v1/checkpoints")
        self.assertGreater(stream.next("checkpoint.written")["bytes"], 0)
        self.assertEqual(stream.next("audit.recorded")["path"], "/v1/checkpoints")
        server.post("/v1/job:pause")
        self.assertEqual(stream.next("job.phase_changed")["to"], "paused")
        self.assertIn("operator", stream.next("wait.prolonged")["waits_for"])
        again = Stream(server, **{"Last-Event-ID": str(lost["id"] - 1)})
        self.addCleanup(again.close)
        self.assertEqual(again.next(), lost)
        listed = server.get(f"/v1/events?since={lost['id'] - 1}&limit=1")
        self.assertEqual(listed["events"], [lost])
        server.post("/v1/job:stop")
        self.assert_exit(DONE, first, server)

    def test_rounds_of_a_while_ago_are_listed_page_by_page(self):
        server, _ = self.training(workers=("w0",))
        server.wait_round(400)
        server.post("/v1/job:pause")
        server.wait_cluster("a pause", lambda cluster: cluster["state"] == "paused")
        found, path = [], "/v1/rounds?limit=150"
        while path:
            page = self.json(server, "GET", path)
            self.assertLessEqual(len(page["rounds"]), 150)
            found += [one["round"] for one in page["rounds"] if one["outcome"] == "committed"]
            path = page["next"]
        last = max(found)
        self.assertGreaterEqual(last, 399)
        self.assertEqual(found, list(range(last, max(0, last - 4096), -1))[: len(found)])
        self.assertGreaterEqual(len(found), min(last, 4000))

    def test_curves_are_of_the_whole_job_also_after_a_resume(self):
        arguments = ["--clip-norm", "5", "--lr-schedule", "linear:rounds=100000"]
        server, workers = self.training(*arguments)
        server.wait_round(20)
        self.assertEqual(self.ask(server, "POST", "/v1/job:pause")[0], 202)
        server.wait_cluster("paused", lambda cluster: cluster["state"] == "paused")
        curves = self.json(server, "GET", "/v1/curves")
        points = curves["points"]
        self.assert_whole(points)
        told = {one["round"]: one for one in self.json(server, "GET", "/v1/rounds?limit=1000")["rounds"] if one["outcome"] == "committed"}
        for point in points if curves["revision"] == 0 else []:
            one = told[point["first"]]
            self.assertEqual([point[name] for name in ("last", "samples", "loss", "workers")], [one["round"], one["samples"], one["loss"], 2])
            self.assertAlmostEqual(point["samples_per_second"] * point["round_seconds"], one["samples"], delta=1e-3)
        rates = [point["learning_rate"] for point in points]
        self.assertEqual(sorted(rates, reverse=True), rates)
        self.assertTrue(all(point["gradient_norm"] > 0 for point in points))
        newer = self.json(server, "GET", f"/v1/curves?after={points[5]['last']}")
        self.assertEqual(newer, {"revision": curves["revision"], "points": points[6:]})
        server.send(signal.SIGTERM)
        self.assert_exit(DONE, server, *workers)

        again = self.server("--epochs", "1000000", "--resume", *arguments, name="again")
        kept = self.json(again, "GET", "/v1/curves")["points"]
        self.assert_whole(kept)
        self.assertEqual((kept[-1]["last"], sum(one["rounds"] for one in kept)), (points[-1]["last"], sum(one["rounds"] for one in points)))
        for name in ("seconds", "unix_seconds", "learning_rate"):
            self.assertAlmostEqual(kept[-1][name], points[-1][name], delta=1, msg=name)
        self.assertEqual(self.ask(again, "POST", "/v1/job:resume")[0], 202)
        for name in ("w0", "w1"):
            self.worker(again, name)
        again.wait_round(kept[-1]["last"] + 5)
        now = self.json(again, "GET", "/v1/curves")["points"]
        self.assert_whole(now)
        self.assertGreater(now[-1]["last"], kept[-1]["last"])

    def assert_whole(self, points):
        """From the first round on, without a gap, in order."""
        self.assertEqual(points[0]["first"], 1)
        for one, after in zip(points, points[1:]):
            self.assertEqual((after["first"], one["rounds"]), (one["last"] + 1, one["last"] - one["first"] + 1))
            self.assertLess(one["seconds"], after["seconds"])

    def test_tokens_open_the_data_plane_and_rest(self):
        server = self.server("--token", "of-the-cluster", "--api.token", OPERATOR, "--epochs", "1000000")
        made = self.json(server, "POST", "/v1/tokens", {"name": "node", "role": "worker"}, 201, token=OPERATOR)
        seen = self.json(server, "POST", "/v1/tokens", {"name": "eyes", "role": "viewer"}, 201, token=OPERATOR)
        worker = self.worker(server, "w0", "--token", made["secret"])
        server.wait_event("member.joined", worker="w0")
        refused = self.worker(server, "w1", "--token", seen["secret"], "--join-timeout", "1s")
        self.assertNotEqual(refused.exit_status(), DONE)
        self.assertIn("token refused", refused.text())
        self.assertEqual(self.ask(server, "GET", "/v1/cluster")[0], 401)
        self.assertEqual(self.ask(server, "GET", "/v1/cluster", token=seen["secret"])[0], 200)
        self.assertEqual(self.ask(server, "POST", "/v1/job:pause", token=seen["secret"])[0], 403)
        self.json(server, "DELETE", "/v1/tokens/node", token=OPERATOR)
        self.assertTrue(worker.is_running())  # who is in stays in
        self.assertEqual(self.ask(server, "GET", "/v1/cluster", token=made["secret"])[0], 401)
        entries = self.json(server, "GET", "/v1/audit", token=OPERATOR)["entries"]
        self.assertEqual([(e["caller"], e["status"]) for e in entries], [("api.token", 200), ("eyes", 403), ("api.token", 201), ("api.token", 201)])
        files = [(self.folder / "run" / name).read_text().splitlines() for name in ("audit.jsonl", "audit-refused.jsonl")]
        self.assertEqual([len(lines) for lines in files], [3, 1])
        lines = [*files[0], *files[1]]
        self.assertNotIn(made["secret"], "".join(lines) + server.text())

    def test_a_repeated_post_makes_one_checkpoint(self):
        server, _ = self.training()
        key = {"Idempotency_Key": "once"}
        first = self.ask(server, "POST", "/v1/checkpoints", **key)
        server.wait_more_rounds()
        second = self.ask(server, "POST", "/v1/checkpoints", **key)
        self.assertEqual((first[0], first[2]), (second[0], second[2]))
        self.assertEqual(second[1]["Idempotency-Replayed"], "true")
        self.assertEqual(self.ask(server, "POST", "/v1/job:pause", **key)[0], 422)

    def test_settings_change_while_the_job_runs(self):
        server, _ = self.training()
        stream = Stream(server)
        self.addCleanup(stream.close)
        before = server.get("/v1/config")
        self.assertTrue(before["checkpoint.keep"]["live"])
        self.assertFalse(before["seed"]["live"])
        wrong = [
            ({"checkpoint.keep": 9, "seed": 4}, 409, "seed cannot be changed"),
            ({"checkpoint.keep": 9, "epochs": -1}, 400, "epochs"),
            ({"checkpoint.keep": 9, "lease": "1s"}, 409, "can only grow"),
            ({"checkpoint.keep": 9, "policy": "asp"}, 409, "policy"),
            ({"checkpoint.keep": 9, "min_workers": 300}, 400, "max_workers"),
            ({"checkpoint.kep": 9}, 400, "checkpoint.keep"),
        ]
        for body, status, text in wrong:
            problem = self.json(server, "PATCH", "/v1/config", body, status)
            self.assertIn(text, problem["detail"])
            self.assertEqual(server.get("/v1/config"), before)
        after = self.json(server, "PATCH", "/v1/config", {"checkpoint": {"every_rounds": 5, "keep": 2}, "lr": 0.125})
        self.assertEqual((after["checkpoint.keep"]["value"], after["checkpoint.keep"]["origin"]), (2, "rest"))
        self.assertIn("checkpoint.keep=2", stream.next("config.changed")["changes"])
        self.assertGreater(stream.next("checkpoint.deleted")["version"], 0)  # written every 5 rounds, 2 are kept
        server.wait_cluster("the new rate", lambda view: view["learning_rate"] == 0.125)
        self.json(server, "PATCH", "/v1/config", {"rounds": server.cluster()["round"] + 20})
        server.wait_cluster("the new goal", lambda view: view["state"] == "finished")
        self.assertIn("the job is over", self.json(server, "PATCH", "/v1/config", {"rounds": 0, "log.level": "debug"}, 409)["detail"])
        after = self.json(server, "PATCH", "/v1/config", {"log.level": "debug", "api.rate": 500, "checkpoint.keep": 3})  # of use without rounds
        self.assertEqual((after["log.level"]["value"], after["checkpoint.keep"]["value"]), ("debug", 3))

    def test_a_secret_that_is_sent_as_a_setting_is_kept_nowhere(self):
        server, _ = self.training()
        settings = [{"api.token": "a-secret"}, {"api": {"viewer_token": "a-secret"}}, {"api.tokn": "a-secret"}, {"token": ["a-secret"]}]
        for body in (*settings, b'{"api.token": "a-secret', b'"a-secret"', b"a-secret"):
            status, _, text = self.ask(server, "PATCH", "/v1/config", body)
            self.assertGreaterEqual(status, 400)
            self.assertNotIn(b"a-secret", text)
        self.json(server, "PATCH", "/v1/config", {"min_workers": 1})
        entries = server.get("/v1/audit")["entries"]
        self.assertEqual(len(entries), 8)
        self.assertEqual(json.loads(entries[0]["body"]), {"min_workers": 1})
        self.assertEqual(json.loads(entries[-1]["body"]), {"api.token": "***"})
        for path in (self.folder / "run" / "audit.jsonl", server.log):
            self.assertNotIn("a-secret", path.read_text())
        self.assertNotIn("a-secret", json.dumps(entries))

    def test_an_evicted_worker_stays_away_until_it_is_allowed(self):
        server, (_, second) = self.training()
        member = server.workers("w1")[-1]["member"]
        self.json(server, "POST", f"/v1/workers/{member}:evict", {"why": "its disk is failing"})
        self.assertNotEqual(second.exit_status(), DONE)
        self.assertIn("its disk is failing", second.text())
        again = self.worker(server, "w1", "--join-timeout", "10s")
        self.assertNotEqual(again.exit_status(), DONE)
        self.assertIn("DELETE /v1/evictions/w1", again.text())
        server.wait_more_rounds()  # the other goes on
        self.assertEqual([one["name"] for one in server.get("/v1/evictions")["evictions"]], ["w1"])
        self.json(server, "DELETE", "/v1/evictions/w1")
        self.worker(server, "w1", "--stop-status", STOPPED)
        server.wait_worker("w1", "active")
        member = server.workers("w0")[-1]["member"]
        self.json(server, "POST", f"/v1/workers/{member}:evict", {"seconds": 1})
        server.wait_worker("w0", "left", -2)  # and by itself
        server.wait_worker("w0", "active")

    def test_what_operators_said_survives_a_killed_server(self):
        server, _ = self.training("--max-workers", "5")
        member = server.workers("w1")[-1]["member"]
        self.json(server, "POST", f"/v1/workers/{member}:evict", {"why": "its disk is failing"})
        member = server.workers("w0")[-1]["member"]
        self.json(server, "POST", f"/v1/workers/{member}:evict", {"seconds": 1000})
        hint = self.json(server, "POST", "/v1/scale", {"workers": 4, "why": "a fair"})
        self.assertEqual((hint["target_workers"], hint["hint"]["workers"], hint["hint"]["why"]), (4, 4, "a fair"))
        self.assertIn("max_workers", self.json(server, "POST", "/v1/scale", {"workers": 6}, 409)["detail"])
        self.assertIn("min_workers", self.json(server, "POST", "/v1/scale", {"workers": 1}, 409)["detail"])
        evictions = server.get("/v1/evictions")
        self.assertEqual([one["name"] for one in evictions["evictions"]], ["w0", "w1"])
        server.kill()
        common = ["--epochs", "1000000", "--min-workers", "2", "--max-workers", "5", "--resume"]
        server = self.server(*common, name="second")
        self.assertEqual(server.get("/v1/evictions"), evictions)
        self.assertEqual(server.get("/v1/scale")["hint"], hint["hint"])
        self.assertEqual(server.metric("centroid_server_scale_hint_workers"), 4)
        refused = self.worker(server, "w1", "--join-timeout", "10s")
        self.assertNotEqual(refused.exit_status(), DONE)
        self.assertIn("DELETE /v1/evictions/w1", refused.text())
        for name in ("w0", "w1"):
            self.json(server, "DELETE", f"/v1/evictions/{name}")
        self.assertIsNone(self.json(server, "POST", "/v1/scale", {"workers": 0})["hint"])
        server.kill()
        server = self.server(*common, name="third")
        self.assertEqual(server.get("/v1/evictions")["evictions"], [])
        self.assertIsNone(server.get("/v1/scale")["hint"])
        self.worker(server, "w1", "--stop-status", STOPPED).wait_event("cluster.joined")

    def test_a_damaged_file_of_operators_is_said_at_the_start(self):
        folder = self.folder / "run" / "checkpoints"
        folder.mkdir(parents=True)
        (folder / "operator.json").write_text("{")
        self.assert_status(self.launch_server(), USAGE, "operator.json", "move it away")

    def test_limits_of_rest_are_live(self):
        server = self.server()
        long = {"x": "y" * 3000}
        self.assertIn("unknown key", self.json(server, "PATCH", "/v1/config", long, 400)["detail"])
        self.json(server, "PATCH", "/v1/config", {"api.body_limit": 2048, "api.idle_timeout": "1s"})
        wait_for(lambda: self.ask(server, "PATCH", "/v1/config", long)[0] == 413, "the new limit")
        host, port = server.api.split(":")
        with socket.create_connection((host, int(port)), 20) as idle:
            self.assertEqual(idle.recv(1), b"")  # ends after 1 s, not 30 s; no call of a busy machine is idle for so long
        self.json(server, "PATCH", "/v1/config", {"api.rate": 5})
        refused = wait_for(lambda: (answer := self.ask(server, "GET", "/version"))[0] == 429 and answer, "the bound on the rate")
        self.assertEqual(refused[1]["Retry-After"], "1")
        self.assertIn("api.rate", json.loads(refused[2])["detail"])
        self.assertEqual({self.ask(server, "GET", probe)[0] for probe in ("/livez", "/healthz") for _ in range(10)}, {200})
        wait_for(lambda: self.ask(server, "PATCH", "/v1/config", {"api.rate": 0})[0] == 200, "a request that is let through")

    def test_the_way_to_a_worker_is_measured_while_it_trains(self):
        server, _ = self.training()
        member = server.workers("w1")[-1]["member"]
        before = server.cluster()
        found = self.json(server, "POST", f"/v1/workers/{member}:measure")
        self.assertEqual((found["member"], found["name"]), (member, "w1"))
        self.assertGreater(found["round_trips"], 10)
        self.assertGreater(min(found["bytes_per_second_to"], found["bytes_per_second_from"]), 1e6)
        self.assertLessEqual(found["median_seconds"], found["p99_seconds"])
        after = server.wait_more_rounds()
        self.assertEqual((after["generation"], after["aborted_attempts"]), (before["generation"], before["aborted_attempts"]))
        self.json(server, "POST", "/v1/workers/999:measure", status=404)

    def test_a_job_goes_back_to_a_checkpoint(self):
        server, workers = self.training()
        old = self.json(server, "POST", "/v1/checkpoints", status=201)
        model = self.ask(server, "GET", f"/v1/checkpoints/{old['version']}/files/model.safetensors")[2]
        server.wait_more_rounds(50)
        new = self.json(server, "POST", "/v1/checkpoints", status=201)
        refused = self.json(server, "POST", f"/v1/checkpoints/{old['version']}:restore", status=409)
        self.assertIn("delete_newer", refused["detail"])
        stream = Stream(server)
        self.addCleanup(stream.close)
        done = self.json(server, "POST", f"/v1/checkpoints/{old['version']}:restore", {"delete_newer": True})
        self.assertEqual((done["version"], done["deleted"]), (old["version"], 1))
        self.assertGreater(done["from_version"], new["version"] - 1)
        self.assertEqual(stream.next("checkpoint.restored")["version"], old["version"])
        self.assertEqual(stream.next("generation.formed")["round"], old["round"] + 1)
        server.wait_round(old["round"] + 60)  # both have come back and train
        self.assertEqual({one["name"] for one in server.workers() if one["state"] == "active"}, {"w0", "w1"})
        for worker in workers:
            self.assertTrue(worker.is_running())
        still = self.ask(server, "GET", f"/v1/checkpoints/{old['version']}/files/model.safetensors")[2]
        self.assertEqual(still, model)
        self.json(server, "POST", "/v1/checkpoints/999999999:restore", status=404)

    def test_parameters_are_those_of_the_checkpoint(self):
        server, _ = self.training()
        server.post("/v1/job:pause")
        server.wait_cluster("paused", lambda view: view["state"] == "paused")
        written = self.json(server, "POST", "/v1/checkpoints", status=201)
        wait_for(lambda: server.get("/v1/parameters")["version"] == written["version"], "statistics of the newest version")
        told = server.get("/v1/parameters")["parameters"]
        path = f"/v1/checkpoints/{written['version']}/files/model.safetensors"
        status, fields, body = self.ask(server, "GET", path)
        self.assertEqual(status, 200)
        length = int.from_bytes(body[:8], "little")
        head = json.loads(body[8 : 8 + length])
        for one in told:
            begin, end = head[one["name"]]["data_offsets"]
            values = array.array("f", body[8 + length + begin : 8 + length + end])
            self.assertEqual(one["shape"], head[one["name"]]["shape"])
            self.assertEqual(one["elements"], len(values))
            self.assertEqual((one["min"], one["max"]), (min(values), max(values)))
            self.assertAlmostEqual(one["mean"], math.fsum(values) / len(values), places=9)
            self.assertAlmostEqual(one["norm"], math.sqrt(math.fsum(x * x for x in values)), places=6)
        one = server.get(f"/v1/parameters/{told[0]['name']}")
        self.assertEqual(one["norm"], told[0]["norm"])
        part = self.ask(server, "GET", path, Range="bytes=8-107")
        self.assertEqual((part[0], part[2]), (206, body[8:108]))
        known = self.ask(server, "GET", path, If_None_Match=fields["ETag"])
        self.assertEqual((known[0], known[2]), (304, b""))

    def test_scale_is_estimated_from_rounds(self):
        server, _ = self.training()
        server.wait_round(100)
        told = wait_for(lambda: (view := server.get("/v1/scale"))["limited_by"] != "nothing_known" and view, "an estimate")
        self.assertEqual(told["workers"], 2)
        self.assertGreater(told["efficiency"], 0)
        self.assertAlmostEqual(told["compute_seconds"] + told["overhead_seconds"], told["round_seconds"], places=6)
        self.json(server, "GET", "/v1/scale?efficiency=2", status=400)


if __name__ == "__main__":
    main()
