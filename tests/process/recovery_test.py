"""Checkpoints, resume, and how a server ends: in order, killed, with a full disk. recovery_test.py BIN_DIR"""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import DONE, FAILED, USAGE, ClusterTest, Hold, Process, main, wait_for
from harness.ctl import ANSWERED_BADLY, CtlTest

WIDE = "mlp:64-512-512-10"
NO_SPACE = "No space left on device"
LOCK = "server.lock"


def model_bytes(checkpoint):
    return (checkpoint / "model.safetensors").read_bytes()


def flip(path, position):
    """One bit of it, in place."""
    with path.open("r+b") as file:
        file.seek(position, os.SEEK_END if position < 0 else os.SEEK_SET)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


class RecoveryTest(ClusterTest):
    def train(self, rounds, *arguments, run="run", workers=2, model="mlp:64-16-10", suffix=""):
        """One whole job; the log names tell runs apart."""
        goal = ["--rounds", rounds, "--min-workers", workers, "--exit-when-finished"]
        optimizer = ["--optimizer", "momentum"]
        server = self.server(*optimizer, *goal, *arguments, run=run, name=f"server-{run}-{rounds}{suffix}")
        started = [self.worker(server, f"w{i}-{run}-{rounds}{suffix}", model=model) for i in range(workers)]
        self.assert_exit(DONE, *started, server)
        return server

    def make_checkpoints(self, *rounds, run="run"):
        """A folder with one checkpoint for each of these rounds."""
        for number in rounds:
            self.train(number, "--resume", run=run, workers=1)
        self.assertEqual(len(self.checkpoints(run)), len(rounds))
        return self.checkpoints(run)


class Crash(RecoveryTest):
    def test_killed_server_resumes_and_its_workers_come_back_by_themselves(self):
        common = ["--optimizer", "momentum", "--min-workers", 2, "--checkpoint.every-rounds", 20]
        server = self.server(*common, "--rounds", 1_000_000, name="before")
        workers = [self.worker(server, name) for name in ("w0", "w1")]
        server.wait_event("checkpoint.written")
        server.wait_more_rounds(50)
        server.kill()
        newest = self.checkpoints()[-1]
        goal = int(newest.name.split("-")[1]) + 300  # behind it, however long the disk took
        for worker in workers:
            worker.wait_event("server.connection_failed")
        again = self.server(*common, "--rounds", goal, "--resume", "--exit-when-finished", name="after", listen=server.data, api=server.api)
        self.assertEqual(again.wait_event("checkpoint.loaded")["path"], str(newest))
        self.assert_exit(DONE, *workers, again)
        self.assertEqual(again.events("job.ended")[0]["round"], goal)
        for worker in workers:
            self.assertGreater(len(worker.events("cluster.joined")), 1)
        self.train(goal, run="whole")
        self.assertEqual(model_bytes(self.checkpoints()[-1]), model_bytes(self.checkpoints("whole")[-1]))

    def test_a_replay_of_more_rounds_than_lie_between_checkpoints_is_followed_by_one(self):
        common = ["--rounds", 1_000_000, "--min-workers", 1, "--journal.mode", "on"]
        server = self.server(*common, "--checkpoint.every-rounds", 900_000, name="before")
        worker = self.worker(server, "w0")
        server.wait_round(40)
        server.kill()
        worker.kill()
        again = self.server(*common, "--checkpoint.every-rounds", 30, "--resume", name="after")
        replayed = again.wait_event("journal.replayed")["version"]
        self.assertEqual(again.wait_event("checkpoint.written")["version"], replayed)  # no worker is here, so no round

    def test_workers_say_what_a_killed_server_has_lost(self):
        for journal in ("off", "on"):
            with self.subTest(journal):
                common = ["--rounds", 1000000, "--min-workers", 2, "--journal.mode", journal]
                server = self.server(*common, name=f"before-{journal}", run=journal)
                workers = [self.worker(server, f"{name}-{journal}") for name in ("w0", "w1")]
                server.wait_round(3)
                self.assertEqual(server.post("/v1/checkpoints")[0], 201)
                server.wait_more_rounds(20)
                server.kill()
                again = self.server(*common, "--resume", name=f"after-{journal}", run=journal, listen=server.data, api=server.api)
                kept = again.wait_event("checkpoint.loaded")["version"]
                again.wait_more_rounds(5)
                for worker in workers:
                    if journal == "off":
                        lost = worker.wait_event("rounds.lost", to=kept)
                        self.assertGreaterEqual(lost["from"], kept + 10)
                        self.assertEqual((lost["level"], lost["action"]), ("warn", "journal.mode on keeps every round"))
                    self.assertEqual(len(worker.events("rounds.lost")), 1 if journal == "off" else 0)

    def test_server_that_leaves_its_workers_is_replaced_without_losing_a_round(self):
        common = ["--optimizer", "momentum", "--min-workers", 2, "--leave-workers"]
        server = self.server(*common, "--rounds", 1_000_000, name="before")
        workers = [self.worker(server, name) for name in ("w0", "w1")]
        server.wait_more_rounds(50)
        server.send(signal.SIGTERM)
        self.assert_status(server, DONE, "server.workers_released")
        version = server.events("job.ended")[0]["version"]
        goal = version + 300
        again = self.server(*common, "--rounds", goal, "--resume", "--exit-when-finished", name="after", listen=server.data, api=server.api)
        self.assertEqual(again.wait_event("checkpoint.loaded")["version"], version)
        self.assert_exit(DONE, *workers, again)
        self.assertEqual(again.events("job.ended")[0]["round"], goal)
        self.train(goal, run="whole")
        self.assertEqual(model_bytes(self.checkpoints()[-1]), model_bytes(self.checkpoints("whole")[-1]))

    def test_run_of_another_name_is_not_joined(self):
        server = self.server("--run-id", "first")
        worker = self.worker(server, "w0")
        server.wait_round(3)
        server.kill()
        self.server("--run-id", "second", name="other", run="other", listen=server.data)
        self.assert_status(worker, USAGE, "first", "second")

    def test_leftover_of_a_broken_write_is_removed(self):
        server = self.server("--checkpoint.every-rounds", 1)
        self.worker(server, "w0")
        server.wait_event("checkpoint.written")
        server.kill()
        folder = self.folder / "run" / "checkpoints"
        leftover = folder / ".tmp-checkpoint-000000000099-1-0"
        leftover.mkdir()
        (leftover / "model.safetensors").write_bytes(b"half")
        again = self.server("--resume", name="again")
        again.wait_event("checkpoint.leftover_removed", path=leftover)
        self.assertEqual({path.name for path in folder.iterdir() if not path.name.startswith("checkpoint-")}, {LOCK})


