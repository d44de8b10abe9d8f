"""Encrypted data connections with the real programs: every exchange, certificates, refusals, renewal. tls_test.py BIN_DIR"""

import contextlib
import json
import pathlib
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.certificates import TlsTest
from harness.cluster import DONE, FAILED, USAGE, Process, free_port, main
from harness.sharded import Sharded

UNREACHABLE = 3  # of centroidctl

GOAL = ["--min-workers", "2", "--rounds", "60", "--exit-when-finished"]


class Training(TlsTest):
    def test_same_bits_as_without(self):
        prints = {}
        for way in ("plain", "server", "both"):
            for exchange in ("star", "ring"):
                with self.subTest(way=way, exchange=exchange):
                    server_tls = [] if way == "plain" else self.issue("server")
                    worker_tls = [] if way == "plain" else self.trust
                    if way == "both":
                        server_tls = [*server_tls, *self.trust]
                    run = f"{way}-{exchange}"
                    server = self.server(*server_tls, *GOAL, "--exchange", exchange, run=run, name=f"server-{run}")
                    workers = []
                    for i in range(2):
                        name = f"w{i}-{run}"
                        shown = self.issue(name) if way == "both" or (way == "server" and exchange == "ring") else []
                        # TCP among the workers, not shared memory
                        peers = ["--exchange", exchange, "--peer.shared-memory=false"]
                        workers.append(self.worker(server, name, *worker_tls, *shown, *peers))
                    self.assert_exit(DONE, *workers, server)
                    self.assertEqual(self.summary(f"w0-{run}")["rounds"], 60)
                    prints.setdefault(exchange, set()).add(self.summary(f"w0-{run}")["fingerprint"])
        self.assertEqual({len(found) for found in prints.values()}, {1}, prints)

    def test_nothing_readable_on_the_wire(self):
        """The token and the manifest's names travel in every join: not in clear."""
        server = self.server(*self.issue("server"), "--token", "a-secret-of-this-test", "--min-workers", "1")
        with Tap(server.data) as tap:
            worker = self.worker(tap.endpoint, "w0", *self.trust, "--token", "a-secret-of-this-test")
            server.wait_round(5)
            worker.send(signal.SIGTERM)
            worker.exit_status()
        self.assertGreater(len(tap.seen), 10_000)
        self.assertNotIn(b"a-secret-of-this-test", tap.seen)
        self.assertNotIn(b"weight", tap.seen)

    def test_renewed_certificate_while_it_trains(self):
        files = self.issue("server")
        server = self.server(*files, "--min-workers", "1")
        first = self.worker(server, "w0", *self.trust)
        server.wait_round(5)
        self.issue("server")
        self.worker(server, "w1", *self.trust)
        server.wait_event("tls.renewed")
        server.wait_worker("w1", "active")
        self.assertTrue(first.is_running())
        server.wait_more_rounds()


class Tap:
    """Passes a TCP connection on and keeps what it sees."""

    def __init__(self, there):
        host, port = there.rsplit(":", 1)
        self.seen = bytearray()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.sockets = []

        def pump(source, target):
            while data := source.recv(65536):
                self.seen += data
                target.sendall(data)
            with contextlib.suppress(OSError):  # the other side has gone
                target.shutdown(socket.SHUT_WR)

        def serve():
            near, _ = self.listener.accept()
            far = socket.create_connection((host, int(port)))
            self.sockets += [near, far]
            self.threads = [threading.Thread(target=pump, args=pair) for pair in ((near, far), (far, near))]
            for thread in self.threads:
                thread.start()

        self.server = threading.Thread(target=serve)
        self.server.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.join()
        for thread in self.threads:
            thread.join()
        for one in [self.listener, *self.sockets]:
            one.close()


