"""What a worker must not send to any of several servers: refused by name, and no server's state changes a bit. servers_refusals_test.py BIN_DIR"""

import pathlib
import signal
import struct
import sys
import threading
import types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import DONE, USAGE, main, wait_for
from harness.peer import Peer as LeaderPeer
from harness.servers import MODEL, ServersTest
from harness.servers_peer import SIZES, Peer, Session
from harness.wire import GOODBYE, REQUEST, Link, connect, header, hello, read_error, read_frame, text

NAN, INFINITY = float("nan"), float("inf")
NORM = sum(SIZES) ** 0.5  # of ones


class Stale(Peer):
    """It stays with the first route that it was told."""

    told = None

    def enter(self, head):
        if not self.owners:
            return super().enter(head)
        kept = self.owners, self.route, self.servers, self.sessions
        self.parse(head)
        self.told = self.route, self.owners
        self.owners, self.route, self.servers, self.sessions = kept


def halves(count, bad):
    """2 bytes a number, the last one `bad`."""
    return struct.pack(f"<{count}H", *[0] * (count - 1), bad)


# So many numbers that are 1 or -1.
ONES = {
    "f32": lambda n: struct.pack(f"<{n}f", *[1.0] * n),
    "bf16": lambda n: struct.pack(f"<{n}H", *[0x3F80] * n),
    "f16": lambda n: struct.pack(f"<{n}H", *[0xBC00] * n),
    "int8": lambda n: b"\2" + struct.pack("<H", 0x3F80) + b"\1" * n,
    "sign": lambda n: b"\3" + struct.pack("<H", 0x3F80) + bytes((n + 7) // 8),
    "topk:0.5,values=bf16": lambda n: b"\1" + struct.pack(f"<{n}H", *[0x3F80] * n),
    "topk:0.5": lambda n: b"\0" + struct.pack(f"<{n}f", *[1.0] * n),
}

# By codec: a sound payload of so many numbers, and those that hold NaN or infinity in another place of the format.
CODECS = {
    "f32": (lambda n: bytes(4 * n), {
        "NaN": lambda n: struct.pack(f"<{n}f", *[0.0] * (n - 1), NAN),
        "infinity": lambda n: struct.pack(f"<{n}f", *[0.0] * (n - 1), -INFINITY)}),
    "bf16": (lambda n: bytes(2 * n), {"NaN": lambda n: halves(n, 0x7FC1), "infinity": lambda n: halves(n, 0xFF80)}),
    "f16": (lambda n: bytes(2 * n), {"NaN": lambda n: halves(n, 0x7E00), "infinity": lambda n: halves(n, 0xFC00)}),
    "int8": (lambda n: b"\2" + bytes(2 + n), {
        "NaN as scale": lambda n: b"\2" + struct.pack("<H", 0x7FC0) + bytes(n),
        "infinity as scale": lambda n: b"\2" + struct.pack("<H", 0x7F80) + bytes(n),
        "NaN in a dense f32 part": lambda n: b"\0" + struct.pack(f"<{n}f", *[0.0] * (n - 1), NAN)}),
    "sign": (lambda n: b"\3" + bytes(2 + (n + 7) // 8), {
        "NaN as scale": lambda n: b"\3" + struct.pack("<H", 0x7FC0) + bytes((n + 7) // 8),
        "NaN in a dense f32 part": lambda n: b"\0" + struct.pack(f"<{n}f", *[0.0] * (n - 1), NAN)}),
    "topk:0.5,values=bf16": (lambda n: b"\1" + bytes(2 * n), {
        "NaN": lambda n: b"\1" + halves(n, 0x7FC0),
        "NaN in a dense f32 part": lambda n: b"\0" + struct.pack(f"<{n}f", *[0.0] * (n - 1), NAN)}),
    "topk:0.5": (lambda n: b"\0" + bytes(4 * n), {
        "NaN in a dense f32 part": lambda n: b"\0" + struct.pack(f"<{n}f", *[0.0] * (n - 1), NAN)}),
}


class Lies(ServersTest):
    def started(self, *arguments, of_shards=()):
        """Three servers with a chunk each, and one committed round."""
        flags = ["--servers", 3, "--apply", "worker", "--optimizer", "momentum", "--min-workers", 1, "--lease", "60s"]
        leader = self.launch_server(*flags, *arguments).wait_ready()
        shards = [self.shard(leader, name, *of_shards) for name in ("b", "c")]
        first = Peer(leader.data, "first").join().until_round()
        self.assertEqual(sorted(first.owners), [0, 1, 2])
        self.contribute(first)
        first.until_round()
        first.close()
        wait_for(lambda: leader.cluster()["version"] == 2, "version 2")
        return leader, shards

    def contribute(self, peer):
        for chunk, count in enumerate(SIZES):
            peer.push(chunk, [1.0] * count)
        peer.end()

    def state(self, leader):
        looker = Peer(leader.data, "looker").join().until_round()
        looker.close()
        self.assertEqual(len(looker.state), 2 * len(SIZES), "parameters and momentum")
        return looker.state

    def test_numbers_that_are_not_finite_are_refused_by_the_server_that_gets_them(self):
        leader, shards = self.started()
        before = self.state(leader)
        for codec, (sound, lies) in CODECS.items():
            for what, lie in lies.items():
                for bad in range(len(SIZES)):
                    with self.subTest(codec=codec, lie=what, chunk=bad):
                        liar = Peer(leader.data, "liar", codec).join().until_round()
                        others = [chunk for chunk in range(len(SIZES)) if chunk != bad]
                        for chunk in others:
                            liar.push_bytes(chunk, sound(SIZES[chunk]))
                        liar.push_bytes(bad, lie(SIZES[bad]))
                        owner = liar.owners[bad]
                        if owner != 0:
                            liar.end()  # says that all is well; at the leader it has to wait
                        said = liar.sessions[owner].refusal() if owner else liar.refusal()
                        self.assertIn(f"push of chunk {bad} by liar", said)
                        self.assertRegex(said, "finite|scale")
                        if owner:
                            self.assertIn(f"on server '{liar.sessions[owner].name}'", said)
                        self.assertEqual(leader.cluster()["version"], 2)
                        liar.close()
                        self.assertEqual(self.state(leader), before, "the state has changed")
        good = Peer(leader.data, "good").join().until_round()
        self.assertEqual(good.state, before)
        self.contribute(good)
        wait_for(lambda: leader.cluster()["version"] == 3, "the next version")
        good.close()
        self.assertEqual(leader.post("/v1/job:stop")[0], 202)
        self.assert_exit(DONE, leader, *shards)

    def test_a_norm_that_is_not_that_of_the_chunks_is_refused(self):
        """Whether PushEnd comes last or the chunks of another server do."""
        leader, _ = self.started()
        before = self.state(leader)
        for codec, ones in ONES.items():
            for factor in (1.01, 0.99, 0.0):
                for late in range(len(SIZES)):
                    with self.subTest(codec=codec, factor=factor, last=late):
                        liar = Peer(leader.data, "liar", codec).join().until_round()
                        of_leader = liar.owners.index(0)
                        for chunk in [one for one in range(len(SIZES)) if one != late or one == of_leader]:
                            liar.push_bytes(chunk, ones(SIZES[chunk]))
                        liar.end(norm=factor * NORM)
                        if late != of_leader:
                            liar.push_bytes(late, ones(SIZES[late]))
                        said = liar.refusal()
                        for part in ("PushEnd of liar in round 2", f"claims norm {factor * NORM:.6f}", f"its chunks have {NORM:.6f}"):
                            self.assertIn(part, said)
                        liar.close()
                        self.assertEqual(self.state(leader), before, "the state has changed")
                        self.assertEqual(leader.cluster()["version"], 2)
        for number, (codec, ones) in enumerate(ONES.items()):  # and true ones go in
            with self.subTest(codec=codec):
                good = Peer(leader.data, "good", codec).join().until_round()
                for chunk, count in enumerate(SIZES):
                    good.push_bytes(chunk, ones(count))
                good.end(norm=(1 + 0.0009 * (-1) ** number) * NORM)
                wait_for(lambda: leader.cluster()["version"] == 3 + number, "the next version")
                good.close()

    def test_workers_of_every_codec_say_true_norms(self):
        leader = self.leader(2, "--epochs", 1000000, "--min-workers", 1, "--apply", "worker", "--optimizer", "sgd")
        self.shard(leader, "b")
        for number, codec in enumerate(["f32", "bf16:feedback=on", "bf16", "f16", "int8", "int8:rounding=stochastic", "sign", "topk:0.1", "topk:0.1,values=int8", "topk:0.1,scope=global"]):
            with self.subTest(codec=codec):
                worker = self.worker(leader, f"w{number}", "--codec", codec, model=MODEL)
                leader.wait_event("member.joined", worker=f"w{number}")
                leader.wait_more_rounds(10)
                worker.send(signal.SIGTERM)
                self.assert_exit(DONE, worker)
        self.assertEqual([], leader.events("member.lost"))

    def test_they_go_in_where_that_is_wanted(self):
        leader, _ = self.started("--nonfinite", "propagate")
        peer = Peer(leader.data, "peer").join().until_round()
        for chunk, count in enumerate(SIZES):
            peer.push(chunk, [NAN] * count)
        peer.end()
        wait_for(lambda: leader.cluster()["version"] == 3, "the next version")
        peer.close()
        told = leader.get("/v1/parameters")["parameters"]
        self.assertEqual(sum(one["nonfinite"] for one in told), sum(SIZES))

    def assert_refused_by_each(self, leader, before, name, act, *texts):
        """`act(liar, session, chunk)` for each server that is not the leader, with the chunk that lies there."""
        for chunk, count in enumerate(SIZES):
            liar = Peer(leader.data, "liar").join().until_round()
            session = liar.sessions[liar.owners[chunk]]
            if session:
                with self.subTest(name, server=session.name):
                    act(liar, session, chunk)
                    said = session.refusal()
                    for expected in texts:
                        self.assertIn(expected.format(chunk=chunk, bytes=4 * count, more=4 * count + 4, server=session.name), said)
            liar.close()
            self.assertEqual(self.state(leader), before, "the state has changed")
            self.assertEqual(leader.cluster()["version"], 2)

    def test_every_lie_to_a_shard_server_is_named_and_changes_nothing(self):
        leader, shards = self.started()
        before = self.state(leader)

        def numbers(liar, chunk, count=None, weight=None):
            liar.push(chunk, [1.0] * (SIZES[chunk] if count is None else count), weight=weight)

        def push_unknown(liar, session, chunk):
            liar.send_by(session.peer, liar.PUSH, liar.place + struct.pack("<Id", 3, liar.weight), bytes(4))

        by_push = "push of chunk {chunk} by liar in round 2"
        cases = {
            "unknown chunk": (push_unknown, "push of chunk 3 by liar", "there is no such chunk"),
            "too many numbers": (lambda p, s, c: numbers(p, c, SIZES[c] + 1), by_push, "{more} bytes, at most {bytes}"),
            "too few numbers": (lambda p, s, c: p.push_bytes(c, bytes(4 * SIZES[c] - 1)), by_push, "on server '{server}'"),
            "a chunk twice": (lambda p, s, c: (numbers(p, c), numbers(p, c)), by_push, "on server '{server}'", "chunk {chunk} of rank", "arrived twice"),
            "weight of NaN": (lambda p, s, c: numbers(p, c, weight=NAN), "Push.weight is"),
            "weight below 0": (lambda p, s, c: numbers(p, c, weight=-1.0), "Push.weight is -1"),
            "a cut head": (lambda p, s, c: p.send_by(s.peer, p.PUSH, p.place), "malformed Push"),
            "an unknown message": (lambda p, s, c: p.send_by(s.peer, 15), "kind 15"),
            "what is the leader's": (lambda p, s, c: p.send_by(s.peer, p.ROUTE, bytes(16)), "a shard server takes Enter (125) and then Push (22)"),
        }
        for name, (act, *texts) in cases.items():
            self.assert_refused_by_each(leader, before, name, act, *texts)
        # Of whoever lies about lengths nothing more is read; they are told why.
        for field, length in (("payload_bytes", 1 << 40), ("head_bytes", 1 << 30)):
            self.assert_refused_by_each(leader, before, field, lambda p, s, c, far={field: length}: s.peer.sendall(header(p.PUSH, **far)), f"{length} bytes is over the limit of")
        good = Peer(leader.data, "good").join().until_round()
        self.contribute(good)
        wait_for(lambda: leader.cluster()["version"] == 3, "the next version")
        good.close()
        self.assertEqual(leader.post("/v1/job:stop")[0], 202)
        self.assert_exit(DONE, leader, *shards)

    def test_what_was_never_opened_is_refused_by_name(self):
        leader, _ = self.started(of_shards=["--stall-timeout", "1s"])  # so long it waits for the leader's word
        before = self.state(leader)
        for field, name in enumerate(("generation", "round", "attempt")):

            def lie(liar, session, chunk, field=field):
                place = list(struct.unpack("<QQI", liar.place))
                place[field] += 1
                liar.place = struct.pack("<QQI", *place)
                liar.push(chunk, [1.0] * SIZES[chunk])

            self.assert_refused_by_each(leader, before, name, lie, "Push of liar is for generation", "which was never opened; the newest is generation", "says server '{server}'")
        staged = sum(server["staged_bytes"] for server in leader.get("/v1/servers")["servers"])
        self.assertEqual(staged, 0)

    def test_only_members_enter(self):
        leader, _ = self.started(of_shards=["--stall-timeout", "1s"])
        before = self.state(leader)
        old = Peer(leader.data, "twin").join().until_round()
        place, pushing = old.place, old.sessions[1]
        new = Peer(leader.data, "twin").join().until_round()  # it is fenced, and the servers know
        self.assertGreater(new.member, old.member)
        chunk = old.owners.index(1)
        old.send_by(pushing.peer, old.PUSH, place + struct.pack("<Id", chunk, old.weight), bytes(4 * SIZES[chunk]))
        self.assertIn("fenced", pushing.refusal())
        cases = {
            "fenced": (old.member, "twin", f"fenced: worker 'twin' is refused by server 'b': member {old.member} of that name is none any more: join the leader again"),
            "of another name": (new.member, "other", f"fenced: worker 'other' is refused by server 'b': member {new.member} of that name is none any more"),
            "invented": (new.member + 1000, "twin", f"fenced: worker 'twin' is refused by server 'b': member {new.member + 1000} is unknown to its leader"),
        }
        for name, (member, called, expected) in cases.items():
            with self.subTest(name):
                who = types.SimpleNamespace(name=called, run_id=new.run_id, member=member, codec="f32", send_by=new.send_by)
                with self.assertRaisesRegex(AssertionError, expected):
                    Session(who, *new.servers[1], new.route)
        self.assertEqual([], [event for event in leader.events("member.lost") if event["worker"] == "twin" and event["member"] == new.member])
        self.contribute(new)  # nobody has taken its place
        wait_for(lambda: leader.cluster()["version"] == 3, "the next version")
        new.close(), old.close()
        self.assertNotEqual(self.state(leader), before)

    def test_early_contributions_wait_for_the_leaders_opened(self):
        flags = ["--servers", 2, "--apply", "worker", "--optimizer", "momentum", "--min-workers", 1, "--lease", "60s"]
        leader = self.launch_server(*flags).wait_ready()
        link = Link(leader.data)
        self.addCleanup(link.close)
        shard = self.shard(link.endpoint, "b", "--log.level", "debug")
        first = Peer(leader.data, "first").join().until_round()
        other = Peer(leader.data, "other").join()
        self.contribute(first)
        first.until_round(), other.until_round()
        self.assertEqual(leader.cluster()["version"], 2)
        link.down.hold()
        mine = first.owners.index(0)
        first.push(mine, [1.0] * SIZES[mine])
        first.close()
        other.until_round()  # the next attempt, for a part of the first is in the sum
        self.contribute(other)
        shard.wait_event("push.deferred", worker="other", round=2)
        self.assertEqual(leader.cluster()["version"], 2)
        link.down.release()
        other.until_round()
        self.assertEqual(leader.cluster()["version"], 3)
        late = Peer(leader.data, "late").join()
        self.assertEqual(late.next()[0], late.JOIN)  # the leader names it to others with the next attempt
        entered = []
        thread = threading.Thread(target=lambda: entered.append(Session(late, *other.servers[1], other.route)))
        thread.start()
        shard.wait_event("enter.deferred", worker="late")
        other.send(other.LEAVE, text("the test"), flags=REQUEST, identity=9)
        late.until_round()
        thread.join(60)
        self.assertEqual(len(entered), 1)
        entered[0].connection.__exit__(None, None, None)
        other.close(), late.close()

    def test_weights_that_differ_between_servers_are_refused(self):
        leader, _ = self.started()
        before = self.state(leader)
        for wrong in range(len(SIZES)):
            with self.subTest(chunk=wrong):
                liar = Peer(leader.data, "liar").join().until_round()
                for chunk, count in enumerate(SIZES):
                    liar.push(chunk, [1.0] * count, weight=99.0 if chunk == wrong else None)
                liar.end()
                said = liar.refusal()
                self.assertIn("gives weight", said)
                self.assertIn("99", said)
                liar.close()
                self.assertEqual(self.state(leader), before)
                self.assertEqual(leader.cluster()["version"], 2)

    def test_an_enter_by_an_old_route_or_at_the_wrong_server_is_sent_to_the_leader(self):
        leader, _ = self.started()
        before = self.state(leader)
        peer = Peer(leader.data, "peer").join().until_round()
        for route in (peer.route - 1, peer.route + 1):
            with self.subTest(route=route):
                peer.close_shards()
                with self.assertRaisesRegex(AssertionError, f"comes by route {route}, the present one is {peer.route}.*join again"):
                    Session(peer, *peer.servers[1], route)
        peer.close()
        for chunk in range(len(SIZES)):
            with self.subTest(chunk=chunk):
                lost = Peer(leader.data, "lost").join().until_round()
                wrong = next(index for index in range(1, len(SIZES)) if index != lost.owners[chunk])
                lost.owners = tuple(wrong if one == chunk else owner for one, owner in enumerate(lost.owners))
                lost.push(chunk, [1.0] * SIZES[chunk])
                said = lost.sessions[wrong].refusal()
                for expected in (f"push of chunk {chunk} by lost", f"by route {lost.route}", f"not on '{lost.sessions[wrong].name}'", "join again"):
                    self.assertIn(expected, said)
                lost.close()
                self.assertEqual(self.state(leader), before, "the state has changed")
        self.assertEqual(leader.cluster()["version"], 2)

    def test_a_session_without_enter_is_closed(self):
        leader, _ = self.started()
        peer = Peer(leader.data, "peer").join().until_round()
        with connect(peer.servers[1][1]) as stranger:
            stranger.sendall(hello(name="stranger"))
            read_frame(stranger)
            kind, _, head = read_frame(stranger)
        self.assertEqual(kind, GOODBYE)
        self.assertIn("no Enter or RowsOpen came within 10 s", read_error(head)[1])
        for chunk, count in enumerate(SIZES):  # who has entered is still there
            peer.push(chunk, [1.0] * count)
        peer.end()
        wait_for(lambda: leader.cluster()["version"] == 3, "the next version")
        peer.close()

    def test_what_cannot_count_any_more_is_not_kept(self):
        """A contribution whole on the other servers whose round closes without it, and what follows of it."""
        leader, _ = self.started("--policy", "quorum:1,grace=0", "--late", "drop", "--lease", "2s")

        def staged():
            return sum(server["staged_bytes"] for server in leader.get("/v1/servers")["servers"])

        fast = Peer(leader.data, "fast").join().until_round()
        slow = Peer(leader.data, "slow").join()
        self.contribute(fast)
        fast.until_round(), slow.until_round()
        self.assertEqual(leader.cluster()["version"], 3)
        here = slow.owners.index(0)
        with slow.beating(), fast.beating():
            elsewhere = [chunk for chunk in range(len(SIZES)) if chunk != here]
            slow.push(elsewhere[0], [1.0] * SIZES[elsewhere[0]])
            wait_for(lambda: staged() > 0, "that it is kept")
            self.contribute(fast)
            wait_for(lambda: leader.cluster()["version"] == 4, "the next version")
            slow.push(elsewhere[1], [1.0] * SIZES[elsewhere[1]])  # was on its way
            wait_for(lambda: staged() == 0, "that nothing is kept")
            fast.until_round()
            self.contribute(fast)
            wait_for(lambda: leader.cluster()["version"] == 5, "the version after it")
            wait_for(lambda: staged() == 0, "that nothing is kept")
        slow.close(), fast.close()

    def test_a_chunk_by_an_old_route_is_refused_and_its_sender_gets_the_new_one(self):
        leader = self.launch_server("--servers", 2, "--apply", "worker", "--optimizer", "momentum", "--min-workers", 1, "--lease", "60s").wait_ready()
        self.shard(leader, "b")
        stale = Stale(leader.data, "stale").join().until_round()
        self.contribute(stale)
        stale.until_round()
        self.shard(leader, "c").wait_event("leader.joined")
        moved = []
        for _ in range(20):  # by the old route, until a chunk has another owner
            self.contribute(stale)
            stale.until_round()
            moved = [chunk for chunk, owner in enumerate(stale.told[1]) if owner != stale.owners[chunk]] if stale.told else []
            if moved:
                break
        self.assertTrue(moved, "no chunk moved")
        self.assertGreater(stale.told[0], stale.route)
        version = leader.cluster()["version"]
        stale.push(moved[0], [1.0] * SIZES[moved[0]])
        owner = stale.owners[moved[0]]
        said = stale.sessions[owner].refusal() if owner else stale.refusal()
        for expected in (f"push of chunk {moved[0]} by stale", "by route", "join again"):
            self.assertIn(expected, said)
        if owner:
            self.assertIn("it lies on server 'c', not on 'b'", said)
        stale.close()
        self.assertEqual(leader.cluster()["version"], version)
        again = Peer(leader.data, "stale").join().until_round()
        self.assertGreaterEqual(again.route, stale.told[0])
        self.contribute(again)
        wait_for(lambda: leader.cluster()["version"] > version, "the next version")
        again.close()

    def test_a_model_with_too_many_chunks_is_refused_by_name(self):
        many = [("many", (16 * 120_000,))]  # chunks of 16 numbers
        flags = ["--chunk-bytes", 64, "--min-workers", 1, "--optimizer", "sgd"]
        for clip, most in ((["--clip-norm", "1"], 114_424), ([], 457_696)):
            with self.subTest(clip=clip):
                leader = self.launch_server("--servers", 2, *flags, *clip, name=f"leader{most}", run=f"run{most}").wait_ready()
                peer = LeaderPeer(leader.data, "peer", many).join()
                if clip:
                    self.assertIn(f"the model has 120000 chunks, on several servers with clip_norm at most {most} fit a message: set a larger chunk_bytes, which is 64", peer.refusal())
                else:
                    self.assertEqual(peer.next()[:2], (peer.JOIN, 2))
                peer.close()
        one = self.launch_server(*flags, "--clip-norm", "1", name="one", run="one").wait_ready()
        peer = LeaderPeer(one.data, "peer", many).join()
        while peer.next()[0] != peer.INIT_REQUEST:
            pass
        self.assert_status(self.shard(one, "late"), USAGE, "server 'late' is refused", "the model has 120000 chunks")
        peer.close()

    def together(self, *arguments):
        """Two workers in one round; the second is going to hear nothing."""
        leader, shards = self.started(*arguments)
        good = Peer(leader.data, "good").join().until_round()
        deaf = Peer(leader.data, "deaf").join()
        self.contribute(good)
        good.until_round(), deaf.until_round()
        self.assertEqual(leader.cluster()["version"], 3)
        return leader, good, deaf

    def assert_goes_on_without(self, leader, good, deaf, *texts):
        said = deaf.refusal()
        for expected in texts:
            self.assertIn(expected, said)
        while leader.cluster()["version"] == 3:
            good.until_round()  # the same one, without the other
            if leader.cluster()["version"] == 3:
                self.contribute(good)
        gone = [worker["state"] for worker in leader.get("/v1/workers")["workers"] if worker["name"] == "deaf"]
        self.assertEqual(gone, ["dead"])
        self.assertIn(texts[0], str([event for event in leader.get("/v1/events")["events"] if event["type"] == "member.lost"]))
        good.close(), deaf.close()

    def test_a_worker_that_misses_a_refusal_blocks_nobody(self):
        leader, good, deaf = self.together()
        bad = next(chunk for chunk in range(len(SIZES)) if deaf.owners[chunk] != 0)
        for chunk, count in enumerate(SIZES):
            deaf.push(chunk, [NAN if chunk == bad else 1.0] * count)
        deaf.end()  # and reads nothing from the other server
        self.contribute(good)
        server = deaf.sessions[deaf.owners[bad]].name
        self.assert_goes_on_without(leader, good, deaf, f"server '{server}'", f"push of chunk {bad} by deaf", "finite")

    def test_a_worker_that_left_one_server_and_sends_heartbeats_blocks_nobody(self):
        leader, good, deaf = self.together("--lease", "2s")
        server = deaf.sessions[1].name
        with deaf.beating(), good.beating():
            deaf.sessions[1].connection.__exit__(None, None, None)
            self.contribute(good)
            self.assert_goes_on_without(leader, good, deaf, f"server '{server}'", "no session here for 2000 ms")


if __name__ == "__main__":
    main(at_a_time=4)
