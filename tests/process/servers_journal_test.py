"""A model on several servers with the journal on, under kill -9 of the leader, of a shard server and of all. servers_journal_test.py BIN_DIR"""

import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import ctl, fault_points
from harness.cluster import DONE, USAGE, Hold, Process, main, wait_for
from harness.servers import CHUNKS, MODEL, SLOW, ServersTest

ROUNDS = 24
CHECKPOINT_EVERY = 5
OF_CHECKPOINTS = ("checkpoint.renamed",)  # durability_test.py has all of them
OF_JOURNALS = {name for name in fault_points.in_sources() if name.startswith("journal.")} - {"journal.reading", "journal.replayed"} | {"journal.segment_removed"}
OF_LEADER = {"servers.prepared", "servers.committed", "round.before_close", "round.committed", *OF_CHECKPOINTS, *OF_JOURNALS}
OF_SHARD = {"servers.part_prepared", "servers.part_committed", *OF_JOURNALS}
OF_ROUTE = "servers.route_written"
OF_VERIFY = {"verify.journal", "verify.rows", "verify.tables"}  # rows_servers_test.py holds the last two up


class JournalTest(ServersTest):
    """A leader, the shard servers b and c, three workers."""

    def start_leader(self, run, *arguments, name, environment=None, rounds=ROUNDS, **places):
        goal = ["--rounds", rounds, "--exit-when-finished", "--checkpoint.every-rounds", CHECKPOINT_EVERY, "--run-id", "r"]
        common = ["--servers", 3, "--min-workers", 3, "--optimizer", "momentum", "--lr", "0.05", *CHUNKS]
        common += ["--journal.mode", "on", "--journal.sync", "0", "--log.level", "debug"]
        return self.launch_server(*goal, *common, *arguments, run=run, name=name, environment=environment, **places)

    def start_shard(self, leader, run, which, *arguments, tag="", environment=None, folder=None):
        places = ["--join", leader.data, "--name", which, "--listen", "127.0.0.1:0", "--run-dir", self.folder / (folder or run)]
        return self._start(Process, "centroid-server", f"{which}-{run}{tag}", [*places, *arguments], environment)

    def start_all(self, run, *arguments, environments=None, rounds=ROUNDS, worker=()):
        environments = environments or {}
        leader = self.start_leader(run, *arguments, name=f"leader-{run}", environment=environments.get("leader"), rounds=rounds)
        leader.wait_ready()
        shards = {which: self.start_shard(leader, run, which, environment=environments.get(which)) for which in "bc"}
        workers = [self.worker(leader, f"w{i}-{run}", *worker, model=MODEL, environment=environments.get(f"w{i}")) for i in range(3)]
        return leader, shards, workers

    def whole(self, run, *arguments, environments=None, rounds=ROUNDS):
        leader, shards, workers = self.start_all(run, *arguments, environments=environments, rounds=rounds)
        self.assert_exit(DONE, *workers, leader, *shards.values())
        return self.model_bytes(run)

    def committed(self, *leaders):
        """Rounds that these processes have committed, in their order."""
        return [event["round"] for leader in leaders for event in leader.events("round.committed")]

    def assert_nothing_lost(self, run, expected, *leaders, rounds=ROUNDS):
        # A round may be in the journal of a leader that was killed before it could say so.
        done = self.committed(*leaders)
        self.assertEqual(sorted(set(done)), done, "rounds done twice")
        self.assertLessEqual(len(set(range(1, rounds + 1)) - set(done)), len(leaders) - 1, "rounds lost")
        self.assertEqual(self.model_bytes(run), expected, "other bits")


