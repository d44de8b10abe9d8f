"""What a worker tells Prometheus at --metrics-listen. metrics_test.py BIN_DIR"""

import contextlib
import http.client
import socket

from cluster import DONE, USAGE, ClusterTest, main, wait_for


def series(text):
    """Samples of the text format by their name with labels."""
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))}


class WorkerMetrics(ClusterTest):
    def listening(self, codec="f32"):
        """A server with one worker that has trained a few rounds, and the endpoint of the worker's metrics."""
        server = self.server("--epochs", "1000000")
        worker = self.worker(server, "w0", "--metrics-listen", "127.0.0.1:0", "--codec", codec)
        endpoint = worker.wait_event("worker.metrics_listening")["endpoint"]
        server.wait_round(5)
        return server, worker, endpoint

    def get(self, endpoint, path="/metrics", method="GET"):
        with contextlib.closing(http.client.HTTPConnection(endpoint, timeout=10)) as connection:
            connection.request(method, path)
            reply = connection.getresponse()
            return reply.status, reply.headers, reply.read().decode()

    def test_stages_rounds_and_bytes_grow_with_training(self):
        server, worker, endpoint = self.listening("int8")

        def committed():
            return series(self.get(endpoint)[2])['centroid_worker_rounds_total{outcome="committed"}']

        first = committed()
        wait_for(lambda: committed() >= first + 5, "five more rounds in the worker's metrics")
        status, headers, text = self.get(endpoint)
        self.assertEqual(status, 200)
        self.assertTrue(headers["Content-Type"].startswith("text/plain; version=0.0.4"))
        values = series(text)
        rounds = values['centroid_worker_rounds_total{outcome="committed"}']
        for stage in ("compute", "encode", "send", "wait"):
            self.assertGreater(values[f'centroid_worker_stage_seconds_count{{stage="{stage}"}}'], 0, stage)
        samples = 16 * values["centroid_worker_round_seconds_count"]
        self.assertLessEqual(abs(values["centroid_worker_samples_total"] - samples), 16)  # a scrape may come in mid-round
        self.assertGreaterEqual(values["centroid_worker_version_number"], rounds)
        self.assertGreater(values["centroid_worker_train_loss_nats"], 0)
        self.assertGreater(values["process_resident_memory_bytes"], 1 << 20)
        self.assertEqual(values['centroid_build_info{program="centroid-worker",version="%s"}' % server.get("/version")["version"]], 1)
        server.post("/v1/job:stop")
        self.assert_exit(DONE, worker, server)

    def test_codecs_the_journal_and_leases_are_there_too(self):
        server = self.server("--epochs", "1000000", "--codec-down", "int8", "--apply", "worker", "--journal", "on", "--lease", "8s")
        worker = self.worker(server, "w0", "--metrics-listen", "127.0.0.1:0", "--codec", "int8")
        endpoint = worker.wait_event("worker.metrics_listening")["endpoint"]
        server.wait_round(30)
        wait_for(lambda: series(server.call("GET", "/metrics")[1])["centroid_server_lease_seconds"] == 8, "leases that were looked at")
        theirs, mine = series(self.get(endpoint)[2]), series(server.call("GET", "/metrics")[1])
        for stage in ("decode", "apply", "encode"):
            self.assertGreater(theirs[f'centroid_worker_stage_seconds_count{{stage="{stage}"}}'], 20, stage)
        for stage in ("encode", "journal", "apply"):
            self.assertGreater(mine[f'centroid_server_stage_seconds_count{{stage="{stage}"}}'], 20, stage)
        self.assertLessEqual(theirs['centroid_worker_stage_seconds_sum{stage="decode"}'], theirs['centroid_worker_stage_seconds_sum{stage="apply"}'])
        wait_for(lambda: series(server.call("GET", "/metrics")[1])["centroid_server_journal_sync_seconds_count"] >= 1, "a sync of the journal")
        written = mine["centroid_server_journal_written_bytes_total"]
        server.wait_more_rounds(50)
        wait_for(lambda: series(server.call("GET", "/metrics")[1])["centroid_server_journal_written_bytes_total"] > written, "more in the journal")
        self.assertLess(mine["centroid_server_silence_seconds"], 8)
        self.assertGreaterEqual(mine["centroid_server_buffers_capacity"], max(1, mine["centroid_server_buffers_in_use"]))
        self.assertGreaterEqual(mine["centroid_server_results_unsent"], 0)
        view = server.workers("w0")[0]
        for stage in ("encode", "decode", "receive"):
            self.assertGreater(view[f"{stage}_seconds"], 0)
        worker.send(19)  # SIGSTOP: nothing is heard of it any more
        wait_for(lambda: series(server.call("GET", "/metrics")[1])["centroid_server_silence_seconds"] > 2, "its silence")
        worker.send(18)

    def test_rest_has_the_times_of_the_stages_that_workers_measure(self):
        """The same sums, a round or so behind."""
        for exchange, none in (("star", "exchange"), ("ring", "send")):
            with self.subTest(exchange):
                common = ["--exchange", exchange]
                server = self.server("--epochs", "1000000", "--min-workers", "2", *common, name=exchange, run=exchange)
                names = [f"{exchange}{i}" for i in range(2)]
                workers = [self.worker(server, name, *common, "--metrics-listen", "127.0.0.1:0") for name in names]
                endpoint = workers[0].wait_event("worker.metrics_listening")["endpoint"]
                server.wait_round(30)
                first = server.workers(names[0])[0]
                theirs = series(self.get(endpoint)[2])
                server.wait_more_rounds(5)
                last = server.workers(names[0])[0]
                for stage in {"wait", "send", "exchange", "apply"} - {none}:
                    said = theirs[f'centroid_worker_stage_seconds_sum{{stage="{stage}"}}']
                    self.assertGreater(first[f"{stage}_seconds"], 0, stage)
                    self.assertLessEqual(first[f"{stage}_seconds"], said + 1e-6, stage)
                    self.assertGreaterEqual(last[f"{stage}_seconds"], said - 1e-6, stage)
                self.assertEqual(last[f"{none}_seconds"], 0)
                server.post("/v1/job:stop")
                self.assert_exit(DONE, *workers, server)

    def test_nothing_is_said_of_a_version_that_is_not_known(self):
        """Before the first round, and when the server goes away in a round."""
        alone = self.worker("127.0.0.1:1", "w1", "--metrics-listen", "127.0.0.1:0")
        values = series(self.get(alone.wait_event("worker.metrics_listening")["endpoint"])[2])
        self.assertIn("centroid_worker_samples_total", values)
        for name in ("version_number", "train_loss_nats", "rank_number"):
            self.assertNotIn(f"centroid_worker_{name}", values)
        server, worker, endpoint = self.listening()
        server.kill()
        worker.wait_event("server.unreachable")
        values = series(self.get(endpoint)[2])
        self.assertGreaterEqual(values["centroid_worker_version_number"], 5)

    def test_connections_between_workers_are_counted_and_stay(self):
        server = self.server("--epochs", "1000000", "--min-workers", "2", "--exchange", "ring")
        workers = [self.worker(server, name, "--exchange", "ring", "--metrics-listen", "127.0.0.1:0") for name in ("w0", "w1")]
        endpoint = workers[0].wait_event("worker.metrics_listening")["endpoint"]
        server.wait_round(5)

        def opened():
            return series(self.get(endpoint)[2])["centroid_worker_peer_connections_total"]

        self.assertEqual(opened(), 1)
        server.wait_more_rounds(10)
        self.assertEqual(opened(), 1)
        workers[1].kill()
        server.wait_worker("w1", "dead")
        self.worker(server, "w1", "--exchange", "ring")
        wait_for(lambda: opened() == 2, "the connection with the worker that came again")

    def test_only_get_of_known_paths_is_answered(self):
        _, _, endpoint = self.listening()
        self.assertEqual(self.get(endpoint, "/healthz")[0], 200)
        self.assertEqual(self.get(endpoint, "/metrics", "HEAD")[2], "")
        self.assertEqual(self.get(endpoint, "/v1/cluster")[0], 404)
        self.assertEqual(self.get(endpoint, "/metrics", "POST")[0], 405)

    def test_garbage_and_idle_connections_disturb_nobody(self):
        server, worker, endpoint = self.listening()
        host, port = endpoint.rsplit(":", 1)
        with contextlib.ExitStack() as stack:
            idle = [stack.enter_context(contextlib.closing(socket.create_connection((host, int(port))))) for _ in range(8)]
            idle[0].sendall(b"\x00\xff" * 40000)
            idle[1].sendall(b"GET /metrics HTTP/1.1\r\nX: " + b"y" * 20000)
            self.assertEqual(self.get(endpoint)[0], 200)
            server.post("/v1/job:stop")
            self.assert_exit(DONE, worker, server)

    def test_silent_connections_shut_nobody_out(self):
        _, _, endpoint = self.listening()
        host, port = endpoint.rsplit(":", 1)
        with contextlib.ExitStack() as stack:
            for _ in range(40):  # more than there is room for
                stack.enter_context(contextlib.closing(socket.create_connection((host, int(port)), timeout=20)))
            for path in ("/healthz", "/metrics", "/healthz"):
                self.assertEqual(self.get(endpoint, path)[0], 200)

    def test_traces_are_bounded_in_time(self):
        _, _, endpoint = self.listening()
        self.assertEqual([self.get(endpoint, "/v1/trace")[0] for _ in range(3)], [200] * 3)
        wait_for(lambda: self.get(endpoint, "/v1/trace")[0] == 429, "no more of them")
        wait_for(lambda: self.get(endpoint, "/v1/trace")[0] == 200, "the next trace")

    def test_port_in_use_is_named(self):
        with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
            place = "127.0.0.1:%d" % taken.getsockname()[1]
            worker = self.worker("127.0.0.1:1", "w0", "--metrics-listen", place)
            self.assertNotEqual(worker.exit_status(), DONE)
            self.assertIn(f"metrics.listen {place}: the port is in use", worker.text())
        bad = self.worker("127.0.0.1:1", "w1", "--metrics-listen", "nonsense")
        self.assert_status(bad, USAGE, "nonsense")


if __name__ == "__main__":
    main()
