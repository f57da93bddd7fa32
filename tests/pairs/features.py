"""What is put together in pairs: modules, layouts, options of the optimizer, and ways to run a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import maskgrad as mg

__all__ = ["LAYOUTS", "MODULES", "OPTIONS", "ROWS", "WAYS", "WIDTH", "Layout", "Module", "Net"]

ROWS, WIDTH, STEPS = 7, 4, 3


@dataclass(frozen=True)
class Module:
    """A layer, the plain layer of PyTorch that its results are compared with, and what they are given.

    Attributes:
        make: the layer; ``dtype`` is the only argument.
        plain: PyTorch's own, with a dense gradient.
        ids: it takes indices (B, T), not features (B, T, WIDTH).
        pools: it makes one row of a sequence.
        lists_rows: its gradient lists the rows that were looked up.
        call: what to call, where that is not the layer with the input alone.
        one_graph: torch.compile makes one graph of it.
    """

    make: Callable[..., nn.Module]
    plain: Callable[..., nn.Module]
    ids: bool = False
    pools: bool = False
    lists_rows: bool = False
    call: Callable[[nn.Module, Any], Any] = lambda layer, x: layer(x)
    one_graph: bool = True


def _table(kind: Any, **options: Any) -> Module:
    pools, lists = "Bag" in kind.__name__, kind.__module__.startswith("maskgrad") or "sparse" in options
    plain: Any = nn.EmbeddingBag if pools else nn.Embedding
    if pools:
        options["mode"] = "sum"
    return Module(
        lambda **o: kind(ROWS, WIDTH, **options, **o),
        lambda **o: plain(ROWS, WIDTH, **({"mode": "sum"} if pools else {}), **o),
        True,
        pools,
        lists,
    )


def _features(make: Callable[..., nn.Module], **facts: Any) -> Module:
    return Module(make, make, **facts)


MODULES: dict[str, Module] = {
    "`nn.Embedding`": _table(nn.Embedding),
    "`nn.Embedding(sparse=True)`": _table(nn.Embedding, sparse=True),
    "`mg.nn.Embedding`": _table(mg.nn.Embedding),
    "`nn.EmbeddingBag`": _table(nn.EmbeddingBag),
    "`nn.EmbeddingBag(sparse=True)`": _table(nn.EmbeddingBag, sparse=True),
    "`mg.nn.EmbeddingBag`": _table(mg.nn.EmbeddingBag),
    "`nn.Linear`": _features(lambda **o: nn.Linear(WIDTH, WIDTH, **o)),
    "`nn.LayerNorm`": _features(lambda **o: nn.LayerNorm(WIDTH, **o)),
    "`nn.MultiheadAttention`": _features(
        lambda **o: nn.MultiheadAttention(WIDTH, 2, batch_first=True, **o),
        call=lambda layer, x: layer(x, x, x, need_weights=False)[0],
    ),
    "`nn.TransformerEncoderLayer`": _features(
        lambda **o: nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0.0, batch_first=True, **o)
    ),
    "`nn.LSTM`": _features(
        lambda **o: nn.LSTM(WIDTH, WIDTH, batch_first=True, **o),
        call=lambda layer, x: layer(x)[0],
        one_graph=False,
    ),
    "`nn.GRU`": _features(
        lambda **o: nn.GRU(WIDTH, WIDTH, batch_first=True, **o),
        call=lambda layer, x: layer(x)[0],
        one_graph=False,
    ),
}

Layout = Callable[[Tensor, Tensor], Any]


def _masked(data: Tensor, lengths: Tensor) -> Any:
    mask = torch.arange(STEPS) < lengths[:, None]
    return mg.masked(data, mask.view(*mask.shape, *[1] * (data.dim() - 2)))


LAYOUTS: dict[str, Layout] = {
    "plain": lambda data, _: data,
    "Boolean mask": _masked,
    "jagged": lambda data, lengths: mg.from_lengths(data, lengths, layout=torch.jagged),
    "COO": lambda data, lengths: _masked(data, lengths).to_sparse(),
}

OPTIONS: dict[str, dict[str, str]] = {
    '`unspecified="skip"`': {},
    '`unspecified="zero"`': {"unspecified": "zero"},
    '`state="row"`': {"state": "row"},
}

WAYS = ("`torch.compile`", "`GradientAccumulator`", "`per_sample_grad`", "`checkpoint`", "`autocast`")


class Net(nn.Module):
    """One layer, which may be run again in the backward pass."""

    def __init__(self, module: Module, layer: nn.Module, checkpointed: bool) -> None:
        super().__init__()
        self.layer, self._call, self._checkpointed = layer, module.call, checkpointed

    def forward(self, x: Any) -> Any:
        if self._checkpointed:
            return checkpoint(self._run, x, use_reentrant=False)
        return self._run(x)

    def _run(self, x: Any) -> Any:
        return self._call(self.layer, x)
