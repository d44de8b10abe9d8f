"""What a worker must not send: each is refused by name, and the state keeps every bit. refusals_test.py BIN_DIR"""

import pathlib
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import DONE, ClusterTest, main, wait_for
from harness.peer import CHUNKS, NORM, TENSORS, Peer
from harness.wire import connect, header, hello, read_error, read_frame

NAN, INFINITY = float("nan"), float("inf")


class Refusals(ClusterTest):
    def server_with_state(self, *arguments):
        """A job with one committed round, so that parameters and slots hold something."""
        flags = ["--apply", "worker", "--optimizer", "momentum", "--min-workers", 1, "--lease", "60s"]
        server = self.launch_server(*flags, *arguments).wait_ready()
        first = Peer(server.data, "first").join().until_round()
        first.whole()
        first.until_round()
        first.close()
        wait_for(lambda: server.cluster()["version"] == 2, "version 2")
        return server

    def state(self, server, pieces=2 * CHUNKS):
        looker = Peer(server.data, "looker").join().until_round()
        looker.close()
        self.assertEqual(len(looker.state), pieces, "parameters and momentum")
        return looker.state

    def assert_refused(self, server, before, name, act, *texts):
        with self.subTest(name):
            liar = Peer(server.data, "liar").join().until_round()
            act(liar)
            said = liar.refusal()
            for text in texts:
                self.assertIn(text, said)
            liar.close()
            self.assertEqual(self.state(server), before, "the state has changed")
            self.assertEqual(server.cluster()["version"], 2)

    def test_every_lie_is_named_and_changes_nothing(self):
        server = self.server_with_state()
        before = self.state(server)
        cases = {
            "unknown chunk": (lambda p: p.push(3, [1.0]), "push of chunk 3 by liar", "there is no such chunk"),
            "too many numbers": (lambda p: p.push(0, [1.0] * 9), "push of chunk 0 by liar", "36 bytes, at most 32"),
            "no numbers": (lambda p: p.push(0, []), "push of chunk 0 by liar", "it has no payload"),
            "too few numbers": (lambda p: p.push(0, [1.0] * 7), "push of chunk 0 by liar"),
            "a chunk twice": (lambda p: (p.push(0, [1.0] * 8), p.push(0, [1.0] * 8)), "push of chunk 0 by liar"),
            "NaN": (lambda p: p.push(1, [1.0, NAN, 1.0, 1.0, 1.0, 1.0]), "push of chunk 1 by liar", "not finite"),
            "infinity in a whole contribution": (lambda p: (p.push(0, [1.0] * 8), p.push(2, [-INFINITY]), p.push(1, [1.0] * 6), p.end()), "not finite"),
            "weight of NaN": (lambda p: p.push(0, [1.0] * 8, weight=NAN), "Push.weight is"),
            "weight below 0": (lambda p: p.push(0, [1.0] * 8, weight=-1.0), "Push.weight is -1"),
            "a weight that is not its share's": (lambda p: p.push(0, [1.0] * 8, weight=1e15), "push of chunk 0 by liar", "its share of 4 samples weighs 4"),
            "a weight of nothing": (lambda p: p.end(weight=0.0), "PushEnd of liar", "its share of 4 samples weighs 4"),
            "another weight at the end": (lambda p: p.whole(weight=99.0), "gives weight 99", "its chunks gave"),
            "an end without its chunks": (lambda p: (p.push(0, [1.0] * 8), p.end()), "1 of 3 chunks came"),
            "a norm of NaN": (lambda p: p.whole(residual=NAN), "PushEnd.residual_norm is"),
            "a norm below 0": (lambda p: p.whole(residual=-2.0), "PushEnd.residual_norm is -2"),
            "an infinite norm of the contribution": (lambda p: p.whole(norm=INFINITY), "PushEnd.norm is inf"),
            "a norm 1 % too large": (lambda p: p.whole(norm=1.01 * NORM), "PushEnd of liar in round", "claims norm 3.911", "its chunks have 3.872983"),
            "a norm 1 % too small": (lambda p: p.whole(norm=0.99 * NORM), "PushEnd of liar in round", "claims norm 3.834", "its chunks have 3.872983"),
            "a norm of 0": (lambda p: p.whole(norm=0.0), "claims norm 0", "its chunks have 3.872983"),
            "an infinite divergence": (lambda p: p.whole(divergence=INFINITY), "PushEnd.divergence is inf"),
            "a loss of NaN": (lambda p: p.whole(loss=NAN), "PushEnd.loss_sum is"),
            "more right than there are": (lambda p: p.whole(correct=1 << 40), "PushEnd.correct is"),
            "a cut head": (lambda p: p.send(p.PUSH, p.place), "malformed Push"),
            "an unknown message": (lambda p: p.send(15), "kind 15"),
        }
        for name, (act, *texts) in cases.items():
            self.assert_refused(server, before, name, act, *texts)
        # Of whoever lies about lengths nothing more is read; they are told why.
        for field, length in (("payload_bytes", 1 << 40), ("head_bytes", 1 << 30)):
            self.assert_refused(server, before, field, lambda p, far={field: length}: p.put(header(p.PUSH, **far)), f"{length} bytes is over the limit of")
            server.wait_event("member.lost", worker="liar", why=f"{length} bytes is over the limit of")
        good = Peer(server.data, "good").join().until_round()
        self.assertEqual(good.state, before)
        good.whole(norm=NORM)
        wait_for(lambda: server.cluster()["version"] == 3, "the next version")
        good.close()
        server.post("/v1/job:stop")
        self.assert_status(server, DONE)

    def test_a_weight_by_tokens_has_a_bound(self):
        def peer(name, tokens=10):
            one = Peer(server.data, name)
            one.sample_tokens = tokens
            return one.join()

        def give(one, weight):
            for chunk, count in enumerate((8, 6, 1)):
                one.push(chunk, [1.0] * count, weight=weight)
            one.end(weight=weight)

        server = self.launch_server("--optimizer", "sgd", "--min-workers", 1, "--lease", "60s", "--weight-by", "tokens").wait_ready()
        self.assertIn("does not say how many its samples have at most (sample_tokens)", peer("silent", 0).refusal())
        first = peer("first").until_round()
        give(first, 40.0)  # 4 samples
        first.until_round()
        first.close()
        self.assertIn("its samples have at most 11 tokens (sample_tokens), the other workers' 10", peer("other", 11).refusal())
        for weight in (41.0, 0.5, 7.5, 1e15):
            for name, act in {"push": lambda p: p.push(0, [1.0] * 8, weight=weight), "end": lambda p: p.end(weight=weight)}.items():
                with self.subTest(weight=weight, by=name):
                    liar = peer("liar").until_round()
                    act(liar)
                    self.assertIn(f"gives weight {weight:.6f}, its share of 4 samples has 1 to 40", liar.refusal())
                    liar.close()
                    self.assertEqual(server.cluster()["version"], 2)
        for number, weight in enumerate((1.0, 40.0)):
            good = peer("good").until_round()
            give(good, weight)
            wait_for(lambda: server.cluster()["version"] == 3 + number, "the next version")
            good.close()

    def test_a_join_that_no_server_could_count_with_is_refused(self):
        server = self.launch_server("--min-workers", 1).wait_ready()
        cases = {
            "too many samples": ({"samples": (1 << 64) - 1}, "Join.train_samples is 18446744073709551615, it must be at most 2^48"),
            "too large a batch": ({"batch": (1 << 64) - 1}, "Join.batch is 18446744073709551615, it must be at most 2^32"),
            "a name that is no text": ({"name": "\udcff\udcfe"}, "Join is ??, it must be UTF-8 in all its texts"),
            "a model that is no text": ({"model": "\udcff"}, "Join is ?, it must be UTF-8"),
        }
        for name, (fields, text) in cases.items():
            with self.subTest(name):
                liar = Peer(server.data, "liar")
                for field, value in fields.items():
                    setattr(liar, field, value)
                liar.send_join()
                self.assertIn(text, liar.refusal())
        Peer(server.data, "good").join().until_round().close()

    def test_every_codec_is_looked_at(self):
        server = self.server_with_state()
        before = self.state(server)
        lies = {
            "bf16": struct.pack("<6H", 0, 0, 0x7FC0, 0, 0, 0),
            "f16": struct.pack("<6H", 0, 0, 0xFC00, 0, 0, 0),
            "int8": b"\0" + struct.pack("<6f", 0, 0, NAN, 0, 0, 0),
            "topk:0.5": b"\0" + struct.pack("<6f", 0, 0, INFINITY, 0, 0, 0),
        }
        for codec, payload in lies.items():
            with self.subTest(codec):
                liar = Peer(server.data, "liar")
                liar.codec = codec
                liar.join().until_round()
                liar.send(liar.PUSH, liar.place + struct.pack("<Id", 1, liar.weight), payload)
                said = liar.refusal()
                self.assertIn("push of chunk 1 by liar", said)
                self.assertIn("number 2 is", said)
                self.assertIn("not finite", said)
                liar.close()
                self.assertEqual(self.state(server), before, "the state has changed")
                self.assertEqual(server.cluster()["version"], 2)

    def test_a_flag_does_not_stand_for_chunks_where_numbers_go_in(self):
        server = self.server_with_state("--nonfinite", "propagate")
        before = self.state(server)

        def lie(peer):
            peer.push(0, [1.0] * 8)
            peer.end(nonfinite=True)

        self.assert_refused(server, before, "a part of a contribution", lie, "1 of 3 chunks came")

    def test_what_was_never_opened_is_refused_by_name(self):
        server = self.server_with_state()
        before = self.state(server)
        for field in range(3):

            def lie(peer, field=field):
                place = list(struct.unpack("<QQI", peer.place))
                place[field] += 1
                peer.push(0, [1.0] * 8, place=struct.pack("<QQI", *place))

            def end(peer, field=field):
                place = list(struct.unpack("<QQI", peer.place))
                place[field] += 1
                peer.place = struct.pack("<QQI", *place)
                peer.end()

            self.assert_refused(server, before, f"push {field}", lie, "Push of liar is for generation", "which was never opened; the newest is generation")
            self.assert_refused(server, before, f"end {field}", end, "PushEnd of liar is for generation", "never opened")

    def test_a_role_that_no_server_has_is_refused(self):
        server = self.launch_server("--min-workers", 1).wait_ready()
        for role in ("spy", "", "peer"):
            with self.subTest(role), connect(server.data) as peer:
                peer.sendall(hello(role=role))
                self.assertIn(f'its role is "{role}", not one of "worker", "client", "server"', read_error(read_frame(peer)[2])[1])

    def test_nothing_comes_behind_the_end_of_a_contribution(self):
        """Whether its round is still open or over."""
        cases = {
            "a second end": (lambda p: p.end(), "PushEnd of liar in round 1, attempt 0 came after its PushEnd"),
            "a chunk": (lambda p: p.push(1, [1.0] * 6), "Push of liar in round 1, attempt 0 came after its PushEnd"),
        }
        for number, (name, (act, text)) in enumerate(cases.items()):
            for is_over in (False, True):
                with self.subTest(name, is_over=is_over):
                    run = f"end-{number}-{is_over}"
                    server = self.launch_server("--optimizer", "sgd", "--min-workers", 2, "--lease", "60s", run=run, name=run).wait_ready()
                    peers = [Peer(server.data, name).join() for name in ("liar", "other")]
                    for peer in peers:
                        peer.until_round()
                    peers[0].whole()
                    if is_over:
                        peers[1].whole()
                        wait_for(lambda server=server: server.cluster()["version"] == 2, "the round's end")
                    act(peers[0])
                    self.assertIn(text, peers[0].refusal())
                    for peer in peers:
                        peer.close()
                    server.kill()

    def test_initial_values_are_complete_and_finite_and_of_the_asked_worker(self):
        server = self.launch_server("--optimizer", "sgd", "--min-workers", 2, "--lease", "60s").wait_ready()

        def chunk(peer, number, values):
            peer.send(peer.INIT_CHUNK, struct.pack("<I", number), struct.pack(f"<{len(values)}f", *values))

        def first_two(peer):
            chunk(peer, 0, [1.0] * 8)
            chunk(peer, 1, [1.0] * 6)

        cases = {
            "an end without chunks": (lambda p: p.send(p.INIT_DONE), "InitDone of asked", "0 of 3 initial chunks came"),
            "an end after two of three": (lambda p: (first_two(p), p.send(p.INIT_DONE)), "2 of 3 initial chunks came"),
            "a chunk twice": (lambda p: (first_two(p), chunk(p, 1, [1.0] * 6)), "initial chunk 1 of asked", "sent twice"),
            "NaN": (lambda p: chunk(p, 1, [1.0] * 5 + [NAN]), "initial chunk 1 of asked", "tensor b is not finite"),
            "infinity": (lambda p: chunk(p, 2, [INFINITY]), "tensor scalar is not finite"),
            "no such chunk": (lambda p: chunk(p, 3, [1.0]), "initial chunk 3 of asked", "the plan has 3 chunks"),
            "too short": (lambda p: chunk(p, 0, [1.0]), "4 bytes, expected 32"),
        }
        for name, (act, *texts) in cases.items():
            with self.subTest(name):
                asked, other = Peer(server.data, "asked").join(), Peer(server.data, "other").join()
                while asked.next()[0] != asked.INIT_REQUEST:
                    pass
                act(asked)
                said = asked.refusal()
                for text in texts:
                    self.assertIn(text, said)
                self.assertEqual(server.cluster()["version"], 0)
                asked.close()
                other.close()
                wait_for(lambda: server.cluster()["world"] == 0, "both to be gone")
        for act in (lambda p: p.send(p.INIT_DONE), lambda p: chunk(p, 0, [9.0] * 8)):
            asked, other = Peer(server.data, "asked").join(), Peer(server.data, "other").join()
            while asked.next()[0] != asked.INIT_REQUEST:
                pass
            act(other)
            self.assertIn("nobody asked for it", other.refusal())
            self.assertEqual(server.cluster()["version"], 0)
            asked.close()
            other.close()
            wait_for(lambda: server.cluster()["world"] == 0, "both to be gone")
        pair = [Peer(server.data, name).join() for name in ("asked", "other")]
        for peer in pair:
            peer.until_round()
        pair[0].send(pair[0].INIT_DONE)
        self.assertIn("nobody asked for it", pair[0].refusal())
        for peer in pair:
            peer.close()

    def test_what_belongs_to_another_round_is_dropped_and_counted(self):
        server = self.server_with_state()
        before = self.state(server)
        peer = Peer(server.data, "late").join().until_round()
        generation, number, attempt = struct.unpack("<QQI", peer.place)
        others = [(generation - 1, number, attempt), (generation, number - 1, attempt), (generation, number - 1, attempt + 7)]
        was = server.metric("centroid_server_frames_stale_total")
        for other in others:
            peer.push(0, [1e9] * 8, place=struct.pack("<QQI", *other))
        wait_for(lambda: server.metric("centroid_server_frames_stale_total") == was + len(others), "the stale frames to be counted")
        peer.close()
        self.assertEqual(self.state(server), before)
        self.assertEqual(server.cluster()["version"], 2)

    def test_another_model_is_refused_with_both_shapes(self):
        server = self.server_with_state()
        before = self.state(server)
        cases = {
            "a wrong shape": ([("a", (9,)), *TENSORS[1:]], "[8]", "[9]"),
            "an unknown tensor": ([*TENSORS[:3], ("other", ())], "other", "scalar"),
            "a tensor more": ([*TENSORS, ("more", (2,))], "more"),
            "a tensor less": (TENSORS[:3], "scalar"),
        }
        for name, (tensors, *texts) in cases.items():
            with self.subTest(name):
                peer = Peer(server.data, "liar", tensors).join()
                said = peer.refusal()
                for text in ("worker 'liar' is refused", *texts):
                    self.assertIn(text, said)
                peer.close()
                self.assertEqual(self.state(server), before)


    def push_huge(self, server):
        """A contribution of finite numbers, whose weighted sum is not finite."""
        giant = Peer(server.data, "giant").join().until_round()
        for chunk, count in enumerate((8, 6, 1)):
            giant.push(chunk, [3e38] * count)
        giant.end()
        return giant

    def test_finite_contributions_whose_sum_is_not_finite_are_not_committed(self):
        for flags in (["--apply", "server", "--optimizer", "sgd"], ["--apply", "server", "--optimizer", "adam"], ["--apply", "worker", "--optimizer", "momentum"]):
            for more in ([], ["--clip-norm", 1], ["--policy", "ssp:2"]):
                with self.subTest(flags=flags + more):
                    run = f"run-{'-'.join(str(word) for word in flags + more)}"
                    server = self.launch_server(*flags, *more, "--min-workers", 1, run=run.replace("/", "")).wait_ready()
                    giant = self.push_huge(server)
                    halted = server.wait_event("job.halted", error="is not finite in round 1, though every contribution is")
                    self.assertRegex(halted["error"], r"the largest, with norm 1.16e\+39, is of giant")
                    self.assertEqual(server.cluster()["version"], 1)
                    giant.close()

    def test_such_a_sum_is_skipped_where_the_setting_says_so(self):
        server = self.server_with_state("--nonfinite", "skip")
        before = self.state(server)
        self.push_huge(server).close()
        server.wait_event("round.skipped", worker="giant", why="though every contribution is")
        self.assertEqual(self.state(server), before)

    def test_a_step_that_is_skipped_is_in_no_journal(self):
        flags = ["--apply", "server", "--optimizer", "sgd", "--lr", 1e10, "--clip-norm", 1e35, "--nonfinite", "skip", "--journal.mode", "on", "--min-workers", 1]
        server = self.launch_server(*flags).wait_ready()
        giant = Peer(server.data, "giant").join().until_round()
        giant.whole()
        giant.until_round()
        for chunk, count in enumerate((8, 6, 1)):  # finite, with a finite sum
            giant.push(chunk, [1e30] * count)
        giant.end()
        server.wait_event("round.skipped", worker="giant", why="though every contribution is")
        giant.close()
        server.kill()
        again = self.launch_server(*flags, "--resume", name="again").wait_ready()
        self.assertEqual(again.cluster()["version"], 2)


    def test_an_optimizers_state_that_is_not_finite_is_in_no_version_and_no_checkpoint(self):
        for apply in ("server", "worker"):
            with self.subTest(apply=apply):
                flags = ["--apply", apply, "--optimizer", "adam", "--min-workers", 1, "--checkpoint.every-rounds", 1]
                server = self.launch_server(*flags, run=apply, name=f"server-{apply}").wait_ready()
                first = Peer(server.data, "first").join().until_round()
                first.whole()
                server.wait_event("checkpoint.written", version=2)
                first.until_round()
                for chunk, count in enumerate((8, 6, 1)):  # finite, and its squares are not
                    first.push(chunk, [1e22] * count)
                first.end()
                halted = server.wait_event("job.halted", error="is not finite in round 2, though every contribution is")
                self.assertIn("is of first", halted["error"])
                while first.next()[0] != first.FINISH:
                    pass
                wait_for(lambda: server.cluster()["state"] == "halted", "the end of the job")
                self.assertEqual(server.cluster()["version"], 2)
                self.assertEqual([2], [event["version"] for event in server.events("checkpoint.written")])
                first.close()

    def test_a_step_of_the_workers_that_is_not_finite_is_skipped_where_the_setting_says_so(self):
        for bound in (0, 1e30, 1e21):  # the last one clips the squares that are too large, to others
            with self.subTest(bound):
                tag, more = f"skips-{bound}", ["--clip-norm", bound]
                server = self.launch_server(*self.BY_WORKERS, *more, "--nonfinite", "skip", run=tag, name=tag).wait_ready()
                first = Peer(server.data, "first").join().until_round()
                first.whole()
                first.until_round()
                before = server.get("/v1/parameters")
                self.push_squares_too_large(first)
                server.wait_event("round.skipped", worker="first", why="is not finite in round 2, though every contribution is")
                found = server.get("/v1/parameters")
                self.assertEqual((found["version"], found["parameters"]), (before["version"], before["parameters"]))
                first.until_round()
                first.whole()
                wait_for(lambda server=server: server.cluster()["version"] == 3, "the round behind it")
                self.assertEqual(0, server.cluster()["clipped_rounds"], "rounds that count")
                first.close()

    BY_WORKERS = ("--apply", "worker", "--optimizer", "adam", "--min-workers", 1, "--journal.mode", "on")

    def push_squares_too_large(self, peer):
        for chunk, count in enumerate((8, 6, 1)):
            peer.push(chunk, [1e22] * count)
        peer.end()

    def test_a_step_of_the_server_that_is_not_finite_is_skipped_where_the_setting_says_so(self):
        for optimizer, bound in (("adam", 0), ("adam", 1e30), ("adagrad", 0), ("ftrl", 0)):
            with self.subTest(optimizer=optimizer, bound=bound):
                flags = ["--apply", "server", "--optimizer", optimizer, "--clip-norm", bound, "--nonfinite", "skip", "--min-workers", 1, "--journal.mode", "on"]
                skipping, spared = (self.two_rounds(f"{optimizer}-{bound}-{skips}", flags, skips) for skips in (True, False))
                self.assertEqual(skipping, spared)

    def two_rounds(self, tag, flags, skips):
        """The parameters after two rounds that count, from the journal too; between them one that does not."""
        server = self.launch_server(*flags, run=tag, name=tag).wait_ready()
        first = Peer(server.data, "first").join().until_round()
        first.whole()
        first.until_round()
        if skips:
            self.push_squares_too_large(first)
            wait_for(lambda: server.cluster()["skipped_rounds"] == 1, "the round that is skipped")
            self.assertIn("is not finite in round 2, though every contribution is", server.events("round.skipped")[0]["why"])
            first.until_round()
        first.whole()
        wait_for(lambda: server.cluster()["version"] == 3, "the second one that counts")
        first.close()
        found = self.state(server, CHUNKS)
        server.kill()
        again = self.launch_server(*flags, "--resume", run=tag, name=f"again-{tag}").wait_ready()
        self.assertEqual(self.state(again, CHUNKS), found)
        return found

    def test_a_journal_ends_before_such_a_round(self):
        server = self.launch_server(*self.BY_WORKERS).wait_ready()
        first = Peer(server.data, "first").join().until_round()
        first.whole()
        first.until_round()
        before = server.get("/v1/parameters")
        self.push_squares_too_large(first)
        server.wait_event("job.halted", error="is not finite in round 2")
        first.close()
        server.kill()
        again = self.launch_server(*self.BY_WORKERS, "--resume", name="again").wait_ready()
        found = again.get("/v1/parameters")
        self.assertEqual((found["version"], found["parameters"]), (before["version"], before["parameters"]))

    def test_a_journal_with_such_a_round_is_not_followed(self):
        server = self.launch_server(*self.BY_WORKERS, "--nonfinite", "propagate").wait_ready()
        first = Peer(server.data, "first").join().until_round()
        self.push_squares_too_large(first)
        wait_for(lambda: server.cluster()["version"] == 2, "the round")
        first.close()
        server.kill()
        again = self.launch_server(*self.BY_WORKERS, "--resume", name="again")
        again.wait_event("server.failed", error="a round in the journal made tensor a not finite")

    def test_members_messages_do_not_fill_the_log(self):
        server = self.server_with_state()
        failing = Peer(server.data, "failing").join().until_round()
        failing.send(34, failing.place + struct.pack("<BI", 0, 0) + struct.pack("<I", 3) + b"why")
        self.assertIn("unexpected message kind 34", failing.refusal())
        failing.close()
        loud = Peer(server.data, "loud").join().until_round()
        for _ in range(500):
            loud.send(39, struct.pack("<QBI", 1, 2, 3) + b"why")
        wait_for(lambda: server.metric("centroid_budget_refused_total", resource="member_lines") > 400, "lines that are left out")
        self.assertEqual([], server.events("exchange.failed"))
        self.assertLess(len(server.events("checkpoint.state_save_failed")), 60)
        loud.whole()
        wait_for(lambda: server.cluster()["version"] > 2, "the next version")
        loud.close()

    def test_skipped_rounds_do_not_fill_the_log(self):
        server = self.server_with_state("--nonfinite", "skip")
        loud = Peer(server.data, "loud").join()
        for _ in range(200):
            loud.until_round().end(nonfinite=True)
        wait_for(lambda: server.cluster()["skipped_rounds"] == 200, "the rounds")
        left_out = server.metric("centroid_budget_refused_total", resource="member_lines")
        self.assertEqual(200, len(server.events("round.skipped")) + left_out)
        self.assertGreater(left_out, 100)
        told = [event for event in server.get("/v1/events")["events"] if event["type"] == "round.skipped"]
        self.assertLess(len(told), 100)
        loud.close()

    def test_members_that_take_shares_and_go_do_not_fill_the_log(self):
        server = self.launch_server("--min-workers", 1, "--max-workers", 1).wait_ready()
        left_out = lambda: server.metric("centroid_budget_refused_total", resource="arrival_lines")  # noqa: E731
        members = 0
        while left_out() < 200:
            members += 1
            Peer(server.data, f"restless-{members}").join().until_round().close()
            wait_for(lambda: all(worker["state"] != "active" for worker in server.workers()), "its end")
        for event in ("member.state_sent", "share.requeued"):
            with self.subTest(event):
                self.assertGreater(len(server.events(event)), 1)
                self.assertLess(len(server.events(event)), members - 1)

    def test_a_first_worker_that_sends_no_initial_values_blocks_no_other(self):
        server = self.launch_server("--min-workers", 2, "--stall-timeout", "2s", "--lease", "60s").wait_ready()
        mute, other = Peer(server.data, "a-mute").join(), Peer(server.data, "b-other").join()
        wait_for(lambda: any(wait["waits_for"] == "a-mute" and "initial values" in wait["what"] for wait in server.get("/v1/waits")["waits"]), "that it is named")
        server.wait_event("store.initial_values_stalled", worker="a-mute", next="b-other")
        other.until_round()
        wait_for(lambda: server.cluster()["version"] == 1, "the initial values of the other")
        for peer in (mute, other):
            peer.close()


if __name__ == "__main__":
    main(at_a_time=3)
