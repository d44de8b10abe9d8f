"""What it costs training to be watched: rounds per second with and without watchers, in turn, in one training job.
Watchers are started once, and stopped (SIGSTOP) for the windows without them: short windows, many pairs, so that what else the machine does
falls on both sides.

overhead.py BIN_DIR [--pairs N] [--seconds S] [--workers N] [--model SPEC]
Watchers: Prometheus scraping the server and all workers each second (prometheus in PATH or in the folder OPS_PROMETHEUS), the console open in
Chromium (chromium, node and OPS_NODE_PACKAGES), and `centroidctl status --watch`. Watchers run at the lowest priority, as on real clusters they
run on other machines; what is measured is what the cluster spends on them.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "process")]
from cluster import die_with_parent, digits, wait_for  # noqa: E402

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


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder, self.children = options, folder, []
        self.bin = pathlib.Path(options.programs)

    def start(self, *command, watcher=False, **more):
        def prepare():
            die_with_parent()
            if watcher:
                os.nice(19)

        child = subprocess.Popen(list(map(str, command)), preexec_fn=prepare, **{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **more})
        self.children.append(child)
        return child

    def stop(self, children):
        for child in children:
            child.terminate()
        for child in children:
            child.wait()
            self.children.remove(child)

    def get(self, path):
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://{self.api}{path}", timeout=20) as reply:
            return json.loads(reply.read())

    def start_cluster(self):
        places, options = self.folder / "endpoints", self.options
        (self.folder / "digits.csv.gz").write_bytes(digits())
        server = [self.bin / "centroid-server", "--listen", "127.0.0.1:0", "--api", "127.0.0.1:0", "--run-dir", self.folder / "run"]
        self.start(*server, "--endpoints-file", places, "--epochs", 10**9, "--min-workers", options.workers)
        wait_for(lambda: places.exists() and places.read_text(), "the server")
        found = json.loads(places.read_text())
        self.api, self.metrics = found["api"], []
        for number in range(options.workers):
            log = self.folder / f"w{number}.log"
            with log.open("wb") as out:
                worker = [self.bin / "centroid-worker", "--server", found["data"], "--name", f"w{number}", "--model", options.model]
                worker += ["--data-cache-dir", self.folder, "--metrics-listen", "127.0.0.1:0", "--log-format", "json"]
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

    def rate(self):
        """Rounds per second over one window."""
        begin, first = time.monotonic(), self.get("/v1/cluster")["round"]
        time.sleep(self.options.seconds)  # lint-ok: the window that is measured
        return (self.get("/v1/cluster")["round"] - first) / (time.monotonic() - begin)

    def run(self):
        self.start_cluster()
        watchers = self.watchers()
        print(f"watched by {', '.join(watchers)}; {self.options.workers} workers, {self.options.model}", flush=True)
        wait_for(lambda: self.get("/v1/cluster")["round"] > 200, "rounds of warming up")
        everybody = [pid for child in watchers.values() for pid in family(child.pid)]
        ratios, rates = [], {True: [], False: []}
        for pair in range(self.options.pairs):
            found = {}
            for watched in (False, True) if pair % 2 == 0 else (True, False):
                for pid in everybody:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT if watched else signal.SIGSTOP)
                time.sleep(0.3)  # lint-ok: what was asked before is answered
                found[watched] = self.rate()
                rates[watched].append(found[watched])
            ratios.append(found[True] / found[False])
        for pid in everybody:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        ratios.sort()
        quarter = len(ratios) // 4
        print(f"alone {statistics.median(rates[False]):.1f} rounds/s, watched {statistics.median(rates[True]):.1f} (medians)")
        print(f"watched / alone: median {statistics.median(ratios):.3f} of {len(ratios)} pairs (quartiles {ratios[quarter]:.3f}, {ratios[-1 - quarter]:.3f})")

    def close(self):
        self.stop(list(self.children))


def endpoint_in(log):
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith("{") and '"worker.metrics_listening"' in line:
            return json.loads(line)["endpoint"]
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs")
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--model", default="mlp:64-512-512-10")
    with tempfile.TemporaryDirectory(prefix="centroid-overhead-") as folder:
        bench = Bench(parser.parse_args(), pathlib.Path(folder))
        try:
            bench.run()
        finally:
            bench.close()


if __name__ == "__main__":
    main()
