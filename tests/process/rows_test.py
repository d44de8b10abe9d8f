"""Tables of sparse rows over kill -9, at every point where their checkpoints are written. rows_test.py BIN_DIR"""

import json
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import fault_points
from harness.cluster import DONE, USAGE, ClusterTest, main, wait_for
from harness.rows import RowsClient

DIM = 4
TABLES = f"emb:dim={DIM},lr=0.1,init=uniform:0.05;seldom:dim=2,optimizer=ftrl,admit_after=2"
POINTS = ("checkpoint.folder_made", "checkpoint.rows_torn", "checkpoint.part_written", "checkpoint.manifest_written",
          "checkpoint.renamed", "checkpoint.published", "checkpoint.old_renamed")  # fmt: skip


class CountClient(RowsClient):
    names = ("count",)


def nth_push(sequence):
    """Table, keys and gradients of a client's push of this number."""
    rng = random.Random(sequence)
    name, dim = ("emb", DIM) if sequence % 3 else ("seldom", 2)
    keys = [rng.randrange(40) for _ in range(1 + rng.randrange(8))]
    return name, keys, [rng.uniform(-1, 1) for _ in range(dim * len(keys))]


class RowsTest(ClusterTest):
    def launch(self, run, *arguments, name, **places):
        return self.launch_server("--tables", TABLES, "--run-id", "r", *arguments, run=run, name=name, **places)

    def state(self, client):
        return client.pull("emb", range(40)), client.pull("seldom", range(40))

    def expected(self):
        """What a server that nobody disturbs answers after so many pushes."""
        server = self.launch("whole", name="whole").wait_ready()
        client = RowsClient(server.data, 1)
        states = [self.state(client)]
        for sequence in range(1, 61):
            client.push(sequence=sequence, **dict(zip(("name", "keys", "gradients"), nth_push(sequence))))
            states.append(self.state(client))
        client.close()
        server.post("/v1/job:stop")
        self.assert_status(server, DONE)
        return states

    def ctl(self, *arguments):
        command = [str(pathlib.Path(self.programs) / "centroidctl"), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    def push_all(self, client, first, last, server=None):
        """Pushes of these numbers, with a checkpoint after every tenth; False: the server is gone."""
        try:
            for sequence in range(first, last + 1):
                name, keys, gradients = nth_push(sequence)
                self.assertTrue(client.push(name, sequence, keys, gradients), "it was applied before")
                if server and sequence % 10 == 0:
                    server.post("/v1/checkpoints")
        except (EOFError, OSError):
            return False
        return True

    def test_a_kill_at_every_write_point_leaves_the_rows_of_a_checkpoint_and_says_which_pushes_they_hold(self):
        expected = self.expected()
        for number, point in enumerate(POINTS):
            for count in (1, 3):
                with self.subTest(point=point, count=count):
                    run = f"{number}-{count}"
                    environment = {"CENTROID_TEST_FAULT": f"{point}:{count}"}
                    server = self.launch(run, "--checkpoint.keep", 2, name=f"before-{run}", environment=environment).wait_ready()
                    client = RowsClient(server.data, 1)
                    self.push_all(client, 1, 55, server)
                    client.close()
                    self.assertEqual(server.exit_status(), -signal.SIGKILL, server.text())
                    checked = self.ctl("checkpoints", "verify", self.folder / run / "checkpoints")
                    if list((self.folder / run / "checkpoints").glob("checkpoint-*")):
                        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)
                    else:
                        self.assertIn("contains no checkpoint", checked.stderr)  # the first was not whole yet
                    again = self.launch(run, "--resume", name=f"after-{run}").wait_ready()
                    client = RowsClient(again.data, 1)
                    held = client.newest
                    self.assertEqual(held % 10, 0)
                    self.assertEqual(self.state(client), expected[held])
                    if held:  # sent again: it is known
                        name, keys, gradients = nth_push(held)
                        self.assertFalse(client.push(name, held, keys, gradients))
                    self.assertTrue(self.push_all(client, held + 1, 60))
                    self.assertEqual(self.state(client), expected[60])
                    client.close()
                    again.post("/v1/job:stop")
                    self.assert_status(again, DONE)

    def journal_points(self):
        return sorted(fault_points.owned_by("rows_test.py"))

    def taken_up(self, server, expected, answered):
        """A client of a server that went on from its journal: all answered pushes are there, and at most the one under way."""
        client = RowsClient(server.data, 1)
        held = client.newest
        self.assertIn(held, (answered, answered + 1), "an answered push is lost, or one that nobody made is there")
        self.assertEqual(self.state(client), expected[held], f"other bits after {held} pushes")
        for sequence in {answered, held} - {0}:  # sent again: it is known
            name, keys, gradients = nth_push(sequence)
            self.assertFalse(client.push(name, sequence, keys, gradients), "applied twice")
        return client, held

    def push_until_killed(self, run, expected, *arguments, fault, attempt, answered):
        """The last answered push, and whether the fault killed the server."""
        environment = {"CENTROID_TEST_FAULT": fault}
        resume = ["--resume"] if attempt else []
        server = self.launch(run, *resume, *arguments, name=f"{attempt}-{run}", environment=environment)
        wait_for(lambda: server.events("server.initialized") or not server.is_running(), "the server's start or end")
        client = None
        try:
            if server.is_running():
                client, held = self.taken_up(server.wait_ready(), expected, answered)
                answered = held
                for sequence in range(held + 1, 61):
                    name, keys, gradients = nth_push(sequence)
                    self.assertTrue(client.push(name, sequence, keys, gradients), "it was applied before")
                    answered = sequence
                    if sequence % 10 == 0:
                        server.post("/v1/checkpoints")
                    elif sequence % 3 == 0:
                        self.state(client)
        except (EOFError, OSError):
            pass
        if client:
            client.close()
        is_killed = wait_for(lambda: answered == 60 or not server.is_running(), "all pushes or the end") and not server.is_running()
        if is_killed:
            self.assertEqual(server.exit_status(), -signal.SIGKILL, server.text())
        else:
            server.kill()
        return answered, is_killed

    def test_a_kill_at_every_point_of_the_journal_loses_no_answered_push(self):
        expected = self.expected()
        points = self.journal_points()
        reached = set()
        for number, point in enumerate(points):
            for count, sync in ((1, 0), (2, "10m"), (14, 0)):
                with self.subTest(point=point, count=count):
                    run = f"{number}-{count}"
                    arguments = ("--journal.mode", "on", "--journal.sync", sync, "--checkpoint.keep", 2)
                    answered = 0
                    for attempt, fault in enumerate((f"{point}:{count}", f"{point}:1")):
                        answered, is_killed = self.push_until_killed(run, expected, *arguments, fault=fault, attempt=attempt, answered=answered)
                        if is_killed:
                            reached.add(point)
                        checked = self.ctl("checkpoints", "verify", self.folder / run / "checkpoints")
                        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)
                    answered, _ = self.push_until_killed(run, expected, *arguments, fault="none:1", attempt=2, answered=answered)
                    self.assertEqual(answered, 60)
                    last = self.launch(run, "--resume", *arguments, name=f"last-{run}").wait_ready()
                    client, held = self.taken_up(last, expected, 60)
                    client.close()
                    self.assertEqual(held, 60)
                    last.post("/v1/job:stop")
                    self.assert_status(last, DONE)
        self.assertEqual(sorted(reached), points)

    def test_kills_during_load_lose_no_answered_push_and_apply_none_twice(self):
        """Every push adds 1 to its rows, so the rows count pushes."""
        tables = ("--tables", "count:dim=1,optimizer=sgd,lr=1;other:dim=2", "--journal.mode", "on", "--run-id", "r", "--checkpoint.keep", 2)
        server = self.launch_server(*tables, "--journal.sync", 0, run="run", name="server-0").wait_ready()
        endpoint = server.data
        pushed = [0] * 4
        is_over = threading.Event()

        def load(identity):
            client = None
            while not is_over.is_set() or client is None:
                try:
                    if client is None:
                        client = CountClient(endpoint, identity)
                    client.push("count", pushed[identity - 1] + 1, [7, *range(100 * identity, 100 * identity + 9)], [-1.0] * 10)
                    pushed[identity - 1] += 1
                except (EOFError, OSError):
                    if client:
                        client.close()
                    client = None
                    is_over.wait(0.01)
            client.close()

        threads = [threading.Thread(target=load, args=(identity,), daemon=True) for identity in range(1, 5)]
        for thread in threads:
            thread.start()
        seed = random.randrange(1 << 30)
        print(f"seed {seed}")
        rng = random.Random(seed)
        for turn in range(1, 9):
            for _ in range(rng.randrange(3)):
                wait_for(lambda to=sum(pushed) + rng.randrange(1, 60): sum(pushed) >= to, "pushes")
                server.post("/v1/checkpoints")
            wait_for(lambda to=sum(pushed) + rng.randrange(1, 100): sum(pushed) >= to, "pushes")
            server.kill()
            sync = rng.choice((0, "10m"))
            server = self.launch_server(*tables, "--resume", "--journal.sync", sync, run="run", name=f"server-{turn}", listen=endpoint).wait_ready()
        wait_for(lambda to=sum(pushed) + 20: sum(pushed) >= to, "pushes")
        is_over.set()
        for thread in threads:
            thread.join(60)
            self.assertFalse(thread.is_alive())
        client = CountClient(endpoint, 9)
        for identity, count in enumerate(pushed, start=1):
            rows = struct.unpack("<9f", client.pull("count", range(100 * identity, 100 * identity + 9)))
            self.assertEqual(set(rows), {float(count)}, f"client {identity}, seed {seed}")
        self.assertEqual(struct.unpack("<f", client.pull("count", [7])), (float(sum(pushed)),), f"seed {seed}")
        client.close()

    def test_a_journal_is_refused_for_other_tables_and_taken_up_with_other_rates(self):
        first = self.launch("run", "--journal.mode", "on", name="first").wait_ready()
        client = RowsClient(first.data, 1)
        for sequence in range(1, 21):
            client.push(sequence=sequence, **dict(zip(("name", "keys", "gradients"), nth_push(sequence))))
        before = self.state(client)
        client.close()
        first.kill()
        common = ("--journal.mode", "on", "--run-id", "r", "--resume")
        without = self.launch_server(*common, "--tables", f"emb:dim={DIM},lr=0.1,init=uniform:0.05", run="run", name="without")
        self.assert_status(without, USAGE, "pushes to a table 'seldom'", "name it there as it was")
        wider = self.launch_server(*common, "--tables", TABLES.replace(f"dim={DIM}", "dim=8"), run="run", name="wider")
        self.assert_status(wider, USAGE, "table 'emb' was emb:dim=4", "its rows depend on")
        self.assert_status(self.launch_server("--tables", TABLES, run="run", name="afresh"), USAGE, "go on from it with `resume`")
        faster = self.launch_server(*common, "--tables", TABLES.replace("lr=0.1", "lr=0.5") + ";new:dim=3", run="run", name="faster").wait_ready()
        client = RowsClient(faster.data, 1)
        self.assertEqual(self.state(client), before)
        self.assertEqual(client.newest, 20)
        client.close()
        faster.post("/v1/job:stop")
        self.assert_status(faster, DONE)
        self.assertEqual([path.stat().st_size < 1000 for path in (self.folder / "run" / "journal").glob("rows-*.log")], [True])

    def test_a_checkpoint_is_written_when_the_journal_has_grown(self):
        # Between two of them 10 s pass, the first comes 10 s behind the start.
        server = self.launch("run", "--journal.mode", "on", "--journal.rows-bytes", 2000, "--lease", "4s", name="server").wait_ready()
        client = RowsClient(server.data, 1)
        for sequence in range(1, 61):
            client.push(sequence=sequence, **dict(zip(("name", "keys", "gradients"), nth_push(sequence))))
        client.close()
        server.wait_event("checkpoint.written")
        wait_for(lambda: server.metric("centroid_server_journal_bytes") < 2000, "the segments before it to go")

    def test_pushes_wait_for_a_full_disk_and_say_so(self):
        place = self.folder / "disk"
        place.mkdir()
        if os.geteuid() != 0:
            self.skipTest("only root may mount the small file system that this test fills")
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)], capture_output=True, text=True)
        if mounted.returncode != 0:
            self.skipTest(f"cannot mount a small file system here: {mounted.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "-l", str(place)], check=True)
        server = self.launch("run", "--journal.mode", "on", "--journal.dir", place / "journal", name="server").wait_ready()
        answered, told = [], []

        def load():
            client = RowsClient(server.data, 1)
            for sequence in range(1, 12):
                client.push("emb", sequence, range(1000), [0.5] * DIM * 1000)
                answered.append(sequence)
            told.extend(client.told)
            client.close()

        thread = threading.Thread(target=load, daemon=True)
        thread.start()
        server.wait_event("rows_journal.stalled", error="No space left")
        (said,) = wait_for(lambda: [w for w in server.get("/v1/waits")["waits"] if w["waits_for"] == "journal"], "the journal in /v1/waits")
        self.assertIn("No space left", said["what"])
        self.assertIn("rows-1", said["waiter"])
        self.assertRegex(said["what"], r"^push of 1000 rows, table 'emb': the journal of the tables")
        wait_for(lambda: server.metric("centroid_server_journal_waits") == 1, "the metric")
        wait_for(lambda: [w for w in server.get("/v1/waits")["waits"] if w["waits_for"] == "journal" and w["seconds"] > 3], "three seconds of waiting")
        self.assertLess(len(answered), 11)
        subprocess.run(["mount", "-o", "remount,size=64m", str(place)], check=True)
        thread.join(60)
        self.assertEqual(answered, list(range(1, 12)))
        self.assertIn("the journal of the tables", told[0])
        server.kill()
        again = self.launch("run", "--resume", "--journal.mode", "on", "--journal.dir", place / "journal", name="again").wait_ready()
        client = RowsClient(again.data, 1)
        self.assertEqual(client.newest, 11)
        client.close()

    def test_checkpoints_by_time_are_written_while_something_changes(self):
        server = self.launch("run", "--checkpoint.interval", "50ms", "--lease", "400ms", "--checkpoint.keep", 9, name="server").wait_ready()
        client = RowsClient(server.data, 1)
        self.push_all(client, 1, 5)
        client.close()
        written = pathlib.Path(server.wait_event("checkpoint.written")["path"])
        held = json.loads((written / "manifest.json").read_text())
        self.assertEqual(sorted(held["files"]), ["pushes.safetensors", "rows-emb.safetensors", "rows-seldom.safetensors"])

    def test_export_writes_the_rows_for_other_programs(self):
        server = self.launch("run", name="server").wait_ready()
        client = RowsClient(server.data, 1)
        self.push_all(client, 1, 20)
        values = client.pull("emb", range(40))
        client.close()
        shown = self.ctl("--server", server.api, "tables")
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertIn("emb:dim=4,optimizer=adagrad,lr=0.1,init=uniform:0.05", shown.stdout)
        table = server.get("/v1/tables/seldom")
        self.assertEqual((table["dim"], table["rows"]), (2, table["admitted"]))
        self.assertGreater(table["held_back"], 0)
        self.assertGreaterEqual(table["pushed"], table["held_back"] + table["admitted"])
        server.post("/v1/job:stop")
        self.assert_status(server, DONE)
        checkpoints, target = self.folder / "run" / "checkpoints", self.folder / "emb.safetensors"
        done = self.ctl("checkpoints", "export", checkpoints, "--table", "emb", "--to", target)
        self.assertEqual(done.returncode, 0, done.stderr)
        data = target.read_bytes()
        (length,) = struct.unpack_from("<Q", data)
        fields = json.loads(data[8 : 8 + length])
        part = {name: data[8 + length :][slice(*fields[name]["data_offsets"])] for name in ("keys", "values")}
        keys = struct.unpack(f"<{len(part['keys']) // 8}Q", part["keys"])
        self.assertEqual(fields["values"]["shape"], [len(keys), DIM])
        for place, key in enumerate(keys):
            self.assertEqual(part["values"][place * 4 * DIM :][: 4 * DIM], values[key * 4 * DIM :][: 4 * DIM])
        missing = self.ctl("checkpoints", "export", checkpoints, "--table", "users", "--to", self.folder / "x.safetensors")
        self.assertIn("has no table 'users'; it has emb, seldom", missing.stderr)

    def test_tables_that_do_not_fit_into_the_memory_are_refused(self):
        server = self.launch_server("--tables", "emb:dim=4,max_bytes=1000000000", "--memory-limit", "512MiB")
        self.assert_status(server, USAGE, "tables of sparse rows may need", "memory_limit allows 536870912")


if __name__ == "__main__":
    main(at_a_time=3)
