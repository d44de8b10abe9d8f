"""What guards a model on several servers: no number that is not finite is committed, no stranger has a part of it. servers_guards_test.py BIN_DIR"""

import concurrent.futures
import pathlib
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import DONE, USAGE, main, wait_for
from harness.servers import ServersTest
from harness.servers_peer import SIZES, Peer
from harness.wire import ERROR, REQUEST, connect, header, hello, read_error, read_frame, text


class Guards(ServersTest):
    def contribute(self, peer):
        for chunk, count in enumerate(SIZES):
            peer.push(chunk, [1.0] * count)
        peer.end()

    def test_sums_and_results_that_are_not_finite_are_committed_on_no_server(self):
        cases = {  # by settings: where it is found, and what is pushed there
            ("--apply", "server", "--optimizer", "sgd"): ("skip", 3e38),
            ("--apply", "server", "--optimizer", "sgd", "--policy", "ssp:2"): ("skip", 3e38),
            ("--apply", "server", "--optimizer", "adam", "--clip-norm", 1): ("skip", 3e38),
            ("--apply", "worker", "--optimizer", "momentum", "--clip-norm", 1): ("skip", 3e38),
            ("--apply", "server", "--optimizer", "adam"): ("halt", 3e38),
            ("--apply", "server", "--optimizer", "adam", "--lr", 0.1): ("halt", 1e22),
            ("--apply", "worker", "--optimizer", "momentum"): ("skip", 3e38),
            ("--apply", "worker", "--optimizer", "adam"): ("skip", 1e22),
            ("--apply", "worker", "--optimizer", "adam", "--clip-norm", 1e30): ("skip", 1e22),
            ("--apply", "worker", "--optimizer", "sgd", "--codec-down", "bf16"): ("halt", 3e38),
        }
        for number, (flags, (outcome, value)) in enumerate(cases.items()):
            for policy in ("halt", "skip"):
                with self.subTest(flags=flags, nonfinite=policy):
                    self.check_overflow(f"{number}-{policy}", [*flags, "--nonfinite", policy], outcome == "skip" == policy, value)

    def check_overflow(self, tag, flags, is_skipped, value):
        leader = self.launch_server("--servers", 3, "--min-workers", 1, "--lease", "60s", *flags, run=tag, name=f"leader-{tag}").wait_ready()
        shards = [self.shard(leader, f"{name}-{tag}") for name in ("b", "c")]
        giant = Peer(leader.data, "giant").join().until_round()
        self.assertEqual(sorted(giant.owners), [0, 1, 2])
        self.contribute(giant)
        giant.until_round()
        for chunk, count in enumerate(SIZES):
            giant.push(chunk, [value if giant.owners[chunk] == 1 else 1.0] * count)
        peers = [giant]
        if is_skipped:
            peers.append(Peer(leader.data, "newcomer").join())
            leader.wait_event("member.joined", worker="newcomer")
        giant.end()
        found = leader.wait_event("round.skipped" if is_skipped else "job.halted")
        said = found["why" if is_skipped else "error"]
        self.assertIn("is not finite in round 2, though every contribution is", said)
        self.assertIn("is of giant", said)
        if is_skipped:
            self.assertEqual(leader.cluster()["version"], 2)
            for peer in peers:  # the newcomer's state is of all servers: they have nothing of the skipped round
                peer.until_round()
            for peer in peers:
                self.contribute(peer)
            wait_for(lambda: leader.cluster()["version"] >= 3, "the round behind it")  # with ssp two
            self.assertEqual([], leader.events("servers.chunks_lost"))
        else:
            wait_for(lambda: leader.cluster()["state"] == "halted", "the end of the job")
            self.assertEqual(leader.cluster()["version"], 2)
        for peer in peers:
            peer.close()
        for process in (leader, *shards):
            process.kill()

    def test_a_state_with_part_of_such_a_round_is_tried_as_a_checkpoint_once(self):
        flags = ["--apply", "server", "--optimizer", "adam", "--lease", "5s", "--checkpoint.interval", "1s"]
        leader = self.launch_server("--servers", 2, "--min-workers", 1, *flags).wait_ready()
        self.shard(leader, "b")
        giant = Peer(leader.data, "giant").join().until_round()
        self.contribute(giant)
        giant.until_round()
        for chunk, count in enumerate(SIZES):
            giant.push(chunk, [1e22] * count)
        giant.end()
        wait_for(lambda: leader.cluster()["state"] == "halted", "the end of the job")
        leader.wait_event("member.lease_expired", worker="giant")  # at the eighth look at what is due
        self.assertEqual(["at the end"], [failed["when"] for failed in leader.events("checkpoint.failed")])
        giant.close()

    def test_a_contribution_that_is_not_finite_is_one_of_those_that_may_be_false(self):
        leader = self.launch_server("--servers", 3, "--min-workers", 3, "--aggregate", "trimmed_mean:1", "--lease", "20s").wait_ready()
        for name in ("b", "c"):
            self.shard(leader, name)
        peers = [Peer(leader.data, f"p{i}").join() for i in range(3)]
        *honest, liar = peers

        def wait_staged(is_so, what):
            wait_for(lambda: all(is_so(server["staged_bytes"]) for server in leader.get("/v1/servers")["servers"][1:]), what)

        def push(peer):
            for chunk, count in enumerate(SIZES):
                peer.push(chunk, [1.0] * count)

        def nothing():
            liar.end(nonfinite=True)
            for peer in honest:
                self.contribute(peer)

        def first():
            push(liar)
            nothing()

        def last():  # its numbers are in the result already
            for peer in honest:
                push(peer)
            wait_staged(lambda staged: staged > 0, "numbers that wait for those of all")
            push(liar)
            wait_staged(lambda staged: staged == 0, "results")
            liar.end(nonfinite=True)
            for peer in honest:
                peer.end()

        for number, contribute in enumerate((nothing, first, last, nothing)):
            with self.subTest(contribute.__name__), concurrent.futures.ThreadPoolExecutor(len(peers)) as pool:
                list(pool.map(lambda peer: peer.until_round(), peers))
                contribute()
                wait_for(lambda number=number: leader.cluster()["version"] == 2 + number, "the round of the others")
        self.assertEqual({"p2"}, {event["worker"] for event in leader.events("contribution.excluded")})
        self.assertEqual([], leader.events("round.merge_failed"))
        for peer in peers:
            peer.until_round()
        for peer in peers[1:]:
            peer.end(nonfinite=True)  # more than F
        leader.wait_event("job.halted", error="is not finite in round 5")
        for peer in peers:
            peer.close()

    def test_with_a_key_of_their_own_no_workers_token_lets_a_server_in(self):
        leader = self.launch_server("--servers", 2, "--min-workers", 1, "--token", "of-workers", "--servers-token", "of-servers").wait_ready()
        keys = ["--token", "of-workers", "--servers-token"]
        self.assert_status(self.shard(leader, "thief", "--token", "of-workers"), USAGE, "token refused")
        self.assert_status(self.shard(leader, "guess", *keys, "another"), USAGE, "token refused")
        join = text("b") + text("127.0.0.1:9") + text("")
        for token, role, refusal in (("of-workers", "worker", "ServerJoin needs the role"), ("of-workers", "server", "token refused"), ("of-servers", "worker", "token refused")):
            with self.subTest(token=token, role=role), connect(leader.data) as peer:
                peer.sendall(hello(token=token, name="b", role=role))
                _, flags, head = read_frame(peer)
                if not flags & ERROR:
                    peer.sendall(header(112, REQUEST, join, identity=1) + join)
                    _, flags, head = read_frame(peer)
                self.assertIn(refusal, read_error(head)[1])
        self.assertEqual([], leader.events("server.joined"))
        self.shard(leader, "b", *keys, "of-servers")
        leader.wait_event("server.joined", server="b")
        worker = self.worker(leader, "w", "--token", "of-workers")
        leader.wait_round(3)
        worker.send(signal.SIGTERM)
        self.assert_exit(DONE, worker)
        self.assertEqual([], leader.events("servers.token_shared"))

    def test_without_one_the_log_says_so_once(self):
        leader = self.launch_server("--servers", 2, "--min-workers", 1, "--token", "of-workers").wait_ready()
        self.shard(leader, "b", "--token", "of-workers")
        leader.wait_event("server.joined", server="b")
        self.assertEqual(1, len(leader.events("servers.token_shared")))
        doctor = [pathlib.Path(self.programs) / "centroidctl", "--server", leader.api, "doctor"]
        self.assertIn("any holder of the workers' token may join as a shard server", subprocess.run(doctor, capture_output=True, text=True, check=False).stdout)


if __name__ == "__main__":
    main()
