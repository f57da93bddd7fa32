"""All parameters of a group at once: if nothing has changed since the last step, PyTorch's fused kernel is called.

What PyTorch's step does around its fused kernel costs more than the kernel where parameters are small: it sorts tensors
by device and dtype, and adds one to each step count in an operation of its own (AdamW, 200 tensors of 64 x 64, one
thread: 0.07 and 0.3 ms beside 0.6 in the kernel). For tensors that were checked before, the kernel is called directly,
and the counts are incremented in memory.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import operator
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from maskgrad.gradients.attached import attached_gradient
from maskgrad.gradients.train_only import has_trained_entries
from maskgrad.optim.lazy.rows import lazy_rows_of

if TYPE_CHECKING:
    from maskgrad.optim.dense import DenseParameter

__all__ = ["FUSED", "WholeGroup", "is_simple", "same"]

STRIDED = torch.strided
GRAD, LAYOUT, DTYPE, SHAPE = map(operator.attrgetter, ("grad", "layout", "dtype", "shape"))
#: The C type of a step count.
C_TYPES: Mapping[torch.dtype, Any] = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}


class Kernel(NamedTuple):
    """A fused kernel of PyTorch: ``torch.name(params, grads, *lists, **options)``."""

    name: str
    lists: tuple[str, ...]
    """The lists that ``_init_group`` fills."""
    options: tuple[str, ...]
    counts: bool
    """Whether the last list has step counts, to be raised by one before."""

    def __call__(self, *tensors: Sequence[Tensor], **numbers: Any) -> None:
        """Step by the options among ``numbers``, which are plain; there are states already."""
        if "betas" in numbers:
            numbers["beta1"], numbers["beta2"] = numbers["betas"]
        numbers["is_first_step"] = False
        getattr(torch, self.name)(*tensors, **{name: numbers[name] for name in self.options})


_ADAM = (
    ("exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs", "state_steps"),
    ("lr", "beta1", "beta2", "weight_decay", "eps", "amsgrad", "maximize"),
)
_SGD = ("weight_decay", "momentum", "lr", "dampening", "nesterov", "maximize", "is_first_step")
_ADAGRAD = ("lr", "lr_decay", "weight_decay", "eps", "maximize")
_DECOUPLED = Kernel("_fused_adamw_", *_ADAM, True)
#: Whose steps PyTorch has in one pass on CPUs.
FUSED: dict[type[torch.optim.Optimizer], Kernel] = {
    torch.optim.Adam: Kernel("_fused_adam_", *_ADAM, True),
    torch.optim.AdamW: _DECOUPLED,
    torch.optim.SGD: Kernel("_fused_sgd_", ("momentum_buffer_list",), _SGD, False),
    torch.optim.Adagrad: Kernel("_fused_adagrad_", ("state_sums", "state_steps"), _ADAGRAD, True),
}


@functools.cache
def _kernel(kind: type[torch.optim.Optimizer], decoupled: bool) -> Kernel | None:
    """The kernel to call; None: the installed PyTorch has it not, or with other arguments."""
    kernel = _DECOUPLED if decoupled else FUSED[kind]
    if not hasattr(torch, kernel.name):
        return None
    found = getattr(torch.ops.aten, kernel.name).default._schema.arguments
    expected = ("self", "grads", *kernel.lists, *kernel.options, "grad_scale", "found_inf")
    return kernel if sorted(argument.name for argument in found) == sorted(expected) else None


class _Counts:
    """Step counts in memory: incrementing one costs a twentieth of an operation."""

    def __init__(self, counts: Sequence[Tensor]) -> None:
        self.counts = counts
        self.addresses = [*map(Tensor.data_ptr, counts)]
        self.dtypes = [*map(DTYPE, counts)]
        self.numbers = [
            C_TYPES[dtype].from_address(address)
            for dtype, address in zip(self.dtypes, self.addresses, strict=True)
        ]

    def are(self, counts: Sequence[Tensor]) -> bool:
        """Whether these are the same, at the same addresses."""
        return (
            counts is self.counts
            and [*map(Tensor.data_ptr, counts)] == self.addresses
            and [*map(DTYPE, counts)] == self.dtypes
        )

    def add_one(self) -> None:
        """One step more, rounded as PyTorch rounds."""
        for number in self.numbers:
            number.value += 1.0


class WholeGroup:
    """All parameters of a group that went one way in the last step, for the checks of ``DenseGroup.takes`` at once."""

    def __init__(self, fused: bool, known: list[DenseParameter]) -> None:
        self.fused = fused
        self.known = known
        self.params = [one.param for one in known]
        self.states = [one.state.values() for one in known]  # views of what the states hold
        self.tensors = [t for one in known for t in one.tensors]
        self.addresses = [one.address for one in known]
        self.dtype = {one.dtype for one in known}
        self.is_single = self.dtype <= C_TYPES.keys()
        self.shapes = [one.shape for one in known]
        self.numbers = [one.shape.numel() for one in known]
        self.on_cpu = all(one.cpu for one in known)
        self.counts: _Counts | None = None

    def gradients(self, params: list[Any]) -> list[Tensor] | None:
        """Their gradients, if everything is as it was; None: ask one by one."""
        if len(self.dtype) > 1 or not same(params, self.params):
            return None
        grads = [*map(GRAD, params)]
        # A gradient had its parameter's shape when it was put there, so that its number of values tells enough. In as
        # many bytes as single precision takes there is no other dtype that could be trained.
        usual = (
            {*map(type, grads)} == {Tensor}
            and {*map(LAYOUT, grads)} == {STRIDED}
            and {*map(DTYPE, grads)} == self.dtype
            and (self.is_single or {*map(DTYPE, params)} == self.dtype)
            and all(map(Tensor.is_contiguous, grads))
            and all(map(Tensor.is_contiguous, params))
            and [*map(Tensor.data_ptr, params)] == self.addresses
            and [*map(SHAPE, params)] == self.shapes
            and [*map(Tensor.numel, grads)] == self.numbers
            and same([*itertools.chain.from_iterable(self.states)], self.tensors)
            and (not any(map(vars, params)) or all(map(is_simple, params)))
        )
        return grads if usual else None

    def step(self, kind: Any, grads: list[Tensor], lists: list[list[Any]], group: Mapping[str, Any]) -> bool:
        """PyTorch's fused step, whose states are in ``lists``; False: PyTorch's own step must be taken."""
        kernel = None
        if self.fused and self.on_cpu:
            kernel = _kernel(kind, bool(group.get("decoupled_weight_decay")))
        if kernel is None or len(lists) != len(kernel.lists):
            return False
        if kernel.counts:
            if self.counts is None or not self.counts.are(lists[-1]):
                if not all(
                    type(t) is Tensor and t.device.type == "cpu" and t.dtype in C_TYPES for t in lists[-1]
                ):
                    return False
                self.counts = _Counts(lists[-1])
            self.counts.add_one()
        kernel(self.params, grads, *lists, **group)
        return True


def is_simple(param: Tensor) -> bool:
    """Whether all entries are trained and up to date, and nothing but ``.grad`` holds a gradient."""
    return not has_trained_entries(param) and lazy_rows_of(param) is None and attached_gradient(param) is None


def same(some: Collection[Any], others: Collection[Any]) -> bool:
    """Whether they hold the same objects in the same order."""
    return len(some) == len(others) and all(map(operator.is_, some, others))
