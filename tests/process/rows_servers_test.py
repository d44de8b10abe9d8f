"""Tables of sparse rows on several servers over kill -9. rows_servers_test.py BIN_DIR"""

import hashlib
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import ctl, fault_points
from harness.cluster import DONE, USAGE, Hold, main, wait_for
from harness.rows import PUSH
from harness.rows_servers import PATIENT, TABLES, CountClient, RowsServersCluster, SpreadClient
from harness.wire import ERROR, GOODBYE, REQUEST, header, read_error, read_frame

UNAVAILABLE = 1
class RowsServersTest(RowsServersCluster):
    def test_kills_of_any_server_during_load_lose_no_answered_push_and_apply_none_twice(self):
        """Every push adds 1 to its rows, so the rows count pushes."""
        leader = self.leader(3, "--journal.mode", "on", "--journal.sync", 0)
        endpoint, api = leader.data, leader.api
        shards = {name: self.shard(endpoint, name) for name in ("b", "c")}
        leader.wait_rows()
        pushed = [0] * 3
        is_over = threading.Event()
        problems = []

        def load(identity):
            client = SpreadClient(endpoint, identity, problems.__len__)
            keys = [7, *range(100 * identity, 100 * identity + 20)]
            try:
                while not is_over.is_set():
                    client.push(keys)
                    pushed[identity - 1] += 1
            except Exception as error:  # noqa: BLE001: told by the test
                problems.append(repr(error))
            client.close()

        threads = [threading.Thread(target=load, args=(identity,), daemon=True) for identity in range(1, 4)]
        for thread in threads:
            thread.start()
        seed = random.randrange(1 << 30)
        print(f"seed {seed}")
        rng = random.Random(seed)

        def wait_pushes(count):
            start = sum(pushed)
            wait_for(lambda: problems or sum(pushed) >= start + count, "pushes")
            self.assertEqual(problems, [], f"seed {seed}")

        for turn in range(1, 9):
            wait_pushes(rng.randrange(1, 60))
            if rng.randrange(2):
                leader.post("/v1/checkpoints")
                wait_pushes(rng.randrange(1, 40))
            victims = ["leader"] if turn == 4 else ["leader", "b", "c"] if turn == 6 else [rng.choice("bc")]
            for name in victims:
                (leader if name == "leader" else shards[name]).kill()
            if "leader" in victims:
                leader = self.leader(3, "--resume", "--journal.mode", "on", "--journal.sync", 0, number=turn, listen=endpoint, api=api)
            for name in victims:
                if name != "leader":
                    shards[name] = self.shard(endpoint, name, turn)
        wait_pushes(20)
        is_over.set()
        for thread in threads:
            thread.join(60)
            self.assertFalse(thread.is_alive())
        client = SpreadClient(endpoint, 9, problems.__len__)
        for identity, count in enumerate(pushed, start=1):
            rows = client.pull(range(100 * identity, 100 * identity + 20))
            self.assertEqual(set(rows.values()), {float(count)}, f"client {identity}, seed {seed}")
        self.assertEqual(client.pull([7])[7], float(sum(pushed)), f"seed {seed}")
        client.close()
        self.assertEqual(leader.get("/v1/tables/count")["rows"], 61)
        leader.post("/v1/job:stop")
        self.assert_exit(DONE, leader, *shards.values())

    def test_a_models_journal_begins_after_the_tables_are_loaded(self):
        journal = ("--journal.mode", "on", "--journal.sync", 0)
        leader = self.leader(2, *journal)
        shard = self.shard(leader.data, "b")
        leader.wait_rows()
        self.save_fifty(leader)
        leader.kill()
        shard.kill()
        hold = self.folder / "hold"
        hold.write_text("")
        self.addCleanup(lambda: hold.unlink(missing_ok=True))
        environment = {"CENTROID_TEST_HOLD": f"servers.rows_put:{hold}"}
        leader = self.leader(2, *journal, "--resume", "--rounds", 5, number=1, environment=environment)
        shard = self.shard(leader.data, "b", 1)
        worker = self.worker(leader, "w0")
        why = "the journal begins when all tables are here: "
        leader.wait_cluster("the journal to wait", lambda cluster: cluster["state_reason"].startswith(why))
        hold.unlink()
        leader.wait_round(5)
        leader.wait_rows()
        client = SpreadClient(leader.data, 2, bool)
        self.assertEqual(set(client.pull(range(50)).values()), {1.0})
        client.close()
        leader.post("/v1/job:stop")
        self.assert_exit(DONE, leader, shard, worker)

    def test_a_model_without_a_checkpoint_restarts_when_a_server_is_lost(self):
        """The only checkpoint is of rows."""
        goal = ("--rounds", 40, "--exit-when-finished", "--chunk-bytes", 1024, "--servers-wait", "60s")
        shape = {"model": "mlp:64-48-32-10"}
        whole = self.leader(1, *goal, run="whole", number=9)
        self.assert_exit(DONE, self.worker(whole, "alone", **shape), whole)
        # A worker's parameters go from plane to plane: when the server is lost they are in one, and in another. With the journal it is lost before the
        # first checkpoint of the model is written, and so before the first round.
        for number, (share, journal) in enumerate(((5, ()), (6, ()), (1, ("--journal.mode", "on", "--journal.sync", 0)))):
            with self.subTest(share=share, journal=journal):
                run = f"run-{number}"
                writes = Hold(self, "checkpoint.folder_made", f"writes-{number}")
                computes = Hold(self, "worker.share_taken", f"computes-{number}", share).close()
                leader = self.leader(2, *goal, *journal, number=number, run=run, environment=writes.environment)
                shard = self.shard(leader.data, "b", number, run=f"shards-{number}")
                leader.wait_rows()
                self.save_fifty(leader)
                if journal:
                    writes.close()
                worker = self.worker(leader, f"w-{number}", environment=computes.environment, **shape)
                if journal:
                    leader.wait_cluster("the journal's checkpoint", lambda cluster: "with which the journal begins" in cluster["state_reason"])
                    writes.wait_reached()
                else:
                    computes.wait_reached()
                wait_for(lambda leader=leader: all(server["chunks"] for server in leader.get("/v1/servers")["servers"]), "chunks on both")
                shard.kill()
                leader.wait_event("server.lost")
                if journal:
                    writes.open()
                else:
                    computes.open()
                    computes.close()  # at its next share, for which the server must be back
                shard = self.shard(leader.data, "b", number + 10, run=f"shards-{number}")
                self.assertEqual(leader.wait_event("servers.state_restored")["version"], 0)
                computes.wait_reached()
                leader.wait_rows()
                client = SpreadClient(leader.data, 2, bool)
                self.assertEqual(set(client.pull(range(50)).values()), {1.0})
                client.close()
                computes.open()
                self.assert_exit(DONE, worker, leader, shard)
                of_model = [{path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in self.checkpoints(one)[-1].glob("model*")} for one in ("whole", run)]
                self.assertTrue(of_model[0])
                self.assertEqual(*of_model)

    def test_a_server_lost_while_its_rows_load_gets_them_when_it_is_back(self):
        hold, reached = self.folder / "hold", self.folder / "reached"
        environment = {"CENTROID_TEST_HOLD": f"servers.rows_put:{hold}", "CENTROID_TEST_FAULT_LOG": str(reached)}
        leader = self.leader(2, *PATIENT, environment=environment)
        shard = self.shard(leader.data, "b")
        leader.wait_rows()
        self.save_fifty(leader)
        hold.write_text("")
        self.addCleanup(lambda: hold.unlink(missing_ok=True))
        shard.kill()
        shard = self.shard(leader.data, "b", 1)
        wait_for(lambda: "servers.rows_put" in reached.read_text(), "the blocking thread at the first rows")
        before = len(leader.events("server.lost"))
        shard.kill()
        wait_for(lambda: len(leader.events("server.lost")) > before, "the leader to know")
        hold.unlink()
        shard = self.shard(leader.data, "b", 2)
        leader.wait_rows()
        client = SpreadClient(leader.data, 2, bool)
        self.assertEqual(set(client.pull(range(50)).values()), {1.0})
        client.close()
        leader.post("/v1/job:stop")
        self.assert_exit(DONE, leader, shard)

    def test_a_leader_killed_while_it_loads_rows_into_a_server_loads_them_again(self):
        leader = self.leader(2, *PATIENT, environment={"CENTROID_TEST_FAULT": "servers.rows_put:1"})
        shard = self.shard(leader.data, "b")
        leader.wait_rows()
        self.save_fifty(leader)
        shard.kill()
        shard = self.shard(leader.data, "b", 1)
        self.assertEqual(leader.exit_status(), -signal.SIGKILL, leader.text())
        leader = self.leader(2, "--resume", number=1, listen=leader.data, api=leader.api)
        leader.wait_rows()
        client = SpreadClient(leader.data, 2, bool)
        self.assertEqual(set(client.pull(range(50)).values()), {1.0})
        client.close()
        leader.post("/v1/job:stop")
        self.assert_exit(DONE, leader, shard)

    def test_a_shard_server_that_is_killed_at_any_point_of_its_journal_of_rows_loses_no_answered_push(self):
        """Every push adds 1 to its rows. What is not reached by pushes is reached when it begins again, or by a checkpoint."""
        reached = set()
        points = sorted({"rows_journal.segment_removed"} | {name for name in fault_points.in_sources() if name.startswith("rows_journal.")})
        for number, point in enumerate(points):
            with self.subTest(point=point):
                leader = self.leader(2, "--journal.mode", "on", "--journal.sync", 0, number=number, run=f"run-{number}")
                place = {"run": f"shards-{number}"}
                shards = [self.shard(leader.data, "b", f"{number}-0", environment={"CENTROID_TEST_FAULT": f"{point}:2"}, **place)]
                counts = {1: 0, 2: 0}
                ends = threading.Event()
                problems = []

                def load(identity, leader=leader, counts=counts, ends=ends, problems=problems):
                    client = SpreadClient(leader.data, identity, problems.__len__)
                    try:
                        while not ends.is_set():
                            client.push(range(100 * identity, 100 * identity + 50))
                            counts[identity] += 1
                    except Exception as error:  # noqa: BLE001: told by the test
                        problems.append(repr(error))
                    client.close()

                threads = [threading.Thread(target=load, args=(identity,), daemon=True) for identity in counts]
                for thread in threads:
                    thread.start()
                for attempt in range(1, 4):
                    so_far = sum(counts.values())
                    wait_for(lambda: problems or not shards[-1].is_running() or sum(counts.values()) > so_far + 30, "pushes, or the end")  # noqa: B023
                    if shards[-1].is_running():
                        leader.post("/v1/checkpoints")
                    so_far = sum(counts.values())
                    wait_for(lambda: problems or not shards[-1].is_running() or sum(counts.values()) > so_far + 30, "pushes, or the end")  # noqa: B023
                    self.assertEqual(problems, [])
                    if shards[-1].is_running():
                        shards[-1].kill()
                    else:
                        self.assertEqual(shards[-1].exit_status(), -signal.SIGKILL, shards[-1].text())
                        reached.add(point)
                    environment = {"CENTROID_TEST_FAULT": f"{point}:1"} if attempt == 1 else None
                    shards.append(self.shard(leader.data, "b", f"{number}-{attempt}", environment=environment, **place))
                so_far = sum(counts.values())
                wait_for(lambda: problems or sum(counts.values()) > so_far + 20, "more pushes")  # noqa: B023
                ends.set()
                for thread in threads:
                    thread.join(60)
                    self.assertFalse(thread.is_alive())
                self.assertEqual(problems, [])
                client = SpreadClient(leader.data, 9, bool)
                for identity, count in counts.items():
                    self.assertEqual(set(client.pull(range(100 * identity, 100 * identity + 50)).values()), {float(count)})
                client.close()
                leader.post("/v1/job:stop")
                self.assert_exit(DONE, leader, shards[-1])
        self.assertEqual(sorted(reached), points)

    def test_a_push_over_the_limit_is_refused_by_name_by_one_server_and_by_each_of_several(self):
        one = self.leader(1, number=1, run="one")
        leader = self.leader(2, *PATIENT, number=2, run="several")
        shard = self.shard(leader.data, "b")
        leader.wait_rows()
        asked = CountClient(leader.data, 9)
        endpoints = {"one": one.data, "leader": leader.data, "shard": asked.route()[0][1][1]}
        asked.close()
        for which, endpoint in endpoints.items():
            whole = SpreadClient(one.data if which == "one" else leader.data, 1, bool)
            before = whole.pull(range(50))
            for size in (65 << 20, 1 << 40):  # this client takes 64 MiB, and so the server
                with self.subTest(server=which, size=size):
                    client = CountClient(endpoint, 5)
                    head = struct.pack("<IIQ", client.tables["count"][0], 50, 1)
                    client.peer.sendall(header(PUSH, REQUEST, head, size, 77) + head)
                    kind, flags, said = read_frame(client.peer)
                    self.assertTrue(flags & ERROR or kind == GOODBYE)
                    self.assertIn(f"{size} bytes is over the limit of", read_error(said)[1])
                    client.close()
            self.assertEqual(whole.pull(range(50)), before)
            whole.push(range(50))
            whole.close()
        for server in (one, leader):
            server.post("/v1/job:stop")
        self.assert_exit(DONE, one, leader, shard)

    def test_a_checkpoint_of_several_servers_is_exported_and_goes_on_with_one(self):
        leader = self.leader(2, *PATIENT)
        shard = self.shard(leader.data, "b")
        leader.wait_rows()
        client = SpreadClient(leader.data, 1, bool)
        for _ in range(3):
            client.push(range(50))
        self.assertEqual(set(client.pull(range(50)).values()), {3.0})
        client.close()
        table = leader.get("/v1/tables/count")
        self.assertEqual((table["rows"], table["pushed"]), (50, 150))
        wait_for(lambda: leader.metric("centroid_rows_stored", table="count") == 50, "the metric of all servers")
        leader.post("/v1/job:stop")
        self.assert_exit(DONE, leader, shard)
        one = self.leader(1, "--resume", number=1)
        client = SpreadClient(one.data, 1, bool)
        self.assertEqual(set(client.pull(range(50)).values()), {3.0})
        client.close()
        one.post("/v1/job:stop")
        self.assert_exit(DONE, one)

    def assert_verified(self):
        """`centroidctl checkpoints verify` of a leader, and of the server b in another folder."""
        here, there = self.folder / "run" / "journal", self.folder / "shards" / "journal-b"

        def verify(*journals, status=DONE):
            named = [one for journal in journals for one in ("--journal", journal)]
            command = [f"{self.programs}/centroidctl", "checkpoints", "verify", str(self.folder / "run"), *map(str, named)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, status, done.stdout + done.stderr)
            return done.stdout

        self.assertIn("tables  journals of 'b' are missing", verify())
        said = verify(here, there)
        self.assertRegex(said, r"(?m)^journal-b of tables  .* pushes in .* sound$")
        self.assertNotIn("not there", said)
        (segment,) = there.glob("rows-*.log")
        whole = segment.read_bytes()
        altered = bytearray(whole)
        altered[45] ^= 1  # in the base record
        segment.write_bytes(altered)
        self.assertRegex(verify(here, there, status=1), r"(?m)^journal-b of tables  DAMAGED  .*rows-\d+.log, byte 0: ")
        (later := segment.with_name("rows-000000000009.log")).write_bytes(whole)
        segment.unlink()
        self.assertRegex(verify(here, there, status=1), r"(?m)^journal-b of tables  DAMAGED  (begins with rows-000000000009.log, but checkpoint-\d+ goes on with rows-)")
        later.unlink()
        segment.write_bytes(whole)

    def test_a_leader_alone_does_not_go_on_without_the_journals_of_others(self):
        leader = self.leader(2, "--journal.mode", "on")
        shard = self.shard(leader.data, "b")
        leader.wait_rows()
        client = SpreadClient(leader.data, 1, bool)
        client.push(range(50))
        client.close()
        leader.kill()
        shard.kill()
        self.assert_verified()
        alone = self.launch_server("--tables", TABLES, "--resume", "--journal.mode", "on", name="alone")
        self.assert_status(alone, USAGE, "rows of server 'b', whose journal may have more")
        more = self.leader(3, "--resume", "--journal.mode", "on", number=1)
        wait_for(lambda: any("server 'b'" in wait["what"] for wait in more.get("/v1/waits")["waits"]), "the server that is waited for")
        self.shard(more.data, "b", 1)
        more.wait_rows()
        client = SpreadClient(more.data, 2, bool)
        self.assertEqual(set(client.pull(range(50)).values()), {1.0})
        client.close()

    def test_a_checkpoint_that_is_complete_while_its_journals_are_looked_at_is_no_damage(self):
        leader = self.leader(2, "--journal.mode", "on", "--checkpoint.keep", 9)
        shard = self.shard(leader.data, "b")
        leader.wait_rows()
        client = SpreadClient(leader.data, 1, bool)
        journals = [self.folder / "run" / "journal", self.folder / "shards" / "journal-b"]
        aside = self.folder / "aside"
        for turn in (1, 2):  # the checkpoints go on with 2, 3
            client.push(range(50))
            for journal in journals:
                (aside / journal.name).mkdir(parents=True, exist_ok=True)
                (segment,) = journal.glob("rows-*.log")
                self.assertEqual(segment.name, f"rows-{turn:012}.log")
                os.link(segment, aside / journal.name / segment.name)
            self.assertEqual(leader.post("/v1/checkpoints")[0], 201)
            wait_for(lambda turn=turn: not any((journal / f"rows-{turn:012}.log").exists() for journal in journals), "the older segments to go")
        client.push(range(50))
        client.close()
        leader.kill()
        shard.kill()
        newest = max((self.folder / "run" / "checkpoints").glob("checkpoint-*"))
        command = ["verify", self.folder / "run", *(one for journal in journals for one in ("--journal", journal))]

        def put_back(*turns):
            for journal in journals:
                for turn in turns:
                    os.link(aside / journal.name / f"rows-{turn:012}.log", journal / f"rows-{turn:012}.log")

        def prune(*turns):
            for journal in journals:
                for turn in turns:
                    (journal / f"rows-{turn:012}.log").unlink()

        def go_on():
            (aside / newest.name).rename(newest)
            prune(2)

        put_back(2)
        newest.rename(aside / newest.name)
        said = ctl.held(self, "verify.tables", go_on, *command)
        self.assertRegex(said, r"(?m)^journal-b of tables  .* sound$")
        put_back(2)
        said = ctl.held(self, "verify.rows", lambda: prune(2), *command)
        self.assertRegex(said, r"(?m)^journal of tables  1 segments  .* sound$")
        put_back(1, 2)
        os.unlink(journals[1] / f"rows-{3:012}.log")  # it may be yet to be begun
        ctl.held(self, "verify.tables", lambda: None, *command)
        os.unlink(journals[1] / f"rows-{2:012}.log")
        said = ctl.held(self, "verify.tables", lambda: None, *command, status=1)
        self.assertRegex(said, rf"(?m)^journal-b of tables  DAMAGED  ends with rows-{1:012}.log, but {newest.name} goes on with rows-{3:012}.log$")


if __name__ == "__main__":
    main(at_a_time=4)