class Refusals(TlsTest):
    def test_server_of_another_authority(self):
        server = self.server(*self.issue("server"))
        self.authority(self.certificates, "other")
        worker = self.worker(
            server, "w0", "--tls.authority", self.certificates / "other.crt", "--join-timeout", "1000"
        )
        self.assert_status(worker, FAILED, "the certificate is not accepted", "join-timeout")

    def test_server_of_another_name(self):
        server = self.server(*self.issue("server", "DNS:elsewhere.example"))
        worker = self.worker(server, "w0", *self.trust, "--join-timeout", "1000")
        self.assert_status(worker, FAILED, "IP address mismatch")
        worker = self.worker(server, "w1", *self.trust, "--tls.server-name", "elsewhere.example")
        server.wait_worker("w1", "active")

    def test_worker_without_certificate(self):
        server = self.server(*self.issue("server"), *self.trust)
        worker = self.worker(server, "w0", *self.trust, "--join-timeout", "1000")
        self.assert_status(worker, FAILED, "certificate required", "tls.certificate and tls.key")
        self.assertEqual(server.workers(), [])

    def test_plain_worker_and_plain_server(self):
        server = self.server(*self.issue("server"))
        worker = self.worker(server, "w0", "--join-timeout", "1000")
        self.assert_status(worker, FAILED, "TLS, which this side does not speak: set it on both sides")
        self.assertIn("does not speak TLS", server.text())
        plain = self.server(run="plain", name="plain")
        worker = self.worker(plain, "w1", *self.trust, "--join-timeout", "1000")
        self.assert_status(worker, FAILED, "the other side does not speak TLS: set it on both sides")
        self.assertIn("TLS, which this side does not speak", plain.text())

    def test_wrong_files(self):
        right = self.issue("server")
        sharded = ["--exchange", "sharded", "--world", "2", "--rendezvous", "127.0.0.1:1", "--rounds", "1"]
        for flags, text in (
            (right[:2], "tls.certificate and tls.key belong together"),
            (self.trust, "needs tls.certificate"),
            ([*right[:2], "--tls.key", "/nowhere"], "there is no file /nowhere"),
            ([*right[:2], "--tls.key", self.issue("w0")[3]], "does not belong to the certificate"),
        ):
            with self.subTest(text=text):
                self.assert_status(self.launch_server(*flags, name=f"server{len(self.processes)}"), USAGE, text)
        for flags, text in (
            (right, "which tls.authority switches on"),
            ([*self.trust, "--exchange", "ring"], "set tls.certificate and tls.key"),
            ([*self.trust, *sharded], "set tls.certificate and tls.key"),
            ([*self.trust, *right, *sharded, "--tls.server-name", "x"], "tls.server_name"),
            ([*self.trust, *right[:2], "--tls.key", "/nowhere", *sharded], "there is no file /nowhere"),
        ):
            with self.subTest(text=text):
                self.assert_status(self.worker("127.0.0.1:1", f"w{len(self.processes)}", *flags), USAGE, text)