class SecondServer(RecoveryTest):
    """Without etcd nothing tells a stopped server that it was replaced, so it cannot be."""

    def assert_second_is_refused(self, first, folder, *arguments, run="run"):
        second = self.launch_server("--resume", *arguments, name=f"second-{run}", run=run)
        self.assert_status(second, FAILED, f"{folder} is another server's: process {first.pid} on ", str(folder / LOCK))

    def test_is_refused_while_the_first_lives_also_stopped(self):
        goal = ["--rounds", 100000, "--min-workers", 1, "--journal.mode", "on", "--checkpoint.every-rounds", 20]
        first = self.server(*goal, name="first")
        worker = self.worker(first, "w0")
        first.wait_event("checkpoint.written")
        first.send(signal.SIGSTOP)
        run = self.folder / "run"
        self.assert_second_is_refused(first, run, *goal)
        self.assert_second_is_refused(first, run / "checkpoints", "--checkpoint.dir", run / "checkpoints", run="other")
        for keeps in ("on", "off"):  # who keeps none replays one of before, and removes it
            self.assert_second_is_refused(first, run / "journal", "--journal.mode", keeps, "--journal.dir", run / "journal", run=f"journal-{keeps}")
        first.send(signal.SIGCONT)
        first.wait_more_rounds(50)
        self.assertEqual(worker.events("server.connection_failed"), [])
        first.kill()
        third = self.server("--resume", *goal, name="third", listen=first.data, api=first.api)  # a killed one holds nothing
        third.wait_more_rounds(20)

    def test_of_shard_servers_each_has_its_journal(self):
        leader = self.server("--servers", 2, "--journal.mode", "on", "--min-workers", 1)
        shard = ["--join", leader.data, "--name", "s1", "--listen", "127.0.0.1:0", "--run-dir", self.folder / "run"]
        first = self._start(Process, "centroid-server", "s1", shard, None)
        self.worker(leader, "w0")
        leader.wait_round(5)
        first.send(signal.SIGSTOP)
        again = self._start(Process, "centroid-server", "s1-again", shard, None)
        self.assert_status(again, FAILED, f"{self.folder / 'run' / 'journal-s1'} is another server's: process {first.pid} on ")
        first.send(signal.SIGCONT)
        leader.wait_more_rounds(5)


