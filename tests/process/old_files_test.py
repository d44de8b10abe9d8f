"""Resume from checkpoints, journals and small files that commit 9a33d03 wrote. old_files_test.py BIN_DIR

Each case of tests/baseline/files (written by tests/baseline/make_files.py) is copied and resumed. The server refuses nothing, restores the
recorded round, version and parameters, and training to the last round gives the recorded state. What the server has written by then has the
formats and fields that the programs of 9a33d03 know, so a job can go back to them.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import main
from harness.old_files import FILES, KNOWN, OldFiles, formats_in


class Resumed(OldFiles):
    def test_every_case(self):
        names = sorted(path.name for path in FILES.iterdir())
        self.assertGreater(len(names), 15)
        known = KNOWN.union(*(formats_in(FILES / name) for name in names))
        for name in names:
            with self.subTest(case=name):
                self.check(name)
                self.end_all()
                for folder in ("run", "state"):
                    self.assertEqual(formats_in(self.folder / folder) - known, set(), "the old programs do not know this")


if __name__ == "__main__":
    main()
