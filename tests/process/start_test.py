"""What each program says, and how it exits, when it cannot start or is not let in. start_test.py BIN_DIR"""

import contextlib
import gzip
import json
import pathlib
import signal
import socket
import struct
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import DONE, FAILED, USAGE, ClusterTest, free_port, main, wait_for
from harness.wire import ERROR, FAILED_PRECONDITION, HELLO_REPLY, RESPONSE, Link, connect, header, hello, is_closed, read_error, read_frame, text


class Configuration(ClusterTest):
    def assert_refused(self, process, *texts):
        self.assert_status(process, USAGE, *texts)

    def test_unknown_flag_names_the_nearest(self):
        self.assert_refused(self.launch_server("--run-idd", "x"), "unknown flag --run-idd", '"--run-id"')
        self.assert_refused(self.worker("127.0.0.1:1", "w0", "--modle", "x"), "unknown flag --modle", '"--model"')

    def test_unknown_environment_variable_names_the_nearest(self):
        self.assert_refused(self.launch_server(environment={"CENTROID_ROUNS": "3"}), "CENTROID_ROUNS", '"CENTROID_ROUNDS"')
        worker = self.worker("127.0.0.1:1", "w0", environment={"CENTROID_BACH": "3"})
        self.assert_refused(worker, "CENTROID_BACH", '"CENTROID_BATCH"')

    def test_unknown_key_of_the_file_names_line_and_nearest(self):
        file = self.folder / "config.json"
        file.write_text('{\n  "rounds": 3,\n  "checkpoint": {\n    "every_round": 1\n  }\n}\n')
        self.assert_refused(self.launch_server("--config", file), f"{file}:4", '"checkpoint.every_round"', '"checkpoint.every_rounds"')

    def test_file_that_is_missing_or_no_json_is_named(self):
        self.assert_refused(self.launch_server("--config", "/nowhere/at/all.json", name="one"), "/nowhere/at/all.json", "cannot be read")
        file = self.folder / "broken.json"
        file.write_text('{"rounds": ')
        self.assert_refused(self.launch_server("--config", file, name="two"), str(file))

    def test_value_of_a_wrong_kind_or_out_of_bounds_is_named(self):
        self.assert_refused(self.launch_server("--rounds", "many", name="one"), "--rounds", "many")
        self.assert_refused(self.launch_server("--lease", "5", name="two"), "--lease", "100")
        self.assert_refused(self.launch_server("--policy", "lucky", name="three"), "policy", "lucky", "bsp")
        self.assert_refused(self.worker("127.0.0.1:1", "w0", batch=0), "--batch", "1")

    def test_settings_that_do_not_fit_together_are_named(self):
        self.assert_refused(self.launch_server("--min-workers", "9", "--max-workers", "2"), "min_workers (9)", "max_workers (2)")
        self.assert_refused(self.worker("127.0.0.1:1", "w0", "--exchange", "local"), "--epochs", "--rounds")

    def test_centroidctl_looks_where_the_server_is_by_default(self):
        def told(program, argument):
            command = [pathlib.Path(self.programs) / program, argument]
            return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout

        listens = json.loads(told("centroid-server", "--print-config"))["api.listen"]["default"]
        self.assertIn(f"--server TEXT=http://{listens} ", told("centroidctl", "--help"))

    def test_later_sources_win(self):
        file = self.folder / "config.json"
        file.write_text(json.dumps({"rounds": 3, "seed": 3, "min_workers": 3}))
        environment = {"CENTROID_SEED": "4", "CENTROID_MIN_WORKERS": "4"}
        server = self.server("--config", file, "--min-workers", "5", environment=environment)
        text = json.dumps(server.get("/v1/config"))
        for key, value, source in (("rounds", 3, "config.json"), ("seed", 4, "CENTROID_SEED"), ("min_workers", 5, "--min-workers")):
            self.assertRegex(text, rf'"{key}": \{{[^}}]*"value": {value}\b')
            self.assertIn(source, text)

    def test_secret_is_never_shown(self):
        secret = self.folder / "token"
        secret.write_text("s3cret-word\n")
        server = self.server("--token-file", secret)
        worker = self.worker(server, "w0", "--token", "another-word")
        self.assert_status(worker, USAGE)
        shown = json.dumps(server.get("/v1/config")) + server.text() + worker.text()
        self.assertNotIn("s3cret-word", shown)
        self.assertNotIn("another-word", shown)


