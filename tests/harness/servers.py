"""A model on several servers."""

import contextlib
import hashlib
import signal

from harness.cluster import DONE, ClusterTest, Process, wait_for

MODEL = "mlp:64-48-32-10"
SLOW = ["--slowdown", 200]  # workers of a job that is not over before its servers have come or gone
CHUNKS = ["--chunk-bytes", 1024]  # enough of them to place evenly


class ServersTest(ClusterTest):
    undisturbed = {}  # bits by number of rounds

    def shard(self, leader, name, *arguments, listen="127.0.0.1:0"):
        """A shard server; `leader` a server or an endpoint."""
        endpoint = leader if isinstance(leader, str) else leader.data
        places = ["--join", endpoint, "--name", name, "--listen", listen, "--run-dir", self.folder / "shards"]
        return self._start(Process, "centroid-server", name, [*places, *arguments], None)

    def leader(self, servers, *arguments, **places):
        common = ["--servers", servers, "--min-workers", 3, "--optimizer", "adam", "--lr", "0.01", *CHUNKS]
        return self.server(*common, *arguments, **places)

    def workers(self, leader, tag="", *arguments):
        return [self.worker(leader, f"w{i}{tag}", *arguments, model=MODEL) for i in range(3)]

    def wait_placed(self, leader, count):
        def is_placed():
            servers = leader.get("/v1/servers")["servers"]
            return len(servers) == count and all(server["chunks"] > 0 for server in servers)

        wait_for(is_placed, f"chunks on {count} servers")

    def train(self, servers, rounds, *arguments, run="run", tag=""):
        """One whole job; ends with a checkpoint."""
        tag = f"-{run}-{rounds}{tag}"
        goal = ["--rounds", rounds, "--exit-when-finished"]
        leader = self.leader(servers, *goal, *arguments, run=run, name=f"leader{tag}")
        shards = [self.shard(leader, f"s{i}{tag}") for i in range(1, servers)]
        workers = self.workers(leader, tag)
        self.assert_exit(DONE, *workers, leader, *shards)
        return leader

    def assert_undisturbed(self, rounds):
        """The job in the folder `run` ended with the bits of one on one server, with which nothing happened."""
        if rounds not in self.undisturbed:
            self.train(1, rounds, run="whole")
            self.undisturbed[rounds] = self.model_bytes("whole")
        self.assertEqual(self.model_bytes("run"), self.undisturbed[rounds])

    @contextlib.contextmanager
    def held(self, worker):
        """Rounds wait for this worker: the job is not over before what is waited for here."""
        worker.send(signal.SIGSTOP)
        try:
            yield
        finally:
            worker.send(signal.SIGCONT)

    def model_bytes(self, run):
        newest = self.checkpoints(run)[-1]
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(newest.glob("*.safetensors"))}
