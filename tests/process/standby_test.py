"""Several servers with a real etcd: who leads, takeover, fencing, hand-over. standby_test.py BIN_DIR

The workers train with the journal on, so whatever is killed, the last parameters must have the bits of a run that nothing
disturbed. Times are printed; the bar is that of docs/how-to/high-availability.md, asserted with room for a busy machine.
"""

import array
import json
import pathlib
import signal
import subprocess
import sys
import threading
import time
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import DONE, HALTED, USAGE, ClusterTest, Hold, Process, bar, free_port, main, wait_for
from harness.etcd import ETCD, Etcd
import centroid

BAR_SECONDS = 5
GOAL = 400
STANDS = (60, 200)  # the shares at which w0 and w1 wait, so that nothing of the job is over before what a test does then


@unittest.skipIf(ETCD is None, "etcd is not installed (package etcd-server)")
class StandbyTest(ClusterTest):
    fingerprints = {}  # of undisturbed runs, by their rounds

    def start_etcd(self):
        if not hasattr(self, "ports"):
            self.ports = free_port(), free_port()
        etcd = Etcd(self.folder, *self.ports)
        self.processes.append(etcd)
        return etcd

    def ha_server(self, etcd, name, *arguments, **places):
        common = ["--etcd.endpoints", etcd.url, "--cluster", "test", "--name", name, "--journal.mode", "on", "--optimizer", "momentum"]
        common += ["--rounds", GOAL, "--min-workers", 3, "--checkpoint.every-rounds", 100, "--exit-when-finished"]
        return self.server(*common, *arguments, name=name, **places)

    def ha_workers(self, servers, *arguments):
        places = ",".join(server.data for server in servers)
        self.holds = [Hold(self, "worker.share_taken", f"hold{i}", count).close() for i, count in enumerate(STANDS)]
        environments = [*(hold.environment for hold in self.holds), None]
        return [self.worker(places, f"w{i}", *arguments, environment=environment) for i, environment in enumerate(environments)]

    def wait_role(self, server, role):
        return server.wait_cluster(f"{server.name} as {role}", lambda cluster: cluster["role"] == role)

    def ha_shards(self, servers, names):
        places = ["--join", ",".join(server.data for server in servers), "--listen", "127.0.0.1:0", "--run-dir", self.folder / "run"]
        return [self._start(Process, "centroid-server", name, [*places, "--name", name], None) for name in names]

    def pair(self, *arguments, names="ab", shards="", environment=None):
        """etcd, a leader and its standbys, three workers in the middle of round 60; shard servers, if they are named."""
        etcd = self.start_etcd()
        leader = self.ha_server(etcd, names[0], *arguments, environment=environment)
        self.wait_role(leader, "leader")
        standbys = [self.ha_server(etcd, name, *arguments) for name in names[1:]]
        for standby in standbys:
            standby.wait_cluster("a leader", lambda cluster: cluster["leader"] == names[0])
        self.shards = self.ha_shards([leader, *standbys], shards)
        workers = self.ha_workers([leader, *standbys])
        self.holds[0].wait_reached()
        return etcd, leader, standbys, workers

    def go(self, *holds):
        for hold in holds or self.holds:
            hold.open()

    def committed(self, server):
        return server.cluster()["round"] - 1

    def seconds_to_commit(self, since, server, beyond, what):
        """From `since` (monotonic) to the first round that this server committed."""
        # While the journal is replayed its rounds are shown, too.
        is_beyond = lambda cluster: cluster["role"] == "leader" and cluster["state"] in ("training", "finished") and cluster["round"] > beyond + 1
        server.wait_cluster(f"round {beyond + 2}", is_beyond)
        seconds = time.monotonic() - since
        replayed = server.events("journal.replayed")
        first = replayed[-1]["round"] if replayed else 0
        print(f"\n{what}: {seconds:.2f} s to the first round committed by the standby (bar {BAR_SECONDS} s); "
              f"it began behind round {first}, {beyond} were known to be committed", flush=True)
        self.assertGreaterEqual(first, beyond, "a committed round was lost")
        self.assertLess(seconds, bar(BAR_SECONDS, slack=3), what)

    def whole_run(self, rounds=GOAL):
        """The parameters' fingerprint of a run of one server that nothing disturbs."""
        if rounds not in self.fingerprints:
            arguments = ["--optimizer", "momentum", "--rounds", rounds, "--min-workers", 3, "--exit-when-finished"]
            server = self.server(*arguments, name="whole", run="whole")
            workers = [self.worker(server, f"w{i}") for i in range(3)]
            self.assert_exit(DONE, *workers, server)
            self.fingerprints[rounds] = self.summary("w0")["fingerprint"]
        return self.fingerprints[rounds]

    def assert_same_end(self, workers, expected):
        self.assert_exit(DONE, *workers)
        for i in range(3):
            self.assertEqual(self.summary(f"w{i}")["fingerprint"], expected)


