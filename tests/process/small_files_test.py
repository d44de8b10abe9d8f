"""Files beside checkpoints and journals, of programs that are killed (-9) at every point where they write them: what was
acknowledged is there, what was being written is wholly there or wholly not, and nothing is in the way of the next start.
small_files_test.py BIN_DIR
"""

import http.client
import json
import pathlib
import signal
import subprocess
import sys
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import ROOT, fault_points
from harness.cluster import DONE, ClusterTest, Server, free_port, main, wait_for
from harness.ctl import Altered
from harness.etcd import ETCD, Etcd

MOST = 12  # times that a point is reached in one of these tests
OPERATOR = "operator-secret"
TESTED = ("adapters.", "endpoints.", "feedback.", "fetch.", "operator.", "term.", "tokens.")


def points(begin):
    return sorted(name for name in fault_points.owned_by("small_files_test.py") if name.startswith(begin))


def fault(place):
    return {"CENTROID_TEST_FAULT": place}


class SmallFilesTest(ClusterTest):
    def at_each(self, names, attempt, most=MOST):
        """`attempt(run, point, fault)` for each time that each point is reached; false: the program was not killed, so that was all."""
        self.assertTrue(names)
        for name in names:
            for count in range(1, most + 1):
                with self.subTest(point=name, count=count):
                    was_killed = attempt(f"{name}-{count}", name, f"{name}:{count}")
                    self.end_all()
                    if not was_killed:
                        self.assertGreater(count, 1, "it was never reached")
                        break

    def ask(self, server, method, path, body=None, token=None):
        """Status, fields and JSON of one call; None: the server was killed over it."""
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{server.api}{path}", data=data, method=method, headers=headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=60) as reply:
                return reply.status, reply.headers, json.loads(reply.read() or "{}")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, json.loads(error.read() or "{}")
        except (OSError, http.client.HTTPException):
            self.assert_killed(server)
            return None

    def assert_killed(self, program):
        self.assertEqual(program.exit_status(), -signal.SIGKILL, program.text())

    def drafts(self, run):
        return sorted(path for path in (self.folder / run).rglob("*.tmp*") if not path.name.startswith(".tmp-"))

    def is_killed_at_start(self, program):
        """Whether it ends by the fault before it is ready."""
        wait_for(lambda: not program.is_running() or program.events("server.initialized"), "a server that is ready, or killed")
        if program.is_running():
            return False
        self.assert_killed(program)
        return True


class EveryPoint(unittest.TestCase):
    def test_has_a_test(self):
        owned = fault_points.owned_by("small_files_test.py")
        self.assertEqual({name for name in owned if name.startswith(TESTED)}, owned)
        for begin in TESTED:
            self.assertTrue(points(begin), f"nothing is killed at {begin}*")


class Operators(SmallFilesTest):
    """operator.json"""

    def acts(self, server):
        return {
            "scale": lambda: self.ask(server, "POST", "/v1/scale", {"workers": 5, "why": "more"}),
            "setting": lambda: self.ask(server, "PATCH", "/v1/config", {"checkpoint.keep": 7}),
            "pause": lambda: self.ask(server, "POST", "/v1/job:pause"),
            "evict": lambda: self.ask(server, "POST", f"/v1/workers/{server.workers('w')[0]['member']}:evict", {"why": "its disk"}),
        }

    def held(self, server):
        """Which of them it knows."""
        known = {
            "scale": (server.get("/v1/scale")["hint"] or {}).get("workers") == 5,
            "setting": server.get("/v1/config")["checkpoint.keep"]["value"] == 7,
            "pause": server.cluster()["state"] == "paused",
            "evict": [one["name"] for one in server.get("/v1/evictions")["evictions"]] == ["w"],
        }
        return {name for name, is_known in known.items() if is_known}

    def attempt(self, run, point, place):
        server = self.server("--run-id", "r", run=run, name=f"{run}-a", environment=fault(place))
        self.worker(server, "w")
        server.wait_round(2)
        self.assertEqual(self.ask(server, "POST", "/v1/checkpoints")[0], 201)
        done, killed_over = set(), None
        for name, act in self.acts(server).items():
            answer = act()
            if answer is None:
                killed_over = name
                break
            self.assertIn(answer[0], (200, 202), answer)
            done.add(name)
        if killed_over is None:
            self.assertEqual(len(done), 4)
            return False
        self.assertLessEqual(len(self.drafts(run)), 1)
        again = self.server("--run-id", "r", "--resume", run=run, name=f"{run}-b")
        is_there = {killed_over} if point.endswith("renamed") else set()
        self.assertEqual(self.held(again), done | is_there, f"killed over {killed_over}")
        self.assertEqual(self.ask(again, "POST", "/v1/scale", {"workers": 9})[0], 200)
        self.assertEqual(self.drafts(run), [])
        again.kill()
        third = self.server("--run-id", "r", "--resume", run=run, name=f"{run}-c")
        self.assertEqual(self.held(third) | {"scale"}, done | is_there | {"scale"})
        self.assertEqual(third.get("/v1/scale")["hint"]["workers"], 9)
        return True

    def test_what_was_asked_for_is_known_or_was_never_said(self):
        self.at_each(points("operator."), self.attempt)


