"""The journal and checkpoints under kill -9, at every point where they are written. durability_test.py BIN_DIR"""

import contextlib
import os
import pathlib
import signal
import struct
import subprocess
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import fault_points
from harness.cluster import DONE, USAGE, ClusterTest, Hold, free_port, main, wait_for
from harness.durability import CHECKPOINT_EVERY, JOURNAL, DurabilityTest, state_bytes


def last_commit(journal):
    """Round and contributors of the last commit in a journal (docs/explanation/durability.md)."""
    data = sorted(journal.glob("journal-*.log"))[-1].read_bytes()
    at, last = 0, None
    while at + 40 <= len(data):
        kind, size, number = struct.unpack_from("<4xB3xQQ", data, at)
        at += 40 + size
        if kind == 3 and at <= len(data):
            last = number, data[at - size : at]
    number, payload = last
    (count,), at, names = struct.unpack_from("<I", payload, 68), 72, []
    for _ in range(count):
        (size,) = struct.unpack_from("<I", payload, at)
        names.append(payload[at + 4 : at + 4 + size].decode())
        at += 4 + size
    return number, names


class Kill(DurabilityTest):
    def test_every_write_point(self):
        reached = self.folder / "points"
        environment = {"CENTROID_TEST_FAULT_LOG": str(reached)}
        arguments = [*JOURNAL, "--checkpoint.shard-bytes", 2048, "--tables", "emb:dim=4"]
        expected = self.whole("whole", *arguments, environment=environment)
        names = fault_points.reached(reached, "durability_test.py")
        # What a first run does not reach, a second does.
        self.assertEqual(fault_points.owned_by("durability_test.py") - set(names), {"journal.reading", "journal.replayed", "checkpoint.reading", "checkpoint.verifying", "init.reading"})
        for number, name in enumerate(names):
            for count in (1, 3) if name.startswith("checkpoint.") else (1, 9):
                with self.subTest(point=name, count=count):
                    if not self.disturbed(f"{number}-{count}", expected, *arguments, fault=f"{name}:{count}"):
                        break

    def test_a_start_that_is_killed_begins_again(self):
        expected = self.whole("whole-twice", *JOURNAL)
        for point in ("checkpoint.reading", "journal.replayed"):
            with self.subTest(point=point):
                run = f"twice-{point}"
                server = self.start(run, *JOURNAL, name=f"first-{run}", environment={"CENTROID_TEST_FAULT": "journal.end_written:20"})
                workers = self.workers(server, run)
                self.assertEqual(server.exit_status(), -signal.SIGKILL, server.text())
                arguments = {"listen": server.data, "environment": {"CENTROID_TEST_FAULT": point}}
                second = self.launch(run, "--resume", *JOURNAL, name=f"second-{run}", **arguments)
                self.assertEqual(second.exit_status(), -signal.SIGKILL, second.text())
                third = self.launch(run, "--resume", *JOURNAL, name=f"third-{run}", listen=server.data)
                self.assert_exit(DONE, *workers, third)
                self.assertEqual(state_bytes(self.checkpoints(run)[-1]), expected)

    def test_every_way_to_apply(self):
        ways = {
            "sum": ["--optimizer", "adam"],
            "clipped": ["--optimizer", "adam", "--clip-norm", 0.5],
            "parameters": ["--optimizer", "sgd"],
            "mean": ["--optimizer", "momentum", "--apply", "worker"],
            "clipped-mean": ["--optimizer", "momentum", "--apply", "worker", "--clip-norm", 0.5],
            "encoded": ["--optimizer", "momentum", "--codec-down", "int8"],
            "residual": ["--optimizer", "sgd", "--codec-down", "topk:0.1"],
            "encoded-clipped": ["--optimizer", "momentum", "--codec-down", "topk:0.1", "--clip-norm", 0.5],
            "several-chunks": ["--optimizer", "momentum", "--chunk-bytes", 256],
            "quorum": ["--optimizer", "momentum", "--policy", "quorum:2"],
        }
        for name, arguments in ways.items():
            expected = self.whole(f"whole-{name}", *JOURNAL, *arguments)
            torn = ("journal.payload_torn:12",) if "clipped" in name or name == "residual" else ()
            for fault in (*torn, "round.committed:13"):  # test_every_write_point has the others
                with self.subTest(way=name, fault=fault):
                    run = f"{name}-{fault.split(':')[0]}"
                    self.assertTrue(self.disturbed(run, expected, *JOURNAL, *arguments, fault=fault))

    def test_a_step_that_a_killed_server_was_trying_is_tried_again(self):
        tries = ["--optimizer", "adam", "--epsilon", 1e-13]  # it may divide by so little
        for apply, clip in (("worker", 0), ("worker", 0.5), ("server", 0), ("server", 0.5)):
            with self.subTest(apply=apply, clip=clip):
                arguments = [*JOURNAL, *tries, "--apply", apply, "--clip-norm", clip]
                expected = self.whole(f"whole-tries-{apply}-{clip}", *arguments)
                self.assertTrue(self.disturbed(f"tries-{apply}-{clip}", expected, *arguments, fault="trial.leader:9"))

    def test_rounds_of_single_contributions_are_in_it_too(self):
        """What asp does depends on who comes when, so there is no run to compare with: nothing is lost, and all end with the same bits."""
        for policy, apply in (("asp", "server"), ("asp", "worker"), ("ssp:1", "server")):
            with self.subTest(policy=policy, apply=apply):
                run = f"{policy[:3]}-{apply}"
                arguments = [*JOURNAL, "--policy", policy, "--apply", apply]
                server = self.start(run, *arguments, name=f"before-{run}", environment={"CENTROID_TEST_FAULT": "round.committed:25"}, rounds=60)
                workers = self.workers(server, run)
                self.assertEqual(server.exit_status(), -signal.SIGKILL, server.text())
                again = self.launch(run, "--resume", *arguments, name=f"after-{run}", listen=server.data, rounds=60)
                self.assert_status(again, DONE)
                self.assert_exit(DONE, *workers)
                self.assertGreaterEqual(again.events("journal.replayed")[0]["round"], self.last_committed(server), "a committed round was lost")
                self.assertEqual(len({self.summary(worker.name)["fingerprint"] for worker in workers}), 1)

    def test_error_feedback_is_told_that_its_contribution_counted(self):
        codec = ("--codec", "topk:0.1")
        arguments = [*JOURNAL, "--optimizer", "sgd"]
        expected = self.whole("whole", *arguments, worker=codec)
        for fault in ("journal.end_written:9", "round.before_close:9"):
            with self.subTest(fault):
                run = fault.split(":")[0]
                self.assertTrue(self.disturbed(run, expected, *arguments, fault=fault, worker=codec))
                for name in (f"w0-{run}", f"w1-{run}"):
                    log = next(process for process in self.processes if process.name == name)
                    self.assertEqual(log.events("contribution.resolved")[0]["counted"], True)

    def test_a_round_that_is_begun_anew_sends_the_same_bits(self):
        """Killed between the contributions and the commit: what codecs had left out, and momentum, are then those before the round."""
        ways = (("topk:0.1", "sgd"), ("topk:0.05,values=int8,momentum=0.9", "sgd"), ("sign", "momentum"), ("int8:feedback=on", "adam"))
        for number, (codec, optimizer) in enumerate(ways):
            arguments = [*JOURNAL, "--optimizer", optimizer]
            expected = self.whole(f"whole-{number}", *arguments, worker=("--codec", codec))
            for fault in ("journal.chunk_written:11", "journal.payload_torn:32"):
                with self.subTest(codec=codec, fault=fault):
                    run = f"{number}-{fault.split(':')[0]}"
                    self.assertTrue(self.disturbed(run, expected, *arguments, fault=fault, worker=("--codec", codec)))

    def test_a_late_contribution_is_told_to_have_counted_for_the_round_it_was_made_for(self):
        """The server is killed when a contribution made for round 1 is on the disk, with a later round, and nobody has been told of it."""
        for policy in ("asp", "ssp:1"):
            with self.subTest(policy):
                run = policy[:3]
                arguments = [*JOURNAL, "--policy", policy, "--optimizer", "sgd"]
                written = Hold(self, "journal.end_written", f"written-{run}")
                # With ssp:1 the server gives w0 no third share before w1 has contributed.
                held = [Hold(self, "worker.share_taken", f"share-{run}-{i}", count).close() for i, count in ((0, 3), (1, 1))]
                server = self.start(run, *arguments, name=f"before-{run}", environment=written.environment, rounds=40)
                workers = [self.worker(server, f"w{i}-{run}", "--codec", "topk:0.1", environment=hold.environment) for i, hold in enumerate(held)]
                held[1].wait_reached()
                server.wait_round(3)
                if policy == "asp":
                    held[0].wait_reached()
                written.close()
                held[1].open()
                written.wait_reached()
                server.kill()
                last, names = last_commit(self.folder / run / "journal")
                self.assertEqual(names, [workers[1].name])
                held[0].file.unlink()
                again = self.launch(run, "--resume", *arguments, name=f"after-{run}", listen=server.data, rounds=40)
                self.assert_status(again, DONE)
                self.assert_exit(DONE, *workers)
                settled = workers[1].events("contribution.resolved")[0]
                self.assertEqual((settled["counted"], settled["round"], last), (True, 1, 3), settled)

    def test_the_share_of_a_lost_worker_is_trained_as_if_the_server_had_not_died(self):
        arguments = [*JOURNAL, "--min-workers", 3]

        def begin(run, **more):
            server = self.start(run, *arguments, **more)
            workers = self.workers(server, run)
            slow = self.worker(server, f"w2-{run}", "--slowdown", 1000, batch=256)
            server.wait_missing(slow.name)  # its share is all that round 1 waits for
            slow.kill()
            return server, workers

        server, workers = begin("whole")
        self.assert_exit(DONE, *workers, server)
        expected = state_bytes(self.checkpoints("whole")[-1])
        server, workers = begin("killed", name="before", environment={"CENTROID_TEST_FAULT": "round.committed:1"})
        self.assertEqual(server.exit_status(), -signal.SIGKILL, server.text())
        self.assertEqual(server.events("share.requeued")[0]["begin"], 32)  # behind those of the others
        again = self.launch("killed", "--resume", *JOURNAL, name="after", listen=server.data)
        self.assert_status(again, DONE)
        self.assert_exit(DONE, *workers)
        self.assertEqual(again.events("journal.replayed")[0]["round"], 1)
        self.assertEqual(state_bytes(self.checkpoints("killed")[-1]), expected, "other shares than without the kill")

    def test_group_commit_survives_a_kill_too(self):
        arguments = ["--journal.mode", "on", "--journal.sync", "10m"]
        expected = self.whole("whole", *arguments)
        self.assertTrue(self.disturbed("killed", expected, *arguments, fault="round.committed:14"))


