#!/usr/bin/env python3
"""Training speed beside each attack on a budget of the server, by the undisturbed speed.

Usage: floods.py BIN_DIR [--seconds S] [--turns N] [--only NAME ...] [--pause S] [--bar RATIO]

Server and workers have processor 0, the attackers (tests/harness/floods.py) another one: on a machine with two processors they would
otherwise take from the workers what the server does not give them. In turns: S seconds alone, S seconds beside the attack. A turn
gives a ratio: the rounds/s during the attack, divided by the mean of the rounds/s before and after it. The figure is the median of N
turns. Beside it stand the refusals of the budget (centroid_budget_refused_total) and the connections, each per second. Exit status 1: a figure is below the bar, or a budget was not used up.
"""

import argparse
import contextlib
import multiprocessing
import os
import pathlib
import resource
import signal
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import cluster
from harness.certificates import TlsTest
from harness.floods import FLOODS, OF_FILES, OF_MEMBERS, OF_TLS, Target, ask
from verdict import verdict

FILES, ATTACKERS = 12_000, 2
OF_WORKERS = "metrics_connections"


def attack(name, target, pause):
    os.sched_setaffinity(0, set(range(1, os.cpu_count())))
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while True:
        with contextlib.suppress(OSError):
            FLOODS[name](target, lambda: True, pause)


@contextlib.contextmanager
def attacked(name, target, pause):
    processes = [multiprocessing.Process(target=attack, args=(name, target, pause), daemon=True) for _ in range(ATTACKERS)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
            process.join()


def rounds_a_second(server, seconds):
    first, begun = server.cluster()["round"], time.monotonic()
    time.sleep(seconds)  # lint-ok: the span of the measurement
    return (server.cluster()["round"] - first) / (time.monotonic() - begun)


class Beside(TlsTest):
    missed = 0

    def begin(self, *more, authority="", model="mlp:64-256-256-10"):
        target = Target("", "", authority=self.certificates / "ca.crt")
        server = self.launch_server("--optimizer", "sgd", "--lr", "0.001", "--epochs", "1000000", "--token", target.token, "--api.token", target.admin,
                                    "--api.viewer-token", target.viewer, "--min-workers", "2", "--max-workers", "8", *more, name=f"server-{len(self.processes)}",
                                    run=f"run-{len(self.processes)}").wait_ready()  # fmt: skip
        server.call = lambda method, path, body=None: ask(server.api, path, target.admin, method, body=body, authority=authority)
        target.data, target.api = server.data, server.api
        trust = self.trust if more else []
        for _ in range(2):
            worker = self.worker(server, f"w{len(self.processes)}", "--token", target.token, "--metrics.listen", "127.0.0.1:0", *trust, model=model, batch=64)
        target.metrics = worker.wait_event("worker.metrics_opened")["endpoint"]
        server.wait_round(50)
        return server, target

    def refused(self, server, target, name):
        """Refusals so far. The flood may take the answer's place too: then ask again."""
        until = time.monotonic() + 30
        while True:
            status, text = ask(target.metrics, "/metrics") if name == OF_WORKERS else server.call("GET", "/metrics")
            if status == 200:
                break
            self.assertLess(time.monotonic(), until, f"no metrics beside {name}: {status} {text[:200]}")
        return float(text.partition(f'centroid_budget_refused_total{{resource="{name}"}} ')[2].split()[0])

    def measure(self, server, target, name):
        options, ratios, refused = self.options, [], []
        before = rounds_a_second(server, options.seconds)
        for _ in range(options.turns):
            with attacked(name, target, options.pause):
                time.sleep(1)  # lint-ok: connections are being opened
                begun = 0 if name == OF_WORKERS else self.refused(server, target, name)
                beside = rounds_a_second(server, options.seconds)
                if name != OF_WORKERS:
                    refused.append(self.refused(server, target, name) - begun)
            if name == OF_WORKERS:
                refused.append(self.refused(server, target, name) - begun)
            time.sleep(1)  # lint-ok: connections end
            after = rounds_a_second(server, options.seconds)
            ratios.append(2 * beside / (before + after))
            before = after
        middle = statistics.median(ratios)
        print(f"{name}: {middle:.3f} of the rounds/s ({min(ratios):.3f} to {max(ratios):.3f}; {before:.0f} alone), {statistics.median(refused) / options.seconds:.0f} refusals/s", flush=True)
        Beside.missed += verdict(f"rounds/s beside {name}", middle, options.bar, at_least=True)
        Beside.missed += not all(refused)

    def runTest(self):  # noqa: N802
        wanted = self.options.only or [name for name in FLOODS if name not in OF_MEMBERS]
        plain = [name for name in wanted if name not in (*OF_TLS, *OF_FILES)]
        if plain:
            server, target = self.begin()
            for name in plain:
                self.measure(server, target, name)
            self.end_all()
        if set(OF_FILES) & set(wanted):
            server, target = self.begin(model="mlp:64-1024-1024-10")
            self.assertEqual(server.call("POST", "/v1/checkpoints")[0], 201)
            for name in OF_FILES:
                self.measure(server, target, name)
            self.end_all()
        if set(OF_TLS) & set(wanted):
            server, target = self.begin(*self.issue("server"), "--api.tls", authority=self.certificates / "ca.crt")
            for name in OF_TLS:
                if name in wanted:
                    self.measure(server, target, name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=FLOODS)
    parser.add_argument("--pause", type=float, default=0, help="seconds between two acts of an attacker")
    parser.add_argument("--bar", type=float, default=0, help="ratio; 0: none")
    Beside.options = parser.parse_args()
    Beside.programs = Beside.options.bin_dir.resolve()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES if hard == resource.RLIM_INFINITY else min(FILES, hard), hard))
    os.sched_setaffinity(0, {0})
    result = cluster.unittest.TextTestRunner(verbosity=0).run(Beside())
    sys.exit(0 if result.wasSuccessful() and not Beside.missed else 1)


if __name__ == "__main__":
    main()