class Tokens(SmallFilesTest):
    """tokens.json"""

    ACTS = (("POST", "a"), ("POST", "b"), ("DELETE", "a"), ("POST", "c"))

    def do(self, server, method, name):
        if method == "POST":
            return self.ask(server, "POST", "/v1/tokens", {"name": name, "role": "viewer"}, OPERATOR)
        return self.ask(server, "DELETE", f"/v1/tokens/{name}", None, OPERATOR)

    def names(self, server):
        return {one["name"] for one in self.ask(server, "GET", "/v1/tokens", token=OPERATOR)[2]["tokens"]}

    def attempt(self, run, point, place):
        server = self.server("--api.token", OPERATOR, run=run, name=f"{run}-a", environment=fault(place))
        secrets, revoked, killed_over = {}, {}, None
        for number, (method, name) in enumerate(self.ACTS):
            answer = self.do(server, method, name)
            if answer is None:
                killed_over = number
                break
            self.assertIn(answer[0], (200, 201), answer)
            if method == "POST":
                secrets[name] = answer[2]["secret"]
            else:
                revoked[name] = secrets.pop(name)
        if killed_over is None:
            return False
        for path in [*self.drafts(run), *(self.folder / run).glob("tokens.json")]:
            self.assertEqual(path.stat().st_mode & 0o777, 0o600, path)
        again = self.server("--api.token", OPERATOR, "--resume", run=run, name=f"{run}-b")
        method, name = self.ACTS[killed_over]
        expected = set(secrets)
        if point.endswith("renamed"):
            expected = expected | {name} if method == "POST" else expected - {name}
        self.assertEqual(self.names(again), expected, f"killed over {method} {name}")
        for there, secret in secrets.items():
            self.assertEqual(self.ask(again, "GET", "/v1/cluster", token=secret)[0], 200 if there in expected else 401)
        for secret in revoked.values():
            self.assertEqual(self.ask(again, "GET", "/v1/cluster", token=secret)[0], 401)
        was_done = point.endswith("renamed")
        status = self.do(again, method, name)[0]  # a client that repeats the request
        self.assertEqual(status, (409 if was_done else 201) if method == "POST" else (404 if was_done else 200))
        expected = expected | {name} if method == "POST" else expected - {name}
        self.assertEqual(self.do(again, "POST", "d")[0], 201)
        self.assertEqual(self.names(again), expected | {"d"})
        self.assertEqual(self.drafts(run), [])
        return True

    def test_a_token_is_there_or_not_and_stays_revoked(self):
        self.at_each(points("tokens."), self.attempt)


class Endpoints(SmallFilesTest):
    def start(self, run, name, file, environment=None):
        places = ["--listen", "127.0.0.1:0", "--api.listen", "127.0.0.1:0", "--run-dir", self.folder / run, "--endpoints-file", file]
        return self._start(Server, "centroid-server", f"{run}-{name}", [*places, "--resume"], environment, file)

    def attempt(self, run, point, place):
        file = self.folder / f"{run}.json"
        first = self.start(run, "a", file).wait_ready()
        first.kill()
        second = self.start(run, "b", file, fault(place))
        if not self.is_killed_at_start(second):
            return False
        self.assertEqual(json.loads(file.read_text())["pid"], second.pid if point.endswith("renamed") else first.pid)
        third = self.start(run, "c", file)
        third.wait_event("server.initialized")
        self.assertEqual(json.loads(file.read_text())["pid"], third.pid)
        self.assertEqual(list(self.folder.glob("*.tmp*")), [])
        return True

    def test_the_file_names_a_server_wholly(self):
        self.at_each(points("endpoints."), self.attempt)


