"""centroid.torch: samplers for DataLoader, and DiLoCo. torch_loader_test.py BIN_DIR

Another Python may have another PyTorch: CENTROID_TEST_PYTHON names it.
"""

import collections
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import free_port, main, wait_for
from harness.groups import TorchTest
import centroid

DATA = """
import torch, centroid.torch
from torch import nn
from torch.utils.data import DataLoader
torch.set_num_threads(1)
class Data:
    def __len__(self):
        return 400
    def __getitem__(self, number):
        x = torch.randn(4, generator=torch.Generator().manual_seed(number))
        return x, number, os.getpid()
def model_of():
    torch.manual_seed(0)
    return nn.Linear(4, 1)
def loss_of(model, x):
    return (model(x)[:, 0] - x.sum(1)).square().mean()
data, workers = Data(), set()
"""
# DataParallel: the loop of the docs. A victim dies with a batch that it has not trained.
PARALLEL = """
model = centroid.torch.DataParallel(model_of(), timeout=60)
optimizer = centroid.torch.Optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
sampler = centroid.torch.sampler(data, model, batch=8, accumulate=ACCUMULATE)
loader = DataLoader(data, batch_sampler=sampler, num_workers=2, persistent_workers=True)
batches = 0
while sampler.epoch < 3:
    for x, numbers, pids in loader:
        workers |= set(pids.tolist())
        batches += 1
        if "VICTIM" in os.environ and os.environ["VICTIM"] == str(rank) and batches == 11:
            os.kill(os.getpid(), signal.SIGKILL)
        if batches % ACCUMULATE:
            with model.no_sync():
                loss_of(model, x).backward()
        else:
            loss_of(model, x).backward()
            optimizer.step()
            optimizer.zero_grad()
        say("trained", *numbers.tolist())
        while model.world == 2 and "NEWCOMER" in os.environ and model.steps == 10 and not model._peers.has_news:
            model._peers.look_for_news()  # the other one is on its way
            threading.Event().wait(0.01)
say("end", sampler.epoch, len(workers), model.steps, model.world, model.module.weight.tolist())
"""
# Trainer: shares as batches. The victim dies before its contribution of round 5, which others make.
SHARES = """
model = model_of()
with centroid.Trainer(os.environ["SERVER"], model, samples=len(data), batch=16, name=f"w{rank}", overlap=False) as trainer:
    loader = centroid.torch.Loader(data, trainer, batch=8, num_workers=2)
    for share in trainer:
        numbers = []
        model.zero_grad()
        for x, chosen, pids in loader:
            workers |= set(pids.tolist())
            numbers += chosen.tolist()
            (loss_of(model, x) * len(x) / len(share)).backward()
        assert len(numbers) == len(share)
        if rank == 1 and share.round == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 0 and share.round == 3 and not os.fork():
            try:
                trainer.finish()
            except centroid.CentroidError as error:
                say("child", error)
            os._exit(0)
        while rank == 0 and share.round == 8 and not os.path.exists(os.environ["GO"]):
            threading.Event().wait(0.01)
        if trainer.finish().outcome == centroid.Outcome.COMMITTED:
            say("trained", *numbers)
    say("end", trainer.end, len(workers))
"""
# The samples of the next share are loaded before the round ends: it ends only then.
AHEAD = """
import centroid
class Noted(Data):
    def __getitem__(self, number):
        open(os.path.join(os.environ["LOADED"], str(number)), "w").close()
        return super().__getitem__(number)
def loaded():
    return {int(name) for name in os.listdir(os.environ["LOADED"])}
model, data = model_of(), Noted()
with centroid.Trainer(centroid.local(lr=0.01, epochs=1), model, samples=len(data), batch=48, overlap=False) as trainer:
    loader = centroid.torch.Loader(data, trainer, batch=BATCH, num_workers=2)
    for share in trainer:
        was_loaded = set(share.indices()) <= loaded()
        model.zero_grad()
        numbers = []
        for x, chosen, pids in loader:
            workers |= set(pids.tolist())
            numbers += chosen.tolist()
            (loss_of(model, x) * len(x) / len(share)).backward()
        assert sorted(numbers) == sorted(share.indices()), (numbers, share)
        deadline = time.monotonic() + 60
        for following in share._ahead(1):
            while not set(following) <= loaded() and time.monotonic() < deadline:
                threading.Event().wait(0.01)
        trainer.finish()
        say("round", was_loaded, len(numbers))
say("end", len(workers), len(loaded()))
"""
# Another worker joins during round 4: from round 6 on shares are further apart than the Loader has guessed.
GUESS = """
model = model_of()
with centroid.Trainer(os.environ["SERVER"], model, samples=len(data), batch=16, name=f"w{rank}", overlap=False) as trainer:
    loader = centroid.torch.Loader(data, trainer, batch=8, num_workers=2)
    for share in trainer:
        numbers = []
        model.zero_grad()
        for x, chosen, _ in loader:
            numbers += chosen.tolist()
            (loss_of(model, x) * len(x) / len(share)).backward()
        say("round", share.round, share.world, sorted(numbers) == sorted(share.indices()), len(loader.batch_sampler.given))
        while rank == 0 and share.round == 4 and not os.path.exists(os.environ["GO"]):
            threading.Event().wait(0.01)
        trainer.finish()
    say("end", trainer.end)
"""
# Passes that are broken off or made twice, with and without processes.
PASSES = """
import centroid
for processes in (0, 2):
    model = model_of()
    with centroid.Trainer(centroid.local(lr=0.01, epochs=2), model, samples=len(data), batch=48, overlap=False) as trainer:
        loader = centroid.torch.Loader(data, trainer, batch=10, num_workers=processes)
        for share in trainer:
            model.zero_grad()
            for passes in range(share.round % 3):
                for x, *_ in loader:
                    break
            found = []
            for x, chosen, _ in loader:
                found += chosen.tolist()
                (loss_of(model, x) * len(x) / len(share)).backward()
            assert len(loader) == -(-len(share) // 10)
            assert sorted(found) == sorted(share.indices())
            trainer.finish()
        say("end", share.round)
local = model_of()
local = centroid.torch.DiLoCo(local, torch.optim.SGD(local.parameters(), lr=0.01), samples=len(data), batch=8, server=centroid.local(local_steps=5, rounds=1))
more = (lambda: centroid.torch.Loader(data, local, batch=16), lambda: centroid.torch.sampler(data, local, batch=16))
for wrong in (*more, lambda: centroid.torch.Loader(data, centroid.torch.DataParallel(model_of()), batch=8), lambda: centroid.torch.Loader(data, trainer, batch=0), lambda: centroid.torch.Loader(data, trainer, batch=8, in_order=False)):
    try:
        wrong()
    except centroid.CentroidError as error:
        say("refused", error)
"""
DILOCO = """
model = model_of()
inner = torch.optim.AdamW(model.parameters(), lr=0.01)
with centroid.torch.DiLoCo(model, inner, every=5, samples=len(data), batch=8, server=os.environ["SERVER"], name=f"w{rank}", folder=os.environ.get("FOLDER")) as optimizer:
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7, gamma=0.9)
    optimizer.keep(schedule)
    loader = DataLoader(data, batch_sampler=centroid.torch.sampler(data, optimizer, batch=8), num_workers=2, persistent_workers=True)
    while not optimizer.end:
        for x, *_ in loader:
            loss = loss_of(model, x)
            optimizer.zero_grad()
            loss.backward()
            if "SERVER_PID" in os.environ and optimizer.share.round == 5:
                os.kill(int(os.environ["SERVER_PID"]), signal.SIGKILL)
                os._exit(0)
            optimizer.step(loss=loss)
            schedule.step()
    say("end", optimizer.end, repr(model.weight.tolist()))
"""
LOADS = """
import copy
model = model_of()
optimizer = centroid.torch.DiLoCo(model, torch.optim.SGD(model.parameters(), lr=0.01), samples=len(data), batch=8, server=centroid.local(local_steps=5, outer="average", rounds=1))
state, before = {name: value + 1 for name, value in model.state_dict().items()}, copy.deepcopy(model.state_dict())
try:
    model.load_state_dict(state)
except centroid.CentroidError as error:
    say("refused", error)
assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
copy.deepcopy(model).load_state_dict(state)
say("loaded", "copy")
while not optimizer.end:
    optimizer.step(loss=0)
model.load_state_dict(state)
say("loaded", "after")
"""
# What a program may do with a model, its gradients and its steps.
HABITS = """
import io, pathlib, warnings
from torch import nn
def trainer_of(model, **more):
    return centroid.Trainer(centroid.local(lr=0.01, epochs=1, **more), model, samples=len(data), batch=40)
model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
with trainer_of(model) as trainer:
    model.double()  # which replaces the buffers
    for share in trainer:
        model.zero_grad()
        model(torch.ones(len(share), 4).double() * torch.arange(len(share))[:, None]).sum().backward()
        trainer.finish()
    given = torch.frombuffer(bytearray(trainer.committed("1.running_mean")), dtype=torch.float32)
    say("buffers", torch.allclose(given, model[1].running_mean.float()), bool(given.abs().sum() > 0))
model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
model[1].requires_grad_(False)
with trainer_of(model) as trainer:
    next(trainer)
    model[1].requires_grad_(True)
    model(torch.ones(40, 4)).sum().backward()
    try:
        trainer.finish()
    except centroid.CentroidError as error:
        say("thawed", error)
model, kept = nn.Linear(256, 256), []
with trainer_of(model) as trainer:
    for share in trainer:
        model.zero_grad(set_to_none=True)
        (model(torch.ones(1, 256)).sum() * share.round).backward()
        kept.append(model.weight.grad.detach())
        trainer.finish()
say("kept", [int(gradient[0, 0]) for gradient in kept] == list(range(1, len(kept) + 1)))
def diloco_of(model, **more):
    return centroid.torch.DiLoCo(model, torch.optim.SGD(model.parameters(), lr=0.5), samples=len(data), batch=8, server=centroid.local(local_steps=5, outer="average", rounds=1), **more)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    optimizer = diloco_of(model_of())
    batches = centroid.torch.sampler(data, optimizer, batch=8)
    for _ in batches:
        pass
    optimizer.step(loss=0)
    for _, _ in zip(range(4), batches):
        optimizer.step(loss=0)
say("again", optimizer.end, *(one.message for one in caught))
optimizer = diloco_of(model_of(), folder=os.environ["FOLDER"])
for number in range(1, 7):
    optimizer._save(number)
class Killed(io.BytesIO):
    def __reduce_ex__(self, _):
        raise KeyboardInterrupt
class Breaks:
    def state_dict(self):
        return {"first": list(range(100)), "then": Killed()}
optimizer.keep(Breaks())
try:
    optimizer._save(6)
except KeyboardInterrupt:
    say("files", *sorted(file.name for file in pathlib.Path(os.environ["FOLDER"], "worker").glob("*.pt")), len(torch.load(pathlib.Path(os.environ["FOLDER"], "worker", "000000006.pt"))))
if hasattr(torch.amp, "GradScaler"):
    model = nn.Linear(1, 1, bias=False)
    before = model.weight.item()
    optimizer, scaler = diloco_of(model), torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(5):
        optimizer.zero_grad()
        loss = model(torch.tensor([[float("inf") if step == 1 else 1.0]])).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer, loss=loss.item() if step != 1 else 0.0)
        scaler.update()
    say("scaled", optimizer.end, round(before - model.weight.item(), 4))
"""
BY_HAND = """
model = model_of()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7, gamma=0.9)
with centroid.Trainer(os.environ["SERVER"], model, samples=len(data), batch=8, name=f"w{rank}") as trainer:
    for share in trainer:
        numbers, loss_sum = share.indices(), 0.0
        steps = -(-len(numbers) // 8)
        for step in range(steps):
            loss = loss_of(model, torch.stack([data[number][0] for number in numbers[step::steps]]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        trainer.finish()
    say("end", trainer.end, repr(model.weight.tolist()))
"""


