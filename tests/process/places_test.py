"""Which server holds what: tensors, rows, and how evenly. places_test.py BIN_DIR"""

import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import DONE, Process, main, wait_for
from harness.ctl import CtlTest
from harness.rows_moves import MovingClient
from harness.rows_servers import PATIENT, bucket

MODEL = "mlp:64-" + "32-" * 40 + "10"  # 82 tensors
TABLES = "count:dim=1,optimizer=sgd,lr=1;other:dim=2"
EVEN = 1.02  # docs/how-to/several-servers.md


class PlacesTest(CtlTest):
    def shard(self, leader, name):
        places = ["--join", leader.data, "--name", name, "--listen", "127.0.0.1:0", "--run-dir", self.folder / "shards"]
        return self._start(Process, "centroid-server", name, [*places, "--drain-timeout", "60s"], None)

    def leader(self, servers, *arguments):
        return self.server("--servers", servers, "--optimizer", "adam", "--lr", "0.0001", "--chunk-bytes", 2048, *arguments, name=f"leader-{servers}", run=f"run-{servers}")

    def wait_settled(self, leader, names):
        """The model lies on these servers, and nothing of it moves. The answer of GET /v1/servers."""

        def look():
            answer = leader.get("/v1/servers")
            servers = answer["servers"]
            is_there = sorted(one["name"] for one in servers) == sorted(names) and all(one["chunks"] for one in servers)
            return answer if is_there and not any(one["moves"] for one in servers) else None

        return wait_for(look, f"the model on {names}")

    def tensors(self, leader):
        """All of them, page by page."""
        found, path = [], "/v1/parameters?limit=7"
        while path:
            page = leader.get(path)
            found += page["parameters"]
            path = page["next"]
        return found

    def check(self, leader, names):
        """All bytes are told once, by server and by tensor alike, and they lie evenly. Bytes by server."""
        answer = self.wait_settled(leader, names)
        servers = {one["name"]: one for one in answer["servers"]}
        held = {name: one["bytes"] for name, one in servers.items()}
        cluster = leader.cluster()
        self.assertEqual(sum(held.values()), 4 * cluster["parameters"])
        self.assertEqual(sum(one["chunks"] for one in servers.values()), cluster["chunks"])
        even = max(held.values()) / (sum(held.values()) / len(held))
        self.assertAlmostEqual(answer["balance"], even, places=9)
        self.assertLessEqual(even, EVEN)

        def is_told():  # of its memory a shard server tells itself: parameters, the next version and two slots of adam
            return all(one["memory_bytes"] == 4 * one["bytes"] for one in leader.get("/v1/servers")["servers"])

        wait_for(is_told, "the memory of all")
        tensors = self.tensors(leader)
        by_server = dict.fromkeys(names, 0)
        for tensor in tensors:
            self.assertEqual(sum(part["bytes"] for part in tensor["servers"]), tensor["bytes"], tensor)
            for part in tensor["servers"]:
                by_server[part["name"]] += part["bytes"]
        self.assertEqual(by_server, held)
        self.assertEqual(len(tensors), 82)
        divided = max(tensors, key=lambda tensor: len(tensor["servers"]))
        self.assertGreater(len(divided["servers"]), min(1, len(names) - 1), "a tensor of two chunks")
        self.assertEqual(leader.get("/v1/parameters/" + divided["name"])["servers"], divided["servers"])
        return held

    def lines(self, server, *arguments):
        """What centroidctl prints, by the first word of each line."""
        return {line.split()[0]: line for line in self.ctl(server, *arguments).splitlines() if line.strip()}


