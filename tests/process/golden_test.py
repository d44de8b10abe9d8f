"""Fixed jobs end with the bits of commit 9a33d03 (tests/baseline/golden.json). golden_test.py BIN_DIR

The hashes depend on IEEE 754 arithmetic in float32 and float64, and on libm's pow (bias correction of Adam) and cos (schedule). They do not
depend on the processor: the jobs use no BLAS, and the codecs' loops for AVX2, AVX-512 and NEON give the bits of the portable ones
(tests/unit/codec_machines_test.cc).

Jobs with exchange ring or hierarchical are the exception. The client library supports star only, so centroid-worker trains them with the
machine's BLAS and expf. OPENBLAS_CORETYPE and GLIBC_TUNABLES select routines that every x86-64 processor has. A probe multiplies fixed
matrices with them; if its hash differs from the recorded one, the test skips these jobs and says so.

tests/baseline/make_golden.py writes golden.json.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import main
from harness.golden import PEERS, STAR, GoldenJobs


class Golden(GoldenJobs):
    def test_star(self):
        for name in STAR:
            with self.subTest(job=name):
                self.assertEqual(self.star(name), self.expected("jobs")[name])

    def test_exchanges_among_workers(self):
        found, made = self.probe(), self.expected("probe")
        if found != made:
            self.skipTest(f"BLAS or libm of this machine give other bits ({found[:16]}) than those of the recorded hashes ({made[:16]})")
        for name in PEERS:
            with self.subTest(job=name):
                self.assertEqual(self.peers(name), self.expected("jobs")[name])

    def test_tables(self):
        for servers in (1, 2):
            with self.subTest(servers=servers):
                self.assertEqual(self.tables(servers), self.expected("jobs")["tables"])


if __name__ == "__main__":
    main()
