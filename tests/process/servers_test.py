"""A model on several servers: same bits, checkpoints, servers that are lost, come and go. servers_test.py BIN_DIR"""

import array
import concurrent.futures
import contextlib
import json
import math
import pathlib
import signal
import struct
import sys
import time
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import DONE, FAILED, UNHURRIED, USAGE, Hold, Process, bar, main, wait_for
from harness.servers import CHUNKS, MODEL, SLOW, ServersTest
from harness.wire import ERROR, REQUEST, connect, header, hello, read_frame

PULL = 80


class Bits(ServersTest):
    def test_three_servers_end_with_the_bits_of_one(self):
        self.train(1, 40, run="one")
        self.train(3, 40, run="three")
        self.assertEqual(self.model_bytes("three"), self.model_bytes("one"))

    def test_a_checkpoint_restores_onto_any_number_of_servers(self):
        self.train(1, 60, run="whole")
        self.train(1, 20, run="parts")
        self.train(3, 40, "--resume", run="parts")
        self.train(2, 60, "--resume", run="parts")
        self.assertEqual(self.model_bytes("parts"), self.model_bytes("whole"))

    def test_results_that_are_compressed_keep_what_was_left_out_on_any_number_of_servers(self):
        codec = ["--codec-down", "topk:0.1,values=int8,warmup=30"]
        self.train(1, 60, *codec, run="whole")
        self.train(1, 20, *codec, run="parts")
        self.train(3, 40, *codec, "--resume", run="parts")
        self.train(2, 60, *codec, "--resume", run="parts")
        self.assertEqual(self.model_bytes("parts"), self.model_bytes("whole"))


class Workers(ServersTest):
    def test_what_a_worker_has_contributed_counts_though_it_is_gone_before_the_round_closes(self):
        for policy in ("bsp", "quorum:3"):
            with self.subTest(policy=policy):
                name = policy[:4]
                leader = self.leader(3, "--rounds", 100_000, "--policy", policy, run=name, name=f"leader-{name}")
                shards = [self.shard(leader, f"{which}-{name}") for which in "bc"]
                workers = self.workers(leader, f"-{name}")
                leader.wait_round(20)
                workers[1].send(signal.SIGSTOP)
                leader.wait_missing(f"w1-{name}")
                workers[0].kill()
                leader.wait_event("member.lost", worker=f"w0-{name}")
                workers[1].send(signal.SIGCONT)
                leader.wait_more_rounds(20)
                self.assertEqual([], leader.events("servers.chunks_lost"))
                for process in (leader, *shards, *workers):
                    process.kill()


class WorkersState(ServersTest):
    """What workers keep themselves is of the round that the checkpoint is of, on several servers too."""

    EVERY = 15  # rounds from checkpoint to checkpoint

    def job(self, tag, *arguments, run, holds=(None, None, None)):
        flags = ["--servers", 2, "--min-workers", 3, *CHUNKS, "--local-steps", 4, "--checkpoint.every-rounds", self.EVERY, "--rounds", 4 * self.EVERY]
        leader = self.launch_server(*flags, *arguments, run=run, name=f"leader-{tag}").wait_ready()
        shard = self.shard(leader, f"s-{tag}")
        codec = ["--codec", "topk:0.1", "--inner.lr", "0.01"]
        workers = {f"w{i}-{run}": hold and hold.environment for i, hold in enumerate(holds)}
        state = {name: ["--state-dir", self.folder / f"state-{name}"] for name in workers}
        return leader, [shard, *(self.worker(leader, name, *codec, *state[name], model=MODEL, environment=held) for name, held in workers.items())]

    def kept(self, worker):
        """What the worker keeps on disk of the round of the first checkpoint: its local steps, and what its codec left out."""
        return list((self.folder / f"state-{worker}").glob(f"*/checkpoint-*{self.EVERY}/manifest.json"))

    def test_all_killed_end_with_the_bits_of_a_job_that_was_not(self):
        whole, others = self.job("whole", "--exit-when-finished", run="whole")
        self.assert_exit(DONE, *others, whole)
        for later in (0, 4):  # rounds that are made after the checkpoint, and lost
            with self.subTest(later=later):
                run = f"run-{later}"
                holds = [Hold(self, "worker.share_taken", f"hold-{run}-{i}", self.EVERY + 1 + later).close() for i in range(3)]
                leader, others = self.job(f"before-{run}", run=run, holds=holds)
                for hold, worker in zip(holds, others[1:]):
                    hold.wait_reached()
                    wait_for(lambda name=worker.name: len(self.kept(name)) == 2, f"what {worker.name} keeps")
                self.assertEqual(leader.wait_event("checkpoint.written")["version"], self.EVERY + 1)
                for process in [leader, *others]:
                    process.kill()
                again, others = self.job(f"after-{run}", "--resume", "--exit-when-finished", run=run)
                self.assert_exit(DONE, *others, again)
                began = [worker.wait_event("local.restored") for worker in others[1:]]
                self.assertEqual({event["after_round"] for event in began}, {again.wait_event("checkpoint.loaded")["round"]})
                self.assertEqual([worker.events("feedback.reset") for worker in others[1:]], 3 * [[]])
                self.assertEqual(self.model_bytes(run), self.model_bytes("whole"))