class Kill(JournalTest):
    def kill_leader(self, run, fault, expected, *arguments):
        leader, shards, workers = self.start_all(run, *arguments, environments={"leader": {"CENTROID_TEST_FAULT": fault}})
        self.assertEqual(leader.exit_status(), -signal.SIGKILL, f"{fault} was not reached")
        again = self.start_leader(run, *arguments, "--resume", name=f"again-{run}", listen=leader.data, api=leader.api)
        self.assert_exit(DONE, again)
        replayed = again.events("journal.replayed")
        reached = replayed[-1]["round"] if replayed else again.events("checkpoint.loaded")[-1]["round"]
        if reached < ROUNDS:
            self.assert_exit(DONE, *workers, *shards.values())
        for process in [*workers, *shards.values()]:  # who comes when the goal has been reached is not taken
            process.kill()
        self.assertGreaterEqual(reached, max(self.committed(leader), default=0), "a committed round was lost")
        self.assertEqual(self.committed(again), list(range(reached + 1, ROUNDS + 1)))
        self.assertEqual(self.model_bytes(run), expected)

    def kill_shard(self, run, fault, expected, *arguments):
        leader, shards, workers = self.start_all(run, *arguments, environments={"b": {"CENTROID_TEST_FAULT": fault}})
        self.assertEqual(shards["b"].exit_status(), -signal.SIGKILL, f"{fault} was not reached")
        again = self.start_shard(leader, run, "b", tag="-again")
        self.assert_exit(DONE, *workers, leader, again, shards["c"])
        self.assert_nothing_lost(run, expected, leader)

    def test_every_write_point_of_every_server(self):
        logs = {who: self.folder / f"points-{who}" for who in ("leader", "b")}
        environments = {who: {"CENTROID_TEST_FAULT_LOG": str(path)} for who, path in logs.items()}
        expected = self.whole("whole", environments=environments)
        points = {who: [name for name in fault_points.reached(path) if not name.startswith("checkpoint.") or name in OF_CHECKPOINTS]
                  for who, path in logs.items()}
        self.assertEqual(set(points["leader"]), OF_LEADER)
        self.assertEqual(set(points["b"]), OF_SHARD)
        self.assertLessEqual(fault_points.owned_by("servers_journal_test.py"), OF_LEADER | OF_SHARD | {OF_ROUTE} | OF_VERIFY)
        for who, kill in (("leader", self.kill_leader), ("b", self.kill_shard)):
            for number, name in enumerate(points[who]):
                counts = [2] if "segment" in name or "checkpoint" in name else [9]
                if (who, name) == ("b", "journal.record_torn"):
                    counts = range(30, 40)  # more than a round's records: one of them is the round's end
                for count in counts:
                    with self.subTest(who=who, point=name, count=count):
                        kill(f"{who}-{number}-{count}", f"{name}:{count}", expected)

    def test_a_step_that_a_killed_server_was_trying_is_tried_again(self):
        tries = ["--optimizer", "adam", "--epsilon", 1e-13, "--apply", "worker"]  # it may divide by so little
        for clip in (0, 0.5):
            arguments = [*tries, "--clip-norm", clip]
            expected = self.whole(f"whole-{clip}", *arguments)
            for kill, fault in ((self.kill_leader, "trial.leader:9"), (self.kill_shard, "trial.shard:9")):
                with self.subTest(fault=fault, clip=clip):
                    kill(f"{fault.split(':')[0]}-{clip}", fault, expected, *arguments)

    def test_every_way_to_apply(self):
        ways = {
            "parameters": ["--optimizer", "sgd"],
            "clipped": ["--optimizer", "adam", "--clip-norm", 0.5],
            "mean": ["--apply", "worker"],
            "clipped-mean": ["--apply", "worker", "--clip-norm", 0.5],
            "quorum": ["--policy", "quorum:3"],
            "compressed": ["--codec-down", "topk:0.1,warmup=20"],
            "local-steps": ["--local-steps", 4, "--outer", "optimizer", "--policy", "quorum:3"],
        }
        for name, arguments in ways.items():
            expected = self.whole(f"whole-{name}", *arguments)
            with self.subTest(way=name):
                fault = {"CENTROID_TEST_FAULT": "servers.part_prepared:13"}
                leader, shards, workers = self.start_all(name, *arguments, environments={"b": fault})
                self.assertEqual(shards["b"].exit_status(), -signal.SIGKILL)
                again = self.start_shard(leader, name, "b", tag="-again")
                self.assert_exit(DONE, *workers, leader, again, shards["c"])
                self.assert_nothing_lost(name, expected, leader)

    def test_a_replay_gives_the_state_before_the_kill(self):
        """Of rounds in which a worker that comes back has lost something of its own, the servers have lost nothing."""
        steps = ["--local-steps", 4, "--outer", "optimizer", "--checkpoint.every-rounds", 0]
        ways = {
            "fragments": [*steps, "--fragments", 2],
            "fragments-quorum": [*steps, "--fragments", 2, "--policy", "quorum:2"],
            "compressed": ["--codec-down", "topk:0.1,generation=reset", "--clip-norm", 0.5, "--checkpoint.every-rounds", 0],
        }
        rounds = 100_000
        for name, arguments in ways.items():
            with self.subTest(way=name):
                leader, shards, workers = self.start_all(name, *arguments, rounds=rounds)
                leader.wait_round(30)
                workers[0].kill()  # another generation
                leader.wait_more_rounds(20)
                leader.post("/v1/job:pause")
                paused = leader.wait_cluster("paused", lambda view: view["state"] == "paused")
                before = wait_for(lambda: (told := leader.get("/v1/parameters"))["version"] == paused["version"] and told["parameters"], "statistics")
                for process in (leader, *shards.values(), *workers):
                    process.kill()
                again = self.start_leader(name, *arguments, "--resume", name=f"again-{name}", rounds=rounds).wait_ready()
                for which in "bc":
                    self.start_shard(again, name, which, tag="-again")
                again.wait_event("journal.replayed")
                after = wait_for(lambda: again.get("/v1/parameters"), "statistics")
                self.assertEqual(after["version"], paused["version"])
                values = [[{**tensor, "servers": None} for tensor in told] for told in (after["parameters"], before)]  # they may lie elsewhere now
                self.assertEqual(*values, "other bits")
                again.kill()

    def test_all_servers_at_once(self):
        rounds = 40
        expected = self.whole("whole", rounds=rounds)
        computes = Hold(self, "worker.share_taken", count=10).close()
        leader, shards, workers = self.start_all("all", rounds=rounds, environments={"w0": computes.environment})
        leaders = [leader]
        for kill in range(2):
            computes.wait_reached()
            leader.kill()
            for shard in shards.values():
                shard.kill()
            computes.open()
            if kill == 0:
                computes.close()  # at its next share, of the next leader
            known = max(number for one in leaders for number in self.committed(one))
            leader = self.start_leader("all", "--resume", name=f"leader-{kill}", listen=leader.data, api=leader.api, rounds=rounds).wait_ready()
            leaders.append(leader)
            waits = wait_for(lambda: [w["what"] for w in leader.get("/v1/waits")["waits"] if w["waits_for"] == "servers"], "the cause")
            self.assertIn("for its part of round", waits[0])
            shards = {which: self.start_shard(leader, "all", which, tag=f"-{kill}") for which in "bc"}
            self.assertGreaterEqual(leader.wait_event("journal.replayed")["round"], known, "a committed round was lost")
        self.assert_exit(DONE, *workers, leader, *shards.values())
        self.assert_nothing_lost("all", expected, *leaders, rounds=rounds)


