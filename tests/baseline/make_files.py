#!/usr/bin/env python3
"""Write the folder files/ beside this script: checkpoints, journals and small files of the programs in BIN_DIR.

Usage: make_files.py BIN_DIR [CASE ...]       by default all cases; the programs need fault points (CENTROID_TESTS)

A case is a folder with run/, the run_dir of all its servers, state/ where workers have a state_dir, and expected.json, which
tests/process/old_files_test.py compares with a resumed copy:

flags, servers, workers, codec, in_turn   settings, names of shard servers, and how the job is trained
loaded, round, version, parameters        round of the checkpoint; round, version and hash of the parameters after the resume
after                                     hashes of the final state. They are those of an undisturbed job, except where workers that begin anew or
                                          join late reach other bits (fragments, single contributions, a leave): there these are recorded
rows, pushed, newest, rows_after          hash of the rows, number of pushes, the client's newest push, hash after all pushes

The script writes a case after the test accepts it. The files in the repository are those of commit 9a33d03. They stand for the files that
users have on their disks, so they stay as they are.
"""

import argparse
import json
import pathlib
import shutil
import signal
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import DONE, wait_for
from harness.fixed_jobs import TABLES, hash_of_committed, nth_push, state_of
from harness.old_files import CLIENT, FILES, GOAL, LAST_PUSH, Client, OldFiles

HERE = pathlib.Path(__file__).resolve().parent

JOURNAL = ["--journal.mode", "on", "--journal.sync", "0"]
NOT_KEPT = shutil.ignore_patterns("*.lock", "audit.*", "idempotency.*")
STOPPED = 8  # rounds of a dense job before it is killed
TOPK = "topk:0.1,momentum=0.5"

# Flags of the server, its shard servers, codec of the workers.
CHECKPOINTS = {
    "checkpoint-momentum": (["--optimizer", "momentum"], [], "f32"),
    "checkpoint-adam-in-parts": (["--optimizer", "adam", "--checkpoint.shard-bytes", 1024], [], "f32"),
    "checkpoint-residual-of-results": (["--optimizer", "momentum", "--codec-down", "topk:0.1"], [], "f32"),
    "checkpoint-of-three-servers": (["--optimizer", "adamw"], ["x", "y"], "f32"),
    "checkpoint-of-fragments": (["--local-steps", 4, "--fragments", 2], [], "f32"),
}
JOURNALS = {
    "journal-of-sums": (["--optimizer", "momentum", "--clip-norm", 8], [], "f32"),
    "journal-of-parameters": (["--optimizer", "sgd"], [], "f32"),
    "journal-of-means": (["--optimizer", "momentum", "--codec-down", "topk:0.1"], [], "f32"),
    "journal-of-three-servers": (["--optimizer", "adam"], ["x", "y"], "f32"),
    "journal-of-fragments": (["--local-steps", 4, "--fragments", 2], [], "f32"),
}


