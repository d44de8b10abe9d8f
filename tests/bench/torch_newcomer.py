#!/usr/bin/env python3
"""Rounds of a Trainer without settings against steps of DDP over gloo, in turns within the same processes, on a slow network.

Usage: torch_newcomer.py BIN [LIBRARY] [--ranks 2] [--turns 4] [--rate 1gbit] [--only "codec topk:0.01"] [--check]

Each rank, and the servers together, has a network namespace, and both ends of its cable send at most RATE (tc tbf). A step of 25.2 M
parameters is 32 samples forward, backward, the exchange and AdamW, on one thread; medians of rank 0, and the processor time of its process. BIN has centroid-server, LIBRARY is
libcentroid.so. The servers have default settings but for the optimizer; the workers' codec, if there is one, is the only setting.
Needs root, ip, tc, PyTorch.

Bar with --check: without a setting at most 1.05 times DDP's time. Exit status: 1 it is missed, 77 something is not here.
"""

import argparse
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness
from collectives_namespaces import Network
from torch_backend import SKIPPED, python_with_torch
from verdict import verdict

WIDTH, LAYERS, SAMPLES, STEPS, LR = 2048, 6, 32, 3, 1e-4
WAYS = {"no setting": (), "codec int8": ("int8",), "codec topk:0.01": ("topk:0.01",), "server: exchange star": ()}
PORT, TOKEN = 7070, "a benchmark's token"


class Rank:
    """What one rank measures; rank 0 prints."""

    def __init__(self, server, ways):
        import centroid
        import torch
        import torch.distributed as dist

        self.torch, self.dist, self.trainers = torch, dist, {}
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        self.x = torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(rank))
        self.models = {name: self.model() for name in ("gloo", *ways)}
        self.parallel = torch.nn.parallel.DistributedDataParallel(self.models["gloo"], gradient_as_bucket_view=True)
        self.optimizer = torch.optim.AdamW(self.parallel.parameters(), lr=LR)
        for number, name in enumerate(ways):
            settings = {"codec": WAYS[name][0]} if WAYS[name] else {}
            self.trainers[name] = centroid.Trainer(f"{server}:{PORT + number}", self.models[name], samples=10**9, batch=SAMPLES, token=TOKEN, name=f"rank{rank}", **settings)

    def model(self):
        nn = self.torch.nn
        self.torch.manual_seed(0)
        return nn.Sequential(*[module for _ in range(LAYERS) for module in (nn.Linear(WIDTH, WIDTH), nn.ReLU())])

    def step(self, name):
        if name == "gloo":
            self.optimizer.zero_grad(set_to_none=True)
            (self.parallel(self.x) - 1).square().mean().backward()
            self.optimizer.step()
            return
        trainer, model = self.trainers[name], self.models[name]
        next(trainer)
        model.zero_grad(set_to_none=True)
        (model(self.x) - 1).square().mean().backward()
        trainer.finish()

    def run(self, turns):
        names = list(self.models)
        times = {name: [] for name in names}
        for turn in range(turns + 1):
            for name in names if turn % 2 else reversed(names):
                for _ in range(STEPS):
                    self.dist.barrier()
                    begin = time.perf_counter(), time.process_time()
                    self.step(name)
                    if turn:  # the first one warms up
                        times[name].append((time.perf_counter() - begin[0], time.process_time() - begin[1]))
        if self.dist.get_rank() == 0:
            for name in names:
                print(name, *map(statistics.median, zip(*times[name])), sep="\t", flush=True)
        self.dist.barrier()
        for trainer in self.trainers.values():
            trainer.close()


def start_servers(given, namespace, host, folder):
    token = folder / "token"
    token.write_text(TOKEN)
    servers = []
    for number, name in enumerate(given.only):
        flags = ["--listen", f"{host}:{PORT + number}", "--token-file", token, "--run-dir", folder / str(number), "--min-workers", str(given.ranks), "--api.listen", "127.0.0.1:0", "--log.level", "warn"]
        flags += ["--optimizer", "adamw", "--lr", str(LR), *(["--exchange", "star"] if "star" in name else [])]
        servers.append(subprocess.Popen(["ip", "netns", "exec", namespace, pathlib.Path(given.bin) / "centroid-server", *flags]))
    return servers


def measure(given, network, folder):
    """Seconds of a step, and those of a processor, by contender."""
    library = {"LIBCENTROID": str(pathlib.Path(given.library).resolve())} if given.library else {}
    one = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "USE_LIBUV": "0", "PYTHONPATH": str(harness.PYTHON)}
    place = {"MASTER_ADDR": network.hosts[0], "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": "eth", "WORLD_SIZE": str(given.ranks)}
    processes = start_servers(given, network.names[-1], network.hosts[-1], folder)
    command, ranks = [python_with_torch(), __file__, given.bin, "--turns", str(given.turns), "--server", network.hosts[-1], "--only", *given.only], []
    for rank, name in enumerate(network.names[:-1]):
        words = ["ip", "netns", "exec", name, *command]
        ranks.append(subprocess.Popen(words, env={**os.environ, **one, **place, **library, "RANK": str(rank)}, stdout=subprocess.PIPE if rank == 0 else None, text=True))
    try:
        lines = ranks[0].communicate()[0].splitlines()
        if any(rank.wait() for rank in ranks):
            sys.exit("torch_newcomer.py: a rank failed")
    finally:
        for process in (*ranks, *processes):
            process.kill()
            process.wait()
    return {name: tuple(map(float, seconds)) for name, *seconds in (line.split("\t") for line in lines)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bin")
    parser.add_argument("library", nargs="?")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--only", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--server", help=argparse.SUPPRESS)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    if "RANK" in os.environ:
        Rank(given.server, given.only).run(given.turns)
        return 0
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        print("skipped: needs root, ip and tc (package iproute2)")
        return SKIPPED
    for number in (signal.SIGTERM, signal.SIGHUP):  # so that a signal leaves through __exit__
        signal.signal(number, lambda *_: sys.exit(1))
    with Network(given.ranks + 1, given.rate, 1500) as network, tempfile.TemporaryDirectory() as folder:
        seconds = measure(given, network, pathlib.Path(folder))
    print(f"{'a step, ' + str(given.ranks) + ' workers, ' + given.rate:32}{'seconds':>10}   of DDP's time{'processor':>12}")
    for name, (one, processor) in seconds.items():
        print(f"{name:32}{one:10.3f}{one / seconds['gloo'][0]:16.2f}{processor:12.3f}")
    plain = seconds.get("no setting", seconds["gloo"])
    return verdict("a round without settings, of DDP's time", plain[0] / seconds["gloo"][0], 1.05 if given.check else 0)


if __name__ == "__main__":
    sys.exit(main())