class FullDisk(JournalTest):
    def test_a_round_waits_for_the_part_that_a_server_cannot_write(self):
        if os.geteuid() != 0:
            self.skipTest("only root may mount the small file system that this test fills")
        place = self.folder / "disk"
        place.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(place)], capture_output=True, text=True)
        if mounted.returncode != 0:
            self.skipTest(f"cannot mount a small file system here: {mounted.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "-l", str(place)], check=True)
        rounds = 200
        expected = self.whole("whole", rounds=rounds)
        leader = self.start_leader("full", "--checkpoint.every-rounds", 0, name="leader-full", rounds=rounds)
        leader.wait_ready()
        b = self.start_shard(leader, "full", "b", "--journal.dir", place / "journal")
        c = self.start_shard(leader, "full", "c")
        workers = self.workers(leader, "-full")
        b.wait_event("journal.stalled", error="No space left")
        held = leader.cluster()["version"]
        told = wait_for(lambda: [one["trouble"] for one in leader.get("/v1/servers")["servers"] if one["name"] == "b" and one["trouble"]], "what b cannot do")
        self.assertIn("No space left", told[0])
        self.assertEqual(leader.cluster()["version"], held, "a round was committed that b has not written")
        subprocess.run(["mount", "-o", "remount,size=64m", str(place)], check=True)
        b.wait_event("journal.recovered")
        self.assert_exit(DONE, *workers, leader, b, c)
        self.assert_nothing_lost("full", expected, leader, rounds=rounds)


class Change(JournalTest):
    def test_chunks_that_have_moved_are_recalled_from_where_they_lay(self):
        rounds = 150
        expected = self.whole("whole", rounds=rounds)
        leader, shards, workers = self.start_all("run", "--checkpoint.every-rounds", 0, "--lease", "60s", rounds=rounds, worker=SLOW)
        leader.wait_round(20)
        with self.held(workers[2]):
            d = self.start_shard(leader, "run", "d")
            d.wait_event("leader.joined")
        leader.wait_event("chunks.moved", servers=4, left=0)
        leader.wait_more_rounds(20)
        shards["c"].kill()
        wait_for(lambda: "server 'c'" in json.dumps(leader.get("/v1/waits")), "the cause in /v1/waits")
        c = self.start_shard(leader, "run", "c", tag="-again")
        self.assertEqual(leader.wait_event("journal.replayed")["servers"], 4)
        self.assert_exit(DONE, *workers, leader, shards["b"], c, d)
        self.assert_nothing_lost("run", expected, leader, rounds=rounds)

    def test_a_leader_killed_while_it_writes_a_route_resumes(self):
        rounds = 100
        expected = self.whole("whole", rounds=rounds)
        for count in (1, 2):  # the newcomer has nothing yet; its first chunks
            with self.subTest(count=count):
                run = f"run{count}"
                computes = Hold(self, "worker.share_taken", f"hold{count}", 40).close()
                environments = {"leader": {"CENTROID_TEST_FAULT": f"{OF_ROUTE}:{count}"}, "w2": computes.environment}
                leader, shards, workers = self.start_all(run, "--checkpoint.every-rounds", 0, "--lease", "60s", environments=environments, rounds=rounds)
                computes.wait_reached()
                d = self.start_shard(leader, run, "d")
                d.wait_event("leader.joined")
                computes.open()
                self.assertEqual(leader.exit_status(), -signal.SIGKILL, leader.text())
                again = self.start_leader(run, "--resume", "--checkpoint.every-rounds", 0, name=f"again-{run}", listen=leader.data, api=leader.api, rounds=rounds)
                self.assert_exit(DONE, *workers, again, *shards.values(), d)
                self.assert_nothing_lost(run, expected, leader, again, rounds=rounds)

    def test_a_drained_server_is_not_needed_any_more(self):
        rounds = 150
        expected = self.whole("whole", rounds=rounds)
        leader, shards, workers = self.start_all("run", "--checkpoint.every-rounds", 0, rounds=rounds, worker=SLOW)
        leader.wait_round(20)
        self.assertEqual(leader.post("/v1/servers/b:drain")[0], 202)
        self.assert_status(shards["b"], DONE, "drained")
        wait_for(lambda: len(leader.events("checkpoint.written")) > 1, "a checkpoint behind its last round")
        leader.wait_more_rounds(20)
        shards["c"].kill()
        c = self.start_shard(leader, "run", "c", tag="-again")
        self.assert_exit(DONE, *workers, leader, c)
        self.assert_nothing_lost("run", expected, leader, rounds=rounds)

    def test_a_lost_journal_is_waited_for_until_an_operator_goes_on_without(self):
        leader, shards, workers = self.start_all("run", "--checkpoint.every-rounds", 0, rounds=100_000)
        leader.wait_round(20)
        status, made = leader.post("/v1/checkpoints")
        self.assertEqual(status, 201, made)
        leader.wait_more_rounds(20)
        shards["b"].kill()
        empty = self.start_shard(leader, "run", "b", tag="-empty", folder="elsewhere")
        waits = wait_for(lambda: [w["what"] for w in leader.get("/v1/waits")["waits"] if "run_dir" in w["what"]], "the cause")
        self.assertIn("has no round of this run", waits[0])
        self.assertEqual(leader.post("/v1/servers/b:drain")[0], 202)
        given_up = leader.wait_event("journal.rounds_abandoned")
        self.assertEqual((given_up["server"], given_up["round"]), ("b", made["round"]))
        leader.wait_cluster("rounds again", lambda view: view["state"] == "training" and view["round"] > made["round"] + 20)
        self.assertEqual(leader.post("/v1/job:stop")[0], 202)
        self.assert_exit(DONE, *workers, leader, empty, shards["c"])

    def test_a_server_that_is_asked_for_its_part_again_is_given_up_all_the_same(self):
        leader, shards, workers = self.start_all("run", "--checkpoint.every-rounds", 0, rounds=100_000)
        leader.wait_round(20)
        self.assertEqual(leader.post("/v1/checkpoints")[0], 201)
        leader.wait_more_rounds(20)
        shards["b"].kill()
        empty = self.start_shard(leader, "run", "b", tag="-empty", folder="elsewhere")
        wait_for(lambda: any("run_dir" in wait["what"] for wait in leader.get("/v1/waits")["waits"]), "the cause")
        with self.held(empty):
            d = self.start_shard(leader, "run", "d")  # the leader looks again
            wait_for(lambda: any(wait["waiter"] == "replay" for wait in leader.get("/v1/waits")["waits"]), "b to be asked again")
            self.assertEqual(leader.post("/v1/servers/b:drain")[0], 202)
        self.assertEqual(leader.wait_event("journal.rounds_abandoned")["server"], "b")
        leader.wait_more_rounds(20)
        self.assertEqual(leader.post("/v1/job:stop")[0], 202)
        self.assert_exit(DONE, *workers, leader, empty, shards["c"], d)

    def test_a_journal_of_another_run_is_not_written_over(self):
        leader, shards, workers = self.start_all("run", rounds=20)
        self.assert_exit(DONE, *workers, leader, *shards.values())
        other = self.start_leader("other", "--run-id", "another", name="other").wait_ready()
        shard = self.start_shard(other, "run", "b", tag="-other")
        workers = self.workers(other, "-other")
        self.start_shard(other, "other", "c", tag="-other")
        self.assert_status(shard, USAGE, "belongs to run 'r'", "another run_dir")
        for worker in workers:
            worker.kill()


CHUNK, COMMIT = 2, 3  # kinds of records (docs/explanation/durability.md)


class Verify(JournalTest):
    """`centroidctl checkpoints verify` of a run whose three servers were killed."""

    JOURNALS = ("journal", "journal-b", "journal-c")

    def killed(self, run="run", *arguments, joins=()):
        """The last round that such a run has committed."""
        leader, shards, workers = self.start_all(run, "--checkpoint.every-rounds", 0, *arguments, rounds=100_000)
        leader.wait_round(30)
        for name in joins:
            shards[name] = self.start_shard(leader, run, name)
            leader.wait_event("chunks.moved", servers=3 + len(joins), left=0)
            leader.wait_more_rounds(20)
        for process in (leader, *shards.values(), *workers):
            process.kill()
        return self.records(run, "journal", COMMIT)[-1][1]

    def verify(self, run, *arguments, status=DONE):
        command = [pathlib.Path(self.programs) / "centroidctl", "checkpoints", "verify", self.folder / run, *arguments]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout

    def renewed(self):
        """The round of the checkpoint that such a run wrote, and its last; the segments that went with that stand in `aside`, by journal."""
        leader, shards, workers = self.start_all("run", "--checkpoint.every-rounds", 0, rounds=100_000)
        leader.wait_round(20)
        aside = self.folder / "aside"
        firsts = [self.file("run", journal) for journal in self.JOURNALS]

        def is_renewed():
            for journal in self.JOURNALS:
                (aside / journal).mkdir(parents=True, exist_ok=True)
                for segment in (self.folder / "run" / journal).glob("journal-*.log"):
                    if not (aside / journal / segment.name).exists():
                        os.link(segment, aside / journal / segment.name)
            self.assertEqual(leader.post("/v1/checkpoints")[0], 201)
            return not any(first.exists() for first in firsts)

        wait_for(is_renewed, "the older segments to go")
        leader.wait_more_rounds(10)
        for process in (leader, *shards.values(), *workers):
            process.kill()
        checkpoint = max((self.folder / "run" / "checkpoints").glob("checkpoint-*"))
        return json.loads((checkpoint / "manifest.json").read_text())["round"], self.records("run", "journal", COMMIT)[-1][1], checkpoint

    def put_back(self, journal):
        """The segments that had gone."""
        there = self.folder / "run" / journal
        missing = [old for old in (self.folder / "aside" / journal).iterdir() if not (there / old.name).exists()]
        for old in missing:
            os.link(old, there / old.name)
        return [there / old.name for old in missing]

    def named(self, *folders):
        return [one for folder in folders for one in ("--journal", folder)]

    def copy(self, run):
        shutil.copytree(self.folder / "run", self.folder / run)
        return run

    def file(self, run, journal):
        return max((self.folder / run / journal).glob("journal-*.log"))

    def records(self, run, journal, *kinds):
        """(offset, round, bytes) of the whole records."""
        data, at, out = self.file(run, journal).read_bytes(), 0, []
        while at + 40 <= len(data):
            kind, size, number = struct.unpack_from("<4xB3xQQ", data, at)
            if kind in kinds and at + 40 + size <= len(data):
                out.append((at, number, 40 + size))
            at += 40 + size
        return out

    def alter(self, run, journal, change):
        path = self.file(run, journal)
        data = bytearray(path.read_bytes())
        change(data)
        path.write_bytes(data)

    def test_the_parts_of_all_servers_are_looked_at(self):
        last = self.killed()
        said = self.verify("run")
        for label in ("journal ", "journal-b ", "journal-c "):
            self.assertRegex(said, rf"(?m)^{label} .* sound$")
        self.assertIn(f"parts  rounds 1 to {last}, {last} committed after the newest checkpoint  those of 'b', 'c' are complete", said)
        self.assertEqual(self.verify("run/checkpoints"), said)
        named = [one for which in ("", "-b", "-c") for one in ("--journal", self.folder / "run" / f"journal{which}")]
        self.assertEqual(self.verify("run", *named), said)

    def test_a_flipped_byte_of_a_shard_server_is_named_and_holds_a_resume_up(self):
        self.killed()
        run = self.copy("flipped")
        at, number, _ = self.records(run, "journal-b", CHUNK)[len(self.records(run, "journal-b", CHUNK)) // 2]
        self.alter(run, "journal-b", lambda data: data.__setitem__(at + 60, data[at + 60] ^ 1))
        said = self.verify(run, status=1)
        self.assertRegex(said, rf"(?m)^journal-b  DAMAGED  .*journal-b/journal-\d+.log, byte {at}: .*CRC-32C differs")
        self.assertRegex(said, r"(?m)^parts  .* those of 'c' are complete$")
        leader = self.start_leader(run, "--resume", name="resumed", rounds=100_000).wait_ready()
        for which in "bc":
            self.start_shard(leader, run, which, tag="-resumed")
        waits = wait_for(lambda: [w["what"] for w in leader.get("/v1/waits")["waits"] if "CRC-32C" in w["what"]], "the cause")
        self.assertRegex(waits[0], rf"^server 'b' is waited for its part of round {number}: .*journal-b/journal-\d+.log, byte \d+: round {number}, .* is altered")

    def test_a_committed_round_that_a_shard_server_does_not_have_is_missing(self):
        last = self.killed()
        short = self.copy("short")
        at, number, size = self.records(short, "journal-b", COMMIT)[-4]
        self.alter(short, "journal-b", lambda data: data.__delitem__(slice(at + size, None)))
        missing = last - number
        said = self.verify(short, status=1)
        more = f"; so for {missing - 1} more" if missing > 1 else ""
        self.assertIn(f"parts  DAMAGED  round {number + 1} is committed, and the journal of server 'b' does not have it, and ends with round {number}{more}\n", said)
        self.assertRegex(said, r"(?m)^journal-b .* sound$")
        part = self.copy("part")
        at, number, size = self.records(part, "journal-b", CHUNK)[-20]
        self.alter(part, "journal-b", lambda data: data.__delitem__(slice(at, at + size)))
        self.assertRegex(self.verify(part, status=1), rf"parts  DAMAGED  round {number} is committed, and the journal of server 'b' has (\d+) of \d+ chunks of it\n")

    def test_moved_chunks_and_fragments_are_checked_where_they_were(self):
        last = self.killed("moved", joins="d")
        self.assertIn(f"parts  rounds 1 to {last}, {last} committed after the newest checkpoint  those of 'b', 'c', 'd' are complete", self.verify("moved"))
        last = self.killed("fragments", "--local-steps", 4, "--outer", "optimizer", "--fragments", 2)
        self.assertIn("those of 'b', 'c' are complete", self.verify("fragments"))
        at, number, size = self.records("fragments", "journal-c", COMMIT)[-6]
        self.alter("fragments", "journal-c", lambda data: data.__delitem__(slice(at + size, None)))
        self.assertRegex(self.verify("fragments", status=1), rf"DAMAGED  round \d+ is committed, and the journal of server 'c' does not have it, and ends with round {number}")

    def test_missing_journals_are_reported(self):
        self.killed()
        apart = self.copy("apart")
        (self.folder / apart / "journal-c").rename(self.folder / "elsewhere")
        said = self.verify(apart)
        self.assertIn("those of 'b' are complete", said)
        self.assertIn("those of 'c' are missing, and a resume needs them", said)
        (self.folder / apart / "journal").rename(self.folder / "leader's")
        self.assertIn("the leader's journal, which records the commits, is missing", self.verify(apart))
        self.assertIn("elsewhere/nowhere  contains no journal", self.verify(apart, "--journal", self.folder / "elsewhere" / "nowhere", status=1))
        file = self.folder / "file"
        file.write_text("no folder")
        self.assertIn("file  is unreadable: list", self.verify(apart, "--journal", file, status=1))
        both = [one for name in ("leader's", "elsewhere") for one in ("--journal", self.folder / name)]
        self.assertIn("those of 'c' are complete", self.verify(apart, *both))

    def test_the_leaders_journal_is_read_first_in_any_folder(self):
        self.killed()
        (self.folder / "a").mkdir()
        b = (self.folder / "run" / "journal-b").rename(self.folder / "a" / "journal-b")
        for place in ("z/journal", "z/of-the-leader"):
            with self.subTest(place=place):
                (self.folder / "z").mkdir(exist_ok=True)
                there = self.folder / place
                next(at for at in (self.folder / "run" / "journal", self.folder / "z" / "journal") if at.exists()).rename(there)
                said = self.verify("run", *self.named(b, there))
                label = there.name if there.name == "journal" else str(there)
                self.assertEqual([line.split("  ")[0] for line in said.splitlines()][-4:-2], [label, "journal-b"], said)

    def test_segments_that_go_while_they_are_read_are_no_damage(self):
        self.renewed()
        for journal in self.JOURNALS:
            with self.subTest(journal=journal):
                needless = self.put_back(journal)
                there = needless[0].parent
                self.assertGreater(len(list(there.glob("journal-*.log"))), len(needless))
                said = ctl.held(self, "verify.journal", lambda: [old.unlink() for old in needless], "verify", self.folder / "run", *self.named(there))  # noqa: B023
                self.assertRegex(said, rf"(?m)^{journal}  .* sound$")
                self.assertNotIn("DAMAGED", said)

    def test_for_one_checkpoint_the_rounds_after_it_are_checked(self):
        after, last, checkpoint = self.renewed()
        self.put_back("journal")  # the leader's goes last
        whole = f"parts  rounds {after + 1} to {last}, {last - after} committed after the newest checkpoint  those of 'b', 'c' are complete"
        self.assertIn(whole, self.verify("run"))
        journals = self.named(*(self.folder / "run" / journal for journal in self.JOURNALS))
        self.assertIn(whole, self.verify(checkpoint, *journals))
        self.assertIn(whole, self.verify(shutil.copytree(checkpoint, self.folder / "copy-of-one"), *journals))

    def test_a_journal_of_an_earlier_run_counts_as_not_there(self):
        self.killed("old", "--run-id", "old", "--tables", "count:dim=1")
        self.killed("run", "--tables", "count:dim=1")
        for journal, missing in (("journal-c", "those of 'c' are missing, and a resume needs them"), ("journal", "the leader's journal, which records the commits, is missing")):
            with self.subTest(journal=journal):
                run = self.copy(f"with-{journal}")
                shutil.rmtree(self.folder / run / journal)
                shutil.copytree(self.folder / "old" / journal, self.folder / run / journal)
                said = self.verify(run)
                self.assertIn(missing, said)
                for label in (journal, f"{journal} of tables"):
                    self.assertIn(f"{label}  has nothing of run 'r', only of 'old': it counts as not there\n", said)
                self.assertIn(f"tables  journals of '{'c' if journal == 'journal-c' else 'the leader'}' are missing", said)

    def test_every_copy_of_a_journal_is_compared(self):
        self.killed()
        self.copy("short")
        at, number, size = self.records("short", "journal-b", COMMIT)[-4]
        self.alter("short", "journal-b", lambda data: data.__delitem__(slice(at + size, None)))
        of_run = [self.folder / "run" / journal for journal in self.JOURNALS]
        said = self.verify("run", *self.named(*of_run, self.folder / "short" / "journal-b"), status=1)
        self.assertIn(f"parts  DAMAGED  round {number + 1} is committed, and the journal of server 'b' in {self.folder}/short/journal-b does not have it", said)
        self.assertRegex(said, r"(?m)^parts  .* those of 'c' are complete$")

    def test_a_journal_without_pushes_after_the_checkpoint_is_damaged(self):
        self.killed("run", "--tables", "count:dim=1")
        self.assertRegex(self.verify("run"), r"(?m)^journal-b of tables  .* sound$")
        for segment in (self.folder / "run" / "journal-b").glob("rows-*.log"):
            segment.unlink()
        self.assertRegex(self.verify("run", status=1), r"(?m)^journal-b of tables  DAMAGED  has no rows-\*.log, but checkpoint-\d+ goes on with rows-\d+.log$")


if __name__ == "__main__":
    main(at_a_time=3)