class Loss(ServersTest):
    GOAL = 60

    def started(self, *arguments, run="run"):
        """A job some rounds behind its checkpoint; the last worker is held in the next one."""
        goal = ["--rounds", self.GOAL, "--exit-when-finished", "--checkpoint.every-rounds", 20]
        leader = self.leader(3, *goal, *arguments, run=run)
        shards = [self.shard(leader, name, "--join-timeout", "20s") for name in ("b", "c")]
        computes = Hold(self, "worker.share_taken", count=26).close()
        workers = [self.worker(leader, f"w{i}", model=MODEL, environment=computes.environment if i == 2 else None) for i in range(3)]
        computes.wait_reached()
        leader.wait_event("checkpoint.written")
        return leader, shards, workers, computes

    def test_job_is_stopped_after_servers_came_and_went(self):
        leader = self.leader(1, "--epochs", 1_000_000, "--checkpoint.every-rounds", 20, "--servers-wait", "2s")
        b = self.shard(leader, "b")
        workers = self.workers(leader)
        self.wait_placed(leader, 2)
        leader.wait_event("checkpoint.written")
        b.kill()
        leader.wait_event("servers.state_restored")
        leader.wait_more_rounds(5)
        again = self.shard(leader, "b")
        self.wait_placed(leader, 2)
        leader.wait_more_rounds(20)
        self.assertEqual(leader.post("/v1/job:stop")[0], 202)
        self.assert_exit(DONE, *workers)
        again.kill()

    def test_killed_server_that_comes_back_costs_the_rounds_since_the_checkpoint(self):
        leader, (b, c), workers, computes = self.started("--servers-wait", "30s")
        b.kill()
        lost = leader.wait_event("servers.chunks_lost")
        self.assertEqual(lost["server"], "b")
        computes.open()
        wait_for(lambda: "server 'b' is gone" in json.dumps(leader.get("/v1/waits")), "the cause in /v1/waits")
        again = self.shard(leader, "b")
        self.assertGreater(leader.wait_event("servers.state_restored")["version"], 1)
        self.assert_exit(DONE, *workers, leader, again, c)
        self.assert_undisturbed(self.GOAL)

    def test_a_worker_that_is_lost_together_with_a_server_is_not_waited_for_without_end(self):
        leader, (b, c), workers, computes = self.started("--servers-wait", "1s", "--lease", "2s")
        workers[0].kill()
        b.kill()
        leader.wait_event("servers.chunks_lost")
        computes.open()
        again = self.shard(leader, "b")
        self.assert_exit(DONE, *workers[1:], leader, c)
        again.kill()  # it may have come too late: the job can do without it

    def test_server_that_stays_away_is_replaced_by_the_others(self):
        leader, (b, c), workers, computes = self.started("--servers-wait", "300ms")
        b.kill()
        leader.wait_event("servers.chunks_lost")
        computes.open()
        self.assertEqual(leader.wait_event("servers.state_restored")["servers"], 2)
        self.assert_exit(DONE, *workers, leader, c)
        self.assert_undisturbed(self.GOAL)

    def test_without_a_checkpoint_the_job_begins_again_and_says_so(self):
        leader = self.leader(1, "--epochs", 1_000_000, "--servers-wait", "300ms")
        self.assertIn("checkpoint.every_rounds", leader.wait_event("job.durability_reduced")["action"])
        b = self.shard(leader, "b")
        workers = self.workers(leader)
        self.wait_placed(leader, 2)
        leader.wait_more_rounds(5)
        b.kill()
        lost = leader.wait_event("job.restarted")["lost_round"]
        self.assertGreaterEqual(lost, 5)
        told = wait_for(lambda: [event for worker in workers for event in worker.events("job.restarted")], "a worker that is in round 1 again")
        self.assertIn(told[0]["lost_round"], (lost - 1, lost))
        (told,) = leader.get("/v1/events?type=job.restarted")["events"]
        self.assertEqual(told["lost_round"], lost)
        leader.wait_more_rounds(5)
        self.assertEqual(leader.post("/v1/job:stop")[0], 202)
        self.assert_exit(DONE, *workers)

    def test_killed_leader_takes_its_servers_and_workers_again(self):
        leader, shards, workers, computes = self.started()
        leader.kill()
        computes.open()
        again = self.leader(3, "--rounds", self.GOAL, "--exit-when-finished", "--resume", name="again",
                            listen=leader.data, api=leader.api)
        self.assert_exit(DONE, *workers, again, *shards)
        self.assert_undisturbed(self.GOAL)


