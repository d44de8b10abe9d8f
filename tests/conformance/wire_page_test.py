"""A worker written only from docs/reference/wire.md trains beside centroid-worker and ends with the same bits. wire_page_test.py BIN_DIR

Where the page is wrong or silent, this test fails: harness/page_worker.py is changed together with the page only.
"""

import json
import pathlib
import struct
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import ROOT
from harness.cluster import DONE, ClusterTest, main
from harness.page_worker import COMMITTED, DEADLINE_SECONDS, TENSORS, Digits, Worker, data_fingerprint, f32, fingerprint, gradient, mix2, shuffle
from harness.wire import ERROR, REQUEST, UNLIMITED, connect, crc32c, header, hello, read_error, read_frame, text


def model_of(checkpoint):
    """All tensors of model.safetensors, end to end."""
    data = (checkpoint / "model.safetensors").read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    ranges = [header[name]["data_offsets"] for name, _ in TENSORS]
    return b"".join(data[8 + length + begin : 8 + length + end] for begin, end in ranges)


class WirePage(ClusterTest):
    def train(self, name, *flags, rounds=8, batch=16):
        """A job of two: the worker of the page, and centroid-worker as `m`."""
        flags = ["--apply", "worker", "--exit-when-finished", "--min-workers", 2, "--rounds", rounds, "--replica-check-rounds", 1, "--replica-drift", "halt", *flags]
        run = f"run-{len(self.processes)}"
        server = self.launch_server(*flags, run=run).wait_ready()
        worker = self.worker(server, "m", batch=batch)
        foreign = Worker(server.data, name, self.digits, batch)
        failures = []

        def run_it():
            try:
                foreign.run()
            except Exception as error:  # of another thread: told below
                failures.append(error)

        thread = threading.Thread(target=run_it, daemon=True)
        thread.start()
        thread.join(2 * DEADLINE_SECONDS)
        self.assertFalse(thread.is_alive(), "the worker of the page does not end")
        self.assertEqual(failures, [])
        self.assert_exit(DONE, server, worker)
        self.assertEqual(foreign.outcomes.count(COMMITTED), rounds)
        summary = self.summary("m")
        self.assertEqual(str(fingerprint(foreign.parameters, 0)), summary["fingerprint"], "parameters")
        result = mix2(1, rounds - 1)  # the steps before the last
        for slot in foreign.slots:
            result = fingerprint(slot, result)
        self.assertEqual(str(result), summary["optimizer_fingerprint"], "state of the optimizer")
        self.assertEqual(foreign.parameters.tobytes(), model_of(self.checkpoints(run)[-1]), "the checkpoint")
        self.assertEqual(server.events("replica.drifted"), [])
        self.assertGreaterEqual(foreign.compared, rounds - 1, "fingerprints of its replicas")
        return foreign

    def setUp(self):
        self.digits = Digits(self.data_dir() / "digits.csv.gz")

    def test_the_examples_of_the_page(self):
        page = (ROOT / "docs" / "reference" / "wire.md").read_text()
        self.assertIn(f"`{data_fingerprint([f32([0, 0.5]), f32([1, 0.25])], [0, 1], 2):016x}`", page)
        for epoch in (0, 1):
            self.assertIn(f"epoch {epoch} is {' '.join(map(str, shuffle(10, 1, epoch)))}", page)

    def test_limits_and_route_of_tables(self):
        """RowsOpen, RowsPull, RowsRoute: a pull may have more rows than a push."""
        server = self.server("--tables", "words:dim=64")
        with connect(server.data) as peer:
            peer.sendall(hello(role="client", credit_bytes=UNLIMITED))
            read_frame(peer)

            def ask(kind, identity, head, payload=b""):
                peer.sendall(header(kind, REQUEST, head, len(payload), identity, payload_crc=crc32c(payload) if payload else 0) + head + payload)
                _, flags, answer = read_frame(peer)
                return read_error(answer) if flags & ERROR else answer

            table, dim, max_rows = struct.unpack_from("<III", ask(64, 1, struct.pack("<Q", 9) + text("words")))
            limit = 2 * (1 << 20)
            self.assertEqual((dim, max_rows), (64, limit // (8 + 4 * 64)))
            most = limit // (4 * 64)
            self.assertGreater(most, max_rows)
            self.assertEqual(ask(65, 2, struct.pack("<II", table, most), bytes(8 * most)), b"")
            code, why = ask(65, 3, struct.pack("<II", table, most + 1), bytes(8 * most + 8))
            self.assertEqual((code, "over the limit of 2097152 bytes" in why), (8, True), why)
            version, servers = struct.unpack_from("<QI", ask(67, 4, b""))
            self.assertEqual((version, servers), (0, 1), "Route")

    def test_adam_first_by_rank(self):
        """It gives the initial values, and evaluates."""
        schedule = "cosine:rounds=24,warmup=5,floor=0.1"
        foreign = self.train("a", "--optimizer", "adam", "--lr", 0.01, "--lr-schedule", schedule, "--weight-decay", 0.001, "--clip-norm", 0.5, rounds=24)
        self.assertGreater(foreign.reports, 0)
        _, _, right = gradient(foreign.parameters, self.digits.test)
        self.assertGreater(right, len(self.digits.test) / 2, "it has learned")

    def test_adam_second_by_rank_over_an_epoch(self):
        """It gets the state as StateChunks; shares run into the next epoch."""
        foreign = self.train("z", "--optimizer", "adam", "--lr", 0.002, "--lr-schedule", "onecycle:rounds=16", rounds=12, batch=300)
        self.assertEqual(foreign.reports, 0)

    def test_every_optimizer(self):
        jobs = {
            "sgd": ("--lr", 0.1, "--lr-schedule", "step:every=3,factor=0.7", "--weight-decay", 0.01),
            "momentum": ("--lr", 0.05, "--lr-schedule", "linear:rounds=20,warmup=4", "--clip-norm", 0.3),
            "nesterov": ("--lr", 0.05, "--weight-decay", 0.01),
            "adagrad": ("--lr", 0.05, "--lr-scale-ratio", 0.5),
            "adamw": ("--lr", 0.01, "--weight-decay", 0.1, "--clip-norm", 0.2),
            "yogi": ("--lr", 0.01, "--epsilon", 0.001),
            "ftrl": ("--lr", 0.1, "--l1", 0.001, "--weight-decay", 0.01),
        }
        for name, flags in jobs.items():
            with self.subTest(optimizer=name):
                self.train("a", "--optimizer", name, *flags)


if __name__ == "__main__":
    main()
