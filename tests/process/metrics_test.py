"""What programs tell Prometheus and probes. metrics_test.py BIN_DIR"""

import array
import contextlib
import http.client
import itertools
import json
import os
import pathlib
import signal
import socket
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.client import ClientTest
from harness.cluster import DONE, USAGE, ClusterTest, Process, free_port, main, wait_for
from harness.etcd import ETCD, Etcd

SCRAPES = 60
SCRAPE_BAR_MS = 2 * int(os.environ.get("CENTROID_TEST_PATIENCE", "1"))  # of processor time; programs under a sanitizer are slow


def series(text):
    """Samples of the text format by their name with labels."""
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))}


def thread_of(process, name):
    """The file with the processor time of its thread of this name."""
    (found,) = [task for task in pathlib.Path(f"/proc/{process.pid}/task").iterdir() if (task / "comm").read_text().strip() == name]
    return found / "schedstat"


class MetricsTest(ClusterTest):
    def get(self, endpoint, path="/metrics", method="GET"):
        with contextlib.closing(http.client.HTTPConnection(endpoint, timeout=10)) as connection:
            connection.request(method, path)
            reply = connection.getresponse()
            return reply.status, reply.headers, reply.read().decode()


class Cost(MetricsTest):
    def test_a_scrape_costs_a_thread_that_does_not_train_two_milliseconds_at_most(self):
        """Processor time, which others' load changes little, of what answers: while the cluster trains, all series there."""
        server = self.server("--epochs", "1000000", "--min-workers", "2", "--checkpoint.every-rounds", "50", "--tables", "emb:dim=4", "--journal.mode", "on")
        workers = [self.worker(server, name, "--metrics.listen", "127.0.0.1:0", "--codec", "int8") for name in ("w0", "w1")]
        place = workers[0].wait_event("worker.metrics_opened")["endpoint"]
        server.wait_round(100)
        for program, process, endpoint, thread in (("server", server, server.api, "control"), ("worker", workers[0], place, "metrics")):
            with self.subTest(program), contextlib.closing(http.client.HTTPConnection(endpoint, timeout=30)) as connection:
                file = thread_of(process, thread)
                before = int(file.read_text().split()[0])
                for _ in range(SCRAPES):
                    connection.request("GET", "/metrics")
                    reply = connection.getresponse()
                    text = reply.read()
                    self.assertEqual(reply.status, 200)
                cost = (int(file.read_text().split()[0]) - before) / 1e6 / SCRAPES
                lines = sum(not line.startswith(b"#") for line in text.splitlines())
                print(f"a scrape of the {program}: {cost:.3f} ms of its thread {thread}, {lines} series, {len(text)} bytes (bar {SCRAPE_BAR_MS} ms)", file=sys.stderr)
                self.assertGreater(cost, 0)
                self.assertLessEqual(cost, SCRAPE_BAR_MS)


class Bounded(MetricsTest):
    def churn(self, server, exchange, numbers):
        """Requests of strangers, and workers of other names that come and go: a half is killed, a half leaves."""
        for number in numbers:
            for method, path in itertools.product(("GET", "POST", "DELETE", "BREW"), (f"/no/{number}", f"/v1/workers/{number}00:{number}", f"/v1/checkpoints/{number}00", "/livez")):
                status = self.get(server.api, f"{path}?n={number}", method)[0]
                self.assertTrue(200 <= status < 500 and status != 429, f"{method} {path}: {status}")
            worker = self.worker(server, f"other-{number}", "--exchange", exchange)
            server.wait_worker(f"other-{number}", "active")
            server.wait_more_rounds(3)
            worker.send(signal.SIGKILL if number % 2 else signal.SIGTERM)
            worker.exit_status()
            server.wait_worker(f"other-{number}", "dead" if number % 2 else "left")
            server.wait_more_rounds(3)

    def test_series_do_not_grow_with_paths_and_names_of_others(self):
        for exchange in ("star", "ring"):
            with self.subTest(exchange):
                server = self.server("--epochs", "1000000", "--min-workers", "2", "--api.rate", "0", "--exchange", exchange, name=exchange, run=exchange)
                stays = [self.worker(server, f"{exchange}{k}", "--exchange", exchange, "--metrics.listen", "127.0.0.1:0") for k in range(2)]
                places = [server.api, stays[0].wait_event("worker.metrics_opened")["endpoint"]]
                server.wait_round(20)

                def names(places=places):
                    return [set(series(self.get(place)[2])) for place in places]

                names()
                self.churn(server, exchange, range(2))  # of each kind one: a route's series begin with its first request, and /metrics has one, too
                before = names()
                self.churn(server, exchange, range(2, 8))
                after = names()
                self.assertEqual([sorted(now - then) for then, now in zip(before, after)], [[], []])
                print(f"{exchange}: {len(after[0])} series of the server, {len(after[1])} of a worker, after strangers' paths and 8 workers that came and went", file=sys.stderr)
                server.post("/v1/job:stop")
                self.assert_exit(DONE, *stays, server)