class Ranks(TlsTest, Sharded):
    """A model divided among workers: their rendezvous, their meetings, and their connections among each other."""

    WIRE = ["--peer.shared-memory=false"]  # TCP among the workers

    def rank(self, place, rank, *flags, name=None):
        common = ["--exchange", "sharded", "--world", 3, "--rendezvous", place, "--rank", rank, *self.WIRE]
        return self.worker("127.0.0.1:1", name or f"r{rank}", *common, *flags)

    def test_same_bits_as_without(self):
        for sharding, parallel in (("full", "dp=3"), ("none", "pp=3")):
            flags = ["--optimizer", "adam", "--rounds", 20, "--parallel", parallel, *self.WIRE]
            _, plain = self.train(3, sharding, *flags, run=f"-plain-{parallel}", batch=24)
            _, sealed = self.train(3, sharding, *flags, *self.trust, *self.issue("rank"), run=f"-tls-{parallel}", batch=24)
            if parallel == "dp=3":  # stages are divided by measured times
                self.assertEqual(plain.read_bytes(), sealed.read_bytes())

    def test_a_killed_rank_comes_back_with_a_renewed_certificate(self):
        place, flags = f"127.0.0.1:{free_port()}", [*self.trust, *self.issue("rank"), "--epochs", 1_000_000]
        workers = [self.rank(place, rank, *flags) for rank in range(3)]
        for worker in workers:
            worker.wait_event("epoch.ended")
        for lost in (1, 0):  # rank 0 is the leader, and listens at the rendezvous
            workers[lost].kill()
            others = [worker for worker in workers if worker is not workers[lost]]
            for worker in others:
                worker.wait_event("sharded.regrouped", world=2)
            self.issue("rank")
            workers[lost] = self.rank(place, lost, *flags, name=f"back{lost}")
            workers[lost].wait_event("sharded.joined")
            for worker in others:
                worker.wait_event("tls.renewed")
        workers[2].send(signal.SIGTERM)
        self.assert_exit(DONE, *workers)

    def test_a_rank_with_a_foreign_certificate_is_refused_and_the_others_go_on(self):
        place, own = f"127.0.0.1:{free_port()}", [*self.trust, *self.issue("rank")]
        self.authority(self.certificates, "other")
        foreign = self.issue("foreign", by="other")
        flags = ["--epochs", 1_000_000]
        workers = [self.rank(place, rank, *flags, *own) for rank in (0, 1)]
        refused = [
            ([*self.trust, *foreign], "tls.authority of the other side did not sign tls.certificate of this one"),
            (["--tls.authority", self.certificates / "other.crt", *foreign], "tls.authority of this side did not sign it"),
            ([], "TLS, which this side does not speak: set it on both sides"),
        ]
        for moment in ("begin", "later"):  # when the ranks meet, and when the job runs
            for number, (shown, why) in enumerate(refused):
                with self.subTest(moment=moment, why=why):
                    stranger = self.rank(place, 2, *flags, *shown, name=f"stranger-{moment}{number}")
                    self.assert_status(stranger, USAGE, "no TLS with rank 0", why)
                    self.assertEqual(stranger.events("sharded.started"), [])
            if moment == "begin":
                workers.append(self.rank(place, 2, *flags, *own))
                for worker in workers:
                    worker.wait_event("epoch.ended")
        for why in ("the certificate is not accepted: unable to get local issuer", "alert unknown ca", "does not speak TLS"):
            workers[0].wait_event("connection.refused", why=why)
        self.assertEqual(workers[0].events("sharded.rank_lost"), [])
        workers[1].send(signal.SIGTERM)
        self.assert_exit(DONE, *workers)

    def test_a_rank_0_without_tls_refuses_those_that_have_it_and_says_so(self):
        place, flags = f"127.0.0.1:{free_port()}", ["--rounds", 1, "--join-timeout", "5s"]
        plain = self.rank(place, 0, *flags)
        sealed = self.rank(place, 1, *flags, *self.trust, *self.issue("rank"))
        self.assert_status(sealed, USAGE, "no TLS with rank 0", "the other side does not speak TLS: set it on both sides")
        self.assert_status(plain, FAILED, "a connection was refused", "TLS, which this side does not speak")