class Tensors(PlacesTest):
    def test_one_server_holds_all(self):
        leader = self.leader(1)
        self.worker(leader, "w0", model=MODEL)
        leader.wait_round(2)
        (name,) = [one["name"] for one in leader.get("/v1/servers")["servers"]]
        self.check(leader, [name])
        self.assertIn("balance 1:", self.ctl(leader, "servers"))
        self.assertTrue(self.lines(leader, "parameters")[self.tensors(leader)[0]["name"]].endswith(name))

    def test_nothing_is_told_before_there_is_a_model(self):
        leader = self.leader(1)
        self.assertIsNone(leader.get("/v1/servers")["balance"])
        self.assertNotIn("balance", self.ctl(leader, "servers"))

    def test_what_is_told_follows_servers_that_go_and_come(self):
        leader = self.leader(3, "--rounds", 1_000_000)
        b, c = [self.shard(leader, name) for name in "bc"]
        self.worker(leader, "w0", model=MODEL)
        leader.wait_round(5)
        before = self.check(leader, ["leader", "b", "c"])
        self.assertEqual(leader.post("/v1/servers/b:drain")[0], 202)
        self.assert_status(b, DONE, "drained")
        without = self.check(leader, ["leader", "c"])
        for name in without:
            self.assertGreater(without[name], 1.3 * before[name])
        d = self.shard(leader, "d")
        after = self.check(leader, ["leader", "c", "d"])
        self.assertAlmostEqual(after["d"] / sum(after.values()), 1 / 3, delta=0.02)

        # A job that stands tells it too, of the same measurement of its values.
        self.assertEqual(leader.post("/v1/job:pause")[0], 202)
        leader.wait_cluster("paused", lambda view: view["state"] == "paused")
        self.check(leader, ["leader", "c", "d"])
        d.send(signal.SIGTERM)
        self.assert_status(d, DONE, "its chunks have moved")
        self.check(leader, ["leader", "c"])
        self.assertEqual(leader.post("/v1/job:resume")[0], 202)

        shown = self.lines(leader, "servers")
        self.assertRegex(shown["c"], r"serving +\d+ +[\d.]+ KiB")
        self.assertRegex(shown["balance"], r"^balance 1(\.0[01]\d*)?: ")
        divided = next(tensor for tensor in self.tensors(leader) if len(tensor["servers"]) == 2)
        shown = self.ctl(leader, "parameters", divided["name"])
        self.assertRegex(shown, r"leader [\d.]+ KiB, c [\d.]+ KiB\n")
        self.assertRegex(shown, r"\nserver +size\nleader +[\d.]+ KiB\nc +[\d.]+ KiB\n")
        self.assertEqual(leader.post("/v1/job:stop")[0], 202)
        self.assert_exit(DONE, leader, c)


class Rows(PlacesTest):
    def check_rows(self, leader, names, keys):
        """As many rows are told of each server as the route gives it of these keys."""
        client = MovingClient(leader.data, 9)
        client.follow()
        expected = dict.fromkeys(names, 0)
        for key in keys:
            expected[client.owners[bucket(key)]] += 1
        client.close()
        table = leader.get("/v1/tables/count")
        self.assertEqual({part["name"]: part["rows"] for part in table["servers"]}, expected)
        self.assertEqual(sum(part["bytes"] for part in table["servers"]), table["bytes"])
        self.assertEqual(table["rows"], len(keys))
        tables = leader.get("/v1/tables")["tables"]
        memory = {name: sum(part["bytes"] for table in tables for part in table["servers"] if part["name"] == name) for name in names}

        def is_told():
            servers = {one["name"]: one for one in leader.get("/v1/servers")["servers"]}
            return {name: (one["rows"], one["row_bytes"]) for name, one in servers.items()} == {name: (expected[name], memory[name]) for name in names}

        wait_for(is_told, f"{expected} in {memory}")
        self.assertGreater(min(expected.values()), 0)
        return expected

    def test_rows_are_told_by_server_and_follow_their_moves(self):
        leader = self.leader(3, "--tables", TABLES, *PATIENT)
        shards = {name: self.shard(leader, name) for name in "bc"}

        def wait_buckets(names):
            def is_settled():
                servers = leader.get("/v1/servers")["servers"]
                return sorted(one["name"] for one in servers) == sorted(names) and all(one["buckets"] and not one["bucket_moves"] for one in servers)

            wait_for(is_settled, f"buckets on {names}")

        wait_buckets(["leader", "b", "c"])
        client = MovingClient(leader.data, 1)
        keys = list(range(1200))
        for first in range(0, len(keys), 300):  # a question has a bound
            client.push(keys[first : first + 300])
        client.close()
        rows = self.check_rows(leader, ["leader", "b", "c"], keys)
        shown = self.lines(leader, "tables")["count"]
        self.assertIn(f"leader {rows['leader']}, b {rows['b']}, c {rows['c']}", shown)
        self.assertRegex(self.lines(leader, "servers")["b"], rf" {rows['b']} ")
        self.assertEqual(leader.post("/v1/servers/b:drain")[0], 202)
        self.assert_status(shards["b"], DONE, "drained")
        wait_buckets(["leader", "c"])
        self.check_rows(leader, ["leader", "c"], keys)

    def test_one_server_holds_all(self):
        leader = self.leader(1, "--tables", TABLES)
        client = MovingClient(leader.data, 1)
        client.push(list(range(10)))
        client.close()
        (server,) = leader.get("/v1/servers")["servers"]
        table = leader.get("/v1/tables/count")
        self.assertEqual(table["servers"], [{"name": server["name"], "rows": 10, "bytes": table["bytes"]}])
        self.assertEqual((server["rows"], server["row_bytes"]), (10, sum(one["bytes"] for one in leader.get("/v1/tables")["tables"])))


if __name__ == "__main__":
    main()
