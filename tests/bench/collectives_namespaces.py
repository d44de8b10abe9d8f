#!/usr/bin/env python3
"""All-reduce between network namespaces that stand for machines on a slow network.

Makes one namespace per rank and one with a bridge, joined by veth pairs whose ends both send at most RATE (tc tbf), runs
centroid-bench-collectives with a rank in each, and compares with the time that the bytes of an ideal all-reduce take:
2(N-1)/N * D / rate, as such and with the headers of Ethernet, IP and TCP. Removes everything at the end. Needs root, ip and tc;
without them it says so and ends well.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

HEADERS = 14 + 20 + 32  # Ethernet, IP, TCP with timestamps


def run(*command):
    subprocess.run(command, check=True)


class Network:
    """Namespaces around a bridge; a context, so that they go whatever happens."""

    def __init__(self, ranks, rate, mtu, congestion_control="reno"):
        self.prefix = f"cb{os.getpid()}"
        self.hub = f"{self.prefix}hub"
        self.names = [f"{self.prefix}r{rank}" for rank in range(ranks)]
        self.hosts = [f"10.77.0.{rank + 1}" for rank in range(ranks)]
        self.rate = rate
        self.mtu = mtu
        self.congestion_control = congestion_control

    def __enter__(self):
        try:
            self.make()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_):
        self.remove()

    def make(self):
        run("ip", "netns", "add", self.hub)
        run("ip", "-n", self.hub, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", self.hub, "link", "set", "bridge", "mtu", str(self.mtu), "up")
        for name, host in zip(self.names, self.hosts):
            port = f"p{host.rsplit('.', 1)[1]}"
            run("ip", "netns", "add", name)
            run("ip", "-n", self.hub, "link", "add", port, "mtu", str(self.mtu), "type", "veth",
                "peer", "name", "eth", "netns", name)
            run("ip", "-n", name, "link", "set", "eth", "mtu", str(self.mtu))
            run("ip", "-n", self.hub, "link", "set", port, "master", "bridge", "up")
            run("ip", "-n", name, "address", "add", f"{host}/24", "dev", "eth")
            run("ip", "-n", name, "link", "set", "eth", "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
            for where, device in ((self.hub, port), (name, "eth")):
                run("tc", "-n", where, "qdisc", "add", "dev", device, "root", "tbf", "rate", self.rate,
                    "burst", self.burst(), "latency", "50ms")
            run("ip", "netns", "exec", name, "sh", "-c",
                f"echo {self.congestion_control} >/proc/sys/net/ipv4/tcp_congestion_control")

    def burst(self):
        """Bytes that pass at once: those of 10 ms, at most 1 MiB. On a slow link more would let messages pass at any speed."""
        return f"{round(min(max(bits_per_second(self.rate) / 800, 1 << 16), 1 << 20))}b"

    def remove(self):
        # Devices and their other ends go with their namespaces.
        for name in [*self.names, self.hub]:
            subprocess.run(["ip", "netns", "delete", name], check=False, stderr=subprocess.DEVNULL)


def measure(program, network, sizes, rounds, only):
    command = [program, "--ranks", str(len(network.names)), "--sizes", ",".join(map(str, sizes)),
               "--rounds", str(rounds), "--seconds", "0.5", "--format", "json",
               "--only", only,
               "--namespaces", ",".join(network.names), "--hosts", ",".join(network.hosts)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def bits_per_second(rate):
    for unit, factor in (("gbit", 1e9), ("mbit", 1e6)):
        if rate.endswith(unit):
            return float(rate[: -len(unit)]) * factor
    raise SystemExit(f"a rate such as 1gbit or 500mbit, not {rate}")


def show(rows, rate, mtu):
    print(f"{'ranks':>5} {'MiB':>5} {'name':<18} {'ms':>8} {'/ ideal':>8} {'/ ideal with headers':>20} {'centroid / this':>16}")
    ours = {(row["ranks"], row["bytes"]): row["p50_us"] for row in rows if row["name"] == "centroid"}
    for row in rows:
        ranks, size = row["ranks"], row["bytes"]
        ideal = 2 * (ranks - 1) / ranks * size * 8 / bits_per_second(rate)
        with_headers = ideal * (mtu + 14) / (mtu + 14 - HEADERS)
        seconds = row["p50_us"] / 1e6
        print(f"{ranks:5} {size >> 20:5} {row['name']:<18} {seconds * 1e3:8.1f} {seconds / ideal:8.3f} "
              f"{seconds / with_headers:20.3f} {ours[ranks, size] / row['p50_us']:16.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=None, help="centroid-bench-collectives (build/release/bin)")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--sizes", default=f"{16 << 20},{64 << 20}", help="bytes")
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--mtu", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="limit,centroid,gloo_new_ring,gloo_ring_chunked", help="with connections: several per pair")
    arguments = parser.parse_args()
    root = pathlib.Path(__file__).resolve().parents[2]
    program = arguments.program or str(root / "build/release/bin/centroid-bench-collectives")
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        print("skipped: needs root, ip and tc (package iproute2)")
        return 0
    if not os.access(program, os.X_OK):
        sys.exit(f"{program} is not there; build it with: ./centroid bench collectives")
    # So that a signal leaves through __exit__.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    rows = []
    for ranks in map(int, arguments.ranks.split(",")):
        with Network(ranks, arguments.rate, arguments.mtu) as network:
            rows += measure(program, network, list(map(int, arguments.sizes.split(","))), arguments.rounds, arguments.only)
    show(rows, arguments.rate, arguments.mtu)
    return 0


if __name__ == "__main__":
    sys.exit(main())