class Damage(RecoveryTest):
    def damages(self):
        """Names and ways to harm a checkpoint."""

        def cut(path, count):
            os.truncate(path, path.stat().st_size - count)

        return {
            "model cut": (lambda c: cut(c / "model.safetensors", 1), "model.safetensors"),
            "model empty": (lambda c: os.truncate(c / "model.safetensors", 0), "model.safetensors"),
            "model altered": (lambda c: flip(c / "model.safetensors", -100), "CRC-32C"),
            "model header altered": (lambda c: flip(c / "model.safetensors", 20), "CRC-32C"),
            "model gone": (lambda c: (c / "model.safetensors").unlink(), "model.safetensors"),
            "optimizer altered": (lambda c: flip(c / "optimizer.safetensors", -1), "optimizer.safetensors"),
            "optimizer gone": (lambda c: (c / "optimizer.safetensors").unlink(), "optimizer.safetensors"),
            "manifest cut": (lambda c: cut(c / "manifest.json", 40), "manifest.json"),
            "manifest altered": (lambda c: self.edit_manifest(c), "manifest.json"),
            "manifest gone": (lambda c: (c / "manifest.json").unlink(), "manifest.json"),
        }

    def edit_manifest(self, checkpoint):
        file = checkpoint / "manifest.json"
        text = file.read_text()
        changed = text.replace('"version": 11', '"version": 12')
        self.assertNotEqual(text, changed, text)
        file.write_text(changed)

    def test_damaged_checkpoint_is_refused_and_the_older_taken(self):
        self.make_checkpoints(5, 10)
        for number, (name, (harm, text)) in enumerate(self.damages().items()):
            with self.subTest(name):
                run = f"copy-{number}"
                shutil.copytree(self.folder / "run", self.folder / run)
                older, newest = self.checkpoints(run)
                harm(newest)
                server = self.server("--optimizer", "momentum", "--resume", run=run, name=run)
                refused = server.wait_event("checkpoint.refused", path=newest)
                self.assertIn(text, refused["why"])
                self.assertEqual(server.wait_event("checkpoint.loaded")["path"], str(older))
                self.assertEqual(server.cluster()["version"], 6)
                server.kill()

    def test_training_goes_on_from_the_older_one(self):
        older, newest = self.make_checkpoints(5, 10)
        expected = model_bytes(newest)
        with newest.joinpath("model.safetensors").open("r+b") as file:
            file.truncate(1000)
        self.train(10, "--resume", workers=1, suffix="-again")
        self.assertEqual(model_bytes(newest), expected)

    def test_all_damaged_does_not_start_afresh(self):
        for checkpoint in self.make_checkpoints(5, 10):
            os.truncate(checkpoint / "model.safetensors", 100)
        server = self.launch_server("--optimizer", "momentum", "--resume")
        self.assert_status(server, USAGE, "every checkpoint in", "is damaged", "move them away")
        self.assertEqual(len(self.checkpoints()), 2)

    def test_nothing_to_resume_starts_afresh_and_says_so(self):
        server = self.train(3, "--resume", workers=1)
        server.wait_event("checkpoint.none_found", action="starting afresh")


