"""What a new user mistypes, or has not got ready: each program names the word, the setting and what to do. mistakes_test.py BIN_DIR"""

import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import FAILED, ClusterTest, main
from harness.ctl import ANSWERED_BADLY, USAGE, CtlTest

NOBODY = 65534


class Typos(CtlTest):
    def test_a_command_that_is_none_names_the_nearest(self):
        for words, said in {
            ("chekpoints",): 'unknown command "chekpoints"; did you mean "checkpoints"?',
            ("statsu",): 'unknown command "statsu"; did you mean "status"?',
            ("checkpoints", "lst"): 'unknown command "lst"; did you mean "list"?',
            ("workers", "drian", "w0"): 'unknown command "drian"; did you mean "drain"?',
            ("--otput", "json", "status"): 'unknown option "--otput" of `centroidctl status`; did you mean "--output"?',
            ("--otput=json", "status"): 'did you mean "--output"?',
            ("events", "--folow"): 'unknown option "--folow" of `centroidctl events`; did you mean "--follow"?',
            ("job", "drain"): 'unknown command "drain"; `centroidctl job` has pause, resume, stop',
            ("job",): "`centroidctl job` needs a command: pause, resume, stop",
        }.items():
            with self.subTest(words):
                self.assertIn(f"centroidctl: {said}" if said[0] != "d" else said, self.ctl(None, *words, status=USAGE))

    def test_nothing_is_guessed_where_nothing_is_near(self):
        for words in (("banana",), ("x",), ("checkpoints", "banana"), ("status", "--banana"), ("-q", "status")):
            said = self.ctl(None, *words, status=USAGE)
            self.assertIn("unknown", said)
            self.assertNotIn("did you mean", said)
        refused = self.launch_server("--banana", "3")
        self.assert_status(refused, USAGE, "unknown flag --banana")
        self.assertNotIn("did you mean", refused.text())
        self.assert_status(self.launch_server("--lisen", "3"), USAGE, 'unknown flag --lisen; did you mean "--listen"?')

    def test_names_that_the_server_knows(self):
        server = self.server()
        self.worker(server, "worker-a")
        server.wait_worker("worker-a", "active")
        said = self.ctl(server, "config", "set", "leese=20s", status=ANSWERED_BADLY)
        self.assertIn('centroidctl: unknown key "leese"; did you mean "lease"?', said)
        said = self.ctl(server, "config", "set", "lease=5", "min_workers=none", status=ANSWERED_BADLY)
        self.assertIn("lease: got 5", said)
        self.assertNotIn("/v1/config", said)  # a place in a request that nobody wrote
        said = self.ctl(server, "workers", "drain", "worker-b", status=ANSWERED_BADLY)
        self.assertIn("'worker-b'; did you mean \"worker-a\"?", said)
        said = self.ctl(server, "workers", "drain", "somebody", status=ANSWERED_BADLY)
        self.assertNotIn("did you mean", said)

    def test_hints_name_commands(self):
        server = self.server()
        self.worker(server, "w0")
        server.wait_round(2)
        self.assertIn("`centroidctl status`", self.ctl(server, "job", "resume", status=ANSWERED_BADLY))
        self.ctl(server, "job", "pause")
        server.wait_cluster("a pause", lambda cluster: cluster["state"] == "paused")
        told = self.ctl(server, "status")
        self.assertRegex(told, r"\nstate +paused by an operator at \S+: `centroidctl job resume` \(POST /v1/job:resume\) goes on\n")
        self.assertIn(", 1 worker in", told)


class Ports(ClusterTest):
    def setUp(self):
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)
        self.taken = "127.0.0.1:%d" % listener.getsockname()[1]
        self.by = f"{self.taken}: the port is in use by process {os.getpid()} ("

    def test_a_port_in_use_names_the_setting_and_who_has_it(self):
        advice = "choose another port"
        self.assert_status(self.launch_server(listen=self.taken, name="one"), FAILED, f"--listen: cannot listen on {self.by}", advice)
        self.assert_status(self.launch_server(api=self.taken, name="two"), FAILED, f"--api.listen: cannot listen on {self.by}", advice)
        metrics = self.worker("127.0.0.1:1", "w0", "--metrics.listen", self.taken)
        self.assert_status(metrics, FAILED, f"--metrics.listen: cannot listen on {self.by}", advice)
        peer = self.worker("127.0.0.1:1", "w1", "--exchange", "ring", "--peer.listen", self.taken)
        self.assert_status(peer, FAILED, f"--peer.listen: cannot listen on {self.by}", advice)

    def test_an_address_that_this_machine_has_not(self):
        for place in ({"listen": "192.0.2.7:0"}, {"api": "192.0.2.7:0"}):
            with self.subTest(place):
                name = "--listen" if "listen" in place else "--api.listen"
                server = self.launch_server("--token", "s", "--api.token", "s", name=f"{name}-server", **place)
                self.assert_status(server, USAGE, f"{name}: cannot listen on 192.0.2.7:0", "this machine has no such address", "0.0.0.0")


