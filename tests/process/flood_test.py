"""What strangers may do to REST while workers train: 5,000 connections that say nothing, and slow loris. flood_test.py BIN_DIR

What must hold: rounds go on with the members there are, a client that asks is answered, the slow ones are dropped and counted, and strangers are the
business of the thread of REST alone: while a pause lets the thread of training rest, it takes little processor time beside what the thread of REST takes.
What a round costs beside the flood is measured by tests/bench/rest_load.py.
"""

import contextlib
import pathlib
import resource
import socket
import sys
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import ClusterTest, main, wait_for

IDLE, DRIPPING, SPARE = 5000, 200, 500
ROUNDS, QUESTIONS = 30, 20
OF_REST_SECONDS, MOST_PART = 0.1, 0.5  # processor time of the thread of REST over strangers; of it, what the thread of training may take at most


def make_room():
    """Let this process and those it starts open so many files; whether that may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = IDLE + 2 * DRIPPING + SPARE
    if hard != resource.RLIM_INFINITY and hard < wanted:
        return False
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return True


def spent(process, thread):
    """Seconds of processor time of a process's thread of this name; /proc counts nanoseconds."""
    found = 0
    for task in pathlib.Path(f"/proc/{process.pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            if thread == (task / "comm").read_text().strip():
                found += int((task / "schedstat").read_text().split()[0])
    return found / 1e9


class Dripping(threading.Thread):
    """Sends requests a byte at a time, on as many connections as there are; a dropped one comes back."""

    def __init__(self, address):
        super().__init__(daemon=True)
        self.address, self.end, self.dropped = address, threading.Event(), 0

    def run(self):
        live = {}
        while not self.end.wait(0.2):
            while len(live) < DRIPPING:
                connection = socket.create_connection(self.address, timeout=20)
                connection.setblocking(False)
                live[connection] = iter(b"GET /v1/cluster HTTP/1.1\r\nHost: localhost\r\nX-Fill: " + b"x" * 4000)
            for connection, text in list(live.items()):
                try:
                    connection.send(bytes([next(text)]))
                    is_open = connection.recv(4096) != b""
                except BlockingIOError:
                    is_open = True
                except OSError:
                    is_open = False
                if not is_open:
                    del live[connection]
                    connection.close()
                    self.dropped += 1
        for connection in live:
            connection.close()


class Flood(ClusterTest):
    def assert_left_to_rest(self, server):
        """Nobody asks for anything meanwhile: the flood is all there is."""
        self.assertEqual(server.post("/v1/job:pause")[0], 202)
        server.wait_cluster("a pause", lambda cluster: cluster["state"] == "paused")
        rest, training = spent(server, "control"), spent(server, "service")
        wait_for(lambda: spent(server, "control") - rest >= OF_REST_SECONDS, f"{OF_REST_SECONDS} s of the thread of REST")
        rest, training = spent(server, "control") - rest, spent(server, "service") - training
        print(f"processor time beside the flood: thread of REST {1e3 * rest:.0f} ms, thread of training {1e3 * training:.0f} ms", file=sys.stderr)
        self.assertLess(training, MOST_PART * rest)
        self.assertEqual(server.post("/v1/job:resume")[0], 202)

    @unittest.skipUnless(make_room(), f"no {IDLE + 2 * DRIPPING + SPARE} files may be open at a time (ulimit -Hn)")
    def test_5000_silent_connections_and_slow_loris_hold_up_nobody(self):
        server = self.server("--epochs", "1000000", "--min-workers", "2", "--api.read-timeout", "2s", "--api.idle-timeout", "600s")
        for name in ("w0", "w1"):
            self.worker(server, name)
        server.wait_round(ROUNDS)
        before = server.cluster()
        host, _, port = server.api.rpartition(":")
        address = (host, int(port))
        with contextlib.ExitStack() as stack:
            for _ in range(IDLE):
                stack.enter_context(contextlib.closing(socket.create_connection(address, timeout=20)))
            dripping = Dripping(address)
            stack.callback(dripping.join)
            stack.callback(dripping.end.set)
            dripping.start()
            wait_for(lambda: server.metric("centroid_budget_used", resource="rest_connections") >= IDLE + DRIPPING, "every connection")
            for _ in range(QUESTIONS):
                for path in ("/v1/cluster", "/livez", "/metrics"):
                    self.assertEqual(server.call("GET", path)[0], 200)
            server.wait_more_rounds(ROUNDS)
            self.assert_left_to_rest(server)
            server.wait_more_rounds(ROUNDS)
            wait_for(lambda: server.metric("centroid_api_dropped_connections_total", reason="slow") >= DRIPPING, "slow loris dropped")
            wait_for(lambda: dripping.dropped >= DRIPPING, "what the slow ones see of it")
            after = server.cluster()
            self.assertEqual(server.metric("centroid_budget_refused_total", resource="rest_connections"), 0)
            self.assertGreaterEqual(server.metric("centroid_budget_used", resource="rest_connections"), IDLE)
        self.assertEqual(after["generation"], before["generation"])  # nobody was lost
        self.assertEqual(after["aborted_attempts"], before["aborted_attempts"])
        self.assertEqual({worker["state"] for worker in server.workers()}, {"active"})
        wait_for(lambda: server.metric("centroid_budget_used", resource="rest_connections") < 100, "the connections gone")


if __name__ == "__main__":
    main()
