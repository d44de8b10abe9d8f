"""Rounds that close without some workers: nobody is held up, nobody is lost, all end with the same bits. policy_test.py BIN_DIR"""

import contextlib
import pathlib
import signal
import struct
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import DONE, USAGE, ClusterTest, Hold, main, wait_for
from harness.wire import Client, Link, text

POLICIES = ("backup:1", "quorum:2", "quorum:2,grace=0", "asp")


class Policy(ClusterTest):
    NAMES = ("w0", "w1", "w2")

    def start(self, *arguments, names=NAMES, tag="", worker=(), environments={}, **places):  # noqa: B006
        """A server and its workers, training."""
        server = self.server("--min-workers", len(names), *arguments, **places)
        workers = {name: self.worker(server, name + tag, *worker, environment=environments.get(name)) for name in names}
        return server, workers

    def end(self, server, workers):
        server.post("/v1/job:stop")
        self.assert_exit(DONE, server, *workers.values())
        self.assert_same_bits(workers)

    def assert_same_bits(self, workers):
        summaries = [self.summary(worker.name) for worker in workers.values()]
        self.assertEqual(len({summary["fingerprint"] for summary in summaries}), 1, summaries)
        return summaries

    def late(self, server):
        return sum(server.metric("centroid_server_contributions_late_total", fate=fate) for fate in ("dropped", "carried"))


class Stopped(Policy):
    def hold(self, name, *arguments, policies=POLICIES):
        """One worker is stopped in the middle of training and goes on later: the others do not notice, and it is taken along again."""
        for number, policy in enumerate(policies):
            apply = ("server", "worker")[number % 2]  # tests/simulation has them all
            with self.subTest(policy=policy, apply=apply):
                tag = f"-{number}"
                flags = ["--policy", policy, "--apply", apply, "--optimizer", "momentum", "--lease", "30s", *arguments]
                computes = Hold(self, "worker.share_taken", "hold" + tag, 5).close()
                server, workers = self.start(*flags, tag=tag, run="run" + tag, name="server" + tag, environments={name: computes.environment})
                held = workers[name]
                computes.wait_reached()  # what it then contributes is late
                held.send(signal.SIGSTOP)
                server.wait_more_rounds(50)
                self.assertEqual(server.cluster()["world"], 3, "it is still a member")
                before = server.workers(held.name)[0]["rounds"]
                held.send(signal.SIGCONT)
                computes.open()
                wait_for(lambda: server.workers(held.name)[0]["rounds"] > before + 3, f"{held.name} contributes again")
                self.assertGreaterEqual(self.late(server), 1)
                self.assertEqual(server.cluster()["lost_contributions"], 0)
                self.end(server, workers)

    def test_the_last_worker_holds_nobody_up(self):
        self.hold("w2")

    def test_the_first_worker_holds_nobody_up(self):
        self.hold("w0")

    def test_carried_contributions_of_the_first_worker_hold_nobody_up(self):
        self.hold("w0", "--late", "carry", policies=POLICIES[:3])

    def test_one_that_never_comes_back_is_dead_after_its_lease(self):
        server, workers = self.start("--policy", "backup:1", "--lease", "1s")
        server.wait_round(5)
        workers["w1"].send(signal.SIGSTOP)
        server.wait_worker("w1", "dead")
        server.wait_more_rounds(20)
        workers.pop("w1").kill()
        self.end(server, workers)

    def test_killed_worker_is_no_loss(self):
        server, workers = self.start("--policy", "quorum:2")
        server.wait_round(5)
        workers.pop("w0").kill()
        server.wait_more_rounds(20)
        self.assertEqual(server.cluster()["aborted_attempts"], 0)
        self.end(server, workers)

    def test_the_wait_of_two_workers_for_a_third_names_it(self):
        server, workers = self.start("--policy", "backup:1", "--lease", "30s")
        server.wait_round(5)
        for name in ("w1", "w2"):
            workers[name].send(signal.SIGSTOP)

        def named():
            waits = [wait for wait in server.get("/v1/waits")["waits"] if wait["waiter"].startswith("round")]
            return waits if {"w1", "w2"} <= {wait["waits_for"] for wait in waits} else None

        wait_for(named, "both held workers in /v1/waits")
        said = workers["w0"].wait_event("round.stalled", why=": contribution")  # to who waits, every 2 s
        self.assertRegex(said["why"], "round [0-9]+ waits for w[12]: contribution")
        at = server.cluster()["round"]
        workers["w1"].send(signal.SIGCONT)
        server.wait_round(at + 10)
        workers["w2"].send(signal.SIGCONT)
        self.end(server, workers)


