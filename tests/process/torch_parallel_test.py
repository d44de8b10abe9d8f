"""centroid.torch.DataParallel: an ordinary script on several processes, of which some die and others come. torch_parallel_test.py BIN_DIR

Another Python may have another PyTorch: CENTROID_TEST_PYTHON names it.
"""

import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import free_port, main
from harness.groups import TorchTest

# What every rank, and a reference without ranks, is made of. `parts(step)` are the batches of the ranks.
MODEL = """
import copy, torch, centroid.torch
from torch import nn
torch.set_num_threads(1)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(20, 32), nn.Linear(32, 32), nn.Linear(32, 2)
        self.tied = self.second  # twice in the model, once in the optimizer
        self.frozen, self.unused = nn.Linear(20, 20).requires_grad_(False), nn.Linear(3, 3)
    def forward(self, x):
        return self.last(torch.relu(self.tied(torch.relu(self.second(torch.relu(self.first(x + self.frozen(x))))))))
def model_of(seed=0):
    torch.manual_seed(seed)
    return Model()
def optimizer_of(model):
    biases = [p for name, p in model.named_parameters() if name.endswith("bias") and p.requires_grad]
    weights = [p for name, p in model.named_parameters() if name.endswith("weight") and p.requires_grad]
    return torch.optim.AdamW([{"params": weights, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0.0, "lr": 0.002}], lr=0.01)
def schedule_of(optimizer):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
def part(step, number):
    x = torch.randn(8, 20, generator=torch.Generator().manual_seed(100 * step + number))
    return x, (x.sum(1) > 0).long()
def loss_of(model, *parts):
    xs, ys = zip(*parts)
    return nn.functional.cross_entropy(model(torch.cat(xs)), torch.cat(ys))
def distance(model, other):
    return max((p - q).abs().max().item() for p, q in zip(model.state_dict().values(), other.state_dict().values()))
def reference(steps, parts_of):
    model = model_of()
    optimizer = optimizer_of(model)
    schedule, losses = schedule_of(optimizer), []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, *(part(step, number) for number in parts_of(step)))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return model, losses
def wrapped(seed=None):
    model = centroid.torch.DataParallel(model_of(rank if seed is None else seed), timeout=60)
    optimizer = centroid.torch.Optimizer(optimizer_of(model))
    schedule = schedule_of(optimizer)
    optimizer.keep(schedule)
    return model, optimizer, schedule
def train(model, optimizer, schedule, step, number):
    loss = loss_of(model, part(step, number))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    schedule.step()
    return loss.item()
"""


class ParallelTest(TorchTest):
    def start(self, world, body, python=None, join=MODEL, **environment):
        return super().start(world, body, python, join, **environment)


