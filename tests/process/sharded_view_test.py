"""What ranks of exchange sharded show: metrics, probes, /v1/sharded, centroidctl top. sharded_view_test.py BIN_DIR"""

import contextlib
import http.client
import json
import pathlib
import signal
import socket
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import DONE, FAILED, free_port, main, wait_for
from harness.ctl import UNREACHABLE, CtlTest
from harness.sharded import Sharded

LISTEN = ("--metrics.listen", "127.0.0.1:0")
TRANSFORMER = "transformer:layers=2,width=16,heads=2,context=64,vocabulary=17,classes=10,tied=no"
PARAMETERS = 64 * 16 + 16 + 16 * 10 + 10  # of the harness's model
OPERATIONS = {"gather", "reduce", "copy", "activations", "agree"}


def place_of(worker):
    return worker.wait_event("worker.metrics_opened")["endpoint"]


def total(view, *names):
    """The sum over ranks of a number, or of one within an object."""
    found = 0
    for rank in view["ranks"]:
        for name in names:
            rank = rank[name]
        found += rank
    return found


class Views(Sharded, CtlTest):
    def ask(self, place, path, method="GET"):
        with contextlib.closing(http.client.HTTPConnection(place, timeout=20)) as connection:
            connection.request(method, path)
            reply = connection.getresponse()
            return reply.status, reply.read().decode()

    def view(self, place):
        status, text = self.ask(place, "/v1/sharded")
        self.assertEqual(status, 200, text)
        return json.loads(text)

    def metrics(self, place):
        text = self.ask(place, "/metrics")[1]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))}

    def wait_view(self, place, what, condition):
        return wait_for(lambda: next(filter(condition, [self.view(place)]), None), what)

    def wait_steps(self, place, world):
        """The view, when every one of so many ranks has told its numbers."""
        return self.wait_view(place, f"numbers of {world} ranks", lambda view: [rank["steps"] > 0 for rank in view["ranks"]] == [True] * world)

    def start(self, rank, place, world, *arguments, name=None, **settings):
        flags = ["--exchange", "sharded", "--world", world, "--rendezvous", place, "--rank", rank, *LISTEN, *arguments]
        return self.worker("127.0.0.1:1", name or f"r{rank}", *flags, **settings)

    def assert_has_parts(self, view, world):
        """Ranks have the whole model together, and each a copy of the shard before its own."""
        ranks = view["ranks"]
        self.assertEqual([rank["rank"] for rank in ranks], list(range(world)))
        self.assertEqual([(rank["shard"], rank["shards"]) for rank in ranks], [(rank, world) for rank in range(world)])
        self.assertEqual(total(view, "elements"), PARAMETERS)
        copies = [(rank - 1) % world if world > 2 else None for rank in range(world)]
        self.assertEqual([rank["copied_shard"] for rank in ranks], copies)

    def test_ranks_show_who_has_what_and_who_is_lost_and_comes_back(self):
        place = f"127.0.0.1:{free_port()}"
        flags = ["--optimizer", "adam", "--epochs", 1_000_000, "--token", "a-secret", "--join-timeout", "60s"]
        workers = [self.start(rank, place, 3, *flags) for rank in range(3)]
        places = [place_of(worker) for worker in workers]
        view = self.wait_steps(places[1], 3)
        self.assertEqual((view["state"], view["rank"], view["world"], view["missing"], view["changes"]), ("training", 1, 3, 0, []))
        self.assertEqual([(rank["worker"], rank["name"]) for rank in view["ranks"]], [(0, "r0"), (1, "r1"), (2, "r2")])
        self.assert_has_parts(view, 3)
        for rank in view["ranks"]:
            with self.subTest(rank=rank["rank"]):
                # Each step reduces the whole gradient: all but the own part comes from others. A rank gathers the parameters once at least.
                self.assertEqual(rank["received_bytes"]["reduce"], rank["steps"] * 4 * (PARAMETERS - rank["elements"]))
                self.assertGreaterEqual(rank["received_bytes"]["gather"], rank["received_bytes"]["reduce"])
                copied = view["ranks"][rank["copied_shard"]]["elements"]
                self.assertEqual(rank["received_bytes"]["copy"], rank["steps"] * 4 * copied)
                self.assertGreater(rank["bytes_in"], sum(rank["received_bytes"].values()))
                self.assertEqual(rank["wait_seconds"].keys(), OPERATIONS)
                explained = rank["compute_seconds"] + sum(rank["wait_seconds"].values())  # waits are of evaluations, too
                self.assertGreater(explained, rank["seconds"] - 1e-6 * rank["steps"])
                memory = rank["memory_bytes"]
                self.assertGreaterEqual(memory["parameters"], 4 * PARAMETERS)  # the model is one unit
                self.assertEqual(memory["state"], 2 * 4 * (rank["elements"] + copied))
                self.assertGreater(min(memory.values()), 0)
                self.assertEqual(rank["bubble_ratio"], 0)
        one, another = (self.wait_steps(place, 3) for place in (places[0], places[2]))
        self.assertEqual((one["rank"], another["rank"]), (0, 2))
        seen = self.metrics(places[1])
        self.assertEqual(seen["centroid_worker_world_members"], 3)
        self.assertEqual(seen["centroid_worker_rank_number"], 1)
        self.assertEqual(seen["centroid_worker_sharded_missing_ranks"], 0)
        self.assertGreater(seen['centroid_worker_sharded_received_bytes_total{operation="gather"}'], 0)
        self.assertGreater(seen['centroid_worker_sharded_wait_seconds_total{operation="reduce"}'], 0)
        self.assertEqual(seen['centroid_worker_sharded_memory_bytes{kind="state"}'], view["ranks"][1]["memory_bytes"]["state"])
        generation = seen["centroid_worker_sharded_generation_number"]
        self.assertEqual(self.ask(places[1], "/readyz")[0], 200)
        self.assertEqual(self.ask(places[1], "/v1/sharded", "POST")[0], 405)

        workers[2].kill()
        view = self.wait_view(places[1], "a group of two", lambda view: view["world"] == 2 and view["state"] == "training")
        self.assert_has_parts(view, 2)
        self.assertEqual((view["missing"], [rank["name"] for rank in view["ranks"]]), (1, ["r0", "r1"]))
        change = self.wait_view(places[1], "the change", lambda view: view["changes"])["changes"][-1]
        self.assertEqual((change["lost"], change["joined"], change["world"], change["from"]), ([2], [], 2, "memory"))
        seen = wait_for(lambda: next((now for now in [self.metrics(places[1])] if now["centroid_worker_world_members"] == 2), None), "two in the metrics")
        self.assertEqual(seen["centroid_worker_sharded_missing_ranks"], 1)
        self.assertEqual(seen['centroid_worker_sharded_members_total{change="lost"}'], 1)
        self.assertGreater(seen["centroid_worker_sharded_generation_number"], generation)
        shown = self.ctl(places[0], "top", "--every", 0.2, "--count", 2)
        for text in ("2 ranks in generation", "(1 missing)", "r0", "r1", "shard 1 of 2", "lost worker 2, 2 ranks go on", "from", "memory"):
            self.assertIn(text, shown)
        self.assertNotIn("r2", shown)
        self.assertEqual(json.loads(self.ctl(places[1], "--output", "json", "top", "--count", 1))["rank"], 1)

        back = self.start(2, place, 3, *flags, name="back")
        view = self.wait_view(places[1], "a group of three", lambda view: view["world"] == 3 and view["changes"] and view["changes"][-1]["joined"] == [3])
        self.assert_has_parts(view, 3)
        self.assertEqual([(rank["worker"], rank["name"]) for rank in view["ranks"]], [(0, "r0"), (1, "r1"), (3, "back")])
        view = self.wait_steps(place_of(back), 3)
        self.assertEqual((view["rank"], view["missing"]), (2, 0))
        for path in ("/v1/sharded", "/metrics", "/"):
            self.assertNotIn("a-secret", self.ask(places[0], path)[1])
        self.assertIn("/v1/sharded", self.ask(places[0], "/v1")[1])
        workers[0].send(signal.SIGTERM)
        self.assert_exit(DONE, workers[0], workers[1], back)

    def test_a_rank_that_waits_for_others_says_so(self):
        place = f"127.0.0.1:{free_port()}"
        alone = self.start(0, place, 2, "--rounds", 3)
        at = place_of(alone)
        view = self.view(at)
        self.assertEqual((view["state"], view["world"], view["missing"], view["ranks"]), ("joining", 0, 2, []))
        self.assertEqual(self.ask(at, "/readyz")[0], 503)
        self.assertEqual(self.ask(at, "/healthz")[0], 200)
        self.assertIn("joining", self.ctl(at, "top", "--count", 1))
        self.assert_exit(DONE, self.start(1, place, 2, "--rounds", 3), alone)
        self.ctl(at, "top", "--count", 1, status=UNREACHABLE)

    def test_stages_show_their_layers_and_what_passes_between_them(self):
        flags = ["--parallel", "pp=2", "--micro-batches", 4, "--epochs", 1_000_000, "--data", "digits-tokens", *LISTEN]
        workers = self.ranks(2, *flags, model=TRANSFORMER)
        places = [place_of(worker) for worker in workers]
        view = self.wait_steps(places[0], 2)
        first, second = view["ranks"]
        self.assertEqual((view["mesh"], first["stage"], second["stage"]), ("dp=1,pp=2,tp=1", 0, 1))
        self.assertEqual((first["first_layer"], second["first_layer"]), (0, first["layers"]))
        for rank in (first, second):
            self.assertGreater(rank["received_bytes"]["activations"], 0)
            self.assertGreater(rank["wait_seconds"]["activations"], 0)
            self.assertGreater(rank["bubble_ratio"], 0)
            self.assertGreater(rank["memory_bytes"]["activations"], 0)
        self.assertIn(f"layers {second['first_layer']}-", self.ctl(places[1], "top", "--count", 1))
        workers[1].send(signal.SIGTERM)
        self.assert_exit(DONE, *workers)

    def test_a_worker_that_waits_for_a_larger_mesh_says_for_what(self):
        place = f"127.0.0.1:{free_port()}"
        flags = ["--parallel", "pp=2", "--epochs", 1_000_000]
        workers = [self.start(rank, place, 2, *flags) for rank in range(2)]
        self.wait_steps(place_of(workers[0]), 2)
        more = self.start(1, place, 2, *flags, name="more")
        view = self.wait_view(place_of(more), "one that waits", lambda view: view["state"] == "waiting")
        should = "the loss of a rank of dp=1,pp=2,tp=1: there are 3"
        self.assertEqual((view["mesh"], view["waiting_for"], view["rank"]), ("dp=1,pp=2,tp=1", should, 2))
        self.assertEqual([(rank["waits"], rank["stage"], rank["shards"]) for rank in view["ranks"]], [(False, 0, 1), (False, 1, 1), (True, None, 0)])
        view = self.wait_view(place_of(workers[1]), "three workers", lambda view: view["world"] == 3)
        self.assertEqual((view["state"], view["waiting_for"], view["missing"]), ("training", should, 0))
        shown = self.ctl(place_of(workers[0]), "top", "--count", 1)
        for text in ("waits", f"some wait for {should}"):
            self.assertIn(text, shown)
        self.assertEqual(self.ask(place_of(more), "/readyz")[0], 200)
        workers[0].send(signal.SIGTERM)
        self.assert_exit(DONE, *workers, more)

    def test_a_worker_that_comes_back_after_the_goal_learns_that_the_job_is_over(self):
        place = f"127.0.0.1:{free_port()}"
        flags = ["--rounds", 5, "--exit-when-finished=no"]
        workers = [self.start(rank, place, 3, *flags) for rank in range(3)]
        for worker in workers:
            worker.wait_event("sharded.finished", step=5)
        for number, rank in enumerate((0, 1, 2, 0)):  # each one in turn, so that only such ones are left at the end
            workers[rank].kill()
            workers[rank] = self.start(rank, place, 3, *flags, name=f"back{number}")
            workers[rank].wait_event("sharded.already_ended", rank=rank)
            self.assertEqual(self.view(place_of(workers[rank]))["state"], "ended")
        for worker in workers:
            worker.send(signal.SIGTERM)
        self.assert_exit(DONE, *workers)

    def test_without_the_others_the_checkpoint_says_that_the_job_is_over(self):
        place, flags = f"127.0.0.1:{free_port()}", ["--rounds", 5, "--checkpoint.dir", self.folder / "checkpoints", "--join-timeout", "2s"]
        self.assert_exit(DONE, *[self.start(rank, place, 2, *flags, "--join-timeout", "60s") for rank in range(2)])
        for number, rank in enumerate((0, 1)):
            back = self.start(rank, place, 2, *flags, "--resume", name=f"back{number}")
            self.assert_status(back, DONE, "sharded.already_ended")
            back.wait_event("sharded.not_joined")
            more = self.start(rank, place, 2, *flags, "--rounds", 6, "--resume", name=f"more{number}")
            self.assert_status(more, FAILED)

    def test_what_is_wrong_with_a_worker_is_not_hidden_by_the_end_of_its_job(self):
        place, flags = f"127.0.0.1:{free_port()}", ["--rounds", 5, "--checkpoint.dir", self.folder / "checkpoints"]
        self.assert_exit(DONE, *[self.start(rank, place, 3, *flags) for rank in range(3)])
        early = [self.start(rank, place, 3, *flags, "--resume", "--join-timeout", "3s", name=f"early{rank}") for rank in (0, 1)]
        self.assert_exit(DONE, *early)  # rank 0 says to rank 1 that rank 2 has not come
        with socket.create_server(("127.0.0.1", int(place.rpartition(":")[2]))):
            back = self.start(0, place, 3, *flags, "--resume", "--join-timeout", "3s", name="back")
            self.assert_status(back, FAILED, "the port is in use", "what listens there")

    def test_ranks_stay_at_the_goal_where_they_must_and_not_when_one_is_stopped(self):
        flags = ["--exit-when-finished=no", *LISTEN]
        workers = self.ranks(2, *flags, "--rounds", 5, run="-goal")
        for worker in workers:
            worker.wait_event("sharded.finished", step=5)
        view = self.view(place_of(workers[0]))
        self.assertEqual((view["state"], view["end"], view["step"], view["step_age_seconds"]), ("ended", "the goal is reached", 5, 0))
        self.assertEqual(self.metrics(place_of(workers[1]))["centroid_worker_sharded_step_age_seconds"], 0)
        self.assertIn("step 5, ended (the goal is reached)", self.ctl(place_of(workers[0]), "top", "--count", 1))
        for worker in workers:
            worker.send(signal.SIGTERM)
        self.assert_exit(DONE, *workers)
        workers = self.ranks(2, *flags, "--epochs", 1_000_000, run="-stopped")
        self.wait_steps(place_of(workers[0]), 2)
        workers[1].send(signal.SIGTERM)
        self.assert_exit(DONE, *workers)


if __name__ == "__main__":
    main()
