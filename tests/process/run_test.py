"""`centroid run`: a server and workers like torchrun's, restarts, and nothing left behind. run_test.py BIN_DIR"""

import contextlib
import fcntl
import json
import os
import pathlib
import pty
import re
import signal
import socket
import struct
import sys
import termios
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import PYTHON
from harness.cluster import ClusterTest, Process, main, wait_for

PROGRAM = """
import os, pathlib, sys, threading
import centroid
w = memoryview(bytearray(32)).cast("f")
with centroid.Trainer(None, {"w": w}, samples=400, batch=10) as trainer:
    round = 0
    for share in trainer:
        round = share.round
        if share.round == 10:
            print("pid", os.getpid(), flush=True)
        if share.round == 15:
            print("waits", flush=True)
        while share.round >= 15 and not pathlib.Path("go").exists():
            threading.Event().wait(0.01)
        trainer.finish({"w": memoryview(bytearray(32)).cast("f")})
print(trainer.end, round, *(os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "CENTROID_NAME")))
"""
COLLECTIVES = """
import array, centroid
group = centroid.join(timeout=60)
one = array.array("f", [group.rank + 1])
group.all_reduce(one)
print("sum", one[0], flush=True)
"""
LISTENER = """
import os, pathlib, socket, sys, threading
print("port", os.environ["MASTER_PORT"], flush=True)
while not pathlib.Path("go").exists():
    threading.Event().wait(0.01)
listener = socket.create_server(("", int(os.environ["MASTER_PORT"])))
socket.create_connection(listener.getsockname())
sys.exit(0 if pathlib.Path("again").exists() else pathlib.Path("again").touch() or 1)
"""
ROUNDS = "--rounds=40"


def is_alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