class KnownDamage(RecoveryTest, CtlTest):
    """Damage in bytes shows when they are read; from then on everybody is told."""

    ALTERED = "model.safetensors: CRC-32C differs from manifest.json: altered"

    def harm(self, checkpoint):
        """Twice: as it was. Each time the file is a later one, also where its file system counts time in ticks."""
        model = checkpoint / "model.safetensors"
        later = model.stat().st_mtime_ns + 20_000_000
        flip(model, -100)
        os.utime(model, ns=(later, later))

    def problems(self, server):
        """Of each, newest first."""
        return [one["problem"] for one in server.get("/v1/checkpoints")["checkpoints"]]

    def doctor(self, server, status=DONE):
        told = json.loads(self.ctl(server, "doctor", "--no-members", "--output", "json", status=status))
        return [one for one in told if one["check"] == "checkpoint"]

    def paused(self):
        """A server with two checkpoints, the newer one of the present state."""
        server = self.server("--rounds", 1000000)
        worker = self.worker(server, "w0")
        server.wait_round(3)
        self.assertEqual(server.post("/v1/checkpoints")[0], 201)
        server.wait_more_rounds(3)
        server.post("/v1/job:pause")
        server.wait_cluster("paused", lambda cluster: cluster["state"] == "paused")
        status, made = server.post("/v1/checkpoints")
        self.assertEqual(status, 201, made)
        self.assertEqual(self.problems(server), ["", ""])
        return server, worker, made["version"]

    def test_what_the_start_has_refused_is_shown_and_counts_for_nothing(self):
        older, newest = self.make_checkpoints(5, 10)
        self.harm(newest)
        server = self.server("--optimizer", "momentum", "--resume", "--checkpoint.keep", 2, "--rounds", 1000000, name="again")
        server.wait_event("checkpoint.refused", path=newest)
        self.assertEqual(self.problems(server), [self.ALTERED, ""])
        self.assertIn(self.ALTERED, self.ctl(server, "checkpoints", "list", status=ANSWERED_BADLY))
        (bad, good) = self.doctor(server, ANSWERED_BADLY)
        self.assertEqual((bad["verdict"], bad["found"]), ("bad", f"{newest} is damaged: {self.ALTERED}"))
        self.assertIn("centroidctl checkpoints make", bad["do"])
        self.assertEqual(good["verdict"], "ok")
        status, answer = server.call("DELETE", "/v1/checkpoints/6")
        self.assertEqual(status, 409, answer)
        self.assertIn("newest", answer)
        self.ctl(server, "checkpoints", "get", "--to", self.folder / "got")
        self.assertEqual([path.name for path in (self.folder / "got").iterdir()], [older.name])

        worker = self.worker(server, "w0")
        server.wait_round(20)
        status, made = server.post("/v1/checkpoints")
        self.assertEqual(status, 201, made)
        self.assertEqual(self.checkpoints()[:2], [older, newest])  # of two that are kept one is the older
        self.assertEqual(self.problems(server), ["", self.ALTERED, ""])
        self.assertIn("a newer one", self.doctor(server, ANSWERED_BADLY)[0]["do"])
        self.assertEqual(server.call("DELETE", "/v1/checkpoints/11")[0], 200)
        self.assertEqual(self.problems(server), ["", ""])
        self.assertEqual([one["verdict"] for one in self.doctor(server)], ["ok"])
        worker.kill()

    def test_what_verify_or_restore_has_found_is_shown_until_it_is_mended(self):
        server, _, version = self.paused()
        for act in ("verify", "restore"):
            self.harm(self.checkpoints()[-1])
            self.assertEqual(self.problems(server), ["", ""])
            status, answer = server.post(f"/v1/checkpoints/{version}:{act}")
            self.assertEqual(status, 200 if act == "verify" else 500, answer)
            self.assertIn(self.ALTERED, answer["problem" if act == "verify" else "detail"])
            self.assertEqual(self.problems(server), [self.ALTERED, ""])
            status, answer = server.call("GET", f"/v1/checkpoints/{version}/files")
            self.assertEqual(status, 500, answer)
            self.assertIn(self.ALTERED, answer)
            self.harm(self.checkpoints()[-1])  # as it was
            self.assertEqual(self.problems(server), ["", ""])
            self.assertEqual(server.post(f"/v1/checkpoints/{version}:verify")[1]["problem"], "")

    def assert_end_keeps_the_state(self, server, worker, checkpoint):
        server.post("/v1/job:stop")
        self.assert_exit(DONE, worker, server)
        self.assertEqual(self.checkpoints()[-1], checkpoint)
        self.ctl(None, "checkpoints", "verify", self.folder / "run")

    def test_state_whose_checkpoint_was_found_damaged_is_written_again(self):
        server, worker, version = self.paused()
        damaged = self.checkpoints()[-1]
        self.harm(damaged)
        server.post(f"/v1/checkpoints/{version}:verify")
        self.ctl(server, "checkpoints", "make")
        self.assertEqual(self.problems(server), ["", ""])
        self.harm(damaged)
        server.post(f"/v1/checkpoints/{version}:verify")
        self.assert_end_keeps_the_state(server, worker, damaged)

    def test_state_whose_damaged_checkpoint_was_deleted_is_written_again(self):
        server, worker, version = self.paused()
        damaged = self.checkpoints()[-1]
        self.assertEqual(server.call("DELETE", f"/v1/checkpoints/{version}")[0], 409)
        os.truncate(damaged / "model.safetensors", 100)
        self.assertEqual(server.call("DELETE", f"/v1/checkpoints/{version}")[0], 200)
        self.assertFalse(damaged.exists())
        self.assert_end_keeps_the_state(server, worker, damaged)


