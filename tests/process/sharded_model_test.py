"""A program's own model, of which each process has a part: centroid_sharded_* through the Python package, with NumPy. sharded_model_test.py BIN_DIR"""

import json
import pathlib
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import ROOT
from harness.cluster import free_port, main
from harness.ctl import CtlTest
from harness.groups import GroupTest

# An MLP of two layers, whose batch is 12 samples whatever the number of ranks, and the same in plain NumPy.
PROGRAM = """
import json, numpy
random = numpy.random.RandomState(7)
X, Y = random.rand(600, 8).astype("f"), random.rand(600, 4).astype("f")
START = {"w0": random.randn(8, 24).astype("f") / 3, "b0": numpy.zeros(24, "f"), "w1": random.randn(24, 4).astype("f") / 5, "b1": numpy.zeros(4, "f"), "scale": numpy.ones((), "f")}
LAYERS, BATCH, RATE, MOMENTUM = [0, 0, 1, 1, 1], 12, 0.01, 0.9
SETTINGS = json.loads(os.environ["SETTINGS"])

def backward(samples, get, give, end):
    # `get` and `give` are called layer by layer, as `end` is when a layer's gradients are complete.
    x, y = X[samples], Y[samples]
    one = get(0)
    hidden = numpy.tanh(x @ one["w0"] + one["b0"])
    two = get(1)
    inner = hidden @ two["w1"] + two["b1"]
    error = two["scale"] * inner - y
    loss, error = float((error**2).sum()), 2 * error / BATCH
    give(1, {"w1": two["scale"] * hidden.T @ error, "b1": two["scale"] * error.sum(0), "scale": (error * inner).sum()})
    back = (two["scale"] * error @ two["w1"].T) * (1 - hidden**2)
    end(1)
    give(0, {"w0": x.T @ back, "b0": back.sum(0)})
    end(0)
    return loss

def alone(steps):
    values, speed, losses = {k: v.copy() for k, v in START.items()}, {k: numpy.zeros_like(v) for k, v in START.items()}, []
    for step in range(steps):
        gradients = {}
        samples = [(BATCH * step + i) % len(X) for i in range(BATCH)]
        losses.append(backward(samples, lambda layer: values, lambda layer, of: gradients.update(of), lambda layer: None))
        for name, gradient in gradients.items():
            speed[name] = MOMENTUM * speed[name] + gradient
            values[name] = (values[name] - RATE * speed[name]).astype("f")
    return losses

def one_step(model, before_end=lambda layer: None):
    state = model.state()
    samples = [(state.position + i) % len(X) for i in range(state.rank, BATCH, state.world)]
    def get(layer):
        model.prefetch(layer)
        return {name: numpy.asarray(view).reshape(START[name].shape) for name, view in model.gather(layer).items()}
    def give(layer, gradients):
        for name, view in model.gradients(layer).items():
            out = numpy.asarray(view).reshape(START[name].shape)
            out += gradients[name] * state.world  # a sum: the step takes the mean
    def end(layer):
        before_end(layer)
        model.reduce(layer)
        model.release(layer)
    loss = model.sum(backward(samples, get, give, end))[0]
    model.step(state.position + BATCH)
    return state.step, loss

def check(losses):
    expected = alone(max(losses) + 1)
    for step, loss in losses.items():
        assert abs(loss - expected[step]) <= 1e-5 * expected[step], (step, loss, expected[step])
def open_model(**more):
    settings = {"layers": LAYERS, "timeout": 60, "optimizer": "momentum", "lr": RATE, "momentum": MOMENTUM, **SETTINGS, **more}
    return centroid.Sharded(None, START if rank == 0 else {name: numpy.zeros_like(v) for name, v in START.items()}, **settings)
"""

REFUSED = ["rank 1: codec is bf16, and f32 in the job", "rank 1: lr is 4e-07, and 1e-07 in the job", "rank 1: momentum is 0.5, and 0.9 in the job", "rank 1: layers"]

