"""Tables of sparse rows whose buckets move from server to server, over kill -9. rows_moves_test.py BIN_DIR"""

import contextlib
import http.client
import pathlib
import random
import signal
import subprocess
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import DONE, ClusterTest, Process, main, wait_for
from harness.rows_moves import MovingClient
from harness.rows_servers import BUCKETS, TABLES

POINTS = ("rows_moves.held", "rows_moves.put", "rows_moves.taken", "rows_moves.given")


class RowsMovesTest(ClusterTest):
    def shard(self, leader, name, number=0, fault=None, run="run"):
        folder = self.folder / f"shards-{run}"
        places = ["--join", leader, "--name", name, "--listen", "127.0.0.1:0", "--run-dir", folder, "--drain-timeout", "60s"]
        environment = {"CENTROID_TEST_FAULT": fault} if fault else None
        return self._start(Process, "centroid-server", f"{name}-{number}", [*places, "--join-timeout", "60s"], environment)

    def launch_leader(self, run, *arguments, number=0, fault=None, **places):
        environment = {"CENTROID_TEST_FAULT": fault} if fault else None
        common = ["--tables", TABLES, "--run-id", "r", "--servers", 2, "--checkpoint.keep", 2, "--lease", "1s", "--journal.mode", "on"]
        return self.launch_server(*common, *arguments, name=f"leader-{run}-{number}", run=run, environment=environment, **places).wait_ready()

    def wait_settled(self, leader, names, problems=()):
        """These servers have buckets, and none is to move."""

        def is_settled():
            if problems:
                return True
            waits = leader.get("/v1/waits")["waits"]
            if any(wait["waiter"] in ("tables", "clients of rows", "buckets of tables") for wait in waits):
                return False
            servers = leader.get("/v1/servers")["servers"]
            return {server["name"] for server in servers if server["buckets"] and not server["bucket_moves"]} == set(names) and len(servers) == len(names)

        wait_for(is_settled, f"buckets on {names} alone")

    def begin_load(self, endpoint, clients):
        pushed, is_over, problems = [0] * clients, threading.Event(), []

        def load(identity):
            client = MovingClient(endpoint, identity, problems.__len__)
            keys = [7, *range(100 * identity, 100 * identity + 60)]
            try:
                while not is_over.is_set():
                    client.push(keys)
                    pushed[identity - 1] += 1
            except Exception as error:  # noqa: BLE001: told by the test
                problems.append(repr(error))
            client.close()

        threads = [threading.Thread(target=load, args=(identity,), daemon=True) for identity in range(1, clients + 1)]
        for thread in threads:
            thread.start()

        def end():
            is_over.set()
            for thread in threads:
                thread.join(60)
                self.assertFalse(thread.is_alive())
            self.assertEqual(problems, [])

        def wait_pushes(count):
            start = sum(pushed)
            wait_for(lambda: problems or sum(pushed) >= start + count, "pushes")
            self.assertEqual(problems, [])

        return pushed, problems, wait_pushes, end

    def check(self, endpoint, pushed, where):
        client = MovingClient(endpoint, 90)
        for identity, count in enumerate(pushed, start=1):
            rows = client.pull(range(100 * identity, 100 * identity + 60))
            self.assertEqual(set(rows.values()), {float(count)}, f"client {identity}, {where}")
        self.assertEqual(client.pull([7])[7], float(sum(pushed)), where)
        client.close()

    def kill_all(self, *processes):
        for process in processes:
            process.kill()

    def test_a_kill_at_every_step_of_a_move_loses_no_push_and_applies_none_twice(self):
        """The leader and b give to a newcomer c, then b is drained: each of them is killed at each step."""
        ways = [(point, victim) for point in POINTS for victim in ("leader", "b", "c")]
        for number, (point, victim) in enumerate(ways):
            gives = point in ("rows_moves.held", "rows_moves.given")
            if victim == "c" and gives or victim == "b" and not gives:
                continue  # a newcomer only takes, b only gives
            with self.subTest(point=point, victim=victim):
                fault = f"{point}:1"
                run = f"run-{number}"
                leader = self.launch_leader(run, fault=fault if victim == "leader" else None)
                endpoint, api = leader.data, leader.api
                number *= 10
                shards = {"b": self.shard(endpoint, "b", number, fault if victim == "b" else None, run)}
                self.wait_settled(leader, ["leader", "b"])
                pushed, problems, wait_pushes, end = self.begin_load(endpoint, 2)
                wait_pushes(5)
                shards["c"] = self.shard(endpoint, "c", number, fault if victim == "c" else None, run)
                if victim == "leader" and not gives:  # it takes what b gives up
                    self.wait_settled(leader, ["leader", "b", "c"], problems)
                    with contextlib.suppress(OSError, http.client.HTTPException):  # it may be killed first
                        leader.post("/v1/servers/b:drain")
                dead = leader if victim == "leader" else shards[victim]
                self.assertEqual(dead.exit_status(), -signal.SIGKILL, dead.text())
                if victim == "leader":
                    leader = self.launch_leader(run, "--resume", number=1, listen=endpoint, api=api)
                else:
                    shards[victim] = self.shard(endpoint, victim, number + 1, run=run)
                wait_pushes(5)
                self.wait_settled(leader, ["leader", "b", "c"], problems)
                wait_pushes(5)
                leader.post("/v1/servers/b:drain")
                self.assertEqual(shards["b"].exit_status(), DONE, shards["b"].text())
                self.wait_settled(leader, ["leader", "c"], problems)
                wait_pushes(5)
                end()
                self.check(endpoint, pushed, "before all are killed")
                self.kill_all(leader, shards["c"])
                leader = self.launch_leader(run, "--resume", number=2, listen=endpoint, api=api)
                shards["c"] = self.shard(endpoint, "c", number + 2, run=run)
                self.check(endpoint, pushed, "after all were killed")
                leader.post("/v1/job:stop")
                self.assert_exit(DONE, leader, shards["c"])

    def test_servers_come_and_go_and_are_killed_at_random_under_load(self):
        seed = random.randrange(1 << 30)
        print(f"seed {seed}")
        rng = random.Random(seed)
        leader = self.launch_leader("run")
        endpoint, api = leader.data, leader.api
        shards = {"s1": self.shard(endpoint, "s1")}
        self.wait_settled(leader, ["leader", "s1"])
        pushed, problems, wait_pushes, end = self.begin_load(endpoint, 3)
        started = 1
        for turn in range(1, 13):
            wait_pushes(rng.randrange(1, 15))
            what = rng.randrange(6)
            if what <= 1 and len(shards) < 4:
                started += 1
                shards[f"s{started}"] = self.shard(endpoint, f"s{started}", turn)
            elif what == 2 and len(shards) > 1:
                name = rng.choice(sorted(shards))
                self.wait_settled(leader, ["leader", *shards], problems)
                if rng.randrange(2):
                    leader.post(f"/v1/servers/{name}:drain")
                else:
                    shards[name].send(signal.SIGTERM)
                gone = shards.pop(name)
                self.assertEqual(gone.exit_status(), DONE, gone.text())
            elif what == 3:
                leader.post("/v1/checkpoints")
            else:
                victims = ["leader", *shards] if what == 5 else [rng.choice(["leader", *shards])]
                self.kill_all(*(leader if name == "leader" else shards[name] for name in victims))
                if "leader" in victims:
                    leader = self.launch_leader("run", "--resume", number=turn, listen=endpoint, api=api)
                for name in victims:
                    if name != "leader":
                        shards[name] = self.shard(endpoint, name, turn)
        wait_pushes(10)
        self.wait_settled(leader, ["leader", *shards], problems)
        end()
        self.check(endpoint, pushed, f"seed {seed}")
        leader.post("/v1/job:stop")
        self.assert_exit(DONE, leader, *shards.values())

    def test_an_operator_sees_buckets_move_and_drains_a_server(self):
        leader = self.launch_leader("run")
        shards = {name: self.shard(leader.data, name) for name in ("b",)}
        self.wait_settled(leader, ["leader", "b"])
        shards["c"] = self.shard(leader.data, "c")
        self.wait_settled(leader, ["leader", "b", "c"])
        buckets = {server["name"]: server["buckets"] for server in leader.get("/v1/servers")["servers"]}
        self.assertEqual(sum(buckets.values()), BUCKETS)
        self.assertLessEqual(max(buckets.values()) - min(buckets.values()), 1)
        ctl = [str(self.programs / "centroidctl"), "--server", leader.api, "servers"]
        listed = subprocess.run(ctl, capture_output=True, text=True, timeout=60)
        self.assertIn("bucket moves", listed.stdout, listed.stderr)
        drained = subprocess.run([*ctl, "drain", "b"], capture_output=True, text=True, timeout=60)
        self.assertEqual(drained.returncode, 0, drained.stderr)
        self.assertEqual(shards["b"].exit_status(), DONE, shards["b"].text())
        self.wait_settled(leader, ["leader", "c"])
        leader.post("/v1/job:stop")
        self.assert_exit(DONE, leader, shards["c"])


if __name__ == "__main__":
    main(at_a_time=3)
