"""Unequal workers with the real programs: shares by speed, a worker that is killed, settings. cadence_test.py BIN_DIR"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import SAMPLES, USAGE, ClusterTest, main

TRAIN = SAMPLES * 4 // 5
MODEL = "mlp:64-256-256-10"  # steps of about a millisecond: small ones are all overhead


class CadenceTest(ClusterTest):
    def serve(self, *arguments, **places):
        outer = ["--outer", "average"] if "--local-steps" in arguments else []
        return self.launch_server("--min-workers", "2", *outer, *arguments, **places).wait_ready()

    def join(self, server, name, *arguments):
        return self.worker(server, name, "--inner.lr", "0.05", *arguments, model=MODEL)


class Unequal(CadenceTest):
    def test_a_slow_worker_gets_less_and_every_sample_is_trained(self):
        for exchange in ("star", "ring"):
            with self.subTest(exchange=exchange):
                goal = ["--cadence.mode", "tuned", "--local-steps", "4", "--epochs", "20", "--exchange", exchange]
                server = self.serve(*goal, name=f"server-{exchange}", run=exchange)
                fast, slow = f"fast-{exchange}", f"slow-{exchange}"
                self.join(server, fast, "--exchange", exchange)
                self.join(server, slow, "--exchange", exchange, "--slowdown", "20")  # more than a loaded machine slows the other
                done = server.wait_cluster("the end", lambda cluster: cluster["state"] == "finished")
                self.assertEqual(done["samples_total"], 20 * TRAIN)
                self.assertGreater(done["exchange_seconds"], 0)
                self.assertGreater(done["test_accuracy"], 0.9)
                mine = {worker["name"]: worker for worker in server.workers()}
                self.assertEqual(mine[fast]["samples"] + mine[slow]["samples"], 20 * TRAIN)
                self.assertGreater(mine[fast]["samples"], 1.5 * mine[slow]["samples"])
                self.assertGreater(mine[slow]["pace_seconds"], 1.5 * mine[fast]["pace_seconds"])
                self.assertAlmostEqual(server.metric("centroid_server_exchange_seconds"), done["exchange_seconds"])
                self.assertGreater(server.metric("centroid_server_cadence_steps"), 0)

    def test_the_share_of_a_killed_worker_is_given_to_others(self):
        server = self.serve("--cadence.mode", "speed", "--local-steps", "10", "--epochs", "3", "--lease", "1s")
        self.join(server, "a")
        self.join(server, "b")
        # It sleeps through its first share, of which it contributes nothing.
        stuck = self.join(server, "c", "--slowdown", "1000")
        server.wait_missing("c")
        share = server.workers("c")[0]["local_steps"]
        self.assertGreater(share, 0)
        stuck.kill()
        done = server.wait_cluster("the end", lambda cluster: cluster["state"] == "finished")
        self.assertEqual(done["samples_total"], 3 * TRAIN)
        self.assertGreater(done["returned_samples"], 0)
        self.assertEqual(server.metric("centroid_server_samples_returned_total"), done["returned_samples"])
        server.wait_event("share.requeued", worker="c")

    def test_with_one_gradient_a_round_keeps_its_size(self):
        server = self.serve("--cadence.mode", "speed", "--epochs", "6")
        self.join(server, "fast")
        self.join(server, "slow", "--slowdown", "20")
        done = server.wait_cluster("the end", lambda cluster: cluster["state"] == "finished")
        self.assertEqual(done["samples_total"], 6 * TRAIN)
        self.assertEqual(done["round"] - 1, 6 * TRAIN // 32)
        mine = {worker["name"]: worker["samples"] for worker in server.workers()}
        self.assertGreater(mine["fast"], 1.5 * mine["slow"])


class Refused(CadenceTest):
    def test_what_cannot_work_is_refused_with_the_reason(self):
        refusals = [
            (["--cadence.mode", "tuned"], ["cadence tuned", "set local_steps"]),
            (["--cadence.mode", "fast"], ["--cadence.mode", "off, speed, tuned"]),
            (["--cadence.mode", "speed", "--cadence.ratios", "3;1"], ["cadence.ratios", "speeds by rank"]),
            (["--cadence.ratios", "3,1"], ["cadence.ratios", "need cadence speed"]),
            (["--local-steps", "10", "--cadence.mode", "tuned", "--cadence.overhead", "0.9"], ["cadence.overhead", "0.5"]),
        ]
        for number, (flags, texts) in enumerate(refusals):
            with self.subTest(flags=flags):
                server = self.launch_server(*flags, name=f"server-{number}")
                self.assert_status(server, USAGE, *texts)


if __name__ == "__main__":
    main()
