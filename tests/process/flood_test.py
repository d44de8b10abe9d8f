"""What strangers may do to REST while workers train: 5,000 connections that say nothing, and slow loris. flood_test.py BIN_DIR

What must hold: rounds go on with the members there are, a client that asks is answered, and the slow ones are dropped and counted. What
it costs is printed: rounds a second beside the flood, by those before it. On a busy machine the two differ by themselves, so only that rounds go
on is asserted; tests/bench/rest_load.py measures it.
"""

import contextlib
import resource
import socket
import sys
import threading
import time
import unittest

from cluster import ClusterTest, main, wait_for

IDLE, DRIPPING, SPARE = 5000, 200, 500
ROUNDS, RATED_SECONDS, QUESTIONS = 30, 2, 20


def make_room():
    """Let this process and those it starts open so many files; whether that may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = IDLE + 2 * DRIPPING + SPARE
    if hard != resource.RLIM_INFINITY and hard < wanted:
        return False
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return True


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
    def rate(self, server):
        """Rounds a second, over at least so many rounds and so long."""
        first, begin = server.cluster()["round"], time.monotonic()
        enough = lambda cluster: cluster["round"] >= first + ROUNDS and time.monotonic() >= begin + RATED_SECONDS  # noqa: E731
        last = server.wait_cluster(f"{ROUNDS} more rounds", enough)["round"]
        return (last - first) / (time.monotonic() - begin)

    @unittest.skipUnless(make_room(), f"no {IDLE + 2 * DRIPPING + SPARE} files may be open at a time (ulimit -Hn)")
    def test_5000_silent_connections_and_slow_loris_hold_up_nobody(self):
        server = self.server("--epochs", "1000000", "--min-workers", "2", "--api.read_timeout", "2s", "--api.idle_timeout", "600s")
        for name in ("w0", "w1"):
            self.worker(server, name)
        server.wait_round(3)
        alone = self.rate(server)
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
            wait_for(lambda: server.metric("centroid_api_connections") >= IDLE + DRIPPING, "every connection")
            for _ in range(QUESTIONS):
                for path in ("/v1/cluster", "/livez", "/metrics"):
                    self.assertEqual(server.call("GET", path)[0], 200)
            flooded = self.rate(server)
            print(f"{flooded:.0f} rounds a second beside the flood, {alone:.0f} before it: ratio {flooded / alone:.2f}", file=sys.stderr)
            wait_for(lambda: server.metric("centroid_api_dropped_connections_total", reason="slow") >= DRIPPING, "slow loris dropped")
            wait_for(lambda: dripping.dropped >= DRIPPING, "what the slow ones see of it")
            after = server.cluster()
            self.assertEqual(server.metric("centroid_api_dropped_connections_total", reason="limit"), 0)
            self.assertGreaterEqual(server.metric("centroid_api_connections"), IDLE)
        self.assertEqual(after["generation"], before["generation"])  # nobody was lost
        self.assertEqual(after["aborted_attempts"], before["aborted_attempts"])
        self.assertEqual({worker["state"] for worker in server.workers()}, {"active"})
        wait_for(lambda: server.metric("centroid_api_connections") < 100, "the connections gone")


if __name__ == "__main__":
    main()
