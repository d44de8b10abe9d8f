"""Workers that come, go, hang and come back while a real job goes on; peers that misbehave. membership_test.py BIN_DIR"""

import pathlib
import signal
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import DONE, USAGE, ClusterTest, Process, free_port, main, wait_for
from harness.wire import GOODBYE, Client, Link, connect, garbage, header, hello, is_closed, read_error, read_frame

WIDE = "mlp:64-1024-1024-10"  # 4.5 MB: many chunks a round
HUGE = "mlp:64-2048-2048-10"  # 17 MB: more than the buffers of a connection hold


class Deserter(Client):
    """Leaves without a word as soon as it has a round."""

    def contribute(self, head, gradient, bad_rounds):
        self.is_over = True


class MembershipTest(ClusterTest):
    def cluster_of(self, *names, arguments=(), model="mlp:64-16-10"):
        """A server in training with these workers."""
        server = self.server("--min-workers", len(names), *arguments)
        workers = [self.worker(server, name, model=model) for name in names]
        server.wait_round(3)
        return server, workers

    def link_to(self, server):
        link = Link(server.data)
        self.addCleanup(link.close)
        return link

    def stop_in_order(self, server, *workers):
        """The job ends well: asked to stop, everybody exits with 0."""
        self.assertEqual(server.post("/v1/job:stop")[0], 202)
        self.assert_exit(DONE, server, *workers)

    def assert_same_fingerprint(self, *names):
        prints = {name: self.summary(name)["fingerprint"] for name in names}
        self.assertEqual(len(set(prints.values())), 1, prints)


class Slow(MembershipTest):
    """Only silence ends a lease (steps: client_test.py)."""

    def assert_nobody_was_lost(self, server):
        self.assertEqual([], server.events("member.lost"))
        self.assertEqual(1, len(server.events("member.joined")))

    def test_an_upload_longer_than_the_lease_is_no_failure(self):
        server = self.server("--min-workers", 1, "--rounds", 1, "--lease", "2s", "--exit-when-finished")
        link = self.link_to(server)
        link.up.slow(80_000)
        worker = self.worker(link.endpoint, "slow", model="mlp:64-1024-10")  # 307 kB: 4 s
        self.assert_exit(DONE, worker, server)
        self.assertGreater(link.up.passed, 600_000)
        self.assert_nobody_was_lost(server)

    def test_an_upload_to_another_server_longer_than_the_lease_is_no_failure(self):
        server = self.server("--servers", 2, "--min-workers", 1, "--rounds", 1, "--lease", "2s", "--chunk-bytes", 65536, "--exit-when-finished")
        place = f"127.0.0.1:{free_port()}"
        link = Link(place)
        self.addCleanup(link.close)
        link.up.slow(40_000)
        shard = self._start(Process, "centroid-server", "b", ["--join", server.data, "--name", "b", "--listen", place, "--advertise", link.endpoint, "--run-dir", self.folder / "b"], None)
        worker = self.worker(server, "slow", model="mlp:64-1024-10")
        self.assert_exit(DONE, worker, server, shard)
        self.assertGreater(link.up.passed, 120_000)
        self.assert_nobody_was_lost(server)


