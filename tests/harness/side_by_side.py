"""Run the tests of a GoogleTest program in several processes at a time, for one whose tests wait more than they compute. side_by_side.py PROCESSES PROGRAM"""

import os
import subprocess
import sys
import tempfile


def start(program, index, count, folder):
    own = os.path.join(folder, str(index))
    os.mkdir(own)
    environment = {**os.environ, "GTEST_TOTAL_SHARDS": str(count), "GTEST_SHARD_INDEX": str(index), "TEST_TMPDIR": own}
    with open(f"{own}.log", "wb") as log:
        return subprocess.Popen(["setpriv", "--pdeathsig", "KILL", program], stdout=log, stderr=log, env=environment)


def main():
    count, program = int(sys.argv[1]), sys.argv[2]
    with tempfile.TemporaryDirectory(prefix="centroid-tests-") as folder:
        statuses = [process.wait() for process in [start(program, index, count, folder) for index in range(count)]]
        for index in range(count):
            with open(os.path.join(folder, f"{index}.log"), "rb") as log:
                sys.stdout.buffer.write(log.read())
    if any(statuses):
        print(f"{program}: exit statuses {statuses}")
    return int(any(statuses))


if __name__ == "__main__":
    sys.exit(main())