class Takeover(StandbyTest):
    def test_leader_killed_under_load(self):
        expected = self.whole_run()
        _, leader, (standby,), workers = self.pair()
        status, body = standby.call("GET", "/readyz")
        self.assertEqual(status, 503)
        self.assertIn(f"standby, leader is a at {leader.data}", body)
        self.assertEqual(standby.call("GET", "/healthz")[0], 200)
        self.assertEqual(standby.metric("centroid_server_is_leader"), 0)
        self.assertEqual(leader.metric("centroid_server_is_leader"), 1)
        status = [pathlib.Path(self.programs) / "centroidctl", "--server", standby.api, "status"]
        shown = subprocess.run(status, capture_output=True, text=True, timeout=60, check=True).stdout
        self.assertIn(f"standby, term {leader.cluster()['term']}; the leader is a, --server {leader.api} queries it", shown)
        old_term = leader.cluster()["term"]
        known = self.committed(leader)
        leader.kill()
        begin = time.monotonic()
        self.go()
        self.seconds_to_commit(begin, standby, known, "leader killed -9")
        self.assertGreater(standby.cluster()["term"], old_term)
        self.assertEqual(standby.metric("centroid_server_is_leader"), 1)
        self.assert_same_end(workers, expected)
        self.assert_exit(DONE, standby)

    def test_leader_told_to_stop_hands_over_at_once(self):
        expected = self.whole_run()
        _, leader, (standby,), workers = self.pair()
        known = self.committed(leader)
        leader.send(signal.SIGTERM)
        begin = time.monotonic()
        self.go()
        self.seconds_to_commit(begin, standby, known, "leader told to stop (SIGTERM)")
        self.assert_exit(DONE, leader)
        leader.wait_event("leader.resigned") if leader.is_running() else self.assertTrue(leader.events("leader.resigned"))
        self.assert_same_end(workers, expected)
        self.assert_exit(DONE, standby)

    def test_three_servers_two_kills(self):
        expected = self.whole_run()
        _, leader, standbys, workers = self.pair(names="abc")
        for number, hold in enumerate(self.holds):
            hold.wait_reached()
            known = self.committed(leader)
            leader.kill()
            begin = time.monotonic()
            hold.open()
            leads = lambda: next((s for s in standbys if s.cluster()["role"] == "leader"), None)  # noqa: E731
            leader = wait_for(leads, "a standby that leads")
            standbys.remove(leader)
            self.seconds_to_commit(begin, leader, known, f"kill {number + 1} of 2")
        self.assert_same_end(workers, expected)
        self.assert_exit(DONE, leader)


