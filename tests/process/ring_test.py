"""Exchanges ring and hierarchical with the real programs: gradients go among the workers, the server coordinates. ring_test.py BIN_DIR"""

import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import DONE, HALTED, USAGE, ClusterTest, Hold, free_port, main, wait_for
from harness.wire import Link

WIDE = "mlp:64-1024-1024-10"  # 4.5 MB


class RingTest(ClusterTest):
    exchange = "ring"

    def ring(self, *names, arguments=(), model="mlp:64-16-10", rounds_seen=3):
        """A server in training with these workers."""
        server = self.server("--exchange", self.exchange, "--min-workers", len(names), *arguments)
        workers = [self.peer(server, name, model=model) for name in names]
        server.wait_round(rounds_seen)
        return server, workers

    def peer(self, server, name, *arguments, **settings):
        return self.worker(server, name, "--exchange", self.exchange, *arguments, **settings)

    def stop_in_order(self, server, *workers):
        self.assertEqual(server.post("/v1/job:stop")[0], 202)
        self.assert_exit(DONE, server, *workers)

    def assert_same_fingerprint(self, *names):
        prints = {name: self.summary(name)["fingerprint"] for name in names}
        self.assertEqual(len(set(prints.values())), 1, prints)

    def last_model(self, run="run"):
        return (self.checkpoints(run)[-1] / "model.safetensors").read_bytes()

    def train(self, run, exchange, *arguments, workers=3, rounds=130, model="mlp:64-32-10", worker_flags=()):
        """A whole job of more than an epoch, whose last round is uneven; the bytes of its model."""
        goal = ["--rounds", rounds, "--min-workers", workers, "--exit-when-finished"]
        server = self.server("--exchange", exchange, "--optimizer", "adam", *goal, *arguments, name=f"server-{run}", run=run)
        names = [f"w{i}-{run}" for i in range(workers)]
        flags = ["--exchange", exchange, *worker_flags]
        started = [self.worker(server, name, *flags, model=model) for name in names]
        self.assert_exit(DONE, *started, server)
        self.assert_same_fingerprint(*names)
        return self.last_model(run)


class Bits(RingTest):
    def test_sums_in_rank_order_have_the_bits_of_star(self):
        star = self.train("star", "star")
        for bucket in ("64", "4KiB", "8MiB"):
            with self.subTest(bucket=bucket):
                run = f"chain-{bucket}"
                self.assertEqual(self.train(run, "ring", "--reduce.algorithm", "chain", "--reduce.bucket-bytes", bucket), star)

    def test_ring_in_the_order_of_the_network_trains_and_all_agree(self):
        server = self.server("--exchange", "ring", "--min-workers", 4, "--rounds", 40, "--reduce.ring-order", "bandwidth", "--exit-when-finished")
        workers = [self.worker(server, f"w{i}", "--exchange", "ring", model="mlp:64-128-10") for i in range(4)]
        self.assert_exit(DONE, *workers, server)
        orders = {worker.events("peers.ring_ordered")[-1]["order"] for worker in workers}
        self.assertEqual(len(orders), 1, orders)
        self.assert_same_fingerprint(*(f"w{i}" for i in range(4)))

    def test_every_algorithm_repeats_its_bits(self):
        for exchange, algorithm in (("ring", "ring"), ("ring", "recursive-doubling"), ("hierarchical", "auto")):
            with self.subTest(exchange=exchange, algorithm=algorithm):
                flags = ["--reduce.algorithm", algorithm]
                models = [self.train(f"{exchange}-{algorithm}-{i}", exchange, *flags) for i in range(2)]
                self.assertEqual(*models)

    def test_one_worker_is_a_ring(self):
        self.assertEqual(self.train("one", "ring", workers=1), self.train("star", "star", workers=1))

    def test_more_workers_than_samples_in_the_last_round(self):
        self.train("many", "ring", "--epochs", 2, "--rounds", 0, workers=5)


