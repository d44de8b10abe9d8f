"""Compressed gradients of DDP, and a group that goes on without a rank that died. torch_hooks_test.py BIN_DIR

Another Python may have another PyTorch: CENTROID_TEST_PYTHON names it.
"""

import pathlib
import re
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import main
from harness.groups import TorchTest

MODEL = """
import math
import centroid.torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
hooks = {"topk": lambda **more: centroid.torch.topk_hook(0.05, **more), "int8": centroid.torch.int8_hook, "bf16": centroid.torch.bf16_hook}
def model_of(seed=0, width=400):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))
def batch_of(step, samples=16):
    x = torch.randn(samples, 20, generator=torch.Generator().manual_seed(world * step + rank))
    return x, (x.sum(1) > 0).long()
"""
TRAINING = """
def train(name):
    parallel = DistributedDataParallel(model_of(), bucket_cap_mb=0.1)
    if name != "dense":
        parallel.register_comm_hook(None, hooks[name]())
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.3)
    losses = []
    for step in range(80):
        x, y = batch_of(step)
        loss = nn.functional.cross_entropy(parallel(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    say(name, sum(losses[40:]) / 40, *(hash(p.detach().numpy().tobytes()) for p in parallel.parameters()))
for name in ("dense", *hooks):
    train(name)
dist.barrier()
"""
# Each rank's own gradients, those that DDP made of them, and what the hook has left, by parameter.
RESIDUALS = """
def total(name):
    model = model_of(width=700)
    plain, parallel, hook, order = model_of(width=700), DistributedDataParallel(model, bucket_cap_mb=0.1), hooks[name](), {}
    def noted(state, bucket):
        order[bucket.index()] = bucket.parameters()
        return hook(state, bucket)
    parallel.register_comm_hook(None, noted)
    names = {parameter: name for name, parameter in model.named_parameters()}
    given, made = ({name: 0 for name in names.values()} for _ in range(2))
    for step in range(4):
        x, y = batch_of(step)
        for one, sums in ((plain, given), (parallel, made)):
            one.zero_grad()
            nn.functional.cross_entropy(one(x), y).backward()
            for key, parameter in one.named_parameters():
                sums[key.replace("module.", "")] += parameter.grad.double()
    left = {names[parameter]: part for index, parameters in order.items() for parameter, part in zip(parameters, hook.residuals[index].split([p.numel() for p in parameters]))}
    furthest = 0
    for key in given:
        difference = given[key].view(-1) - left[key].double()
        dist.all_reduce(difference)
        furthest = max(furthest, (difference - world * made[key].view(-1)).abs().max().item() / given[key].abs().max().item())
    say(name, len(order), max(part.abs().max().item() for part in left.values()) > 0, furthest < 1e-5, furthest)
for name in hooks:
    total(name)
dist.barrier()
"""
SENT = """
hook = centroid.torch.topk_hook(0.05)
parallel, seen = DistributedDataParallel(model_of()), []
def noted(state, bucket):
    before = hook.residuals.get(bucket.index())
    given = bucket.buffer() + (0 if before is None else before)
    future = hook(state, bucket)
    seen.append((given, hook.residuals[bucket.index()], bucket.buffer()))
    return future
parallel.register_comm_hook(None, noted)
for step in range(3):
    seen.clear()
    parallel.zero_grad()
    nn.functional.cross_entropy(parallel(batch_of(step)[0]), batch_of(step)[1]).backward()
    for given, left, mean in seen if step != 1 else ():  # then DDP makes other buckets, of other residuals
        sent = given - left
        kept = math.ceil(0.05 * len(given))
        is_largest = sent[sent != 0].abs().min() >= left.abs().max()
        parts = [torch.zeros_like(sent) for _ in range(world)]
        dist.all_gather(parts, sent)
        found = torch.zeros_like(sent)
        for part in parts:
            found.add_(part, alpha=1 / world)
        say(bool(((left == given) | (left == 0)).all()), int((sent != 0).sum()) <= kept, bool(is_largest), torch.equal(found, mean))
dist.barrier()
"""
# The scale doubles after each step, and with it what a hook left out: the same bits as without a scale.
SCALED = """
class Scaler:  # PyTorch before 2.3 has one for GPUs only
    def __init__(self, _, *, init_scale, growth_factor, growth_interval):
        self.value, self.factor = init_scale, growth_factor
    def get_scale(self):
        return self.value
    def scale(self, loss):
        return loss * self.value
    def step(self, optimizer):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.div_(self.value)
        optimizer.step()
    def update(self):
        self.value *= self.factor
def train(name, scaler):
    parallel = DistributedDataParallel(model_of(), bucket_cap_mb=0.1)
    parallel.register_comm_hook(None, hooks[name](scaler=scaler))
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.3)
    for step in range(8):
        x, y = batch_of(step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(parallel(x), y)
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return [p.detach().numpy().tobytes() for p in parallel.parameters()]
for name in hooks:
    scaler = getattr(torch.amp, "GradScaler", Scaler)("cpu", init_scale=4.0, growth_factor=2.0, growth_interval=1)
    plain, scaled = train(name, None), train(name, scaler)
    say(name, scaler.get_scale(), plain == scaled)
dist.barrier()
"""
INFINITE = """
for name, make in hooks.items():
    parallel = DistributedDataParallel(model_of())
    parallel.register_comm_hook(None, make())
    for step in range(3):
        x, y = batch_of(step)
        if step == 1 and rank == 0:
            x[0, 0] = float("nan")
        parallel.zero_grad()
        nn.functional.cross_entropy(parallel(x), y).backward()
        say(name, step, all(p.grad.isfinite().all() for p in parallel.parameters()))
dist.barrier()
"""
MISUSE = """
def explain(run):
    try:
        run()
    except Exception as error:
        say(str(error).splitlines()[0])
for fraction in (0, 1.5, "1%"):
    explain(lambda: centroid.torch.topk_hook(fraction))
explain(lambda: centroid.torch.int8_hook(scaler=2.0))
def train(model, state=None):
    parallel = DistributedDataParallel(model)
    parallel.register_comm_hook(state, centroid.torch.int8_hook())
    parallel(torch.ones(2, 20, dtype=next(model.parameters()).dtype)).sum().backward()
explain(lambda: train(model_of().double()))
other = dist.new_group(backend="gloo")
explain(lambda: train(model_of(), other))
explain(lambda: train(model_of(), 7))
dist.barrier()
"""
SURVIVORS = """
def train(steps, parallel):
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    for step in range(steps):
        x, y = batch_of(step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(parallel(x), y)
        loss.backward()
        optimizer.step()
        if step == 3:
            say("trains")
model, hook = model_of(width=100), centroid.torch.topk_hook(0.1)
def wrapped():
    parallel = DistributedDataParallel(model)
    parallel.register_comm_hook(None, hook)
    return parallel
try:
    train(10**6, wrapped())
except RuntimeError as error:
    say("error", str(error).replace(chr(10), " "))
centroid.torch_backend.reconfigure(2)
world = dist.get_world_size()
say("now", dist.get_rank(), world)
train(20, wrapped())
one = torch.ones(1)
dist.all_reduce(one, group=dist.new_group([0, 1]))
say("model", one.item(), *(hash(p.detach().numpy().tobytes()) for p in model.parameters()))
dist.barrier()
"""


