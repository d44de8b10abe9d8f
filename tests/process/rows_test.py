"""Tables of sparse rows over kill -9, at every point where their checkpoints are written. rows_test.py BIN_DIR"""

import json
import pathlib
import random
import signal
import struct
import subprocess

from cluster import DONE, USAGE, ClusterTest, main
from wire import ERROR, REQUEST, crc32c, connect, header, hello, read_error, read_exactly, read_frame, text

OPEN, PULL, PUSH = 64, 65, 66
DIM = 4
TABLES = f"emb:dim={DIM},lr=0.1,init=uniform:0.05;seldom:dim=2,optimizer=ftrl,admit_after=2"
POINTS = ("checkpoint.folder_made", "checkpoint.rows_torn", "checkpoint.part_written", "checkpoint.manifest_written",
          "checkpoint.renamed", "checkpoint.published", "checkpoint.old_renamed")  # fmt: skip


class RowsClient:
    """A client of sparse rows, written from docs/wire.md."""

    def __init__(self, endpoint, identity):
        self.connection = connect(endpoint)
        self.peer = self.connection.__enter__()
        self.peer.sendall(hello(name=f"rows-{identity}"))
        read_frame(self.peer)
        self.requests = 0
        self.identity = identity
        self.tables = {name: self.open(name) for name in ("emb", "seldom")}

    def close(self):
        self.connection.__exit__(None, None, None)

    def ask(self, kind, head, payload=b""):
        self.requests += 1
        crc = crc32c(payload) if payload else 0
        self.peer.sendall(header(kind, REQUEST, head, len(payload), self.requests, payload_crc=crc) + head + payload)
        fields = struct.unpack("<IHHIIQQIIII", read_exactly(self.peer, 48))
        head, payload = read_exactly(self.peer, fields[4]), read_exactly(self.peer, fields[6])
        if fields[3] & ERROR:
            raise RuntimeError(read_error(head))
        return head, payload

    def open(self, name):
        head, _ = self.ask(OPEN, struct.pack("<Q", self.identity) + text(name))
        table, dim, _, _, self.newest = struct.unpack_from("<IIIQQ", head)
        return table, dim

    def push(self, name, sequence, keys, gradients):
        table, _ = self.tables[name]
        payload = struct.pack(f"<{len(keys)}Q{len(gradients)}f", *keys, *gradients)
        head, _ = self.ask(PUSH, struct.pack("<IIQ", table, len(keys), sequence), payload)
        return head == b"\1"

    def pull(self, name, keys):
        return self.ask(PULL, struct.pack("<II", self.tables[name][0], len(keys)), struct.pack(f"<{len(keys)}Q", *keys))[1]


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
                    server = self.launch(run, "--checkpoint-keep", 2, name=f"before-{run}", environment=environment).wait_ready()
                    client = RowsClient(server.data, 1)
                    self.push_all(client, 1, 55, server)
                    client.close()
                    self.assertEqual(server.exit_status(), -signal.SIGKILL, server.text())
                    checked = self.ctl("checkpoints", "verify", self.folder / run / "checkpoints")
                    self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)
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

    def test_checkpoints_by_time_are_written_while_something_changes(self):
        server = self.launch("run", "--checkpoint-interval", "50ms", "--lease", "400ms", "--checkpoint-keep", 9, name="server").wait_ready()
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
    main()