class Loss(MembershipTest):
    def test_worker_killed_while_its_round_waits_for_it(self):
        server, workers = self.cluster_of("w0", "w1", "w2")
        workers[1].send(signal.SIGSTOP)
        round_number = server.wait_missing("w1")["round"]
        workers[1].kill()
        server.wait_round(round_number + 3)
        gone = server.wait_worker("w1", "dead")
        self.assertIn("w1", gone["reason"] + gone["name"])
        self.assertEqual((gone["rank"], server.cluster()["world"]), (-1, 2))
        self.assertEqual(server.cluster()["lost_contributions"], 1)
        self.assertEqual(server.metric("centroid_server_contributions_lost_total"), 1)
        self.assertEqual(server.metric("centroid_server_members_ended_total", cause="dead"), 1)
        self.stop_in_order(server, workers[0], workers[2])
        self.assert_same_fingerprint("w0", "w2")

    def test_goal_is_reached_after_a_loss(self):
        server = self.server("--min-workers", 2, "--rounds", 2000, "--exit-when-finished")
        workers = [self.worker(server, name) for name in ("w0", "w1")]
        server.wait_round(3)
        workers[0].kill()
        self.assert_exit(DONE, server, workers[1])
        self.assertEqual(server.events("job.ended")[0]["round"], 2000)

    def test_worker_killed_in_the_middle_of_its_contribution(self):
        # A window for the whole model: the others contribute all of it while w1 hangs.
        server = self.server("--min-workers", 3, "--credit-bytes", 16 << 20)
        link = self.link_to(server)
        others = [self.worker(server, name, model=WIDE) for name in ("w0", "w2")]
        broken = self.worker(link.endpoint, "w1", model=WIDE)
        server.wait_round(2)
        link.up.hold(2_000_000)
        wait_for(link.up.is_shut, "the link to be shut")
        server.wait_missing("w1")
        before = server.cluster()
        broken.kill()
        link.cut()
        server.wait_round(before["round"] + 2)
        after = server.cluster()
        self.assertEqual(after["aborted_attempts"], before["aborted_attempts"] + 1)
        self.assertEqual(server.metric("centroid_server_rounds_total", outcome="aborted"), after["aborted_attempts"])
        server.wait_event("round.attempt_aborted", why="in the middle of its contribution")
        self.assertEqual([len(server.workers(name)) for name in ("w0", "w2")], [1, 1], "the others were never thrown out")
        self.stop_in_order(server, *others)
        self.assert_same_fingerprint("w0", "w2")

    def test_worker_lost_while_results_are_sent_to_it_does_not_hold_up_the_next_round(self):
        server = self.server("--min-workers", 3, "--lease", 4000, "--credit-bytes", 64 << 20, "--apply", "worker")  # in three leases the others are to be done
        link = self.link_to(server)
        others = [self.worker(server, name, model=HUGE) for name in ("w0", "w1")]
        slow = self.worker(link.endpoint, "w2", model=HUGE)
        server.wait_round(2)
        link.down.hold(100_000)
        wait_for(link.down.is_shut, "the link to be shut")
        server.wait_missing("w2")  # the others took their results and have contributed to the next round
        number = server.cluster()["round"]
        slow.send(signal.SIGSTOP)
        server.wait_worker("w2", "dead")
        server.wait_round(number + 3)
        self.stop_in_order(server, *others)

    def test_every_worker_lost_and_others_come(self):
        server, workers = self.cluster_of("w0", "w1")
        for worker in workers:
            worker.kill()
        state = server.wait_cluster("waiting", lambda cluster: cluster["state"] == "waiting")
        self.assertIn("0 of 1 workers", state["state_reason"])
        late = self.worker(server, "w9")
        server.wait_round(state["round"] + 3)
        self.stop_in_order(server, late)

    def kept(self, *arguments, **places):
        """A server that goes on with two workers or more, though it would begin with one."""
        return self.server("--min-workers", 1, "--keep-min-workers", 2, *arguments, **places)

    def wait_short(self, server):
        state = server.wait_cluster("a job that waits", lambda cluster: cluster["state"] == "waiting" and cluster["state_reason"].startswith("1 of 2"))
        self.assertIn("1 of 2 workers are here (keep_min_workers)", state["state_reason"])
        return state

    def test_below_keep_min_workers_the_job_waits(self):
        for way in ([], ["--exchange", "ring"], ["--policy", "asp"]):
            with self.subTest(way=way):
                number = len(way) and way[1] or "star"
                server = self.kept(*way, name=f"server-{number}", run=f"run-{number}")
                exchange = way if way[:1] == ["--exchange"] else []
                first = self.worker(server, f"w0-{number}", *exchange)
                self.wait_short(server)
                self.assertEqual(server.events("job.blocked"), [], "the others had no time to come")
                second = self.worker(server, f"w1-{number}", *exchange)
                server.wait_round(3)
                second.kill()
                state = self.wait_short(server)
                server.wait_event("job.blocked", workers=1, keep_min_workers=2)
                wait = wait_for(lambda: [one for one in server.get("/v1/waits")["waits"] if one["waiter"] == "job"], "a wait of the job")[0]
                self.assertEqual((wait["waits_for"], wait["what"]), ("workers", state["state_reason"]))
                if "asp" not in way:
                    members = [one["contributors"] for one in server.get("/v1/rounds")["rounds"] if one["outcome"] == "committed"]
                    self.assertEqual({len(names) for names in members}, {2})
                third = self.worker(server, f"w2-{number}", *exchange)
                server.wait_round(server.cluster()["round"] + 3)
                third.kill()
                self.wait_short(server)
                self.assertEqual(server.call("PATCH", "/v1/config", {"keep_min_workers": 0})[0], 200)
                server.wait_round(server.cluster()["round"] + 3)
                self.stop_in_order(server, first)

    def test_cut_connection_is_mended(self):
        server = self.server("--min-workers", 2)
        link = self.link_to(server)
        workers = [self.worker(server, "w0"), self.worker(link.endpoint, "w1")]
        server.wait_round(3)
        link.cut()
        server.wait_worker("w1", "active", index=1)
        workers[1].wait_event("server.connection_failed", why="closed")
        server.wait_more_rounds()
        self.stop_in_order(server, *workers)
        self.assert_same_fingerprint("w0", "w1")


    def test_altered_byte_ends_the_connection_and_never_gets_into_the_model(self):
        for direction in ("up", "down"):
            with self.subTest(direction):
                names = [f"w0-{direction}", f"w1-{direction}"]
                server = self.server("--min-workers", 2, "--payload-checksum", "always", run=f"run-{direction}", name=f"server-{direction}")
                link = self.link_to(server)
                workers = [self.worker(server, names[0], model=WIDE), self.worker(link.endpoint, names[1], model=WIDE)]
                server.wait_round(3)
                gate = getattr(link, direction)
                gate.alter()
                wait_for(gate.has_altered, "an altered byte")
                server.wait_worker(names[1], "active", index=1)
                if direction == "down":
                    workers[1].wait_event("server.connection_failed", why="data_loss")
                else:
                    server.wait_event("member.lost", why="data_loss")
                server.wait_more_rounds()
                self.stop_in_order(server, *workers)
                self.assert_same_fingerprint(*names)


