"""A job that keeps a journal goes back to a checkpoint, killed (-9) at every point of that. restore_test.py BIN_DIR"""

import contextlib
import http.client
import json
import pathlib
import shutil
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import fault_points
from harness.cluster import DONE, ClusterTest, main, wait_for

JOURNAL = ["--journal.mode", "on", "--journal.sync", "0"]
GOAL = 24
OLD, BEFORE = 5, 14  # rounds: of the checkpoint, and when the job goes back to it


def state_bytes(checkpoint):
    return {path.name: path.read_bytes() for path in sorted(checkpoint.glob("*.safetensors"))}


class RestoreTest(ClusterTest):
    def launch(self, run, name, *arguments, rounds=GOAL, environment=None):
        goal = ["--rounds", rounds, "--min-workers", 1, "--exit-when-finished", "--optimizer", "momentum", "--lr", "0.05", "--run-id", "r"]
        return self.launch_server(*goal, "--log.level", "debug", *JOURNAL, *arguments, run=run, name=name, environment=environment)

    def train(self, run, name, *arguments, status=DONE, **more):
        """A server with one worker, until it ends."""
        server = self.launch(run, name, *arguments, **more).wait_ready()
        worker = self.worker(server, "w0")
        self.assertEqual(server.exit_status(), status, server.text())
        worker.kill()
        return server

    def template(self):
        """Checkpoints behind rounds 5 and 10, segments with the rounds up to 14, and a server that was killed."""
        self.train("template", "t5", rounds=OLD)
        self.train("template", "t10", "--resume", rounds=10)
        for name in ("t12", "t14"):
            self.train("template", name, "--resume", status=-signal.SIGKILL, environment={"CENTROID_TEST_FAULT": "round.committed:2"})
        self.assertGreaterEqual(len(list((self.folder / "template" / "journal").glob("journal-*.log"))), 2)
        return self.folder / "template"

    def expected(self):
        self.train("whole", "whole")
        return state_bytes(self.checkpoints("whole")[-1])

    def go_back(self, server, version=OLD + 1, deletes=True):
        with contextlib.suppress(OSError, http.client.HTTPException):  # it may be killed first
            status, body = server.call("POST", f"/v1/checkpoints/{version}:restore", {"delete_newer": deletes})
            return status, json.loads(body)
        return None

    def round_of(self, server):
        """Where it began."""
        told = server.events("journal.replayed") or server.events("checkpoint.loaded")
        return told[0]["round"]


class Kill(RestoreTest):
    def test_at_every_point_and_again_in_the_start_after_it(self):
        expected, template = self.expected(), self.template()
        reached = self.folder / "points"
        self.killed(template, "all", expected, log=reached)
        names = fault_points.reached(reached)
        self.assertEqual(fault_points.owned_by("restore_test.py") - set(names), set())
        decided = names.index("restore.mark.renamed")
        names = names[names.index("restore.mark.torn") :]
        for name in names:
            first = fault_points.reached(reached).index(name)
            for count in (1, 2) if name == "restore.segment_removed" else (1,):
                with self.subTest(point=name, count=count):
                    wanted = BEFORE if first < decided else OLD
                    self.assertTrue(self.killed(template, f"{name}-{count}", expected, fault=f"{name}:{count}", wanted=wanted))
        for first in ("restore.mark.renamed", "restore.segment_removed"):
            for second in ("checkpoint.old_renamed", "restore.segment_removed", "restore.files_removed", "restore.mark_removed", "checkpoint.reading"):
                with self.subTest(first=first, second=second):
                    self.killed(template, f"{first}-{second}", expected, fault=f"{first}:1", again=f"{second}:1")

    def killed(self, template, run, expected, fault=None, again=None, wanted=OLD, log=None):
        """Go back, killed at `fault`, and at `again` in the start that follows; then train to the goal. False: not reached."""
        shutil.copytree(template, self.folder / run)
        environment = {"CENTROID_TEST_FAULT_LOG": str(log)} if log else {"CENTROID_TEST_FAULT": fault}
        server = self.launch(run, f"{run}-a", "--resume", environment=environment).wait_ready()
        self.assertEqual(self.round_of(server), BEFORE)
        answer = self.go_back(server)
        if answer is not None:
            self.assertEqual(answer[0], 200, answer)
            self.assertEqual((answer[1]["round"], answer[1]["deleted"]), (OLD, 1))
            server.kill()
        else:
            self.assertEqual(server.exit_status(), -signal.SIGKILL, server.text())
        if again:
            second = self.launch(run, f"{run}-b", "--resume", environment={"CENTROID_TEST_FAULT": again})
            wait_for(lambda: not second.is_running() or second.events("server.initialized"), f"{again}, or a server that is ready")
            second.kill()
            self.assertEqual(second.exit_status(), -signal.SIGKILL, second.text())
        last = self.train(run, f"{run}-c", "--resume")
        self.assertEqual(self.round_of(last), wanted if answer is None else OLD)
        self.assertEqual(len(last.events("round.committed")), GOAL - self.round_of(last))
        self.assertEqual(state_bytes(self.checkpoints(run)[-1]), expected, "other bits")
        self.assertFalse((self.folder / run / "journal" / "restore.json").exists())
        shutil.rmtree(self.folder / run)
        return answer is None


