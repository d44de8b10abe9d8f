"""What it costs training to be watched: rounds per second with and without watchers, in turn, in one training job.

overhead.py BIN_DIR [--pairs N] [--seconds S] [--workers N] [--model SPEC] [--bar RATIO]
Watchers: Prometheus scraping the server and all workers each second (prometheus in PATH or in the folder OPS_PROMETHEUS), the console open in
Chromium (chromium, node and OPS_NODE_PACKAGES), and `centroidctl status --watch 1`. They are started once, and stopped (SIGSTOP) for the blocks
without them. Blocks are short and stand in the order AB BA AB ..., and each is compared with its neighbour only, so what else the machine does
falls on both; a block ends in the middle of a round, which counts with its fraction. Printed are the median of the ratios with its interval, for
rounds per second and for the processor time that server and workers spend on a round, which other programs disturb less. Watchers get only what
processor time the cluster leaves (SCHED_IDLE), as on real clusters they run on other machines; what is measured is what the cluster spends on them.
--bar: rounds per second, watched by alone, at least; all three watchers must be there and be answered, else it says nothing and is missed.
"""

import argparse
import bisect
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import ROOT
from harness.cluster import DIES_WITH_ITS_STARTER, digits, wait_for
from verdict import verdict

WATCHERS = {"status --watch", "Prometheus", "console"}
LEAST_ASKED = 2  # answers a second: what Prometheus and status --watch alone ask for; with fewer nobody was watching

CONSOLE = """
import { createRequire } from 'node:module'
const { chromium } = createRequire(process.argv[1] + '/package.json')('playwright-core')
const browser = await chromium.launch({ executablePath: process.argv[2], args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run'] })
const page = await browser.newPage()
await page.goto(process.argv[3])
await page.waitForSelector('.uplot')
console.log('open')
"""