class Secrets(CtlTest):
    def test_an_empty_file_is_no_token(self):
        file = self.folder / "token"
        file.write_text("\n")
        for flag in ("--token-file", "--api.token-file", "--api.viewer-token-file"):
            self.assert_status(self.launch_server(flag, file, name=flag.strip("-")), USAGE, f'{flag}: file "{file}" is empty')
        self.assert_status(self.worker("127.0.0.1:1", "w0", "--token-file", file), USAGE, f'--token-file: file "{file}" is empty')
        self.assertIn(f"--token-file {file} is empty", self.ctl(None, "--token-file", file, "status", status=USAGE))
        self.assertIn("/nowhere cannot be read: No such file", self.ctl(None, "--token-file", "/nowhere", "status", status=USAGE))
        self.assertIn(f"--worker-token-file {file} is empty", self.ctl("127.0.0.1:1", "bench", "--worker-token-file", file, status=USAGE))


class Rights(ClusterTest):
    """A user who may not write where the settings point."""

    def start(self, *arguments):
        """What a server says that is run by a user to whom the folder `closed` is closed; as root by nobody."""
        program = self.folder / "centroid-server"
        if not program.exists():
            shutil.copy(pathlib.Path(self.programs) / "centroid-server", program)  # where that user may read
            self.folder.chmod(0o755)
            (self.folder / "open").mkdir(mode=0o777)
            (self.folder / "open").chmod(0o777)
            (self.folder / "closed").mkdir(mode=0o555)

        def become():
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)

        command = [program, "--listen", "127.0.0.1:0", "--api.listen", "127.0.0.1:0", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, preexec_fn=become, cwd=self.folder)
        self.assertEqual(done.returncode, USAGE, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_a_folder_that_may_not_be_written_names_setting_path_and_users(self):
        me = NOBODY if os.geteuid() == 0 else os.geteuid()
        for setting in ("run_dir", "checkpoint.dir", "journal.dir"):
            others = [] if setting == "run_dir" else ["--run-dir", "open/run"]
            for folder, what in (("closed/new", "closed/new: cannot be created"), ("closed", "closed/server.lock: cannot be written")):
                with self.subTest(setting=setting, folder=folder):
                    said = self.start("--" + setting.replace("_", "-"), folder, "--journal.mode", "on", *others)
                    self.assertIn(f"{setting} {folder}: ", said)
                    self.assertIn(f"{what}: Permission denied (this process is user {me}", said)
                    self.assertRegex(said, rf"{self.folder}/closed is user {os.geteuid()}'s.*, mode 0555\)")
                    self.assertIn(f"or set {setting} to one that it may write", said)

    def test_a_lock_of_another_user_is_named(self):
        if os.geteuid() != 0:
            self.skipTest("makes a file of another user: needs root")
        self.start("--run-dir", "closed")
        lock = self.folder / "open" / "server.lock"
        lock.touch(mode=0o600)
        self.assertIn(f"{lock} is user 0's", self.start("--run-dir", self.folder / "open"))


class Help(ClusterTest):
    """`--help` lists the settings that a person begins with, `--help-all` all of them; each has one spelling."""

    def printed(self, program, flag):
        return subprocess.run([pathlib.Path(self.programs) / program, flag], capture_output=True, text=True, timeout=30, check=True).stdout

    def test_what_is_listed(self):
        first = {"centroid-server": ["listen", "token", "api.listen", "api.token"], "centroid-worker": ["server", "token", "data", "model"]}
        early = {"centroid-server": {"min_workers", "epochs", "optimizer", "lr", "run_dir", "checkpoint.every_rounds", "resume", "journal.mode", "log.level"},
                 "centroid-worker": {"batch", "devices", "name", "exchange", "codec", "log.level", "metrics.listen"}}  # fmt: skip
        for program in first:
            with self.subTest(program):
                settings = list(json.loads(self.printed(program, "--print-config")))
                listed = {flag: re.findall(r"^  --([a-z][a-z0-9.-]*)(?: [A-Z]+)?$", self.printed(program, flag), re.MULTILINE) for flag in ("--help", "--help-all")}
                self.assertEqual(listed["--help-all"], [name.replace("_", "-") for name in settings])
                basic = [name for name in settings if name.replace("_", "-") in listed["--help"]]
                self.assertEqual([name.replace("_", "-") for name in basic], listed["--help"])
                self.assertLessEqual(len(basic), 30)
                self.assertEqual(basic[:4], first[program])
                self.assertLessEqual(early[program], set(basic))


if __name__ == "__main__":
    main()