@unittest.skipIf(ETCD is None, "etcd is not installed (package etcd-server)")
class Term(SmallFilesTest):
    """term.json"""

    def attempt(self, run, point, place):
        common = ["--etcd.endpoints", self.etcd.url, "--cluster", run, "--name", "a", "--optimizer", "sgd", "--lr", "0.05"]
        folder = self.folder / run / "checkpoints"
        for number in range(2):  # what is left over does not pile up
            server = self.launch_server(*common, run=run, name=f"{run}-{number}", environment=fault(place))
            wait_for(lambda server=server: not server.is_running() or server.events("leader.started"), "a leader, or a killed one")
            if server.is_running():
                return False
            self.assert_killed(server)
            self.assertLessEqual(len(self.drafts(run)), 1)
            self.assertEqual((folder / "term.json").exists(), point.endswith("renamed"))
        again = self.server(*common, run=run, name=f"{run}-c")
        term = again.wait_cluster("a leader", lambda view: view["role"] == "leader")["term"]
        self.assertEqual(json.loads((folder / "term.json").read_text()), {"server": "a", "term": term})
        self.assertEqual(self.drafts(run), [])
        return True

    def test_a_leader_that_is_killed_over_its_term_leads_again(self):
        self.etcd = Etcd(self.folder, free_port(), free_port())
        self.addCleanup(self.etcd.kill)
        self.at_each(points("term."), self.attempt)


class Feedback(SmallFilesTest):
    """What a worker's codec has left out: its state folder, and the file `left` there."""

    STATE = ("folder_made", "file_torn", "file_written", "manifest_written", "renamed", "published", "old_renamed")
    CODEC = "topk:0.05,momentum=0.5"

    def begin(self, run, place, rounds):
        goal = ["--min-workers", 1, "--rounds", rounds, "--exit-when-finished", "--checkpoint.every-rounds", 5]
        server = self.server(*goal, run=run, name=f"{run}-server")
        return server, self.join(server, run, fault(place))

    def join(self, server, run, environment=None):
        return self.worker(server, run, "--codec", self.CODEC, "--state-dir", self.folder / "state" / run, environment=environment)

    def end(self, server, run):
        """The worker that comes back, at the job's end."""
        again = self.join(server, run)
        self.assert_exit(DONE, again, server)
        told = again.events("feedback.restored") + again.events("feedback.reset")
        self.assertEqual(len(told), 1, told)
        self.assertNotIn("refused", told[0].get("why", ""))
        self.assertEqual(again.events("feedback.save_failed"), [])
        (folder,) = (self.folder / "state" / run).iterdir()
        states = list(folder.glob("checkpoint-*"))
        self.assertTrue(1 <= len(states) <= 3, states)
        self.assertEqual({path.name for path in folder.iterdir()} - {path.name for path in states}, {"left"})
        return told[0]

    def attempt_left(self, run, point, place):
        server, worker = self.begin(run, place, 1_000_000)
        server.wait_round(8)
        self.assertEqual(server.post("/v1/job:pause")[0], 202)
        committed = server.wait_cluster("a pause", lambda view: view["state"] == "paused")["version"] - 1
        worker.send(signal.SIGTERM)
        if worker.exit_status() != -signal.SIGKILL:
            return False
        (folder,) = (self.folder / "state" / run).iterdir()
        self.assertEqual((folder / "left").exists(), point.endswith("renamed"))
        self.assertEqual(server.post("/v1/job:resume")[0], 202)
        again = self.join(server, run)
        server.wait_round(committed + 10)
        self.assertEqual([event["after_round"] for event in again.events("feedback.restored")], [committed])
        again.send(signal.SIGTERM)  # and it may leave again
        again.exit_status()
        self.assertRegex((folder / "left").read_text(), r"^[0-9]+\n$")
        self.assertEqual(self.drafts("state"), [])
        server.post("/v1/job:stop")
        return True

    def attempt_state(self, run, point, place):
        server, worker = self.begin(run, place, 60)
        if worker.exit_status() != -signal.SIGKILL:
            self.assert_exit(DONE, worker, server)
            return False
        self.end(server, run)
        return True

    def test_a_worker_that_is_killed_as_it_leaves_goes_on_with_what_it_left_out(self):
        self.at_each(points("feedback."), self.attempt_left, 2)

    def test_a_worker_that_is_killed_over_its_state_trains_to_the_end(self):
        self.at_each([f"checkpoint.{name}" for name in self.STATE], self.attempt_state, 2)