class WhileItTrains(RestoreTest):
    def training(self, *arguments):
        server = self.launch("run", "server", "--rounds", 0, *arguments).wait_ready()
        workers = [self.worker(server, f"w{i}") for i in range(2)]
        server.wait_round(10)
        return server, workers

    def checkpoint(self, server):
        status, made = server.post("/v1/checkpoints")
        self.assertEqual(status, 201, made)
        return made

    def test_workers_come_back_and_a_kill_loses_nothing(self):
        server, workers = self.training()
        old = self.checkpoint(server)
        server.wait_more_rounds(10)
        self.checkpoint(server)
        server.wait_more_rounds()
        for _ in range(2):  # the second goes back behind a journal that the first began
            status, done = self.go_back(server, old["version"])
            self.assertEqual(status, 200, done)
            self.assertEqual(done["round"], old["round"])
            server.wait_round(old["round"] + 10)
        committed = max(event["round"] for event in server.events("round.committed")[-5:])
        server.kill()
        again = self.launch_server("--resume", "--optimizer", "momentum", "--lr", "0.05", "--rounds", 0, *JOURNAL, run="run", name="again", listen=server.data)
        again.wait_ready()
        self.assertEqual(again.events("checkpoint.loaded")[0]["round"], old["round"])
        self.assertGreaterEqual(again.events("journal.replayed")[0]["round"], committed)
        self.assertEqual(again.events("checkpoint.restore_completed") + again.events("checkpoint.restore_discarded"), [])
        again.wait_more_rounds(5)
        self.assertTrue(all(worker.is_running() for worker in workers))

    def test_without_the_mark_the_job_goes_on_as_it_was(self):
        server, workers = self.training()
        old = self.checkpoint(server)
        server.wait_more_rounds()
        in_the_way = self.folder / "run" / "journal" / "restore.json.tmp"
        (in_the_way / "not-empty").mkdir(parents=True)
        before = server.cluster()["round"]
        status, problem = self.go_back(server, old["version"])
        self.assertGreaterEqual(status, 400, problem)
        self.assertIn("restore.json", problem["detail"])
        self.assertGreaterEqual(server.wait_more_rounds(5)["round"], before)
        self.checkpoint(server)
        shutil.rmtree(in_the_way)
        self.assertEqual(self.go_back(server, old["version"])[0], 200)
        server.wait_more_rounds(5)
        self.assertTrue(all(worker.is_running() for worker in workers))

    def test_tables_go_back_to_the_newest_only(self):
        server, _ = self.training("--tables", "emb:dim=4")
        old = self.checkpoint(server)
        server.wait_more_rounds()
        new = self.checkpoint(server)
        status, problem = self.go_back(server, old["version"])
        self.assertEqual(status, 409, problem)
        self.assertIn("tables", problem["detail"])
        self.assertEqual(self.go_back(server, new["version"])[0], 200)
        server.wait_round(new["round"] + 5)

    def test_several_servers_refuse(self):
        server = self.launch("run", "server", "--servers", 2).wait_ready()
        status, problem = self.go_back(server, 1)
        self.assertEqual(status, 409, problem)
        self.assertIn("each of the servers", problem["detail"])


if __name__ == "__main__":
    main(at_a_time=3)