class Hooks(TorchTest):
    def test_replicas_stay_equal_and_learn_as_dense_gradients_do(self):
        for world in (2, 3):
            said = self.ranks(world, MODEL + TRAINING, PYTHONHASHSEED="0")
            losses = {}
            for lines in zip(*said):
                names, means, *fingerprints = zip(*(line.split() for line in lines))
                losses[names[0]] = sum(map(float, means)) / world
                for fingerprint in fingerprints:
                    self.assertEqual(len(set(fingerprint)), 1, (names[0], world))
            print(f"{world} ranks:", {name: round(loss, 4) for name, loss in losses.items()})
            self.assertLess(losses["dense"], 0.3)  # of 0.69 at the start
            for name in ("int8", "bf16", "topk"):
                # The losses of 40 steps of 32 samples scatter by 0.3 / sqrt(1280) = 0.008, and this is three times as much. What is late is
                # not lost: the parameters less lr times the residuals move as with dense gradients (Karimireddy et al. 2019, theorem 2).
                self.assertAlmostEqual(losses[name], losses["dense"], delta=0.025)

    def test_nothing_is_lost_when_ddp_makes_other_buckets(self):
        for world in (2, 3):
            for lines in self.ranks(world, MODEL + RESIDUALS):
                self.assertEqual([line.split()[2:4] for line in lines], [["True", "True"]] * 3, lines)
                self.assertGreater(min(int(line.split()[1]) for line in lines), 1)  # several buckets

    def test_topk_sends_the_largest_exactly(self):
        for lines in self.ranks(2, MODEL + SENT):
            self.assertEqual(len(lines), 2)
            self.assertEqual(set(lines), {"True True True True"})

    def test_residuals_follow_the_scale_of_a_grad_scaler(self):
        for lines in self.ranks(2, MODEL + SCALED):
            self.assertEqual(lines, [f"{name} 1024.0 True" for name in ("topk", "int8", "bf16")])

    def test_numbers_that_are_not_finite_reach_all_ranks_once(self):
        for lines in self.ranks(2, MODEL + INFINITE):
            self.assertEqual([line.split()[-1] for line in lines], ["True", "False", "True"] * 3)

    def test_misuse_is_explained(self):
        for lines in self.ranks(2, MODEL + MISUSE):
            for line, text in zip(lines, ["fraction 0 is not from", "fraction 1.5 is not", "fraction '1%' is not", "int8_hook: scaler is a float, not a GradScaler", "these are torch.float64", "this is gloo", "this is a int"]):
                self.assertIn(text, line)
            self.assertEqual(len(lines), 7)


