#!/usr/bin/env python3
"""A step of a sharded model: this project's beside PyTorch's FSDP over gloo, on the CPU of this machine, in turns.

Usage: sharded_fsdp.py [--python "python3"] [--program build/release/bin/centroid-bench-sharded] [--ranks 2,4] [--turns 3] [--steps 5] [--out FILE]

--python is the command of a Python with PyTorch, which may be of another root: --python "chroot /srv/trixie python3".

Both train six Linear(2048, 2048) + ReLU (25.2 million parameters) with SGD, two samples and one thread a rank. FSDP has the whole model as one unit;
this project gathers layer by layer. A turn is a run of one and then of the other; the figure of a turn is the median of its steps, and the result is
the median of the turns' ratios. The bar is a third of FSDP's time, over TCP as gloo.

Exit status: 0 within the bar, 1 a step is slower, 2 wrong arguments or a program that failed, 77 that Python has no PyTorch with FSDP and gloo.
"""

import argparse
import contextlib
import json
import os
import re
import shlex
import socket
import statistics
import subprocess
import sys

SKIPPED = 77
BAR = 1 / 3
RUN_SECONDS = 600

# Of one rank; its arguments are rank, world, port and steps. Rank 0 prints the seconds of a step.
FSDP = r"""
import statistics, sys, time
rank, world, port, steps = map(int, sys.argv[1:])
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
torch.set_num_threads(1)
torch.manual_seed(1)
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
layers = [layer for _ in range(6) for layer in (torch.nn.Linear(2048, 2048), torch.nn.ReLU())]
model = FSDP(torch.nn.Sequential(*layers), device_id=torch.device("cpu"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(2, 2048), torch.randint(0, 2048, (2,))
taken = []
for step in range(2 + steps):
    dist.barrier()
    begin = time.perf_counter()
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    dist.barrier()
    taken.append(time.perf_counter() - begin)
if rank == 0:
    print("seconds", statistics.median(taken[2:]), torch.__version__, flush=True)
"""


def fail(why, status=2):
    print(f"sharded_fsdp: {why}", file=sys.stderr)
    sys.exit(status)


def free_port():
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        return taken.getsockname()[1]


def check_torch(python):
    """Exit if that Python cannot run FSDP."""
    probe = "import torch; from torch.distributed.fsdp import FullyShardedDataParallel; assert torch.distributed.is_gloo_available()"
    try:
        done = subprocess.run([*python, "-c", probe], capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
    except OSError as failure:
        fail(f"{shlex.join(python)} cannot be run: {failure}")
    if done.returncode != 0:
        fail(f"{shlex.join(python)} has no PyTorch with FSDP and gloo: {done.stderr.strip().splitlines()[-1:]}", SKIPPED)


def time_fsdp(python, world, steps):
    """Seconds of a step, and PyTorch's version."""
    port = free_port()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "USE_LIBUV": "0"}
    ranks = [
        subprocess.Popen([*python, "-c", FSDP, *map(str, (rank, world, port, steps))], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        for rank in range(world)
    ]
    try:
        outputs = [rank.communicate(timeout=RUN_SECONDS) for rank in ranks]
    except subprocess.TimeoutExpired:
        fail(f"FSDP on {world} ranks did not end within {RUN_SECONDS} s")
    finally:
        for rank in ranks:
            rank.kill()
    for rank, (_, errors) in zip(ranks, outputs):
        if rank.returncode != 0:
            fail(f"FSDP ended with {rank.returncode}: {errors.strip()[-2000:]}")
    told = [line.split() for line in outputs[0][0].splitlines() if line.startswith("seconds ")]  # PyTorch may print more
    _, seconds, version = told[0]
    return float(seconds), version


def time_own(program, steps):
    """Seconds of a step over TCP, by ranks."""
    try:
        run = subprocess.run([program, "--only", "layers", "--repeats", str(steps)], capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as failure:
        fail(f"{program} cannot be run: {failure}; build centroid-bench-sharded, or say --program")
    found = re.findall(r"(\d+) ranks, TCP: ([\d.]+) s a step", run.stdout)
    if run.returncode != 0 or not found:
        fail(f"{program} ended with {run.returncode}: {run.stderr.strip()}")
    return {int(ranks): float(seconds) for ranks, seconds in found}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="python3", help="command of a Python with PyTorch")
    parser.add_argument("--program", default="build/release/bin/centroid-bench-sharded")
    parser.add_argument("--ranks", default="2,4", help="of 2 and 4")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--out", help="write the results there, as JSON")
    arguments = parser.parse_args()
    python, worlds = shlex.split(arguments.python), [int(ranks) for ranks in arguments.ranks.split(",")]
    if not set(worlds) <= {2, 4}:
        fail("--ranks: centroid-bench-sharded measures 2 and 4")
    check_torch(python)
    turns, version = {world: [] for world in worlds}, ""
    for _ in range(arguments.turns):
        own = time_own(arguments.program, arguments.steps)
        for world in worlds:
            fsdp, version = time_fsdp(python, world, arguments.steps)
            turns[world].append({"own_seconds": own[world], "fsdp_seconds": fsdp, "ratio": own[world] / fsdp})
    missed = False
    for world, found in turns.items():
        own, fsdp, ratio = (statistics.median(turn[key] for turn in found) for key in ("own_seconds", "fsdp_seconds", "ratio"))
        low, high = (limit(turn["ratio"] for turn in found) for limit in (min, max))
        missed = missed or ratio > BAR
        print(
            f"{world} ranks: own {own:.3f} s, FSDP of PyTorch {version} {fsdp:.3f} s a step, ratio {ratio:.2f} ({low:.2f} to {high:.2f}, "
            f"{len(found)} turns, bar {BAR:.2f}){' MISSED' if ratio > BAR else ''}"
        )
    if arguments.out:
        with open(arguments.out, "w", encoding="utf-8") as file:
            json.dump({"command": ["python3", *sys.argv], "torch": version, "turns": turns}, file, indent=2)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