class Shown(StandbyTest):
    def seen(self, server):
        return {one["name"]: one for one in server.get("/v1/servers")["servers"]}

    def test_every_server_shows_who_stands_by_and_when_it_was_seen(self):
        _, leader, (b, c), _ = self.pair("--rounds", 0, names="abc")
        for server in (leader, b, c):
            wait_for(lambda server=server: set(self.seen(server)) == {"a", "b", "c"}, f"three servers shown by {server.name}")
            listed = server.get("/v1/servers")["servers"]
            self.assertEqual([one["state"] for one in listed], ["leader", "standby", "standby"])
            for one, real in zip(listed, (leader, b, c)):
                self.assertEqual((one["name"], one["endpoint"], one["api"]), (real.name, real.data, real.api))
                self.assertLess(abs(time.time() - one["seen_unix_seconds"]), 10)
        self.assertGreater(self.seen(leader)["a"]["chunks"], 0)
        shown = [pathlib.Path(self.programs) / "centroidctl", "--server", leader.api, "servers"]
        text = subprocess.run(shown, capture_output=True, text=True, timeout=60, check=True).stdout
        self.assertRegex(text, rf"(?m)^b +standby .*{b.data} +{b.api} +.* ago$")

        b.kill()  # it is shown for a while, with when it was seen last
        killed = time.time()
        wait_for(lambda: self.seen(leader)["c"]["seen_unix_seconds"] > killed + 3, "the other one, seen since")
        self.assertLess(self.seen(leader)["b"]["seen_unix_seconds"], killed + 1.5)
        wait_for(lambda: "b" not in self.seen(leader), "one that is gone for good to be shown no more", 60)
        c.send(signal.SIGTERM)
        self.assert_exit(DONE, c)
        wait_for(lambda: set(self.seen(leader)) == {"a"}, "one that was stopped to be shown no more", 10)

    def test_the_list_comes_back_with_etcd(self):
        etcd, leader, (standby,), _ = self.pair("--rounds", 0)
        wait_for(lambda: "b" in self.seen(leader), "the standby")
        etcd.kill()
        standby.wait_event("candidates.update_failed")
        etcd = self.start_etcd()
        told = time.time()
        wait_for(lambda: self.seen(leader)["b"]["seen_unix_seconds"] > told, "the standby, seen after etcd came back")
        self.assertEqual(self.seen(standby)["b"]["state"], "standby")


class SeveralServers(StandbyTest):
    def test_shard_servers_follow_the_new_leader_and_no_round_is_lost(self):
        expected = self.whole_run()
        etcd = self.start_etcd()
        spread = ["--servers", 3, "--chunk-bytes", 1024]
        leader = self.ha_server(etcd, "a", *spread)
        self.wait_role(leader, "leader")
        standby = self.ha_server(etcd, "b", *spread)
        standby.wait_cluster("a leader", lambda cluster: cluster["leader"] == "a")
        places = ["--join", f"{standby.data},{leader.data}", "--listen", "127.0.0.1:0", "--run-dir", self.folder / "run"]
        shards = [self._start(Process, "centroid-server", name, [*places, "--name", name], None) for name in ("s", "t")]
        workers = self.ha_workers([leader, standby])
        self.holds[0].wait_reached()
        known = self.committed(leader)
        leader.kill()
        begin = time.monotonic()
        self.go()
        self.seconds_to_commit(begin, standby, known, "leader of three servers killed -9")
        self.assertEqual(standby.events("journal.replayed")[-1]["servers"], 3)
        for shard in shards:
            joined = shard.events("leader.joined")
            self.assertEqual([event["leader"] for event in joined], [leader.data, standby.data])
            self.assertGreater(joined[1]["term"], joined[0]["term"])
        self.assert_same_end(workers, expected)
        self.assert_exit(DONE, standby, *shards)