class Make(OldFiles):
    def start(self, run, flags, servers=(), workers=3, environment=None):
        """Start a leader and its shard servers with one run_dir."""
        flags = ["--min-workers", workers, *flags, *(["--servers", 1 + len(servers)] if servers else [])]
        leader = self.serve(*flags, run=run, environment=environment)
        return leader, [self.shard(leader, name, run) for name in servers]

    def whole(self, flags, servers=(), codec="f32", workers=3):
        """The final state of an undisturbed job."""
        leader, shards = self.start("whole", ["--rounds", GOAL, "--exit-when-finished", *flags], servers, workers)
        self.train(leader, workers, codec)
        self.assert_exit(DONE, leader, *shards)
        return state_of(self.checkpoints("whole")[-1])

    def checkpoint(self, leader):
        """Make a checkpoint. Returns its round."""
        status, made = leader.post("/v1/checkpoints")
        self.assertEqual(status, 201, made)
        return made["round"]

    def reached(self, leader, trainers):
        """Version and parameters of a job whose trainers all wait in the next round."""
        (found,) = {hash_of_committed(one) for one in trainers}
        view = leader.cluster()
        return {"version": view["version"], "parameters": found}

    def kill(self, *processes):
        for process in processes:
            process.kill()

    def end_trainers(self):
        self.doCleanups()  # threads that wait at a gate
        for one in self.trainers:
            one.close()

    def write(self, name, **expected):
        """Write the case if the test accepts it. All servers have ended."""
        made = self.folder / "made" / name
        for folder in ("run", "state"):
            if (self.folder / folder).exists():
                shutil.copytree(self.folder / folder, made / folder, ignore=NOT_KEPT)
                shutil.rmtree(self.folder / folder)
        self.end_trainers()
        if expected.get("after", True) is None:
            for folder in made.iterdir():
                shutil.copytree(folder, self.folder / folder.name)
            expected["after"] = self.go_on(expected, *self.resume_dense(expected))
        (made / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
        self.check(name, made.parent)
        shutil.rmtree(FILES / name, ignore_errors=True)
        shutil.copytree(made, FILES / name)
        print(f"{name}: {sum(path.stat().st_size for path in made.rglob('*') if path.is_file())} bytes", flush=True)

    def make_checkpoint(self, name):
        self.make_dense(name, *CHECKPOINTS[name], STOPPED)

    def make_journal(self, name):
        flags, servers, codec = JOURNALS[name]
        self.make_dense(name, [*flags, *JOURNAL], servers, codec, 5)

    def make_dense(self, name, flags, servers, codec, loaded):
        after = None if "--fragments" in flags else self.whole(flags, servers, codec)
        leader, shards = self.start("run", ["--checkpoint.keep", 1, "--checkpoint.every-rounds", loaded, *flags], servers)
        gate, trainers = self.train_to(leader, loaded, 3, codec)
        leader.wait_event("checkpoint.written", version=loaded + 1)
        if loaded < STOPPED:
            gate.allow(STOPPED - loaded, 3)
        reached = self.reached(leader, trainers)
        self.kill(leader, *shards)
        self.write(name, flags=flags, servers=servers, workers=3, codec=codec, loaded=loaded, round=STOPPED, **reached, after=after)

    def make_journal_of_single_contributions(self, name):
        flags = ["--optimizer", "momentum", "--policy", "asp", *JOURNAL]
        leader, _ = self.start("run", ["--checkpoint.keep", 1, *flags], workers=2)
        trainers = self.train_in_turn(leader, 2, STOPPED)
        reached = self.reached(leader, [trainers[(STOPPED - 1) % 2]])
        self.kill(leader)
        self.write(name, flags=flags, workers=2, in_turn=True, loaded=0, round=STOPPED, **reached, after=None)

    def make_journal_with_routes(self, name):
        """A shard server joins during training: the leader's journal has records of the new route."""
        flags = ["--optimizer", "momentum", *JOURNAL]
        after = self.whole(flags, ["x"])
        leader, shards = self.start("run", ["--checkpoint.keep", 1, *flags], ["x"])
        gate, trainers = self.train_to(leader, 3)
        shards.append(self.shard(leader, "y"))
        shards[-1].wait_event("leader.joined")
        while not any((one["servers"], one["left"]) == (3, 0) for one in leader.events("chunks.moved")):
            gate.allow(1, 3)
        gate.allow(2, 3)  # with chunks of the newcomer
        self.assertLess(gate.rounds, GOAL)
        reached = self.reached(leader, trainers)
        self.kill(leader, *shards)
        self.write(name, flags=flags, servers=["x", "y"], workers=3, codec="f32", loaded=0, round=gate.rounds, **reached, after=after)

    def make_feedback(self, name):
        """Residuals of error feedback after the checkpoint's round."""
        flags = ["--optimizer", "sgd"]
        after = self.whole(flags, codec=TOPK)
        leader, _ = self.start("run", ["--checkpoint.keep", 1, "--checkpoint.every-rounds", 6, *flags])
        _, trainers = self.train_to(leader, 6, 3, TOPK, state_dir=str(self.folder / "state"))
        wait_for(lambda: len(list((self.folder / "state").glob("*/checkpoint-*6/manifest.json"))) == 3, "what each worker has left out")
        leader.wait_event("checkpoint.written", version=6 + 1)
        reached = self.reached(leader, trainers)
        self.kill(leader)
        self.write(name, flags=flags, workers=3, codec=TOPK, loaded=6, round=6, **reached, after=after)

    def make_feedback_of_a_leave(self, name):
        """A worker left cleanly, which wrote the file `left`, and the others trained on: it resumes with what it had left to send."""
        flags = ["--optimizer", "sgd"]
        leader, _ = self.start("run", ["--checkpoint.keep", 1, "--checkpoint.every-rounds", STOPPED, *flags], workers=1)
        gate, trainers = self.train_to(leader, 5, 2, TOPK, state_dir=str(self.folder / "state"))
        trainers[1].close()
        leader.wait_worker("b", "left")
        gate.allow(STOPPED - 5, 1)
        leader.wait_event("checkpoint.written", version=STOPPED + 1)
        wait_for(lambda: len(list((self.folder / "state").glob(f"r@a/checkpoint-*{STOPPED}/manifest.json"))) == 1, "what a has left out")
        self.assertEqual([path.parent.name for path in (self.folder / "state").glob("*/left")], ["r@b"])
        reached = self.reached(leader, trainers[:1])
        self.kill(leader)
        self.write(name, flags=flags, workers=2, codec=TOPK, loaded=STOPPED, round=STOPPED, **reached, after=None)

    def make_local(self, name):
        """Parameters, slots and steps of a centroid-worker with local steps."""
        flags = ["--local-steps", 4]
        leader, _ = self.start("run", ["--checkpoint.keep", 1, "--checkpoint.every-rounds", 20, *flags, "--rounds", 20], workers=1)
        worker = self.local_worker(leader)
        wait_for(lambda: len(list((self.folder / "state").glob("*/checkpoint-*20/manifest.json"))) == 2, "both kinds of its state")
        leader.wait_event("checkpoint.written", version=20 + 1)
        self.kill(worker, leader)
        self.write(name, flags=flags, loaded=20)

    def rows(self, servers=()):
        """Hash of the rows after all pushes on an undisturbed server."""
        leader = self.serve("--tables", TABLES, run="whole")
        self.push(leader.data, 1, LAST_PUSH)
        found = self.rows_of(leader.data)
        leader.kill()
        return found

    def make_tables(self, name, journal=False):
        flags = JOURNAL if journal else []
        after = self.rows()
        leader, _ = self.start("run", ["--tables", TABLES, "--checkpoint.keep", 1, *flags])
        client = Client(leader.data, CLIENT)
        self.push(leader.data, 1, 30, client)
        self.checkpoint(leader)
        if journal:
            self.push(leader.data, 31, 50, client)
        pushed = 50 if journal else 30
        found = self.rows_of(leader.data)
        newest = max(number for number in range(1, pushed + 1) if nth_push(number)[-1] is None)
        client.close()
        self.kill(leader)
        self.write(name, flags=flags, rows=found, pushed=pushed, newest=newest, rows_after=after)

    def make_tables_of_servers(self, name):
        """Rows on two servers; after the checkpoint a third one joins and takes some of them."""
        flags = [*JOURNAL, "--lease", "30s"]
        after = self.rows()
        leader, shards = self.start("run", ["--tables", TABLES, "--checkpoint.keep", 1, *flags], ["x"])
        leader.wait_buckets(2)
        self.push(leader.data, 1, 30)
        self.checkpoint(leader)
        self.push(leader.data, 31, 40)
        shards.append(self.shard(leader, "y"))
        leader.wait_buckets(3)
        self.push(leader.data, 41, 50)
        found = self.rows_of(leader.data)
        self.kill(leader, *shards)
        self.write(name, flags=flags, servers=["x", "y"], rows=found, pushed=50, rows_after=after)

    def make_operator(self, name):
        leader, _ = self.start("run", ["--checkpoint.every-rounds", 2], workers=1)
        self.train_to(leader, 2, 1)
        leader.wait_event("checkpoint.written", version=2 + 1)
        member = leader.workers("a")[0]["member"]
        acts = [("POST", "/v1/scale", {"workers": 5, "why": "more"}), ("PATCH", "/v1/config", {"checkpoint.keep": 7}), ("POST", "/v1/job:pause", None),
                ("POST", f"/v1/workers/{member}:evict", {"why": "its disk"})]  # fmt: skip
        for method, path, body in acts:
            self.assertIn(leader.call(method, path, body)[0], (200, 202), path)
        leader.wait_cluster("a pause", lambda view: view["state"] == "paused")
        operated = self.operated(leader)
        self.kill(leader)
        self.write(name, flags=[], operated=operated)

    def make_restore(self, name):
        """The record of a restore whose server was killed before it removed a file."""
        flags = ["--optimizer", "momentum", *JOURNAL]
        after = self.whole(flags)
        leader, _ = self.start("run", ["--checkpoint.every-rounds", 3, *flags], environment={"CENTROID_TEST_FAULT": "restore.mark.renamed:1"})
        gate, _ = self.train_to(leader, 3)
        leader.wait_event("checkpoint.written", version=3 + 1)
        version = leader.cluster()["version"]
        gate.allow(4, 3)
        leader.wait_event("checkpoint.written", version=6 + 1)
        self.end_trainers()
        with self.assertRaises(OSError):
            leader.call("POST", f"/v1/checkpoints/{version}:restore", {"delete_newer": True})
        self.assertEqual(leader.exit_status(), -signal.SIGKILL)
        self.write(name, flags=flags, version=version, after=after)

    def make(self):
        cases = {**dict.fromkeys(CHECKPOINTS, self.make_checkpoint), **dict.fromkeys(JOURNALS, self.make_journal)}
        cases |= {
            "journal-of-single-contributions": self.make_journal_of_single_contributions,
            "journal-with-routes": self.make_journal_with_routes,
            "feedback": self.make_feedback,
            "feedback-of-a-leave": self.make_feedback_of_a_leave,
            "local": self.make_local,
            "tables-checkpoint": self.make_tables,
            "tables-journal": lambda name: self.make_tables(name, journal=True),
            "tables-of-servers": self.make_tables_of_servers,
            "operator": self.make_operator,
            "restore": self.make_restore,
        }
        for name in self.names or cases:
            cases[name](name)
            self.end_all()
            shutil.rmtree(self.folder / "whole", ignore_errors=True)
            shutil.rmtree(self.folder / "run", ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("cases", nargs="*")
    options = parser.parse_args()
    Make.programs, Make.names = options.bin.resolve(), options.cases
    FILES.mkdir(exist_ok=True)
    return 0 if unittest.TextTestRunner().run(Make("make")).wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