class FullDisk(ClusterTest):
    """The journal's disk: a file system of 1 MiB."""

    def small_disk(self, name="disk"):
        place = self.folder / name
        place.mkdir()
        if os.geteuid() != 0:
            self.skipTest("only root may mount the small file system that this test fills")
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, text=True)
        if mounted.returncode != 0:
            self.skipTest(f"cannot mount a small file system here: {mounted.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "-l", str(place)], check=True)
        return place

    def journal_on_small_disk(self, *arguments):
        place = self.small_disk()
        server = self.server(*JOURNAL, "--journal.dir", place / "journal", *arguments)
        return place, server, self.worker(server, "w0")

    def journal_waits(self, server):
        return [wait for wait in server.get("/v1/waits")["waits"] if wait["waits_for"] == "journal"]

    def test_round_waits_and_says_so_until_there_is_space(self):
        place, server, worker = self.journal_on_small_disk()
        server.wait_event("journal.stalled", error="No space left")
        (said,) = wait_for(lambda: self.journal_waits(server), "the journal in /v1/waits")
        self.assertIn("No space left", said["what"])
        held = server.cluster()["version"]
        wait_for(lambda: server.metric("centroid_server_journal_waits") == 1, "the metric")
        self.assertEqual(server.cluster()["version"], held)
        subprocess.run(["mount", "-o", "remount,size=64m", str(place)], check=True)
        server.wait_event("journal.recovered")
        server.wait_more_rounds()
        server.post("/v1/job:stop")
        self.assert_exit(DONE, worker, server)

    def test_a_journal_begins_when_there_is_space_for_it_and_for_its_checkpoint(self):
        for option in ("--journal.dir", "--checkpoint.dir"):
            with self.subTest(option=option):
                place = self.small_disk(option.strip("-"))
                filler = place / "filler"
                filler.write_bytes(bytes(256 << 10))
                with contextlib.suppress(OSError), filler.open("ab", buffering=0) as more:
                    while True:
                        more.write(bytes(4096))
                server = self.server(*JOURNAL, option, place / "its", run=option, name=f"of{option}")
                worker = self.worker(server, f"w{option}")
                server.wait_event("journal.stalled", error="No space left")
                (said,) = wait_for(lambda server=server: self.journal_waits(server), "the journal in /v1/waits")
                self.assertIn("No space left", said["what"])
                wait_for(lambda server=server: server.metric("centroid_server_journal_waits") == 1, "the metric")
                self.assertEqual(server.cluster()["state"], "initializing")
                subprocess.run(["mount", "-o", "remount,size=64m", str(place)], check=True)
                server.wait_more_rounds()
                wait_for(lambda server=server: server.metric("centroid_server_journal_waits") == 0, "the metric")
                server.post("/v1/job:stop")
                self.assert_exit(DONE, worker, server)

    def test_training_goes_on_without_a_journal_where_that_is_wanted(self):
        _, server, worker = self.journal_on_small_disk("--journal.full", "go-on")
        server.wait_event("journal.broken", error="No space left")
        wait_for(lambda: server.metric("centroid_server_journal_broken") == 1 or server.events("checkpoint.written")[1:], "its trouble")
        server.wait_more_rounds(20)
        server.wait_event("checkpoint.written")  # of the initial state, or the one that the trouble called for
        server.post("/v1/job:stop")
        self.assert_exit(DONE, worker, server)

    def test_stop_does_not_wait_for_space(self):
        _, server, worker = self.journal_on_small_disk()
        server.wait_event("journal.stalled")
        server.post("/v1/job:stop")
        self.assert_exit(DONE, worker, server)


class Restore(ClusterTest):
    def test_rest_answers_while_a_checkpoint_is_read(self):
        hold = self.folder / "hold"
        environment = {"CENTROID_TEST_HOLD": f"checkpoint.reading:{hold}"}
        server = self.launch_server("--min-workers", 2, "--rounds", 0, name="server", environment=environment).wait_ready()
        workers = [self.worker(server, f"w{i}") for i in range(2)]
        server.wait_round(20)
        status, made = server.post("/v1/checkpoints")
        self.assertEqual(status, 201, made)
        hold.write_text("")
        self.addCleanup(lambda: hold.unlink(missing_ok=True))
        answers = []
        thread = threading.Thread(target=lambda: answers.append(server.post(f"/v1/checkpoints/{made['version']}:restore")), daemon=True)
        thread.start()
        # The service thread has sent the workers away, and tells those who come back why they may not join yet.
        server.wait_event("member.refused", why="a checkpoint is being loaded")
        self.assertIn("round", server.cluster())
        self.assertEqual(answers, [])
        hold.unlink()
        thread.join(60)
        self.assertEqual([status for status, _ in answers], [200], answers)
        server.wait_round(made["round"] + 20)
        self.assertTrue(all(worker.is_running() for worker in workers))


    def test_rest_answers_while_the_journal_is_read(self):
        goal = [*JOURNAL, "--min-workers", 1, "--rounds", 0]
        server = self.launch_server(*goal, name="server").wait_ready()
        worker = self.worker(server, "w0")
        server.wait_round(20)
        server.kill()
        hold = self.folder / "hold"
        hold.write_text("")
        self.addCleanup(lambda: hold.unlink(missing_ok=True))
        environment = {"CENTROID_TEST_HOLD": f"journal.reading:{hold}"}
        api = f"127.0.0.1:{free_port()}"
        again = self.launch_server(*goal, "--resume", name="again", listen=server.data, api=api, environment=environment)
        again.wait_event("checkpoint.loaded")
        again.api = api  # the file with its endpoints comes when it is ready

        def reads():
            with contextlib.suppress(OSError):
                return [one for one in again.get("/v1/waits")["waits"] if one["waiter"] == "replay"]

        wait = wait_for(reads, "the replay among the waits")[0]
        self.assertRegex(wait["what"], r"^round \d+ of the journal$")
        self.assertIn("state", again.cluster())
        self.assertEqual(again.call("GET", "/livez")[0], 200)
        self.assertEqual(again.call("GET", "/readyz")[0], 503)
        self.assertEqual(again.events("journal.replayed"), [])
        hold.unlink()
        again.wait_ready()
        self.assertGreaterEqual(again.events("journal.replayed")[0]["round"], 19)  # of round 20 it was said that it is open
        again.wait_more_rounds()
        self.assertEqual(again.call("GET", "/readyz")[0], 200)
        self.assertTrue(worker.is_running())


class NothingKept(ClusterTest):
    def test_a_job_of_which_nothing_is_kept_says_so_at_its_start(self):
        kept = (("--journal.mode", "on"), ("--checkpoint.every-rounds", 5), ("--checkpoint.every-epochs", 1), ("--checkpoint.interval", "1h"))
        for i, flags in enumerate(((), ("--exchange", "ring"), ("--tables", "t:dim=2"), *kept)):
            server = self.server(*flags, run=f"run{i}", name=f"server{i}")
            server.wait_event("server.initialized")
            told = server.events("job.durability_reduced")
            if flags in kept:
                self.assertEqual(told, [], flags)
            else:
                self.assertEqual("journal.mode" in told[0]["action"], "ring" not in flags, flags)
                self.assertEqual("rows" in told[0]["lost_with_the_server"], "--tables" in flags, flags)
            server.kill()


class Readers(ClusterTest):
    """Who looks at checkpoints while one is written, verified or deleted."""

    def held(self, point, *arguments):
        """A server that has a checkpoint, that one's version, and the file that holds up whoever reaches `point` from now on."""
        hold = self.folder / "hold"
        environment = {"CENTROID_TEST_HOLD": f"{point}:{hold}", "CENTROID_TEST_FAULT_LOG": str(self.folder / "points")}
        server = self.launch_server("--min-workers", 1, "--rounds", 0, *arguments, name="server", environment=environment).wait_ready()
        self.worker(server, "w0")
        server.wait_round(5)
        version = server.post("/v1/checkpoints")[1]["version"]
        server.wait_cluster("newer parameters, of which the next one is", lambda cluster: cluster["version"] > version)
        hold.write_text("")
        self.addCleanup(lambda: hold.unlink(missing_ok=True))
        return server, version, hold

    def begin(self, server, path, method="POST"):
        """The answers to a call that goes on beside the test, and its thread."""
        answers = []

        def ask():
            with contextlib.suppress(OSError):  # the server may end first
                answers.append(server.call(method, path))

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        return answers, thread

    def begin_write(self, server):
        folder = self.folder / "run" / "checkpoints"
        before = set(folder.iterdir())
        begun = self.begin(server, "/v1/checkpoints")
        wait_for(lambda: set(folder.iterdir()) - before, "the second one's folder")
        return begun

    def begin_verify(self, server, version):
        begun = self.begin(server, f"/v1/checkpoints/{version}:verify")
        wait_for(lambda: "checkpoint.verifying" in (self.folder / "points").read_text(), "one that is verified")
        return begun

    def wait_held(self, server, who, what):
        """Until /v1/waits says so of a call."""

        def held():
            waits = server.get("/v1/waits")["waits"]
            return [w for w in waits if (w["waiter"], w["waits_for"]) == (who, "disk") and w["what"].startswith(what)]

        wait_for(held, f"{who} in /v1/waits: {what}")

    def end(self, hold, answers, thread):
        """The only answer; it did not come before."""
        self.assertEqual(answers, [])
        hold.unlink()
        thread.join(60)
        self.assertEqual(len(answers), 1)
        return answers[0]

    def ctl(self, server, *arguments):
        command = [str(pathlib.Path(self.programs) / "centroidctl"), "--server", server.api, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_list_does_not_wait_for_one_that_is_written(self):
        server, version, hold = self.held("checkpoint.folder_made")
        answers, thread = self.begin_write(server)
        for _ in range(3):
            self.assertEqual([one["version"] for one in server.get("/v1/checkpoints")["checkpoints"]], [version])
        self.wait_held(server, "checkpoint", "version ")
        removed, remover = self.begin(server, f"/v1/checkpoints/{version + 1000}", "DELETE")
        self.wait_held(server, f"removal of checkpoint {version + 1000}", "the one that is written")
        self.assertEqual(self.end(hold, answers, thread)[0], 201)
        remover.join(60)
        self.assertEqual(removed[0][0], 404)
        self.assertEqual(len(server.get("/v1/checkpoints")["checkpoints"]), 2)

    def test_a_backup_does_not_wait_for_one_that_is_written(self):
        server, version, hold = self.held("checkpoint.folder_made")
        answers, thread = self.begin_write(server)
        status, verified = server.post(f"/v1/checkpoints/{version}:verify")
        self.assertEqual((status, verified["problem"]), (200, ""))
        self.ctl(server, "checkpoints", "get", version, "--to", self.folder / "backup")
        self.ctl(server, "checkpoints", "verify", self.folder / "backup")
        self.assertEqual(self.end(hold, answers, thread)[0], 201)

    def test_a_setting_is_kept_while_one_is_written(self):
        server, _, hold = self.held("checkpoint.folder_made")
        answers, thread = self.begin_write(server)
        self.ctl(server, "config", "set", "checkpoint.keep=1")
        self.assertIn("checkpoint.keep", (self.folder / "run" / "checkpoints" / "operator.json").read_text())
        self.assertEqual(self.end(hold, answers, thread)[0], 201)
        self.assertEqual(server.post("/v1/checkpoints")[0], 201)
        self.assertEqual(len(server.get("/v1/checkpoints")["checkpoints"]), 1)

    def test_nothing_waits_for_one_that_is_verified(self):
        server, version, hold = self.held("checkpoint.verifying")
        answers, thread = self.begin_verify(server, version)
        self.wait_held(server, f"verification of checkpoint {version}", "its files")
        self.begin(server, f"/v1/checkpoints/{version + 1000}:verify")
        self.wait_held(server, f"verification of checkpoint {version + 1000}", "another one that is verified")
        self.ctl(server, "checkpoints", "get", version, "--to", self.folder / "backup")
        self.assertEqual(server.post("/v1/checkpoints")[0], 201)
        self.assertEqual(len(server.get("/v1/checkpoints")["checkpoints"]), 2)
        server.send(signal.SIGTERM)
        wait_for(lambda: len(self.checkpoints()) == 3, "the last state")
        self.assertEqual(answers, [])
        hold.unlink()
        thread.join(60)
        self.assert_exit(DONE, server)

    def test_one_that_is_deleted_while_it_is_verified_is_not_called_damaged(self):
        server, version, hold = self.held("checkpoint.verifying")
        answers, thread = self.begin_verify(server, version)
        self.assertEqual(server.post("/v1/checkpoints")[0], 201)
        self.assertEqual(server.call("DELETE", f"/v1/checkpoints/{version}")[0], 200)
        status, problem = self.end(hold, answers, thread)
        self.assertEqual(status, 404, problem)

    def test_one_that_is_fetched_is_not_pruned(self):
        self.assert_stays(lambda server, version: server.get(f"/v1/checkpoints/{version}/files"))

    def test_one_that_was_verified_is_there_to_be_fetched(self):
        self.assert_stays(lambda server, version: server.post(f"/v1/checkpoints/{version}:verify"))

    def assert_stays(self, act):
        server, version, hold = self.held("nothing", "--checkpoint.keep", 1)
        hold.unlink()
        act(server, version)
        made = []
        for _ in range(3):
            server.wait_more_rounds(1)
            made.append(server.post("/v1/checkpoints")[1]["version"])
        self.assertEqual([one["version"] for one in server.get("/v1/checkpoints")["checkpoints"]], [made[-1], version])
        self.assertEqual(server.call("GET", f"/v1/checkpoints/{version}/files/manifest.json")[0], 200)


class Memory(ClusterTest):
    def test_model_that_does_not_fit_is_refused_with_both_numbers(self):
        server = self.server("--memory-limit", "40MiB")
        before = server.memory_bytes()
        worker = self.worker(server, "w0", model="mlp:64-2000-2000-10")  # 4 152 010 parameters
        self.assert_status(worker, USAGE, "4152010 parameters", "memory_limit allows 41943040", "needs ")
        self.assertTrue(server.is_running())
        self.assertLess(server.memory_bytes() - before, 12 << 20, "less than the parameters alone, 16 MiB")
        fits = self.worker(server, "w1")
        server.wait_worker("w1", "active")
        self.assertTrue(fits.is_running())


class Damage(DurabilityTest):
    def killed(self, run="run"):
        """A journal with rounds behind the last checkpoint."""
        server = self.start(run, *JOURNAL, environment={"CENTROID_TEST_FAULT": "round.committed:13"})
        workers = self.workers(server, run)
        self.assertEqual(server.exit_status(), -signal.SIGKILL)
        for worker in workers:
            worker.kill()
        return sorted((self.folder / run / "journal").glob("journal-*.log"))

    def resume(self, *arguments, run="run", name="again"):
        common = ["--optimizer", "momentum", "--run-id", "r", "--resume"]
        return self.launch_server(*common, "--lr", "0.05", *arguments, run=run, name=name)

    def test_torn_tail_is_cut_off_with_a_message(self):
        segment = self.killed()[-1]
        whole = segment.stat().st_size
        os.truncate(segment, whole - 5)
        server = self.resume(*JOURNAL)
        cut = server.wait_event("journal.tail_cut")
        self.assertIn(segment.name, cut["why"])
        self.assertEqual(server.wait_event("journal.replayed")["round"], 12)
        self.assertLess(segment.stat().st_size, whole)

    def test_damage_in_the_middle_is_refused_with_its_offset(self):
        segment = self.killed()[-1]
        data = bytearray(segment.read_bytes())
        data[700] ^= 1
        segment.write_bytes(data)
        self.assert_status(self.resume(*JOURNAL), USAGE, segment.name, "byte ", "altered", "committed rounds follow them")
        checked = self.ctl("checkpoints", "verify", self.folder / "run" / "checkpoints")
        self.assertEqual(checked.returncode, 1, checked.stdout)
        self.assertIn("byte ", checked.stdout + checked.stderr)

    def test_other_settings_are_refused(self):
        self.killed()
        self.assert_status(self.resume("--clip-norm", "0.1"), USAGE, "clip_norm=0 ", "other settings")

    def test_other_settings_are_taken_when_the_checkpoint_has_all_rounds(self):
        server = self.start("run", *JOURNAL, rounds=0)
        workers = self.workers(server, "run")
        server.wait_round(CHECKPOINT_EVERY + 2)
        server.post("/v1/job:stop")
        self.assert_exit(DONE, *workers, server)
        goal = self.last_committed(server) + 10  # it may have gone on for a while
        again = self.launch("run", "--resume", *JOURNAL, "--clip-norm", "0.1", name="again", rounds=goal).wait_ready()
        self.assertEqual(again.post("/v1/job:resume")[0], 202)  # the stop holds over a restart
        self.assert_exit(DONE, *self.workers(again, "again"), again)
        self.assertEqual(self.last_committed(again), goal)

    def test_used_folder_without_resume(self):
        self.assertTrue(all(path.exists() for path in self.killed()))
        server = self.launch_server("--optimizer", "momentum")
        self.assert_status(server, USAGE, "resume")

    def test_rings_have_nothing_to_write(self):
        self.assert_status(self.launch_server("--exchange", "ring", *JOURNAL), USAGE, "journal", "ring")

    def test_resume_without_a_journal_still_replays_and_then_removes_it(self):
        self.killed()
        server = self.resume("--rounds", 20, "--exit-when-finished", "--min-workers", 2)
        server.wait_ready()
        self.assertEqual(server.wait_event("journal.replayed")["round"], 13)
        self.assert_exit(DONE, *self.workers(server, "again"), server)
        self.assertEqual([path.name for path in (self.folder / "run" / "journal").iterdir()], ["server.lock"])


if __name__ == "__main__":
    main(at_a_time=3)