class Strangers(ServersTest):
    def operator(self, leader):
        def operate(method, path, body=None):
            request = urllib.request.Request(f"http://{leader.api}{path}", method=method, data=body and json.dumps(body).encode())
            request.add_header("Authorization", "Bearer of-operators")
            request.add_header("Content-Type", "application/json")
            with urllib.request.urlopen(request, timeout=20) as reply:
                return json.loads(reply.read() or "{}")

        return operate

    def test_a_silent_server_gets_new_tokens_when_it_is_back(self):
        secret = ["--token", "of-the-cluster"]
        leader = self.leader(2, "--api.token", "of-operators", "--lease", "12s", *secret)
        shard = self.shard(leader, "b", *secret)
        operate = self.operator(leader)

        def knows():
            return {one["name"]: one["has_tokens"] for one in operate("GET", "/v1/servers")["servers"]}

        wait_for(lambda: knows() == {"leader": True, "b": True}, "server b knows the tokens")
        shard.send(signal.SIGSTOP)
        made = operate("POST", "/v1/tokens", {"name": "t", "role": "worker"})
        self.assertEqual(made["not_yet_on"], ["b"])
        self.assertEqual(knows(), {"leader": True, "b": False})
        shard.send(signal.SIGCONT)
        wait_for(lambda: knows()["b"], "server b is told again")
        endpoint = next(one["endpoint"] for one in operate("GET", "/v1/servers")["servers"] if one["name"] == "b")
        with connect(endpoint) as peer:
            peer.sendall(hello(name="x", token=made["secret"]))
            self.assertFalse(read_frame(peer)[1] & ERROR)
        self.assertEqual(operate("DELETE", "/v1/tokens/t")["not_yet_on"], [])
        self.assertEqual(len(leader.events("server.joined")), 1, "it was here all the time")

    def test_a_named_token_opens_all_servers_until_it_is_revoked(self):
        secret = ["--token", "of-the-cluster"]
        # A shard server reports four times a lease: what it knows earlier it was told for the call.
        leader = self.leader(2, "--epochs", 1_000_000, "--min-workers", 1, "--api.token", "of-operators", "--lease", "120s", *secret)
        operate, shard = self.operator(leader), self.shard(leader, "b", *secret)
        endpoint = wait_for(lambda: next((one["endpoint"] for one in operate("GET", "/v1/servers")["servers"] if one["name"] == "b"), None), "server b")
        tokens = {role: operate("POST", "/v1/tokens", {"name": role, "role": role})["secret"] for role in ("worker", "viewer")}

        def is_refused(token, where=endpoint):
            with connect(where) as peer:
                peer.sendall(hello(name="x", token=token))
                return bool(read_frame(peer)[1] & ERROR)

        self.assertFalse(is_refused(tokens["worker"]))
        worker = self.worker(leader, "w", "--token", tokens["worker"], model=MODEL)
        wait_for(lambda: operate("GET", "/v1/cluster")["round"] > 10, "rounds")
        self.assertEqual(len(shard.events("worker.entered")), 1)
        self.assertTrue(is_refused(tokens["viewer"]))
        self.assertTrue(is_refused(tokens["worker"][:-1] + "x"))
        operate("DELETE", "/v1/tokens/worker")
        self.assertTrue(is_refused(tokens["worker"], leader.data))
        self.assertTrue(is_refused(tokens["worker"]))
        worker.send(signal.SIGTERM)  # who is in stays in, and leaves in peace
        self.assert_exit(DONE, worker)

    def test_a_server_of_another_run_is_refused_by_name(self):
        leader = self.leader(2, "--run-id", "first")
        shard = self.shard(leader, "b")
        shard.wait_event("leader.joined", run_id="first")
        leader.kill()
        other = self.leader(2, "--run-id", "second", name="other", run="other", listen=leader.data)
        self.assert_status(shard, USAGE, "server 'b' is refused", "it served run 'first', this one is 'second'", "start it anew")
        again = self.shard(other, "b")
        again.wait_event("leader.joined", run_id="second")


