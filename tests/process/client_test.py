"""The Python package and libcentroid.so: programs of others as workers of a real server. client_test.py BIN_DIR"""

import array
import concurrent.futures
import contextlib
import importlib.util
import itertools
import os
import pathlib
import signal
import subprocess
import sys
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.client import ClientTest
from harness.cluster import DONE, Process, main, wait_for
from harness.wire import REQUEST, connect, header, hello, read_exactly, read_frame
import centroid


class OldLibrary(ClientTest):
    """A library of the same ABI from before this package; what it lacks is named when it is asked for."""

    def load(self, *functions):
        source, library = self.folder / "old.c", self.folder / "libold.so"
        source.write_text("\n".join(functions) + '\nunsigned centroid_abi(void) { return 1; }\nconst char* centroid_version(void) { return "0.0.9"; }\n')
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
        self.addCleanup(centroid.load, self.environment["LIBCENTROID"])
        centroid.load(library)

    def open(self, **more):
        return self.trainer("127.0.0.1:9", "old", {"w": array.array("f", [1])}, **more)

    def test_what_it_does_not_know_is_an_error(self):
        self.load()
        lacks = "libold.so (0.0.9) is older than this package and has no "
        self.assert_fails("unimplemented", lacks + "on_keep", self.open, on_keep=print)
        self.assert_fails("unimplemented", lacks + "sample_tokens", self.open, sample_tokens=8)
        self.assert_fails("unimplemented", lacks + "centroid_trainer_open", self.open)
        self.assert_fails("unimplemented", lacks + "centroid_pull", centroid.pull, "127.0.0.1:9", ["w"])

    def test_it_may_say_how_much_it_knows(self):
        until_keep = centroid._abi._Training.on_keep.offset
        self.load(f"unsigned long long centroid_struct_size(const char* name) {{ return name[0] == 't' ? {until_keep} : 4096; }}")
        self.assert_fails("unimplemented", "has no on_keep", self.open, on_keep=print)
        self.assert_fails("unimplemented", "has no centroid_trainer_open", self.open, sample_tokens=8)


