#!/usr/bin/env python3
"""What REST costs a training run, with the real programs on loopback.

Usage: rest_load.py BIN_DIR [--seconds S] [--idle N] [--drip N] [--workers W] [--max-connections N] [--bar MS] [--bar-flood RATIO]

Prints rounds a second alone, then with 5,000 connections that say nothing and 200 that send a byte now and then (slow
loris), which come back a second after the server dropped them; and the times of GET /v1/cluster and GET /metrics while the
workers train, each on a connection that stays, and what a call costs the server's thread. --max-connections is the server's; with less than --idle it drops. One server, W workers of mlp:64-256-256-10,
policy bsp. --bar: GET /v1/cluster, p99, milliseconds, alone and beside the flood. --bar-flood: rounds a second beside the flood, by the mean of those
before and after it. Exit status 1: a request failed, a connection of the flood was not open, or a bar was missed.
"""

import argparse
import pathlib
import selectors
import socket
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import cluster
from verdict import verdict


class Flood(threading.Thread):
    """Keeps `idle` silent and `drip` slow connections open to an address until `end` is set."""

    def __init__(self, address, idle, drip):
        super().__init__(daemon=True)
        host, _, port = address.rpartition(":")
        self.address = (host, int(port))
        self.wanted = ["idle"] * idle + ["drip"] * drip
        self.end = threading.Event()
        self.opened = self.dropped = self.most = 0

    def open(self, selector, kind):
        connection = socket.socket()
        connection.setblocking(False)
        connection.connect_ex(self.address)
        self.opened += 1
        selector.register(connection, selectors.EVENT_READ, [kind, time.monotonic(), 0])
        return connection

    def run(self):
        selector = selectors.DefaultSelector()
        text = b"GET /v1/cluster HTTP/1.1\r\nHost: localhost\r\nX-Fill: " + b"x" * 1000
        waiting, live, last = [(0, kind) for kind in self.wanted], {}, time.monotonic()
        while not self.end.is_set():
            ready = [one for one in waiting[:100] if one[0] <= time.monotonic()]
            del waiting[: len(ready)]
            for _, kind in ready:
                connection = self.open(selector, kind)
                live[connection] = selector.get_key(connection).data
            self.most = max(self.most, len(live))
            for key, _ in selector.select(0.05):
                try:
                    gone = key.fileobj.recv(4096) == b""
                except BlockingIOError:
                    gone = False
                except OSError:
                    gone = True
                if gone:
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
                    kind = live.pop(key.fileobj)[0]
                    self.dropped += 1
                    waiting.append((time.monotonic() + 1, kind))
            if time.monotonic() - last < 0.5:
                continue
            last = time.monotonic()
            for connection, state in live.items():
                if state[0] == "drip":
                    try:
                        connection.send(text[state[2] : state[2] + 1])
                        state[2] += 1
                    except OSError:
                        pass
        for connection in live:
            connection.close()
        selector.close()


def read_answer(stream):
    status = stream.readline()
    length = 0
    while True:
        line = stream.readline()
        if line in (b"\r\n", b""):
            break
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return status, stream.read(length)


def times_of(address, path, seconds, pause):
    """Seconds of each GET on one connection, sorted."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = connection.makefile("rb")
        request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        taken, end = [], time.monotonic() + seconds
        while time.monotonic() < end:
            begun = time.perf_counter()
            connection.sendall(request)
            status, body = read_answer(stream)
            taken.append(time.perf_counter() - begun)
            if b" 200 " not in status or not body:
                sys.exit(f"GET {path}: {status!r}")
            time.sleep(pause)  # lint-ok: the rate of the calls
    return sorted(taken), len(body)


class Thread:
    """Where the time of the thread goes that answers REST: running, and waiting in the machine's queue for a processor."""

    def __init__(self, pid):
        tasks = [task for task in pathlib.Path(f"/proc/{pid}/task").iterdir() if (task / "comm").read_text().strip() == "control"]
        self.file = tasks[0] / "schedstat"

    def read(self):
        running, queued, _ = map(int, self.file.read_text().split())
        return running / 1e9, queued / 1e9


def rounds_a_second(server, seconds):
    first, begun = server.cluster()["round"], time.monotonic()
    time.sleep(seconds)  # lint-ok: the span of the measurement
    return (server.cluster()["round"] - first) / (time.monotonic() - begun)


class Load(cluster.ClusterTest):
    missed = 0

    def times(self, what, server, path, seconds):
        """Print and return the p99 of GETs, in milliseconds, and how many bytes an answer has and how many calls there were."""
        taken, size = times_of(server.api, path, seconds, 0.005)
        middle, high = (1000 * taken[len(taken) * part // 100] for part in (50, 99))
        print(f"{what}: {len(taken)} calls, {size} bytes, p50 {middle:.2f} ms, p99 {high:.2f} ms")
        return high, len(taken)

    def runTest(self):  # noqa: N802
        options = self.options
        limit = ["--api.max-connections", str(options.max_connections)] if options.max_connections else []
        server = self.server("--epochs", "1000000", "--min-workers", str(options.workers), *limit)
        for number in range(options.workers):
            self.worker(server, f"w{number}", model="mlp:64-256-256-10", batch=64)
        server.wait_round(50)
        before_flood, highs = rounds_a_second(server, options.seconds), {}
        print(f"alone: {before_flood:.0f} rounds/s")
        for path in ("/v1/cluster", "/metrics"):
            thread = Thread(server.pid)
            before = thread.read()
            highs[path], count = self.times(f"GET {path}", server, path, options.seconds)
            running, queued = (1e6 * (now - then) / count for now, then in zip(thread.read(), before))
            print(f"  a call costs the server's control thread {running:.0f} us of processor time; it waits {queued:.0f} us for a processor")
        flood = Flood(server.api, options.idle, options.drip)
        flood.start()
        time.sleep(4)  # lint-ok: connections are being opened
        beside = rounds_a_second(server, options.seconds)
        print(f"with {options.idle} idle and {options.drip} slow: {beside:.0f} rounds/s")
        print(f"  opened {flood.opened}, dropped by the server {flood.dropped}, at most {flood.most} at once")
        high, _ = self.times("  GET /v1/cluster meanwhile", server, "/v1/cluster", options.seconds)
        flood.end.set()
        flood.join()
        if not options.max_connections:
            self.assertEqual(flood.most, options.idle + options.drip, "connections of the flood that were open at a time")
        after = rounds_a_second(server, options.seconds)
        print(f"after: {after:.0f} rounds/s")
        Load.missed += verdict(f"GET /v1/cluster while {options.workers} train, p99", highs["/v1/cluster"], options.bar, "ms")
        Load.missed += verdict("the same beside the flood", high, options.bar, "ms")
        Load.missed += verdict("rounds/s beside the flood, by those before and after it", 2 * beside / (before_flood + after), options.bar_flood, at_least=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--idle", type=int, default=5000)
    parser.add_argument("--drip", type=int, default=200)
    parser.add_argument("--max-connections", type=int, default=0, help="0: as the server has it")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--bar", type=float, default=0, help="milliseconds; 0: none")
    parser.add_argument("--bar-flood", type=float, default=0, help="ratio; 0: none")
    Load.options = parser.parse_args()
    Load.programs = Load.options.bin_dir.resolve()
    result = cluster.unittest.TextTestRunner(verbosity=0).run(Load())
    sys.exit(0 if result.wasSuccessful() and not Load.missed else 1)


if __name__ == "__main__":
    main()
