#!/usr/bin/env python3
"""PyTorch over the backend centroid and over gloo, in turns within the same processes.

Usage: torch_backend.py [LIBRARY] [--ranks 2] [--turns 8] [--what all_reduce ddp small reduce_scatter data_parallel fsdp] [--check]

LIBRARY is libcentroid.so; default: where the Python package finds it. Needs PyTorch, in this python3 or in /usr/bin/python3, and for fsdp
2.0 or later. Times are medians of rank 0; a step is forward, backward with the exchange, and SGD. data_parallel is
centroid.torch.DataParallel against DDP over gloo.

--check compares with BARS, which hold for 2 ranks, for fsdp with 4. Exit status: 1 a bar is missed, 77 no PyTorch here.
"""

import argparse
import importlib
import os
import pathlib
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness
from harness.cluster import free_port
from verdict import verdict

SKIPPED = 77
BACKENDS = ("gloo", "centroid")
MODELS = {  # width, layers, samples of a rank: 25.2 M and 121 k parameters
    "small": ("DDP", 200, 3, 32),
    "ddp": ("DDP", 2048, 6, 2),
    "data_parallel": ("DataParallel", 2048, 6, 2),
    "fsdp": ("FSDP", 2048, 6, 2),
}
BARS = {  # of gloo's time
    "all_reduce of 16384 KiB": 0.6,
    "DDP step of 0.12 M": 0.91,
    "DDP step of 25.18 M": 0.77,
    "DataParallel step of 25.18 M": 1.0,
    "FSDP step of 25.18 M": 0.5,
}


class Rank:
    """What one rank measures; rank 0 prints."""

    def __init__(self, turns):
        import torch
        import torch.distributed as dist

        importlib.import_module("centroid.torch_backend")  # registers it

        self.torch, self.dist, self.turns = torch, dist, turns
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self.groups = {name: dist.new_group(backend=name) for name in BACKENDS}

    def in_turns(self, what, runs, repeats):
        """`runs` by backend; prints the medians."""
        times = {name: [] for name in BACKENDS}
        for turn in range(self.turns + 1):
            for name in BACKENDS if turn % 2 else reversed(BACKENDS):
                for _ in range(repeats):
                    self.dist.barrier(self.groups["gloo"])
                    begin = time.perf_counter()
                    runs[name]()
                    if turn:  # the first one warms up
                        times[name].append(time.perf_counter() - begin)
        gloo, ours = (1000 * statistics.median(times[name]) for name in BACKENDS)
        if self.dist.get_rank() == 0:
            print(f"{what}\t{gloo:.3f}\t{ours:.3f}", flush=True)

    def all_reduce(self):
        for size, repeats in ((16 << 20, 4), (1 << 20, 10), (1 << 10, 40)):
            values = self.torch.ones(size // 4)
            runs = {name: lambda group=group: self.dist.all_reduce(values.fill_(1), group=group) for name, group in self.groups.items()}
            self.in_turns(f"all_reduce of {size >> 10} KiB", runs, repeats)

    def reduce_scatter(self):
        world = self.dist.get_world_size()
        parts = [self.torch.ones((16 << 20) // 4 // world) for _ in range(world)]
        out = self.torch.empty_like(parts[0])

        def by_all_reduce():  # what FSDP gets from PyTorch's gloo, which has none of its own before 2.7
            for rank, part in enumerate(parts):
                self.dist.all_reduce(part, group=self.groups["gloo"])
            out.copy_(parts[self.dist.get_rank()])

        runs = {"gloo": by_all_reduce, "centroid": lambda: self.dist.reduce_scatter(out, parts, group=self.groups["centroid"])}
        self.in_turns("reduce_scatter of 16384 KiB", runs, 3)

    def parallel(self, what, name, model, group):
        """A module that trains over `group`, which has the backend `name`."""
        if what == "fsdp":
            from torch.distributed.fsdp import FullyShardedDataParallel

            return FullyShardedDataParallel(model, process_group=group, device_id=self.torch.device("cpu"))
        if what == "data_parallel" and name == "centroid":
            return importlib.import_module("centroid.torch").DataParallel(model, os.environ["PEERS"], rank=self.dist.get_rank(), world=self.dist.get_world_size())
        return self.torch.nn.parallel.DistributedDataParallel(model, process_group=group)

    def train(self, what):
        torch, nn = self.torch, self.torch.nn
        label, width, layers, samples = MODELS[what]
        x = torch.randn(samples, width, generator=torch.Generator().manual_seed(self.dist.get_rank()))
        runs, losses = {}, {name: [] for name in BACKENDS}
        for name, group in self.groups.items():
            torch.manual_seed(0)
            plain = nn.Sequential(*[module for _ in range(layers) for module in (nn.Linear(width, width), nn.ReLU())])
            count = sum(parameter.numel() for parameter in plain.parameters())
            model = self.parallel(what, name, plain, group)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

            def step(name=name, model=model, optimizer=optimizer):
                optimizer.zero_grad()
                loss = (model(x) - 1).square().mean()
                loss.backward()
                optimizer.step()
                losses[name].append(loss.item())

            runs[name] = step
        self.in_turns(f"{label} step of {count / 1e6:.2f} M", runs, 20 if what == "small" else 2)
        furthest = max(abs(one - other) for one, other in zip(*losses.values()))
        if self.dist.get_rank() == 0:
            print(f"# losses differ by at most {furthest:.1e}", flush=True)

    def run(self, what):
        for name in what:
            self.train(name) if name in MODELS else getattr(self, name)()
        self.dist.barrier()


def python_with_torch():
    for place in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([place, "-c", "import torch"], capture_output=True, check=False).returncode == 0:
            return place
    print("torch_backend needs PyTorch (Debian: apt-get install python3-torch libopenblas0-pthread)", file=sys.stderr)
    sys.exit(SKIPPED)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", nargs="?")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--what", nargs="+", default=["all_reduce", "reduce_scatter", "small", "ddp", "data_parallel"], choices=["all_reduce", "reduce_scatter", *MODELS])
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    if "RANK" in os.environ:
        Rank(given.turns).run(given.what)
        return 0
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo", "USE_LIBUV": "0"}
    quiet = {"PYTHONPATH": str(harness.PYTHON), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "WORLD_SIZE": str(given.ranks), "PEERS": f"127.0.0.1:{free_port()}"}
    library = {"LIBCENTROID": str(pathlib.Path(given.library).resolve())} if given.library else {}
    command = [python_with_torch(), __file__, *sys.argv[1:]]
    ranks = [subprocess.Popen(command, env={**os.environ, **place, **quiet, **library, "RANK": str(rank)}, stdout=subprocess.PIPE if rank == 0 else None, text=True) for rank in range(given.ranks)]
    print(f"{'ms, ' + str(given.ranks) + ' ranks':32}{'gloo':>10}{'centroid':>10}   centroid / gloo")
    missed = 0
    for line in ranks[0].stdout:
        what, *times = line.rstrip("\n").split("\t")
        if not times:
            print(what, flush=True)
            continue
        gloo, ours = map(float, times)
        print(f"{what:32}{gloo:10.2f}{ours:10.2f}{ours / gloo:10.2f}", flush=True)
        if given.check and what in BARS:
            missed |= verdict(f"{what}, of gloo's time", ours / gloo, BARS[what])
    return max([missed, *[rank.wait() for rank in ranks]])


if __name__ == "__main__":
    sys.exit(main())