class Training(ParallelTest):
    def test_ranks_train_as_one_process_on_the_joined_batch(self):
        for world in (2, 3):
            said = self.ranks(
                world,
                """
                model, optimizer, schedule = wrapped()
                losses = [train(model, optimizer, schedule, step, rank) for step in range(20)]
                single, expected = reference(20, lambda step: range(world))
                say(*map(repr, losses))
                say(*map(repr, expected))
                say(distance(model, single), model.module.unused.weight.grad is None, model.rank == rank, model.world, model.steps)
                """,
            )
            for losses, expected in zip(zip(*(lines[0].split() for lines in said)), said[0][1].split()):
                self.assertAlmostEqual(sum(map(float, losses)) / world, float(expected), delta=1e-6)
            for lines in said:
                distance, *facts = lines[2].split()
                self.assertLess(float(distance), 1e-5)
                self.assertEqual(facts, ["True", "True", str(world), "20"])

    def test_gradients_are_accumulated_without_an_exchange(self):
        said = self.ranks(
            2,
            """
            model, optimizer, schedule = wrapped()
            for step in range(10):
                optimizer.zero_grad()
                with model.no_sync():
                    for number in (0, 1):
                        (loss_of(model, part(step, 2 * number + rank)) / 3).backward()
                (loss_of(model, part(step, 4 + rank)) / 3).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                schedule.step()
            say(distance(model, reference(10, lambda step: range(6))[0]), model.steps)
            """,
        )
        for lines in said:
            self.assertLess(float(lines[0].split()[0]), 1e-5)
            self.assertEqual(lines[0].split()[1], "10")

    def test_running_statistics_are_averaged(self):
        said = self.ranks(
            2,
            """
            torch.manual_seed(0)
            inner = nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
            own = copy.deepcopy(inner)
            model = centroid.torch.DataParallel(inner)
            loss_of(model, part(0, rank)).backward()
            loss_of(own, part(0, rank)).backward()
            say(*inner[1].running_mean.tolist())
            say(*own[1].running_mean.tolist())
            """,
        )
        (means, one), (same, other) = said
        self.assertEqual(means, same)
        for mean, first, second in zip(means.split(), one.split(), other.split()):
            self.assertAlmostEqual(float(mean), (float(first) + float(second)) / 2, delta=1e-6)

    def test_a_step_with_infinite_gradients_is_skipped_by_all(self):
        said = self.ranks(
            2,
            """
            model, optimizer, schedule = wrapped(0)
            scale, skipped = 2.0**24, 0  # what a GradScaler does: there is none for the CPU before PyTorch 2.3
            for step in range(8):
                loss = loss_of(model, part(step, rank))
                if step == 3 and rank == 1:
                    loss = loss * float("inf")
                optimizer.zero_grad()
                (loss * scale).backward()
                gradients = [p.grad for p in model.parameters() if p.grad is not None]
                if all(gradient.isfinite().all() for gradient in gradients):
                    for gradient in gradients:
                        gradient.div_(scale)
                    optimizer.step()
                else:
                    scale, skipped = scale / 2, skipped + 1
            say(skipped, scale, distance(model, model), hash(tuple(p.sum().item() for p in model.parameters())))
            if hasattr(torch, "amp") and hasattr(torch.amp, "GradScaler"):
                scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
                optimizer.keep(scaler)
                for step in range(8):
                    loss = loss_of(model, part(step, rank)) * (float("inf") if step == 3 and rank == 1 else 1)
                    optimizer.zero_grad()
                    scaler.scale(loss).backward()
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                    scaler.step(optimizer)
                    scaler.update()
                assert scaler.get_scale() == 2.0**19, scaler.get_scale()
            say(model.steps, hash(tuple(p.sum().item() for p in model.parameters())))
            """,
        )
        self.assertEqual(said[0], said[1])
        self.assertTrue(said[0][0].startswith("1 8388608.0 "), said)

    def test_without_others_it_trains_alone(self):
        body = """
            del os.environ["MASTER_ADDR"]
            model, optimizer, schedule = wrapped(0)
            for step in range(5):
                train(model, optimizer, schedule, step, 0)
            say(distance(model, reference(5, lambda step: [0])[0]), model.rank, model.world)
            say(sorted(model.state_dict()) == sorted(model.module.state_dict()), sorted(optimizer.state_dict()))
            other, others_optimizer, _ = wrapped(1)
            other.load_state_dict(model.state_dict())
            others_optimizer.load_state_dict(optimizer.state_dict())
            say(distance(model, other), int(others_optimizer.state_dict()["state"][0]["step"]))
            """
        self.assertEqual(self.ranks(1, body), [["0.0 0 1", "True ['param_groups', 'state']", "0.0 5"]])


SURVIVORS = """
model, optimizer, schedule = wrapped()
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
for step in range(20):
    if step == 7 and rank == VICTIM:
        model.module.second.register_forward_hook(die)
    train(model, optimizer, schedule, step, rank)
single, _ = reference(20, lambda step: [one for one in range(world) if step < 7 or one != VICTIM])
say(distance(model, single), model.rank, model.world, model.steps)
"""
# Rank 1 does as if the end of step 4 had not come through to it: the others have it, and rank 2 dies in the next step.
HALF = """
model, optimizer, schedule = wrapped()
reduce = model._reduce
def half():
    reduce()
    if rank == 1 and model.steps == 4:
        for bucket in model._buckets:
            bucket.flats[0].zero_()
        raise centroid.CentroidError("unavailable", "rank 2 is gone")
model._reduce = half
for step in range(10):
    if step == 5 and rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    train(model, optimizer, schedule, step, rank)
single, _ = reference(10, lambda step: [0, 1, 2] if step < 5 else [0, 1])
say(distance(model, single), model.rank, model.world, model.steps)
"""
COMERS = """
model, optimizer, schedule = wrapped()
were_two, after = "IS_LATE" in os.environ, 0
while after < 5:
    train(model, optimizer, schedule, model.steps, model.rank)
    if model.steps == 3:
        say("trains")
    were_two |= model.world == 2
    after += were_two and model.world == 3
say("end", model.world, model.steps, schedule.last_epoch, optimizer.param_groups[0]["lr"])
say("sums", *(hash(value.numpy().tobytes()) for value in model.state_dict().values()))
say("moments", *(hash(values["exp_avg"].numpy().tobytes()) for values in optimizer.state_dict()["state"].values()))
"""


