#!/usr/bin/env python3
"""Compare two builds by twelve benchmarks of docs/internals/benchmarks.md, in turns.

Usage: paired.py OLD_BIN NEW_BIN [--turns 7] [--only NAME ...]

The folders contain the programs and benchmarks of each build (build/release/bin). A benchmark runs with OLD, with NEW, with OLD, and so on; a
run with OLD and the next one with NEW are a pair. Every figure is a cost (rates are inverted), and a pair gives the ratio new / old, so
that other load on the machine affects both sides. The program prints the median of the ratios and an interval that contains the true median with
at least 95 % confidence, whatever the distribution: of the sorted ratios the k-th from each end, with the largest k for which
2 * P(binomial(turns, 1/2) < k) is at most 5 %. Of 7 pairs these are the least and the greatest (98.4 %). Fewer than 6 give no interval.

Exit status 1: an interval lies wholly above 1.05. With one build on both sides no benchmark may be reported slower.

name                what it stands for
push-bulk           32 tensors of 4 MiB pushed, summed and sent back: a round with 1 and with 4 workers
push-64-bytes       a small request: one push of one row, answered
store-step          the optimizer's pass over the parameters: a step of Nesterov and of AdamW, by a[i] += b[i] over as much memory
rows-updates        tables: server processor time of an updated row, without a journal and with one
durability          a round with the journal on, fdatasync every second
memory              the server's largest resident memory with 6 workers
star-exchange       a round of the star exchange with Adam on the server: wall time and the server's processor time
all-reduce          collectives: 64 KiB and 16 MiB among 2 ranks over TCP
codecs              encoding and adding: int8, sign and top-k, each by a plain pass over as much memory
recovery            seconds until workers train again after SIGKILL of the server
beside-checkpoints  server processor time of a push while checkpoints are written
robust-aggregate    median and trimmed mean of 8 contributions
"""

import argparse
import dataclasses
import json
import math
import pathlib
import re
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
SLOWER = 1.05
CONFIDENCE = 0.95
RUN_SECONDS = 300


class Output(str):
    """The output of a program."""

    def number(self, pattern):
        """The first group of the first match."""
        found = re.search(pattern, self, re.MULTILINE)
        if found is None:
            raise SystemExit(f"no {pattern!r} in\n{self}")
        return float(found[1])

    def json(self):
        return json.loads(self)


