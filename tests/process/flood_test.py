"""What strangers may do to REST while workers train: 5,000 connections that say nothing, and slow loris. flood_test.py BIN_DIR

What must hold: rounds go on with the members there are, a client that asks is answered, the slow ones are dropped and counted, and a round costs
the server's thread of training and the workers no more processor time than before: strangers are the business of the thread of REST alone. How many
rounds a second there are beside the flood, by those before it, is printed only: on a busy machine the two differ by themselves, for the flood's own
processor time is of this machine, too. tests/bench/rest_load.py measures it.
"""

import contextlib
import pathlib
import resource
import socket
import sys
import threading
import time
import unittest

from cluster import ClusterTest, main, wait_for

IDLE, DRIPPING, SPARE = 5000, 200, 500
ROUNDS, RATED_SECONDS, QUESTIONS = 30, 2, 20
MOST_TIMES, TRIES = 3, 3  # a round's processor time beside the flood, by that before it: caches shared with a busy machine made up to 2.1 of it


def make_room():
    """Let this process and those it starts open so many files; whether that may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = IDLE + 2 * DRIPPING + SPARE
    if hard != resource.RLIM_INFINITY and hard < wanted:
        return False
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return True


def spent(process, thread=""):
    """Seconds of processor time of a process, or of its thread of this name; /proc counts nanoseconds."""
    found = 0
    for task in pathlib.Path(f"/proc/{process.pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            if thread in ("", (task / "comm").read_text().strip()):
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
    def rate(self, server, workers):
        """Rounds a second, over at least so many rounds and so long; what a round costs the server's thread of training and the workers, in seconds."""

        def now():
            return spent(server, "service"), sum(map(spent, workers))

        first, before, begin = server.cluster()["round"], now(), time.monotonic()
        enough = lambda cluster: cluster["round"] >= first + ROUNDS and time.monotonic() >= begin + RATED_SECONDS  # noqa: E731
        last = server.wait_cluster(f"{ROUNDS} more rounds", enough)["round"]
        after, seconds = now(), time.monotonic() - begin
        return (last - first) / seconds, [(end - start) / (last - first) for start, end in zip(before, after)]

    def assert_costs(self, alone, server, workers):
        """A round costs what it did, and not some times that. The best of some tries, for what else this machine does falls on them, too."""
        tried = []
        while len(tried) < TRIES and not any(max(times) < MOST_TIMES for times in tried):
            rate, costs = self.rate(server, workers)
            tried.append([now / then for now, then in zip(costs, alone[1])])
            print(f"{rate:.0f} rounds a second beside the flood, {alone[0]:.0f} before it: ratio {rate / alone[0]:.2f}; processor time of a round: "
                  f"service thread {1e6 * costs[0]:.0f} us ({tried[-1][0]:.2f} of before), workers {1e6 * costs[1]:.0f} us ({tried[-1][1]:.2f})", file=sys.stderr)  # fmt: skip
        self.assertLess(min(map(max, tried)), MOST_TIMES, f"what a round costs (service thread, workers) beside the flood, by before: {tried}")

    @unittest.skipUnless(make_room(), f"no {IDLE + 2 * DRIPPING + SPARE} files may be open at a time (ulimit -Hn)")
    def test_5000_silent_connections_and_slow_loris_hold_up_nobody(self):
        server = self.server("--epochs", "1000000", "--min-workers", "2", "--api.read_timeout", "2s", "--api.idle_timeout", "600s")
        workers = [self.worker(server, name) for name in ("w0", "w1")]
        server.wait_round(100)
        alone = self.rate(server, workers)
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
            self.assert_costs(alone, server, workers)
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
