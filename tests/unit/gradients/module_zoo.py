"""Modules of torch.nn that take a batch, each with inputs: PyTorch's own database, and some that it lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.testing._internal.common_modules import module_db

__all__ = [
    "Specimen",
    "diagonal",
    "graph_with_parameters",
    "is_coupled",
    "specimens",
    "variant_zero",
    "whole_jacobian",
]

D = torch.float64
#: variants of one module, in each mode
VARIANTS = 5
#: outputs of one sample that are differentiated, spread over all; the oracle takes one backward pass for each
OUTPUTS = 5


def _x(*sizes: int) -> Tensor:
    return torch.randn(*sizes, dtype=D)


class _CTCOfBatch(nn.CTCLoss):
    def __init__(self) -> None:
        super().__init__(reduction="none")

    def forward(self, scores: Tensor) -> Tensor:  # type: ignore[override]
        """The loss of each sample; samples come first."""
        lengths = torch.tensor([6, 5, 4])
        words = torch.tensor([[1, 2], [3, 1], [2, 2]])
        return super().forward(
            scores.log_softmax(-1).transpose(0, 1), words, lengths, torch.tensor([2, 1, 2])
        )


class _LookedUp(nn.Embedding):
    def __init__(self) -> None:
        super().__init__(7, 2, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        """What is looked up for each sample, multiplied by an input."""
        return super().forward(torch.tensor([3, 0, 3])) * x


class _WeightedBag(nn.EmbeddingBag):
    def __init__(self) -> None:
        super().__init__(7, 2, mode="sum")

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """Bags of two rows, weighted by the input."""
        rows = torch.tensor([[3, 0], [3, 3], [1, 2]])
        return super().forward(rows[: len(x)], per_sample_weights=x)


#: modules that PyTorch's database lacks, or has without a batch, with an input
_OTHERS: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {
    "BatchNorm1d ": lambda: (nn.BatchNorm1d(4, track_running_stats=False), (_x(3, 4),)),
    "CTCLoss": lambda: (_CTCOfBatch(), (_x(3, 6, 4),)),
    "CrossMapLRN2d": lambda: (nn.CrossMapLRN2d(2), (_x(3, 4, 2, 2),)),
    "Embedding": lambda: (_LookedUp(), (_x(3, 2),)),
    "EmbeddingBag": lambda: (_WeightedBag(), (_x(3, 2),)),
    "Fold": lambda: (nn.Fold((3, 3), (2, 2)), (_x(3, 8, 4),)),
    "MaxUnpool2d": lambda: (nn.MaxUnpool2d(2), (_x(3, 1, 1, 2), torch.tensor([0, 3]).expand(3, 1, 1, 2))),
    "RReLU": lambda: (nn.RReLU(), (_x(3, 4),)),
    "GRU": lambda: (nn.GRU(4, 5, 2, dropout=0.2, bidirectional=True, batch_first=True), (_x(3, 6, 4),)),
    "LSTM": lambda: (nn.LSTM(4, 5, 2, proj_size=2, bidirectional=True, batch_first=True), (_x(3, 6, 4),)),
    "TransformerDecoder": lambda: (
        nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 6, batch_first=True), 2),
        (_x(3, 2, 4), _x(3, 5, 4)),
    ),
    "Upsample": lambda: (nn.Upsample(scale_factor=2, mode="bilinear"), (_x(3, 2, 3, 3),)),
    "Sequential": lambda: (
        nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(inplace=True), nn.Linear(3, 2)),
        (_x(5, 4),),
    ),
}


class Specimen(NamedTuple):
    """A module, built when it is wanted."""

    name: str
    training: bool
    build: Callable[[], tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]

    def __str__(self) -> str:
        return f"{self.name}, {'training' if self.training else 'evaluation'}"


def specimens() -> Iterator[Specimen]:
    """Every module in every variant of the database, in both modes if these differ."""
    for info in module_db:
        if D not in info.dtypes:
            continue
        for training in (True, False) if info.train_and_eval_differ else (True,):
            torch.manual_seed(0)
            inputs = info.module_inputs_func(info, "cpu", D, False, training)
            # A loss that is reduced over the batch has no samples.
            kept = [
                number
                for number, one in enumerate(inputs)
                if one.constructor_input.kwargs.get("reduction", "none") == "none"
            ]
            for number in kept[:: max(1, -(-len(kept) // VARIANTS))]:
                yield Specimen(f"{info.name}, {number}", training, _from_database(info, number, training))
    for name, build in _OTHERS.items():
        for training in (True, False):
            yield Specimen(f"nn.{name}", training, _by_hand(build, training))


def _from_database(info: Any, number: int, training: bool) -> Any:
    def build() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
        given = info.module_inputs_func(info, "cpu", D, False, training)[number]
        made = given.constructor_input
        kwargs = dict(made.kwargs)
        module = info.module_cls(*made.args, **kwargs).to(D).train(training)
        return module, tuple(given.forward_input.args), dict(given.forward_input.kwargs)

    return build


def _by_hand(build: Any, training: bool) -> Any:
    def built() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
        module, args = build()
        return module.to(D).train(training), args, {}

    return built


def graph_with_parameters(specimen: Specimen) -> tuple[Tensor, Tensor, list[nn.Parameter]] | None:
    """Some outputs (B, k) of the module, its first input (B, ...), and its parameters; None where there is no graph."""
    torch.manual_seed(0)
    module, args, kwargs = specimen.build()
    first = args[0] if args else None
    if not isinstance(first, Tensor) or not first.is_floating_point() or first.ndim < 2:
        return None
    x = first.detach().clone().requires_grad_()
    y = module(x.clone(), *args[1:], **kwargs)
    while isinstance(y, tuple):
        y = y[0]
    if not y.requires_grad or not y.ndim or y.shape[0] != x.shape[0] or x.shape[0] < 2:
        return None
    flat = y.reshape(y.shape[0], -1)
    return flat[:, :: max(1, flat.shape[1] // OUTPUTS)], x, list(module.parameters())


def variant_zero(specimen: Specimen) -> bool:
    """Whether this is the first variant of its module, or the only one: for what is too dear to ask of all."""
    return "," not in specimen.name or specimen.name.endswith(", 0")


def diagonal(whole: Tensor) -> Tensor:
    """(B, k, B, *I) -> (B, k, *I)."""
    return torch.stack([whole[b, :, b] for b in range(len(whole))])


def is_coupled(whole: Tensor) -> bool:
    """Whether an output of one sample depends on another."""
    blocks = [whole[b, :, c] for b in range(len(whole)) for c in range(len(whole)) if b != c]
    return bool((torch.stack(blocks).nan_to_num() != 0).any())


def whole_jacobian(y: Tensor, x: Tensor, create_graph: bool = False) -> Tensor:
    """The derivative of every output (B, k) by every input, (B, k, B, *I), one backward pass for each output."""
    rows = [
        torch.autograd.grad(y[b, k], x, retain_graph=True, create_graph=create_graph, materialize_grads=True)[
            0
        ]
        for b in range(y.shape[0])
        for k in range(y.shape[1])
    ]
    dense = [row.to_dense() if row.is_sparse else row for row in rows]
    return torch.stack(dense).reshape(*y.shape, *x.shape)