class Mismatch(RecoveryTest):
    def assert_refused(self, *texts, arguments=()):
        server = self.launch_server("--rounds", 20, *arguments, name="again")
        self.assert_status(server, USAGE, *texts)

    def test_checkpoint_of_another_run(self):
        self.make_checkpoints(5)
        arguments = ["--optimizer", "momentum", "--resume", "--run-id", "other"]
        self.assert_refused("belongs to run", "'other'", arguments=arguments)

    def test_checkpoint_of_another_optimizer(self):
        self.make_checkpoints(5)
        self.assert_refused("momentum", "adam", arguments=["--optimizer", "adam", "--resume"])

    def test_checkpoint_of_another_seed(self):
        self.make_checkpoints(5)
        self.assert_refused("seed 1", "9", arguments=["--optimizer", "momentum", "--seed", 9, "--resume"])

    def test_used_folder_without_resume(self):
        (checkpoint,) = self.make_checkpoints(5)
        before = model_bytes(checkpoint)
        self.assert_refused("resume", "run_dir", arguments=["--optimizer", "momentum"])
        self.assertEqual(model_bytes(checkpoint), before)

    def test_worker_of_another_model(self):
        self.make_checkpoints(5)
        server = self.server("--optimizer", "momentum", "--resume")
        self.assert_status(self.worker(server, "w0", model="mlp:64-20-10"), USAGE, "model", "16", "20")

    def test_worker_with_other_data(self):
        self.make_checkpoints(5)
        server = self.server("--optimizer", "momentum", "--resume", "--rounds", 20)
        folder = self.folder / "idx"
        folder.mkdir()
        for part in ("train", "t10k"):
            pixels = bytes(i % 251 for i in range(40 * 64))
            (folder / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 0x803, 40, 8, 8) + pixels)
            (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, 40) + bytes(i % 10 for i in range(40)))
        worker = self.worker(server, "w0", "--data", f"idx:{folder}")
        self.assert_status(worker, USAGE, "training data differs", "40 samples", "1600")