class Ports(ClusterTest):
    def taken(self):
        """An endpoint at which another program listens."""
        listener = self.enterContextManager(contextlib.closing(socket.create_server(("127.0.0.1", 0))))
        return "127.0.0.1:%d" % listener.getsockname()[1]

    def enterContextManager(self, manager):
        value = manager.__enter__()
        self.addCleanup(manager.__exit__, None, None, None)
        return value

    def test_data_port_in_use(self):
        taken = self.taken()
        self.assert_status(self.launch_server(listen=taken), FAILED, taken, "the port is in use")

    def test_api_port_in_use(self):
        taken = self.taken()
        self.assert_status(self.launch_server(api=taken), FAILED, taken, "the port is in use")

    def test_open_data_port_needs_a_token(self):
        self.assert_status(self.launch_server(listen="0.0.0.0:0"), USAGE, "0.0.0.0:0", "token", "127.0.0.1")

    def test_open_api_port_needs_a_token(self):
        server = self.launch_server("--token", "secret", api="0.0.0.0:0")
        self.assert_status(server, USAGE, "0.0.0.0:0", "token", "127.0.0.1")

    def test_endpoint_that_is_none(self):
        self.assert_status(self.launch_server(listen="nonsense", name="one"), USAGE, "nonsense")
        self.assert_status(self.worker("127.0.0.1:99999", "w0"), USAGE, "127.0.0.1:99999")

    def test_folder_that_cannot_be_made(self):
        (self.folder / "file").touch()
        self.assert_status(self.launch_server(run="file/below"), USAGE, "file/below", "run_dir")


class Reaching(ClusterTest):
    def test_worker_without_a_server_backs_off_and_gives_up(self):
        with contextlib.closing(socket.socket()) as taken:  # so that no other test's program listens there meanwhile
            taken.bind(("127.0.0.1", 0))
            worker = self.worker(f"127.0.0.1:{taken.getsockname()[1]}", "w0", "--join-timeout", "1500")
            self.assert_status(worker, FAILED, "could not join", "--join-timeout", "Connection refused")
        retries = worker.events("server.connection_failed")
        self.assertGreaterEqual(len(retries), 3)
        self.assertGreater(retries[-1]["retry_ms"], retries[0]["retry_ms"])
        self.assertIn("could not join", self.summary("w0")["error"])

    def test_worker_gives_up_on_a_server_that_greets_and_then_is_silent(self):
        with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as silent:
            silent.settimeout(40)
            worker = self.worker(f"127.0.0.1:{silent.getsockname()[1]}", "w0", "--join-timeout", "1500")
            with contextlib.closing(silent.accept()[0]) as peer:
                peer.settimeout(40)
                read_frame(peer)
                limits = struct.pack("<HIQQ", 1, 64 << 10, 64 << 20, 4 << 20)
                welcome = limits + text("server") + text("silent") + text("run")
                peer.sendall(header(HELLO_REPLY, RESPONSE, welcome) + welcome)
                read_frame(peer)  # Join
                self.assertEqual(worker.exit_status(seconds=20), FAILED, worker.text())
        self.assertIn("--join-timeout", worker.text())

    def test_worker_joins_a_server_that_comes_later(self):
        port = free_port()
        worker = self.worker(f"127.0.0.1:{port}", "w0")
        worker.wait_event("server.connection_failed", why="refused")
        server = self.server("--rounds", "3", "--exit-when-finished", listen=f"127.0.0.1:{port}")
        self.assert_exit(DONE, worker, server)

    def test_worker_without_a_server_stops_on_sigterm(self):
        worker = self.worker(f"127.0.0.1:{free_port()}", "w0")
        worker.wait_event("server.connection_failed")
        worker.send(signal.SIGTERM)
        self.assert_exit(DONE, worker)

    def test_sigterm_during_the_handshake_ends_the_worker(self):
        server = self.server()
        link = Link(server.data)
        self.addCleanup(link.close)
        link.down.hold()
        worker = self.worker(link.endpoint, "w0")
        wait_for(lambda: link.up.passed, "Hello")
        worker.send(signal.SIGTERM)
        worker.wait_event("worker.stop_requested")
        link.down.release()
        self.assert_exit(DONE, worker)