MOVED = 150  # rounds of a job in which chunks move


class Change(ServersTest):
    def test_a_server_that_comes_takes_its_share_while_rounds_go_on(self):
        leader = self.leader(1, "--rounds", MOVED, "--exit-when-finished", "--lease", "60s")
        workers = self.workers(leader, "", *SLOW)
        leader.wait_more_rounds(20)
        with self.held(workers[2]):
            b = self.shard(leader, "b")
            b.wait_event("leader.joined")
        moved = leader.wait_event("chunks.moved", left=0)
        self.assertEqual(moved["servers"], 2)
        self.assert_exit(DONE, *workers, leader, b)
        for worker in workers:
            self.assertEqual(len(worker.events("cluster.joined")), 1)
        self.assert_undisturbed(MOVED)

    def test_rounds_are_not_held_up_for_long_while_chunks_of_a_larger_model_move(self):
        model = "mlp:64-4096-1536-10"  # 26 MB
        leader = self.server("--min-workers", 1, "--optimizer", "sgd", "--rounds", 100_000)
        worker = self.worker(leader, "w0", model=model)
        leader.wait_more_rounds(2)
        b = self.shard(leader, "b")
        leader.wait_event("chunks.moved", left=0)
        moves = leader.events("chunks.moved")
        self.assertGreater(sum(move["bytes"] for move in moves), 10e6)
        self.assertLess(max(move["held_seconds"] for move in moves), bar(0.2, slack=5), moves)
        leader.wait_more_rounds(2)
        self.assertEqual(leader.post("/v1/job:stop")[0], 202)
        self.assert_exit(DONE, leader, worker, b)

    def test_a_drained_server_gives_its_chunks_to_the_others_and_ends(self):
        leader = self.leader(3, "--rounds", MOVED, "--exit-when-finished")
        b, c = [self.shard(leader, name) for name in ("b", "c")]
        workers = self.workers(leader, "", *SLOW)
        leader.wait_more_rounds(20)
        with self.held(workers[0]):
            before = {one["name"]: one for one in leader.get("/v1/servers")["servers"]}
            self.assertEqual(sorted(before), ["b", "c", "leader"])
            self.assertLess(max(one["bytes"] for one in before.values()), 2 * min(one["bytes"] for one in before.values()))
            self.assertEqual(leader.post("/v1/servers/nobody:drain")[0], 404)
            self.assertEqual(leader.post("/v1/servers/leader:drain")[0], 409)
            self.assertEqual(leader.post("/v1/servers/b:drain")[0], 202)
        self.assert_status(b, DONE, "drained")

        def without_b():
            servers = {one["name"]: one for one in leader.get("/v1/servers")["servers"]}
            return servers if "b" not in servers else None

        after = wait_for(without_b, "servers without b")
        self.assertEqual(sorted(after), ["c", "leader"])
        self.assertEqual(sum(one["chunks"] for one in after.values()), leader.cluster()["chunks"])
        self.assert_exit(DONE, *workers, leader, c)
        for worker in workers:
            self.assertEqual(len(worker.events("cluster.joined")), 1)
        self.assert_undisturbed(MOVED)

    def test_a_drain_for_which_the_others_have_no_memory_is_refused_with_the_numbers(self):
        leader = self.server("--servers", 3, "--min-workers", 1, "--optimizer", "sgd", "--rounds", 100_000)
        b = self.shard(leader, "b")
        c = self.shard(leader, "c", "--memory-limit", 100_000_000)  # a third takes 94 MB, a half 105 MB
        worker = self.worker(leader, "w0", model="mlp:64-2048-1536-10")
        leader.wait_more_rounds(2)

        def placed():
            return {one["name"]: (one["state"], one["chunks"]) for one in leader.get("/v1/servers")["servers"]}

        before = placed()
        self.assertEqual(sorted(before), ["b", "c", "leader"])
        status, refused = leader.post("/v1/servers/b:drain")
        self.assertEqual(status, 409, refused)
        self.assertIn("server 'b' is not drained, nothing has moved", refused["detail"])
        self.assertIn("server 'c', with its share of a model on 2 servers", refused["detail"])
        self.assertIn("memory_limit allows 100000000", refused["detail"])
        leader.wait_more_rounds(2)
        self.assertEqual(placed(), before)
        self.assertEqual(leader.post("/v1/servers/c:drain")[0], 202)
        self.assert_status(c, DONE, "drained")
        self.assertEqual(leader.post("/v1/job:stop")[0], 202)
        self.assert_exit(DONE, leader, worker, b)

    def test_a_server_that_is_told_to_stop_gives_its_chunks_first(self):
        leader = self.leader(3, "--rounds", MOVED, "--exit-when-finished")
        b, c = [self.shard(leader, name) for name in ("b", "c")]
        workers = self.workers(leader, "", *SLOW)
        leader.wait_more_rounds(20)
        b.send(signal.SIGTERM)
        self.assert_status(b, DONE, "its chunks have moved")
        left = lambda: sorted(one["name"] for one in leader.get("/v1/servers")["servers"])  # noqa: E731
        wait_for(lambda: left() == ["c", "leader"], "the leader without b")  # which may have ended before the leader sees it
        self.assert_exit(DONE, *workers, leader, c)
        self.assertEqual(leader.events("servers.chunks_lost"), [])
        for worker in workers:
            self.assertEqual(len(worker.events("cluster.joined")), 1)
        self.assert_undisturbed(MOVED)

    def test_servers_of_a_paused_job_can_be_drained(self):
        leader = self.leader(3, "--rounds", MOVED, "--exit-when-finished", "--journal.mode", "on")
        b, c = [self.shard(leader, name, "--drain-timeout", "60s") for name in ("b", "c")]
        workers = self.workers(leader, "", *SLOW)
        leader.wait_more_rounds(20)
        self.assertEqual(leader.post("/v1/job:pause")[0], 202)
        paused = leader.wait_cluster("paused", lambda view: view["state"] == "paused")
        b.send(signal.SIGTERM)
        self.assert_status(b, DONE, "its chunks have moved")
        self.assertEqual(leader.post("/v1/servers/c:drain")[0], 202)
        self.assert_status(c, DONE, "drained")
        self.assertEqual([one["name"] for one in leader.get("/v1/servers")["servers"]], ["leader"])
        now = leader.cluster()
        self.assertEqual((now["state"], now["version"], now["round"]), ("paused", paused["version"], paused["round"]))
        self.assertEqual(leader.post("/v1/job:resume")[0], 202)
        self.assert_exit(DONE, *workers, leader)
        self.assertEqual(leader.events("servers.chunks_lost"), [])
        self.assert_undisturbed(MOVED)

    def test_a_paused_job_can_write_a_checkpoint(self):
        leader = self.leader(2)
        b = self.shard(leader, "b")
        workers = self.workers(leader)
        self.wait_placed(leader, 2)
        leader.wait_more_rounds(5)
        leader.post("/v1/job:pause")
        paused = leader.wait_cluster("paused", lambda view: view["state"] == "paused")
        status, made = leader.post("/v1/checkpoints")
        self.assertEqual((status, made["version"]), (201, paused["version"]))
        leader.post("/v1/job:stop")
        self.assert_exit(DONE, leader, b, *workers)

    def test_a_server_that_holds_nothing_stops_at_once(self):
        leader = self.leader(1, "--rounds", 600)  # no worker has brought a model
        b = self.shard(leader, "b", "--drain-timeout", "60s")
        b.wait_event("leader.joined")
        begin = time.monotonic()
        b.send(signal.SIGTERM)
        self.assert_status(b, DONE, "no chunk lay here")
        self.assertLess(time.monotonic() - begin, 30)


