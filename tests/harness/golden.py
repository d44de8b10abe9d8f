"""The jobs whose bits tests/baseline/golden.json has."""

import json
import pathlib
import platform
import subprocess
import sys

from harness import ROOT
from harness.cluster import DONE
from harness.fixed_jobs import TABLES, FixedJobs, hash_of_live, state_of

GOLDEN = ROOT / "tests" / "baseline" / "golden.json"
ROUNDS = 12
EVERYWHERE = {"OPENBLAS_CORETYPE": "Nehalem", "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA"}  # routines of any x86-64
PROBE = """
import ctypes, hashlib, sys
blas, m = ctypes.CDLL(sys.argv[1]), ctypes.CDLL("libm.so.6")
total = hashlib.sha256()
size = 67
numbers = ctypes.c_float * (size * size)
a, b, c = (numbers(*(((i * step) % 101 - 50) / 77 for i in range(size * size))) for step in (37, 53, 71))
for ta, tb in ((111, 111), (112, 111), (111, 112)):
    blas.cblas_sgemm(101, ta, tb, size, size, size, ctypes.c_float(1), a, size, b, size, ctypes.c_float(1), c, size)
    total.update(bytes(c))
m.expf.restype, m.expf.argtypes = ctypes.c_float, [ctypes.c_float]
total.update(bytes((ctypes.c_float * 2000)(*(m.expf(-i / 97) for i in range(2000)))))
print(total.hexdigest())
"""
# By name: flags of the server, and what differs from three trainers that give gradients.
STAR = {
    "star": (["--optimizer", "sgd"], {}),
    "momentum, clipped, cosine": (["--optimizer", "momentum", "--clip-norm", "8", "--lr-schedule", "cosine:rounds=12"], {}),
    "adam on the server": (["--optimizer", "adam"], {}),
    "workers apply": (["--optimizer", "nesterov", "--apply", "worker"], {}),
    "top-k up": (["--optimizer", "sgd"], {"codec": "topk:0.1,values=int8,momentum=0.9"}),
    "top-k both ways": (["--optimizer", "momentum", "--codec-down", "topk:0.1"], {"codec": "topk:0.05"}),
    "int8 both ways": (["--optimizer", "adam", "--codec-down", "int8"], {"codec": "int8"}),
    "sign up, bf16 down": (["--optimizer", "momentum", "--codec-down", "bf16"], {"codec": "sign"}),
    "three servers": (["--optimizer", "adamw", "--clip-norm", "8", "--servers", 3], {"shards": "xy"}),
    "three servers, top-k both ways": (["--optimizer", "momentum", "--codec-down", "topk:0.1", "--servers", 3], {"shards": "xy", "codec": "topk:0.05"}),
    "quorum of all": (["--optimizer", "momentum", "--policy", "quorum:3"], {}),
    "asp": (["--optimizer", "momentum", "--policy", "asp"], {"in_turn": True}),
    "ssp": (["--optimizer", "sgd", "--policy", "ssp:1", "--apply", "worker"], {"in_turn": True}),
    "local steps": (["--local-steps", 4], {}),
    "local steps, fragments": (["--local-steps", 4, "--fragments", 2], {"codec": "int8"}),
    "local steps, overlap": (["--local-steps", 4, "--overlap", 1], {}),
    "median": (["--optimizer", "sgd", "--aggregate", "median"], {}),
    "trimmed mean": (["--optimizer", "momentum", "--aggregate", "trimmed_mean:1"], {}),
}
PEERS = {
    "ring": ("ring", ["--optimizer", "adam"], [], ("", "", "")),
    "ring, top-k": ("ring", ["--optimizer", "sgd"], ["--codec", "topk:0.1"], ("", "", "")),
    "hierarchical": ("hierarchical", ["--optimizer", "momentum"], [], ("n", "n", "m")),
}


class GoldenJobs(FixedJobs):
    def next_run(self):
        """A run_dir that no other job of this test has."""
        return f"run-{len(self.processes)}"

    def star(self, name):
        flags, more = STAR[name]
        workers, run = 2 if more.get("in_turn") else 3, self.next_run()
        server = self.serve("--rounds", ROUNDS, "--min-workers", workers, "--exit-when-finished", *flags, run=run)
        shards = [self.shard(server, which, run) for which in more.get("shards", "")]
        trainers = self.train_in_turn(server, workers) if more.get("in_turn") else self.train(server, workers, more.get("codec", "f32"))
        self.assert_exit(DONE, server, *shards)
        state = state_of(self.checkpoints(run)[-1])
        for one in trainers:
            self.assertEqual(hash_of_live(one.tensors), state["parameters"], "parameters of a worker differ from the checkpoint")
        return state

    def peers(self, name):
        exchange, flags, worker_flags, nodes = PEERS[name]
        run = self.next_run()
        server = self.serve("--exchange", exchange, "--rounds", ROUNDS, "--min-workers", len(nodes), "--exit-when-finished", *flags, run=run)
        workers = []
        for letter, node in zip("abc", nodes):
            place = ["--peer.node", node] if node else []
            workers.append(self.worker(server, f"{letter}-{run}", "--exchange", exchange, *worker_flags, *place, environment=EVERYWHERE))
        self.assert_exit(DONE, *workers, server)
        return state_of(self.checkpoints(run)[-1])

    def tables(self, servers):
        run = self.next_run()
        leader = self.serve("--tables", TABLES, "--servers", servers, run=run)
        shards = [self.shard(leader, which, run) for which in "xy"[: servers - 1]]
        if shards:
            leader.wait_buckets(servers)
        self.push(leader.data, 1, 90)
        found = self.rows_of(leader.data)
        leader.post("/v1/job:stop")
        self.assert_exit(DONE, leader, *shards)
        return {"rows": found}

    def probe(self):
        """Hash of results of BLAS and libm, with the routines that the workers use."""
        if platform.machine() != "x86_64":
            return f"processor {platform.machine()}"
        worker = pathlib.Path(self.programs) / "centroid-worker"
        linked = subprocess.run(["ldd", worker], capture_output=True, text=True, check=True).stdout.split()
        blas = next(word for word in linked if word.startswith("/") and "blas" in word)
        done = subprocess.run([sys.executable, "-c", PROBE, blas], capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin", "OPENBLAS_NUM_THREADS": "1", **EVERYWHERE})
        return done.stdout.strip()

    def expected(self, name):
        return json.loads(GOLDEN.read_text())[name]
