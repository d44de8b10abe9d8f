"""centroidctl checkpoints get, and of what lies here verify, list and export. fetch_test.py BIN_DIR"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import DONE, main
from harness.ctl import ANSWERED_BADLY, Altered, CtlTest


class Fetch(CtlTest):
    def test_a_checkpoint_is_fetched_whole_and_goes_on_where_it_was(self):
        server = self.server()
        self.worker(server, "w0", model="mlp:64-512-512-10")
        server.wait_round(5)
        version = server.post("/v1/checkpoints")[1]["version"]
        backup, name = self.folder / "backup", f"checkpoint-{version:012}"
        begun = backup / f".{name}.part"  # as a call that was killed leaves it
        begun.mkdir(parents=True)
        source = self.folder / "run" / "checkpoints" / name
        (begun / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes()[:1000])
        self.assertEqual(self.ctl(server, "checkpoints", "get", version, "--to", backup).strip(), str(backup / name))
        files = {path.name: path.read_bytes() for path in source.iterdir()}
        self.assertEqual({path.name: path.read_bytes() for path in (backup / name).iterdir()}, files)
        self.assertFalse(begun.exists())
        self.ctl(None, "checkpoints", "verify", backup)
        self.ctl(server, "checkpoints", "get", version, "--to", backup, status=ANSWERED_BADLY)  # never over what is there

        begun = self.folder / "other" / f".{name}.part"  # half a file that is not the server's
        begun.mkdir(parents=True)
        (begun / "model.safetensors").write_bytes(b"x" * 1000)
        self.ctl(server, "checkpoints", "get", version, "--to", begun.parent, status=ANSWERED_BADLY)
        self.assertFalse((begun.parent / name).exists())
        self.ctl(server, "checkpoints", "get", version, "--to", begun.parent)
        self.ctl(server, "checkpoints", "get", 999_999, "--to", begun.parent, status=ANSWERED_BADLY)

    def test_a_single_checkpoint_and_a_run_are_verified_and_nothing_is_no_all_clear(self):
        server, _ = self.training("--journal.mode", "on")
        made = json.loads(self.ctl(server, "checkpoints", "make", "--output", "json"))
        self.ctl(server, "job", "stop")
        self.assert_status(server, DONE)
        run, single = self.folder / "run", pathlib.Path(made["path"])
        copy = shutil.copytree(single, self.folder / "backup")  # of another name
        for one in (single, f"{single}/", copy):
            lines = self.ctl(None, "checkpoints", "verify", one).splitlines()
            self.assertEqual(len(lines), 1, lines)
            self.assertIn("sound", lines[0])
        both = self.ctl(None, "checkpoints", "verify", run)
        self.assertIn(f"{single.name}  ", both)
        self.assertRegex(both, "journal .* sound")
        self.assertEqual(json.loads(self.ctl(None, "checkpoints", "list", copy, "--output", "json"))["checkpoints"][0]["version"], made["version"])
        self.ctl(None, "checkpoints", "export", single, "--to", self.folder / "one.safetensors")
        self.assertGreater((self.folder / "one.safetensors").stat().st_size, 1000)
        for one in (single, copy):
            with (one / "model.safetensors").open("r+b") as file:
                file.seek(-1, os.SEEK_END)
                last = file.read(1)
                file.seek(-1, os.SEEK_END)
                file.write(bytes([last[0] ^ 1]))
            self.assertRegex(self.ctl(None, "checkpoints", "verify", one, status=ANSWERED_BADLY), "DAMAGED .*CRC-32C differs")
        (single / "manifest.json").unlink()  # its name says what it was to be
        self.assertIn("DAMAGED", self.ctl(None, "checkpoints", "verify", single, status=ANSWERED_BADLY))
        (self.folder / "empty").mkdir()
        for command in (("verify",), ("list",), ("export", "--to", self.folder / "none.safetensors")):
            said = self.ctl(None, "checkpoints", command[0], self.folder / "empty", *command[1:], status=ANSWERED_BADLY)
            self.assertIn("empty: contains no checkpoint; expected folders checkpoint-VERSION in it, or one of these", said)

    def test_the_newest_is_fetched_though_another_one_takes_its_place(self):
        server = self.server("--checkpoint.keep", 1)
        self.worker(server, "w0")
        server.wait_round(5)
        self.assertIn("no checkpoint yet", self.ctl(server, "checkpoints", "get", "--to", self.folder / "backup", status=ANSWERED_BADLY))
        made = [server.post("/v1/checkpoints")[1]["version"]]

        def before(path):  # the list has been read
            if path == f"/v1/checkpoints/{made[0]}/files":
                server.wait_more_rounds(1)
                made.append(server.post("/v1/checkpoints")[1]["version"])

        way = Altered(server)
        self.addCleanup(way.close)
        way.before = before
        path = self.ctl(way.api, "checkpoints", "get", "--to", self.folder / "backup").strip()
        self.assertEqual(path, str(self.folder / "backup" / f"checkpoint-{made[1]:012}"))
        self.assertEqual(len(made), 2)
        said = self.ctl(server, "checkpoints", "get", made[0], "--to", self.folder / "backup", status=ANSWERED_BADLY)
        self.assertIn(f"there is no checkpoint of version {made[0]}", said)
        self.assertIn(f"the newest is of version {made[1]}", said)

    @unittest.skipIf(shutil.which("cc") is None, "no C compiler here")
    def test_what_is_fetched_is_on_the_disk_before_it_has_its_name(self):
        server = self.server()
        self.worker(server, "w0")
        server.wait_round(5)
        version = server.post("/v1/checkpoints")[1]["version"]
        library, log = self.folder / "sync_log.so", self.folder / "sync.log"
        source = pathlib.Path(__file__).resolve().parents[1] / "support" / "sync_log.c"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
        command = [pathlib.Path(self.programs) / "centroidctl", "--server", server.api, "checkpoints", "get", str(version), "--to", self.folder / "backup"]
        preloaded = {"LD_PRELOAD": str(library), "SYNC_LOG": str(log), "ASAN_OPTIONS": "verify_asan_link_order=0:" + os.environ.get("ASAN_OPTIONS", "")}
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **preloaded}, check=True)
        target = pathlib.Path(done.stdout.strip())
        begun = target.parent / f".{target.name}.part"
        acts = [line.split() for line in log.read_text().splitlines()]
        named = acts.index(["rename", str(begun), str(target)])
        files = [path.name for path in target.iterdir()]
        self.assertIn("manifest.json", files)
        for name in files:
            of_file = [act for act, *rest in acts[:named] if rest == [str(begun / name)]]
            self.assertIn("write", of_file, name)
            self.assertEqual(of_file[-1], "sync", name)
        in_folder = [rest[0] for act, *rest in acts[:named] if act == "sync"]
        self.assertEqual(in_folder[-1], str(begun))  # the files' names in it, behind the last of them
        self.assertIn(["sync", str(target.parent)], acts[named:])


if __name__ == "__main__":
    main()
