"""Groups of real processes for tests of collectives: each rank is a program of its own, without a server."""

import atexit
import functools
import os
import pathlib
import subprocess
import textwrap
import threading
import unittest

from harness import PYTHON
from harness.cluster import ClusterTest, DEADLINE_SECONDS, Process, free_port, wait_for
from harness.forks import Forks
import centroid

HEAD = r"""
import array, os, signal, sys, threading, time
import centroid
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\n")  # in one piece: threads say things too
    sys.stdout.flush()
def floats(*values):
    return array.array("f", values)
def ends_with(what, run):
    try:
        run()
        say(what, "went well")
    except centroid.CentroidError as error:
        say(what, error, f"at {time.time()}")
"""
TORCH = """
import datetime, torch, torch.distributed as dist
import centroid.torch_backend
torch.set_num_threads(1)
dist.init_process_group(os.environ.get("BACKEND", "centroid"), timeout=datetime.timedelta(seconds=60))
"""
all_forks, forks_lock = {}, threading.Lock()  # by interpreter
JOIN = "group = centroid.join(timeout=60)\n"


@functools.lru_cache
def has(python, module):
    return subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0


class GroupTest(ClusterTest):
    """Runs programs as ranks: `rank`, `world`, `group` and `say` are known to them."""

    def setUp(self):
        library = pathlib.Path(self.programs).parent / "lib" / "libcentroid.so"
        try:
            centroid.load(library)
        except centroid.CentroidError as error:
            if "asan" in error.message or "tsan" in error.message or "static TLS" in error.message:
                self.skipTest(f"a library with a sanitizer cannot be loaded by Python: {error.message}")
            raise
        self.environment = {"LIBCENTROID": str(library), "PYTHONPATH": str(PYTHON), "MASTER_ADDR": "127.0.0.1"}

    def start(self, world, body, python=None, join=JOIN, **environment):
        """Start a rank's process for each of `world`."""
        program = self.folder / f"program-{len(self.processes)}.py"
        program.write_text(HEAD + join + textwrap.dedent(body))
        port, ranks = str(free_port()), []
        for rank in range(world):
            variables = {**os.environ, **self.environment, "MASTER_PORT": port, "RANK": str(rank), "WORLD_SIZE": str(world), **environment}
            log = self.folder / f"rank-{len(self.processes)}.log"
            ranks.append(Process.forked(self.forks(python), program, log, variables) if python else Process(self.python, ["-u", program], log, variables))
            self.processes.append(ranks[-1])
        return ranks

    def forks(self, python):
        with forks_lock:
            if python not in all_forks:
                all_forks[python] = Forks(python, {**os.environ, **self.environment, "OMP_NUM_THREADS": "1"})
                atexit.register(all_forks[python].close)
            return all_forks[python]

    def run_ranks(self, world, body, **options):
        """Run them to their end, and return what each said, line by line."""
        ranks = self.start(world, body, **options)
        said = []
        for rank in ranks:
            self.assertEqual(rank.exit_status(), 0, rank.text())
            said.append(rank.text().splitlines())
        return said

    def wait_said(self, process, text):
        def has_said():
            if text in process.text():
                return True
            self.assertTrue(process.is_running(), process.text())
            return False

        return wait_for(has_said, f"{process.name} to say {text!r}", DEADLINE_SECONDS)

    @property
    def python(self):
        return os.environ.get("CENTROID_TEST_PYTHON", os.sys.executable)

    def python_with(self, module):
        """An interpreter that has this module; skips the test where none has it."""
        for place in (self.python, "/usr/bin/python3"):
            if has(place, module):
                return place
        raise unittest.SkipTest(f"no python3 with {module} on this machine")


class TorchTest(GroupTest):
    """Ranks with PyTorch and a default group; skips where there is no PyTorch."""

    def setUp(self):
        super().setUp()
        self.python_ = self.python_with("torch")
        quiet = {"GLOO_SOCKET_IFNAME": "lo", "USE_LIBUV": "0", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        self.environment.update(quiet)

    def start(self, world, body, python=None, join=TORCH, **environment):
        return super().start(world, body, python or self.python_, join, **environment)

    def ranks(self, world, body, **options):
        return self.run_ranks(world, body, **options)
