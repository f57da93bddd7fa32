"""torch.func, forward mode and torch.compile on stored values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad.masked_tensor.tensor import MaskedTensor
from tests.laws.storage.layouts import BY_NAME, Storage, boolean, entries_of, stored
from tests.laws.storage.test_conformance import filled

SOME = [BY_NAME[name] for name in ("coo", "csr", "bsr-2x3", "csr-hybrid", "jagged-hybrid", "jagged-turned")]
CALLS: dict[str, Callable[[Any], Any]] = {
    "product": lambda x: x * x + 1,
    "sum": lambda x: x.sum(0),
    "softmax": lambda x: x.softmax(-1),
    "amax": lambda x: x.amax(0),
    "logsumexp": lambda x: x.logsumexp(0),
    "norm": lambda x: torch.linalg.vector_norm(x, 2, 0),
    "std": lambda x: (x * x + 1).std(0, correction=0),
    "matmul": lambda x: x @ torch.ones(x.shape[-1], 2, dtype=x.dtype),
    "prod": lambda x: x.prod(0),
    "mse_loss": lambda x: F.mse_loss(x, x * 2),
}


@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated:DeprecationWarning"
)  # torch's forward mode
@pytest.mark.parametrize("storage", SOME, ids=lambda s: s.name)
@pytest.mark.parametrize("call", CALLS)
def test_transforms_agree_with_the_boolean_mask(call: str, storage: Storage) -> None:
    entries = entries_of(storage).detach()
    direction = torch.randn_like(entries)

    def plain(build: Callable[[Storage, Tensor], MaskedTensor]) -> Callable[[Tensor], Tensor]:
        return lambda v: filled(CALLS[call](build(storage, v)))

    ours, theirs = plain(stored), plain(boolean)
    for transform in (
        lambda f: torch.func.jvp(f, (entries,), (direction,))[1],
        lambda f: torch.func.grad(lambda v: f(v).sum())(entries),
        lambda f: torch.vmap(f)(torch.stack([entries, direction])),
    ):
        torch.testing.assert_close(transform(ours), transform(theirs), equal_nan=True)


@pytest.mark.parametrize("storage", SOME, ids=lambda s: s.name)
def test_one_pattern_compiles_into_one_graph(storage: Storage) -> None:
    x = stored(storage, entries_of(storage).detach())
    compiled = torch.compile(lambda x: (2 * x * x - x).exp().filled(0), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), (2 * x * x - x).exp().filled(0))
