"""An optimizer of PyTorch with something around its steps."""

import torch


def _of_inner(name):
    return property(lambda self: getattr(self.optimizer, name), lambda self, value: setattr(self.optimizer, name, value), lambda self: delattr(self.optimizer, name))


class Wrapped(torch.optim.Optimizer):
    """Schedulers, GradScaler and clipping take it for an optimizer. Groups, state and all else are the inner one's."""

    def __init__(self, optimizer):  # not the one of the base class, which would have groups of its own
        self.optimizer, self._kept = optimizer, [optimizer]

    def __getattr__(self, name):
        if name in ("optimizer", "_kept"):  # before __init__, when copy or pickle asks
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    # What a GradScaler sets for an optimizer that heeds it, such as a fused one.
    grad_scale = _of_inner("grad_scale")
    found_inf = _of_inner("found_inf")

    def keep(self, *more):
        """Keep these with the optimizer's state."""
        self._kept += more

    def zero_grad(self, *arguments, **named):
        self.optimizer.zero_grad(*arguments, **named)

    def add_param_group(self, group):
        self.optimizer.add_param_group(group)

    def state_dict(self):
        return self.optimizer.state_dict()

    def load_state_dict(self, state):
        self.optimizer.load_state_dict(state)
