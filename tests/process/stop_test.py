"""POST /v1/job:stop and a halt hold when the server is started again: for workers that were away, on several servers, until job:resume. stop_test.py BIN_DIR"""

import json
import pathlib
import shutil
import signal
import sys
import time
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import DONE, HALTED, ClusterTest, Hold, Process, main, wait_for

LEASE = ["--lease", 1000]


class StopTest(ClusterTest):
    def operator_file(self, run="run"):
        return self.folder / run / "checkpoints" / "operator.json"

    def stopped_with_one_away(self, *arguments):
        """A server that ended after job:stop, a worker that heard of it, and one that was frozen beyond its lease."""
        server = self.server("--min-workers", 2, *LEASE, *arguments)
        here, away = (self.worker(server, name) for name in ("w0", "w1"))
        server.wait_round(10)
        away.send(signal.SIGSTOP)
        server.wait_worker("w1", "dead")
        server.wait_more_rounds(3)
        self.assertEqual(server.post("/v1/job:stop")[0], 202)
        self.assert_exit(DONE, here, server)
        return server, away

    def again(self, server, *arguments, name="again", **places):
        return self.server("--resume", "--min-workers", 2, *LEASE, *arguments, name=name, listen=server.data, **places)

    def change(self, server, settings, status=200):
        data = json.dumps(settings).encode()
        request = urllib.request.Request(f"http://{server.api}/v1/config", method="PATCH", data=data, headers={"Content-Type": "application/json"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=30) as reply:
                answer = reply.status, json.loads(reply.read())
        except urllib.error.HTTPError as error:
            with error:
                answer = error.code, json.loads(error.read())
        self.assertEqual(answer[0], status, answer)
        return answer[1]

    def assert_stopped(self, server):
        view = server.wait_cluster("stopped", lambda view: view["state"] == "stopped")
        self.assertIn("stopped by an operator at 20", view["state_reason"])
        self.assertIn("job:resume", view["state_reason"])
        self.assertIn("centroidctl job resume", server.wait_event("job.stopped")["action"])
        self.assertEqual(server.metric("centroid_server_job_state", state="stopped"), 1)
        self.assertEqual([wait["waits_for"] for wait in server.get("/v1/waits")["waits"]], ["operator"])
        return view

    def assert_told(self, worker, name):
        self.assert_exit(DONE, worker)
        self.assertIn("stopped by an operator", self.summary(name)["end"])


class Restart(StopTest):
    def test_a_worker_that_was_away_is_told_by_the_server_that_was_started_again(self):
        server, away = self.stopped_with_one_away()
        again = self.again(server)
        version = self.assert_stopped(again)["version"]
        self.assertEqual(self.checkpoints()[-1].name, f"checkpoint-{version:012}")
        away.send(signal.SIGCONT)
        self.assert_told(away, "w1")
        self.assert_told(self.worker(again, "w2"), "w2")  # one that nobody knew
        self.assertEqual(again.post("/v1/job:pause")[0], 409)
        self.assertEqual(again.post(f"/v1/checkpoints/{version}:restore")[0], 409)

        again.kill()  # it holds however this one ends
        third = self.again(server, name="third")
        self.assertEqual(self.assert_stopped(third)["version"], version)
        self.assertEqual(third.post("/v1/job:resume")[0], 202)
        self.assertEqual(third.post("/v1/job:resume")[0], 409)
        workers = [self.worker(third, f"v{i}") for i in range(2)]
        third.wait_round(version + 5)  # rounds and versions go together here
        third.send(signal.SIGTERM)
        self.assert_exit(DONE, third, *workers)

        last = self.again(server, name="last")  # what was taken back stays so
        last.wait_cluster("waiting", lambda view: view["state"] == "waiting")
        self.assertEqual(last.events("job.stopped"), [])

    def test_a_stop_that_was_answered_is_not_lost_with_a_killed_server(self):
        server = self.server("--min-workers", 2)
        workers = [self.worker(server, name) for name in ("w0", "w1")]
        server.wait_round(5)
        workers[1].send(signal.SIGSTOP)
        server.wait_missing("w1")
        self.assertEqual(server.post("/v1/job:stop")[0], 202)
        server.kill()  # while it waits for the open round
        workers[1].send(signal.SIGCONT)
        again = self.again(server)
        for worker, name in zip(workers, ("w0", "w1")):
            self.assert_told(worker, name)
        self.assert_stopped(again)

    def test_a_server_that_leaves_at_its_end_waits_for_those_that_were_away(self):
        server, away = self.stopped_with_one_away()
        again = self.again(server, "--exit-when-finished", "--drain-timeout", 3000)
        self.assert_stopped(again)
        away.send(signal.SIGCONT)
        self.assert_told(away, "w1")
        self.assert_exit(DONE, again)
        self.assertEqual(again.events("job.ended")[0]["state"], "stopped")

    def test_signals_and_a_second_stop_end_a_stopped_server(self):
        server, away = self.stopped_with_one_away()
        away.kill()
        for name, end in (("by-signal", lambda again: again.send(signal.SIGTERM)), ("by-rest", lambda again: again.post("/v1/job:stop"))):
            again = self.again(server, name=name)
            self.assert_stopped(again)
            end(again)
            self.assert_exit(DONE, again)

    def test_a_disk_that_hangs_keeps_nobody_from_steering(self):
        hold = self.folder / "hold"
        server = self.server(environment={"CENTROID_TEST_HOLD": f"operator.torn:{hold}"})
        worker = self.worker(server, "w0")
        server.wait_round(3)
        hold.write_text("")
        self.addCleanup(lambda: hold.unlink(missing_ok=True))
        begin = time.monotonic()
        self.assertEqual(server.post("/v1/job:pause"), (202, {"action": "pause", "saved": False}))
        server.wait_cluster("a pause", lambda view: view["state"] == "paused")
        self.assertEqual(server.post("/v1/job:stop"), (202, {"action": "stop", "saved": False}))
        self.assert_exit(DONE, worker)  # the stop is carried out meanwhile
        self.assertLess(time.monotonic() - begin, 9, "no answer waited for its deadline")
        self.assertTrue(server.is_running(), "its end waits for the disk")
        self.assertFalse(self.operator_file().exists())
        hold.unlink()
        self.assert_exit(DONE, server)
        kept = json.loads(self.operator_file().read_text())
        self.assertIn("stop", kept)
        self.assertNotIn("pause", kept)

    def test_a_stop_that_cannot_be_kept_stops_all_the_same_and_says_so(self):
        server = self.server()
        worker = self.worker(server, "w0")
        server.wait_round(3)
        self.operator_file().with_suffix(".json.tmp").mkdir()
        status, problem = server.post("/v1/job:stop")
        self.assertEqual(status, 503, problem)
        self.assertIn("not kept on the disk", problem["detail"])
        self.assert_exit(DONE, worker, server)

    def test_a_late_worker_of_a_finished_job_is_done(self):
        server = self.server("--rounds", 5)
        self.assert_exit(DONE, self.worker(server, "w0"))
        server.wait_cluster("finished", lambda view: view["state"] == "finished")
        self.assert_exit(DONE, self.worker(server, "w1"))
        self.assertEqual(self.summary("w1")["rounds"], 0)


class Pause(StopTest):
    def test_it_holds_with_changed_settings_until_it_is_taken_back(self):
        server = self.server("--checkpoint.keep", 4)
        worker = self.worker(server, "w0")
        server.wait_round(3)
        self.change(server, {"checkpoint.keep": 7, "lr": 0.125, "lease": "25s", "checkpoint.every_rounds": 50})
        self.change(server, {"checkpoint.every_rounds": 0})  # as it was: nothing to remember
        self.assertEqual(server.post("/v1/job:pause"), (202, {"action": "pause", "saved": True}))
        paused = server.wait_cluster("a pause", lambda view: view["state"] == "paused")
        self.assertEqual(server.post("/v1/checkpoints")[0], 201)
        server.kill()
        worker.kill()

        again = self.server("--resume", "--checkpoint.keep", 4, listen=server.data, name="again")
        view = again.wait_cluster("the pause of before", lambda view: view["state"] == "paused")
        self.assertEqual(view["state_reason"], paused["state_reason"])  # when it was paused, too
        settings = again.get("/v1/config")
        shown = {name: (settings[name]["value"], settings[name]["origin"]) for name in ("checkpoint.keep", "lease", "checkpoint.every_rounds")}
        self.assertEqual(shown, {"checkpoint.keep": (7, "rest"), "lease": (25000, "rest"), "checkpoint.every_rounds": (0, "default")})
        self.assertIn("operator.json", settings["checkpoint.keep"]["source"])
        self.assertEqual(len(again.events("config.restored")), 3)
        worker = self.worker(again, "w0")
        again.wait_worker("w0", "joining")
        self.assertEqual(again.cluster()["round"], paused["round"])
        self.assertEqual(again.cluster()["learning_rate"], 0.125)
        self.assertEqual(again.post("/v1/job:resume")[0], 202)
        again.wait_more_rounds(3)
        again.send(signal.SIGTERM)
        self.assert_exit(DONE, again, worker)

        # Configured otherwise since: that is newer. The lease is not: it was configured as before.
        third = self.server("--resume", "--checkpoint.keep", 5, listen=server.data, name="third")
        third.wait_cluster("no pause", lambda view: view["state"] == "waiting")
        settings = third.get("/v1/config")
        self.assertEqual((settings["checkpoint.keep"]["value"], settings["checkpoint.keep"]["origin"]), (5, "flag"))
        self.assertEqual((settings["lease"]["value"], settings["lease"]["origin"]), (25000, "rest"))
        self.assertIn("configured as 5", third.events("config.change_discarded")[0]["why"])
        third.kill()
        other = self.server("--checkpoint.keep", 4, run="other", name="other")
        self.assertEqual(other.get("/v1/config")["checkpoint.keep"]["value"], 4)

    def test_what_no_longer_goes_with_the_configuration_is_left_out_and_said(self):
        server = self.server("--max-workers", 4)
        worker = self.worker(server, "w0")
        server.wait_round(3)
        self.change(server, {"min_workers": 3, "checkpoint.keep": 9})
        server.send(signal.SIGTERM)
        self.assert_exit(DONE, server, worker)
        again = self.server("--resume", "--max-workers", 2, name="again")
        settings = again.get("/v1/config")
        self.assertEqual((settings["min_workers"]["value"], settings["checkpoint.keep"]["value"]), (1, 9))
        self.assertIn("max_workers", again.wait_event("config.change_refused", setting="min_workers")["why"])

    def test_a_stop_takes_a_pause_back(self):
        server = self.server()
        worker = self.worker(server, "w0")
        server.wait_round(3)
        self.assertEqual(server.post("/v1/job:pause")[0], 202)
        self.assertEqual(server.post("/v1/job:stop")[0], 202)
        self.assert_exit(DONE, server, worker)
        again = self.again(server, "--min-workers", 1)
        version = self.assert_stopped(again)["version"]
        self.assertEqual(again.post("/v1/job:resume")[0], 202)
        worker = self.worker(again, "w1")
        again.wait_round(version + 3)

    def test_of_another_job_in_the_folder_holds_for_that_one_only(self):
        server = self.server("--run-id", "r")
        self.assertEqual(server.post("/v1/job:pause")[0], 202)
        server.kill()
        other = self.server("--resume", "--run-id", "other", name="other")
        other.wait_event("operator.discarded", run_id="r")
        other.wait_cluster("no pause", lambda view: view["state"] == "waiting")


class OtherJobs(StopTest):
    """An old stop does not catch what is begun anew in the same folder."""

    def assert_begins(self, server):
        server.wait_cluster("waiting", lambda view: view["state"] == "waiting")
        self.assertEqual(server.events("job.stopped"), [])
        self.assertNotIn("stop", json.loads(self.operator_file().read_text()))
        server.kill()

    def stop(self, server):
        self.assertEqual(server.post("/v1/job:stop")[0], 202)
        self.assert_exit(DONE, server)
        self.assertIn("stop", json.loads(self.operator_file().read_text()))

    def test_of_a_folder_without_a_model(self):
        self.stop(self.server("--run-id", "r"))
        same = self.server("--resume", name="same")
        self.assert_stopped(same)
        same.kill()
        other = self.server("--resume", "--run-id", "other", name="other")
        other.wait_event("job.stop_discarded", why="another job")
        self.assert_begins(other)
        self.stop(self.server("--resume", name="third"))
        self.assert_begins(self.server(name="afresh"))  # without resume: a new run

    def test_of_a_folder_whose_checkpoints_were_moved_away(self):
        server = self.server()
        worker = self.worker(server, "w0")
        server.wait_round(3)
        self.stop(server)
        self.assert_exit(DONE, worker)
        for checkpoint in self.checkpoints():
            shutil.rmtree(checkpoint)
        self.assert_begins(self.server("--resume", name="again"))

    def test_a_job_at_its_goal_is_finished_and_may_get_a_larger_goal(self):
        server = self.server("--rounds", 5)
        self.assert_exit(DONE, self.worker(server, "w0"))
        server.wait_cluster("finished", lambda view: view["state"] == "finished")
        self.assertEqual(server.post("/v1/job:stop")[0], 202)
        self.assert_exit(DONE, server)
        again = self.server("--resume", "--rounds", 10, "--exit-when-finished", name="again")
        self.assert_exit(DONE, self.worker(again, "w1"), again)


class Halt(StopTest):
    """A job that halted itself stays so, and says so, until somebody takes it back."""

    DIVERGES = ("--lr", 1e30)

    def halted(self, *arguments, **places):
        server = self.server("--min-workers", 2, *self.DIVERGES, *arguments, **places)
        workers = [self.worker(server, name) for name in (f"w0{places.get('run', '')}", f"w1{places.get('run', '')}")]
        self.assert_exit(HALTED, *workers)
        return server

    def assert_halted(self, server):
        view = server.wait_cluster("halted", lambda view: view["state"] == "halted")
        self.assertIn("JIDOKA HALT", view["state_reason"])
        self.assertEqual(server.metric("centroid_server_job_state", state="halted"), 1)
        return view

    def assert_trains(self, server, names):
        """Rounds are opened again. The last good state is of parameters that have blown up already, so it halts once more."""
        workers = [self.worker(server, name) for name in names]
        self.assert_exit(HALTED, *workers)
        self.assertIn("(v", server.events("job.halted")[-1]["error"])

    def test_it_can_be_seen_holds_through_a_crash_and_is_taken_back(self):
        server = self.halted()
        self.assert_halted(server)  # REST and metrics stay up
        late = self.worker(server, "w2")
        self.assert_exit(HALTED, late)
        self.assertIn("JIDOKA HALT", self.summary("w2")["error"])
        server.kill()

        again = self.again(server, *self.DIVERGES)  # as a supervisor starts it, with the same settings
        view = self.assert_halted(again)
        self.assertIn("job:resume", view["state_reason"])
        late = self.worker(again, "w3")
        self.assert_exit(HALTED, late)
        self.assertIn("JIDOKA HALT", self.summary("w3")["error"])
        self.assertEqual(again.post("/v1/job:pause")[0], 409)
        again.send(signal.SIGTERM)
        self.assert_exit(HALTED, again)

        third = self.again(server, name="third")  # with a learning rate that it can live with
        self.assert_halted(third)
        self.assertEqual(third.post("/v1/job:resume")[0], 202)
        self.assert_trains(third, ("v0", "v1"))

    def test_who_joins_before_the_last_checkpoint_is_written_learns_why_it_cannot(self):
        writing = Hold(self, "checkpoint.folder_made").close()
        server = self.server("--min-workers", 2, *self.DIVERGES, environment=writing.environment)
        workers = [self.worker(server, name) for name in ("w0", "w1")]
        writing.wait_reached()
        workers.append(self.worker(server, "w2"))
        self.assertIn("the server is stopping: its rounds have ended", server.wait_event("member.refused", worker="w2")["why"])
        writing.open()
        self.assert_exit(HALTED, *workers)

    def test_taken_back_at_once_it_goes_on_when_the_server_is_started_again(self):
        server = self.halted()
        self.assert_halted(server)
        self.assertEqual(server.post("/v1/job:resume")[0], 202)
        self.assert_exit(HALTED, server)
        self.assert_trains(self.again(server), ("v0", "v1"))

    def test_a_lower_learning_rate_said_to_it_holds_when_it_goes_on(self):
        for way, *arguments in (("server",), ("worker", "--apply", "worker"), ("journal", "--journal.mode", "on")):
            with self.subTest(way):
                server = self.halted(*arguments, name=way, run=way)
                self.assert_halted(server)
                after = self.change(server, {"lr": 0.001, "log.level": "debug"})
                self.assertEqual(after["lr"]["value"], 0.001)
                self.assertEqual(server.post("/v1/job:resume")[0], 202)
                self.assert_exit(HALTED, server)
                again = self.again(server, *self.DIVERGES, *arguments, name=f"again-{way}", run=way)  # as a supervisor starts it
                rate = again.get("/v1/config")["lr"]
                self.assertEqual((rate["value"], rate["origin"]), (0.001, "rest"))
                self.assertEqual(again.cluster()["learning_rate"], 0.001)
                again.kill()

    def test_with_a_journal_it_is_started_with_other_settings_too(self):
        for number, arguments in enumerate(([], ["--clip-norm", 1])):
            with self.subTest(arguments):
                places = {"run": f"run-{number}"}
                server = self.halted("--journal.mode", "on", name=f"server-{number}", **places)
                self.assert_halted(server)
                server.kill()
                again = self.again(server, "--journal.mode", "on", *arguments, name=f"again-{number}", **places)
                self.assert_halted(again)
                self.assertEqual(again.post("/v1/job:resume")[0], 202)
                self.assert_trains(again, (f"v0{number}", f"v1{number}"))

    def test_who_starts_a_server_that_left_means_to_go_on(self):
        server = self.halted("--exit-when-finished")
        self.assert_exit(HALTED, server)
        self.assert_trains(self.again(server, "--exit-when-finished"), ("v0", "v1"))


class StopStatus(StopTest):
    def test_a_server_that_a_signal_ended_before_its_job_was_over_says_so(self):
        flags = ("--stop-status", 143, "--leave-workers", "--exit-when-finished", "--rounds", 1_000_000)
        server = self.server(*flags)
        worker = self.worker(server, "w0")
        server.wait_round(5)
        server.send(signal.SIGTERM)
        self.assert_exit(143, server)
        again = self.server(*flags, "--resume", name="again", listen=server.data)
        again.wait_more_rounds(5)
        self.assertEqual(again.post("/v1/job:stop")[0], 202)
        self.assert_exit(DONE, again, worker)

    def test_at_the_goal_it_is_done(self):
        server = self.server("--stop-status", 143, "--rounds", 5)
        self.assert_exit(DONE, self.worker(server, "w0"))
        server.wait_cluster("finished", lambda view: view["state"] == "finished")
        server.send(signal.SIGTERM)
        self.assert_exit(DONE, server)


class SeveralServers(StopTest):
    def shard(self, leader, name):
        places = ["--join", leader.data, "--name", name, "--listen", "127.0.0.1:0", "--run-dir", self.folder / "shards"]
        return self._start(Process, "centroid-server", name, places, None)

    def test_a_stop_holds_with_a_journal_that_waits_for_a_shard_server(self):
        common = ["--servers", 2, "--journal.mode", "on", "--chunk-bytes", 256]
        server = self.server("--min-workers", 2, *LEASE, *common)
        shard = self.shard(server, "s1")
        here, away = (self.worker(server, name) for name in ("w0", "w1"))
        server.wait_round(10)
        away.send(signal.SIGSTOP)
        wait_for(lambda: server.workers("w1")[-1]["state"] == "dead", "w1 dead")
        server.wait_more_rounds(3)
        self.assertEqual(server.post("/v1/job:stop")[0], 202)
        server.kill()
        shard.kill()
        here.kill()
        again = self.again(server, *common)  # it needs s1 for what it does not know, but not to say that the job is stopped
        self.assert_stopped(again)
        away.send(signal.SIGCONT)
        self.assert_told(away, "w1")
        s1 = self.shard(again, "s1")
        self.assertEqual(again.post("/v1/job:resume")[0], 202)
        workers = [self.worker(again, f"v{i}") for i in range(2)]
        again.wait_cluster("training", lambda view: view["state"] == "training" and view["round"] > 15)
        self.assertEqual(again.post("/v1/job:stop")[0], 202)
        self.assert_exit(DONE, *workers, again, s1)


if __name__ == "__main__":
    main(at_a_time=3)