class Loss(RingTest):
    def test_worker_killed_in_training_and_the_rest_go_on(self):
        server, workers = self.ring("w0", "w1", "w2", model=WIDE)
        workers[1].kill()
        server.wait_worker("w1", "dead")
        server.wait_more_rounds(5)
        self.assertEqual(server.cluster()["world"], 2)
        self.assertEqual(server.metric("centroid_server_state_lost_total"), 0)
        self.stop_in_order(server, workers[0], workers[2])
        self.assert_same_fingerprint("w0", "w2")

    def test_first_rank_killed_and_the_state_lives_on(self):
        server, workers = self.ring("w0", "w1", "w2")
        workers[0].kill()
        server.wait_worker("w0", "dead")
        server.wait_more_rounds(5)
        self.assertEqual(server.post("/v1/checkpoints")[0], 201)
        server.wait_event("state.fetched", worker="w1")
        self.stop_in_order(server, *workers[1:])

    def test_hanging_worker_is_fenced_and_comes_back(self):
        server, workers = self.ring("w0", "w1", "w2", arguments=("--lease", 1500))
        workers[2].send(signal.SIGSTOP)

        def waits_for_w2():
            return [wait for wait in server.get("/v1/waits")["waits"] if wait["waits_for"] == "w2" and "silent for" in wait["what"]]

        wait_for(waits_for_w2, "a wait that says that w2 is silent")
        server.wait_worker("w2", "dead")
        server.wait_more_rounds(5)
        workers[2].send(signal.SIGCONT)
        server.wait_worker("w2", "active", index=1)
        server.wait_more_rounds(5)
        self.stop_in_order(server, *workers)
        self.assert_same_fingerprint("w0", "w1", "w2")

    def test_newcomer_gets_the_state_of_the_others(self):
        server, workers = self.ring("w0", "w1", arguments=("--optimizer", "adam"))
        late = self.peer(server, "w9")
        server.wait_worker("w9", "active")
        server.wait_event("state.fetched", worker="w0")
        server.wait_more_rounds(5)
        self.stop_in_order(server, *workers, late)
        self.assert_same_fingerprint("w0", "w1", "w9")

    def test_everybody_lost_goes_back_to_the_last_checkpoint(self):
        server, workers = self.ring("w0", "w1")
        kept = server.post("/v1/checkpoints")[1]["version"]
        server.wait_more_rounds(5)
        for worker in workers:
            worker.kill()
        server.wait_cluster("waiting", lambda cluster: cluster["state"] == "waiting")
        late = self.peer(server, "w9")
        lost = server.wait_event("state.lost")
        self.assertEqual(lost["to_version"], kept)
        self.assertEqual(server.metric("centroid_server_state_lost_total"), 1)
        server.wait_round(lost["to_round"] + 3)
        self.stop_in_order(server, late)

    def test_everybody_lost_without_a_checkpoint_begins_again_and_says_so(self):
        server, workers = self.ring("w0", "w1")
        for worker in workers:
            worker.kill()
        server.wait_cluster("waiting", lambda cluster: cluster["state"] == "waiting")
        late = self.peer(server, "w9")
        self.assertEqual(server.wait_event("state.lost")["to_round"], 1)
        self.assertGreaterEqual(server.wait_event("job.restarted")["lost_round"], 1)
        server.wait_round(3)
        self.stop_in_order(server, late)

    def test_drained_workers_leave_their_state(self):
        server, workers = self.ring("w0", "w1")
        for worker in server.workers():
            self.assertEqual(server.post(f"/v1/workers/{worker['member']}:drain")[0], 202)
        self.assert_exit(DONE, *workers)
        late = self.peer(server, "w9")
        server.wait_more_rounds(3)
        self.assertEqual(server.metric("centroid_server_state_lost_total"), 0)
        self.stop_in_order(server, late)


