"""centroidctl against a running server. ctl_test.py BIN_DIR"""

import contextlib
import json
import os
import pathlib
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import DONE, FAILED, UNHURRIED, Process, free_port, main, wait_for
from harness.ctl import ANSWERED_BADLY, STOPPED, UNREACHABLE, USAGE, Altered, CtlTest
from harness.peer import Peer


class Ctl(CtlTest):
    def test_views_say_what_rest_says(self):
        server, _ = self.training()
        server.post("/v1/job:pause")
        cluster = server.wait_cluster("paused", lambda view: view["state"] == "paused")
        text = self.ctl(server, "status")
        for part in ("paused by an operator", cluster["run_id"], f"version {cluster['version']}", "w0", "w1"):
            self.assertIn(part, text)
        self.assertNotIn("\033", text)  # no terminal, no colours
        self.assertIn(f"{cluster['run_id']}, star, policy bsp, ", text)
        both = self.ctl(server, "status", "--watch", "0.1", "--count", "2", "--output", "json").splitlines()
        for line in both:
            self.assertEqual(json.loads(line)["cluster"]["version"], cluster["version"])
        self.assertEqual(len(both), 2)
        workers = json.loads(self.ctl(server, "--output", "json", "workers"))["workers"]
        self.assertEqual(sorted(worker["name"] for worker in workers), ["w0", "w1"])
        self.assertEqual(len(self.ctl(server, "rounds", "-n", "2").splitlines()), 3)
        epochs = json.loads(self.ctl(server, "--output", "json", "epochs", "-n", "1"))["epochs"]
        self.assertEqual([worker["name"] for worker in epochs[0]["workers"]], ["w0", "w1"])
        self.assertAlmostEqual(sum(worker["share"] for worker in epochs[0]["workers"]), 1)
        self.assertEqual(len(self.ctl(server, "epochs", "-n", "1").splitlines()), 4)
        self.assertIn("operator", self.ctl(server, "waits"))
        self.assertRegex(self.ctl(server, "config", "min_"), r"min_workers +2 +workers +flag")

    def test_status_leaves_out_what_no_worker_has_told_yet(self):
        server = self.server()
        line = self.ctl(server, "status").splitlines()[0]
        self.assertRegex(line, r"^run +\w[^,]*(, star)?, policy bsp, \w+$")

    def test_actions_act(self):
        server, (first, second) = self.training()
        self.ctl(server, "job", "pause")
        server.wait_cluster("paused", lambda view: view["state"] == "paused")
        path = self.ctl(server, "checkpoints", "make").splitlines()[0]
        self.assertIn(pathlib.Path(path), self.checkpoints())
        self.ctl(server, "job", "resume")
        server.wait_more_rounds()
        self.ctl(server, "workers", "drain", "w1")
        self.assert_status(second, DONE)
        self.assertIn("no worker has the name", self.ctl(server, "workers", "drain", "w9", status=ANSWERED_BADLY))
        self.ctl(server, "job", "stop")
        self.assert_exit(DONE, first, server)

    def test_events_are_shown_and_followed(self):
        server, _ = self.training()
        shown = self.ctl(server, "events", "--type", "member")
        for part in ("member.joined", "worker=w0", "worker=w1"):
            self.assertIn(part, shown)
        last = [json.loads(line) for line in self.ctl(server, "--output", "json", "events", "-n", "3").splitlines()]
        self.assertEqual(len(last), 3)
        followed = self.ctl(server, "--output", "json", "events", "--follow", "-n", "0", "--count", "2", "--type", "round.committed")
        rounds = [json.loads(line) for line in followed.splitlines()]
        self.assertEqual(len(rounds), 2)
        self.assertGreater(rounds[1]["round"], rounds[0]["round"])
        self.assertGreater(rounds[0]["id"], last[0]["id"])
        self.assertIn("no event is called", self.ctl(server, "events", "--type", "weather", status=ANSWERED_BADLY))

    def test_tokens_are_made_shown_and_revoked(self):
        secrets = self.folder / "operator"
        secrets.write_text("of-the-test\n")
        server = self.server("--api.token", "of-the-test")
        mine = ("--token-file", secrets)
        secret = self.ctl(server, *mine, "tokens", "create", "eyes", "--hours", "1").strip()
        listed = self.ctl(server, *mine, "tokens", "list")
        self.assertRegex(listed, r"eyes +viewer")
        self.assertNotIn(secret, listed)
        (self.folder / "viewer").write_text(secret)
        theirs = ("--token-file", self.folder / "viewer")
        self.ctl(server, *theirs, "status")
        self.assertIn("role admin", self.ctl(server, *theirs, "job", "pause", status=ANSWERED_BADLY))
        self.ctl(server, *mine, "tokens", "revoke", "eyes")
        self.ctl(server, *theirs, "status", status=ANSWERED_BADLY)
        self.assertRegex(self.ctl(server, *mine, "audit"), r"eyes +viewer .* POST +/v1/job:pause +403")

    def test_settings_are_changed_and_workers_evicted(self):
        server, (_, second) = self.training()
        said = self.ctl(server, "config", "set", "checkpoint.keep=7", "lease=20s")
        self.assertIn("checkpoint.keep = 7", said)
        self.assertRegex(self.ctl(server, "config", "get", "lease"), r"lease +20000 +ms +rest +yes")
        self.assertIn("seed cannot be changed", self.ctl(server, "config", "set", "seed=3", status=ANSWERED_BADLY))
        self.assertIn("NAME=VALUE", self.ctl(server, "config", "set", "seed", status=USAGE))
        self.ctl(server, "workers", "evict", "w1", "--why", "of the test")
        self.assertNotEqual(second.exit_status(), DONE)
        self.ctl(server, "workers", "allow", "w1")
        self.assertIn("no worker 'w1' is evicted", self.ctl(server, "workers", "allow", "w1", status=ANSWERED_BADLY))
        self.assertIn("workers", self.ctl(server, "scale"))
        self.ctl(server, "scale", "set", "3", "--why", "a fair")
        self.assertIn("wanted: 3 workers: a fair", self.ctl(server, "scale"))
        self.assertIn("max_workers", self.ctl(server, "scale", "set", "1000", status=ANSWERED_BADLY))
        self.ctl(server, "scale", "clear")
        self.assertIsNone(json.loads(self.ctl(server, "scale", "--output", "json"))["hint"])
        self.assertRegex(self.ctl(server, "parameters"), r"version \d+\n.*tensor")
        made = json.loads(self.ctl(server, "--output", "json", "checkpoints", "make"))["version"]
        self.ctl(server, "checkpoints", "restore", made, "--delete-newer")
        self.assertIn("newest", self.ctl(server, "checkpoints", "delete", made, status=ANSWERED_BADLY))

    def test_names_may_be_numbers_and_hold_odd_characters(self):
        server = self.server("--epochs", "1000000", "--min-workers", "2")
        self.worker(server, "2")
        wait_for(lambda: server.workers("2"), "the first worker")
        odd = self.worker(server, "a b%c")
        server.wait_round(3)
        members = {worker["name"]: worker["member"] for worker in server.workers()}
        self.assertEqual(members, {"2": 1, "a b%c": 2})
        refused = self.ctl(server, "workers", "drain", "2", status=USAGE)
        self.assertIn("'2' is the name of the worker with member number 1, and the member number of worker 'a b%c'", refused)
        self.assertEqual(self.ctl(server, "workers", "evictions"), "no name is refused\n")
        self.ctl(server, "workers", "evict", "a b%c", "--why", "of the test")
        self.assertNotEqual(odd.exit_status(), DONE)
        self.assertRegex(self.ctl(server, "workers", "evictions"), r"a b%c +\d{4}-.* until it is allowed +.*of the test")
        self.ctl(server, "workers", "allow", "a b%c")
        self.assertEqual(json.loads(self.ctl(server, "--output", "json", "workers", "evictions")), [])

    def test_lists_are_read_to_their_end(self):
        secrets = self.folder / "operator"
        secrets.write_text("of-the-test\n")
        server = self.server("--epochs", "1", "--api.token", "of-the-test")
        for number in range(101):  # more than one page
            body = {"name": f"t{number:03}", "role": "viewer", **({"expires_seconds": 3600} if number == 100 else {})}
            fields = {"Authorization": "Bearer of-the-test", "Content-Type": "application/json"}
            request = urllib.request.Request(f"http://{server.api}/v1/tokens", json.dumps(body).encode(), fields)
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as reply:
                self.assertEqual(reply.status, 201)
        mine = ("--token-file", secrets, "--output", "json")
        self.assertEqual(len(json.loads(self.ctl(server, *mine, "tokens", "list"))), 101)
        found = {one["check"] for one in json.loads(self.ctl(server, *mine, "doctor", "--no-members"))}
        self.assertIn("token t100", found)

    def test_worker_stopped_by_a_signal_exits_as_asked(self):
        _, (first, _) = self.training()
        first.send(15)
        self.assert_status(first, STOPPED)

    def test_what_is_shown_again_and_again_outlives_a_restart_of_the_server(self):
        server, _ = self.training("--checkpoint.every-rounds", "5")
        program = [pathlib.Path(self.programs) / "centroidctl", "--server", server.api]
        with contextlib.ExitStack() as stack:
            watching = []
            for command in (["status", "--watch", "0.1"], ["--output", "json", "top", "--every", "0.1"]):
                out = stack.enter_context((self.folder / f"{len(watching)}.out").open("wb+"))
                child = stack.enter_context(subprocess.Popen([*program, *command], stdout=out, stderr=subprocess.STDOUT))
                stack.callback(child.kill)
                watching.append((child, pathlib.Path(out.name)))
            for _, shown in watching:
                wait_for(lambda shown=shown: shown.stat().st_size > 100, "the first look")
            server.kill()
            for _, shown in watching:
                wait_for(lambda shown=shown: "trying again" in shown.read_text(), "what it says without a server")
            again = self.server("--resume", "--epochs", "1000000", "--min-workers", "2", listen=server.data, api=server.api, name="again")
            again.wait_round(1)
            for child, shown in watching:
                before = shown.stat().st_size
                wait_for(lambda shown=shown, before=before: shown.stat().st_size > before + 1000, "more looks")
                self.assertIsNone(child.poll())
                self.assertNotIn("trying again", shown.read_text()[-300:])
            looks = [json.loads(line) for line in watching[1][1].read_text().splitlines() if line.startswith("{") and line.endswith("}")]
            rates = [rate for look in looks for one in (*look["workers"], look["server_stages"]) for rate in one.values() if isinstance(rate, float)]
            self.assertGreaterEqual(min(rates), 0, "the next life of the server counts from 0")
        self.ctl(f"127.0.0.1:{free_port()}", "status", "--watch", status=UNREACHABLE)

    def doctor(self, server, *arguments):
        return json.loads(self.ctl(server, "doctor", *arguments, "--output", "json"))

    def test_doctor_finds_what_is_wrong(self):
        server, workers = self.training()
        wait_for(lambda: server.post("/v1/checkpoints")[0] == 201, "a checkpoint")
        self.assertNotIn("BAD", self.ctl(server, "doctor"))
        manifest = self.checkpoints()[-1] / "manifest.json"
        manifest.write_text("{")
        self.assertIn("BAD", self.ctl(server, "doctor", status=ANSWERED_BADLY))
        manifest.unlink()
        shutil.rmtree(self.checkpoints()[-1])
        for worker in workers:
            worker.kill()
        server.wait_worker("w0", "dead")
        found = {one["check"]: one for one in json.loads(self.ctl(server, "doctor", "--output", "json"))}
        self.assertEqual(found["workers"]["verdict"], "warning")

    def test_doctor_says_what_a_crash_would_cost(self):
        server, _ = self.training()

        def found():
            return {one["check"]: one for one in json.loads(self.ctl(server, "doctor", "--no-members", "--output", "json"))}["durability"]

        self.assertEqual(found()["verdict"], "warning")
        self.assertIn("checkpoint.every_rounds", found()["do"])
        self.ctl(server, "config", "set", "checkpoint.every_rounds=1000")
        self.assertEqual(found()["verdict"], "ok")
        self.assertIn("checkpoint.every_rounds", found()["found"])

    def test_doctor_holds_nothing_against_workers_that_left_or_came_back(self):
        server, workers = self.training()

        def checks(place):
            return {one["check"]: one for one in json.loads(self.ctl(place, "doctor", "--output", "json"))}

        third = self.worker(server, "w2", "--stop-status", STOPPED)
        server.wait_worker("w2", "active")
        third.send(signal.SIGTERM)
        server.wait_worker("w2", "left")
        way = Altered(server)  # the list is of a moment before it left
        self.addCleanup(way.close)
        way.words, way.path, way.is_complete = {'"state":"left"': '"state":"active"'}, "/v1/workers", True
        # On a busy machine one of the others may be slow, which is said and right.
        self.assertNotIn("w2", checks(way.api)["members"]["found"])
        workers[0].kill()
        server.wait_worker("w0", "dead")
        self.assertIn("1 lost; w0", checks(server)["workers"]["found"])
        self.worker(server, "w0", "--stop-status", STOPPED)
        server.wait_worker("w0", "active")
        self.assertEqual(checks(server)["workers"]["found"], "2 present, 0 lost")

    def test_doctor_names_a_worker_that_hangs_and_who_waits_for_it(self):
        server, workers = self.training("--lease", "300s", "--stall-timeout", "300s")
        self.assertEqual({one["check"] for one in self.doctor(server)} & {"worker w0", "worker w1"}, set())
        workers[1].send(signal.SIGSTOP)

        def waits():
            return [wait for wait in server.get("/v1/waits")["waits"] if wait["waits_for"] == "w1" and wait["seconds"] > 2.5]

        wait_for(waits, "a round that waits for w1")
        (told,) = (one for one in self.doctor(server, "--no-members") if one["check"] == "waits")
        self.assertEqual(told["verdict"], "warning")
        self.assertRegex(told["found"], r"^round \d+ waits for w1, contribution; .* ago, [\d.]+ s$")
        found = {one["check"]: one for one in self.doctor(server)}
        self.assertEqual(found["worker w1"]["verdict"], "warning")
        self.assertRegex(found["worker w1"]["found"], r"^does not answer, silent for [\d.]+ s; a round waits for it$")
        self.assertNotIn("worker w0", found)
        way = Altered(server)  # half of the lease has passed: it need not be asked
        self.addCleanup(way.close)
        way.path, way.words = "/v1/workers", {'"silent_seconds":': '"silent_seconds":200,"was":'}
        found = {one["check"]: one for one in self.doctor(way.api)}
        self.assertRegex(found["worker w1"]["found"], r"^does not answer, silent for .*; a round waits for it$")
        self.assertNotIn("members", found)
        workers[1].send(signal.SIGCONT)

    def test_doctor_names_a_worker_that_is_lost_while_it_looks(self):
        server, workers = self.training("--lease", "6s")
        way = Altered(server)  # on a busy machine it may look when half of the lease has passed: it is to ask all the same
        self.addCleanup(way.close)
        way.path, way.words, way.is_complete = "/v1/workers", {'"silent_seconds":': '"silent_seconds":0,"was":'}, True
        workers[1].send(signal.SIGSTOP)
        found = {one["check"]: one for one in self.doctor(way.api)}
        self.assertRegex(found["worker w1"]["found"], r"^was lost while it was measured: .*silent")
        self.assertRegex(found["workers"]["found"], r"^1 present, 1 lost; w1: ")
        workers[1].send(signal.SIGCONT)

    def test_doctor_finds_a_wrong_clock_another_version_and_a_closed_port(self):
        server, _ = self.training()
        way = Altered(server)
        self.addCleanup(way.close)

        def found(check):
            return {one["check"]: one for one in json.loads(self.ctl(way.api, "doctor", "--no-members", "--output", "json"))}[check]

        for check in ("clock", "version", "data port"):
            self.assertEqual(found(check)["verdict"], "ok", found(check))
        for seconds in (100, -100):
            way.date = seconds
            clock = found("clock")
            self.assertEqual((clock["verdict"], clock["do"]), ("warning", "set both clocks by NTP"))
            self.assertAlmostEqual(float(clock["found"].split(" s ")[0]), seconds, delta=3)
        way.date = 0
        version = server.get("/version")["version"]
        way.words = {f'"version":"{version}"': '"version":"77.0.1"'}
        other = found("version")
        self.assertEqual((other["verdict"], other["found"]), ("warning", f"server 77.0.1, centroidctl {version}"))
        self.assertIn("one release", other["do"])
        closed = f"127.0.0.1:{free_port()}"
        way.words = {f'"{server.data}"': f'"{closed}"'}
        port = found("data port")
        self.assertEqual(port["verdict"], "warning")
        self.assertIn("refused", port["found"])
        self.assertIn(f"open {closed} to the workers", port["do"])

    def test_doctor_looks_at_the_way_to_each_member_at_tokens_and_at_what_is_wanted(self):
        secrets = self.folder / "operator"
        secrets.write_text("of-the-test\n")
        server = self.server("--epochs", "1000000", "--min-workers", "2", "--api.token", "of-the-test")
        for name in ("w0", "w1"):
            self.worker(server, name, *UNHURRIED)
        mine = ("--token-file", secrets, "--output", "json")
        wait_for(lambda: json.loads(self.ctl(server, *mine, "status"))["cluster"]["round"] >= 3, "round 3")
        viewer = self.folder / "viewer"
        viewer.write_text(json.loads(self.ctl(server, *mine, "tokens", "create", "eyes", "--hours", "1"))["secret"])
        self.ctl(server, *mine, "scale", "set", "5", "--why", "a fair")
        self.ctl(server, *mine, "checkpoints", "make")
        found = {one["check"]: one for one in json.loads(self.ctl(server, *mine, "doctor"))}
        self.assertRegex(found["members"]["found"], r"(2 measured from the server: at least .*/s|w[01]: .*/s between it and the server)")
        self.assertEqual((found["scale"]["verdict"], found["scale"]["found"]), ("warning", "2 workers, 5 are requested (a fair)"))
        self.assertIn("start 3 more", found["scale"]["do"])
        self.assertRegex(found["token eyes"]["found"], "expires in")
        self.assertNotIn("members", {one["check"] for one in json.loads(self.ctl(server, *mine, "doctor", "--no-members"))})
        theirs = {one["check"]: one for one in json.loads(self.ctl(server, "--token-file", viewer, "--output", "json", "doctor"))}
        self.assertIn("role admin", theirs["members"]["found"])

    def test_doctor_measures_from_worker_to_worker_while_they_train(self):
        server = self.server("--epochs", "1000000", "--min-workers", "3", "--exchange", "ring")
        for name in ("w0", "w1", "w2"):
            self.worker(server, name, "--exchange", "ring", *UNHURRIED)
        server.wait_round(3)
        generation = server.cluster()["generation"]
        checks = json.loads(self.ctl(server, "doctor", "--output", "json"))
        ways = [one["found"] for one in checks if one["check"] == "way"]
        self.assertEqual(len(ways), 5, ways)  # the slowest
        for way in ways:
            self.assertRegex(way, r"^w\d -> w\d: .*/s, .* a round trip$")
        found = {one["check"]: one for one in checks}
        self.assertRegex(found["ways"]["found"], r"^6 of 6 from worker to worker measured, the slowest 5 shown; the median is .*/s$")
        self.assertRegex(found["workers"]["found"], "3 present, 0 lost")
        server.wait_more_rounds()
        self.assertEqual(server.cluster()["generation"], generation)  # nobody was lost for it
        self.assertRegex(self.ctl(server, "doctor"), r"way +w\d -> w\d: ")

    def test_a_path_that_no_data_takes_is_not_measured(self):
        server, _ = self.training()
        members = {worker["name"]: worker["member"] for worker in server.workers()}

        def measure(whom, to):
            body = json.dumps({"to": to}).encode()
            request = urllib.request.Request(f"http://{server.api}/v1/workers/{whom}:measure", body, {"Content-Type": "application/json"})
            with self.assertRaises(urllib.error.HTTPError) as refused:
                urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60)
            with refused.exception as answer:
                return answer.code, json.load(answer)["detail"]

        status, why = measure(members["w0"], members["w1"])
        self.assertEqual((status, why[:36]), (409, "worker 'w1' listens to no others: wi"))
        self.assertEqual(measure(members["w0"], members["w0"])[0], 409)
        self.assertEqual(measure(members["w0"], 99999)[0], 404)

    def test_doctor_looks_at_programs_clocks_and_the_disk(self):
        server, _ = self.training()
        wait_for(lambda: all(worker["version"] for worker in server.workers()), "the first heartbeats")
        for worker in server.workers():
            self.assertLess(abs(worker["clock_ahead_seconds"]), 5)
        altered = Altered(server)
        self.addCleanup(altered.close)

        def doctor():
            return {one["check"]: one for one in json.loads(self.ctl(altered, "doctor", "--no-members", "--output", "json"))}

        found = doctor()
        self.assertEqual((found["disk"]["verdict"], found["members' programs"]["verdict"]), ("ok", "ok"))
        altered.path = "/v1/workers"  # servers of a model have clocks too
        altered.words = {'"clock_ahead_seconds":': '"clock_ahead_seconds":60,"was":'}
        self.assertRegex(doctor()["clock"]["found"], r"worker w\d: its clock is (1 min|60).* ahead of the server's")
        version = server.workers("w0")[0]["version"]
        altered.words = {f'"version":"{version}","clock': '"version":"0.0.1","clock'}
        self.assertRegex(doctor()["version"]["found"], r"worker w\d is 0\.0\.1, the server " + re.escape(version))
        altered.path = "/v1/servers"
        altered.words = {'"clock_ahead_seconds":': '"clock_ahead_seconds":60,"was":'}
        self.assertRegex(doctor()["clock"]["found"], r"server leader: its clock is (1 min|60).* ahead of the server's")
        altered.path = "/v1/host"
        altered.words = {'"free_bytes":': '"free_bytes":5,"was":'}
        self.assertEqual(doctor()["disk"]["verdict"], "warning")

    def test_doctor_looks_at_every_server_of_the_model(self):
        server = self.server("--servers", "2", "--chunk-bytes", "1024")
        places = ["--join", server.data, "--name", "b", "--listen", "127.0.0.1:0"]
        other = self._start(Process, "centroid-server", "b", places, None)
        self.worker(server, "w0", *UNHURRIED)
        server.wait_round(3)
        found = {one["check"]: one for one in json.loads(self.ctl(server, "doctor", "--output", "json"))}
        self.assertEqual(found["server b"]["verdict"], "ok")
        self.assertIn("a round trip", found["server b network"]["found"])
        self.assertRegex(self.ctl(server, "servers"), r"b +serving")
        other.send(19)  # SIGSTOP: its port takes connections, and nobody answers
        found = {one["check"]: one for one in json.loads(self.ctl(server, "doctor", "--no-members", "--output", "json"))}
        self.assertIn("not measured", found["server b network"]["found"])
        other.send(18)

    def test_doctor_looks_at_the_disks_of_shard_servers(self):
        server = self.server("--servers", "2", "--chunk-bytes", "1024", "--journal.mode", "on")
        self._start(Process, "centroid-server", "b", ["--join", server.data, "--name", "b", "--listen", "127.0.0.1:0", "--journal.dir", str(self.folder / "b")], None)
        self.worker(server, "w0", *UNHURRIED)

        def told():
            return {one["name"]: one["disk_total_bytes"] for one in server.get("/v1/servers")["servers"]}

        size = os.statvfs(self.folder)
        wait_for(lambda: told().get("b"), "what the shard server tells of its disk")
        self.assertEqual(told(), {"leader": None, "b": size.f_blocks * size.f_frsize})
        altered = Altered(server)
        self.addCleanup(altered.close)
        altered.path = "/v1/servers"

        def disk(free):
            altered.words = {} if free is None else {'"disk_free_bytes":': f'"disk_free_bytes":{free},"was":', '"journal_bytes":': '"journal_bytes":900000,"had":'}
            status = FAILED if free == 1 else DONE
            found = json.loads(self.ctl(altered, "doctor", "--no-members", "--output", "json", status=status))
            return next(one for one in found if one["check"] == "disk" and "server b: " in one["found"])

        self.assertEqual(disk(None)["verdict"], "ok")
        self.assertEqual(disk(1)["verdict"], "bad")  # not one round more
        self.assertEqual(disk(800000)["verdict"], "warning")
        self.assertIn("checkpoint more often", disk(1)["do"])

    def test_checkpoints_are_listed_and_verified_by_the_server_and_in_a_folder(self):
        server, _ = self.training()
        made = json.loads(self.ctl(server, "checkpoints", "make", "--output", "json"))
        listed = json.loads(self.ctl(server, "checkpoints", "list", "--output", "json"))["checkpoints"]
        self.assertIn(made["version"], [one["version"] for one in listed])
        self.assertIn(str(made["path"]), self.ctl(server, "checkpoints", "list"))
        self.assertIn("is sound", self.ctl(server, "checkpoints", "verify", made["version"]))
        self.assertIn("version 99", self.ctl(server, "checkpoints", "verify", "99999", status=ANSWERED_BADLY))
        folder = self.folder / "run" / "checkpoints"
        self.assertIn("sound", self.ctl(None, "checkpoints", "verify", folder))
        local = json.loads(self.ctl(None, "checkpoints", "list", folder, "--output", "json"))["checkpoints"]
        self.assertIn(made["path"], [one["path"] for one in local])
        model = self.folder / "model.safetensors"
        self.ctl(None, "checkpoints", "export", folder, "--to", model)
        self.assertGreater(model.stat().st_size, 1000)
        (pathlib.Path(made["path"]) / "model.safetensors").write_bytes(b"x")
        self.assertIn(str(made["version"]), self.ctl(server, "checkpoints", "verify", made["version"], status=ANSWERED_BADLY))
        self.assertIn("DAMAGED", self.ctl(None, "checkpoints", "verify", folder, status=ANSWERED_BADLY))

    def on_a_terminal(self, *arguments, **variables):
        """What it writes to a terminal."""
        near, far = pty.openpty()
        program = [str(pathlib.Path(self.programs) / "centroidctl"), *map(str, arguments)]
        with subprocess.Popen(program, stdout=far, env={**os.environ, "TERM": "xterm", **variables}) as child:
            os.close(far)
            text = b""
            with contextlib.suppress(OSError):  # the end of a terminal is an error
                while piece := os.read(near, 65536):
                    text += piece
            os.close(near)
        self.assertEqual(child.returncode, DONE, text)
        return text.decode()

    def test_a_terminal_gets_colours_and_is_drawn_anew(self):
        server, _ = self.training()
        watch = ("--server", server.api, "status", "--watch", "0.1", "--count", "3")
        text = self.on_a_terminal(*watch)
        self.assertEqual(text.count("\033[H\033[2J"), 3)
        self.assertIn("\033[3", text)
        self.assertNotIn("\033", self.on_a_terminal(*watch, NO_COLOR="1"))
        self.assertNotIn("\033", self.on_a_terminal("--no-color", *watch))

    def test_a_server_at_an_address_of_ipv6(self):
        try:
            with socket.socket(socket.AF_INET6) as probe:
                probe.bind(("::1", 0))
        except OSError:
            self.skipTest("this machine has no IPv6")
        server = self.server(api="[::1]:0")
        self.assertIn("waiting", self.ctl(f"http://[::1]:{server.api.rpartition(':')[2]}", "status"))

    def test_top_tells_what_each_worker_does(self):
        server, _ = self.training()
        looks = [json.loads(line) for line in self.ctl(server, "top", "--every", "2", "--count", "2", "--output", "json").splitlines()]
        self.assertEqual([worker["samples_per_second"] for worker in looks[0]["workers"]], [0, 0])  # nothing to compare with yet
        for worker in looks[1]["workers"]:
            self.assertGreater(worker["samples_per_second"], 0)
            self.assertGreater(worker["compute_seconds"], 0)
            self.assertGreater(worker["bytes_out_per_second"], 0)
        self.assertIn("aggregate", looks[1]["server_stages"])
        text = self.ctl(server, "top", "--every", "0.2", "--count", "2", "--sort", "name")
        self.assertRegex(text, r"w0 +active")
        self.assertRegex(text.splitlines()[-2] + text.splitlines()[-1], r"w0 .*w1 ")

    def test_bench_measures_the_way_to_the_server_and_to_another_machine(self):
        token = self.folder / "token"
        token.write_text("of-workers\n")
        server = self.server("--token", "of-workers")
        self.assertIn("token", self.ctl(server, "bench", "--seconds", "0.3", status=ANSWERED_BADLY))
        found = json.loads(self.ctl(server, "bench", "--seconds", "0.3", "--worker-token-file", token, "--output", "json"))
        self.assertGreater(found["round_trips"], 10)
        self.assertGreater(found["bytes_per_second_out"], 1e6)
        self.assertGreater(found["bytes_per_second_in"], 1e6)
        self.assertLessEqual(found["median_seconds"], found["p99_seconds"])
        self.assertIn("a round trip", self.ctl(server, "doctor", "--worker-token-file", token))

    def test_names_control_no_terminal_and_turn_no_line_around(self):
        server = self.server()
        peer = Peer(server.data, "w\u202e\x1b[2J\u2066\u0085\u200f\u00e9")
        peer.model = "mlp\nstate      \x1b[2Jhalted"
        peer.join()
        wait_for(server.workers, "the worker")
        self.assertIn("w??[2J???\u00e9", self.ctl(server, "workers"))
        self.assertIn("mlp?state      ?[2Jhalted", self.ctl(server, "status"))
        said = self.ctl(server, "workers", "--output", "json")
        self.assertTrue(said.isascii() and said.strip().isprintable(), said)
        self.assertEqual([one["name"] for one in json.loads(said)["workers"]], ["w\u202e\x1b[2J\u2066\u0085\u200f\u00e9"])
        peer.close()

    def test_doctor_is_no_stranger_in_the_log_of_the_server(self):
        token = self.folder / "token"
        token.write_text("of-workers\n")
        server = self.server("--token", "of-workers")
        with_token = {one["check"]: one for one in self.doctor(server, "--worker-token-file", token)}
        self.assertIn("a round trip", with_token["network"]["found"])
        without = {one["check"]: one for one in self.doctor(server)}
        self.assertEqual((without["data port"]["verdict"], without["network"]["found"]), ("ok", "not measured: workers show a token"))
        self.assertIn("--worker-token-file", without["network"]["do"])
        with socket.create_connection(server.data.rsplit(":", 1), 10) as stranger:
            stranger.sendall(b"C")  # after these it is the first that is told
        refused = server.wait_event("connection.refused")
        self.assertIn("in the middle of a frame", refused["why"])
        self.assertEqual(server.metric("centroid_server_handshakes_refused_total"), 1)
        self.assertEqual(len(server.events("connection.refused")), 1)

    def test_bench_between_two_machines(self):
        program = [pathlib.Path(self.programs) / "centroidctl", "bench", "--listen", "127.0.0.1:0"]
        with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as other:
            where = other.stdout.readline().split()[2].rstrip(";")
            self.assertIn("round trip", self.ctl(None, "bench", where, "--seconds", "0.3", "--bytes", "4096"))
            other.terminate()
            self.assertEqual(other.wait(10), DONE)
        self.assertIn(where, self.ctl(None, "bench", where, status=UNREACHABLE))

    def test_token_is_asked_for_and_taken(self):
        secret = self.folder / "api-token"
        secret.write_text("let-me-in\n")
        server = self.server("--api.token", "let-me-in")
        self.assertIn("--token-file", self.ctl(server, "status", status=ANSWERED_BADLY))
        self.assertIn('"state"', self.ctl(server, "--token-file", secret, "status", "--output", "json"))

    def test_what_cannot_be_asked_is_told_apart(self):
        nobody = f"127.0.0.1:{free_port()}"
        self.assertIn("refused", self.ctl(nobody, "status", status=UNREACHABLE))
        self.assertIn("BAD", self.ctl(nobody, "doctor", status=UNREACHABLE))
        self.assertIn("HOST:PORT", self.ctl("nonsense", "status", status=USAGE))
        self.ctl(None, "statsu", status=USAGE)

    def test_probe_tells_good_from_bad(self):
        server = self.server()
        self.ctl(None, "probe", f"http://{server.api}/healthz")
        self.assertIn("no such path", self.ctl(None, "probe", f"http://{server.api}/nix", status=ANSWERED_BADLY))

    def commands(self, *path):
        """Every command below this one, with its flags, as --help tells them."""
        text = self.ctl(None, *path, "--help")
        flags = set(re.findall(r"(?<![\w-])--[a-z][a-z.-]*[a-z]", text.split("Subcommands:")[0].split("\n", 2)[2]))
        yield path, flags - {"--help", "--version"}
        for line in text.partition("Subcommands:")[2].splitlines():
            if found := re.match(r"  ([a-z]+)\b", line):
                yield from self.commands(*path, found[1])

    def test_completion_and_guide_know_every_command_and_option(self):
        completion = self.ctl(None, "completion", "bash")
        guide = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "how-to" / "monitor.md").read_text()
        found = list(self.commands())
        self.assertGreater(len(found), 15)
        for path, flags in found:
            with self.subTest(" ".join(path)):
                words = re.search(rf"'{' '.join(('centroidctl', *path))}'\) words='([^']*)'", completion)
                self.assertTrue(words, "is in no case of the completion")
                for flag in flags:
                    self.assertIn(flag, words[1].split())
                if path:
                    self.assertIn(path[0], guide)
                    self.assertIn(path[-1], guide)
        script = self.folder / "completion"
        script.write_text(completion)
        typed = f"source {script}; COMP_WORDS=(centroidctl job re) COMP_CWORD=2; _centroidctl; echo ${{COMPREPLY[@]}}"
        done = subprocess.run(["bash", "-c", typed], capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout.split(), ["resume"])


if __name__ == "__main__":
    main(at_a_time=3)