class Arrays(ClientTest):
    """Without NumPy: the standard library's arrays."""

    def test_two_trainers_get_the_mean_by_name_and_a_file_has_it(self):
        server = self.server("--rounds", 4, "--min-workers", 2, "--lr", "0.5", "--exit-when-finished")
        tensors = [{"w": array.array("f", [1, 2, 3]), "scale": array.array("f", [7])} for _ in range(2)]
        seen = [[], []]

        def run(i):
            with self.trainer(server, f"t{i}", tensors[i]) as trainer:
                for share in trainer:
                    self.assertEqual((share.rank, share.world, len(share), share.is_local), (i, 2, 4, False))
                    seen[i] += share.indices()
                    done = trainer.finish({"scale": array.array("f", [1]), "w": array.array("f", [i, 2 * i, 0])}, loss_sum=2.0)
                    self.assertEqual(done.outcome, centroid.Outcome.COMMITTED)
                self.assertEqual(trainer.end, centroid.End.FINISHED)

        self.at_once(run)
        # Means of 0.5, 1 and 0; 1 for the scale; four steps of 0.5.
        for one in tensors:
            self.assertEqual(list(one["w"]), [0, 0, 3])
            self.assertEqual(list(one["scale"]), [5])
        self.assertEqual(len(set(seen[0] + seen[1])), 32)
        self.assertTrue(all(0 <= sample < 60 for sample in seen[0] + seen[1]))
        self.assertEqual(server.exit_status(), DONE)
        [checkpoint] = self.checkpoints()[-1:]
        header = b"".join(file.read_bytes()[:4096] for file in checkpoint.glob("model*.safetensors"))
        self.assertIn(b'"w"', header)
        self.assertIn(b'"scale"', header)

    def test_means_are_weighed_by_the_tokens_they_were_taken_over(self):
        server = self.server("--rounds", 1, "--min-workers", 2, "--lr", "1", "--weight-by", "tokens", "--exit-when-finished")
        tensors = [{"w": array.array("f", [0, 0])} for _ in range(2)]

        def run(i):
            with self.trainer(server, f"t{i}", tensors[i], sample_tokens=8) as trainer:
                for _ in trainer:  # 4 samples: 30 tokens here, 10 there
                    trainer.finish({"w": array.array("f", [1 + 3 * i, 2])}, samples=30 - 20 * i)

        self.at_once(run)
        for one in tensors:
            self.assertEqual(list(one["w"]), [-(30 * 1 + 10 * 4) / 40, -2])
        self.assertEqual(server.exit_status(), DONE)

    def test_a_step_longer_than_the_lease_is_no_failure(self):
        server = self.server("--rounds", 2, "--min-workers", 1, "--lease", "2s", "--exit-when-finished")
        with self.trainer(server, "slow", {"w": array.array("f", [0])}) as trainer:
            for _ in trainer:
                threading.Event().wait(5)  # what it computes
                self.assertEqual(trainer.finish({"w": array.array("f", [1])}).outcome, centroid.Outcome.COMMITTED)
            self.assertEqual(trainer.end, centroid.End.FINISHED)
        self.assertEqual(server.exit_status(), DONE)
        self.assertEqual([], server.events("member.lost"))
    def test_numbers_that_a_program_names_are_averaged(self):
        server = self.server("--rounds", 2, "--min-workers", 2, "--lr", "0.5")

        def run(i):
            trainer = self.trainer(server, f"t{i}", {"w": array.array("f", [1])})
            for share in trainer:
                for _ in range(3 if i == 0 else 1):
                    trainer.record("reward/mean", 1.0 + 4 * i)
                trainer.record(f"of.t{i}", share.round)
                if i == 0 and share.round == 1:
                    self.assert_fails("invalid_argument", "not finite", trainer.record, "reward/mean", float("nan"))
                    self.assert_fails("invalid_argument", "1 to 64", trainer.record, "9", 1)
                trainer.finish({"w": array.array("f", [1])})

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            list(pool.map(run, range(2)))
        rounds = {one["round"]: one["scalars"] for one in server.get("/v1/rounds")["rounds"]}
        for number in (1, 2):
            self.assertEqual(rounds[number][2], {"name": "reward/mean", "mean": 2.0, "count": 4})
            self.assertEqual([one["name"] for one in rounds[number]], ["of.t0", "of.t1", "reward/mean"])
        workers = {one["name"]: one["scalars"] for one in server.get("/v1/workers")["workers"]}
        self.assertEqual(workers["t1"], [{"name": "of.t1", "mean": 2.0, "count": 1}, {"name": "reward/mean", "mean": 5.0, "count": 1}])
        self.assertEqual(server.metric("centroid_server_scalar", name="reward/mean"), 2.0)

    def test_local_steps_are_averaged(self):
        server = self.launch_server("--rounds", 3, "--min-workers", 2, "--local-steps", 5, "--outer", "average").wait_ready()
        tensors = [{"w": array.array("f", [0])} for _ in range(2)]
        found = [[], []]

        def run(i):
            with self.trainer(server, f"t{i}", tensors[i], samples=120) as trainer:
                for share in trainer:
                    self.assertTrue(share.is_local)
                    self.assertEqual(len(share), 20)
                    tensors[i]["w"][0] += 1 + 2 * i
                    trainer.finish(samples=len(share))
                    found[i].append(tensors[i]["w"][0])

        self.at_once(run)
        self.assertEqual(found, [[2, 4, 6], [2, 4, 6]])

    def test_an_optimizer_of_the_program_is_kept_with_the_checkpoint(self):
        settings = ["--rounds", 7, "--min-workers", 1, "--local-steps", 5, "--outer", "average", "--checkpoint.every-rounds", 3]

        def train(run, *more, kept, last):
            server = self.launch_server(*settings, *more, run=run, name=f"{run}{len(more)}").wait_ready()
            tensors, momentum = {"w": array.array("f", [1])}, 0.0
            with self.trainer(server, "t", tensors, samples=35, batch=1, on_keep=lambda number: kept.update({number: momentum})) as trainer:
                for share in trainer:
                    momentum = kept[share.round - 1] if share.round - 1 in kept else momentum
                    if share.round == last:
                        server.kill()
                        break
                    for _ in range(len(share)):
                        momentum = 0.9 * momentum + tensors["w"][0]
                        tensors["w"][0] -= 0.01 * momentum
                    trainer.finish()
            return tensors["w"][0]

        whole, broken = {}, {}
        expected = train("whole", kept=whole, last=None)
        self.assertIn(3, whole)  # that of round 6 is left out where the disk is slow
        train("broken", kept=broken, last=5)
        self.assertEqual(sorted(broken), [3])
        self.assertEqual(train("broken", "--resume", kept=broken, last=None), expected)
        self.assertEqual(broken[3], whole[3])

    def test_what_a_program_raises_when_it_keeps_ends_the_wait(self):
        def full(number):
            raise OSError(28, f"no room for round {number}")

        server = self.launch_server("--rounds", 9, "--min-workers", 1, "--local-steps", 5, "--outer", "average", "--checkpoint.every-rounds", 3).wait_ready()
        with self.trainer(server, "t", {"w": array.array("f", [1])}, on_keep=full) as trainer:
            with self.assertRaisesRegex(OSError, "no room for round 3"):
                for _ in trainer:
                    trainer.finish()

    def test_what_is_wrong_is_said(self):
        server = self.server("--rounds", 2, "--min-workers", 1)
        tensors = {"w": array.array("f", [0, 0])}
        self.assert_fails("invalid_argument", "batch 61", self.trainer, server, "t", tensors, batch=61)
        for odd, text in ((array.array("d", [0]), "format d"), ([0.0], "w is a list"), (b"1234", "cannot be written"), (None, "NoneType")):
            self.assert_fails("invalid_argument", text, self.trainer, server, "t", {"w": odd})
        self.assert_fails("invalid_argument", "samples -1", self.trainer, server, "t", tensors, samples=-1)
        self.assert_fails("invalid_argument", "batch is 1.5", self.trainer, server, "t", tensors, batch=1.5)
        self.assert_fails("invalid_argument", "timeout", self.trainer, server, "t", tensors, timeout=-1)
        self.assert_fails("invalid_argument", "no authority", self.trainer, server, "t", tensors, tls={"key": "x"})
        self.assert_fails("invalid_argument", "authority", self.trainer, server, "t", tensors, tls={"authority": "system", "ca": "x"})
        self.assert_fails("not_found", "missing.pem", self.trainer, server, "t", tensors, tls={"authority": "missing.pem"})
        trainer = self.trainer(server, "t", tensors)
        self.assert_fails("failed_precondition", "next comes before finish", trainer.finish, {"w": array.array("f", [0, 0])})
        next(trainer)
        self.assert_fails("failed_precondition", "is not finished", next, trainer)
        self.assert_fails("invalid_argument", "give one for each tensor", trainer.finish)
        self.assert_fails("invalid_argument", "w, b", trainer.finish, {"b": array.array("f", [0, 0])})
        self.assert_fails("invalid_argument", "w has shape [3], not [2]", trainer.finish, {"w": array.array("f", [0, 0, 0])})
        other = self.trainer(server, "u", {"w": array.array("f", [0, 0, 0])})
        self.assert_fails("failed_precondition", "w", next, other)
        trainer.finish({"w": array.array("f", [1, 1])})
        next(trainer)
        trainer.finish({"w": array.array("f", [float("nan"), 1])})
        self.assert_fails("failed_precondition", "w", next, trainer)
        self.assertEqual(trainer.end, centroid.End.HALTED)
        trainer.close()
        self.assert_fails("failed_precondition", "closed", trainer.finish)

    def test_nobody_listens(self):
        trainer = self.trainer("127.0.0.1:9", "t", {"w": array.array("f", [0])}, timeout=0.3)
        for _ in range(2):  # an error is final, and comes again
            with self.assertRaises(centroid.CentroidError) as caught:
                next(trainer)
            self.assertIn("127.0.0.1:9", caught.exception.message)

    def test_a_gradient_that_is_wrong_spoils_nothing(self):
        server = self.server("--rounds", 1, "--min-workers", 1, "--lr", "1")
        tensors = {"w": array.array("f", [0, 0]), "b": array.array("f", [5]), "unused": array.array("f", [9])}
        with self.trainer(server, "t", tensors) as trainer:
            for share in trainer:
                b = array.array("f", [1])
                self.assert_fails("invalid_argument", "w has shape [3]", trainer.finish, {"b": b, "unused": None, "w": array.array("f", [1, 2, 3])})
                self.assertEqual(len(set(share.indices())), 4)
                trainer.finish({"b": b, "unused": None, "w": array.array("f", [1, 2])})
                self.assert_fails("failed_precondition", "is over", share.indices)
        self.assertEqual([list(tensors[name]) for name in ("w", "b", "unused")], [[-1, -2], [4], [9]])

    def test_steps_after_a_contribution_are_kept(self):
        server = self.launch_server("--rounds", 2, "--min-workers", 1, "--local-steps", 4, "--outer", "average").wait_ready()
        tensors, seen = {"w": array.array("f", [0])}, []
        with self.trainer(server, "t", tensors) as trainer:
            for share in trainer:
                if share.evaluate:
                    trainer.report(samples=10, correct=7, loss_sum=3.0)
                tensors["w"][0] += 1
                trainer.contribute(samples=8)
                tensors["w"][0] += 0.25
                trainer.finish(samples=8)
                seen.append((tensors["w"][0], array.array("f", trainer.committed("w"))[0]))
            if trainer.final_evaluation:
                trainer.report(samples=10, correct=7, loss_sum=3.0)
        self.assertEqual(seen, [(1.25, 1), (2.5, 2.25)])
        server.wait_cluster("what was reported", lambda view: view["test_accuracy"] == 0.7)

    def test_stop_ends_the_wait_for_a_round(self):
        server = self.server("--min-workers", 2)
        slow, quick = (self.trainer(server, name, {"w": array.array("f", [0])}) for name in ("slow", "quick"))
        self.at_once(lambda i: next((slow, quick)[i]))
        stopper = threading.Timer(0.3, quick.stop)
        stopper.start()
        done = quick.finish({"w": array.array("f", [1])})  # the other one never gives its own
        stopper.join()
        self.assertEqual(done.outcome, centroid.Outcome.LOST)
        self.assertEqual(list(quick), [])
        self.assertEqual(quick.end, centroid.End.STOPPED)
        slow.close()


