"""Programs of different releases: another wire version is refused by name, and a job goes on when its programs are replaced. upgrade_test.py BIN_DIR

The environment variable CENTROID_OLD_PROGRAMS names a folder with centroid-server and centroid-worker of an older release. Without it the jobs
with both releases are skipped: process.old_files resumes files of commit 9a33d03 and checks that files of today have the same layout.
"""

import json
import os
import pathlib
import signal
import socket
import struct
import sys
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import DONE, USAGE, main
from harness.fixed_jobs import TABLES, FixedJobs, state_of
from harness.wire import ERROR, FAILED_PRECONDITION, HELLO_REPLY, RESPONSE, connect, header, hello, read_error, read_frame, text
import centroid

OLD = os.environ.get("CENTROID_OLD_PROGRAMS")
VERSION_MISMATCH = 3
WHY = "no common wire version: this server (release 9.0.0) speaks 2..3, a peer speaks 1..1: run the same release on both sides"
JOURNAL = ("--journal.mode", "on", "--journal.sync", "0")
FOREVER = 1_000_000  # rounds


def refusal(head):
    """Kind of an Error's refusal, and the oldest and newest version of its sender and of its receiver."""
    _, message = read_error(head)
    return struct.unpack_from("<BHHHH", head, 5 + len(message.encode()))


