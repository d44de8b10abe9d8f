"""Gradients that leave while PyTorch's backward computes the others."""

import ctypes
import os
import sys
import weakref

from ._arrays import CentroidError

_LARGE = 1 << 15  # numbers: memory for more comes from the kernel each time (glibc's first M_MMAP_THRESHOLD), and its new pages take longer than the numbers


def _uses_of_memory(tensor):
    """How many tensors have its memory; 0: unknown."""
    import torch

    storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
    if hasattr(torch._C, "_storage_Use_Count"):  # PyTorch 2.1 and newer
        return torch._C._storage_Use_Count(storage._cdata) - 1  # that of `storage`
    if not torch.__version__.startswith("1."):
        return 0
    return ctypes.c_size_t.from_address(storage._cdata + ctypes.sizeof(ctypes.c_void_p)).value - 1  # c10::intrusive_ptr_target


class Overlap:
    """Have a trainer send each gradient as soon as backward has made it.

    parameters  PyTorch parameters by their place in the trainer
    """

    def __init__(self, trainer, parameters):
        self._trainer = weakref.ref(trainer)
        self._left = {}  # in this round, by place: the gradient and how often it had been changed
        self._kept = {}  # memory of large gradients, by place
        self._handles = []
        for at, parameter in parameters.items():
            self._watch(at, parameter)

    def _watch(self, at, parameter):
        if hasattr(parameter, "register_post_accumulate_grad_hook"):  # PyTorch 2.1 and newer
            self._handles.append(parameter.register_post_accumulate_grad_hook(lambda made: self._made(at, made)))
            return
        node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]  # adds to `grad`; lives as long as somebody holds it
        handle = node.register_hook(lambda *_: self._made(at, parameter))
        handle.node = node
        self._handles.append(handle)

    def _made(self, at, parameter):
        trainer = self._trainer()
        share = trainer._share if trainer and trainer._handle and trainer._process == os.getpid() else None
        if share is None or share.count == 0 or share.is_local or trainer._is_contributed:
            return
        if at in self._left:
            raise CentroidError("failed_precondition", f"a second backward in one round: the gradient of {trainer._names[at]} has left. Give Trainer overlap=False")
        self._left[at] = None  # while it is sent
        trainer._send(at, parameter.grad)
        gradient = self._move(at, parameter)
        self._left[at] = gradient, gradient._version

    def _move(self, at, parameter):
        """Put a large gradient where it was in the round before, so that backward has its memory for the next one. Returns the gradient."""
        gradient, kept = parameter.grad, self._kept.get(at)
        is_plain = gradient.device.type == "cpu" and gradient.is_contiguous() and not gradient.requires_grad and gradient._base is None
        if gradient is kept or gradient.numel() < _LARGE or not is_plain:
            return gradient
        # two references: of `_kept`, and of this name; and one of the call. More: the program has kept it, or what shares its memory.
        is_free = kept is not None and sys.getrefcount(kept) <= 3 and _uses_of_memory(kept) == 1
        if not is_free or kept.shape != gradient.shape or kept.dtype != gradient.dtype:
            kept = self._kept[at] = gradient.clone()
        else:
            kept.copy_(gradient)
        parameter.grad = kept
        return kept

    def begin(self):
        """A round begins."""
        self._left = {}

    def take(self, gradients):
        """Return the places whose gradients have left in this round, which ends. `gradients`: what they are now, by place."""
        left, self._left = self._left, {}
        for at, sent in left.items():
            if sent is None or gradients[at] is not sent[0] or sent[0]._version != sent[1]:
                raise CentroidError("failed_precondition", "gradients were changed after backward, but they have left: give Trainer overlap=False")
        return left.keys()

    def close(self):
        for handle in self._handles:
            handle.remove()
