"""REST against real programs: events, tokens on the data plane, settings, evictions, checkpoints, parameters. rest_test.py BIN_DIR"""

import http.client
import json
import urllib.error
import urllib.request

from cluster import DONE, ClusterTest, main

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
        data = None if body is None else json.dumps(body).encode()
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
        self.assertIn("operator", stream.next("wait.lasted")["for_whom"])
        again = Stream(server, **{"Last-Event-ID": str(lost["id"] - 1)})
        self.addCleanup(again.close)
        self.assertEqual(again.next(), lost)
        listed = server.get(f"/v1/events?since={lost['id'] - 1}&limit=1")
        self.assertEqual(listed["events"], [lost])
        server.post("/v1/job:stop")
        self.assert_exit(DONE, first, server)

    def test_tokens_open_the_data_plane_and_rest(self):
        server = self.server("--token", "of-the-cluster", "--api.token", OPERATOR, "--epochs", "1000000")
        made = self.json(server, "POST", "/v1/tokens", {"name": "node", "role": "worker"}, 201, token=OPERATOR)
        seen = self.json(server, "POST", "/v1/tokens", {"name": "eyes", "role": "viewer"}, 201, token=OPERATOR)
        worker = self.worker(server, "w0", "--token", made["secret"])
        server.wait_event("member.joined", worker="w0")
        refused = self.worker(server, "w1", "--token", seen["secret"], "--join_timeout", "1s")
        self.assertNotEqual(refused.exit_status(), DONE)
        self.assertIn("token refused", refused.text())
        self.assertEqual(self.ask(server, "GET", "/v1/cluster")[0], 401)
        self.assertEqual(self.ask(server, "GET", "/v1/cluster", token=seen["secret"])[0], 200)
        self.assertEqual(self.ask(server, "POST", "/v1/job:pause", token=seen["secret"])[0], 403)
        self.json(server, "DELETE", "/v1/tokens/node", token=OPERATOR)
        self.assertTrue(worker.is_running())  # who is in stays in
        self.assertEqual(self.ask(server, "GET", "/v1/cluster", token=made["secret"])[0], 401)
        entries = self.json(server, "GET", "/v1/audit", token=OPERATOR)["entries"]
        self.assertEqual([(e["who"], e["status"]) for e in entries], [("api.token", 200), ("eyes", 403), ("api.token", 201), ("api.token", 201)])
        lines = (self.folder / "run" / "audit.jsonl").read_text().splitlines()
        self.assertEqual(len(lines), 4)
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


if __name__ == "__main__":
    main()