class Survivors(TorchTest):
    def test_a_group_goes_on_without_a_rank_that_died(self):
        ranks = self.start(3, MODEL + SURVIVORS, PYTHONHASHSEED="0")
        for rank in ranks:
            self.wait_said(rank, "trains")
        ranks[1].send(signal.SIGKILL)
        models = set()
        for number, rank in enumerate((ranks[0], ranks[2])):
            self.assertEqual(rank.exit_status(), 0, rank.text())
            self.assertRegex(rank.text(), re.compile(r"error .*unavailable: .*rank 1\b"))
            self.assertIn(f"now {number} 2", rank.text())
            models.add(next(line for line in rank.text().splitlines() if line.startswith("model 2.0")))
        self.assertEqual(len(models), 1)

    def test_abort_ends_what_others_wait_for(self):
        body = """
            def explain(run):
                try:
                    run()
                except RuntimeError as error:
                    say(str(error).splitlines()[0])
            if rank == 0:
                dist.barrier()
                work = dist.all_reduce(torch.ones(1), async_op=True)
                centroid.torch_backend.abort()
                explain(work.wait)
            else:
                explain(dist.barrier)
                explain(lambda: dist.recv(torch.ones(1), 0))
                explain(lambda: dist.all_reduce(torch.ones(1)))
            """
        for lines in self.ranks(2, body):
            self.assertGreaterEqual(len(lines), 1)
            for line in lines:
                self.assertIn("rank 0 aborted the group", line)

    def test_reconfigure_says_what_is_wrong(self):
        body = """
            def explain(run):
                try:
                    run()
                except Exception as error:
                    say(str(error).splitlines()[0])
            try:
                dist.barrier()
            except RuntimeError:  # the first one that leaves aborts the group
                pass
            if rank == 2:
                raise SystemExit
            explain(lambda: centroid.torch_backend.reconfigure(1) or say("alone"))
            """
        said = self.ranks(3, body)
        self.assertEqual(sorted(line.split(":")[0] for line in said[0] + said[1]), ["alone", "reconfigure"])


if __name__ == "__main__":
    main(at_a_time=2)
