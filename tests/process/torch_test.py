"""The backend centroid of torch.distributed, beside gloo. torch_test.py BIN_DIR

Another Python may have another PyTorch: CENTROID_TEST_PYTHON names it.
"""

import pathlib
import re
import signal
import subprocess
import sys
import textwrap

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import ROOT
from harness.cluster import free_port, main
from harness.groups import TorchTest

TAIL = """
dist.barrier()
dist.destroy_process_group()
"""
TRAINING = """
from torch import nn
torch.manual_seed(rank)  # rank 0's parameters are those of all
model = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2))
parallel = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1, momentum=0.9)
for step in range(30):
    x = torch.randn(8, 20)
    loss = nn.functional.cross_entropy(parallel(x), (x.sum(1) > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    say("loss", repr(loss.item()))
say("sum", repr(sum(p.double().sum().item() for p in model.parameters())))
"""


class Operations(TorchTest):
    def test_collectives_give_what_gloo_gives(self):
        body = """
            def tensors(*shape, dtype=torch.float32):
                return (torch.arange(torch.Size(shape).numel()).reshape(shape) * (rank + 1) + rank).to(dtype)
            for dtype in (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.int8):
                for op in (dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
                    one = tensors(2, 3, dtype=dtype)
                    dist.all_reduce(one, op=op)
                    say(one.tolist())
            one = tensors(4, dtype=torch.int64)
            dist.all_reduce(one, op=dist.ReduceOp.BOR)
            say(one.tolist())
            one = tensors(3, 4).t()  # not contiguous
            dist.all_reduce(one)
            say(one.tolist())
            one = tensors(5)
            dist.reduce(one, 1)
            say(one.tolist() if rank == 1 else "")
            one = tensors(5)
            dist.broadcast(one, 2)
            say(one.tolist())
            for parts in ([torch.zeros(2, 2) for _ in range(world)], list(torch.zeros(world, 2, 2).unbind()), list(torch.zeros(2, world, 2).unbind(1))):
                dist.all_gather(parts, tensors(2, 2))
                say(torch.stack(parts).tolist())
            parts = [torch.zeros(3) for _ in range(world)] if rank == 1 else None
            dist.gather(tensors(3), parts, dst=1)
            say(torch.stack(parts).tolist() if parts else "")
            one = torch.zeros(2)
            dist.scatter(one, [torch.full((2,), float(i)) for i in range(world)] if rank == 0 else None, src=0)
            say(one.tolist())
            objects = [None] * world
            dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank})
            say(objects)
            objects = [{"from": 1}, 7] if rank == 1 else [None, None]
            dist.broadcast_object_list(objects, src=1)
            say(objects)
            group = dist.new_group([0, 2])
            one = tensors(2)
            if rank != 1:
                dist.all_reduce(one, group=group)
            say(one.tolist())
            works = [dist.irecv(torch.zeros(2), (rank + 1) % world, tag=5), dist.isend(tensors(2), (rank - 1) % world, tag=5)]
            for work in works:
                work.wait()
            got = torch.zeros(1)
            (dist.send(tensors(1), 1) if rank == 0 else dist.recv(got, 0) if rank == 1 else None)
            say(got.tolist())
            """
        gloo, ours = (self.ranks(3, body + TAIL.replace("\n", "\n" + 12 * " "), BACKEND=backend) for backend in ("gloo", "centroid"))
        self.assertGreater(len(gloo[0]), 30)
        self.assertEqual(gloo, ours)

    def test_what_gloo_lacks(self):
        said = self.ranks(
            3,
            """
            out = torch.zeros(2)
            dist.reduce_scatter(out, [torch.full((2,), float(10 * i + rank)) for i in range(world)])
            say(out.tolist())
            dist._reduce_scatter_base(out, torch.arange(6.0))
            say(out.tolist())
            whole = torch.zeros(3, 2)
            dist._all_gather_base(whole, torch.full((2,), float(rank)))
            say(whole.tolist())
            parts = [torch.zeros(1) for _ in range(world)]
            dist.all_to_all(parts, [torch.tensor([10.0 * rank + i]) for i in range(world)])
            say([part.item() for part in parts])
            splits = [[1, 0, 2], [0, 1, 1], [2, 1, 0]]
            out = torch.zeros(sum(splits[other][rank] for other in range(world)), 2)
            dist.all_to_all_single(out, torch.full((sum(splits[rank]), 2), float(rank)), [splits[other][rank] for other in range(world)], splits[rank])
            say(out[:, 0].tolist())
            for dtype in (torch.float16, torch.bfloat16):
                one = torch.full((3,), rank + 0.5, dtype=dtype)
                dist.all_reduce(one, op=dist.ReduceOp.AVG)
                say(one.tolist())
            """,
        )
        for rank, lines in enumerate(said):
            both = [float(30 * rank + 3)] * 2, [3.0 * (2 * rank), 3.0 * (2 * rank + 1)]
            column = [10.0 * other + rank for other in range(3)]
            received = [[0.0, 2.0, 2.0], [1.0, 2.0], [0.0, 0.0, 1.0]][rank]
            expected = [*map(str, both), "[[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]", str(column), str(received), "[1.5, 1.5, 1.5]", "[1.5, 1.5, 1.5]"]
            self.assertEqual(lines, expected)

    def test_mistakes_are_errors_here(self):
        said = self.ranks(
            2,
            """
            for run in (lambda: dist.recv(torch.zeros(1)), lambda: dist._all_gather_base(torch.zeros(3), torch.zeros(2))):
                try:
                    run()
                except Exception as error:
                    say(type(error).__name__, str(error).splitlines()[0])
            dist.barrier()
            """,
        )
        self.assertEqual(said[0], said[1])
        self.assertIn("receives from a rank that is named", said[0][0])
        self.assertEqual(len(said[0]), 2)


