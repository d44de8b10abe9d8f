"""Resume from checkpoints, journals and small files that commit 9a33d03 wrote. old_files_test.py BIN_DIR

Each case of tests/baseline/files (written by tests/baseline/make_files.py) is copied and resumed. The server refuses nothing, restores the
recorded round, version and parameters, and training to the last round gives the recorded state.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import main
from harness.old_files import FILES, OldFiles


class Resumed(OldFiles):
    def test_every_case(self):
        names = sorted(path.name for path in FILES.iterdir())
        self.assertGreater(len(names), 15)
        for name in names:
            with self.subTest(case=name):
                self.check(name)
                self.end_all()


if __name__ == "__main__":
    main()