class Asynchronous(Policy):
    def steps(self, server, workers):
        """Contributions by worker; 0 of one that has not joined yet."""
        return {name: sum(seen["rounds"] for seen in server.workers(worker.name)) for name, worker in workers.items()}

    def test_asp_makes_a_round_of_each_contribution(self):
        server, workers = self.start("--policy", "asp:max=1000000", "--lr", 0.02)
        server.wait_round(200)
        wait_for(lambda: all(self.steps(server, workers).values()), "work of everybody")
        server.post("/v1/job:pause")
        server.wait_cluster("paused", lambda cluster: cluster["state"] == "paused")
        closed = [one for one in server.get("/v1/rounds?limit=100")["rounds"] if one["state"] == "closed" and one["samples"] > 0]
        self.assertGreater(len(closed), 50)
        for one in closed:
            self.assertLessEqual(one["samples"], 16, one)  # one worker's batch
            if len(one["contributors"]) > 1 or (one["contributors"] and one["late"]):  # at the end of an epoch also those for whom no samples were left
                continue
            self.assertEqual(len(one["contributors"]) + len(one["late"]), 1, one)
        seen = {one["name"] for one in server.workers() if one["rounds"] > 0}
        self.assertEqual(seen, set(workers), "everybody's work counts")
        self.assertEqual(server.metric("centroid_server_contributions_late_total", fate="dropped"), 0)
        server.post("/v1/job:resume")
        self.end(server, workers)

    def test_ssp_stops_the_fast_at_the_bound_and_names_the_slowest(self):
        """One worker stands still: the others make at most S steps more than it, wait with a cause, and go on with it."""
        for bound in (0, 3):
            with self.subTest(bound=bound):
                tag = f"-{bound}"
                flags = ["--policy", f"ssp:{bound}", "--lease", "30s", "--lr", 0.02]
                server, workers = self.start(*flags, tag=tag, run="run" + tag, name="server" + tag)
                server.wait_round(50)
                held = workers["w1"]
                held.send(signal.SIGSTOP)

                def held_back():
                    return {wait["waiter"] for wait in server.get("/v1/waits")["waits"] if "steps ahead" in wait["what"] and wait["waits_for"] == held.name}

                wait_for(lambda: held_back() == {f"worker w0{tag}", f"worker w2{tag}"}, "both others wait for w1, by name")
                steps = self.steps(server, workers)
                self.assertLessEqual(max(steps.values()) - min(steps.values()), bound + 1, steps)
                held.send(signal.SIGCONT)
                server.wait_more_rounds(50)
                self.end(server, workers)

    def test_ssp_goes_on_when_the_slowest_is_lost(self):
        server, workers = self.start("--policy", "ssp:2", "--lease", "30s", "--lr", 0.02)
        server.wait_round(20)
        workers["w0"].send(signal.SIGSTOP)
        wait_for(lambda: any("steps ahead" in wait["what"] for wait in server.get("/v1/waits")["waits"]), "somebody is held back")
        workers.pop("w0").kill()
        server.wait_more_rounds(50)
        self.end(server, workers)

    def test_newcomers_are_taken_along(self):
        for policy in ("asp", "ssp:1"):
            with self.subTest(policy):
                tag = "-" + policy[:3]
                server, workers = self.start("--policy", policy, "--lr", 0.02, tag=tag, run="run" + tag, name="server" + tag)
                server.wait_round(100)
                workers["w3"] = self.worker(server, "w3" + tag)
                wait_for(lambda: self.steps(server, workers)["w3"] > 10, "the newcomer contributes")
                self.end(server, workers)

    def test_both_learn(self):
        for policy in ("asp", "ssp:2"):
            with self.subTest(policy):
                tag = "-" + policy[:3]
                flags = ["--policy", policy, "--epochs", 8, "--lr", 0.1, "--exit-when-finished"]
                server, workers = self.start(*flags, tag=tag, run="run" + tag, name="server" + tag)
                self.assert_exit(DONE, *workers.values(), server)
                self.assertGreater(server.events("model.evaluated")[-1]["accuracy"], 0.95)
                self.assert_same_bits(workers)

    def test_alone_it_is_the_synchronous_job(self):
        models = []
        for number, policy in enumerate(("bsp", "asp", "ssp:0")):
            tag = f"-{number}"
            flags = ["--policy", policy, "--rounds", 40, "--exit-when-finished", "--optimizer", "adam"]
            server, workers = self.start(*flags, names=("w0",), tag=tag, run="run" + tag, name="server" + tag)
            self.assert_exit(DONE, *workers.values(), server)
            models.append((self.checkpoints("run" + tag)[-1] / "model.safetensors").read_bytes())
        self.assertEqual(models[0], models[1])
        self.assertEqual(models[0], models[2])