class Screen:
    """A terminal: what was written to it, and the lines that it shows."""

    def __init__(self, rows, columns):
        self.near, self.far = pty.openpty()
        fcntl.ioctl(self.far, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.columns, self.written = columns, ""
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        with contextlib.suppress(OSError):  # the end of a terminal is an error
            while piece := os.read(self.near, 65536):
                self.written += piece.decode(errors="replace")
        os.close(self.near)

    def lines(self):
        lines = [""]
        for word in re.findall(r"\033\[\d*[A-Z]|\r\n|.", self.written):
            if word == "\r\n":
                lines.append("")
            elif word.endswith("F") and len(word) > 1:  # up, and what is below goes with the \033[J that follows
                lines = [*lines[: -int(word[2:-1]) - 1], ""]
            elif len(word) == 1:
                lines[-1] += word
        return lines


class RunTest(ClusterTest):
    """The command, with the programs beside it as they are installed."""

    def setUp(self):
        for program in ("centroid-server", "centroidctl"):
            (self.folder / program).symlink_to(pathlib.Path(self.programs) / program)
        self.command = self.folder / "centroid"
        self.command.write_text("import sys\nfrom centroid.__main__ import main\nsys.exit(main())\n")
        (self.folder / "train.py").write_text(PROGRAM)

    def start(self, *words, command=None, screen=None, **environment):
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("CENTROID_")}
        library = pathlib.Path(self.programs).parent / "lib" / "libcentroid.so"
        variables = {**inherited, "PYTHONPATH": str(PYTHON), "LIBCENTROID": str(library), **environment}
        log = self.folder / f"run-{len(self.processes)}.log"
        words = [*(command or [sys.executable, self.command]), *words]
        if screen:  # a shell, so that the test's log stays what it is
            words = ["sh", "-c", f'exec "$@" > {os.ttyname(screen.far)} 2>&1', "sh", *words]
        process = Process("/usr/bin/env", ["-C", self.folder, *words], log, variables)
        self.processes.append(process)
        return process

    def train(self, *words, **environment):
        """Two workers, until both stand in round 15; returns the command, their process ids, and the server's."""
        process = self.start("run", "--workers", "2", ROUNDS, "--run-dir=job", *words, "train.py", **environment)
        wait_for(lambda: process.text().count("] waits") >= 2 or not process.is_running(), "both workers in round 15")
        pids = [int(self.line(process, f"[{rank}] pid ").split()[-1]) for rank in range(2)]
        return process, pids, json.loads((self.folder / "job" / "endpoints.json").read_text())["pid"]

    def line(self, process, head):
        return next(line for line in process.text().splitlines() if line.startswith(head))

    def go(self):
        (self.folder / "go").touch()

    def assert_taken(self, port):
        with socket.socket() as other, self.assertRaisesRegex(OSError, "already in use"):
            other.bind(("127.0.0.1", int(port)))

    def assert_gone(self, *pids):
        wait_for(lambda: not any(map(is_alive, pids)), f"the end of {pids}")

    def test_workers_find_their_place_and_all_end_with_the_job(self):
        process, pids, server = self.train()
        self.go()
        self.assert_status(process, 0)
        for rank in range(2):
            self.assertEqual(self.line(process, f"[{rank}] finished"), f"[{rank}] finished 40 {rank} {rank} 2 2 127.0.0.1 worker-{rank}")
        self.assert_gone(*pids, server)

    def test_without_settings_a_server_starts_when_a_program_looks_for_it(self):
        (self.folder / "collectives.py").write_text(COLLECTIVES)
        process = self.start("run", "--workers", "2", "collectives.py")
        self.assert_status(process, 0)
        self.assertEqual([self.line(process, f"[{rank}] sum") for rank in range(2)], ["[0] sum 3.0", "[1] sum 3.0"])
        self.assertNotIn("server", process.text())
        self.assertFalse((self.folder / "run").exists())
        (self.folder / "train.py").write_text(PROGRAM.replace("while share.round", "if share.round == 20: trainer.stop()\n        while share.round"))
        self.go()
        process = self.start("run", "--workers", "2", "train.py")
        self.assert_status(process, 0, "centroid: the server 127.0.0.1:")
        self.assertIn("[0] stopped 20 0", process.text())
        self.assert_gone(json.loads(next(self.folder.glob("run/*/endpoints.json")).read_text())["pid"])

    def test_changes_are_a_line_each(self):
        process, _, _ = self.train()
        wait_for(lambda: re.search(r"^centroid: round .*, training, 2 workers", process.text(), re.M), "what the job does")
        self.go()
        self.assert_status(process, 0, "centroid: round 40 of 40, finished")
        self.assertNotIn("\033", process.text())
        self.assertEqual(process.text().count("training, 2 workers"), 1)

    def test_a_terminal_shows_a_table_below_the_output(self):
        screen = Screen(24, 60)
        process = self.start("run", "--workers", "2", ROUNDS, "--run-dir=job", "train.py", screen=screen, TERM="xterm")

        def drawn():
            lines = screen.lines()[-5:-1]
            return lines if len(lines) == 4 and lines[0].startswith("round 15 of 40, training, 2 workers") else None

        table = wait_for(lambda: drawn() or not process.is_running(), "the table")
        self.assertNotEqual(table, True, screen.written)
        self.assertRegex(table[1], r"^worker +state +rounds +samples/s +loss$")
        self.assertRegex(table[2], r"^worker-0 +\w+ +14 +\d+ +-$")
        self.assertLess(max(map(len, table)), screen.columns)
        self.go()
        self.assert_status(process, 0)
        os.close(screen.far)
        screen.reader.join()
        lines = screen.lines()
        self.assertEqual([line for line in lines if line.startswith("worker")], [])
        self.assertEqual(sum(line.startswith(("[0] finished 40", "[1] finished 40")) for line in lines), 2)
        self.assertEqual(sum("] pid " in line for line in lines), 2)
        self.assertTrue(any(line.startswith("centroid: round 40 of 40, finished") for line in lines), lines)

    def test_programs_beside_the_command_are_found_however_it_is_called(self):
        self.go()
        self.command.write_text(f"#!{sys.executable}\n{self.command.read_text()}")
        self.command.chmod(0o755)
        (self.folder / "link").symlink_to("centroid")
        (self.folder / "elsewhere").mkdir()
        (self.folder / "elsewhere" / "centroid").symlink_to("../link")
        for command in ("./centroid", "./link", "elsewhere/../centroid", "elsewhere/centroid"):
            with self.subTest(command):
                process = self.start("run", "--rounds=16", "train.py", command=[command], PATH="/usr/bin:/bin")
                self.assert_status(process, 0, "[0] finished 16")
                self.assert_status(self.start("server", "--version", command=[command], PATH="/usr/bin:/bin"), 0)

    def test_a_killed_worker_starts_again(self):
        process, pids, _ = self.train()
        os.kill(pids[0], signal.SIGKILL)
        wait_for(lambda: process.text().count("member.joined worker=worker-0 ") == 2, "the restart")
        self.go()
        self.assert_status(process, 0, "worker 0 ended by SIGKILL", "start 1 of at most 3 more", "[0] finished 40", "[1] finished 40")

    def test_a_worker_that_comes_when_the_job_is_over_has_nothing_to_do(self):
        (self.folder / "late.py").write_text("import os, pathlib, threading\n" + PROGRAM.replace("import os", 'while os.environ["RANK"] == "1" and not pathlib.Path("late").exists(): threading.Event().wait(0.01)\nimport os', 1))
        self.go()
        process = self.start("run", "--workers", "2", ROUNDS, "--min-workers=1", "--run-dir=job", "late.py")
        wait_for(lambda: "[0] finished 40" in process.text(), "the end of the job")
        (self.folder / "late").touch()
        self.assert_status(process, 0, "[1] finished 0 1")

    def test_nobody_else_gets_the_port_of_rank_0(self):
        (self.folder / "listener.py").write_text(LISTENER)
        process = self.start("run", "listener.py")
        wait_for(lambda: "[0] port" in process.text() or not process.is_running(), "the port")
        self.assert_taken(self.line(process, "[0] port ").split()[-1])
        self.go()
        self.assert_status(process, 0, "worker 0 failed with status 1; start 1 of at most 3 more")

    def test_a_killed_server_continues_where_it_was(self):
        process, pids, server = self.train("--journal.mode=on")
        places = json.loads((self.folder / "job" / "endpoints.json").read_text())
        os.kill(server, signal.SIGKILL)
        wait_for(lambda: "server ended by SIGKILL" in process.text(), "the restart")
        for name in ("data", "api"):
            self.assert_taken(places[name].rpartition(":")[2])
        self.go()
        self.assert_status(process, 0, "[0] finished 40", "[1] finished 40")
        self.assertEqual(process.text().count("] pid "), 2)  # round 10 was not trained again
        self.assert_gone(*pids, server)

    def test_a_worker_that_fails_for_good_ends_all(self):
        (self.folder / "bad.py").write_text("import sys\nprint('half a line', end='')\nsys.exit(7)\n")
        process = self.start("run", "--restarts=1", ROUNDS, "--run-dir=job", "bad.py")
        self.assert_status(process, 7, "worker 0 failed with status 7, and started again 1 times before: ending all")
        self.assertEqual(process.text().count("[0] half a line\n"), 2)

    def test_wrong_settings_are_not_tried_again(self):
        self.assert_status(self.start("run", "--optimiser=adam", "train.py"), 2, '[server] centroid-server: unknown flag --optimiser', "before it listened")

    def test_workers_end_in_order_when_the_server_that_they_need_does_not_start(self):
        process = self.start("run", "train.py", CENTROID_OPTIMIZER="adm")
        self.assert_status(process, 2, "the server ended with 2 before it listened: ending all", "[0] KeyboardInterrupt")

    def test_ctrl_c_ends_all(self):
        process, pids, server = self.train()
        process.send(signal.SIGINT)
        self.assert_status(process, 130, "interrupted: ending all", "[0] KeyboardInterrupt")
        self.assert_gone(*pids, server)

    def test_a_killed_command_leaves_nothing_behind(self):
        process, pids, server = self.train()
        process.kill()
        self.assert_gone(*pids, server)

    def test_joins_a_cluster_that_is_there(self):
        (self.folder / "secret").write_text("open sesame\n")
        server = self.server("--rounds", "40", "--min-workers", "2", "--token-file", self.folder / "secret", "--exit-when-finished")
        self.go()
        process = self.start("run", "--server", server.data, "--token-file", "secret", "--workers", "2", "--nodes=2", "--node=1", "--master=10.0.0.1:7100", "train.py")
        self.assert_status(process, 0)
        for local in range(2):
            self.assertRegex(self.line(process, f"[{local + 2}] finished"), f"finished 40 {local + 2} {local} 4 2 10.0.0.1 .*-{local}$")
        self.assert_exit(0, server)

    def test_misuse_is_explained(self):
        for words, text in (
            ([], "no program is named"),
            (["nowhere.py"], "there is no program nowhere.py"),
            (["--optimizer", "adam", "train.py"], "there is no program adam; a setting of the server has its value behind `=` (--optimizer)"),
            (["--workers", "0", "train.py"], "--workers 0 is not a number from 1"),
            (["--workers"], "--workers needs a value"),
            (["--server", "a:1", "--rounds=3", "train.py"], "--rounds with --server: that server has its settings already"),
            (["--token-file", "x", "train.py"], "need --server"),
            (["--server", "a:1", "--nodes", "2", "train.py"], "--nodes needs --server, --master"),
        ):
            with self.subTest(words):
                self.assert_status(self.start("run", *words), 2, text)
        self.assert_status(self.start("runn"), 2, "unknown command runn; there are run, server")
        self.assert_status(self.start("server", "--version"), 0)
        self.assert_status(self.start("doctor", "--help"), 0, "doctor")


if __name__ == "__main__":
    main(at_a_time=3)
