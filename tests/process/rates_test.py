"""Learning rates that change from round to round, under kill -9. rates_test.py BIN_DIR"""

import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import DONE, main
from harness.durability import JOURNAL, ROUNDS, DurabilityTest, state_bytes


class Workers(DurabilityTest):
    def test_a_round_is_replayed_with_the_rate_by_its_workers(self):
        """A replay knows of no workers but what the journal says."""
        plain = self.whole("plain", *JOURNAL)
        for number, way in enumerate(([], ["--apply", "worker"], ["--codec-down", "int8"])):
            with self.subTest(way=way):
                arguments = [*JOURNAL, *way, "--lr-scale-ratio", "0.5"]
                expected = self.whole(f"whole-{number}", *arguments)
                self.assertNotEqual(expected, plain)
                self.assertTrue(self.disturbed(f"killed-{number}", expected, *arguments, fault="round.committed:9"))


class Rates(DurabilityTest):
    """The learning rate may change between two rounds: each is replayed with the one it was made with."""

    def test_of_servers_that_were_started_with_others(self):
        self.check("momentum")

    def test_of_a_rule_that_sums_up_its_rates(self):
        """With a schedule, too, so every round has another one."""
        self.check("ftrl", "--lr-schedule", "cosine:rounds=40,warmup=5,floor=0.1")

    def test_of_workers_that_apply_and_outlive_their_servers(self):
        """They got the first rate when they joined the first one."""
        self.check("momentum", "--apply", "worker")

    def check(self, optimizer, *schedule):
        stages = (("0.05", 8), ("0.01", 18), ("0.02", ROUNDS))
        for lr, goal in stages:
            resume = ["--resume"] if goal > stages[0][1] else []
            server = self.launch("whole", "--lr", lr, *schedule, *resume, rounds=goal, name=f"whole-{goal}", optimizer=optimizer).wait_ready()
            self.assert_exit(DONE, *self.workers(server, f"whole-{goal}"), server)
        expected = state_bytes(self.checkpoints("whole")[-1])

        common = [*JOURNAL, "--checkpoint.every-rounds", 1000, *schedule]
        first = self.start("run", *common, "--lr", "0.05", name="first", optimizer=optimizer, environment={"CENTROID_TEST_FAULT": "round.committed:8"})
        workers = self.workers(first, "run")
        self.assertEqual(first.exit_status(), -signal.SIGKILL, first.text())
        environment = {"CENTROID_TEST_FAULT": "round.committed:10"}
        second = self.launch("run", "--resume", *common, "--lr", "0.01", name="second", listen=first.data, environment=environment, optimizer=optimizer)
        self.assertEqual(second.exit_status(), -signal.SIGKILL, second.text())
        third = self.launch("run", "--resume", *common, "--lr", "0.02", name="third", listen=first.data, optimizer=optimizer)
        self.assert_exit(DONE, *workers, third)
        self.assertEqual(third.events("journal.replayed")[0]["rounds"], 18)
        self.assertEqual(state_bytes(self.checkpoints("run")[-1]), expected)

    def test_of_a_server_whose_operator_changed_it(self):
        for number, way in enumerate(([], ["--apply", "worker"], ["--codec-down", "int8"])):
            with self.subTest(way=way):
                self.check_live(f"run-{number}", *way)

    def check_live(self, run, *way):
        common = [*JOURNAL, *way, "--checkpoint.every-rounds", 1_000_000, "--rounds", 0]
        server = self.start(run, *common)
        workers = self.workers(server, run)
        server.wait_round(10)
        status, body = server.call("PATCH", "/v1/config", {"lr": 0.001})
        self.assertEqual(status, 200, body)
        server.wait_more_rounds(10)
        self.assertEqual(server.post("/v1/job:pause")[0], 202)
        server.wait_cluster("a pause", lambda view: view["state"] == "paused")
        before = server.get("/v1/parameters")["parameters"]
        server.kill()
        again = self.launch(run, "--resume", *common, name=f"again-{run}", listen=server.data).wait_ready()
        self.assertGreaterEqual(again.events("journal.replayed")[0]["rounds"], 20)
        self.assertEqual(again.get("/v1/parameters")["parameters"], before)
        self.assertEqual(again.cluster()["learning_rate"], 0.001)
        for process in [again, *workers]:
            process.kill()