def family(pid):
    """A process and all it has started, as /proc tells."""
    parents = {}
    for entry in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def send(pids, number):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def processor_seconds(pids):
    """Of all threads of these processes, in steps of nanoseconds."""
    files = [file for pid in pids for file in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


def interval(ratios):
    """Median, and between what it lies with 95 % confidence (percentile bootstrap of the pairs)."""
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(4000))
    low, high = medians[100], medians[-101]
    return f"median {statistics.median(ratios):.4f}, 95 % interval {low:.4f} to {high:.4f}, of {len(ratios)} pairs"


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder, self.children, self.own = options, folder, [], 0
        self.bin = pathlib.Path(options.programs)

    def start(self, *command, watcher=False, **more):
        idle = ["chrt", "--idle", "0"] if watcher else []  # only what the cluster leaves; children inherit it
        child = subprocess.Popen([*DIES_WITH_ITS_STARTER, *idle, *map(str, command)], **{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **more})
        self.children.append(child)
        return child

    def stop(self, children):
        for child in children:
            child.terminate()
        for child in children:
            child.wait()
            self.children.remove(child)

    def open(self, path):
        self.own += 1
        return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"http://{self.api}{path}", timeout=20)

    def get(self, path):
        with self.open(path) as reply:
            return json.loads(reply.read())

    def start_cluster(self):
        places, options = self.folder / "endpoints", self.options
        (self.folder / "digits.csv.gz").write_bytes(digits())
        server = [self.bin / "centroid-server", "--listen", "127.0.0.1:0", "--api.listen", "127.0.0.1:0", "--run-dir", self.folder / "run"]
        self.start(*server, "--endpoints-file", places, "--epochs", 10**9, "--min-workers", options.workers)
        wait_for(lambda: places.exists() and places.read_text(), "the server")
        found = json.loads(places.read_text())
        self.api, self.metrics = found["api"], []
        for number in range(options.workers):
            log = self.folder / f"w{number}.log"
            with log.open("wb") as out:
                worker = [self.bin / "centroid-worker", "--server", found["data"], "--name", f"w{number}", "--model", options.model]
                worker += ["--data-cache-dir", self.folder, "--metrics.listen", "127.0.0.1:0", "--log.format", "json"]
                self.start(*worker, stdout=out, stderr=out, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
            self.metrics.append(wait_for(lambda log=log: endpoint_in(log), f"{log}"))
        wait_for(lambda: self.get("/v1/cluster")["round"] > 20, "training")

    def watchers(self):
        """Start every watcher that this machine has; returns their names and processes."""
        started = {}
        watch = self.start(self.bin / "centroidctl", "--server", self.api, "status", "--watch", "1", watcher=True)
        started["status --watch"] = watch
        path = os.pathsep.join([os.environ.get("OPS_PROMETHEUS", ""), os.environ["PATH"]])
        if program := shutil.which("prometheus", path=path):
            config = self.folder / "prometheus.yml"
            targets = json.dumps([self.api, *self.metrics])
            config.write_text(f"global: {{scrape_interval: 1s}}\nscrape_configs: [{{job_name: centroid, static_configs: [{{targets: {targets}}}]}}]\n")
            storage = tempfile.mkdtemp(dir=self.folder)
            started["Prometheus"] = self.start(program, f"--config.file={config}", "--web.listen-address=127.0.0.1:0", f"--storage.tsdb.path={storage}", watcher=True)
        packages, browser = os.environ.get("OPS_NODE_PACKAGES", ROOT / ".cache" / "node"), shutil.which("chromium")
        if browser and shutil.which("node") and pathlib.Path(packages, "node_modules", "playwright-core").is_dir():
            script = self.folder / "console.mjs"
            script.write_text(CONSOLE)
            child = self.start("node", script, packages, browser, f"http://{self.api}/", watcher=True, stdout=subprocess.PIPE, text=True)
            child.stdout.readline()
            started["console"] = child
        return started

    def position(self, moment):
        """Rounds done at this moment of the clock, with a fraction, from the times at which rounds were opened."""

        def known():
            opened = {one["round"]: one["opened_unix_seconds"] for one in self.get("/v1/rounds?limit=1000")["rounds"]}
            return opened if max(opened.values()) > moment else None

        opened = wait_for(known, "the round behind the moment")
        numbers = sorted(opened)
        times = [opened[number] for number in numbers]
        at = bisect.bisect_right(times, moment) - 1
        return numbers[at] + (moment - times[at]) / (times[at + 1] - times[at])

    def block(self):
        """Rounds a second, and seconds of processor time that the cluster spends on a round."""
        begin, spent = time.time(), processor_seconds(self.cluster)
        first = self.position(begin)
        time.sleep(begin + self.options.seconds - time.time())  # lint-ok: the block that is measured
        end, spent = time.time(), processor_seconds(self.cluster) - spent
        rounds = self.position(end) - first
        return rounds / (end - begin), spent / rounds

    def requests(self):
        with self.open("/metrics") as reply:
            lines = reply.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("centroid_api_requests_total"))

    def run(self):
        self.start_cluster()
        self.cluster = [child.pid for child in self.children]
        watchers = self.watchers()
        options = self.options
        if options.bar and (missing := WATCHERS - watchers.keys()):
            raise SystemExit(f"--bar is of three watchers, and this machine has none of these: {', '.join(sorted(missing))} (./centroid test --ops fetches them)")
        print(f"watched by {', '.join(watchers)}; {options.workers} workers, {options.model}; {options.pairs} pairs of blocks of {options.seconds} s", flush=True)
        wait_for(lambda: self.get("/v1/cluster")["round"] > 200, "rounds of warming up")
        everybody = [pid for child in watchers.values() for pid in family(child.pid)]
        speed, cost, rates, asked = [], [], {True: [], False: []}, 0
        for pair in range(options.pairs):
            found = {}
            for watched in (False, True) if pair % 2 == 0 else (True, False):
                send(everybody, signal.SIGCONT if watched else signal.SIGSTOP)
                time.sleep(options.settle)  # lint-ok: what was asked before is answered
                before, own = self.requests(), self.own
                found[watched] = self.block()
                asked += self.requests() - before - (self.own - own) if watched else 0
                rates[watched].append(found[watched][0])
            speed.append(found[True][0] / found[False][0])
            cost.append(found[True][1] / found[False][1])
        send(everybody, signal.SIGCONT)
        print(f"alone {statistics.median(rates[False]):.1f} rounds/s, watched {statistics.median(rates[True]):.1f} (medians)")
        answered = asked / (options.pairs * options.seconds)
        print(f"the server answered {answered:.1f} requests a second of the watchers")
        print(f"rounds/s, watched / alone:                {interval(speed)}")
        print(f"processor time a round, watched / alone:  {interval(cost)}")
        missed = verdict("rounds/s, watched / alone, median,", statistics.median(speed), options.bar, at_least=True)
        return missed + verdict("answers to the watchers", answered, LEAST_ASKED if options.bar else 0, "a second", at_least=True)

    def close(self):
        self.stop(list(self.children))


def endpoint_in(log):
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith("{") and '"worker.metrics_opened"' in line:
            return json.loads(line)["endpoint"]
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs")
    parser.add_argument("--pairs", type=int, default=45)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--settle", type=float, default=0.1, help="seconds between switching and the block")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--model", default="mlp:64-512-512-10")
    parser.add_argument("--bar", type=float, default=0, help="exit status 1 when fewer rounds a second, watched by alone, are reached; 0: none")
    with tempfile.TemporaryDirectory(prefix="centroid-overhead-") as folder:
        bench = Bench(parser.parse_args(), pathlib.Path(folder))
        try:
            missed = bench.run()
        finally:
            bench.close()
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
