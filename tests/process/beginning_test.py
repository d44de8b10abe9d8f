"""A server that reads what it goes on from, or begins with. beginning_test.py BIN_DIR"""

import pathlib
import signal
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import DONE, ClusterTest, main, wait_for
from harness.rows import OPEN, RowsClient
from harness.wire import REQUEST, connect, header, hello, read_frame, text


class EmbClient(RowsClient):
    names = ("emb",)


class Beginning(ClusterTest):
    """A server that goes on from a checkpoint, while it reads that."""

    def begin(self):
        server = self.server("--rounds", 3, "--exit-when-finished")
        self.assert_exit(DONE, self.worker(server, "w0"), server)
        self.hold = self.folder / "hold"
        self.hold.write_text("")
        self.addCleanup(lambda: self.hold.unlink(missing_ok=True))
        environment = {"CENTROID_TEST_HOLD": f"checkpoint.reading:{self.hold}"}
        arguments = ["--optimizer", "sgd", "--lr", "0.05", "--rounds", 0, "--resume"]
        return self.launch_server(*arguments, name="again", environment=environment).wait_open()

    def reading(self, server, seconds=0):
        """Its wait for the checkpoint, once that has lasted so long."""

        def find():
            waits = [wait for wait in server.get("/v1/waits")["waits"] if wait["waits_for"] == "checkpoint"]
            return next((wait for wait in waits if wait["seconds"] >= seconds), None)

        return wait_for(find, f"a wait of {seconds} s for the checkpoint")

    def test_a_newcomer_is_told_to_wait_and_a_waiting_worker_stays(self):
        server = self.begin()
        self.assertRegex(self.reading(server)["what"], r"checkpoint-.* is read, \d+ bytes")
        self.assertEqual(server.call("GET", "/livez")[0], 200)
        status, body = server.call("GET", "/readyz")
        self.assertEqual(status, 503)
        self.assertIn("is read", body)
        self.assertEqual([wait["waits_for"] for wait in server.get("/v1/waits")["waits"]], ["checkpoint"])
        self.assertIn("is read", server.cluster()["state_reason"])
        for path in ("/v1/job:pause", "/v1/job:stop", "/v1/checkpoints", "/v1/checkpoints/3:restore"):
            status, refusal = server.post(path)
            self.assertEqual(status, 503, refusal)
            self.assertIn("the server begins", refusal["detail"])
        worker = self.worker(server, "w1", "--join-timeout", 2000)
        worker.wait_event("server.connection_failed", why="is read")
        server.wait_event("member.refused", worker="w1", why="the server begins: checkpoint")
        # It stays for as long as it is told why.
        self.reading(server, seconds=self.reading(server)["seconds"] + 4)
        self.assertTrue(worker.is_running(), worker.text())
        self.hold.unlink()
        server.wait_more_rounds()
        self.assertEqual(server.wait_event("server.initialized")["round"], 4)
        self.assertEqual(server.call("GET", "/readyz")[0], 200)
        self.assertTrue(worker.is_running())

    def test_sigterm_ends_it_at_once(self):
        server = self.begin()
        self.reading(server)
        server.send(signal.SIGTERM)
        self.assertEqual(server.exit_status(seconds=20), DONE, server.text())
        self.assertEqual(server.events("server.initialized"), [])
        again = self.launch_server("--optimizer", "sgd", "--lr", "0.05", "--rounds", 3, "--resume", name="third").wait_ready()
        self.assertEqual(again.cluster()["version"], 4)

    def test_a_setting_that_is_changed_meanwhile_holds(self):
        server = self.begin()
        self.reading(server)
        status, body = server.call("PATCH", "/v1/config", {"lease": "25s"})
        self.assertEqual(status, 503, body)
        self.assertIn("the server begins", body)
        status, body = server.call("PATCH", "/v1/config", {"log.level": "debug", "api.rate": 500})
        self.assertEqual(status, 200, body)
        self.hold.unlink()
        server.wait_event("server.initialized")
        server.kill()
        again = self.server("--resume", name="third")
        settings = again.get("/v1/config")
        shown = {name: (settings[name]["value"], settings[name]["origin"]) for name in ("log.level", "api.rate")}
        self.assertEqual(shown, {"log.level": ("debug", "rest"), "api.rate": (500, "rest")})

    def held(self, point):
        """The environment of a server that stops there, and the file that it waits for to go."""
        self.hold = self.folder / "hold"
        self.hold.write_text("")
        self.addCleanup(lambda: self.hold.unlink(missing_ok=True))
        return {"CENTROID_TEST_HOLD": f"{point}:{self.hold}"}

    def assert_answers(self, server, why):
        wait_for(lambda: why in server.cluster()["state_reason"], f"a server of which {why}")
        self.assertEqual(server.call("GET", "/livez")[0], 200)
        status, body = server.call("GET", "/readyz")
        self.assertEqual(status, 503)
        self.assertIn(why, body)
        wait_for(lambda: why in [wait["what"] for wait in server.get("/v1/waits")["waits"]], f"a wait: {why}")

    def test_tables_are_read_beside_what_is_asked(self):
        arguments = ["--tables", "emb:dim=2,lr=0.5,optimizer=sgd,init=zeros", "--journal.mode", "on"]
        server = self.server(*arguments)
        client = EmbClient(server.data, 1)
        client.push("emb", 1, [3, 4], [1, 2, 3, 4])
        rows = client.pull("emb", [3, 4])
        client.close()
        server.kill()
        environment = self.held("rows_journal.replayed")
        again = self.launch_server(*arguments, "--resume", name="again", environment=environment).wait_open()
        self.assert_answers(again, "the tables of sparse rows are read")
        self.assertEqual([table["rows"] for table in again.get("/v1/tables")["tables"]], [0])
        with connect(again.data) as peer:
            peer.sendall(hello(name="rows-2"))
            read_frame(peer)
            head = struct.pack("<Q", 2) + text("emb")
            peer.sendall(header(OPEN, REQUEST, head, 0, 1) + head)
            self.assertIn(b"the server begins", read_frame(peer)[2])
        self.hold.unlink()
        again.wait_ready()
        client = EmbClient(again.data, 3)
        self.assertEqual(client.pull("emb", [3, 4]), rows)
        client.close()
        self.assertEqual([table["rows"] for table in again.get("/v1/tables")["tables"]], [2])

    def test_the_first_model_is_read_beside_what_is_asked(self):
        server = self.server("--rounds", 3, "--exit-when-finished")
        self.assert_exit(DONE, self.worker(server, "w0"), server)
        model = self.checkpoints()[-1] / "model.safetensors"
        arguments = ["--init", model, "--rounds", 3, "--exit-when-finished"]
        again = self.launch_server(*arguments, name="again", run="again", environment=self.held("init.reading")).wait_open()
        self.assert_answers(again, f"{model} is read")
        worker = self.worker(again, "w1")
        again.wait_event("member.refused", worker="w1", why="the server begins")
        self.hold.unlink()
        self.assert_exit(DONE, worker, again)


if __name__ == "__main__":
    main()