class FullDisk(RecoveryTest):
    def small_disk(self):
        """A file system of 1 MiB, or a skip."""
        place = self.folder / "disk"
        place.mkdir()
        if os.geteuid() != 0:
            self.skipTest("only root may mount the small file system that this test fills")
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, text=True)
        if mounted.returncode != 0:
            self.skipTest(f"cannot mount a small file system here: {mounted.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "-l", str(place)], check=True)
        return place

    def fill(self, place):
        """Take the space that is left, again when there is some again; gives the file."""
        filler = place / "filler"
        with contextlib.suppress(OSError), filler.open("ab", buffering=0) as out:
            while True:
                out.write(bytes(4096))
        return filler

    def test_a_server_begins_again_on_a_full_disk(self):
        place = self.small_disk()
        server = self.server(run="disk/run")
        self.assertEqual(server.post("/v1/job:pause")[0], 202)
        server.kill()
        self.fill(place)
        again = self.server("--resume", run="disk/run", name="again")
        self.assertEqual(again.cluster()["state"], "paused")

    def test_training_goes_on_and_checkpoints_come_again_with_space(self):
        place = self.small_disk()
        server = self.server("--checkpoint.dir", place / "checkpoints", "--checkpoint.every-rounds", 5)
        worker = self.worker(server, "w0")
        server.wait_event("checkpoint.written")
        filler = place / "filler"

        def failed_for_space():  # while one checkpoint is written an older one is still there, whose removal would make room for ever
            self.fill(place)
            return [event for event in server.events("checkpoint.failed") if NO_SPACE in event["why"]]

        failed = wait_for(failed_for_space, "a checkpoint that failed for space")[0]
        self.assertEqual(failed["when"], "training goes on")
        self.assertGreater(server.metric("centroid_server_checkpoint_failures_total"), 0)
        server.wait_more_rounds(20)
        server.post("/v1/job:pause")  # no checkpoint of the job's own between the two calls
        server.wait_cluster("paused", lambda cluster: cluster["state"] == "paused")
        status, problem = server.post("/v1/checkpoints")
        self.assertEqual((status, problem["code"]), (429, "resource_exhausted"))
        self.assertIn(NO_SPACE, problem["detail"])
        filler.unlink()
        status, made = server.post("/v1/checkpoints")
        self.assertEqual(status, 201, made)
        server.post("/v1/job:stop")
        self.assert_exit(DONE, worker, server)
        left = {path.name for path in (place / "checkpoints").iterdir() if not path.name.startswith("checkpoint-")}
        self.assertEqual(left, {"operator.json", LOCK})

    def test_result_that_could_not_be_kept_is_a_failure(self):
        place = self.small_disk()
        server = self.server("--checkpoint.dir", place / "checkpoints")
        worker = self.worker(server, "w0")
        self.fill(place)
        server.wait_round(5)
        server.post("/v1/job:stop")
        self.assert_exit(DONE, worker)
        self.assert_status(server, FAILED, "is in no checkpoint")
        server.wait_event("checkpoint.failed", why=NO_SPACE, when="at the end")


class Ending(RecoveryTest):
    def test_sigterm_finishes_the_round_and_writes_a_checkpoint(self):
        server = self.server("--min-workers", 2)
        workers = [self.worker(server, name) for name in ("w0", "w1")]
        server.wait_round(5)
        server.send(signal.SIGTERM)
        self.assert_exit(DONE, server, *workers)
        ended = server.events("job.ended")[0]
        self.assertEqual(ended["state"], "stopped")
        manifest = json.loads((self.checkpoints()[-1] / "manifest.json").read_text())
        self.assertIn(str(ended["version"]), self.checkpoints()[-1].name)
        self.assertIn(ended["version"], manifest.values())
        for worker in workers:
            self.assertEqual(self.summary(worker.name)["end"], "SIGTERM")
            self.assertEqual(self.summary(worker.name)["lost_rounds"], 0)
            self.assertEqual(self.summary(worker.name)["version"], ended["version"])

    def test_stopped_job_goes_on_to_the_same_result(self):
        self.train(60, run="whole")
        server = self.server("--optimizer", "momentum", "--min-workers", 2, "--rounds", 60)
        computes = Hold(self, "worker.share_taken", count=20).close()
        workers = [self.worker(server, "w0", environment=computes.environment), self.worker(server, "w1")]
        computes.wait_reached()
        server.send(signal.SIGINT)
        server.wait_cluster("the stop", lambda cluster: cluster["state"] == "stopping")
        computes.open()
        self.assert_exit(DONE, server, *workers)
        self.assertEqual(server.events("job.ended")[0]["round"], 20)
        self.train(60, "--resume")
        self.assertEqual(model_bytes(self.checkpoints()[-1]), model_bytes(self.checkpoints("whole")[-1]))

    def test_sigterm_without_workers(self):
        server = self.server()
        server.send(signal.SIGTERM)
        self.assert_exit(DONE, server)
        self.assertEqual(self.checkpoints(), [])

    def test_sigterm_while_a_worker_hangs_ends_after_the_drain_timeout(self):
        server = self.server("--min-workers", 2, "--drain-timeout", "2s")  # the other one leaves in that time
        workers = [self.worker(server, name) for name in ("w0", "w1")]
        server.wait_round(3)
        workers[1].send(signal.SIGSTOP)
        server.wait_missing("w1")
        server.send(signal.SIGTERM)
        self.assert_exit(DONE, workers[0], server)
        server.wait_event("round.abandoned")
        server.wait_event("member.leave_timed_out", worker="w1")
        self.assertEqual(len(self.checkpoints()), 1)

    def test_second_sigterm_ends_at_once(self):
        server = self.server("--min-workers", 2)
        workers = [self.worker(server, name) for name in ("w0", "w1")]
        server.wait_round(3)
        workers[1].send(signal.SIGSTOP)
        server.wait_missing("w1")
        server.send(signal.SIGTERM)
        server.wait_event("server.stop_requested")
        server.send(signal.SIGTERM)
        self.assertEqual(server.exit_status(), 128 + signal.SIGTERM)

    def test_only_the_newest_checkpoints_are_kept(self):
        server = self.server("--checkpoint.keep", 2)
        self.worker(server, "w0")
        written = []
        for _ in range(4):
            server.wait_more_rounds()
            status, made = server.post("/v1/checkpoints")
            self.assertEqual(status, 201, made)
            written.append(made["version"])
        self.assertEqual([int(path.name.split("-")[1]) for path in self.checkpoints()], written[-2:])


if __name__ == "__main__":
    main(at_a_time=3)
