"""Centroid for scripts of PyTorch: DataParallel needs no server, DiLoCo has one.

The hooks compress gradients of DistributedDataParallel on the backend "centroid", float32 on the CPU:

    parallel.register_comm_hook(None, centroid.torch.topk_hook(0.01))

The first argument is the process group. What a rank did not send is added to its next gradients (error feedback), in as much memory as
they have. All ranks have the same version of Centroid, and register the same hooks in the same order.
"""

from ._data_parallel import DataParallel, Optimizer
from ._diloco import DiLoCo
from ._hooks import bf16_hook, int8_hook, topk_hook
from ._loader import Loader
from ._sampler import sampler

__all__ = ["DataParallel", "DiLoCo", "Loader", "Optimizer", "bf16_hook", "int8_hook", "sampler", "topk_hook"]
