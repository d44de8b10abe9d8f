"""Tables of sparse rows through the Python package and libcentroid.so. rows_client_test.py BIN_DIR"""

import array
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.client import ClientTest, array_of
from harness.cluster import DONE, Process, main, wait_for
from harness.wire import Link
import centroid


class Rows(ClientTest):
    def test_rows(self):
        server = self.server("--tables", "emb:dim=2,lr=0.5,optimizer=sgd,init=zeros")
        with centroid.Rows(server.data, "emb", timeout=20) as rows:
            self.assertEqual(rows.dim, 2)
            rows.push([3, 2**63 + 1], array_of(2, [1, 2, 3, 4]))
            self.assertEqual(rows.pull([2**63 + 1, 3, 9]).tolist(), [[-1.5, -2], [-0.5, -1], [0, 0]])
            self.assertEqual(rows.pull(array.array("Q", [3])).tolist(), [[-0.5, -1]])
            self.assertEqual((rows.pushed, rows.lost), (1, 0))
            self.assert_fails("invalid_argument", "gradients has shape [1, 2], not [2, 2]", rows.push, [1, 2], array_of(2, [1, 2]))
            self.assert_fails("invalid_argument", "key is 1.5", rows.pull, [1.5])
            self.assertEqual(len(rows.pull([])), 0)
        self.assert_fails("not_found", "nothing", centroid.Rows, server.data, "nothing")

    def test_rows_of_a_table_with_a_schedule(self):
        server = self.server("--tables", "emb:dim=1,lr=0.5,optimizer=sgd,schedule=step:every=2,factor=0.5")
        with centroid.Rows(server.data, "emb", timeout=20) as rows:
            self.assert_fails("invalid_argument", "schedule step:every=2,factor=0.5: a push must say which step", rows.push, [3], array_of(1, [1]))
            rows.push([3], array_of(1, [2]), step=3)  # at half the rate
            self.assertEqual(rows.pull([3]).tolist(), [[-0.5]])


class Refused(ClientTest):
    """A server without room at the moment, as one under a flood."""

    def test_a_handshake_that_is_refused_is_tried_again(self):
        server = self.server("--tables", "emb:dim=1,lr=1,optimizer=sgd,init=zeros")
        self.worker(server, "w0")
        server.wait_round(2)
        link = Link(server.data)
        self.addCleanup(link.close)
        link.busy = 2
        with centroid.Rows(link.endpoint, "emb", timeout=60) as rows:
            rows.push([3], array_of(1, [1]))
            self.assertEqual(link.busy, 0)
            link.busy = 2
            link.cut()
            self.assertEqual(rows.pull([3]).tolist(), [[-1.0]])
            self.assertEqual(link.busy, 0)
        link.busy = 2
        self.assertGreater(centroid.pull(link.endpoint, timeout=60).version, 1)
        self.assertEqual(link.busy, 0)


class RowsOfServers(ClientTest):
    """A push of which one of two servers gives no answer in time: what it comes to is found out, and each key counts once."""

    KEYS = list(range(40))
    ONES = property(lambda self: array_of(1, [1] * len(self.KEYS)))

    def start(self, *arguments):
        table = ["--tables", "emb:dim=1,lr=1,optimizer=sgd,init=zeros", "--servers", 2, "--lease", "60s", "--stall-timeout", "60s"]
        self.leader = self.launch_server(*table, *arguments, name="leader").wait_ready()
        self.b = self.start_b()
        wait_for(lambda: not [w for w in self.leader.get("/v1/waits")["waits"] if w["waiter"] == "tables"], "the tables on both")
        rows = centroid.Rows(self.leader.data, "emb", timeout=6)
        rows.pull(self.KEYS)  # connected to both: else nothing is sent
        return rows

    def start_b(self, tag=""):
        places = ["--join", self.leader.data, "--name", "b", "--listen", "127.0.0.1:0", "--run-dir", self.folder / "run", "--drain-timeout", "1s"]
        return self._start(Process, "centroid-server", f"b{tag}", places, None)

    def fail(self, rows):
        """A push while b is stopped; how many keys lie there."""
        self.b.send(signal.SIGSTOP)
        with self.assertRaises(centroid.CentroidError) as caught:
            rows.push(self.KEYS, self.ONES)
        self.assertEqual(caught.exception.code, "deadline_exceeded")
        self.assertRegex(str(caught.exception), r"; of the 40 keys of this push (\d+) were applied \(the leader: \1\), of (\d+) it is not known \(server 'b': \2\); push_rest ")
        self.assertIn(f"of {rows.rest} it is not known", str(caught.exception))
        self.assertIn(rows.rest, range(1, 40))
        return rows.rest

    def assert_once(self, rows):
        self.assertEqual([value for (value,) in rows.pull(self.KEYS).tolist()], [-1.0] * 40)
        self.assertEqual(rows.rest, 0)
        rows.push_rest()
        self.assertEqual([value for (value,) in rows.pull(self.KEYS).tolist()], [-1.0] * 40)

    def test_a_server_that_is_late_has_applied_it_or_does(self):
        with self.start() as rows:
            on_b = self.fail(rows)
            with self.assertRaises(centroid.CentroidError):
                rows.push_rest()
            self.assertEqual(rows.rest, on_b)
            self.b.send(signal.SIGCONT)
            wait_for(lambda: self.leader.get("/v1/tables/emb")["pushed"] == 40, "what b was sent before it was stopped")
            rows.push_rest()
            self.assert_once(rows)
            rows.push([self.KEYS[0]], array_of(1, [1]))
            self.assertEqual(rows.pull([self.KEYS[0]]).tolist(), [[-2.0]])

    def test_a_server_that_is_killed_comes_back_with_it_or_without(self):
        with self.start("--journal.mode", "on", "--journal.sync", 0) as rows:
            self.fail(rows)
            self.b.kill()
            self.b = self.start_b("-again")
            self.b.wait_event("rows_journal.replayed")
            self.leader.wait_rows()
            rows.push_rest()
            self.assert_once(rows)

    def test_a_server_that_is_drained_meanwhile_has_told_the_leader(self):
        with self.start() as rows:
            self.fail(rows)
            self.b.send(signal.SIGCONT)
            wait_for(lambda: self.leader.get("/v1/tables/emb")["pushed"] == 40, "what b was sent before it was stopped")
            self.assertEqual(self.leader.post("/v1/servers/b:drain")[0], 202)
            self.assert_status(self.b, DONE, "drained")
            self.assertEqual([value for (value,) in rows.pull(self.KEYS).tolist()], [-1.0] * 40)  # asks for the route
            rows.push_rest()
            self.assert_once(rows)

    def test_the_next_push_forgets_it(self):
        with self.start() as rows:
            self.fail(rows)
            self.b.send(signal.SIGCONT)
            wait_for(lambda: self.leader.get("/v1/tables/emb")["pushed"] == 40, "what b was sent before it was stopped")
            rows.push([100], array_of(1, [1]))
            self.assertEqual(rows.rest, 0)
            self.assert_once(rows)


if __name__ == "__main__":
    main(at_a_time=4)