class Silence(MembershipTest):
    def wait_back(self, server, name):
        """The admission with which it is a member again; there may be more than two, for on a busy machine so short a lease ends by itself, too."""

        def find():
            admissions = server.workers(name)
            return admissions[-1] if len(admissions) > 1 and admissions[-1]["state"] == "active" else None

        return wait_for(find, f"worker {name} to be back")

    def test_stopped_worker_is_fenced_and_rejoins(self):
        server, workers = self.cluster_of("w0", "w1", arguments=["--lease", 1500])
        workers[1].send(signal.SIGSTOP)
        dead = server.wait_worker("w1", "dead")
        self.assertIn("longer than its lease", dead["reason"])
        server.wait_more_rounds()
        workers[1].send(signal.SIGCONT)
        again = self.wait_back(server, "w1")
        self.assertGreater(again["member"], dead["member"])
        workers[1].wait_event("server.connection_failed", why="fenced")
        server.wait_cluster("two workers", lambda cluster: cluster["world"] == 2)
        server.wait_more_rounds()
        self.stop_in_order(server, *workers)
        self.assert_same_fingerprint("w0", "w1")

    def test_stopped_worker_in_the_middle_of_large_messages_is_fenced_and_rejoins(self):
        server, workers = self.cluster_of("w0", "w1", "w2", arguments=["--lease", 1500], model=WIDE)
        workers[1].send(signal.SIGSTOP)
        server.wait_worker("w1", "dead")
        server.wait_more_rounds()
        workers[1].send(signal.SIGCONT)
        self.wait_back(server, "w1")
        server.wait_more_rounds()
        self.stop_in_order(server, *workers)
        self.assert_same_fingerprint("w0", "w1", "w2")

    def test_stopped_server_goes_on_with_its_workers(self):
        server, workers = self.cluster_of("w0", "w1", arguments=["--lease", 800])
        server.send(signal.SIGSTOP)
        for worker in workers:  # three leases of silence: they try again, in vain until the server goes on
            worker.wait_event("server.connection_failed", why="silent")
        server.send(signal.SIGCONT)
        for worker in workers:
            self.wait_back(server, worker.name)
        server.wait_more_rounds()
        self.stop_in_order(server, *workers)