class LoaderTest(TorchTest):
    def start(self, world, body, python=None, join=DATA, **environment):
        return super().start(world, body, python, join, **environment)

    def words(self, rank, head):
        return [line.split()[1:] for line in rank.text().splitlines() if line.startswith(head)]

    def trained(self, *ranks):
        """How often each sample was."""
        return collections.Counter(int(number) for rank in ranks for words in self.words(rank, "trained") for number in words)

    def assert_ends(self, *ranks):
        for rank in ranks:
            self.assertEqual(rank.exit_status(), 0, rank.text())
        return [self.words(rank, "end")[0] for rank in ranks]


class Epochs(LoaderTest):
    def test_each_sample_is_trained_once_an_epoch(self):
        for accumulate, steps in ((1, 75), (2, 36)):  # 25 batches of each process an epoch; one is no step of two
            ranks = self.start(2, PARALLEL.replace("ACCUMULATE", str(accumulate)))
            ends = self.assert_ends(*ranks)
            self.assertEqual(ends[0], ends[1])
            self.assertEqual(ends[0][:4], ["3", "2", str(steps), "2"])
            counts = self.trained(*ranks)
            if accumulate == 1:
                self.assertEqual(set(counts.values()), {3}, counts)
            self.assertEqual(len(counts), 400)

    def test_the_samples_of_a_rank_that_died_are_trained_by_others(self):
        for victim in (0, 2):
            ranks = self.start(3, PARALLEL.replace("ACCUMULATE", "1"), VICTIM=str(victim))
            left = [rank for number, rank in enumerate(ranks) if number != victim]
            ends = self.assert_ends(*left)
            self.assertEqual(ranks[victim].exit_status(), -signal.SIGKILL)
            self.assertEqual(ends[0], ends[1])
            self.assert_once(self.trained(*ranks), 3)

    def test_a_rank_that_comes_has_its_part_of_the_samples(self):
        place = {"MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
        ranks = self.start(2, PARALLEL.replace("ACCUMULATE", "1"), **place, NEWCOMER="1")
        ranks += self.start(1, PARALLEL.replace("ACCUMULATE", "1"), **place, RANK="2")
        ends = self.assert_ends(*ranks)
        self.assertEqual(ends[0], ends[1])
        self.assertEqual(ends[0], ends[2])
        self.assertEqual(ends[0][3], "3")
        self.assertGreater(len(self.words(ranks[2], "trained")), 20)
        self.assert_once(self.trained(*ranks), 3)

    def assert_once(self, counts, epochs):
        """Where the number of processes does not divide what is left, fewer samples than there are processes are left out of an epoch."""
        self.assertEqual(max(counts.values()), epochs)
        self.assertGreaterEqual(sum(counts.values()), epochs * (400 - 2))


class Shares(LoaderTest):
    def test_each_sample_of_a_job_is_trained_once_an_epoch(self):
        server, go = self.server("--epochs", 2, "--min-workers", 2, "--exit-when-finished"), self.folder / "go"
        ranks = self.start(2, SHARES, SERVER=server.data, GO=str(go))
        self.assertEqual(ranks[1].exit_status(), -signal.SIGKILL)
        ranks += self.start(1, SHARES, SERVER=server.data, GO=str(go), RANK="2")
        wait_for(lambda: server.workers("w2"), "the worker that comes late")
        go.touch()
        ends = self.assert_ends(ranks[0], ranks[2])
        self.assertEqual(ends, [["finished", "2"]] * 2)
        self.assertEqual(set(self.trained(*ranks).values()), {2})
        self.assertEqual(len(self.trained(*ranks)), 400)
        self.assertIn("child failed_precondition: a forked child cannot use the trainer of its parent", ranks[0].text())


    def test_the_next_share_is_loaded_before_the_round_ends(self):
        for batch in (16, 48):  # three batches of a share, which are fewer than are loaded ahead; one
            loaded = self.folder / f"loaded-{batch}"
            loaded.mkdir()
            [rank] = self.start(1, AHEAD.replace("BATCH", str(batch)), LOADED=str(loaded))
            ends = self.assert_ends(rank)
            self.assertEqual(ends, [["2", "400"]])
            rounds = self.words(rank, "round")
            self.assertEqual([int(samples) for _, samples in rounds], [48] * 8 + [16])
            # How far shares are apart is known from the second one on.
            self.assertEqual([was_loaded for was_loaded, _ in rounds], ["False"] * 2 + ["True"] * 7)

    def test_a_wrong_guess_is_dropped_and_no_other_is_made_until_one_is_right(self):
        server, go = self.server("--rounds", 8, "--min-workers", 1, "--exit-when-finished"), self.folder / "go"
        ranks = self.start(1, GUESS, SERVER=server.data, GO=str(go))
        self.wait_said(ranks[0], "round 4")
        ranks += self.start(1, GUESS, SERVER=server.data, RANK="1")
        wait_for(lambda: server.workers("w1"), "the worker that joins")
        go.touch()
        self.assert_ends(*ranks)
        ahead = [0, 4, 4, 4, 4, 0, 4, 4]  # batches of two shares; the distance of shares is known from the second one on
        self.assertEqual(self.words(ranks[0], "round"), [[str(at), str(1 + (at > 4)), "True", str(batches)] for at, batches in enumerate(ahead, 1)])

    def test_a_pass_may_be_broken_off(self):
        [rank] = self.start(1, PASSES)
        self.assertEqual(self.assert_ends(rank), [["18"]])
        self.assertEqual([words[0] for words in self.words(rank, "end")], ["18", "18"])
        refused = [line for line in rank.text().splitlines() if line.startswith("refused")]
        for line, text in zip(refused, ["batch=16, but the DiLoCo has batch=8", "batch=16, but the DiLoCo has batch=8", "rest of the epoch", "batch", "in_order=False"]):
            self.assertIn(text, line)
        self.assertEqual(len(refused), 5)


class DiLoCo(LoaderTest):
    STEPS = ["--local-steps", 5, "--outer", "average", "--exit-when-finished"]

    def weights(self, body, *settings, ranks=1, run="run", **environment):
        server = self.launch_server(*self.STEPS, "--min-workers", ranks, *settings, name=f"server-{len(self.processes)}", run=run).wait_ready()
        ended = self.start(ranks, body, SERVER=server.data, **{name: str(server.pid) if name == "SERVER_PID" else value for name, value in environment.items()})
        for rank in ended:
            self.assertEqual(rank.exit_status(), 0, rank.text())
        return [line for rank in ended for line in self.words(rank, "end")]

    def test_it_trains_as_a_loop_by_hand(self):
        ours, by_hand = (self.weights(body, "--rounds", 12, ranks=2, run=str(number)) for number, body in enumerate((DILOCO, BY_HAND)))
        self.assertEqual(ours, by_hand)
        self.assertEqual(ours[0][0], "finished")

    def test_alone_it_trains_as_with_a_server(self):
        whole = self.weights(DILOCO, "--rounds", 12)
        for folder, body in ("sampler", DILOCO), ("loader", DILOCO.replace("DataLoader(data, batch_sampler=centroid.torch.sampler(data, optimizer, batch=8), num_workers=2, persistent_workers=True)", "centroid.torch.Loader(data, optimizer, batch=8, num_workers=2)")):
            [rank] = self.start(1, body, SERVER=centroid.local(local_steps=5, outer="average", rounds=12), FOLDER=str(self.folder / folder))
            self.assert_ends(rank)
            self.assertEqual(self.words(rank, "end"), whole)
            self.assertEqual([file.name for file in (self.folder / folder / "w0").iterdir()], ["000000012.pt"])
            [rank] = self.start(1, body, SERVER=centroid.local(local_steps=5, outer="average", rounds=12), FOLDER=str(self.folder / folder))
            self.assert_ends(rank)
            self.assertEqual(self.words(rank, "end"), whole)  # another job in the same folder begins anew

    def test_the_optimizer_continues_with_the_checkpoint(self):
        settings = ["--rounds", 8, "--checkpoint.every-rounds", 3]
        whole = self.weights(DILOCO, *settings, run="whole", FOLDER=str(self.folder / "whole-states"))
        kept = {"FOLDER": str(self.folder / "states")}
        self.assertEqual(self.weights(DILOCO, *settings, run="broken", SERVER_PID="", **kept), [])
        self.assertEqual([file.name for file in (self.folder / "states" / "w0").iterdir()], ["000000003.pt"])
        self.assertEqual(self.weights(DILOCO, *settings, "--resume", run="broken", **kept), whole)

    def test_a_model_in_training_is_not_loaded(self):
        [rank] = self.start(1, LOADS)
        self.assertEqual(rank.exit_status(), 0, rank.text())
        self.assertIn("Load them before you make DiLoCo", rank.text())
        self.assertEqual(self.words(rank, "loaded"), [["copy"], ["after"]])

    def test_another_number_of_steps_is_refused(self):
        server = self.launch_server("--rounds", 3, "--min-workers", 1, "--local-steps", 4, "--outer", "average").wait_ready()
        [rank] = self.start(1, DILOCO, SERVER=server.data)
        self.assertEqual(rank.exit_status(), 1)
        self.assertIn("every=5, but a share of this server has 4 steps: start it with --local-steps=5", rank.text())

    def test_habits_of_programs_are_heeded_or_refused(self):
        [rank] = self.start(1, HABITS, FOLDER=str(self.folder / "states"))
        self.assertEqual(rank.exit_status(), 0, rank.text())
        said = {words[0]: words[1:] for words in map(str.split, rank.text().splitlines()) if words}
        self.assertEqual(said["buffers"], ["True", "True"])
        self.assertIn("1.weight: frozen when the Trainer was made", " ".join(said["thawed"]))
        self.assertEqual(said["kept"], ["True"])
        self.assertRegex(" ".join(said["again"]), "^finished a share is iterated over again after 1 of 5 steps")
        self.assertEqual(said["files"], ["000000003.pt", "000000004.pt", "000000005.pt", "000000006.pt", "1"])
        self.assertEqual(said.get("scaled", ["finished", "2.0"]), ["finished", "2.0"], "4 of 5 steps of 0.5")


if __name__ == "__main__":
    main(at_a_time=2)