class Coordination(RingTest):
    def test_checkpoints_are_written_while_training_goes_on(self):
        server, workers = self.ring("w0", "w1", arguments=("--checkpoint.every-rounds", 10, "--optimizer", "adam"), rounds_seen=40)
        status, written = server.post("/v1/checkpoints")
        self.assertEqual(status, 201)
        self.assertGreater(written["version"], 1)
        versions = [event["version"] for event in server.events("checkpoint.written")]
        self.assertGreater(len(versions), 1)
        server.wait_more_rounds(3)
        self.stop_in_order(server, *workers)

    def test_killed_server_resumes_with_the_same_bits(self):
        goal = 200
        flags = ["--optimizer", "adam", "--rounds", goal, "--min-workers", 2, "--checkpoint.every-rounds", 20, "--exchange", "ring"]
        whole = self.train("whole", "ring", workers=2, rounds=goal, model="mlp:64-16-10")
        computes = Hold(self, "worker.share_taken", count=60).close()
        server = self.server(*flags, name="before")
        workers = [self.peer(server, name, environment=environment) for name, environment in (("w0", computes.environment), ("w1", None))]
        computes.wait_reached()
        server.wait_event("checkpoint.written")
        server.kill()
        computes.open()
        again = self.server(*flags, "--resume", "--exit-when-finished", name="after", listen=server.data, api=server.api)
        self.assert_exit(DONE, *workers, again)
        self.assertEqual(self.last_model(), whole)

    TRIES = ("--epsilon", 1e-13, "--apply", "worker")  # adam may divide by so little: every step is tried

    def test_a_step_that_a_killed_worker_was_trying_is_tried_again_without_it(self):
        for exchange in ("ring", "hierarchical"):
            with self.subTest(exchange=exchange):
                goal = ["--epochs", 2, "--min-workers", 3, "--exit-when-finished"]
                server = self.server("--exchange", exchange, "--optimizer", "adam", *self.TRIES, *goal, name=exchange, run=exchange)
                fault = {"CENTROID_TEST_FAULT": "trial.worker:7"}
                names = [f"w{i}-{exchange}" for i in range(3)]
                workers = [self.worker(server, name, "--exchange", exchange, environment=fault if "w1" in name else None) for name in names]
                self.assert_exit(-signal.SIGKILL, workers[1])
                self.assert_exit(DONE, workers[0], workers[2], server)
                self.assert_same_fingerprint(names[0], names[2])
                self.assertEqual(server.events("round.attempt_aborted")[0]["round"], 7)
                self.assertEqual([1600, 1600], [event["samples"] for event in server.events("epoch.ended")])
                self.assertEqual([], server.events("round.skipped"))

    def test_a_server_that_returns_while_a_worker_tries_a_step_ends_with_the_same_bits(self):
        flags = [*self.TRIES, "--lr", 0.01, "--checkpoint.every-rounds", 5]
        rounds = 30
        whole = self.train("whole", "ring", *flags, rounds=rounds)
        tries = Hold(self, "trial.worker", count=13).close()
        goal = ["--exchange", "ring", "--optimizer", "adam", "--rounds", rounds, "--min-workers", 3, "--exit-when-finished", *flags]
        server = self.server(*goal, name="before")
        workers = [self.peer(server, f"w{i}", model="mlp:64-32-10", environment=tries.environment if i == 0 else None) for i in range(3)]
        tries.wait_reached()
        server.wait_event("checkpoint.written")
        server.kill()
        again = self.server(*goal, "--resume", name="after", listen=server.data, api=server.api)
        tries.open()
        self.assert_exit(DONE, *workers, again)
        self.assertEqual(self.last_model(), whole)

    def test_not_finite_gradient_halts_and_names_worker_and_tensor(self):
        server = self.server("--exchange", "ring", "--min-workers", 2, "--lr", 1e30)
        workers = [self.peer(server, name) for name in ("w0", "w1")]
        halted = server.wait_event("job.halted")
        self.assertRegex(halted["error"], r"JIDOKA HALT: worker \d \(w\d\): the gradient of tensor layers")
        for worker in workers:
            self.assert_status(worker, HALTED, "JIDOKA HALT")

    def test_not_finite_gradient_skips_the_round_for_all(self):
        server = self.server("--exchange", "ring", "--min-workers", 2, "--lr", 1e30, "--nonfinite", "skip")
        workers = [self.peer(server, name) for name in ("w0", "w1")]
        wait_for(lambda: server.cluster()["skipped_rounds"] > 3, "skipped rounds")
        self.stop_in_order(server, *workers)
        self.assert_same_fingerprint("w0", "w1")

    def test_who_leaves_last_gives_its_state(self):
        server, (worker,) = self.ring("w0")
        worker.send(signal.SIGTERM)
        self.assert_exit(DONE, worker)
        wait_for(lambda: server.events("member.left"), "it has left")
        parameters = server.get("/v1/parameters")
        self.assertEqual((parameters["version"], parameters["is_current"]), (self.summary("w0")["version"], True))
        self.assertEqual(server.events("state.lost"), [])

    def test_worker_of_another_exchange_is_refused(self):
        server = self.server("--exchange", "ring")
        self.assert_status(self.worker(server, "w0", "--exchange", "star"), USAGE, "its exchange is 'star', the server's is 'ring'")

    def test_worker_open_to_other_machines_needs_a_token(self):
        server = self.server("--exchange", "ring")
        open_one = self.peer(server, "w0", "--peer.listen", "0.0.0.0:0")
        self.assert_status(open_one, USAGE, "--peer.listen: 0.0.0.0:0 is reachable from other machines")

    def test_worker_that_listens_everywhere_tells_an_address(self):
        server = self.server("--exchange", "ring", "--min-workers", 2, "--token", "secret")
        workers = [self.peer(server, name, "--peer.listen", "0.0.0.0:0", "--token", "secret") for name in ("w0", "w1")]
        server.wait_round(3)
        self.stop_in_order(server, *workers)

    def test_settings_that_do_not_go_together_are_refused(self):
        for flags, text in (
            (["--apply", "server"], "apply must be worker or auto"),
            (["--exchange", "hierarchical", "--reduce.algorithm", "ring"], "has an algorithm of its own"),
            (["--exchange", "hierarchical", "--reduce.ring-order", "bandwidth"], "is for exchange ring"),
        ):
            with self.subTest(flags=flags):
                server = self.launch_server("--exchange", "ring", *flags, name=text.split()[0])
                self.assert_status(server, USAGE, text)