class Fetch(SmallFilesTest):
    """`checkpoints get`"""

    PIECE = 8 << 20

    def get(self, api, folder, environment=None):
        command = [pathlib.Path(self.programs) / "centroidctl", "--server", api, "checkpoints", "get", self.version, "--to", folder]
        inherited = {"PATH": "/usr/bin:/bin", **(environment or {})}
        return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, check=False, env=inherited)

    def attempt(self, run, point, place):
        folder = self.folder / run
        name = f"checkpoint-{self.version:012}"
        begun, target = folder / f".{name}.part", folder / name
        first = self.get(self.server_api, folder, fault(place))
        if first.returncode == 0:
            return False
        self.assertEqual(first.returncode, -signal.SIGKILL, first.stdout + first.stderr)
        if point == "fetch.renamed":
            self.assertEqual({path.name: path.read_bytes() for path in target.iterdir()}, self.whole)
            self.assertIn("is there already", self.get(self.server_api, folder).stderr)
            return True
        self.assertFalse(target.exists())
        there = {path.name: path.stat().st_size for path in begun.iterdir()}
        self.paths.clear()
        again = self.get(self.way.api, folder)
        self.assertEqual(again.returncode, DONE, again.stdout + again.stderr)
        self.assertEqual({path.name: path.read_bytes() for path in target.iterdir()}, self.whole)
        self.assertFalse(begun.exists())
        for file, text in self.whole.items():
            asked = sum(path.endswith(f"/files/{file}") for path in self.paths)
            left = len(text) - there.get(file, 0)
            self.assertEqual(asked, -(-left // self.PIECE), f"{file}: {left} of {len(text)} bytes were left")
        return True

    def test_begun_again_it_goes_on_where_it_was(self):
        server = self.server()
        worker = self.worker(server, "w", model="mlp:64-2000-1200-10")
        server.wait_round(2)
        self.version = self.ask(server, "POST", "/v1/checkpoints")[2]["version"]
        worker.kill()
        source = self.folder / "run" / "checkpoints" / f"checkpoint-{self.version:012}"
        self.whole = {path.name: path.read_bytes() for path in source.iterdir()}
        self.assertGreater(max(map(len, self.whole.values())), self.PIECE)
        self.server_api, self.paths, self.way = server.api, [], Altered(server)
        self.addCleanup(self.way.close)
        self.way.before = self.paths.append
        self.processes.remove(server)  # it stays for all of them
        self.addCleanup(server.kill)
        self.at_each(points("fetch."), self.attempt)


class Adapters(SmallFilesTest):
    """adapter_model.safetensors and adapter_config.json"""

    SHAPE = "transformer:layers=1,width=16,heads=2,context=8"
    TEXT = f"text:{ROOT}/LICENSE"

    def alone(self, name, *arguments, model, environment=None):
        flags = ["--exchange", "local", "--optimizer", "adamw", "--lr", "0.01", "--rounds", 2, "--data", self.TEXT]
        return self.worker("127.0.0.1:1", name, *flags, *arguments, model=model, batch=4, environment=environment)

    def attempt(self, run, point, place):
        saved = self.folder / run
        old, new = (f"{self.SHAPE},lora=2,lora_alpha={alpha},lora_targets=q_proj" for alpha in (4, 8))

        def save(name, model, environment=None):
            return self.alone(f"{run}-{name}", *self.base, "--adapter.save", saved, model=model, environment=environment)

        self.assert_exit(DONE, save("a", old))
        worker = save("b", new, fault(place))
        if worker.exit_status() != -signal.SIGKILL:
            return False
        loads = []
        for model in (old, new):
            loaded = self.alone(f"{run}-load{len(loads)}", *self.base, "--adapter.load", saved, model=model)
            loads.append(loaded.exit_status() == DONE)
            if not loads[-1] and point not in ("adapters.undescribed", "adapters.tensors_renamed"):
                self.assertIn("lora_alpha", loaded.text())
        expected = {"adapters.drafted": [True, False], "adapters.renamed": [False, True]}
        self.assertEqual(loads, expected.get(point, [False, False]), "taken for other adapters")
        self.assert_exit(DONE, save("c", new))
        self.assert_exit(DONE, self.alone(f"{run}-d", *self.base, "--adapter.load", saved, model=new))
        return True

    def test_they_are_never_described_as_others(self):
        folder = self.folder / "base"
        self.assert_exit(DONE, self.alone("base-worker", "--checkpoint.dir", folder, model=self.SHAPE))
        self.base = ["--base-weights", next(folder.glob("checkpoint-*")) / "model.safetensors"]
        self.at_each(points("adapters."), self.attempt, 2)


if __name__ == "__main__":
    main(at_a_time=3)