class RowsFollow(StandbyTest):
    """Clients of rows find the server that leads now; what was answered is in the rows, once."""

    KEYS = 100

    def setUp(self):
        try:
            centroid.load(pathlib.Path(self.programs).parent / "lib" / "libcentroid.so")
        except centroid.CentroidError as error:
            if "asan" in error.message or "tsan" in error.message or "static TLS" in error.message:
                self.skipTest(f"a library with a sanitizer cannot be loaded by Python: {error.message}")
            raise
        super().setUp()

    def tables(self, *arguments):
        etcd = self.start_etcd()
        tables = ["--tables", "count:dim=1,optimizer=sgd,lr=1", *arguments]  # a row is the number of its pushes
        leader = self.ha_server(etcd, "a", *tables)
        self.wait_role(leader, "leader")
        standby = self.ha_server(etcd, "b", *tables)
        standby.wait_cluster("a leader", lambda cluster: cluster["leader"] == "a")
        return leader, standby

    def push_over(self, leader, standby, servers, end):
        """Push without a pause while `end` happens to the leader, and on for 200 answered pushes."""
        rows = centroid.Rows(servers, "count", timeout=60)
        answered, is_over, failure = [0], threading.Event(), []
        gradients = memoryview(array.array("f", 3 * [-1])).cast("B").cast("f", [3, 1])

        def push():
            try:
                while not is_over.is_set():
                    keys = [(answered[0] + i) % self.KEYS for i in range(3)]
                    rows.push(keys, gradients)
                    answered[0] += 1
            except centroid.CentroidError as error:
                failure.append(error)

        thread = threading.Thread(target=push, daemon=True)
        thread.start()
        self.addCleanup(is_over.set)
        wait_for(lambda: answered[0] > 200 or failure, "pushes")
        end(leader)
        begin, before = time.monotonic(), answered[0]
        wait_for(lambda: answered[0] > before + 1 or failure, "the first push to the standby")
        seconds = time.monotonic() - begin
        wait_for(lambda: answered[0] > before + 200 or failure, "more pushes")
        is_over.set()
        thread.join()
        self.assertEqual(failure, [])
        self.assertEqual(standby.cluster()["role"], "leader")
        values = list(rows.pull(range(self.KEYS)).cast("B").cast("f"))
        self.assertEqual(sum(values), 3 * answered[0])
        self.assertEqual(rows.lost, 0)
        rows.close()
        print(f"\nclient of rows: {seconds:.2f} s to the first push that the standby answered, {answered[0]} answered, all in the rows", flush=True)
        self.assertLess(seconds, bar(BAR_SECONDS, slack=3))

    def test_over_the_kill_of_the_leader(self):
        leader, standby = self.tables()
        self.push_over(leader, standby, f"{leader.data},{standby.data}", lambda server: server.kill())

    def test_who_knows_the_standby_only_is_sent_to_the_leader_and_comes_back(self):
        leader, standby = self.tables()
        self.push_over(leader, standby, standby.data, lambda server: server.kill())

    def test_a_leader_that_falls_silent_is_given_up(self):
        leader, standby = self.tables()
        self.addCleanup(leader.send, signal.SIGCONT)
        self.push_over(leader, standby, f"{leader.data},{standby.data}", lambda server: server.send(signal.SIGSTOP))

    def test_rows_on_several_servers(self):
        leader, standby = self.tables("--servers", 3)
        self.ha_shards([standby, leader], "st")
        self.push_over(leader, standby, f"{leader.data},{standby.data}", lambda server: server.kill())


class Fencing(StandbyTest):
    def test_stopped_leader_wakes_up_and_writes_nothing(self):
        self.wake_beside_the_successor()

    def test_stopped_leader_wakes_up_beside_its_shard_servers_and_writes_nothing(self):
        term = self.wake_beside_the_successor("--servers", 3, shards="st")
        for shard in self.shards:
            self.assert_exit(DONE, shard)
            followed = [(event["term"], event["leader"]) for event in shard.events("leader.joined")]
            self.assertEqual(len({leader for _, leader in followed}), 2, followed)
            self.assertEqual(followed, sorted(followed), "an older term was followed")
            self.assertEqual(followed[-1][0], term)

    def wake_beside_the_successor(self, *arguments, shards=""):
        """The successor's term."""
        expected = self.whole_run()
        _, leader, (standby,), workers = self.pair(*arguments, shards=shards)
        known = self.committed(leader)
        leader.send(signal.SIGSTOP)
        begin = time.monotonic()
        self.go(self.holds[0])
        self.seconds_to_commit(begin, standby, known, "leader stopped (SIGSTOP)")  # its lease has ended then
        term = standby.cluster()["term"]
        written = len(leader.events("checkpoint.written"))
        leader.endpoints_file.unlink()
        leader.send(signal.SIGCONT)
        deposed = leader.wait_event("leader.deposed")
        self.assertIn("deposed", str(deposed["error"]))
        leader.wait_event("server.demoted")
        leader.wait_ready()  # a free port again, so another one
        self.assertIn(leader.cluster()["leader"], ("b", ""))
        self.assertEqual(len(leader.events("checkpoint.written")), written)
        self.assertEqual(json.loads((self.folder / "run" / "checkpoints" / "term.json").read_text())["term"], term)
        self.go(self.holds[1])
        self.assert_same_end(workers, expected)
        return term

    def test_a_worker_that_joins_a_standby_is_sent_to_the_leader(self):
        etcd = self.start_etcd()
        leader = self.ha_server(etcd, "a", "--rounds", 100)
        self.wait_role(leader, "leader")
        standby = self.ha_server(etcd, "b", "--rounds", 100)
        standby.wait_cluster("a leader", lambda cluster: cluster["leader"] == "a")
        workers = self.ha_workers([standby])  # knows of no other
        self.go()
        self.assert_exit(DONE, *workers, leader)


