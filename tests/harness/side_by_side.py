"""Run the tests of a GoogleTest program in several processes at a time, for one whose tests wait more than they compute. side_by_side.py PROCESSES PROGRAM"""

import concurrent.futures
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
        processes = [start(program, index, count, folder) for index in range(count)]
        statuses = []
        with concurrent.futures.ThreadPoolExecutor(count) as pool:
            waiting = {pool.submit(process.wait): index for index, process in enumerate(processes)}
            for ended in concurrent.futures.as_completed(waiting):
                statuses.append(ended.result())
                with open(os.path.join(folder, f"{waiting[ended]}.log"), "rb") as log:
                    sys.stdout.buffer.write(log.read())
                sys.stdout.flush()
    if any(statuses):
        print(f"{program}: exit statuses {statuses}")
    return int(any(statuses))


if __name__ == "__main__":
    sys.exit(main())