class Start(TorchTest):
    def start_at(self, change, **environment):
        join = f"""
            import datetime, torch, torch.distributed as dist
            import centroid.torch_backend
            arguments = dict(init_method=os.environ["PLACE"], timeout=datetime.timedelta(seconds=60))
            {change}
            dist.init_process_group("centroid", **arguments)
            """
        body = """
            one = torch.tensor([dist.get_rank()])
            dist.all_reduce(one)
            say(dist.get_rank(), dist.get_world_size(), one.item())
            dist.barrier()
            """
        place = f"centroid://127.0.0.1:{free_port()}"
        said = self.ranks(3, body, join=textwrap.dedent(join), PLACE=place, **environment)
        self.assertEqual(sorted(line for lines in said for line in lines), ["0 3 3", "1 3 3", "2 3 3"])
        return said

    def test_an_address_is_enough(self):
        self.assertEqual(self.start_at("")[2], ["2 3 3"])  # as the environment says
        self.start_at('del os.environ["RANK"]')  # as they come
        self.start_at('del os.environ["RANK"], os.environ["WORLD_SIZE"]; arguments["init_method"] += "?world_size=3"')
        self.assertEqual(self.start_at('del os.environ["RANK"], os.environ["WORLD_SIZE"]; arguments.update(rank=2 - rank, world_size=3)')[2], ["0 3 3"])

    def test_the_package_names_the_backend_to_pytorch(self):
        points = re.search(r'ENTRY_POINTS = """\\\n(.*?)"""', (ROOT / "deploy" / "make_wheel.py").read_text(), re.DOTALL)[1]
        (self.folder / "centroid-0.dist-info").mkdir()
        (self.folder / "centroid-0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: centroid\nVersion: 0\n")
        (self.folder / "centroid-0.dist-info" / "entry_points.txt").write_text(points)
        program = """
import importlib.metadata, torch.distributed
found = importlib.metadata.entry_points(group="torch.distributed.backends")
[point] = [one for one in found if one.name == "centroid"]
assert not hasattr(torch.distributed.Backend, "CENTROID")
point.load()()
assert torch.distributed.Backend("centroid") == "centroid" and "CENTROID" in torch.distributed.Backend._plugins
"""
        places = f"PYTHONPATH={self.folder}:{self.environment['PYTHONPATH']}"
        done = subprocess.run(["env", places, self.python_, "-c", program], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)


class Training(TorchTest):
    def test_ddp_has_the_losses_of_gloo(self):
        for world in (2, 3):
            gloo, ours = ([[line.split() for line in lines] for lines in self.ranks(world, TRAINING + TAIL, BACKEND=backend)] for backend in ("gloo", "centroid"))
            for one, other in zip(gloo, ours):
                self.assertEqual(len(one), 31)
                for (name, expected), (same, found) in zip(one, other):
                    self.assertEqual(name, same)
                    self.assertAlmostEqual(float(expected), float(found), delta=1e-6 if name == "loss" else 1e-3)
            self.assertEqual(len({lines[-1][1] for lines in ours}), 1)  # the same bits on all ranks

    def test_fsdp_has_the_losses_of_gloo(self):
        if self.torch_version() < (2, 1):
            self.skipTest("FSDP on CPUs needs PyTorch 2.1")
        body = """
            from torch import nn
            from torch.distributed.fsdp import FullyShardedDataParallel
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(20, 33), nn.ReLU(), nn.Linear(33, 2))
            sharded = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
            optimizer = torch.optim.SGD(sharded.parameters(), lr=0.1)
            torch.manual_seed(rank)
            for step in range(10):
                x = torch.randn(8, 20)
                loss = nn.functional.cross_entropy(sharded(x), (x.sum(1) > 0).long())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                say(loss.item())
            dist.barrier()
            dist.destroy_process_group()
            """
        gloo, ours = (self.ranks(3, body, BACKEND=backend) for backend in ("gloo", "centroid"))
        for one, other in zip(gloo, ours):
            self.assertEqual(len(one), 10)
            for expected, found in zip(one, other):
                self.assertAlmostEqual(float(expected), float(found), delta=1e-6)

    def torch_version(self):
        found = subprocess.run([self.python_, "-c", "import importlib.metadata; print(importlib.metadata.version('torch'))"], capture_output=True, text=True, check=True).stdout
        return tuple(map(int, re.findall(r"\d+", found)[:2]))

    def test_the_death_of_a_rank_is_an_error_that_names_it(self):
        ranks = self.start(
            3,
            """
            from torch import nn
            parallel = nn.parallel.DistributedDataParallel(nn.Linear(1000, 1000))
            works = [dist.all_reduce(torch.ones(10), async_op=True)]
            works[0].wait()
            try:
                for step in range(10**6):
                    parallel(torch.ones(4, 1000)).sum().backward()
                    if step == 3:
                        say("trains")
            except RuntimeError as error:
                say("error", str(error).replace(chr(10), " "))
            """,
        )
        for rank in ranks:
            self.wait_said(rank, "trains")
        ranks[1].send(signal.SIGKILL)
        for rank in (ranks[0], ranks[2]):
            self.assertEqual(rank.exit_status(), 0, rank.text())
            self.assertRegex(rank.text(), re.compile(r"error .*unavailable: .*rank 1\b"))


if __name__ == "__main__":
    main(at_a_time=2)