# Two layers whose gradient is the parameter's own value: each step of sgd with lr 0.5 halves it, without rounding.
C_PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include "client/centroid.h"
#define CHECK(call) do { if (call) { puts(centroid_error()); return 1; } } while (0)
int main(int argc, char** argv) {
  centroid_group_options group = {sizeof group, (uint32_t)atoi(argv[1]), 2, NULL, NULL, 60000, NULL, NULL, NULL};
  static float first[3] = {8, 16, 24}, second[2] = {64, 128};
  uint64_t three[1] = {3}, two[1] = {2};
  centroid_tensor tensors[2] = {{"first", three, 1, first}, {"second", two, 1, second}};
  const uint32_t layers[2] = {0, 1};
  centroid_sharded* model;
  centroid_sharded_state state = {0};
  CHECK(centroid_sharded_open(&group, argv[2], argv[3], tensors, layers, 2, &model));
  for (int step = 1; step <= 3; ++step) {
    double sum = 0;
    for (uint32_t layer = 0; layer < 2; ++layer) {
      const float* values;
      float* gradient;
      CHECK(centroid_sharded_prefetch(model, layer));
      CHECK(centroid_sharded_gather(model, layer));
      CHECK(centroid_sharded_parameters(model, layer, &values));
      CHECK(centroid_sharded_gradient(model, layer, &gradient));
      for (uint64_t i = 0; i < (layer ? two[0] : three[0]); ++i) {
        gradient[i] += values[i];
        sum += values[i];
      }
      CHECK(centroid_sharded_reduce(model, layer));
      CHECK(centroid_sharded_release(model, layer));
    }
    CHECK(centroid_sharded_sum(model, &sum, 1));
    CHECK(centroid_sharded_step(model, (uint64_t)step * 10));
    CHECK(centroid_sharded_regroup(model));
    printf("%g\n", sum);
  }
  CHECK(centroid_sharded_save(model, 1));
  state.size = sizeof state;
  CHECK(centroid_sharded_get(model, &state));
  printf("%u of %u, step %d, position %d\n", state.rank, state.world, (int)state.step, (int)state.position);
  const int code = centroid_sharded_gather(model, 9);
  printf("%d %s\n", code, centroid_error());
  CHECK(centroid_sharded_end(model));
  centroid_sharded_close(model);
  return argc != 4;
}
"""


class Models(GroupTest, CtlTest):
    def settings(self, **given):
        return {"join": PROGRAM, "SETTINGS": json.dumps(given)}

    def setUp(self):
        super().setUp()
        self.numpy = self.python_with("numpy")

    def test_every_strategy_trains_as_one_process_does(self):
        body = """
            with open_model() as model:
                losses = dict(one_step(model) for _ in range(12))
                state = model.state()
                check(losses)
                say(state.rank, state.world, state.step, state.position, state.parameter_bytes)
            """
        bytes_of = {}
        for sharding, world in (("none", 3), ("full", 3), ("grad", 3), ("hybrid:2", 4)):
            with self.subTest(sharding=sharding):
                said = self.run_ranks(world, body, python=self.numpy, **self.settings(sharding=sharding, shard_replicas="0"))
                for rank, lines in enumerate(said):
                    *told, bytes_of[sharding] = lines[-1].split()
                    self.assertEqual(told, [str(rank), str(world), "12", "144"])
        self.assertLess(2 * int(bytes_of["full"]), int(bytes_of["none"]))

    def test_the_others_go_on_without_a_killed_rank_and_take_in_another(self):
        body = """
            with open_model() as model:
                victim = "VICTIM" in os.environ and rank == 1
                losses, worlds, more = {}, [model.state().world], 5
                say("joined at", model.state().step)
                def die(layer):
                    if victim and layer == 1 and model.state().step == 5:
                        os.kill(os.getpid(), signal.SIGKILL)
                while more:
                    try:
                        step, loss = one_step(model, die)
                        assert step not in losses, step
                        losses[step] = loss
                        more -= len(worlds) == 3 or "NEWCOMER" in os.environ
                        model.regroup()
                    except centroid.CentroidError as error:
                        if error.code not in model.LOSSES:
                            raise
                        model.regroup()
                    if model.state().world != worlds[-1]:
                        worlds.append(model.state().world)
                        say("world", worlds[-1])
                check(losses)
                say(worlds, sorted(losses) == list(range(min(losses), max(losses) + 1)))
            """
        for sharding in ("full", "grad", "none"):
            with self.subTest(sharding=sharding):
                settings = self.settings(sharding=sharding)
                port = str(free_port())
                ranks = self.start(3, body, python=self.numpy, VICTIM="", MASTER_PORT=port, **settings)
                self.assertEqual(ranks[1].exit_status(), -signal.SIGKILL)
                self.wait_said(ranks[0], "world 2")
                (back,) = self.start(1, body, python=self.numpy, NEWCOMER="", RANK="1", WORLD_SIZE="3", MASTER_PORT=port, **settings)
                for one, worlds in ((ranks[0], "[3, 2, 3] True"), (ranks[2], "[3, 2, 3] True"), (back, "[3] True")):
                    self.assertEqual(one.exit_status(), 0, one.text())
                    self.assertEqual(one.text().splitlines()[-1], worlds)

    def test_a_checkpoint_is_restored_onto_fewer_ranks(self):
        body = """
            with open_model(checkpoint_dir=os.environ["FOLDER"]) as model:
                begun = model.state()
                losses = dict(one_step(model) for _ in range(6))
                model.save(wait=True)
                check(losses)
                say(begun.step, begun.position, model.state().step)
            """
        folder = {"FOLDER": str(self.folder / "checkpoints")}
        for world, sharding, begin in ((3, "full", 0), (2, "grad", 6), (1, "none", 12)):
            for lines in self.run_ranks(world, body, python=self.numpy, **folder, **self.settings(sharding=sharding)):
                self.assertEqual(lines[-1], f"{begin} {12 * begin} {begin + 6}")
        self.ctl(None, "checkpoints", "export", self.folder / "checkpoints", "--to", self.folder / "model.safetensors")

    def test_a_lost_shard_without_a_copy_is_that_of_the_newest_checkpoint(self):
        body = """
            with open_model(checkpoint_dir=os.environ["FOLDER"]) as model:
                losses = dict(one_step(model) for _ in range(4))
                model.save(wait=True)
                losses.update(one_step(model) for _ in range(3))
                if rank == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                try:
                    one_step(model)
                except centroid.CentroidError as error:
                    assert error.code in model.LOSSES, error
                model.regroup()
                again = model.state()
                losses.update(one_step(model) for _ in range(6))
                check(losses)
                say(again.step, again.position, again.world)
            """
        ranks = self.start(2, body, python=self.numpy, FOLDER=str(self.folder / "checkpoints"), **self.settings())
        self.assertEqual(ranks[1].exit_status(), -signal.SIGKILL)
        self.assertEqual(ranks[0].exit_status(), 0, ranks[0].text())
        self.assertEqual(ranks[0].text().splitlines()[-1], "4 48 1")

    def test_a_model_without_parameters_after_a_failed_regroup_refuses_calls(self):
        body = """
            with open_model(checkpoint_dir=os.environ["FOLDER"]) as model:
                one_step(model)
                if rank == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                ends_with("sum", lambda: model.sum(1))
                for what in (model.regroup, model.state, model.step, model.save, lambda: model.gather(0), lambda: model.gradients(0), model.regroup):
                    ends_with("then", what)
            """
        ranks = self.start(2, body, python=self.numpy, FOLDER=str(self.folder / "checkpoints"), **self.settings())
        self.assertEqual(ranks[1].exit_status(), -signal.SIGKILL)
        self.assertEqual(ranks[0].exit_status(), 0, ranks[0].text())
        lost = r"regroup sharded parameters: no rank has shard 1 .*: there is no checkpoint in "
        told = [line for line in ranks[0].text().splitlines() if line.startswith("then")]
        for line, part in zip(told, ("not_found: " + lost, *["failed_precondition: regroup failed: .*" + lost] * 5, "not_found: "), strict=True):
            self.assertRegex(line, part)

    def test_a_checkpoint_that_fails_before_the_end_is_said(self):
        body = """
            with open_model(checkpoint_dir=os.environ["FOLDER"]) as model:
                one_step(model)
                if rank == 0:
                    os.rename(os.environ["FOLDER"], os.environ["FOLDER"] + ".away")
                    open(os.environ["FOLDER"], "x").close()
                model.sum(1)
                model.save()
            """
        for lines in self.run_ranks(2, body, python=self.numpy, FOLDER=str(self.folder / "checkpoints"), **self.settings()):
            self.assertIn("checkpoint.failed", " ".join(lines))

    def test_a_job_that_ended_takes_nobody_in(self):
        body = """
            if "LATE" in os.environ:
                ends_with("late", open_model)
            else:
                signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
                with open_model() as model:
                    one_step(model)
                    model.end()
                    say("ended")
                    signal.sigwait([signal.SIGTERM])
            """
        settings = {"MASTER_PORT": str(free_port()), **self.settings()}
        ranks = self.start(2, body, python=self.numpy, **settings)
        for rank in ranks:
            self.wait_said(rank, "ended")
        (late,) = self.start(1, body, python=self.numpy, LATE="", WORLD_SIZE="2", RANK="1", **settings)
        self.assertEqual(late.exit_status(), 0, late.text())
        self.assertRegex(late.text(), "late cancelled: the job at .* has ended")
        for rank in ranks:
            rank.send(signal.SIGTERM)
            self.assertEqual(rank.exit_status(), 0, rank.text())

    def test_a_program_in_c(self):
        library = pathlib.Path(self.environment["LIBCENTROID"])
        source, program = self.folder / "program.c", self.folder / "program"
        source.write_text(C_PROGRAM)
        subprocess.run(["cc", "-std=c99", "-Wall", "-Werror", f"-I{ROOT}", source, "-o", program, library, f"-Wl,-rpath,{library.parent}"], check=True)
        settings = json.dumps({"optimizer": "sgd", "lr": 0.5, "checkpoint_dir": str(self.folder / "kept")})
        for line, sums in (("step 3, position 30", ["480", "240", "120"]), ("step 6, position 30", ["60", "30", "15"])):  # sums over both ranks; the second job continues from the checkpoint
            place = f"127.0.0.1:{free_port()}"
            running = [subprocess.Popen([program, str(rank), place, settings], stdout=subprocess.PIPE, text=True) for rank in range(2)]
            for one in running:
                self.addCleanup(one.kill)
            for rank, one in enumerate(running):
                said = one.communicate(timeout=120)[0].splitlines()
                self.assertEqual(said, [*sums, f"{rank} of 2, {line}", "8 no tensor is of layer 9"])
                self.assertEqual(one.returncode, 0)

    def test_mistakes_are_refused_by_name(self):
        body = """
            ends_with("unknown", lambda: open_model(lrr=1))
            ends_with("hybrid", lambda: open_model(sharding="hybrid:3"))
            ends_with("buffer", lambda: centroid.Sharded(None, {"running_mean": START["b0"]}))
            ends_with("layers", lambda: centroid.Sharded(None, {"a": START["b0"], "b": START["b1"]}, layers=[1, 0]))
            ends_with("layers", lambda: open_model(layers=[0, 0, 1, 1, 2**32]))
            ends_with("other", lambda: open_model(codec="bf16" if rank else "f32"))
            ends_with("other", lambda: open_model(lr=4e-7 if rank else 1e-7))
            ends_with("other", lambda: open_model(momentum=0.5 if rank else 0.9))
            ends_with("other", lambda: open_model(layers=[0, 0, 1, 1, 2] if rank else LAYERS))
            """
        for lines in self.run_ranks(2, body, python=self.numpy, **self.settings()):
            told = [line.split(" at ")[0] for line in lines]
            for line, part in zip(told, ("lrr", "hybrid:3", "running_mean is a buffer", "layer", "layer 4294967296", *REFUSED), strict=True):
                self.assertIn("invalid_argument", line)
                self.assertIn(part, line)
        body = """
            with open_model() as model:
                model.gather(0)
                ends_with("step", lambda: model.step())
                model.gradients(0)
                ends_with("gathered", lambda: model.step())
                ends_with("layer", lambda: model.gather(9))
                ends_with("layer", lambda: model.gradients(9))
                ends_with("layer", lambda: model.release(2**32))
                ends_with("save", model.save)
                model.release(0)
                model.step()
                ends_with("parameters", lambda: model._views(0, "parameters", False))
            ends_with("closed", model.state)
            """
        for lines in self.run_ranks(2, body, python=self.numpy, **self.settings()):
            for line, part in zip(lines, ("without a gradient", "is gathered; release", "layer 9", "layer 9", "layer 4294967296", "no checkpoint_dir", "not gathered", "closed"), strict=True):
                self.assertIn(part, line)


if __name__ == "__main__":
    main()