class Teller(Client):
    """A worker by hand. Each contribution takes 1 from the number of its own that the model has for it, so the model tells how many counted."""

    def __init__(self, number, bad_every=0, on_carried=None):
        super().__init__(f"t{number}", [("counts", (4,))], train_samples=100_000)
        self.number, self.bad_every, self.on_carried = number, bad_every, on_carried
        self.made = self.told = 0

    def contribute(self, head, gradient, bad_rounds):
        self.made += 1
        begin, end = struct.unpack("<QQIIIQQQQQBBIQ", head)[8:10]
        if self.bad_every and self.made % self.bad_every == 0:  # as a worker does that finds NaN before its first chunk
            self.place = head[:20]
            told = struct.pack("<dQQdddB", end - begin, end - begin, 0, 0, 0, 0, True) + text("counts")
            self.send(self.PUSH_END, self.place + told + struct.pack("<dddQQIIdddddddI", 0, 0, 0, 0, 0, 0, 0, 0, -1, -1, -1, 0, 0, 0, 0))
            return
        super().contribute(head, gradient, bad_rounds)

    def closed(self, number, outcome, weight):
        self.told += outcome == self.CARRIED or (outcome == self.COMMITTED and weight > 0)
        if outcome == self.CARRIED and self.on_carried:
            self.on_carried()

    def run(self, endpoint):
        ones = struct.pack("<4f", *[float(i == self.number) for i in range(4)])
        with contextlib.suppress(EOFError, ConnectionError):
            self.train(endpoint, lambda *_: ones)


class Counted(Policy):
    """With asp and ssp, rate 1 and no damping each contribution that counts is a step of its own."""

    def counts(self, run="run"):
        """How many of each worker's contributions the newest checkpoint has."""
        data = (self.checkpoints(run)[-1] / "model.safetensors").read_bytes()
        return [-round(x) for x in struct.unpack("<4f", data[-16:])]

    def tellers(self, server, *tellers):
        threads = [threading.Thread(target=one.run, args=(server.data,), daemon=True) for one in tellers]
        for thread in threads:
            thread.start()
        return threads

    def test_a_late_contribution_counts_though_others_are_not_finite(self):
        for policy in ("asp:max=1000000,power=0", "ssp:4"):
            with self.subTest(policy):
                run = policy[:3]
                flags = ["--policy", policy, "--nonfinite", "skip", "--lr", 1, "--min-workers", 3, "--rounds", 400]
                server = self.server(*flags, "--exit-when-finished", run=run, name=f"server-{run}")
                tellers = [Teller(0, bad_every=5), Teller(1), Teller(2, bad_every=7)]
                threads = self.tellers(server, *tellers)
                self.assert_exit(DONE, server)
                for thread in threads:
                    thread.join()
                self.assertGreater(len(server.events("round.skipped")), 2)
                self.assertEqual(self.counts(run)[:3], [teller.told for teller in tellers])

    def test_a_contribution_reported_as_counted_is_on_disk(self):
        """The server is killed the moment a worker hears that its late contribution counts."""
        for turn in range(5):
            with self.subTest(turn=turn):
                run, journal = f"told-{turn}", ["--journal.mode", "on", "--policy", "asp:max=1000000,power=0", "--lr", 1]
                server = self.server(*journal, "--min-workers", 3, run=run, name=f"before-{turn}")
                tellers = [Teller(i, on_carried=lambda: server.send(signal.SIGKILL) if tellers[1].told > 5 else None) for i in range(3)]
                for thread in self.tellers(server, *tellers):
                    thread.join()
                told = [teller.told for teller in tellers]
                server.exit_status()
                again = self.launch_server("--optimizer", "sgd", *journal, "--resume", "--rounds", 1, "--exit-when-finished", run=run, name=f"after-{turn}")
                self.assert_status(again, DONE)
                counts = self.counts(run)[:3]
                self.assertTrue(all(count >= heard for count, heard in zip(counts, told)), f"told {told}, on disk {counts}")


