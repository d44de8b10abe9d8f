"""Exchange sharded with a model that no process may hold. sharded_large_test.py BIN_DIR"""

import pathlib
import resource
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import DONE, USAGE, Hold, main
from harness.sharded import Sharded

LAYERS, WIDTH = 59, 1024
MODEL = "mlp:64" + LAYERS * f"-{WIDTH}" + "-10"
PARAMETERS = 65 * WIDTH + (LAYERS - 1) * (WIDTH + 1) * WIDTH + (WIDTH + 1) * 10
ADAM_BYTES = 4 * 4 * PARAMETERS  # parameter, gradient and two numbers of state
LIMIT = int(ADAM_BYTES / 1.55)  # of address space, of which the program and its libraries reserve a part


class Large(Sharded):
    RULE = ("--optimizer", "adam", "--lr", "0.00001")

    def limited(self, *workers):
        for worker in workers:
            resource.prlimit(worker.pid, resource.RLIMIT_AS, (LIMIT, LIMIT))
        return workers

    def test_a_model_of_one_and_a_half_limits_outlives_a_rank_and_goes_on_with_three(self):
        hold = Hold(self, "sharded.stepped", count=3).close()
        flags = [*self.RULE, "--shard-replicas", 0, "--rounds", 4, "--checkpoint.dir", self.folder / "checkpoints", "--checkpoint.every-rounds", 2]
        workers = self.limited(*self.ranks(4, *flags, model=MODEL, batch=4, environments={3: hold.environment}))
        hold.wait_reached()
        workers[0].wait_event("checkpoint.written", version=3)
        workers[3].kill()
        self.assert_exit(DONE, *workers[:3])
        for worker in workers[:3]:
            told = worker.wait_event("sharded.regrouped", lost="3", world=3, step=2)
            self.assertEqual(told["from"], "checkpoint")
            summary = self.summary(worker.name)
            self.assertEqual((summary["rounds"], summary["world"]), (4, 3))
            self.assertLess(summary["peak_bytes"], LIMIT)

    def test_one_worker_is_refused_with_the_numbers(self):
        (alone,) = self.limited(self.worker("127.0.0.1:1", "alone", "--exchange", "local", "--rounds", 1, *self.RULE, model=MODEL, batch=4))
        self.assert_status(alone, USAGE, "ulimit -v", str(2 * 4 * PARAMETERS), "for the optimizer")


if __name__ == "__main__":
    main()