class Clients(TlsTest):
    """centroidctl, Prometheus and etcd over TLS."""

    def ctl(self, *arguments, status=DONE):
        done = subprocess.run([self.programs / "centroidctl", *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_rest_by_https_and_what_is_said_of_a_wrong_certificate(self):
        trust = ["--authority", self.certificates / "ca.crt"]
        server = self.server(*self.issue("server"), "--api.tls")
        address = f"https://{server.api}"
        self.assertIn("waiting", self.ctl("--server", address, *trust, "status"))
        self.authority(self.certificates, "other")
        other = ["--authority", self.certificates / "other.crt"]
        self.assertIn("unable to get local issuer certificate", self.ctl("--server", address, *other, "status", status=FAILED))
        self.assertIn("is it https://?", self.ctl("--server", address.replace("https", "http"), "status", status=FAILED))
        self.assertIn("there is no file", self.ctl("--server", address, "--authority", "/nowhere", "status", status=FAILED))
        self.issue("server", "DNS:elsewhere.example")  # read again before the next connection
        self.assertIn("IP address mismatch", self.ctl("--server", address, *trust, "status", status=FAILED))
        named = [*trust, "--server-name", "elsewhere.example"]
        self.assertIn("waiting", self.ctl("--server", address, *named, "status"))
        self.assertIn("hostname mismatch", self.ctl("--server", address, *trust, "--server-name", "nowhere.example", "status", status=FAILED).lower())
        self.issue("server", days=-1)
        self.assertIn("certificate has expired", self.ctl("--server", address, *trust, "status", status=FAILED))
        plain = self.server(run="plain", name="plain")
        self.assertIn("does it speak HTTPS?", self.ctl("--server", f"https://{plain.api}", *trust, "status", status=FAILED))

    def test_health_check_of_a_container_asks_by_either_way(self):
        """At a loopback address, which no certificate names, without knowing whether it is HTTPS."""
        server = self.server(*self.issue("server", "DNS:elsewhere.example"), "--api.tls")
        plain = self.server(run="plain", name="plain")
        worker = self.worker(server, "w0", *self.trust, *self.issue("w0"), "--tls.server-name", "elsewhere.example", "--metrics.listen", "127.0.0.1:0", "--metrics.tls")
        metrics = worker.wait_event("worker.metrics_opened")["endpoint"]
        server.wait_event("member.joined")
        port = server.api.rsplit(":", 1)[1]
        for where in (f"{server.api}/healthz", f"localhost:{port}/readyz", f"{plain.api}/healthz", f"{metrics}/healthz"):
            self.ctl("probe", f"http://{where}")
        self.assertIn("no such path", self.ctl("probe", f"http://{server.api}/nothing", status=FAILED))
        self.assertIn("IP address mismatch", self.ctl("--authority", self.certificates / "ca.crt", "probe", f"https://{server.api}/healthz", status=FAILED))
        self.ctl("probe", f"http://127.0.0.1:{free_port()}/healthz", status=UNREACHABLE)

    def test_bench_and_doctor_by_the_transport_of_workers(self):
        server = self.server(*self.issue("server"), *self.trust)
        shown = self.issue("operator")
        address = ["--server", server.api]
        self.assertIn("give --tls.authority", self.ctl(*address, "bench", "--seconds", "0.3", status=USAGE))
        self.assertIn("certificate required", self.ctl(*address, "bench", "--seconds", "0.3", *self.trust, status=UNREACHABLE))
        self.assertIn("round trip", self.ctl(*address, "bench", "--seconds", "0.3", *self.trust, *shown))
        found = {one["check"]: one for one in json.loads(self.ctl(*address, "--output", "json", "doctor", *self.trust, *shown))}
        self.assertIn("a round trip", found["network"]["found"])
        found = {one["check"]: one for one in json.loads(self.ctl(*address, "--output", "json", "doctor"))}
        self.assertIn("--tls.authority", found["network"]["do"])
        program = [self.programs / "centroidctl", "bench", "--listen", "127.0.0.1:0", *map(str, shown)]
        with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as other:
            where = other.stdout.readline().split()[2].rstrip(";")
            self.assertIn("round trip", self.ctl("bench", where, "--seconds", "0.3", *self.trust))
            self.ctl("bench", where, "--seconds", "0.3", status=UNREACHABLE)
            other.terminate()
            self.assertEqual(other.wait(10), DONE)

    def test_doctor_knows_when_the_certificates_of_members_end(self):
        server = self.server(*self.issue("server"), *self.trust)
        for name, days in (("long", 400), ("short", 3)):
            self.worker(server, name, *self.trust, *self.issue(name, days=days))
            server.wait_worker(name, "active")
            told = server.workers(name)[0]["certificate_expires_unix_seconds"]
            self.assertEqual(told, self.end_of(f"{name}.crt"))

        def certificates():
            found = json.loads(self.ctl("--server", server.api, "--output", "json", "doctor", "--no-members"))
            return [(one["verdict"], one["found"]) for one in found if one["check"] == "certificate" and "worker" in one["found"]]

        (verdict, found), *others = certificates()
        self.assertEqual((verdict, others), ("warning", []))
        self.assertIn("worker short: the one it joined with is valid until ", found)
        server.post(f"/v1/workers/{server.workers('short')[0]['member']}:drain")
        server.wait_worker("short", "left")
        self.assertEqual(server.workers("short")[0]["certificate_expires_unix_seconds"], None)
        (verdict, found), *others = certificates()
        self.assertEqual((verdict, others), ("ok", []))
        self.assertIn("1 worker with one, the first ends ", found)

    def end_of(self, file):
        """Unix time, as the openssl program tells it."""
        text = subprocess.run(["openssl", "x509", "-noout", "-enddate", "-in", file], cwd=self.certificates, check=True, capture_output=True, text=True)
        return ssl.cert_time_to_seconds(text.stdout.strip().removeprefix("notAfter="))

    def test_metrics_of_a_worker_by_https(self):
        server = self.server("--min-workers", "1")
        worker = self.worker(server, "w0", *self.issue("worker"), "--metrics.listen", "127.0.0.1:0", "--metrics.tls")
        where = worker.wait_event("worker.metrics_opened")["endpoint"]
        context = ssl.create_default_context(cafile=self.certificates / "ca.crt")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
        for _ in range(2):
            with opener.open(f"https://{where}/metrics", timeout=20) as reply:
                self.assertIn(b"centroid_worker_", reply.read())
        with self.assertRaises(OSError):
            opener.open(f"http://{where}/metrics", timeout=20)
        server.wait_round(3)
        trace = ["--server", server.api, "--authority", self.certificates / "ca.crt", "trace", f"https://{where}"]
        self.assertIn("centroid-worker w0", self.ctl(*trace))
        bare = self.worker(server, "w1", "--metrics.listen", "127.0.0.1:0", "--metrics.tls")
        self.assert_status(bare, USAGE, "metrics.tls needs tls.certificate")

    @unittest.skipIf(shutil.which("etcd") is None, "etcd is not installed (package etcd-server)")
    def test_etcd_that_asks_for_certificates(self):
        own, shown = self.issue("etcd"), self.issue("server")
        url, peers = (f"{scheme}://127.0.0.1:{free_port()}" for scheme in ("https", "http"))
        arguments = ["--name", "e", "--data-dir", self.folder / "etcd", "--listen-client-urls", url, "--advertise-client-urls", url]
        arguments += ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", f"e={peers}"]
        arguments += ["--cert-file", own[1], "--key-file", own[3], "--client-cert-auth", "--trusted-ca-file", self.certificates / "ca.crt"]
        self.processes.append(Process(shutil.which("etcd"), arguments, self.folder / "etcd.log", None))
        trust = ["--etcd.authority", self.certificates / "ca.crt"]
        mine = ["--etcd.certificate", shown[1], "--etcd.key", shown[3]]
        common = ["--etcd.endpoints", url, "--cluster", "test"]
        leader = self.server(*common, *trust, *mine, "--name", "a", name="a")
        leader.wait_cluster("the lead", lambda cluster: cluster["role"] == "leader")
        self.authority(self.certificates, "other")
        other = ["--etcd.authority", self.certificates / "other.crt"]
        for name, flags, said in (("b", [*other, *mine], "its certificate is not accepted"), ("c", trust, "etcd.certificate and etcd.key")):
            server = self.server(*common, *flags, "--name", name, name=name, run=name)
            server.wait_cluster(said, lambda cluster, said=said: said in cluster["state_reason"])


if __name__ == "__main__":
    if shutil.which("openssl") is None:
        print("skipped: no openssl program to make certificates with")
    else:
        main(at_a_time=3)