class Statistics(ServersTest):
    def told(self, leader):
        """Statistics of the present version."""
        return wait_for(lambda: (told := leader.get("/v1/parameters"))["version"] == leader.cluster()["version"] and told["parameters"], "statistics")

    def test_they_are_those_of_one_server_and_of_the_checkpoint(self):
        told = {}
        for servers in (1, 3):
            goal = ["--rounds", 30, "--checkpoint.every-rounds", 30]
            leader = self.leader(servers, *goal, name=f"leader-{servers}", run=f"run-{servers}")
            for i in range(1, servers):
                self.shard(leader, f"s{i}-{servers}")
            self.workers(leader, f"-{servers}")
            leader.wait_cluster("the end", lambda view: view["state"] == "finished")
            told[servers] = self.told(leader)
            self.assertGreater(len({one["norm"] for one in told[servers]}), 1)
            self.assertEqual(leader.get("/v1/parameters/" + told[servers][0]["name"])["norm"], told[servers][0]["norm"])
        anywhere = {"version": 0, "servers": []}
        self.assertEqual([{**one, **anywhere} for one in told[3]], [{**one, **anywhere} for one in told[1]])
        values = self.values_of(self.checkpoints("run-3")[-1] / "model.safetensors")
        for one in told[3]:
            self.assertEqual((one["min"], one["max"]), (min(values[one["name"]]), max(values[one["name"]])))
            self.assertAlmostEqual(one["norm"], math.sqrt(math.fsum(x * x for x in values[one["name"]])), places=6)

    def values_of(self, path):
        body = path.read_bytes()
        length = int.from_bytes(body[:8], "little")
        head = json.loads(body[8 : 8 + length])
        head.pop("__metadata__", None)
        return {name: array.array("f", body[8 + length + one["data_offsets"][0] : 8 + length + one["data_offsets"][1]]) for name, one in head.items()}

    def test_they_are_told_while_rounds_go_on_and_checkpoints_are_written(self):
        leader = self.leader(3, "--rounds", 100_000, "--checkpoint.every-rounds", 5)
        b, c = [self.shard(leader, name) for name in ("b", "c")]
        self.workers(leader, "", *UNHURRIED)
        leader.wait_more_rounds(20)
        versions = [0]
        for _ in range(4):  # what is younger than a second is told again
            told = wait_for(lambda: (told := leader.get("/v1/parameters"))["version"] > versions[-1] and told, "newer statistics")
            versions.append(told["version"])
            self.assertTrue(all(math.isfinite(one["norm"]) for one in told["parameters"]))
        written = len(self.checkpoints("run"))
        self.assertGreater(written, 0)
        self.assertEqual(leader.post("/v1/servers/b:drain")[0], 202)
        self.assert_status(b, DONE, "drained")
        wait_for(lambda: leader.get("/v1/parameters")["version"] > versions[-1], "statistics of those that are left")
        self.assertEqual(leader.post("/v1/job:stop")[0], 202)
        self.assert_exit(DONE, leader, c)

    def test_a_server_that_does_not_answer_is_named(self):
        leader = self.leader(2, "--rounds", 100_000, "--lease", "60s", "--stall-timeout", "60s", "--tables", "emb:dim=4")
        b = self.shard(leader, "b")
        workers = self.workers(leader, "", *UNHURRIED)
        leader.wait_more_rounds(5)
        leader.wait_buckets(2)
        b.send(signal.SIGSTOP)
        with self.held_call(leader, "/v1/parameters") as answer:
            status, _, body = answer(60)
        self.assertEqual(status, 504, body)
        self.assertIn("server 'b'", body)
        with self.held_call(leader, "/v1/tables") as answer:
            b.send(signal.SIGCONT)
            self.assertEqual(answer(60)[0], 200)
        wait_for(lambda: not [w for w in leader.get("/v1/waits")["waits"] if w["waiter"].startswith("GET ")], "nothing is held any more")
        leader.wait_more_rounds(5)
        self.assertEqual(leader.events("server.lost"), [], "a question ended the session")
        self.assertGreater(len(leader.get("/v1/parameters")["parameters"]), 0)
        self.assertEqual(leader.post("/v1/job:stop")[0], 202)
        self.assert_exit(DONE, *workers, leader, b)

    def test_readers_wait_for_a_copy_and_not_for_their_connection(self):
        leader = self.leader(2, "--rounds", 100_000, "--lease", "60s", "--stall-timeout", "60s")
        b = self.shard(leader, "b")
        self.workers(leader, "", *UNHURRIED)
        leader.wait_more_rounds(5)
        b.send(signal.SIGSTOP)

        def pull(name):
            peer = self.stack.enter_context(connect(leader.data))
            peer.sendall(hello(name=name))
            read_frame(peer)
            peer.sendall(header(PULL, REQUEST, head := struct.pack("<I", 0), identity=1) + head)

        def wait_of(name, what):
            def find():
                waits = leader.get("/v1/waits")["waits"]
                return [w for w in waits if w["waiter"] == f"reader {name}" and w["waits_for"] == "a copy of the state" and what in w["what"]]

            wait_for(find, f"{name}: {what}")

        with contextlib.ExitStack() as self.stack:
            pull("first")
            wait_of("first", "its tensors are copied")
            pull("second")
            wait_of("second", "another one is made")

    @contextlib.contextmanager
    def held_call(self, leader, path):
        """A GET that is held, because server b does not answer; yields what waits for its answer."""
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            asked = pool.submit(self.ask, leader, path)

            def held():
                self.assertFalse(asked.done(), asked.done() and asked.result())
                return [w for w in leader.get("/v1/waits")["waits"] if w["waiter"] == f"GET {path}"]

            (wait,) = wait_for(held, f"why GET {path} is held")
            self.assertIn("; server 'b' was heard last ", wait["what"])
            yield asked.result

    def ask(self, leader, path):
        request = urllib.request.Request(f"http://{leader.api}{path}")
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return reply.status, reply.headers, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read().decode()