class Example(ClientTest):
    """Real data with NumPy, processes that are killed and interrupted."""

    def test_digits_are_learned_with_gradients_and_with_local_steps(self):
        for run, settings in (("gradients", ["--optimizer", "momentum", "--lr", "0.05"]), ("local", ["--local-steps", 5, "--outer", "average"])):
            with self.subTest(run):
                server = self.launch_server("--epochs", 30, "--min-workers", 2, "--exit-when-finished", *settings, run=run, name=run).wait_ready()
                workers = [self.example(server, f"{run}{i}", "--out", self.folder / f"{run}{i}.npz") for i in range(2)]
                self.assert_exit(DONE, *workers, server)
                self.assertEqual(*((self.folder / f"{run}{i}.npz").read_bytes() for i in range(2)))
                accuracy = next(float(part.split(" %")[0].rpartition(" ")[2]) for part in (one.text() for one in workers) if " %" in part)
                print(f"{run}: {accuracy} % of the held-out digits", file=sys.stderr)
                self.assertGreater(accuracy, 90)

    def test_one_that_is_killed_is_left_behind_and_comes_back(self):
        server = self.server("--epochs", 40, "--min-workers", 1, "--lease", "2s", "--exit-when-finished")
        first, second = (self.example(server, name, "--step-seconds", "0.01") for name in "ab")
        server.wait_cluster("two workers train", lambda view: view["round"] > 5 and len(server.workers()) == 2)
        second.kill()
        server.wait_more_rounds()
        self.assert_exit(DONE, first, self.example(server, "b", "--step-seconds", "0.01"), server)

    def signalled(self, server, name, number, *lines, before="pass"):
        """A program that waits for a second worker, gets a signal and leaves: its status and what it wrote."""
        begin = f'import array, centroid, signal\nwith centroid.Trainer({server.data!r}, {{"w": array.array("f", [1])}}, samples=60, name="{name}") as trainer:'
        program, environment = "\n    ".join([begin, before, 'print("inside", flush=True)', *lines]), {"PYTHONPATH": str(pathlib.Path(centroid.__file__).parents[1])}
        lonely = Process(sys.executable, ["-c", program], self.folder / f"{name}.log", {**os.environ, **self.environment, **environment})
        self.processes.append(lonely)
        wait_for(lambda: "inside" in lonely.text() and server.workers(name), "the worker to join")
        lonely.send(number)
        server.wait_worker(name, "left")
        return lonely.exit_status(), lonely.text()

    def test_a_signal_ends_a_wait(self):
        server = self.server("--epochs", 1, "--min-workers", 2)
        status, text = self.signalled(server, "interrupted", signal.SIGINT, "next(trainer)")
        self.assertTrue(status and "KeyboardInterrupt" in text, text)
        handler = 'signal.signal(signal.SIGUSR1, lambda *_: (print("handled", flush=True), trainer.close()))'
        status, text = self.signalled(server, "closed", signal.SIGUSR1, "for share in trainer: pass", 'print("over:", trainer.end_reason, flush=True)', before=handler)
        self.assertEqual(status, 0, text)
        self.assertRegex(text, "(?s)handled.*over: the program stops")