class Changes(ParallelTest):
    """Of a module that is wrapped."""

    def test_a_module_may_be_moved_before_its_first_step_and_not_later(self):
        said = self.ranks(
            2,
            """
            model, optimizer, schedule = wrapped()
            model.double().float().double()
            single = model_of().double()
            x, y = part(0, rank)
            nn.functional.cross_entropy(model(x.double()), y).backward()
            (sum(nn.functional.cross_entropy(single(part(0, number)[0].double()), part(0, number)[1]) for number in (0, 1)) / 2).backward()
            say(max((p.grad - q.grad).abs().max().item() for p, q in zip(model.module.parameters(), single.parameters()) if q.grad is not None), model.steps)
            model.float()
            try:
                model(x)
            except centroid.CentroidError as error:
                say(error)
            """,
        )
        for numbers, error in said:
            self.assertLess(float(numbers.split()[0]), 1e-12)
            self.assertEqual(numbers.split()[1], "1")
            self.assertIn("got another type", error)

    def test_with_a_sampler_it_may_be_moved_too_and_has_buffers_of_its_own(self):
        said = self.ranks(
            1,
            """
            class Keeps(Model):
                def forward(self, x):
                    self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
                    return super().forward(x)
            module = Keeps()
            module.register_buffer("mean", torch.zeros(20))
            model = centroid.torch.DataParallel(module, timeout=60)
            sampler = centroid.torch.sampler(range(32), model, batch=8, shuffle=False)
            model.double()
            for i, _ in enumerate(sampler):
                model(part(i, 0)[0].double()).sum().backward()
            say(model.steps, sampler.epoch)
            """,
        )
        self.assertEqual(said, [["4 1"]])

    def test_a_parameter_may_be_frozen_later_and_not_the_other_way_round(self):
        said = self.ranks(
            2,
            """
            model, optimizer, schedule = wrapped()
            train(model, optimizer, schedule, 0, rank)
            before = model.module.second.weight.detach().clone()
            model.module.second.requires_grad_(False)
            optimizer.zero_grad(set_to_none=True)
            loss_of(model, part(1, rank)).backward()
            say(model.module.second.weight.grad is None, model.steps)
            model.module.frozen.requires_grad_(True)
            try:
                model(part(2, rank)[0])
            except centroid.CentroidError as error:
                say(error)
            """,
        )
        for facts, error in said:
            self.assertEqual(facts, "True 2")
            self.assertIn("requires a gradient that did not", error)

    def test_complex_parameters_have_their_mean_gradient(self):
        said = self.ranks(
            2,
            """
            module = nn.Module()
            module.weight = nn.Parameter(torch.ones(3, dtype=torch.cfloat))
            module.forward = lambda x: (module.weight * x).imag.sum()
            model = centroid.torch.DataParallel(module, timeout=60)
            model(1.0 + rank).backward()
            say(module.weight.grad.tolist())
            """,
        )
        for lines in said:
            self.assertEqual(lines, ["[1.5j, 1.5j, 1.5j]"])

    def test_a_process_has_one_at_an_address(self):
        said = self.ranks(
            2,
            """
            first = wrapped()[0]
            try:
                wrapped()
            except centroid.CentroidError as error:
                say(error)
            loss_of(first, part(0, rank)).backward()
            first.close()
            try:
                first(part(1, rank)[0])
            except centroid.CentroidError as error:
                say(error)
            """,
        )
        for lines in said:
            self.assertIn("close() that one", lines[0])
            self.assertIn("this DataParallel is closed", lines[1])

    def test_steps_of_several_passes_that_the_sampler_does_not_know_are_warned_of(self):
        said = self.ranks(
            1,
            """
            import warnings
            model = wrapped()[0]
            sampler = centroid.torch.sampler(range(32), model, batch=8, shuffle=False)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for i, _ in zip(range(4), sampler):
                    with model.no_sync() if i % 2 == 0 else torch.enable_grad():
                        loss_of(model, part(i, 0)).backward()
            say(len(caught), *(one.message for one in caught))
            """,
        )
        self.assertRegex(said[0][0], "^1 2 backward passes made a step.*accumulate=2")


