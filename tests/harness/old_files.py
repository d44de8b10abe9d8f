"""Copies of tests/baseline/files, resumed."""

import json
import pathlib
import shutil
import struct
import subprocess

from harness import ROOT
from harness.cluster import DONE
from harness.fixed_jobs import TABLES, FixedJobs, hash_of_live, state_of
from harness.rows import RowsClient
import centroid

FILES = ROOT / "tests" / "baseline" / "files"
GOAL = 12  # rounds
LAST_PUSH = 90
CLIENT = 7  # of the pushes
VIEWER = "viewer-secret"
RECORD = struct.Struct("<4sBBHQ24x")  # magic, kind, form, reserved, bytes of the payload
BASE, BASE_NUMBERS = 1, 33  # the first record of a journal of rounds; then run and terms follow
KNOWN = {"extra.curves", "extra.returned", "operator.stop", ("model", "pt"), ("optimizer", "pt")}  # beside those of the files: unknown text is skipped, or the old source has it


def formats_in(folder):
    """Formats and fields of the manifests, tensors and journals in this folder."""
    found = set()
    for path in folder.rglob("*.json"):
        if path.name == "manifest.json":
            manifest = json.loads(path.read_text())
            found |= {(manifest["format"], manifest["format_version"]), *manifest, *(f"extra.{key}" for key in manifest["extra"])}
        elif path.name == "operator.json":
            found |= {f"operator.{key}" for key in json.loads(path.read_text())}
    for path in folder.rglob("checkpoint-*/*.safetensors"):
        head = json.loads(path.read_bytes()[8:].split(b"}}")[0] + b"}}")
        found |= {(path.stem.split("-")[0], head.get("__metadata__", {}).get("format"))}
    for kind in ("journal", "rows"):
        for path in folder.rglob(f"{kind}-*.log"):
            data, at = path.read_bytes(), 0
            while at < len(data):
                magic, record, form, _, size = RECORD.unpack_from(data, at)
                payload, at = data[at + RECORD.size : at + RECORD.size + size], at + RECORD.size + size
                found.add((magic, record, form, payload[BASE_NUMBERS:] if (kind, record) == ("journal", BASE) else None))
    return found


class Client(RowsClient):
    names = ("emb", "seldom")