@unittest.skipUnless(importlib.util.find_spec("torch"), "no PyTorch here")
class Torch(ClientTest):
    def test_tensors_of_a_module(self):
        import torch
        server = self.server("--rounds", 3, "--min-workers", 1, "--lr", "0.1")
        layer = torch.nn.Linear(4, 2)
        tensors = dict(layer.named_parameters())
        expected = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        with self.trainer(server, "t", tensors) as trainer:
            for share in trainer:
                x = torch.ones(len(share), 4)
                layer.zero_grad()
                layer(x).pow(2).mean().backward()
                for name, tensor in tensors.items():
                    expected[name] -= 0.1 * tensor.grad
                trainer.finish({name: tensor.grad for name, tensor in tensors.items()})
                for name, tensor in tensors.items():
                    torch.testing.assert_close(tensor.detach(), expected[name])


    def test_a_module_trains_but_for_its_frozen_parameters(self):
        import torch
        def model(frozen):
            torch.manual_seed(1)
            made = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
            for name, parameter in made[0].named_parameters():
                parameter.requires_grad_(False)
                parameter.data.fill_(frozen)
            return made

        server = self.server("--rounds", 3, "--min-workers", 1, "--lr", "0.1", "--weight-decay", "0.5", "--optimizer", "adamw")
        trained = model(0.5)
        before = {name: tensor.clone() for name, tensor in trained.state_dict().items()}
        with self.trainer(server, "t", trained) as trainer:
            self.assertEqual(sorted(trainer.tensors), ["1.bias", "1.running_mean", "1.running_var", "1.weight", "2.bias", "2.weight"])
            for share in trainer:
                trained.zero_grad()
                if share.round == 1:
                    with self.assertRaisesRegex(centroid.CentroidError, "model .*frozen"):
                        next(self.trainer(server, "other", model(0.25)))
                    with self.assertRaisesRegex(centroid.CentroidError, "call backward before finish"):
                        trainer.finish()
                    with self.assertRaisesRegex(centroid.CentroidError, "0.bias, 0.weight: frozen when the Trainer was made"):
                        trainer.finish({name: torch.zeros_like(tensor) for name, tensor in trained.named_parameters()})
                trained(torch.rand(len(share), 4)).pow(2).mean().backward()
                trainer.finish()
        for name, tensor in trained.state_dict().items():
            self.assertEqual(torch.equal(tensor, before[name]), name.startswith("0."), name)

    def test_gradients_of_a_module_leave_during_backward(self):
        import torch
        def train(name, spoils=False, **settings):
            torch.manual_seed(1)
            model = torch.nn.Sequential(torch.nn.Linear(4, 1 << 13), torch.nn.ReLU(), torch.nn.Linear(1 << 13, 2))
            model.unused = torch.nn.Parameter(torch.ones(3))
            server = self.server("--rounds", 4, "--min-workers", 1, "--lr", "0.00001", name=name, run=name)
            sent, places, kept, values = [], [], [], []
            with self.trainer(server, "t", model, **settings) as trainer:
                send = trainer._send
                trainer._send = lambda at, gradient: (sent.append(trainer._names[at]), send(at, gradient))
                for share in trainer:
                    model.zero_grad(set_to_none=True)
                    loss = model(torch.full((len(share), 4), float(share.round))).pow(2).mean()
                    loss.backward(retain_graph=True)
                    self.assertEqual(len(sent), 4 * share.round if "overlap" not in settings else 0)
                    if spoils:
                        with self.assertRaisesRegex(centroid.CentroidError, "a second backward in one round: the gradient of .* has left. Give Trainer overlap=False"):
                            loss.backward()
                        with self.assertRaisesRegex(centroid.CentroidError, "changed after backward, but they have left: give Trainer overlap=False"):
                            trainer.finish()
                        break
                    kept, places = kept or [model[0].weight.grad], [*places, model[0].weight.grad.data_ptr()]
                    values.append(model[0].weight.grad.clone())
                    trainer.finish()
            return [*values, *model.state_dict().values()], places, all(map(torch.equal, kept, values))

        (early, places, is_kept), (late, *_) = train("early"), train("late", overlap=False)
        self.assertTrue(is_kept and all(map(torch.equal, early, late)))
        self.assertEqual(len(set(places[1:])), 1)  # a large one has the same memory in each round
        train("spoilt", spoils=True)

    def test_the_tensors_of_a_state_dict_are_not_frozen(self):
        import torch

        server = self.server("--rounds", 1, "--min-workers", 1, "--lr", "0.1")
        layer = torch.nn.Linear(4, 2)
        with self.trainer(server, "t", layer.state_dict()) as trainer:
            for _ in trainer:
                trainer.finish({name: torch.ones_like(tensor) for name, tensor in trainer.tensors.items()})
            self.assertEqual(len(trainer.tensors), 2)