class Live(DurabilityTest):
    """A rate that changes between two rounds of a running job gives the bits of a job that was stopped there and resumed with it."""

    FIRST, THEN = 0.05, 0.0125

    def changed(self, run, change, *arguments, worker=()):
        """The number of rounds before the change, and the state ten rounds after it."""
        server = self.start(run, *arguments, rounds=1_000_000)
        workers = self.workers(server, run, *worker)
        server.wait_round(5)
        self.assertEqual(server.post("/v1/job:pause")[0], 202)
        server.wait_cluster("a pause", lambda view: view["state"] == "paused")
        before = server.cluster()["version"] - 1
        status, body = server.call("PATCH", "/v1/config", {**change, "rounds": before + 10})
        self.assertEqual(status, 200, body)
        self.assertEqual(server.post("/v1/job:resume")[0], 202)
        self.assert_exit(DONE, *workers, server)
        self.assertEqual(len({self.summary(process.name)["fingerprint"] for process in workers}), 1)
        return before, state_bytes(self.checkpoints(run)[-1])

    def stopped(self, run, before, server_flags, worker_flags):
        """The state of a job that is resumed after so many rounds, with other flags each time."""
        for number, (flags, worker) in enumerate(zip(server_flags, worker_flags)):
            resume = ["--resume"] if number else []
            server = self.launch(run, *flags, *resume, rounds=before + 10 * number, name=f"{run}-{number}").wait_ready()
            self.assert_exit(DONE, *self.workers(server, f"{run}-{number}", *worker), server)
        return state_bytes(self.checkpoints(run)[-1])

    def test_where_workers_apply_the_optimizer(self):
        ways = {
            "star": ["--apply", "worker"],
            "schedule": ["--apply", "worker", "--lr-schedule", "cosine:rounds=500", "--lr-scale-ratio", "0.5"],
            "encoded": ["--codec-down", "int8"],
            "ring": ["--exchange", "ring", "--reduce.algorithm", "chain"],
            "hierarchical": ["--exchange", "hierarchical"],
        }
        for way, flags in ways.items():
            with self.subTest(way):
                worker = flags[:2] if flags[0] == "--exchange" else []
                before, state = self.changed(way, {"lr": self.THEN}, *flags, worker=worker)
                both = ([*flags, "--lr", self.FIRST], [*flags, "--lr", self.THEN])
                self.assertEqual(self.stopped(f"whole-{way}", before, both, (worker, worker)), state)

    def test_of_local_steps(self):
        for way in ("star", "ring"):
            with self.subTest(way):
                flags = ["--local-steps", 4, "--exchange", way, "--optimizer", "sgd", "--lr", 0.01]  # the settings that `outer` takes for none
                worker = [["--exchange", way, "--inner.lr", rate] for rate in (self.FIRST, self.THEN)]
                before, state = self.changed(way, {"inner_lr": self.THEN}, *flags, worker=worker[0])
                self.assertEqual(self.stopped(f"whole-{way}", before, (flags, flags), worker), state)


class Metric(DurabilityTest):
    def test_the_last_rate_is_a_metric_and_in_the_curve(self):
        server = self.start("run", "--apply", "worker", rounds=1_000_000)
        self.workers(server, "run")
        server.wait_round(3)
        self.assertEqual(server.metric("centroid_server_learning_rate"), 0.05)
        status, body = server.call("PATCH", "/v1/config", {"lr": 0.25})
        self.assertEqual(status, 200, body)
        server.wait_more_rounds()
        self.assertEqual(server.metric("centroid_server_learning_rate"), 0.25)
        self.assertEqual({point["learning_rate"] for point in server.get("/v1/curves")["points"]}, {0.05, 0.25})


if __name__ == "__main__":
    main()