class Stop(StandbyTest):
    def test_what_one_server_was_told_holds_when_another_takes_over(self):
        etcd, leader, (standby,), workers = self.pair("--rounds", 0, "--lease", 1000, "--exit-when-finished=false")
        self.go()
        status, problem = standby.post("/v1/job:stop")
        self.assertEqual(status, 503)
        self.assertIn("leader", problem["detail"])
        workers[2].send(signal.SIGSTOP)
        leader.wait_worker("w2", "dead")
        self.assertEqual(leader.post("/v1/job:stop")[0], 202)
        self.assert_exit(DONE, leader, *workers[:2])
        standby.wait_cluster("the end", lambda cluster: (cluster["role"], cluster["state"]) == ("leader", "stopped"))
        workers[2].send(signal.SIGCONT)
        self.assert_exit(DONE, workers[2])
        self.assertIn("stopped by an operator", self.summary("w2")["end"])
        self.assertEqual(standby.post("/v1/job:resume")[0], 202)
        workers = [self.worker(standby.data, f"v{i}") for i in range(3)]
        standby.wait_more_rounds(5)
        standby.send(signal.SIGTERM)
        self.assert_exit(DONE, standby)
        again = self.ha_server(etcd, "c", "--rounds", 0)
        again.wait_cluster("the lead", lambda cluster: cluster["role"] == "leader")
        self.assertEqual(again.events("job.stopped"), [])

    def test_a_standby_does_not_undo_a_halt(self):
        etcd, diverges = self.start_etcd(), ("--rounds", 0, "--lr", 1e30, "--exit-when-finished=false")
        leader = self.ha_server(etcd, "a", *diverges)
        self.wait_role(leader, "leader")
        standby = self.ha_server(etcd, "b", *diverges)
        standby.wait_cluster("a leader", lambda cluster: cluster["leader"] == "a")
        workers = self.ha_workers([leader, standby])
        self.go()
        self.assert_exit(HALTED, *workers)
        leader.wait_cluster("the halt", lambda cluster: cluster["state"] == "halted")
        leader.kill()
        view = standby.wait_cluster("the halt", lambda cluster: (cluster["role"], cluster["state"]) == ("leader", "halted"))
        self.assertIn("JIDOKA HALT", view["state_reason"])

    def test_a_server_without_etcd_leaves_their_folder_alone(self):
        etcd = self.start_etcd()
        leader = self.ha_server(etcd, "a")
        self.wait_role(leader, "leader")
        alone = self.launch_server("--resume", name="alone")
        self.assert_status(alone, USAGE, "term.json names server 'a' as leader", "etcd.endpoints", "remove the file")
        leader.kill()
        (self.folder / "run" / "checkpoints" / "term.json").unlink()
        self.server("--resume", "--journal.mode", "on", name="again")


