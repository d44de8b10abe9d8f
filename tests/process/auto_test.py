"""Exchange auto with the real programs: among the workers where they reach each other, else through the server. auto_test.py BIN_DIR"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import DONE, ClusterTest, main, wait_for

LARGE = "mlp:64-1024-10"  # 304 kB: worth it


class AutoTest(ClusterTest):
    def job(self, *arguments, workers=2, **settings):
        server = self.server("--exchange", "auto", "--epochs", 1_000_000, "--min-workers", workers, "--checkpoint.interval", "1h", *arguments, **settings)
        return server, [self.worker(server, f"w{i}", model=LARGE) for i in range(workers)]

    def exchanges(self, server):
        return [(event["exchange"], event["why"]) for event in server.events("exchange.chosen")]

    def wait_exchange(self, server, name):
        """Rounds of that exchange are committed."""
        wait_for(lambda: server.cluster()["exchange"] == name, f"exchange {name}")
        server.wait_more_rounds()

    def test_programs_choose_it_by_themselves_and_say_why(self):
        server, workers = self.job()
        self.wait_exchange(server, "ring")
        self.assertEqual(server.cluster()["exchange_why"], "the workers reach each other")
        alone = self.worker(server, "alone", "--exchange", "star", model=LARGE)
        self.wait_exchange(server, "star")
        self.assertEqual(server.cluster()["exchange_why"], "worker 'alone' accepts no connections of other workers")
        alone.kill()
        self.wait_exchange(server, "ring")
        workers[1].kill()
        self.wait_exchange(server, "star")
        self.assertEqual(server.cluster()["exchange_why"], "there is one worker")
        self.assertEqual(server.post("/v1/job:stop")[0], 202)
        self.assert_exit(DONE, server, workers[0])
        self.assertEqual([name for name, _ in self.exchanges(server)], ["ring", "star", "ring", "star"])
        self.assertEqual(server.events("state.lost"), [])

    def test_a_worker_waits_until_a_servers_name_is_known(self):
        worker = self.worker("nowhere.invalid:7070", "early", "--join-timeout", "1s")
        self.assertNotEqual(worker.exit_status(), DONE)
        self.assertEqual(len(worker.events("peers.waiting")), 1)
        (failed,) = worker.events("worker.failed")
        self.assertIn("nowhere.invalid:7070", failed["error"])

    def test_the_server_has_a_copy_when_all_workers_are_killed(self):
        server, workers = self.job()
        self.wait_exchange(server, "ring")
        wait_for(lambda: server.events("state.fetched"), "a copy", 60)
        copied = server.events("state.fetched")[-1]["version"]
        server.wait_more_rounds()
        for worker in workers:
            worker.child.kill()
        self.worker(server, "next", model=LARGE)
        given = lambda: [event["version"] for event in server.events("member.state_sent") if event["worker"] == "next"]  # noqa: E731
        wait_for(given, "the next worker has the state")
        self.assertGreaterEqual(given()[0], copied)

    def test_readers_have_the_newest_tensors(self):
        server, _ = self.job()
        self.wait_exchange(server, "ring")
        before = server.cluster()["version"]
        parameters = server.get("/v1/parameters")
        self.assertTrue(parameters["is_current"])
        self.assertGreaterEqual(parameters["version"], before)


if __name__ == "__main__":
    main()
