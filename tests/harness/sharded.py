"""Jobs of exchange sharded: ranks of the real worker, and the models that they save."""

import array
import json

from harness.cluster import DONE, ClusterTest, free_port

MODEL = "mlp:64-48-32-10"


class Sharded(ClusterTest):
    def ranks(self, world, *arguments, run="", environments=None, **settings):
        """The workers of a job, which find each other at a free port. `environments`: of some ranks."""
        own = environments or {}
        place = f"127.0.0.1:{free_port()}"
        flags = ["--exchange", "sharded", "--world", world, "--rendezvous", place, *arguments]
        return [
            self.worker("127.0.0.1:1", f"r{rank}{run}", *flags, "--rank", rank, environment=own.get(rank), **settings) for rank in range(world)
        ]

    def tensors(self, file):
        """The bytes of a safetensors file, where its tensors begin, and their description by name."""
        data = file.read_bytes()
        begin = 8 + int.from_bytes(data[:8], "little")
        tensors = json.loads(data[8:begin])
        tensors.pop("__metadata__", None)
        return data, begin, tensors

    def shapes(self, file):
        return {name: tensor["shape"] for name, tensor in self.tensors(file)[2].items()}

    def values(self, file):
        """The tensors of a safetensors file by name."""
        data, at, tensors = self.tensors(file)
        return {name: array.array("f", data[at + of["data_offsets"][0] : at + of["data_offsets"][1]]) for name, of in tensors.items()}

    def assert_near(self, one, other, relative):
        self.assertEqual(one.keys(), other.keys())
        for name, values in one.items():
            difference = sum((x - y) ** 2 for x, y in zip(values, other[name])) ** 0.5
            self.assertLessEqual(difference, relative * (1e-3 + sum(x * x for x in values) ** 0.5), name)

    def train(self, world, sharding, *arguments, run, batch, model=MODEL, data="digits"):
        """A whole job; its summaries and its model."""
        file = self.folder / f"model-{run}.safetensors"
        flags = ["--sharding", sharding, "--data", data, "--save", file, *arguments]
        self.assert_exit(DONE, *self.ranks(world, *flags, run=run, batch=batch, model=model))
        return [self.summary(f"r{rank}{run}") for rank in range(world)], file
