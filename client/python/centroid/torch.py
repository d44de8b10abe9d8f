"""Centroid for scripts of PyTorch.

    DataParallel, Optimizer  the mean gradient of all processes, and the program's own optimizer; no server
    DiLoCo                   many steps of the program's own optimizer between two exchanges, through a server
    sampler                  the samples of this process, for DataLoader
    topk_hook, int8_hook, bf16_hook  compressed gradients for DistributedDataParallel on the backend "centroid"
"""

from ._data_parallel import DataParallel, Optimizer
from ._diloco import DiLoCo
from ._hooks import bf16_hook, int8_hook, topk_hook
from ._sampler import sampler

__all__ = ["DataParallel", "DiLoCo", "Optimizer", "bf16_hook", "int8_hook", "sampler", "topk_hook"]
