"""For whom clients of rows wait: they say it themselves, and so does the server that holds them up. rows_waits_test.py BIN_DIR"""

import os
import pathlib
import re
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import PYTHON
from harness.client import ClientTest
from harness.cluster import Process, main, wait_for
from harness.rows_servers import RowsServersCluster

LONG_SECONDS = 2  # from which on a wait is told
PROGRAM = """
import sys
import centroid
with centroid.Rows(sys.argv[1], "count", timeout=120, name="reader") as rows:
    for turn in range(10**9):
        rows.pull(range(64))
        if turn % 20 == 0:
            print("pulled", turn, flush=True)
"""


class RowsWaits(ClientTest):
    shard = RowsServersCluster.shard
    leader = RowsServersCluster.leader

    def reader(self, servers):
        program = self.folder / "reader.py"
        program.write_text(PROGRAM)
        environment = {**os.environ, **self.environment, "PYTHONPATH": str(PYTHON)}
        reader = Process(sys.executable, [program, servers], self.folder / "reader.log", environment)
        self.processes.append(reader)
        self.wait_pulls(reader)
        return reader

    def wait_pulls(self, reader):
        before = reader.text().count("pulled")
        wait_for(lambda: reader.text().count("pulled") > before + 2 or not reader.is_running(), "more pulls")
        self.assertTrue(reader.is_running(), reader.text())

    def told(self, reader):
        return [line for line in reader.text().splitlines() if "rows.stalled" in line]

    def wait_reported(self, reader, count):
        """What it said of the newest of so many waits."""
        return wait_for(lambda: self.told(reader)[count - 1 :], f"wait {count} to be told")[-1]

    def assert_names(self, line, server, endpoint, why):
        self.assertIn(f"server={server}", line.replace('"', ""))
        self.assertIn(f"endpoint={endpoint}", line.replace('"', ""))
        self.assertIn("table=count", line)
        self.assertRegex(line, why)
        self.assertRegex(line, r"since_unix_seconds=\d+")
        self.assertGreaterEqual(int(re.search(r"\bms=(\d+)", line)[1]), 1000 * LONG_SECONDS)

    def test_a_client_says_for_which_server_it_waits_once_for_each_wait(self):
        leader = self.leader(2, "--lease", "60s")  # who stood still answers at once, and need not join again
        b = self.shard(leader.data, "b")
        leader.wait_rows()
        (of_b,) = [one for one in leader.get("/v1/servers")["servers"] if one["name"] == "b"]
        reader = self.reader(leader.data)
        self.assertEqual(self.told(reader), [])
        for count in (1, 2):
            b.send(signal.SIGSTOP)
            line = self.wait_reported(reader, count)
            self.assert_names(line, "b", of_b["endpoint"], r"no answer, last frame received \d+ ms ago")
            self.assertRegex(line, r"a pull of \d+ rows")
            b.send(signal.SIGCONT)
            self.wait_pulls(reader)
            self.assertEqual(len(self.told(reader)), count)
            leader.wait_rows()
        b.kill()
        self.assert_names(self.wait_reported(reader, 3), "b", of_b["endpoint"], "no connection: .*refused")
        self.shard(leader.data, "b", 1, listen=of_b["endpoint"])
        self.wait_pulls(reader)
        leader.send(signal.SIGSTOP)
        line = wait_for(lambda: [line for line in self.told(reader) if "the leader" in line], "the leader's name")[0]
        self.assert_names(line, "the leader", leader.data, "no answer|no connection")
        leader.send(signal.SIGCONT)
        self.wait_pulls(reader)


if __name__ == "__main__":
    main()
