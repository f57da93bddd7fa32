"""Calls of operations of which PyTorch's operator database has no entry, or none that could be traced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["WRITTEN", "WrittenCall"]


@dataclass(frozen=True)
class WrittenCall:
    """A function of tensors only.

    Attributes:
        function: what is called, on all ``tensors`` in order.
        tensors: the operands.
        data: which of them are masked.
        differentiable: whether there is a derivative.
        masks: the masks of a density, where not every mask will do.
    """

    function: Callable[..., Any]
    tensors: tuple[Tensor, ...]
    data: tuple[int, ...] = (0,)
    differentiable: bool = True
    masks: Callable[[float], tuple[Tensor, ...]] | None = None


def numbers(*shape: int) -> Tensor:
    """The same in every run, between 0.1 and 0.9, no two alike."""
    generator = torch.Generator().manual_seed(len(shape))
    return 0.1 + 0.8 * torch.rand(*shape, generator=generator)


def call(function: Callable[..., Any], *shapes: tuple[int, ...], differentiable: bool = True) -> WrittenCall:
    """All operands masked."""
    tensors = tuple(numbers(*shape) * (1 + i) for i, shape in enumerate(shapes))
    return WrittenCall(function, tensors, tuple(range(len(tensors))), differentiable)


def sequences(kind: str) -> WrittenCall:
    """A recurrence over sequences (3, 4, 2) that end at different times; the weights are plain."""
    gates = {"lstm": 4, "gru": 3}.get(kind, 1)
    run = getattr(torch, kind)

    def function(x: Any, state: Tensor, *weights: Tensor) -> Any:
        states = (state, state) if kind == "lstm" else state
        return run(x, states, list(weights), True, 1, 0.0, False, False, True)

    tensors = (
        numbers(3, 4, 2),
        numbers(1, 3, 2),
        *(0.5 - numbers(*shape) for shape in ((2 * gates, 2), (2 * gates, 2), (2 * gates,), (2 * gates,))),
    )
    return WrittenCall(function, tensors, masks=ended)


def ended(density: float) -> tuple[Tensor, ...]:
    """Masks without gaps: (3, 4, 2), some steps of each sequence, then nothing."""
    whole = round(4 * density)
    lengths = torch.tensor([whole, whole - (0 < density < 1), whole])
    return ((torch.arange(4) < lengths[:, None])[..., None].expand(3, 4, 2).clone(),)


def cell(kind: str) -> WrittenCall:
    """One step of a recurrence; only what comes in is masked."""
    gates = {"lstm_cell": 4, "gru_cell": 3}.get(kind, 1)
    run = getattr(torch, kind)

    def function(x: Any, state: Tensor, *weights: Tensor) -> Any:
        return run(x, (state, state) if kind == "lstm_cell" else state, *weights)

    shapes = ((2 * gates, 3), (2 * gates, 2), (2 * gates,), (2 * gates,))
    return WrittenCall(function, (numbers(4, 3), numbers(4, 2), *(0.5 - numbers(*s) for s in shapes)))


def with_running_statistics(x: Any, mean: Tensor, var: Tensor) -> Any:
    return torch.ops.aten._batch_norm_with_update(x, None, None, mean, var, 0.1, 1e-5)[:3]


WRITTEN: dict[str, WrittenCall] = {
    "copy_": call(lambda x, source: (x * 1).copy_(source), (2, 3), (3,)),
    # an entry of the database since PyTorch 2.13
    "native_group_norm": WrittenCall(
        lambda x: torch.native_group_norm(x, None, None, 2, 4, 3, 2, 1e-5), (numbers(2, 4, 3),)
    ),
    "chain_matmul": call(torch.chain_matmul, (2, 3), (3, 4), (4, 2)),
    "vander": call(lambda x: torch.linalg.vander(x, N=3), (4,)),
    "nn.functional.fold": call(lambda x: F.fold(x, (3, 3), (2, 2)), (1, 4, 4)),
    "nn.functional.lp_pool1d": call(lambda x: F.lp_pool1d(x, 2.0, 2), (1, 2, 6)),
    "nn.functional.lp_pool2d": call(lambda x: F.lp_pool2d(x, 2.0, 2), (1, 2, 4, 4)),
    "nn.functional.lp_pool3d": call(lambda x: F.lp_pool3d(x, 2.0, 2), (1, 1, 4, 2, 2)),
    "nn.functional.affine_grid": call(
        lambda theta: F.affine_grid(theta, [2, 1, 3, 2], align_corners=False), (2, 2, 3)
    ),
    "grid_sampler": call(
        lambda x, grid: torch.grid_sampler(x, grid, 0, 0, False), (1, 2, 3, 3), (1, 2, 2, 2)
    ),
    "adjoint": call(torch.adjoint, (2, 3)),
    "select_copy": call(lambda x: torch.select_copy(x, 0, 1), (3, 4)),
    "slice_copy": call(lambda x: torch.slice_copy(x, 1, 1, 3), (3, 4)),
    "slice_inverse": call(lambda x: torch.slice_inverse(x, torch.ones(3, 2), 1, 0, 2), (3, 2)),
    "unsafe_split_with_sizes": call(lambda x: torch.unsafe_split_with_sizes(x, [1, 2]), (3, 4)),
    "detach": call(lambda x: x.detach() * x, (3, 4)),
    "detach_copy": call(torch.detach_copy, (3, 4), differentiable=False),
    "native_channel_shuffle": call(
        lambda x: torch.native_channel_shuffle(x, 2), (1, 4, 2, 2), differentiable=False
    ),
    "slice_scatter": call(lambda x, source: torch.slice_scatter(x, source, 0, 0, 2), (3, 4), (2, 4)),
    "nn.functional.ctc_loss": call(
        lambda x: F.ctc_loss(
            x.log_softmax(-1), torch.tensor([[1, 2], [2, 2]]), torch.tensor([5, 4]), torch.tensor([2, 1])
        ),
        (5, 2, 3),
    ),
    "new_tensor": call(lambda x: x.new_tensor([1.0, 2.0]) * x[:2], (4,)),
    "_nested_tensor_from_mask_left_aligned": call(
        lambda x: torch._nested_tensor_from_mask_left_aligned(x, torch.ones(2, 3).bool()), (2, 3, 2)
    ),
    "_batch_norm_with_update": WrittenCall(
        with_running_statistics, (numbers(4, 3, 2), torch.zeros(3), torch.ones(3))
    ),
    "nn.functional.dropout1d": call(lambda x: F.dropout1d(x, 0.5), (4, 6, 3)),
    "feature_dropout": call(lambda x: torch.feature_dropout(x, 0.5, True), (4, 6, 3)),
    "native_dropout": call(lambda x: torch.native_dropout(x, 0.5, True), (4, 6)),
    **{
        name: call(drawn, (4, 6), differentiable=False)
        for name, drawn in {
            "normal_": lambda x: x.clone().normal_(),
            "random_": lambda x: x.clone().random_(0, 9),
            "bernoulli_": lambda x: x.clone().bernoulli_(0.5),
            "uniform_": lambda x: x.clone().uniform_(1, 2),
            "exponential_": lambda x: x.clone().exponential_(),
            "cauchy_": lambda x: x.clone().cauchy_(),
            "log_normal_": lambda x: x.clone().log_normal_(),
            "geometric_": lambda x: x.clone().geometric_(0.5),
        }.items()
    },
    "poisson": call(torch.poisson, (4, 6), differentiable=False),
    "binomial": call(
        lambda n, p: torch.binomial(n.round(), p.clamp(0, 1)), (4, 6), (4, 6), differentiable=False
    ),
    **{kind: sequences(kind) for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
    **{kind: cell(kind) for kind in ("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")},
    "_safe_softmax": call(lambda x: torch.ops.aten._safe_softmax(x, -1), (3, 4)),
    "nn.functional.gumbel_softmax": call(lambda x: F.gumbel_softmax(x, dim=-1), (3, 4)),
    "nn.functional.one_hot": WrittenCall(
        lambda x: F.one_hot(x, 4), (torch.tensor([[3, 1], [0, 2]]),), differentiable=False
    ),
    "type": call(lambda x: x.type(torch.float64), (3, 4)),
    "type_as": call(lambda x, y: x.type_as(y), (3, 4), (2,)),
    "cpu": call(lambda x: x.cpu(), (3, 4)),
}