class Pull(ClientTest):
    """Tensors by name, for programs that are no workers."""

    SHAPES = {"layer.0.w": (300, 50), "layer.0.b": (50,), "scale": (), "head.w": (7, 11, 13)}
    BEGIN = 4096.0

    def train(self, server, shapes=SHAPES):
        """A trainer whose every parameter is BEGIN - 0.5 * (version - 1)."""
        shaped = lambda name, value: memoryview(array.array("f", self.size(shapes[name]) * [value])).cast("B").cast("f", shapes[name])  # noqa: E731
        views, gradients = ({name: shaped(name, value) for name in shapes} for value in (self.BEGIN, 1))
        self.is_over, self.failure = threading.Event(), []

        def run():
            try:
                with self.trainer(server, "t", views, samples=10**9) as trainer:
                    for _ in trainer:
                        trainer.finish(gradients)
                        if self.is_over.is_set():
                            break
            except centroid.CentroidError as error:
                self.failure.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self.addCleanup(thread.join, 30)
        self.addCleanup(self.is_over.set)
        return thread

    @staticmethod
    def size(shape):
        count = 1
        for dimension in shape:
            count *= dimension
        return count

    def assert_one_version(self, tensors, names):
        self.assertEqual(list(tensors), list(names))
        value = array.array("f", [self.BEGIN - 0.5 * (tensors.version - 1)]).tobytes()
        for name in names:
            self.assertEqual(tensors[name].shape, self.SHAPES[name])
            self.assertEqual(tensors[name].tobytes(), self.size(self.SHAPES[name]) * value, f"{name} of version {tensors.version}")

    def pull_beside_rounds(self, server):
        thread = self.train(server)
        versions = []
        for i in itertools.count():  # on a machine that is busy rounds are fewer
            names = [None, ["scale", "head.w"], ["layer.0.w"]][i % 3]
            tensors = centroid.pull(server.data, names, timeout=30)
            self.assert_one_version(tensors, names or sorted(self.SHAPES))
            versions.append(tensors.version)
            if i >= 60 and len(set(versions)) > 20:
                break
            self.assertLess(i, 5000, "there are no rounds any more")
        self.assertEqual(versions, sorted(versions))
        self.assertEqual(self.failure, [])
        self.is_over.set()
        thread.join(30)
        self.assertEqual(server.wait_event("tensors.sent")["tensors"], 4)

    def test_each_pull_beside_rounds_has_the_values_of_one_version(self):
        self.pull_beside_rounds(self.server("--lr", "0.5", "--chunk-bytes", 1024, "--rounds", 0))

    def shard(self, server, name):
        places = ["--join", server.data, "--name", name, "--listen", "127.0.0.1:0", "--run-dir", self.folder / "shards"]
        return self._start(Process, "centroid-server", name, places, None)

    def test_on_three_servers_too(self):
        server = self.server("--lr", "0.5", "--chunk-bytes", 1024, "--rounds", 0, "--servers", 3)
        for name in "bc":
            self.shard(server, name)
        self.pull_beside_rounds(server)

    def test_beside_servers_that_come_and_go(self):
        server = self.server("--lr", "0.5", "--chunk-bytes", 1024, "--rounds", 0)
        self.train(server)
        server.wait_more_rounds(3)

        def has_chunks(name):
            return any(one["name"] == name and one["chunks"] > 0 for one in server.get("/v1/servers")["servers"])

        def change():
            for name in ("b", "c", "d"):
                shard = self.shard(server, name)
                wait_for(lambda: has_chunks(name), f"chunks on {name}")
                self.assertEqual(server.post(f"/v1/servers/{name}:drain")[0], 202)
                self.assertEqual(shard.exit_status(), DONE)

        pulled = 0
        with concurrent.futures.ThreadPoolExecutor() as pool:
            changes = pool.submit(change)
            while not changes.done() or pulled <= 10:  # on a machine that is busy a pull may take as long as a change
                self.assert_one_version(centroid.pull(server.data, timeout=30), sorted(self.SHAPES))
                pulled += 1
            changes.result()
        self.assertEqual(self.failure, [])

    def test_pulls_beside_restores_have_the_values_of_one_version(self):
        server = self.server("--lr", "0.5", "--chunk-bytes", 1024, "--rounds", 0)
        self.train(server)
        server.wait_round(3)
        version = server.post("/v1/checkpoints")[1]["version"]
        is_over, failures, pulled = threading.Event(), [], []

        def pull():
            while not is_over.is_set():
                try:
                    tensors = centroid.pull(server.data, timeout=30)
                    self.assert_one_version(tensors, sorted(self.SHAPES))
                    pulled.append(tensors.version)
                except (AssertionError, centroid.CentroidError) as error:
                    failures.append(error)
                    return

        threads = [threading.Thread(target=pull, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(8):
            status, answer = server.post(f"/v1/checkpoints/{version}:restore")
            self.assertEqual(status, 200, answer)
            server.wait_more_rounds(5)
        wait_for(lambda: len(pulled) > 20 or failures, "more than 20 pulls")
        is_over.set()
        for thread in threads:
            thread.join(40)
        self.assertEqual(failures, [])
        self.assertGreaterEqual(min(pulled), 1)

    def test_a_restore_while_tensors_are_copied_is_seen(self):
        hold = self.folder / "hold"
        server = self.server("--lr", "0.5", "--chunk-bytes", 1024, "--rounds", 0, environment={"CENTROID_TEST_HOLD": f"pulls.copying:{hold}"})
        thread = self.train(server)
        server.wait_round(3)
        version = server.post("/v1/checkpoints")[1]["version"]
        server.wait_more_rounds(3)
        self.is_over.set()  # a round that is open would wait for the copy, and the restore for that
        thread.join(30)
        self.assertEqual(self.failure, [])
        hold.write_text("")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            try:
                pull = pool.submit(centroid.pull, server.data, timeout=60)
                wait_for(lambda: any(one["waiter"].startswith("reader") for one in server.get("/v1/waits")["waits"]), "the reader")
                status, answer = server.post(f"/v1/checkpoints/{version}:restore")
                self.assertEqual(status, 200, answer)
                self.assertGreater(answer["from_version"], version)
                self.assertFalse(pull.done())
            finally:
                hold.unlink()
            tensors = pull.result(60)
        self.assertEqual(tensors.version, version)
        self.assert_one_version(tensors, sorted(self.SHAPES))

    def test_a_reader_is_told_why_it_waits(self):
        hold = self.folder / "hold"
        hold.write_text("")
        self.addCleanup(lambda: hold.unlink(missing_ok=True))
        server = self.server("--lr", "0.5", "--chunk-bytes", 1024, "--rounds", 0, environment={"CENTROID_TEST_HOLD": f"pulls.copying:{hold}"})
        self.train(server)
        server.wait_round(3)
        program = f"import centroid; centroid.log_level('info'); print(centroid.pull('{server.data}', timeout=60).version)"
        environment = {**os.environ, **self.environment, "PYTHONPATH": str(pathlib.Path(centroid.__file__).parents[1])}
        log = self.folder / "reader.log"
        reader = Process(sys.executable, ["-c", program], log, environment)
        self.processes.append(reader)
        wait_for(lambda: "pull.stalled" in reader.text(), "the reader's line")
        self.assertIn("waits for a copy of the state: its tensors are copied", reader.text())
        hold.unlink()
        self.assertEqual(reader.exit_status(), 0, reader.text())

    def test_what_cannot_be_pulled_is_said(self):
        server = self.server("--rounds", 0, "--token", "secret")
        self.assert_fails("unavailable", "no worker has brought them", centroid.pull, server.data, token="secret", timeout=2)
        self.assert_fails("failed_precondition", "token", centroid.pull, server.data, token="guess", timeout=5)
        self.assert_fails("invalid_argument", "one string", centroid.pull, server.data, "w")
        self.assert_fails("invalid_argument", "names is empty", centroid.pull, server.data, [])
        with self.trainer(server, "t", {"w": array.array("f", [1, 2]), "none": array.array("f")}, token="secret") as trainer:
            next(trainer)
            tensors = centroid.pull(server.data, token="secret", timeout=30)
            self.assertEqual({name: list(one.cast("B").cast("f")) if len(one) else [] for name, one in tensors.items()}, {"w": [1, 2], "none": []})
            self.assert_fails("not_found", "no tensor 'v'", centroid.pull, server.data, ["w", "v"], token="secret", timeout=5)
            self.assert_fails("invalid_argument", "'w' is named twice", centroid.pull, server.data, ["w", "w"], token="secret", timeout=5)

    def test_readers_that_do_not_read_hold_up_nobody_for_long(self):
        pull = header(80, REQUEST, b"\0\0\0\0", identity=1) + b"\0\0\0\0"  # all tensors
        server = self.server("--lr", "0.5", "--rounds", 0, "--stall-timeout", 12_000)  # in which all eight have come
        self.train(server, {"w": (2_000_000,)})  # more than the credit of a reader
        server.wait_round(2)
        with contextlib.ExitStack() as stack:
            for i in range(8):
                peer = stack.enter_context(connect(server.data))
                peer.sendall(hello(name=f"sleeper-{i}"))
                read_frame(peer)
                peer.sendall(pull)
                read_exactly(peer, 48)  # of the answer: it holds its copy
            self.assert_fails("unavailable", "8 of 8 readers", centroid.pull, server.data, timeout=2)
            server.wait_more_rounds(3)
            tensors = centroid.pull(server.data, timeout=60)  # when they have been given up
            value = array.array("f", [self.BEGIN - 0.5 * (tensors.version - 1)]).tobytes()
            self.assertEqual(tensors["w"].tobytes(), 2_000_000 * value)
            self.assertRegex(server.wait_event("tensors.send_failed")["why"], "credit|took nothing for 12 s")
        self.assertEqual(self.failure, [])


if __name__ == "__main__":
    main(at_a_time=3)
