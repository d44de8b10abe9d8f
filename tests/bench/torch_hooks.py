#!/usr/bin/env python3
"""Steps of DDP with compressed gradients against gloo's dense ones, in turns within the same processes, on a slow network.

Usage: torch_hooks.py [LIBRARY] [--ranks 2] [--turns 4] [--rate 1gbit] [--check]

Each rank has a network namespace, and both ends of its cable send at most RATE (tc tbf). A step of 25.2 M parameters is 32 samples
forward, backward with the exchange, and SGD, on one thread; medians of rank 0. LIBRARY is libcentroid.so. Needs root, ip, tc, PyTorch.

Bar with --check: topk_hook(0.01) is 4 times as fast as gloo. Exit status: 1 it is missed, 77 something is not here.
"""

import argparse
import importlib
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness
from collectives_namespaces import Network
from torch_backend import SKIPPED, python_with_torch
from verdict import verdict

WIDTH, LAYERS, SAMPLES, STEPS = 2048, 6, 32, 3
HOOKS = {"topk_hook(0.01)": ("topk_hook", 0.01), "int8_hook()": ("int8_hook",), "bf16_hook()": ("bf16_hook",)}
CONTENDERS = ("gloo", "centroid", *HOOKS, "no exchange")  # the last one: the least that a step takes


class Rank:
    """What one rank measures; rank 0 prints."""

    def __init__(self):
        import torch
        import torch.distributed as dist

        self.torch, self.dist, self.hooks = torch, dist, importlib.import_module("centroid.torch")
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self.groups = {name: dist.new_group(backend=name) for name in ("gloo", "centroid")}
        self.x = torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(dist.get_rank()))

    def model(self, name):
        torch, nn = self.torch, self.torch.nn
        torch.manual_seed(0)
        plain = nn.Sequential(*[module for _ in range(LAYERS) for module in (nn.Linear(WIDTH, WIDTH), nn.ReLU())])
        parallel = plain
        if name != "no exchange":
            group = self.groups["gloo" if name == "gloo" else "centroid"]
            parallel = nn.parallel.DistributedDataParallel(plain, process_group=group, gradient_as_bucket_view=True)
        if name in HOOKS:
            make, *arguments = HOOKS[name]
            parallel.register_comm_hook(group, getattr(self.hooks, make)(*arguments))
        return parallel, torch.optim.SGD(parallel.parameters(), lr=0.1)

    def step(self, parallel, optimizer):
        optimizer.zero_grad(set_to_none=True)
        (parallel(self.x) - 1).square().mean().backward()
        optimizer.step()

    def run(self, turns):
        models = {name: self.model(name) for name in CONTENDERS}
        times = {name: [] for name in CONTENDERS}
        for turn in range(turns + 1):
            for name in CONTENDERS if turn % 2 else reversed(CONTENDERS):
                for _ in range(STEPS):
                    self.dist.barrier()
                    begin = time.perf_counter()
                    self.step(*models[name])
                    if turn:  # the first one warms up
                        times[name].append(time.perf_counter() - begin)
        if self.dist.get_rank() == 0:
            for name in CONTENDERS:
                print(f"{name}\t{statistics.median(times[name])}", flush=True)
        self.dist.barrier()


def measure(given, network):
    """Seconds of a step by contender."""
    library = {"LIBCENTROID": str(pathlib.Path(given.library).resolve())} if given.library else {}
    one = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "USE_LIBUV": "0", "PYTHONPATH": str(harness.PYTHON)}
    place = {"MASTER_ADDR": network.hosts[0], "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": "eth", "WORLD_SIZE": str(given.ranks)}
    command, ranks = [python_with_torch(), __file__, "--turns", str(given.turns)], []
    for rank, (name, host) in enumerate(zip(network.names, network.hosts)):
        own = {"RANK": str(rank), "CENTROID_HOST": host}
        words = ["ip", "netns", "exec", name, *command]
        ranks.append(subprocess.Popen(words, env={**os.environ, **one, **place, **library, **own}, stdout=subprocess.PIPE if rank == 0 else None, text=True))
    try:
        lines = ranks[0].communicate()[0].splitlines()
        if any(rank.wait() for rank in ranks):
            sys.exit("torch_hooks.py: a rank failed")
    finally:
        for rank in ranks:
            rank.kill()
    return {name: float(seconds) for name, seconds in (line.split("\t") for line in lines)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", nargs="?")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    if "RANK" in os.environ:
        Rank().run(given.turns)
        return 0
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        print("skipped: needs root, ip and tc (package iproute2)")
        return SKIPPED
    for number in (signal.SIGTERM, signal.SIGHUP):  # so that a signal leaves through __exit__
        signal.signal(number, lambda *_: sys.exit(1))
    with Network(given.ranks, given.rate, 1500) as network:
        seconds = measure(given, network)
    print(f"{'a step, ' + str(given.ranks) + ' ranks, ' + given.rate:32}{'seconds':>10}   times as fast as gloo")
    for name in CONTENDERS:
        print(f"{name:32}{seconds[name]:10.3f}{seconds['gloo'] / seconds[name]:10.2f}")
    return verdict("DDP step with topk_hook(0.01), gloo's time / ours", seconds["gloo"] / seconds["topk_hook(0.01)"], 4 if given.check else 0, at_least=True)


if __name__ == "__main__":
    sys.exit(main())
