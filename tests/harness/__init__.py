"""What tests and benchmarks in Python share: clusters of the real programs, clients of the wire, tools.

Each of them finds it by one line, `sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))`. The Python code of
the project that they use is found by this file.
"""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHON = ROOT / "client" / "python"

sys.path[:0] = [str(ROOT / "dashboards"), str(PYTHON)]
DEMO = ["env", f"PYTHONPATH={PYTHON}", sys.executable, "-m", "centroid", "demo"]