class Membership(ParallelTest):
    def test_the_others_go_on_without_a_rank_that_died(self):
        for victim in (0, 1):
            ranks = self.start(3, SURVIVORS.replace("VICTIM", str(victim)))
            self.assertEqual(ranks[victim].exit_status(), -signal.SIGKILL)
            survivors = [rank for number, rank in enumerate(ranks) if number != victim]
            for number, rank in enumerate(survivors):
                self.assertEqual(rank.exit_status(), 0, rank.text())
                distance, *facts = rank.text().split()
                self.assertLess(float(distance), 1e-5)
                self.assertEqual(facts, [str(number), "2", "20"])

    def test_the_last_one_goes_on_alone(self):
        ranks = self.start(2, SURVIVORS.replace("VICTIM", "0"))
        self.assertEqual(ranks[1].exit_status(), 0, ranks[1].text())
        self.assertEqual(ranks[1].text().split()[1:], ["0", "1", "20"])

    def test_a_step_that_has_ended_for_some_ends_for_all(self):
        ranks = self.start(3, HALF)
        for number, rank in enumerate(ranks[:2]):
            self.assertEqual(rank.exit_status(), 0, rank.text())
            distance, *facts = rank.text().split()
            self.assertLess(float(distance), 1e-5)
            self.assertEqual(facts, [str(number), "2", "10"])

    def test_a_rank_that_comes_gets_the_state(self):
        place = {"MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "PYTHONHASHSEED": "0"}
        ranks = self.start(2, COMERS, **place)
        for rank in ranks:
            self.wait_said(rank, "trains")
        self.assert_same([*ranks, *self.start(1, COMERS, **place, RANK="2", IS_LATE="1")])

    def test_a_rank_that_was_killed_comes_back(self):
        for victim in (0, 1):
            place = {"MASTER_PORT": str(free_port()), "WORLD_SIZE": "3", "PYTHONHASHSEED": "0"}
            ranks = self.start(3, COMERS, **place)
            for rank in ranks:
                self.wait_said(rank, "trains")
            ranks[victim].kill()
            ranks[victim] = self.start(1, COMERS, **place, RANK=str(victim), IS_LATE="1")[0]
            self.assert_same(ranks)

    def test_who_does_not_come_in_is_told_why(self):
        said = self.ranks(
            2,
            """
            model = centroid.torch.DataParallel(model_of(), token="ab"[rank], timeout=5)
            for run in (lambda: loss_of(model.module, part(0, 0)).backward(), lambda: loss_of(model, part(0, 0)), lambda: centroid.torch.Optimizer(optimizer_of(model_of()))):
                try:
                    run()
                except centroid.CentroidError as error:
                    say(error.message)
            """,
        )
        for lines, text in zip(said, ("1 of 2 processes have come within 5 s", "the token is another one")):
            self.assertIn("backward before a forward pass", lines[0])
            self.assertIn(text, lines[1])
            self.assertIn("no parameter of a DataParallel", lines[2])

    def assert_same(self, ranks):
        for rank in ranks:
            self.assertEqual(rank.exit_status(), 0, rank.text())
        ends = [[line for line in rank.text().splitlines() if line.split()[0] in ("end", "sums", "moments")] for rank in ranks]
        self.assertEqual(len(ends[0]), 3)
        self.assertEqual(ends[0], ends[1])
        self.assertEqual(ends[0], ends[2])


if __name__ == "__main__":
    main(at_a_time=2)
