"""What is done on stored values costs what they cost, whatever the shape: nothing is ever spread out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import maskgrad as mg
from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.patterns.conversion import pattern_of_places
from maskgrad.patterns.jagged import JaggedPattern
from tests.laws.stored import BSC, BSR, COO, CSC, CSR

SIZE, ENTRIES = 100_000, 2_000
#: One dense vector of this side, or three columns; a whole row of blocks. Far below SIZE².
LIMIT = 10 * SIZE


class Operands(NamedTuple):
    """A large matrix, one of its pattern and one of another, and partners of few columns."""

    x: MaskedTensor
    same: MaskedTensor
    other: MaskedTensor
    right: Tensor
    partner: MaskedTensor
    row: Tensor


OPERATIONS: tuple[Callable[[Operands], Any], ...] = (
    # elementwise
    lambda o: o.x.exp(), lambda o: F.relu(o.x), lambda o: o.x.clamp(-1, 1), lambda o: 3 - o.x,
    lambda o: o.x**3, lambda o: o.x > 0, lambda o: o.x * o.row, lambda o: o.x + o.same, lambda o: o.x * o.other,
    lambda o: o.x == o.other, lambda o: torch.addcmul(o.x, o.same, o.other), lambda o: o.x.lerp(o.same, 0.3),
    lambda o: o.x.float(), lambda o: o.x.clone(), lambda o: torch.frexp(o.x),
    # reductions
    *(
        lambda o, n=name, d=dim: getattr(torch, n)(o.x, d)
        for name in ("sum", "mean", "nansum", "nanmean", "logsumexp", "var", "amax", "amin", "any", "all",
                     "prod", "count_nonzero", "argmax", "argmin", "max", "var_mean", "softmax", "log_softmax")
        for dim in (0, 1)
    ),
    *(
        lambda o, n=name: getattr(torch, n)(o.x)
        for name in ("sum", "mean", "any", "count_nonzero", "prod", "argmax", "max", "norm", "std_mean")
    ),
    lambda o: o.x.sum(0, keepdim=True), lambda o: o.x.aminmax(dim=-1), lambda o: o.x.norm(3, 1),
    lambda o: F.normalize(o.x, dim=0), lambda o: F.softmin(o.x, -1),
    # views
    lambda o: o.x.mT, lambda o: o.x.movedim(0, -1), lambda o: o.x.unsqueeze(1).squeeze(1),
    lambda o: o.x.reshape(-1, 1), lambda o: o.x.flatten(), lambda o: o.x.flip(0), lambda o: o.x.roll(2, 0),
    lambda o: o.x.roll(3), lambda o: torch.diagonal(o.x, 1), lambda o: o.x.trace(),
    # indexing
    lambda o: o.x.narrow(0, 1, 2), lambda o: o.x[1:], lambda o: o.x[::2], lambda o: o.x[..., 1:],
    lambda o: o.x[0], lambda o: o.x[:, 0], lambda o: o.x[1, 0], lambda o: o.x[:, None], lambda o: o.x[[2, 0, 2]],
    lambda o: o.x[torch.tensor([-1, 0])],
    lambda o: o.x[torch.tensor([[0, 1], [1, 1]]), torch.tensor([0, -1])],
    lambda o: o.x.index_select(-1, torch.tensor([1, 1, 0])), lambda o: o.x.select(0, 1),
    # joins
    lambda o: torch.cat([o.x, o.other, o.x]), lambda o: torch.cat([o.x, o.same], -1),
    lambda o: torch.stack([o.x, o.other]), lambda o: torch.stack([o.x, o.same], 1),
    lambda o: torch.hstack([o.x, o.other]), lambda o: torch.vstack([o.x, o.other]),
    lambda o: o.x.tensor_split([1, 2]),
    # products
    lambda o: o.x @ o.right, lambda o: o.x @ o.partner, lambda o: o.right.mT @ o.x.mT,
    lambda o: o.partner.mT @ o.x.mT, lambda o: o.x @ o.row, lambda o: o.row @ o.x.mT,
    lambda o: o.x @ o.other.mT, lambda o: torch.inner(o.x, o.row),
    lambda o: torch.addmm(o.right[0], o.x, o.right, beta=2, alpha=3),
    # losses
    lambda o: F.mse_loss(o.x, o.same, reduction="sum"), lambda o: F.mse_loss(o.x, o.other),
    lambda o: F.huber_loss(o.x, o.other, reduction="none"),
)  # fmt: skip


class Bounded(TorchDispatchMode):
    """Raises as soon as a tensor has more entries than there may be."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for part in torch.utils._pytree.tree_leaves(result):
            # tensors on "meta" have a shape and no memory: they say what PyTorch makes of the shape
            is_whole = (
                isinstance(part, torch.Tensor) and part.layout == torch.strided and part.numel() > LIMIT
            )
            if is_whole and not part.is_meta:
                raise AssertionError(f"{func} made {tuple(part.shape)}")
        return result