class Coming(MembershipTest):
    def test_late_joiner_takes_part_with_the_same_state(self):
        for optimizer, apply in (("sgd", "server"), ("adam", "server"), ("adam", "worker")):
            with self.subTest(optimizer=optimizer, apply=apply):
                names = [f"{optimizer}-{apply}-{i}" for i in range(2)]
                run = {"run": f"run-{optimizer}-{apply}", "name": f"server-{optimizer}-{apply}"}
                server = self.server("--optimizer", optimizer, "--lr", 0.001, "--apply", apply, **run)
                first = self.worker(server, names[0])
                server.wait_round(3)
                late = self.worker(server, names[1])
                server.wait_cluster("two workers", lambda cluster: cluster["world"] == 2)
                server.wait_event("member.state_sent", worker=names[1])
                generation = server.cluster()["generation"]
                server.wait_more_rounds()
                self.assertEqual(server.cluster()["generation"], generation)
                self.assertGreater(server.wait_worker(names[1], "active")["samples"], 0)
                self.stop_in_order(server, first, late)
                self.assert_same_fingerprint(*names)

    def test_newest_worker_of_a_name_wins(self):
        server, workers = self.cluster_of("w0", "w1")
        (self.folder / "w1.log").rename(self.folder / "w1.old.log")
        workers[1].log = self.folder / "w1.old.log"
        newer = self.worker(server, "w1")
        self.assert_status(workers[1], USAGE, "superseded", "a newer worker named 'w1' joined from 127.0.0.1")
        server.wait_worker("w1", "fenced", index=0)
        server.wait_worker("w1", "active", index=1)
        server.wait_more_rounds()
        self.stop_in_order(server, workers[0], newer)

    def test_first_worker_lost_before_it_sent_the_initial_parameters(self):
        server = self.server("--min-workers", 2)
        link = self.link_to(server)
        first = self.worker(link.endpoint, "w0", model=WIDE)
        server.wait_worker("w0", "joining")
        link.up.hold(100_000)
        second = self.worker(server, "w1", model=WIDE)
        server.wait_cluster("initialising", lambda cluster: cluster["state"] == "initializing")
        wait_for(link.up.is_shut, "the link to be shut")
        first.kill()
        link.cut()
        third = self.worker(server, "w2", model=WIDE)
        server.wait_round(3)
        self.stop_in_order(server, second, third)
        self.assert_same_fingerprint("w1", "w2")


    def test_model_that_no_round_has_trained_goes_with_its_worker(self):
        server = self.server("--min-workers", 1)
        Deserter("w0", [("x", (3,))], train_samples=99).train(server.data, None)
        server.wait_worker("w0", "dead")
        worker = self.worker(server, "w1")
        server.wait_round(3)
        self.assertEqual(1, len(server.events("store.forgotten")))
        self.stop_in_order(server, worker)


class Leaving(MembershipTest):
    def test_sigterm_of_a_worker(self):
        server, workers = self.cluster_of("w0", "w1")
        workers[0].send(signal.SIGTERM)
        self.assert_status(workers[0], DONE, "SIGTERM")
        self.assertEqual(server.wait_worker("w0", "left")["reason"], "SIGTERM")
        server.wait_more_rounds()
        self.assertEqual(server.metric("centroid_server_members_ended_total", cause="left"), 1)
        self.assertEqual(server.cluster()["aborted_attempts"], 0)
        self.assertEqual(self.summary("w0")["lost_rounds"], 0)
        self.stop_in_order(server, workers[1])

    def test_drained_worker_leaves_after_its_round(self):
        server, workers = self.cluster_of("w0", "w1")
        member = server.workers("w1")[0]["member"]
        self.assertEqual(server.post(f"/v1/workers/{member}:drain")[0], 202)
        self.assert_status(workers[1], DONE, "drained by an operator")
        server.wait_worker("w1", "left")
        self.assertEqual(server.post(f"/v1/workers/{member}:drain")[0], 409)
        self.assertEqual(server.post("/v1/workers/4711:drain")[0], 404)
        server.wait_more_rounds()
        self.assertEqual(server.cluster()["lost_contributions"], 0)
        self.stop_in_order(server, workers[0])

    def test_last_worker_drained(self):
        server, workers = self.cluster_of("w0")
        server.post("/v1/workers/1:drain")
        self.assert_status(workers[0], DONE, "drained by an operator")
        server.wait_cluster("waiting", lambda cluster: cluster["state"] == "waiting")
        server.post("/v1/job:stop")
        self.assert_exit(DONE, server)

    def test_worker_drained_while_paused(self):
        server, workers = self.cluster_of("w0", "w1")
        server.post("/v1/job:pause")
        server.wait_cluster("paused", lambda cluster: cluster["state"] == "paused")
        server.post(f"/v1/workers/{server.workers('w0')[0]['member']}:drain")
        self.assert_status(workers[0], DONE, "drained by an operator")
        server.post("/v1/job:resume")
        server.wait_more_rounds()
        self.stop_in_order(server, workers[1])

    def test_worker_drained_before_the_first_round(self):
        server = self.server("--min-workers", 3)
        worker = self.worker(server, "w0")
        server.wait_worker("w0", "joining")
        server.post("/v1/workers/1:drain")
        self.assert_status(worker, DONE, "drained by an operator")