class SlowLinks(Policy):
    """A worker behind a link on which the state takes much longer than a round of the others."""

    MODEL = "mlp:64-8192-10"  # 2.4 MB, more than sockets hold on their way

    def slow(self, policy, tag, *arguments):
        flags = ["--policy", policy, "--lease", "30s", "--lr", 0.01, "--min-workers", 2]
        server = self.server(*flags, *arguments, run="run" + tag, name="server" + tag)
        link = Link(server.data)
        self.addCleanup(link.close)
        workers = {name: self.worker(server, name + tag, model=self.MODEL) for name in ("w0", "w1")}
        server.wait_round(3)
        link.down.slow(2_000_000)
        workers["slow"] = self.worker(link.endpoint, "slow" + tag, model=self.MODEL)
        return server, workers, link

    def rounds_of(self, server, worker):
        return sum(seen["rounds"] for seen in server.workers(worker.name))

    def test_a_state_that_takes_longer_than_a_round_is_sent_to_its_end(self):
        ways = {"asp": ("asp:max=100000",), "quorum": ("quorum:1,grace=0", "--late", "carry:max=100000")}
        for tag, (policy, *arguments) in ways.items():
            with self.subTest(policy):
                server, workers, link = self.slow(policy, "-" + tag, *arguments)
                wait_for(lambda: self.rounds_of(server, workers["slow"]) >= 2, "the worker behind the slow link contributes")
                self.assertEqual(server.metric("centroid_server_state_restarts_total"), 0)
                self.assertGreaterEqual(server.metric("centroid_server_contributions_late_total", fate="carried"), 2)
                link.down.slow(None)
                self.end(server, workers)

    def test_with_late_drop_a_transfer_restarts_and_is_counted(self):
        server, workers, link = self.slow("quorum:1,grace=0", "-drop")
        wait_for(lambda: server.workers("slow-drop"), "the slow worker")
        before = server.metric("centroid_server_state_restarts_total")  # the others may be late for a round, too
        wait_for(lambda: server.metric("centroid_server_state_restarts_total") >= before + 3, "transfers that came to nothing")
        self.assertEqual(self.rounds_of(server, workers["slow"]), 0, "its state is never that of the round")
        link.down.slow(None)
        self.end(server, workers)


class Bits(Policy):
    def test_all_end_with_the_same_bits_whenever_the_job_ends(self):
        for number, policy in enumerate(POLICIES):
            for rounds in (1, 3, 60):
                with self.subTest(policy=policy, rounds=rounds):
                    tag = f"-{number}-{rounds}"
                    flags = ["--policy", policy, "--rounds", rounds, "--exit-when-finished"]
                    server, workers = self.start(*flags, tag=tag, run="run" + tag, name="server" + tag)
                    self.assert_exit(DONE, *workers.values(), server)
                    self.assert_same_bits(workers)

    def test_asynchronous_workers_take_the_same_steps_as_the_server(self):
        """States are sent right after results: to load one while the other is being applied would mix them."""
        for rounds in range(100, 103):
            with self.subTest(rounds=rounds):
                tag = f"-{rounds}"
                flags = ["--policy", "asp", "--apply", "worker", "--lr", 0.02, "--rounds", rounds, "--exit-when-finished"]
                server, workers = self.start(*flags, tag=tag, run="run" + tag, name="server" + tag)
                self.assert_exit(DONE, *workers.values(), server)
                self.assert_same_bits(workers)

    def test_compressed_both_ways(self):
        flags = ["--policy", "backup:1", "--late", "damp:power=1", "--codec-down", "topk:0.1", "--rounds", 60]
        server, workers = self.start(*flags, "--exit-when-finished", worker=("--codec", "topk:0.1,values=int8"))
        self.assert_exit(DONE, *workers.values(), server)
        self.assert_same_bits(workers)

    def test_with_everybody_in_time_it_is_the_synchronous_job(self):
        """A quorum of all is bsp, bit for bit."""
        models = []
        for number, policy in enumerate(("bsp", "quorum:3")):
            tag = f"-{number}"
            flags = ["--policy", policy, "--rounds", 40, "--exit-when-finished", "--optimizer", "adam"]
            server, workers = self.start(*flags, tag=tag, run="run" + tag, name="server" + tag)
            self.assert_exit(DONE, *workers.values(), server)
            models.append((self.checkpoints("run" + tag)[-1] / "model.safetensors").read_bytes())
        self.assertEqual(models[0], models[1])

    def test_job_learns_though_the_slowest_is_left_out(self):
        flags = ["--policy", "backup:1", "--epochs", 8, "--lr", 0.5, "--exit-when-finished"]
        server, workers = self.start(*flags, "--late", "carry")
        self.assert_exit(DONE, *workers.values(), server)
        self.assertGreater(server.events("model.evaluated")[-1]["accuracy"], 0.95)
        self.assert_same_bits(workers)


class Refused(Policy):
    def test_wrong_policies_are_named(self):
        for flags, texts in (
            (["--policy", "backup:0"], ["policy", "backup:0", "from 1 to 4096"]),
            (["--policy", "asap"], ["expected bsp, backup:B, quorum:K"]),
            (["--policy", "ssp"], ["a number after : is missing"]),
            (["--policy", "asp", "--late", "damp"], ["policy asp itself decides"]),
            (["--policy", "asp", "--exchange", "ring"], ["exchange ring", "use exchange star, or policy bsp"]),
            (["--policy", "bsp", "--late", "carry"], ["nothing is late"]),
            (["--policy", "backup:1", "--exchange", "ring"], ["exchange ring", "use exchange star, or policy bsp"]),
            (["--policy", "quorum:2", "--exchange", "hierarchical"], ["exchange hierarchical"]),
        ):
            with self.subTest(flags):
                self.assert_status(self.launch_server(*flags), USAGE, *texts)


if __name__ == "__main__":
    main(at_a_time=2)