def run(command, until=None, statuses=(0,)):
    """Run a program to its end, or with `until` to the first line that matches. Returns its output."""
    command = list(map(str, command))
    child = subprocess.Popen(["stdbuf", "-oL", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines, is_cut = [], False
    for line in child.stdout:
        lines.append(line)
        if until and re.search(until, line):
            is_cut = True
            child.terminate()
            break
    _, errors = child.communicate(timeout=RUN_SECONDS)
    if child.returncode not in statuses and not is_cut:
        raise SystemExit(f"{' '.join(command)}: exit status {child.returncode}\n{''.join(lines)}{errors}")
    return Output("".join(lines))


def push_bulk(bin_dir):
    out = run([bin_dir / "centroid-bench-push", "--small=false", "--rounds", 12])
    return {f"{workers} workers, ms a round": out.number(rf"^{workers} +(?!.*raw).* +([\d.]+) +[\d.]+ +[\d.]+ +[\d.]+$") for workers in (1, 4)}


def push_small(bin_dir):
    out = run([bin_dir / "centroid-bench-push", "--bulk=false", "--trips", 1000, "--turns", 7])
    return {"us a push": out.number(r"^a push of one row of dim 14 +([\d.]+)")}


def store_step(bin_dir):
    out = run([bin_dir / "centroid-bench-store"], until=r"^adamw step +\d")
    return {f"{rule}, by the loop": 100 / out.number(rf"^{rule} step +(\d+) %") for rule in ("nesterov", "adamw")}


def rows_updates(bin_dir):
    found = run([bin_dir / "centroid-bench-rows", "--only", "rates", "--rows", 250_000, "--batches", 400, "--json"]).json()
    return {f"{name}, us of the server a row": 1e6 / found[name]["per_server_cpu_second"] for name in ("updated", "journal_1s")}


def durability(bin_dir):
    out = run([bin_dir / "centroid-bench-durability", "--parameters", 5_000_000, "--rounds", 60, "--block", 12])
    return {"ms a round": out.number(r"^journal, fdatasync every second +(\d+)"), "ms of the server a round": out.number(r"^journal, fdatasync every second +\d+ +\d+ +\d+ +(\d+)")}


def memory(bin_dir):
    out = run([bin_dir / "centroid-bench-memory", "--parameters", 50_000_000, "--seconds", 0, "--rounds", 3])
    return {"GB at most": out.number(r"peak ([\d.]+) GB")}


def star_exchange(bin_dir):
    flags = ["--optimizer", "adam", "--apply", "server", "--rounds", 12, "--memory=false", "--json"]
    cluster = run([bin_dir / "centroid-bench-star", *flags]).json()["rounds"][-1]
    return {"s a round": cluster["median_seconds"], "s of the server a round": cluster["server_cpu_seconds"]}


def all_reduce(bin_dir):
    flags = ["--ranks", 2, "--sizes", "65536,16777216", "--rounds", 5, "--seconds", 0.15, "--only", "centroid", "--format", "json"]
    return {f"{one['bytes']} bytes, us": one["p50_us"] for one in run([bin_dir / "centroid-bench-collectives", *flags]).json()}


def codecs(bin_dir):
    flags = ["--elements", 4_000_000, "--repetitions", 15]
    parts = {"dense": {"int8": r"int8, nearest / memcpy", "int8, added": r"dequantise and accumulate / memcpy"},
             "sign": {"sign": r"sign / memcpy", "sign, added": r"decode and accumulate / memcpy"},
             "feedback": {"top-k": r"add and select 1 % / add"}}  # fmt: skip
    found = {}
    for part, rows in parts.items():
        out = run([bin_dir / "centroid-bench-codecs", "--only", part, *flags], statuses=(0, 1))  # 1: a bar is missed
        found |= {name: out.number(rf"^{row} +([\d.]+)") for name, row in rows.items()}
    return found


def recovery(bin_dir):
    out = run([sys.executable, HERE / "recovery.py", bin_dir, "--kills", 3, "--model", "mlp:64-2000-2000-10"])
    took = [float(line.split()[4]) for line in out.splitlines() if re.match(r" +\d+ +\d+ +\d+ ", line)]
    return {"s until training": statistics.median(took)}


def beside_checkpoints(bin_dir):
    flags = ["--only", "checkpoints", "--clients", 1, "--rows", 500_000, "--turns", 3, "--turn", "1s", "--json"]
    return {"ms of the server a push": run([bin_dir / "centroid-bench-rows", *flags]).json()["checkpoints"]["beside"]["server_cpu_ms"]}


def robust_aggregate(bin_dir):
    out = run([bin_dir / "centroid-bench-robust", "--elements", 400_000, "--repetitions", 7])
    row = r"^f32 +8 +[\d.]+ +[\d.]+ +"
    return {"median, ns a number": out.number(row + r"([\d.]+)"), "trimmed mean, ns a number": out.number(row + r"[\d.]+ +[\d.]+ +([\d.]+)")}


BENCHMARKS = {
    "push-bulk": push_bulk,
    "push-64-bytes": push_small,
    "store-step": store_step,
    "rows-updates": rows_updates,
    "durability": durability,
    "memory": memory,
    "star-exchange": star_exchange,
    "all-reduce": all_reduce,
    "codecs": codecs,
    "recovery": recovery,
    "beside-checkpoints": beside_checkpoints,
    "robust-aggregate": robust_aggregate,
}


@dataclasses.dataclass(frozen=True)
class Comparison:
    median: float
    low: float
    high: float
    confidence: float  # that the interval has the true median; 0: too few pairs for one

    @property
    def is_slower(self):
        return self.confidence > 0 and self.low > SLOWER


def compare(ratios):
    """The median of paired ratios, and its interval by order statistics."""
    ordered, n = sorted(ratios), len(ratios)
    outside = lambda k: 2 * sum(math.comb(n, i) for i in range(k)) / 2**n  # the median is below the k-th, or above the k-th from the end
    k = max((k for k in range(1, n // 2 + 1) if outside(k) <= 1 - CONFIDENCE), default=0)
    low, high = (ordered[k - 1], ordered[-k]) if k else (-math.inf, math.inf)
    return Comparison(statistics.median(ordered), low, high, 1 - outside(k) if k else 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=pathlib.Path)
    parser.add_argument("new", type=pathlib.Path)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--only", nargs="+", choices=list(BENCHMARKS), default=list(BENCHMARKS), metavar="NAME")
    options = parser.parse_args()
    slower = []
    for name in options.only:
        begin, pairs = time.monotonic(), []
        for _ in range(options.turns):
            pairs.append([BENCHMARKS[name](side.resolve()) for side in (options.old, options.new)])
        print(f"{name} ({time.monotonic() - begin:.0f} s)")
        for figure in pairs[0][0]:
            found = compare([new[figure] / old[figure] for old, new in pairs])
            old, new = (statistics.median(pair[side][figure] for pair in pairs) for side in (0, 1))
            print(f"  {figure:34} {old:10.4g} {new:10.4g}   new / old {found.median:.3f} ({found.low:.3f} to {found.high:.3f}){'  SLOWER' if found.is_slower else ''}", flush=True)
            if found.is_slower:
                slower.append(f"{name}, {figure}")
    print(f"{len(slower)} figures slower by more than {SLOWER - 1:.0%}: {'; '.join(slower) or 'none'}")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