class OldFiles(FixedJobs):
    """`check` selects the method by the prefix of the case's name (WAYS)."""

    def copy(self, name, source=FILES):
        """Copy the case's files into this test's folder and verify them. Returns expected.json."""
        for folder in ("run", "state"):
            shutil.rmtree(self.folder / folder, ignore_errors=True)
            if (source / name / folder).exists():
                shutil.copytree(source / name / folder, self.folder / folder)
        checked = subprocess.run([pathlib.Path(self.programs) / "centroidctl", "checkpoints", "verify", self.folder / "run"], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(checked.returncode, DONE, checked.stdout + checked.stderr)
        return json.loads((source / name / "expected.json").read_text())

    def resume(self, expected, *arguments):
        """Start the case's servers with --resume."""
        servers = expected.get("servers", [])
        flags = [*expected["flags"], *(["--servers", 1 + len(servers)] if servers else []), "--resume", *arguments]
        leader = self.serve(*flags, wait=False)
        leader.wait_ready()
        return leader, [self.shard(leader, which) for which in servers]

    def check(self, name, source=FILES):
        how = next(way for begin, way in self.WAYS.items() if name.startswith(begin))
        how(self, self.copy(name, source))

    def check_dense(self, expected):
        leader, shards = self.resume_dense(expected)
        self.assertEqual(leader.wait_event("checkpoint.loaded")["round"], expected["loaded"])
        if expected["loaded"] < expected["round"]:
            replayed = leader.wait_event("journal.replayed")
            self.assertEqual((replayed["round"], replayed["rounds"]), (expected["round"], expected["round"] - expected["loaded"]))
        tensors = centroid.pull(leader.data, timeout=30)
        self.assertEqual((tensors.version, hash_of_live(tensors)), (expected["version"], expected["parameters"]))
        self.assertEqual(self.go_on(expected, leader, shards), expected["after"])

    def resume_dense(self, expected):
        return self.resume(expected, "--rounds", GOAL, "--min-workers", expected["workers"], "--exit-when-finished")

    def go_on(self, expected, leader, shards):
        """Train to the last round. Returns the final state."""
        more = {"state_dir": str(self.folder / "state")} if (self.folder / "state").exists() else {}
        if expected.get("in_turn"):
            trainers = self.train_in_turn(leader, expected["workers"])
        else:
            trainers = self.train(leader, expected["workers"], expected["codec"], **more)
        self.assert_exit(DONE, leader, *shards)
        state = state_of(self.checkpoints()[-1])
        self.assertEqual({hash_of_live(one.tensors) for one in trainers}, {state["parameters"]})
        return state

    def check_tables(self, expected):
        leader, shards = self.resume(expected, "--tables", TABLES)
        if shards:
            leader.wait_buckets(1 + len(shards))
        self.assertEqual(self.rows_of(leader.data), expected["rows"])
        client = None
        if "newest" in expected:
            client = Client(leader.data, CLIENT)
            self.addCleanup(client.close)
            self.assertEqual(client.newest, expected["newest"])
            self.assertFalse(client.push("emb", expected["newest"], [1], [1.0] * 4), "a push is applied a second time")
        self.push(leader.data, expected["pushed"] + 1, LAST_PUSH, client)
        self.assertEqual(self.rows_of(leader.data), expected["rows_after"])
        self.assertEqual(leader.post("/v1/job:stop")[0], 202)
        self.assert_exit(DONE, leader, *shards)

    def operated(self, server):
        """The operator's requests that the server knows."""
        return {
            "scale": server.get("/v1/scale")["hint"]["workers"],
            "keep": server.get("/v1/config")["checkpoint.keep"]["value"],
            "state": server.cluster()["state"],
            "evicted": {one["name"]: one["why"] for one in server.get("/v1/evictions")["evictions"]},
        }

    def check_operator(self, expected):
        leader, _ = self.resume(expected)
        self.assertEqual(self.operated(leader), expected["operated"])

    def check_restore(self, expected):
        """The server was killed after it recorded the decision to restore an older checkpoint, before any file was removed."""
        newest = self.checkpoints()[-1].name
        leader, _ = self.resume(expected, "--rounds", GOAL, "--min-workers", 3, "--exit-when-finished")
        self.assertEqual(len(leader.events("checkpoint.restore_completed")), 1)
        self.assertEqual(leader.cluster()["version"], expected["version"])
        self.assertNotIn(newest, [path.name for path in self.checkpoints()])
        self.train(leader)
        self.assert_exit(DONE, leader)
        self.assertEqual(state_of(self.checkpoints()[-1]), expected["after"])

    def check_local(self, expected):
        """State files of centroid-worker. Its bits depend on the BLAS, so the test checks that the files are restored."""
        leader, _ = self.resume(expected, "--rounds", expected["loaded"] + 5, "--min-workers", 1, "--exit-when-finished")
        worker = self.local_worker(leader)
        self.assert_exit(DONE, worker, leader)
        for event in ("local.restored", "feedback.restored"):
            self.assertEqual([one["after_round"] for one in worker.events(event)], [expected["loaded"]], event)

    def local_worker(self, server):
        flags = ["--inner.optimizer", "adamw", "--inner.lr", "0.002", "--codec", "topk:0.1", "--state-dir", self.folder / "state"]
        return self.worker(server, "a", *flags, model="mlp:64-2-10")

    WAYS = {"checkpoint-": check_dense, "journal-": check_dense, "feedback": check_dense, "tables-": check_tables, "operator": check_operator, "restore": check_restore, "local": check_local}