class Numbers(ClientTest):
    def test_series_of_numbers_are_bounded_whatever_programs_call_them(self):
        """Sixteen names in a job, then none more: neither by other names of one program nor by other programs."""
        server = self.server("--epochs", 1_000_000, "--min-workers", 1)

        def shown():
            return {line.partition(" ")[0] for line in server.call("GET", "/metrics")[1].splitlines() if line.startswith("centroid_server_scalar{")}

        for program in range(4):
            with self.trainer(server, f"t{program}", {"w": array.array("f", [1])}) as trainer:
                for _ in range(3):
                    next(trainer)
                    for number in range(10):
                        trainer.record(f"n{program}.{number}", number)
                    trainer.finish({"w": array.array("f", [1])})
            server.wait_worker(f"t{program}", "left")
            count = len(shown())
            self.assertEqual(count, min(16, 10 * (program + 1)), shown())
        self.assertEqual(len(server.events("scalar.dropped")), 1)


class WorkerMetrics(MetricsTest):
    def listening(self, codec="f32"):
        """A server with one worker that has trained a few rounds, and the endpoint of the worker's metrics."""
        server = self.server("--epochs", "1000000")
        worker = self.worker(server, "w0", "--metrics.listen", "127.0.0.1:0", "--codec", codec)
        endpoint = worker.wait_event("worker.metrics_opened")["endpoint"]
        server.wait_round(5)
        return server, worker, endpoint

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
        server = self.server("--epochs", "1000000", "--codec-down", "int8", "--apply", "worker", "--journal.mode", "on", "--lease", "8s")
        worker = self.worker(server, "w0", "--metrics.listen", "127.0.0.1:0", "--codec", "int8")
        endpoint = worker.wait_event("worker.metrics_opened")["endpoint"]
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
                workers = [self.worker(server, name, *common, "--metrics.listen", "127.0.0.1:0") for name in names]
                endpoint = workers[0].wait_event("worker.metrics_opened")["endpoint"]
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
        alone = self.worker("127.0.0.1:1", "w1", "--metrics.listen", "127.0.0.1:0")
        values = series(self.get(alone.wait_event("worker.metrics_opened")["endpoint"])[2])
        self.assertIn("centroid_worker_samples_total", values)
        for name in ("version_number", "train_loss_nats", "rank_number"):
            self.assertNotIn(f"centroid_worker_{name}", values)
        server, worker, endpoint = self.listening()
        wait_for(lambda: series(self.get(endpoint)[2]).get("centroid_worker_version_number", 0) >= 5, "version 5 at the worker")
        server.kill()
        worker.wait_event("server.connection_failed")
        values = series(self.get(endpoint)[2])
        self.assertGreaterEqual(values["centroid_worker_version_number"], 5)

    def test_connections_between_workers_are_counted_and_stay(self):
        server = self.server("--epochs", "1000000", "--min-workers", "2", "--exchange", "ring")
        workers = [self.worker(server, name, "--exchange", "ring", "--metrics.listen", "127.0.0.1:0") for name in ("w0", "w1")]
        endpoint = workers[0].wait_event("worker.metrics_opened")["endpoint"]
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
        for probe in ("/healthz", "/livez", "/readyz"):
            self.assertEqual(self.get(endpoint, probe)[0], 200, probe)
        self.assertEqual(self.get(endpoint, "/metrics", "HEAD")[2], "")
        self.assertEqual(self.get(endpoint, "/v1/cluster")[0], 404)
        self.assertEqual(self.get(endpoint, "/metrics", "POST")[0], 405)

    def test_a_worker_is_ready_while_it_is_a_member(self):
        place = f"127.0.0.1:{free_port()}"
        worker = self.worker(place, "w0", "--metrics.listen", "127.0.0.1:0", "--join-timeout", "600s")
        endpoint = worker.wait_event("worker.metrics_opened")["endpoint"]
        status, _, text = self.get(endpoint, "/readyz")
        self.assertEqual((status, text), (503, "not a member of a cluster now\n"))
        self.assertEqual([self.get(endpoint, path)[0] for path in ("/livez", "/healthz")], [200, 200])
        server = self.server("--epochs", "1000000", listen=place)
        wait_for(lambda: self.get(endpoint, "/readyz")[0] == 200, "a worker that is ready")
        server.wait_round(1)
        server.kill()
        wait_for(lambda: self.get(endpoint, "/readyz")[0] == 503, "a worker that has lost its server")
        self.assertEqual(self.get(endpoint, "/livez")[0], 200)

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
            worker = self.worker("127.0.0.1:1", "w0", "--metrics.listen", place)
            self.assertNotEqual(worker.exit_status(), DONE)
            self.assertIn(f"--metrics.listen: cannot listen on {place}: the port is in use", worker.text())
        bad = self.worker("127.0.0.1:1", "w1", "--metrics.listen", "nonsense")
        self.assert_status(bad, USAGE, "nonsense")


