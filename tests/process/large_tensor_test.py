"""One tensor of more than 2^33 bytes and 2^31 elements over a socket: every chunk comes back as the mean of what was sent. large_tensor_test.py BIN_DIR"""

import functools
import pathlib
import struct
import sys
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import wire
from harness.cluster import DONE, SAMPLES, ClusterTest, main

GIB = 1 << 30
ELEMENTS = 9 * GIB // 4
CHUNK_BYTES = 16 << 20
CHUNKS = ELEMENTS * 4 // CHUNK_BYTES
WORKERS = 2
ROUNDS = 2
DIFFERENT = 3  # chunks that stand side by side have different numbers

wire.crc32c = functools.lru_cache(64)(wire.crc32c)


@functools.lru_cache(2 * DIFFERENT + 1)
def constant(number):
    """A chunk of this number: few different ones, so that a client needs no memory, and a checksum no time."""
    return struct.pack("<f", number) * (CHUNK_BYTES // 4)


class Worker(wire.Client):
    """Gives its own number and that of the chunk, in turn; compares every byte that comes back and keeps none of it."""

    def __init__(self, number):
        super().__init__(f"w{number}", [("one", (ELEMENTS,))], train_samples=SAMPLES, chunk_bytes=CHUNK_BYTES)
        self.number, self.seen, self.error = number, {}, None

    def gradient(self, _, chunk):
        return constant(self.number + chunk % DIFFERENT)

    def result(self, number, chunk, payload):
        mean = sum(range(WORKERS)) / WORKERS + chunk % DIFFERENT
        if payload != constant(mean):
            first, last = struct.unpack("<f", payload[:4]) + struct.unpack("<f", payload[-4:])
            raise AssertionError(f"round {number}, chunk {chunk}: {len(payload)} bytes, {first} to {last}, not {mean} all of them")
        self.seen[number] = self.seen.get(number, 0) + 1

    def run(self, endpoint):
        try:
            self.train(endpoint, self.gradient)
        except Exception as error:  # the test looks at it
            self.error = error


class LargeTensor(ClusterTest):
    def test_nine_gib_over_a_socket(self):
        needed = 20 * GIB  # the tensor, the sum, what is on its way
        with open("/proc/meminfo") as told:
            available = next(int(line.split()[1]) << 10 for line in told if line.startswith("MemAvailable:"))
        if available < needed:
            raise unittest.SkipTest(f"needs {needed / GIB:.0f} GiB of free memory, here are {available / GIB:.1f}")
        flags = ["--apply", "worker", "--min-workers", WORKERS, "--chunk-bytes", CHUNK_BYTES, "--checkpoint.every-rounds", 0]
        server = self.server(*flags, "--rounds", ROUNDS, "--lease", "60s", "--exit-when-finished")
        workers = [Worker(number) for number in range(WORKERS)]
        threads = [threading.Thread(target=worker.run, args=(server.data,)) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for worker in workers:
            self.assertIsNone(worker.error, server.text()[-3000:])
            self.assertEqual(worker.seen, {number: CHUNKS for number in range(1, ROUNDS + 1)})
        self.assert_exit(DONE, server)


if __name__ == "__main__":
    main()