class Steered(StandbyTest):
    """Pause and settings of one server are those of the one that takes over."""

    def patch(self, server, settings):
        request = urllib.request.Request(f"http://{server.api}/v1/config", method="PATCH", data=json.dumps(settings).encode(),
                                         headers={"Content-Type": "application/json"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=30) as reply:
                return reply.status, json.loads(reply.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def shown(self, server, *names):
        settings = server.get("/v1/config")
        return [(settings[name]["value"], settings[name]["origin"]) for name in names]

    def test_pause_and_settings_are_taken_over_there_and_back(self):
        etcd, a, (b,), workers = self.pair("--rounds", 0, "--exit-when-finished=false", "--checkpoint.keep", 4)
        self.go()
        for path in ("job:pause", "job:resume", "workers/1:evict"):
            status, problem = b.post(f"/v1/{path}")
            self.assertEqual(status, 503, problem)
            self.assertIn("leader is a", problem["detail"])
        status, problem = self.patch(b, {"checkpoint.keep": 5})
        self.assertEqual(status, 503, problem)
        self.assertIn("leader is a", problem["detail"])
        self.assertEqual(self.patch(b, {"api.rate": 500})[0], 200)  # of this process
        self.assertEqual(self.patch(a, {"checkpoint.keep": 6, "checkpoint.every_rounds": 1000})[0], 200)
        self.assertEqual(a.post("/v1/job:pause")[0], 202)
        paused = a.wait_cluster("a pause", lambda view: view["state"] == "paused")
        a.send(signal.SIGSTOP)
        now = b.wait_cluster("b with the pause", lambda view: (view["role"], view["state"]) == ("leader", "paused"))
        self.assertEqual(now["round"], paused["round"])
        self.assertEqual(now["state_reason"], paused["state_reason"])
        self.assertEqual(self.shown(b, "checkpoint.keep", "checkpoint.every_rounds", "api.rate"), [(6, "rest"), (1000, "rest"), (500, "rest")])
        self.assertEqual(self.patch(b, {"checkpoint.keep": 4, "checkpoint.every_rounds": 2000})[0], 200)  # 4 is configured
        self.assertEqual(b.post("/v1/job:resume")[0], 202)
        b.wait_more_rounds(5)
        a.endpoints_file.unlink()
        a.send(signal.SIGCONT)
        a.wait_event("server.demoted")
        a.wait_ready()
        a.wait_cluster("its leader", lambda view: view["leader"] == "b")
        self.assertEqual(self.shown(a, "checkpoint.keep", "checkpoint.every_rounds"), [(4, "flag"), (100, "flag")])
        b.kill()
        self.wait_role(a, "leader")
        a.wait_cluster("no pause", lambda view: view["state"] == "waiting")
        self.assertEqual(self.shown(a, "checkpoint.keep", "checkpoint.every_rounds", "api.rate"), [(4, "flag"), (2000, "rest"), (500, "rest")])
        workers = [self.worker(a, f"v{i}") for i in range(3)]  # its port is another one
        a.wait_more_rounds(5)
        self.assertEqual(a.post("/v1/job:stop")[0], 202)
        self.assert_exit(DONE, *workers, a)


class Said(StandbyTest):
    """Tokens of servers with one folder."""

    def ask(self, server, method, path, token="operator", body=None, **fields):
        fields = {name.replace("_", "-"): value for name, value in fields.items()}
        data = json.dumps(body).encode() if body is not None else None
        headers = {"Authorization": f"Bearer {token}", **({"Content-Type": "application/json"} if data else {}), **fields}
        request = urllib.request.Request(f"http://{server.api}{path}", method=method, data=data, headers=headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=30) as reply:
                return reply.status, dict(reply.headers), json.loads(reply.read() or "{}")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, dict(error.headers), json.loads(error.read() or "{}")

    def test_tokens_of_one_hold_on_the_other(self):
        etcd = self.start_etcd()
        tokens = ["--api.token", "operator"]
        cluster = lambda server: self.ask(server, "GET", "/v1/cluster")[2]  # noqa: E731
        leader = self.ha_server(etcd, "a", *tokens)
        wait_for(lambda: cluster(leader)["role"] == "leader", "a leads")
        standby = self.ha_server(etcd, "b", *tokens)
        secrets = {}
        for name in ("kept", "revoked"):
            status, _, made = self.ask(leader, "POST", "/v1/tokens", body={"name": name, "role": "viewer"})
            self.assertEqual(status, 201, made)
            secrets[name] = made["secret"]
        status = lambda server, name: self.ask(server, "GET", "/v1/cluster", secrets[name])[0]  # noqa: E731
        for name in secrets:
            wait_for(lambda name=name: status(standby, name) == 200, f"{name} on the standby")
        self.assertEqual(self.ask(leader, "DELETE", "/v1/tokens/revoked")[0], 200)
        wait_for(lambda: status(standby, "revoked") == 401, "the revoked token refused by the standby")
        self.assertEqual(self.ask(standby, "POST", "/v1/tokens", body={"name": "third", "role": "viewer"})[0], 201)
        leader.kill()
        wait_for(lambda: cluster(standby)["role"] == "leader", "b leads")
        self.assertEqual((status(standby, "kept"), status(standby, "revoked")), (200, 401))
        listed = [one["name"] for one in self.ask(standby, "GET", "/v1/tokens")[2]["tokens"]]
        self.assertEqual(listed, ["kept", "third"])


class EtcdGone(StandbyTest):
    def test_etcd_killed_and_restarted(self):
        commit = Hold(self, "journal.end_written", "commit", STANDS[0] + 20).close()
        etcd, leader, _, workers = self.pair("--rounds", 0, environment=commit.environment)
        self.go()
        commit.wait_reached()
        etcd.kill()
        self.wait_role(leader, "held")
        wait = wait_for(lambda: next((w for w in leader.get("/v1/waits")["waits"] if w["waits_for"] == "etcd"), None), "its cause")
        self.assertIn("could not be renewed in etcd", wait["what"])
        written = lambda: leader.metric("centroid_server_stage_seconds_count", stage="journal")  # noqa: E731
        stopped, before = self.committed(leader), written()
        commit.open()  # it is whole in the journal now, and the leader may not say so
        wait_for(lambda: written() > before, "the commit in the journal")
        wait_for(lambda: leader.metric("centroid_server_etcd_failures_total") > 3, "failures counted")
        self.assertEqual(self.committed(leader), stopped)
        self.start_etcd()
        begin = time.monotonic()
        servers = [server for server in self.processes if server.name in "ab"]
        leads = lambda: next((s for s in servers if s.cluster()["round"] > stopped + 3), None)  # noqa: E731
        again = wait_for(leads, "training again")
        print(f"\netcd back after a kill: {time.monotonic() - begin:.2f} s until rounds are committed, by '{again.name}'", flush=True)
        again.wait_more_rounds(20)
        self.assertEqual(again.post("/v1/job:stop")[0], 202)
        self.assert_exit(DONE, *workers)
        done = [self.summary(f"w{i}") for i in range(3)]
        self.assertEqual([one["fingerprint"] for one in done], 3 * [self.whole_run(done[0]["version"] - 1)])

    def test_without_etcd_a_server_waits_and_says_so(self):
        etcd = f"http://127.0.0.1:{free_port()}"
        server = self.server("--etcd.endpoints", etcd, "--cluster", "test", "--name", "a")
        server.wait_cluster("etcd is away", lambda cluster: etcd in cluster["state_reason"])
        self.assertEqual(server.cluster()["state"], "standby")
        server.send(signal.SIGTERM)
        self.assert_exit(DONE, server)


class Usage(ClusterTest):
    def test_settings_that_cannot_be(self):
        for arguments, text in (
            (["--etcd.endpoints", "https://a:1", "--etcd.certificate", "/a.crt"], "etcd.key belong together"),
            (["--etcd.endpoints", "http://a:1", "--etcd.certificate", "/a.crt", "--etcd.key", "/a.key"], "take https://"),
            (["--etcd.endpoints", "https://a:1", "--etcd.authority", "/nowhere"], "there is no file /nowhere"),
            (["--etcd.endpoints", "http://a"], "is no endpoint"),
            (["--etcd.endpoints", "http://a:1", "--cluster", "a/b"], "expected 1 to 128"),
            (["--etcd.endpoints", "http://a:1", "--etcd.lease", "2500"], "use a multiple of 1000"),
        ):
            with self.subTest(arguments):
                self.assert_status(self.launch_server(*arguments, name=f"bad{len(self.processes)}"), USAGE, text)


if __name__ == "__main__":
    main(at_a_time=3)
