"""Trainers of the Python package, and its example, beside the real programs."""

import array
import concurrent.futures
import functools
import json
import os
import pathlib
import struct
import subprocess
import sys

from harness import ROOT
from harness.cluster import ClusterTest, Process
import centroid

EXAMPLE = ROOT / "client" / "python" / "examples" / "digits.py"


@functools.lru_cache
def python_with_numpy():
    """An interpreter for the example."""
    for place in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([place, "-c", "import numpy"], capture_output=True, check=False).returncode == 0:
            return place
    return None


def tensors_of(folder):
    """Name to numbers, of the parameters of a checkpoint."""
    found = {}
    for file in sorted(folder.glob("model*.safetensors")):
        data = file.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        for name, what in json.loads(data[8 : 8 + length]).items():
            if name != "__metadata__":
                begin, end = what["data_offsets"]
                found[name] = array.array("f", data[8 + length + begin : 8 + length + end]).tolist()
    return found


class ClientTest(ClusterTest):
    def setUp(self):
        library = pathlib.Path(self.programs).parent / "lib" / "libcentroid.so"
        try:
            centroid.load(library)
        except centroid.CentroidError as error:
            if "asan" in error.message or "tsan" in error.message or "static TLS" in error.message:
                self.skipTest(f"a library with a sanitizer cannot be loaded by Python: {error.message}")
            raise
        self.environment = {"LIBCENTROID": str(library)}
        self.trainers = []
        self.addCleanup(lambda: [one.close() for one in self.trainers])

    def trainer(self, server, name, tensors, **more):
        options = {"samples": 60, "batch": 4, "timeout": 30, **more}
        made = centroid.Trainer(server if isinstance(server, str) else server.data, tensors, name=name, **options)
        self.trainers.append(made)
        return made

    def at_once(self, run, count=2):
        """run(0), run(1), ... each in its thread; what one of them raises is raised here."""
        with concurrent.futures.ThreadPoolExecutor(count) as pool:
            for done in [pool.submit(run, i) for i in range(count)]:
                done.result()

    def example(self, server, name, *arguments):
        log = self.folder / f"{name}.log"
        program = [EXAMPLE, server.data, self.data_dir() / "digits.csv.gz", "--name", name, *arguments]
        process = Process(self.numpy, program, log, {**os.environ, **self.environment, "OPENBLAS_NUM_THREADS": "1"})
        self.processes.append(process)
        return process

    @property
    def numpy(self):
        found = python_with_numpy()
        if found is None:
            self.skipTest("no python3 with numpy on this machine")
        return found

    def assert_fails(self, code, text, call, *arguments, **named):
        with self.assertRaises(centroid.CentroidError) as caught:
            call(*arguments, **named)
        self.assertEqual(caught.exception.code, code, caught.exception)
        self.assertIn(text, caught.exception.message)


def array_of(columns, values):
    memory = memoryview(array.array("f", values)).cast("B")
    return memory.cast("f", [len(values) // columns, columns])
