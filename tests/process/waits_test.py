"""Who is waited for, and who is told. waits_test.py BIN_DIR"""

import contextlib
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import DONE, ClusterTest, main, wait_for

FLAGS = ("--min-workers", 2, "--lease", "300s", "--stall-timeout", "300s", "--chunk-bytes", 4096, "--credit-bytes", 8192)


class Waits(ClusterTest):
    def waits(self, server):
        return [(wait["waiter"], wait["waits_for"], wait["what"]) for wait in server.get("/v1/waits")["waits"]]

    def start(self, *arguments):
        server = self.launch_server(*FLAGS, *arguments).wait_ready()
        workers = {worker: self.worker(server, worker, model="mlp:64-256-10") for worker in ("w0", "w1")}
        server.wait_round(5)
        return server, workers

    def stall(self, server, workers, name):
        """One of two workers whose contributions are larger than their credit stops: what a wait is for once all has settled."""
        workers[name].send(signal.SIGSTOP)
        other = next(worker for worker in workers if worker != name)

        def settled():
            waits = self.waits(server)
            rounds = {waits_for for who, waits_for, _ in waits if who.startswith("round")}
            return waits if rounds == {name} else None

        waits = wait_for(settled, f"the round waits for {name} alone")
        said = workers[other].wait_event("round.stalled", why=f"waits for {name}")
        self.assertNotIn(f"waits for {other}", said["why"])
        return waits

    def end(self, server, workers, name):
        workers[name].send(signal.SIGCONT)
        server.wait_more_rounds(5)
        self.assertEqual(server.cluster()["lost_contributions"], 0)
        server.post("/v1/job:stop")
        self.assert_exit(DONE, server, *workers.values())

    def test_who_is_queued_behind_a_stalled_worker_is_not_waited_for(self):
        """w1 is added behind w0: it has sent as much as it may, and can do nothing."""
        server, workers = self.start("--local-steps", 4, "--fragments", 2)

        def queued():
            return [what for who, waits_for, what in self.waits(server) if (who, waits_for) == ("worker w1", "w0") and what.startswith("credit: ")]

        what = None
        while not what:
            self.stall(server, workers, "w0")
            with contextlib.suppress(AssertionError):  # where it had sent nearly all, w1 is not held up
                what = wait_for(queued, "w1 waits for w0", 5)
            if not what:
                workers["w0"].send(signal.SIGCONT)
                server.wait_more_rounds(3)
        self.assertRegex(what[0], r"from chunk [0-9]+ of round [0-9]+, fragment [12] of 2 on")
        self.assertNotIn("w1", {waits_for for _, waits_for, _ in self.waits(server)})
        workers["w1"].wait_event("round.stalled", why="worker w1 waits for w0: credit: ")
        self.end(server, workers, "w0")

    def test_the_last_in_the_order_is_named_too(self):
        server, workers = self.start()
        waits = self.stall(server, workers, "w1")
        self.assertNotIn("w0", {waits_for for _, waits_for, _ in waits})

        def told():  # what is said of a round that is open for more than 2 s
            return [what for _, waits_for, what in self.waits(server) if waits_for == "w1" and "; the round has " in what]

        why = wait_for(told, "how many are missing")[0]
        self.assertRegex(why, r"; the round has 1 of the 2 contributions that it needs, of 2 workers, last heard [0-9]+ ms ago$")
        said = workers["w0"].wait_event("round.stalled", why="; the round has 1 of the 2 contributions")["why"]
        self.assertRegex(said, r"last heard [0-9]+ ms ago")
        self.end(server, workers, "w1")


if __name__ == "__main__":
    main(at_a_time=2)