class LaterServer:
    """Refuses every peer, as a server does that speaks wire versions 2 and 3 only."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.data = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.calls = 0
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        head = struct.pack("<B", FAILED_PRECONDITION) + text(WHY) + struct.pack("<BHHHH", VERSION_MISMATCH, 2, 3, 1, 1)
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:  # `close`
                return
            with peer:
                self.calls += 1
                read_frame(peer)
                peer.sendall(header(HELLO_REPLY, RESPONSE | ERROR, head) + head)

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()


class Versions(FixedJobs):
    def test_a_leader_and_a_shard_server_refuse_a_later_peer_by_a_typed_message(self):
        leader = self.serve("--servers", 2)
        shard = self.shard(leader, "x")
        shard.wait_event("leader.joined")  # before, it closes every connection
        for server, endpoint in ((leader, leader.data), (shard, shard.wait_event("shard.started")["data"])):
            with self.subTest(server.name), connect(endpoint) as peer:
                peer.sendall(hello(versions=(2, 3)))
                kind, flags, head = read_frame(peer)
                code, message = read_error(head)
                self.assertEqual((kind, flags, code), (HELLO_REPLY, RESPONSE | ERROR, FAILED_PRECONDITION))
                self.assertIn("run the same release on both sides", message)
                self.assertEqual(refusal(head), (VERSION_MISMATCH, 1, 1, 2, 3))
                server.wait_event("connection.refused", why="speaks 2..3")

    def test_programs_and_clients_of_a_later_server_end_at_once(self):
        later = LaterServer()
        self.addCleanup(later.close)
        self.assert_status(self.worker(later, "w0"), USAGE, WHY)
        self.assert_status(self.shard(later, "x"), USAGE, WHY)
        calls = {
            "pull": lambda: centroid.pull(later.data, timeout=30),
            "rows": lambda: centroid.Rows(later.data, "emb", timeout=30),
            "trainer": lambda: next(self.join(later, "a")),
        }
        for name, call in calls.items():
            with self.subTest(name):
                self.assert_fails("failed_precondition", WHY, call)
        self.assertEqual(later.calls, 2 + len(calls), "a program called a second time")


@unittest.skipUnless(OLD, "CENTROID_OLD_PROGRAMS names no folder with programs of an older release")
class Upgrade(FixedJobs):
    """Each job runs in three parts: with old, new and old programs, then with new, old and new ones."""

    def setUp(self):
        super().setUp()
        self.new, self.old = pathlib.Path(self.programs), pathlib.Path(OLD).resolve()

    def both_ways(self):
        for run, parts in (("upgraded", (self.old, self.new, self.old)), ("returned", (self.new, self.old, self.new))):
            with self.subTest(run):
                yield run, parts
                self.end_all()

    def start(self, programs, run, shards, *flags):
        """A leader, its shard servers and two workers of these programs."""
        self.programs = programs
        several = ["--servers", 1 + len(shards)] if shards else []
        leader = self.serve("--optimizer", "momentum", "--min-workers", 2, *several, *flags, run=run)
        return leader, [self.shard(leader, name, run) for name in shards], [self.worker(leader, name) for name in ("w0", "w1")]

    def stop(self, run, leader, shards, workers):
        """A signal, at which the server writes a checkpoint. Returns the last round."""
        leader.send(signal.SIGTERM)
        self.assert_exit(DONE, leader, *shards, *workers)
        return json.loads((self.checkpoints(run)[-1] / "manifest.json").read_text())["round"]

    def kill(self, run, leader, shards, workers):
        """kill -9 to all of them in a round that waits for a worker: the journal has the rounds before."""
        workers[1].send(signal.SIGSTOP)
        rounds = leader.wait_missing("w1")["round"] - 1
        for process in (leader, *shards, *workers):
            process.kill()
        return rounds

    def check(self, end, *flags, shards=(), resumed="checkpoint.loaded"):
        """The third part ends with the bits of an undisturbed job."""
        for run, parts in self.both_ways():
            resume, rounds = (), 0
            for programs in parts[:2]:
                job = self.start(programs, run, shards, *flags, *resume, "--rounds", FOREVER)
                job[0].wait_round(rounds + 5)
                rounds, resume = end(run, *job), ("--resume",)
            states = []
            for programs, folder, more in ((parts[2], run, resume), (self.new, f"{run}-whole", ())):
                leader, servers, workers = self.start(programs, folder, shards, *flags, *more, "--rounds", rounds + 10, "--exit-when-finished")
                self.assert_exit(DONE, leader, *servers, *workers)
                self.assertEqual([one["round"] for one in leader.events(resumed)], [rounds] if more else [])
                states.append(state_of(self.checkpoints(folder)[-1]))
            self.assertEqual(states[0], states[1])

    def test_a_job_goes_on_from_a_checkpoint(self):
        self.check(self.stop)

    def test_a_job_of_three_servers_goes_on_from_a_checkpoint(self):
        self.check(self.stop, shards="xy")

    def test_a_job_goes_on_from_a_journal(self):
        self.check(self.kill, *JOURNAL, resumed="journal.replayed")

    def test_a_job_of_three_servers_goes_on_from_their_journals(self):
        self.check(self.kill, *JOURNAL, shards="xy", resumed="journal.replayed")

    def test_tables_go_on_from_a_checkpoint_and_a_journal(self):
        for run, parts in self.both_ways():
            resume, pushed = (), 0
            for programs in parts:
                self.programs = programs
                leader = self.serve("--tables", TABLES, *JOURNAL, *resume, run=run)
                self.push(leader.data, pushed + 1, pushed + 15)
                self.assertEqual(leader.post("/v1/checkpoints")[0], 201)
                pushed, resume = pushed + 30, ("--resume",)
                self.push(leader.data, pushed - 14, pushed)
                rows = self.rows_of(leader.data)
                leader.kill()
            whole = self.serve("--tables", TABLES, run=f"{run}-whole")
            self.push(whole.data, 1, pushed)
            self.assertEqual(rows, self.rows_of(whole.data))

    def test_workers_wait_for_the_server_and_are_replaced_one_by_one(self):
        """As docs/how-to/upgrade.md has it."""
        for run, (first, second, _) in self.both_ways():
            leader, _, workers = self.start(first, run, (), "--leave-workers", "--rounds", FOREVER)
            leader.wait_round(5)
            leader.send(signal.SIGTERM)
            self.assert_exit(DONE, leader)
            self.programs = second
            flags = ["--optimizer", "momentum", "--min-workers", 2, "--resume", "--leave-workers", "--rounds", FOREVER]
            leader = self.serve(*flags, run=run, listen=leader.data)
            leader.wait_more_rounds(5)
            for worker in workers:
                worker.send(signal.SIGTERM)
                self.assert_exit(DONE, worker)
                self.worker(leader, worker.name)
                leader.wait_worker(worker.name, "active")
                leader.wait_more_rounds(5)
            self.assertEqual(leader.post("/v1/job:stop")[0], 202)
            self.assert_exit(DONE, leader, *self.processes[-2:])


if __name__ == "__main__":
    main()