class Strangers(MembershipTest):
    """What any program on the network may send to the data port while others train."""

    ROUNDS_OF_ATTACK = 30
    MEMORY_BYTES = 64 << 20

    def test_bad_bytes_do_no_harm(self):
        server, workers = self.cluster_of("w0", "w1")
        half = hello()[:70]
        crossed = bytearray(hello())
        crossed[60] ^= 1
        payload_bytes, head_bytes = 1 << 40, (1 << 32) - 1
        attacks = {
            "garbage": garbage(1),
            "text": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" + bytes(64),
            "altered header": hello()[:43] + b"\xff" + hello()[44:],
            "altered head": bytes(crossed),
            "long head": header(1, 1, head_bytes=head_bytes),
            "long payload": header(1, 1, payload_bytes=payload_bytes),
            "no Hello": header(22, 0),
            "short Hello": header(1, 1, b"\1\0\1\0") + b"\1\0\1\0",
            "name longer than the head": header(1, 1, struct.pack("<HHIQQI", 1, 1, 65536, 65536, 0, 0xFFFFFFF0))
            + struct.pack("<HHIQQI", 1, 1, 65536, 65536, 0, 0xFFFFFFF0),
        }
        memory = server.memory_bytes()
        refused = 0
        for number in range(self.ROUNDS_OF_ATTACK):
            for data in attacks.values():
                with connect(server.data) as peer:
                    peer.sendall(data)
                    self.assertTrue(is_closed(peer))
                refused += 1
            with connect(server.data) as peer:  # goes in the middle of its Hello
                peer.sendall(half[: number + 1])
            refused += 1
        name = "centroid_server_handshakes_refused_total"
        wait_for(lambda: server.metric(name) >= refused, f"{refused} refusals counted")
        self.assertEqual(server.metric(name), refused)
        server.wait_more_rounds()
        self.assertEqual([worker["state"] for worker in server.workers()], ["active", "active"])
        self.assertEqual(server.cluster()["aborted_attempts"], 0)
        self.assertLess(server.memory_bytes() - memory, self.MEMORY_BYTES)
        self.stop_in_order(server, *workers)

    def test_silent_connections_end_and_keep_nobody_out(self):
        server, workers = self.cluster_of("w0", arguments=["--max-workers", 4])
        peers = []
        for _ in range(40):
            peer = connect(server.data)
            peers.append(peer.__enter__())
            self.addCleanup(peer.__exit__, None, None, None)
        late = self.worker(server, "w1")
        server.wait_worker("w1", "active")
        for peer in peers:
            self.assertTrue(is_closed(peer))
        self.stop_in_order(server, *workers, late)

    def greeted(self, server):
        peer = connect(server.data)
        opened = peer.__enter__()
        self.addCleanup(peer.__exit__, None, None, None)
        opened.sendall(hello())
        self.assertEqual(read_frame(opened)[:2], (2, 2))
        return opened

    def test_greeted_peers_that_break_the_rules_are_told_why(self):
        server, workers = self.cluster_of("w0", "w1")
        head = bytes(32)
        cases = {
            "first message must be Join": header(22, 0, head) + head,
            "Join": header(16, 1, head, identity=1) + head,
            "malformed Credit": header(3, 0, head) + head,
            "kind": header(9, 0, head) + head,
        }
        for text, data in cases.items():
            peer = self.greeted(server)
            peer.sendall(data)
            kind, _, reply = read_frame(peer)
            if kind != GOODBYE:  # the answer to the Join
                kind, _, reply = read_frame(peer)
            self.assertEqual(kind, GOODBYE)
            self.assertIn(text, read_error(reply)[1])
        peer = self.greeted(server)
        peer.sendall(header(22, 0, payload_bytes=1 << 40))
        self.assertTrue(is_closed(peer))
        server.wait_more_rounds()
        self.stop_in_order(server, *workers)


if __name__ == "__main__":
    main(at_a_time=3)