class ServerMetrics(MetricsTest):
    """A shard server has a port of its own for them; the leader and its standby have REST."""

    def shard(self, leaders, name, *arguments):
        places = ["--join", leaders, "--name", name, "--listen", "127.0.0.1:0", "--run-dir", self.folder / "shards"]
        return self._start(Process, "centroid-server", name, [*places, *arguments], None)

    def listening(self, leaders, name, *arguments):
        shard = self.shard(leaders, name, "--metrics.listen", "127.0.0.1:0", *arguments)
        return shard, shard.wait_event("shard.metrics_opened")["endpoint"]

    def test_a_shard_server_tells_what_it_does(self):
        codec = ["--apply", "worker", "--codec-down", "int8", "--journal.mode", "on"]
        server = self.server("--epochs", "1000000", "--servers", "2", "--chunk-bytes", "512", "--lease", "2s", *codec)
        shard, endpoint = self.listening(server.data, "s1", "--endpoints-file", self.folder / "s1.json")
        wait_for((self.folder / "s1.json").exists, "the file of its endpoints")
        self.assertEqual(json.loads((self.folder / "s1.json").read_text())["metrics"], endpoint)
        worker = self.worker(server, "w0")
        server.wait_round(20)

        def reported():  # both are written a few times a second
            values = series(self.get(endpoint)[2])
            return values if values["centroid_server_held_chunks"] and values["centroid_server_worker_sessions"] else None

        values = wait_for(reported, "its chunks and its worker")
        view = next(one for one in server.get("/v1/servers")["servers"] if one["name"] == "s1")
        self.assertEqual(values["centroid_server_held_chunks"], view["chunks"])
        self.assertEqual(values["centroid_server_worker_sessions"], 1)
        self.assertEqual(values["centroid_server_has_leader"], 1)
        self.assertEqual(values['centroid_server_role{role="shard"}'], 1)
        self.assertGreaterEqual(values["centroid_server_held_bytes"], view["bytes"])
        self.assertGreater(values["process_resident_memory_bytes"], 1 << 20)
        for stage in ("receive", "aggregate", "apply", "encode", "journal", "send"):
            self.assertGreater(values[f'centroid_server_stage_seconds_count{{stage="{stage}"}}'], 10, stage)
        per_round = values['centroid_server_stage_seconds_count{stage="aggregate"}'] / values["centroid_server_merge_seconds_count"]
        self.assertLess(abs(per_round - view["chunks"]), 1)
        for counter in ("payload_received_bytes", "payload_sent_bytes", "journal_written_bytes"):
            self.assertGreater(values[f"centroid_server_{counter}_total"], 20 * view["chunks"], counter)
        wait_for(lambda: series(self.get(endpoint)[2])["centroid_server_journal_sync_seconds_count"], "a sync of its journal")
        events = json.loads(self.get(endpoint, "/v1/trace")[2])["traceEvents"]
        lanes = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
        self.assertLessEqual({"w0", "w0 out", "rounds", "journal", "replies"}, lanes)
        server.post("/v1/job:stop")
        self.assert_exit(DONE, worker, server, shard)

    def test_a_shard_server_is_ready_while_it_has_a_leader_and_its_chunks(self):
        place = f"127.0.0.1:{free_port()}"
        shard, endpoint = self.listening(place, "s1")

        def probe(path, status, text=""):
            answer = self.get(endpoint, path)
            return answer[0] == status and text in answer[2]

        self.assertTrue(probe("/readyz", 503, "no leader"))
        self.assertTrue(probe("/livez", 200))
        job = ["--epochs", "1000000", "--servers", "2", "--chunk-bytes", "512", "--run-id", "one"]
        server = self.server(*job, listen=place)
        wait_for(lambda: probe("/readyz", 200), "a shard server that is ready, though no worker has brought a model")
        self.worker(server, "w0")
        server.wait_round(5)
        self.assertTrue(probe("/readyz", 200))
        server.kill()
        wait_for(lambda: probe("/readyz", 503, "no leader: "), "a shard server without its leader")
        self.assertTrue(probe("/livez", 200))
        values = series(self.get(endpoint)[2])
        self.assertEqual((values["centroid_server_has_leader"], values["centroid_server_held_chunks"]), (0, 0))
        again = self.server(*job, "--resume", listen=place, name="again")
        again.wait_round(5)
        self.assertTrue(probe("/readyz", 200))
        received = series(self.get(endpoint)[2])["centroid_server_payload_received_bytes_total"]
        self.assertGreater(received, values["centroid_server_payload_received_bytes_total"])
        again.send(signal.SIGKILL)
        shard.send(signal.SIGTERM)
        self.assert_exit(DONE, shard)

    @unittest.skipIf(ETCD is None, "etcd is not installed (package etcd-server)")
    def test_leader_standby_and_shard_server_each_tell_their_role(self):
        etcd = Etcd(self.folder, free_port(), free_port())
        self.processes.append(etcd)
        common = ["--etcd.endpoints", etcd.url, "--cluster", "test", "--epochs", "1000000", "--servers", "2", "--chunk-bytes", "512", "--journal.mode", "on"]
        leader = self.server(*common, "--name", "a", name="a")
        leader.wait_cluster("a leader", lambda cluster: cluster["role"] == "leader")
        standby = self.server(*common, "--name", "b", name="b")
        places = f"{leader.data},{standby.data}"
        shard, endpoint = self.listening(places, "s1")
        self.worker(places, "w0")
        leader.wait_round(5)
        roles = {"leader": leader.api, "standby": standby.api, "shard": endpoint}
        for role, place in roles.items():
            with self.subTest(role):
                values = series(self.get(place)[2])
                told = {name: value for name, value in values.items() if name.startswith("centroid_server_role{")}
                self.assertEqual(told.pop(f'centroid_server_role{{role="{role}"}}'), 1)
                self.assertEqual(set(told.values()) - {0}, set())
                self.assertEqual([self.get(place, path)[0] for path in ("/livez", "/healthz")], [200, 200])
                self.assertEqual(self.get(place, "/readyz")[0], 503 if role == "standby" else 200)

    def test_settings_that_do_not_fit_are_refused(self):
        taken = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(taken.close)
        place = "127.0.0.1:%d" % taken.getsockname()[1]
        shard = self.shard("127.0.0.1:1", "s1", "--metrics.listen", place)
        self.assertNotEqual(shard.exit_status(), DONE)
        self.assertIn(f"--metrics.listen: cannot listen on {place}: the port is in use", shard.text())
        self.assert_status(self.shard("127.0.0.1:1", "s2", "--metrics.tls"), USAGE, "metrics.tls needs tls.certificate, tls.key and metrics.listen")
        alone = self.launch_server("--metrics.listen", "127.0.0.1:0")
        self.assert_status(alone, USAGE, "metrics.listen and metrics.tls are for a shard server (join)")


if __name__ == "__main__":
    main(at_a_time=3)
