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
        common = [*JOURNAL, "--checkpoint.every-rounds", 1_000_000, "--rounds", 0]
        server = self.start("run", *common)
        self.workers(server, "run")
        server.wait_round(10)
        status, body = server.call("PATCH", "/v1/config", {"lr": 0.001})
        self.assertEqual(status, 200, body)
        server.wait_more_rounds(10)
        self.assertEqual(server.post("/v1/job:pause")[0], 202)
        server.wait_cluster("a pause", lambda view: view["state"] == "paused")
        before = server.get("/v1/parameters")["parameters"]
        server.kill()
        again = self.launch("run", "--resume", *common, name="again", listen=server.data).wait_ready()
        self.assertGreaterEqual(again.events("journal.replayed")[0]["rounds"], 20)
        self.assertEqual(again.get("/v1/parameters")["parameters"], before)
        self.assertEqual(again.cluster()["learning_rate"], 0.001)


if __name__ == "__main__":
    main()
