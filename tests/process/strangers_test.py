"""What strangers may do to the port for workers: take places, memory and lines of the log. strangers_test.py BIN_DIR

tests/simulation/strangers_test.cc plays the same in virtual time; here are real sockets, source addresses and the log.
"""

import contextlib
import pathlib
import resource
import socket
import struct
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import ClusterTest, main, wait_for
from harness.wire import ERROR, GOODBYE, HEADER_BYTES, REQUEST, Client, connect, header, hello, is_closed, read_error, read_exactly, read_frame

SILENT, GUESSING, SPARE = 5000, 500, 500
TOKEN = "of-workers"
BUDGET = 64 << 20  # bytes of messages of peers that have not joined (docs/reference/wire.md)


def make_room():
    """Let this process and those it starts open so many files; whether that may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = SILENT + GUESSING + SPARE
    if hard != resource.RLIM_INFINITY and hard < wanted:
        return False
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return True


def call_from(endpoint, source):
    host, _, port = endpoint.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60, source_address=(source, 0))


def greeted(endpoint, **fields):
    """A connection behind its handshake."""
    peer = connect(endpoint)
    one = peer.__enter__()
    one.sendall(hello(token=TOKEN, **fields))
    if read_frame(one)[1] & ERROR:
        raise AssertionError("the greeting was refused")
    return one


def last_words(peer):
    """The text with which the server ends a session."""
    while True:
        kind, flags, head = read_frame(peer)
        if kind == GOODBYE or flags & ERROR:
            return read_error(head)[1]


class Strangers(ClusterTest):
    @unittest.skipUnless(make_room(), f"no {SILENT + GUESSING + SPARE} files may be open at a time (ulimit -Hn)")
    def test_5000_silent_and_500_guessing_connections_keep_no_worker_out(self):
        server = self.server("--token", TOKEN, "--min-workers", 2, "--rounds", 20)
        with contextlib.ExitStack() as stack:
            for i in range(SILENT + GUESSING):
                peer = stack.enter_context(contextlib.closing(call_from(server.data, f"127.0.0.{2 + i % 4}")))
                if i % 10 == 0:
                    with contextlib.suppress(ConnectionError):
                        peer.sendall(hello(token="wrong", name="guess"))
            workers = [self.worker(server, name, "--token", TOKEN) for name in ("w0", "w1")]
            server.wait_round(20)
        joined = [event["worker"] for event in server.events("member.joined")]
        self.assertEqual(sorted(joined), ["w0", "w1"], "each came in once")
        for worker in workers:
            self.assertEqual(worker.events("server.connection_failed"), [], "at its first try")
        self.assertGreater(server.metric("centroid_budget_refused_total", resource="strangers"), SILENT // 2)

    def test_lines_about_strangers_are_few_and_short(self):
        server = self.server("--token", TOKEN)

        def guess():
            with connect(server.data) as peer:
                peer.sendall(hello(token="wrong", name="\x1b" * 250))
                self.assertTrue(is_closed(peer))

        count = 500
        for _ in range(count):
            guess()

        def summary():
            guess()
            return [event for event in server.events("connection.refused") if "more, not logged" in event["why"]]

        wait_for(summary, "a line that says how many are missing")
        lines = server.events("connection.refused")
        self.assertLess(len(lines), count / 4)
        self.assertGreater(server.metric("centroid_budget_refused_total", resource="stranger_lines"), count / 2)
        self.assertLess(max(len(event["why"]) for event in lines), 600)
        self.assertLess(max(event["why"].count("\x1b") for event in lines), 65)

    def test_joins_that_do_not_come_share_one_budget(self):
        server = self.server("--token", TOKEN)
        most = 30 << 20
        with contextlib.ExitStack() as stack:
            peers = [stack.enter_context(contextlib.closing(greeted(server.data, name=f"w{i}"))) for i in range(10)]
            granted = BUDGET // most * most
            for i, peer in enumerate(peers):
                head = Client(f"w{i}", []).join_head()
                peer.sendall(header(Client.JOIN, REQUEST, head, payload_bytes=most, identity=1, payload_crc=1) + head)
                if i + 1 == BUDGET // most:  # connections are served in any order
                    wait_for(lambda: server.metric("centroid_budget_used", resource="stranger_bytes") >= granted, "the memory that is granted")
            for peer in peers[BUDGET // most :]:
                self.assertIn("no memory for a message of", last_words(peer))
            wait_for(lambda: granted <= server.metric("centroid_budget_used", resource="stranger_bytes") < granted + 4096, "the memory that was granted")
            server.wait_event("member.refused", why="no memory for a message of")
        wait_for(lambda: server.metric("centroid_budget_used", resource="stranger_bytes") == 0, "the memory given back")
        self.worker(server, "w0", "--token", TOKEN)
        server.wait_round(1)

    def test_a_join_that_drips_is_ended(self):
        server = self.server("--token", TOKEN)
        with contextlib.closing(greeted(server.data, name="dripping")) as peer:
            head = Client("dripping", []).join_head()
            peer.sendall(header(Client.JOIN, REQUEST, head, payload_bytes=1000, identity=1, payload_crc=1) + head)
            peer.settimeout(0.2)
            for _ in range(1000):
                peer.sendall(b"x")
                try:
                    data = peer.recv(HEADER_BYTES, socket.MSG_WAITALL)
                    break
                except TimeoutError:
                    continue
            peer.settimeout(60)
            kind, _, size = struct.unpack_from("<HII", data, 6)
            self.assertEqual(kind, GOODBYE)
            self.assertIn("its Join of 1000 bytes did not come within 10 s", read_error(read_exactly(peer, size))[1])
        server.wait_event("connection.refused", why="its Join of 1000 bytes did not come within 10 s")

    def test_a_first_message_that_is_none_is_in_the_log(self):
        server = self.server("--token", TOKEN)
        frames = {
            "malformed Join": header(Client.JOIN, REQUEST, b"\xff" * 8, payload_bytes=4, identity=1, payload_crc=1) + b"\xff" * 8,
            "the first message must be Join": header(Client.LEAVE, REQUEST, b"\0" * 4, identity=1) + b"\0" * 4,
            "the message has no manifest: its payload is empty": None,
        }
        for why, frame in frames.items():
            with self.subTest(why), contextlib.closing(greeted(server.data, name="odd")) as peer:
                if frame is None:
                    head = Client("odd", []).join_head()
                    frame = header(Client.JOIN, REQUEST, head, identity=1) + head
                peer.sendall(frame)
                self.assertIn(why, last_words(peer))
                server.wait_event("connection.refused", why=why)
        with contextlib.closing(greeted(server.data, name="mute")) as peer:
            self.assertIn("no Join came within 10 s", last_words(peer))
        server.wait_event("connection.refused", why="no Join came within 10 s")


if __name__ == "__main__":
    main(at_a_time=4)
