"""Attackers use up the budgets of a server. /metrics shows it, and the job continues to train. budgets_test.py BIN_DIR

What training loses beside each flood is measured by tests/bench/floods.py.
"""

import contextlib
import functools
import http.client
import pathlib
import resource
import sys
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.certificates import TlsTest
from harness.cluster import main, wait_for
from harness.floods import FLOODS, OF_FILES, OF_MEMBERS, OF_TLS, Target, ask
from harness.peer import TENSORS
from harness.wire import Client

MAX_WORKERS, CONNECTIONS = 4, 3000
FILES = 2 * CONNECTIONS + 2000
ROUNDS = 10
DEEP = f"mlp:64-{'8-' * 40}10"  # many tensors: a long trace of each round, so that a slow machine's fill a budget, too
LIMITS = {"workers": 2, "strangers": MAX_WORKERS + 64, "guests": MAX_WORKERS + 64, "arrival_lines": 4 * (MAX_WORKERS + 64),
          "rest_connections": CONNECTIONS, "stranger_bytes": 64 << 20, "stranger_lines": 20, "metrics_connections": 16, "rest_file_streams": 64, "rest_answer_bytes": 256 << 20, "events": 4096}  # fmt: skip


def make_room():
    """Let this process and those it starts open so many files; whether that may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FILES:
        return False
    if soft < FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, hard))
    return True


def insist(act):
    """The result of `act`, which may lose its connection to the flood."""
    found = []

    def attempt():
        with contextlib.suppress(OSError, http.client.HTTPException):
            found.append(act())
        return found

    return wait_for(attempt, "an answer beside the flood")[0]


def of_worker(target, resource):
    """A series of a worker, which has no token."""
    text = insist(lambda: ask(target.metrics, "/metrics"))[1]
    return float(text.partition(f'centroid_budget_{resource} ')[2].split()[0])


@unittest.skipUnless(make_room(), f"no {FILES} files may be open at a time (ulimit -Hn)")
class Budgets(TlsTest):
    def attacked(self, *more, token=True, authority="", max_workers=MAX_WORKERS):
        """A server, and what its attackers know."""
        known = Target(data="", api="", authority=self.certificates / "ca.crt")
        tokens = ["--token", known.token, "--api.token", known.admin, "--api.viewer-token", known.viewer]
        server = self.launch_server("--optimizer", "sgd", "--lr", "0.001", "--epochs", "1000000", "--min-workers", 2, "--max-workers", max_workers,
                                    "--api.max-connections", CONNECTIONS, *(tokens if token else []), *more)  # fmt: skip
        server.wait_ready()
        if token:
            server.call = lambda method, path, body=None: insist(lambda: ask(server.api, path, known.admin, method, body=body, authority=authority))
        else:
            known.token = known.admin = known.viewer = ""
        known.data, known.api = server.data, server.api
        return server, known

    def used_up(self, server, target, name, refused=None, attackers=1, **more):
        """Attack until the budget's refusals are to be seen, and rounds go on beside that."""
        refused = refused or (lambda: server.metric("centroid_budget_refused_total", resource=name))
        before, over = refused(), threading.Event()
        attack = functools.partial(FLOODS[name], target, lambda: not over.is_set(), **more)
        threads = [threading.Thread(target=attack, daemon=True) for _ in range(attackers)]
        for thread in threads:
            thread.start()
        try:
            wait_for(lambda: refused() > before, f"a refusal of {name}")
            server.wait_more_rounds(ROUNDS)
        finally:
            over.set()
            for thread in threads:
                thread.join(60)
        if name in LIMITS and name != "metrics_connections":
            wait_for(lambda: server.metric("centroid_budget_limit", resource=name) == LIMITS[name], f"the limit of {name}")
        self.assertEqual({worker["state"] for worker in server.workers() if worker["name"] in ("w0", "w1")} - {"left"}, {"active"})

    def test_strangers_guests_and_callers_of_rest(self):
        server, target = self.attacked()
        for name in ("w0", "w1"):
            worker = self.worker(server, name, "--token", target.token, "--metrics.listen", "127.0.0.1:0", model=DEEP)
        target.metrics = worker.wait_event("worker.metrics_opened")["endpoint"]
        server.wait_round(ROUNDS)
        before = server.cluster()
        of_it = {"metrics_connections": functools.partial(of_worker, target, 'refused_total{resource="metrics_connections"}'),
                 # Answers wait to be read. On a busy processor their 10 s are over before they are 256 MiB, for training comes first (api_callers_test has the refusal).
                 "rest_answer_bytes": lambda: server.metric("centroid_budget_used", resource="rest_answer_bytes")}  # fmt: skip
        for name in FLOODS:
            if name in (*OF_TLS, *OF_MEMBERS, *OF_FILES):
                continue
            with self.subTest(name):
                self.used_up(server, target, name, of_it.get(name))
        after = server.cluster()
        self.assertEqual(after["generation"], before["generation"])  # nobody was lost
        self.assertEqual(after["aborted_attempts"], before["aborted_attempts"])

    def test_files_that_nobody_reads(self):
        server, target = self.attacked()
        for name in ("w0", "w1"):
            self.worker(server, name, "--token", target.token, model="mlp:64-1024-1024-10")
        server.wait_round(ROUNDS)
        self.assertEqual(server.post("/v1/checkpoints")[0], 201)
        for name in OF_FILES:
            self.used_up(server, target, name)

    def test_requests_get_processor_time_after_training(self):
        server, _ = self.attacked()
        nice = {}
        for thread in pathlib.Path(f"/proc/{server.pid}/task").iterdir():
            name, _, fields = (thread / "stat").read_text().partition("(")[2].rpartition(")")
            nice[name] = int(fields.split()[16])  # proc(5)
        self.assertEqual({name: nice[name] for name in ("service", "control", "files")}, {"service": nice["centroid-server"], "control": nice["centroid-server"] + 10, "files": nice["centroid-server"] + 10})

    def test_handshakes_of_tls(self):
        server, target = self.attacked(*self.issue("server"), "--api.tls", "--api.rate", "200", authority=self.certificates / "ca.crt")
        for name in ("w0", "w1"):
            self.worker(server, name, "--token", target.token, *self.trust)
        server.wait_round(ROUNDS)
        # Twice what is free at once. Whether more have to wait for their turn goes by the processor: on a busy one they never take their share of it (handshake_turns_test).
        of_it = {"handshake_seconds": lambda: server.metric("centroid_budget_refused_total", resource="strangers") // 2000}
        for name in OF_TLS:
            with self.subTest(name):
                # One that waits for a busy processor at each step makes 10 connections a second.
                self.used_up(server, target, name, of_it.get(name), attackers=4)
        joined = server.metric("centroid_server_members_joined_total")
        self.assertEqual(joined, 2)

    def by_hand(self, max_workers):
        """A server with two workers, whose model the attackers know."""
        server, target = self.attacked(token=False, max_workers=max_workers)
        for name in ("w0", "w1"):
            honest = Client(name, TENSORS)
            gradient = lambda number, chunk, honest=honest: bytes(4 * honest.elements(chunk))  # noqa: E731
            threading.Thread(target=self.train, args=(honest, server.data, gradient), daemon=True).start()
        server.wait_round(ROUNDS)
        return server, target

    def train(self, worker, endpoint, gradient):
        with contextlib.suppress(OSError, EOFError, AssertionError):  # until the server ends
            worker.train(endpoint, gradient)

    def test_members_that_come_and_go(self):
        server, target = self.by_hand(MAX_WORKERS)
        self.used_up(server, target, "arrival_lines", tensors=TENSORS)
        lines = len(server.events("member.joined")) + len(server.events("member.left")) + len(server.events("member.lost"))
        self.assertLess(lines, 2 * server.metric("centroid_server_members_joined_total"), "of a line about each that comes, and goes")

    def test_more_workers_than_there_may_be(self):
        server, target = self.by_hand(2)
        self.used_up(server, target, "workers", tensors=TENSORS)


if __name__ == "__main__":
    main()