class Refusals(ServersTest):
    def test_settings_that_are_the_leaders(self):
        shard = self.shard("127.0.0.1:1", "b", "--rounds", 3, "--optimizer", "adam")
        self.assert_status(shard, USAGE, "rounds", "optimizer", "leader")
        unnamed = self._start(Process, "centroid-server", "unnamed", ["--join", "127.0.0.1:1"], None)
        self.assert_status(unnamed, USAGE, "--name")

    def test_settings_that_need_one_server(self):
        for flags, text in ((["--journal.mode", "on", "--journal.full", "go-on"], "journal"),
                            (["--codec-down", "topk:0.1,scope=global"], "scope=global"), (["--exchange", "ring"], "exchange ring")):
            server = self.launch_server("--servers", 2, *flags, name=f"refused-{flags[1][:3]}")
            self.assert_status(server, USAGE, "servers 2", text)
        leader = self.server("--journal.mode", "on", "--journal.full", "go-on")
        shard = self.shard(leader, "b")
        self.assert_status(shard, USAGE, "journal.full")

    def test_a_leader_that_is_not_there_is_waited_for_and_then_left(self):
        shard = self.shard("127.0.0.1:1", "b", "--join-timeout", "300ms")
        self.assert_status(shard, FAILED, "could not join 127.0.0.1:1")

    def test_a_worker_that_joins_a_shard_server_is_told_whom_to_join(self):
        leader = self.leader(2, "--rounds", 1000)
        b = self.shard(leader, "b")
        b.wait_event("leader.joined")
        endpoint = b.events("shard.started")[0]["data"]
        worker = self.worker(endpoint, "w0", model=MODEL)
        self.assert_status(worker, USAGE, "workers join the leader")


if __name__ == "__main__":
    main(at_a_time=3)