class Codecs(RingTest):
    """Compressed gradients among the workers."""

    wide = "mlp:64-256-10"

    def learn(self, run, exchange, codec, *arguments, workers=3, rounds=150):
        """A whole job; the payload bytes that the workers sent and the model."""
        goal = ["--rounds", rounds, "--min-workers", workers, "--exit-when-finished"]
        server = self.server("--exchange", exchange, *goal, *arguments, name=f"server-{run}", run=run)
        names = [f"w{i}-{run}" for i in range(workers)]
        flags = ["--exchange", exchange, "--codec", codec]
        started = [self.worker(server, name, *flags, model=self.wide) for name in names]
        self.assert_exit(DONE, *started, server)
        self.assert_same_fingerprint(*names)
        summaries = [self.summary(name) for name in names]
        self.assertGreater(summaries[0]["test_accuracy"], 0.95, codec)
        if codec != "f32" and exchange != "star":
            told = summaries[0]["compression"]
            self.assertGreater(told["encoded_bytes_out"], 0)
            self.assertLess(told["encoded_bytes_out"], told["raw_bytes_out"])
            self.assertLess(told["encoded_bytes_in"], told["raw_bytes_in"])
        return sum(summary["bytes_out"] for summary in summaries), self.last_model(run)

    def test_every_codec_learns_saves_bytes_and_repeats_its_bits(self):
        dense, _ = self.learn("dense", "ring", "f32")
        cases = (("bf16", 0.55), ("int8", 0.35), ("topk:0.01", 0.3), ("topk:0.01,values=int8", 0.2), ("int8:feedback=on", 0.35), ("sign", 0.2))
        for number, (codec, share) in enumerate(cases):
            with self.subTest(codec=codec):
                sent, model = self.learn(f"{number}-a", "ring", codec)
                self.assertLess(sent, dense * share)
                self.assertEqual(self.learn(f"{number}-b", "ring", codec)[1], model)

    def test_selections_have_the_bits_of_star(self):
        for number, codec in enumerate(("topk:0.01", "topk:0.05,momentum=0.9,warmup=20,scope=global")):
            with self.subTest(codec=codec):
                models = [self.learn(f"{exchange}-{number}", exchange, codec)[1] for exchange in ("star", "ring")]
                self.assertEqual(*models)

    def test_hierarchical_learns(self):
        self.learn("nodes", "hierarchical", "topk:0.01,values=int8")

    def test_more_workers_than_samples_in_the_last_round(self):
        self.train("few", "ring", "--epochs", 2, "--rounds", 0, workers=5, worker_flags=("--codec", "int8"))

    def test_killed_and_hanging_workers_and_the_rest_go_on(self):
        server = self.server("--exchange", "ring", "--min-workers", 4, "--lease", 1500)
        workers = [self.peer(server, f"w{i}", "--codec", "topk:0.05,values=int8", model=WIDE) for i in range(4)]
        server.wait_round(5)
        workers[1].kill()
        server.wait_worker("w1", "dead")
        server.wait_more_rounds(3)
        workers[3].send(signal.SIGSTOP)
        server.wait_worker("w3", "dead")
        server.wait_more_rounds(3)
        workers[3].send(signal.SIGCONT)
        server.wait_worker("w3", "active", index=1)
        server.wait_more_rounds(3)
        self.stop_in_order(server, workers[0], *workers[2:])
        self.assert_same_fingerprint("w0", "w2", "w3")

    def test_not_finite_gradients_halt_or_skip_for_all(self):
        server = self.server("--exchange", "ring", "--min-workers", 2, "--lr", 1e30, name="halts", run="halts")
        for i in range(2):
            self.peer(server, f"h{i}", "--codec", "topk:0.05")
        halted = server.wait_event("job.halted")
        self.assertRegex(halted["error"], r"JIDOKA HALT: worker \d \(h\d\): the sum or result of tensor layers\S+ is not finite in round 2")
        skips = ["--min-workers", 2, "--lr", 1e30, "--nonfinite", "skip"]
        server = self.server("--exchange", "ring", *skips, name="skips", run="skips")
        workers = [self.peer(server, f"s{i}", "--codec", "topk:0.05") for i in range(2)]
        wait_for(lambda: server.cluster()["skipped_rounds"] > 3, "skipped rounds")
        self.assertEqual(server.post("/v1/job:stop")[0], 202)
        self.assert_exit(DONE, *workers)
        self.assert_same_fingerprint("s0", "s1")
        self.assert_exit(DONE, server)  # no step was made that is not finite: what they hold is a checkpoint

    def test_workers_must_have_one_codec(self):
        server = self.server("--exchange", "ring", "--min-workers", 2)
        first = self.peer(server, "w0", "--codec", "int8")
        server.wait_event("member.joined", worker="w0")
        other = self.peer(server, "w1", "--codec", "topk:0.1")
        self.assert_status(other, USAGE, "its codec is 'topk:0.1', the other workers' is 'int8'")
        same = self.peer(server, "w2", "--codec", "int8:rounding=nearest,feedback=off")
        server.wait_round(3)
        self.stop_in_order(server, first, same)


