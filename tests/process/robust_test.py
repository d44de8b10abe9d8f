"""Jobs that take a median or a trimmed mean: what they refuse, and how many workers a round needs. robust_test.py BIN_DIR"""

from cluster import DONE, USAGE, ClusterTest, main

class Refusals(ClusterTest):
    def test_settings_that_cannot_work_are_named(self):
        cases = {
            ("--aggregate", "average"): "known are mean, median and trimmed_mean:F",
            ("--aggregate", "trimmed_mean:0"): "a whole number from 1",
            ("--aggregate", "median"): "it needs 3 workers",
            ("--aggregate", "trimmed_mean:2", "--min-workers", 4): "it needs 5 workers",
            ("--aggregate", "median", "--exchange", "ring"): "nobody has all contributions",
            ("--aggregate", "median", "--policy", "asp"): "nothing to set it against",
            ("--aggregate", "median", "--policy", "backup:1"): "false contributions are fast",
            ("--aggregate", "median", "--nonfinite", "propagate"): "NaN has no place in an order",
            ("--aggregate", "median", "--weight-by", "steps"): "every worker counts alike",
        }
        for number, (flags, text) in enumerate(cases.items()):
            with self.subTest(flags=flags):
                self.assert_status(self.launch_server(*flags, name=f"server{number}"), USAGE, text)

    def test_who_sends_few_numbers_is_refused_and_a_job_with_too_few_workers_waits(self):
        server = self.server("--min-workers", 3, "--aggregate", "median")
        self.assert_status(self.worker(server, "sparse", "--codec", "topk:0.1"), USAGE, "most of them 0")
        workers = [self.worker(server, f"w{i}") for i in range(3)]
        server.wait_round(5)
        workers.pop().kill()
        self.assertIn("2 of 3 workers are here (aggregate median)", server.wait_cluster("that it waits", lambda cluster: cluster["state"] == "waiting")["state_reason"])
        workers.append(self.worker(server, "w3"))
        server.wait_more_rounds()
        self.assertEqual(server.post("/v1/job:stop")[0], 202)
        self.assert_exit(DONE, *workers)

    def test_every_sample_of_an_epoch_is_trained_and_no_round_is_smaller_than_three(self):
        server = self.server("--min-workers", 3, "--epochs", 3, "--aggregate", "median", "--exit-when-finished")
        workers = [self.worker(server, f"w{i}", batch=13) for i in range(3)]  # 1600 = 41 * 39 + 1
        self.assert_exit(DONE, *workers, server)
        trained = [worker.events("worker.ended")[0]["samples"] for worker in workers]
        self.assertEqual(sum(trained), 3 * 1600)
        self.assertEqual([worker.events("samples.left_out") for worker in (server, *workers)], [[]] * 4)


if __name__ == "__main__":
    main()
