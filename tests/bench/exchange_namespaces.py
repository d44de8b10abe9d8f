#!/usr/bin/env python3
"""Star, ring and hierarchical exchange, compressed and not, between network namespaces that stand for machines on a slow network.

Makes one namespace for the server, one for each node of workers and one with a bridge, joined by veth pairs whose ends send at
most RATE (tc tbf), and runs centroid-bench-exchange in them: every row is compared with the first. Removes everything at the
end. Needs root, ip and tc; without them it says so and ends well.
"""

import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import sys

from collectives_namespaces import Network


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=root / "build/release/bin/centroid-bench-exchange", help="the benchmark")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--workers-per-node", type=int, default=1)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--mtu", type=int, default=1500)
    parser.add_argument("--contenders", help="EXCHANGE:CODEC;...; those of the benchmark by default")
    parser.add_argument("--parameters", type=int, default=25_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        print("skipped: needs root, ip and tc (package iproute2)")
        return 0
    # So that a signal leaves through __exit__.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    print(f"{options.rate}, {options.workers_per_node} workers on each node", flush=True)
    nodes = -(-options.workers // options.workers_per_node)
    with Network(1 + nodes, options.rate, options.mtu) as network:
        command = [options.program, "--workers", options.workers, "--workers-per-node", options.workers_per_node,
                   "--parameters", options.parameters, "--rounds", options.rounds, "--host", network.hosts[0],
                   "--namespaces", ",".join(network.names), "--hosts", ",".join(network.hosts)]  # fmt: skip
        if options.contenders:
            command += ["--contenders", options.contenders]
        return subprocess.run([str(word) for word in command], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