class Peers(RingTest):
    """Workers whose peers reach them through a link that can be cut and held."""

    def linked(self, server, name, **settings):
        listen = f"127.0.0.1:{free_port()}"
        link = Link(listen)
        self.addCleanup(link.close)
        places = ["--peer.listen", listen, "--peer.advertise", link.endpoint, "--peer.shared-memory=false"]
        return link, self.peer(server, name, *places, **settings)

    def test_cut_between_peers_is_mended(self):
        server = self.server("--exchange", "ring", "--min-workers", 3)
        link, first = self.linked(server, "w0")
        others = [self.peer(server, name) for name in ("w1", "w2")]
        server.wait_round(5)
        before = server.cluster()
        link.cut()
        server.wait_event("exchange.failed")
        server.wait_more_rounds(5)
        after = server.cluster()
        self.assertGreater(after["aborted_attempts"], before["aborted_attempts"])
        self.assertEqual((after["world"], after["lost_contributions"]), (3, 0))
        self.stop_in_order(server, first, *others)
        self.assert_same_fingerprint("w0", "w1", "w2")

    def test_peers_that_refuse_each_other_for_a_moment_all_stay(self):
        server = self.server("--exchange", "ring", "--min-workers", 3, "--reduce.timeout", 300, "--lease", 60_000)
        links, workers = zip(*(self.linked(server, name) for name in ("w0", "w1", "w2")))
        server.wait_round(5)
        before = server.cluster()["aborted_attempts"]
        for link in links:
            link.refuses = True
            link.cut()
        server.wait_cluster("five failed attempts", lambda cluster: cluster["aborted_attempts"] >= before + 5)
        waits = server.get("/v1/waits")["waits"]
        self.assertTrue(any("in which they reach each other" in wait["what"] for wait in waits), waits)
        for link in links:
            link.refuses = False
        server.wait_more_rounds(5)
        after = server.cluster()
        self.assertEqual((after["world"], after["lost_contributions"]), (3, 0))
        self.stop_in_order(server, *workers)
        self.assert_same_fingerprint("w0", "w1", "w2")

    def test_silence_between_peers_is_reported_and_the_unreachable_one_goes(self):
        server = self.server("--exchange", "ring", "--min-workers", 3, "--reduce.timeout", 700, "--lease", 3000)
        link, bad = self.linked(server, "w0")
        others = [self.peer(server, name) for name in ("w1", "w2")]
        server.wait_round(5)
        link.up.hold(1)
        link.down.hold(1)
        self.assert_status(bad, USAGE, "the other workers could not exchange with it")
        server.wait_more_rounds(5)
        self.stop_in_order(server, *others)
        self.assert_same_fingerprint("w1", "w2")


class Hierarchical(Loss):
    exchange = "hierarchical"


if __name__ == "__main__":
    main(at_a_time=3)