def large(layout: torch.layout, seed: int) -> MaskedTensor:
    torch.manual_seed(seed)
    keys = torch.randint(SIZE * SIZE, (ENTRIES,)).unique()
    places = torch.stack([keys // SIZE, keys % SIZE])
    blocksize = (1, 1) if layout in (BSR, BSC) else None
    pattern, _ = pattern_of_places(places, (SIZE, SIZE), layout, blocksize)
    values = torch.rand(keys.shape[0], dtype=torch.float64) + 0.5
    return MaskedTensor(pattern.gathered(values), pattern).requires_grad_()


@pytest.mark.parametrize("layout", [COO, CSR, CSC, BSR, BSC])
def test_no_operation_allocates_the_shape(layout: torch.layout) -> None:
    right = torch.rand(SIZE, 3, dtype=torch.float64)
    operands = Operands(
        large(layout, 0),
        large(layout, 0),
        large(layout if layout in (CSR, CSC) else COO, 1),
        right,
        mg.masked(right, right > 0.5),
        torch.rand(SIZE, dtype=torch.float64),
    )
    for run in OPERATIONS:
        with Bounded():
            result = run(operands)
            parts = list(result) if isinstance(result, (tuple, list)) else [result]
            values = [p._values if isinstance(p, MaskedTensor) else p for p in parts if p.requires_grad]
            if values:
                seeds = [torch.ones_like(v) for v in values]
                torch.autograd.grad(values, [operands.x._values], seeds, allow_unused=True)
    with Bounded():  # and a gradient of stored entries
        (operands.x * 2).backward(operands.x.detach())
    assert operands.x.grad.layout == layout


#: By name, on (B, T, 4) and another batch of the same lengths.
ON_ROWS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y, "multiply by a plain one": lambda x, y: x * torch.rand(4, dtype=x.dtype),
    "exp": lambda x, y: x.exp(), "linear": lambda x, y: F.linear(x, torch.rand(3, 4, dtype=x.dtype)),
    "matmul": lambda x, y: x @ torch.rand(4, 3, dtype=x.dtype), "layer_norm": lambda x, y: F.layer_norm(x, (4,)),
    "rms_norm": lambda x, y: F.rms_norm(x, (4,)), "dropout": lambda x, y: F.dropout(x, 0.5),
    "softmax of features": lambda x, y: x.softmax(-1), "sum of features": lambda x, y: x.sum(-1),
    "var of features": lambda x, y: x.var(-1), "argmax of features": lambda x, y: x.argmax(-1),
    "sort of features": lambda x, y: x.sort(-1)[0], "topk of features": lambda x, y: x.topk(2, -1)[0],
    "mean of sequences": lambda x, y: x.mean(1), "amax of sequences": lambda x, y: x.amax(1),
    "logsumexp of sequences": lambda x, y: x.logsumexp(1), "softmax of sequences": lambda x, y: x.softmax(1),
    "last": lambda x, y: x.last(), "one position": lambda x, y: x[:, 3], "positions": lambda x, y: x[:, 1:],
    "sequences": lambda x, y: x[1:], "features": lambda x, y: x[..., 1:],
    "transpose": lambda x, y: x.transpose(0, 1).mT,
    "heads": lambda x, y: x.unflatten(-1, (2, 2)).transpose(1, 2),
    "cat": lambda x, y: torch.cat([x, y], -1),
    "cat of sequences": lambda x, y: torch.cat([x, y]), "stack of features": lambda x, y: torch.stack([x, y], -1),
    "where": lambda x, y: torch.where(x > y, x, y), "mse_loss": F.mse_loss,
    "cross_entropy": lambda x, y: F.cross_entropy(x.transpose(1, 2), y.argmax(-1)),
    "prelu": lambda x, y: F.prelu(x, torch.ones(1, dtype=x.dtype)), "mean of everything": lambda x, y: x.mean(),
    "embedding": lambda x, y: F.embedding(x.argmax(-1), torch.rand(4, 5, dtype=x.dtype)),
    "last positions": lambda x, y: x.last(2), "drop_last": lambda x, y: x.drop_last(1) * y.drop_first(1),
    "of other lengths": lambda x, y: x[:, :-1] * y[:, 1:],
}  # fmt: skip


@pytest.mark.every
@pytest.mark.parametrize("name", ON_ROWS)
def test_what_runs_on_rows_makes_no_padded_batch(name: str) -> None:
    offsets = torch.tensor([0, 3, 3, 8, 10])
    x, y = (mg.from_offsets(torch.rand(10, 4, dtype=torch.float64), offsets).requires_grad_() for _ in "xy")
    spread_out = AssertionError("a padded batch was made")
    with (
        mock.patch("maskgrad.semantics.stored.entries._padded", side_effect=spread_out),
        mock.patch.object(JaggedPattern, "mask", property(mock.Mock(side_effect=spread_out))),
    ):
        result = ON_ROWS[name](x, y)
        values: Tensor = result._values if isinstance(result, MaskedTensor) else result
        if values.requires_grad:
            torch.autograd.grad(values, x._values, torch.ones_like(values), create_graph=True)