class Admission(ClusterTest):
    def assert_not_let_in(self, server, worker, *texts):
        self.assert_status(worker, USAGE, *texts)
        self.assertEqual(server.workers(), [])
        wait_for(lambda: server.metric("centroid_server_handshakes_refused_total") > 0, "the refusal to be counted")  # behind its word
        self.assertEqual(server.metric("centroid_server_handshakes_refused_total"), 1)

    def test_wrong_token(self):
        server = self.server("--token", "right")
        self.assert_not_let_in(server, self.worker(server, "w0", "--token", "wrong"), "token refused")
        server.wait_event("connection.refused", why="token refused")
        self.assertEqual(server.metric("centroid_server_tokens_refused_total"), 1)

    def test_missing_token(self):
        server = self.server("--token", "right")
        self.assert_not_let_in(server, self.worker(server, "w0"), "token refused")

    def test_right_token(self):
        server = self.server("--token", "right", "--rounds", "2", "--exit-when-finished")
        self.assert_exit(DONE, self.worker(server, "w0", "--token", "right"), server)

    def test_other_protocol_version_is_told_both(self):
        server = self.server()
        with connect(server.data) as peer:
            peer.sendall(hello(versions=(7, 9)))
            kind, flags, head = read_frame(peer)
            code, message = read_error(head)
            self.assertEqual((kind, flags, code), (HELLO_REPLY, RESPONSE | ERROR, FAILED_PRECONDITION))
            self.assertIn("1..1", message)
            self.assertIn("7..9", message)
            self.assertTrue(is_closed(peer))
        server.wait_event("connection.refused", why="7..9")
        self.assertEqual(server.metric("centroid_server_tokens_refused_total"), 0)

    def test_newer_frames_are_told_from_broken_ones(self):
        server = self.server()
        with connect(server.data) as peer:
            peer.sendall(hello(frame_version=2))
            self.assertTrue(is_closed(peer))
        refused = server.wait_event("connection.refused", why="version")
        self.assertIn("failed_precondition", refused["why"])
        self.assertRegex(refused["why"], r"\b2\b.*\b1\b|\b1\b.*\b2\b")

    def trained_pair(self, *arguments):
        """A server in training with one worker that stays."""
        server = self.server(*arguments)
        self.worker(server, "w0")
        server.wait_round(2)
        return server

    def assert_refused_and_harmless(self, server, worker, *texts):
        self.assert_status(worker, USAGE, "is refused", *texts)
        server.wait_event("member.refused", worker="w1")
        server.wait_more_rounds()
        self.assertEqual([worker["name"] for worker in server.workers()], ["w0"])

    def test_other_model_names_both_shapes(self):
        server = self.trained_pair()
        worker = self.worker(server, "w1", model="mlp:64-24-10")
        self.assert_refused_and_harmless(server, worker, "model", "24", "16")

    def test_other_split_of_the_data(self):
        server = self.trained_pair()
        self.assert_refused_and_harmless(server, self.worker(server, "w1", "--seed", "77"), "--data", "seed")

    def test_other_exchange_or_codec(self):
        server = self.trained_pair()
        worker = self.worker(server, "w1", "--codec", "morse")
        self.assert_status(worker, USAGE, "morse", "bf16")
        server.wait_more_rounds()

    def test_full_cluster_makes_a_worker_wait(self):
        server = self.trained_pair("--max-workers", "1")
        late = self.worker(server, "w1")
        late.wait_event("server.connection_failed", why="the cluster is full")
        self.processes[1].send(signal.SIGTERM)
        server.wait_worker("w1", "active")


class Data(ClusterTest):
    NOWHERE = "127.0.0.1:1"

    def assert_unfit(self, *texts, name="w0", arguments=(), **options):
        self.assert_status(self.worker(self.NOWHERE, name, *arguments, **options), USAGE, *texts)

    def write_idx(self, images, side=4, cut=0):
        folder = self.folder / "idx"
        folder.mkdir(exist_ok=True)
        for part in ("train", "t10k"):
            pixels = bytes(i % 256 for i in range(images * side * side))
            labels = bytes(i % 10 for i in range(images))
            image_file = struct.pack(">IIII", 0x803, images, side, side) + pixels
            (folder / f"{part}-images-idx3-ubyte").write_bytes(image_file[: len(image_file) - cut])
            (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, images) + labels)
        return f"idx:{folder}"

    def test_empty_data_set(self):
        self.assert_unfit("train-images-idx3-ubyte", "contains no samples", arguments=["--data", self.write_idx(0)], model="mlp:16-10")

    def test_missing_files(self):
        self.assert_unfit("/nowhere", "does not exist", arguments=["--data", "idx:/nowhere"], name="one")
        self.assert_unfit("digits.csv.gz does not exist", "centroid build", arguments=["--data-cache-dir", "/nowhere"], name="two")

    def test_cut_files(self):
        self.assert_unfit("train-images-idx3-ubyte", "bytes", arguments=["--data", self.write_idx(20, cut=5)], name="one", model="mlp:16-10")
        file = self.data_dir() / "digits.csv.gz"
        file.write_bytes(file.read_bytes()[:-100])
        self.assert_unfit("digits.csv.gz", name="two")

    def test_line_that_is_no_digit(self):
        with gzip.open(self.data_dir() / "digits.csv.gz", "at") as out:
            out.write("1,2,three\n")
        self.assert_unfit("digits.csv.gz line 2001", "expected")

    def test_unknown_data_set(self):
        self.assert_unfit("'moon'", "digits", "idx:DIR", arguments=["--data", "moon"])

    def test_batch_larger_than_the_data(self):
        self.assert_unfit("batch 5000", "1600 samples", "--batch", batch=5000)

    def test_model_that_does_not_fit(self):
        self.assert_unfit("does not fit the data", "60 features", "64", model="mlp:60-10", name="one")
        self.assert_unfit("does not fit the data", "7 classes", "10", model="mlp:64-7", name="two")

    def test_model_that_is_none(self):
        self.assert_unfit("mlp:64-x-10", "'x'", model="mlp:64-x-10", name="one")
        self.assert_unfit("cnn:3", "mlp:", model="cnn:3", name="two")

    def test_device_that_is_none(self):
        self.assert_unfit("gpu:9", arguments=["--devices", "gpu:9"])


if __name__ == "__main__":
    main(at_a_time=3)
