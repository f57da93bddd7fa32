"""Each body gives what the operation of PyTorch gives, on awkward operands; the tests of conformance run the files."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from maskgrad.export.capture import quiet
from maskgrad.export.decompositions import decomposed, table

aten = torch.ops.aten
nan, inf = float("nan"), float("inf")

ROWS = torch.tensor([[3.0, nan, -inf, 3.0, 0.5], [nan, nan, 1.0, -0.0, 0.0], [inf, 2.0, 2.0, -7.0, inf]])
NUMBERS = torch.tensor([[5, -3, 5, 0], [2**40, 7, 7, -(2**62)]])
GRID = torch.arange(2 * 3 * 7 * 5.0).reshape(2, 3, 7, 5).sin()
Q, K, V = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 6)
ALLOWED = torch.rand(2, 1, 3, 5) > 0.5
ALLOWED[:, :, 1] = False
BIAS = torch.zeros(3, 5).masked_fill(~ALLOWED[0, 0], -inf)


def case(operation: Any, *args: Any, **kwargs: Any) -> Any:
    return pytest.param(
        operation, args, kwargs, id=f"{operation}-{len(args)}-{'-'.join(map(str, kwargs.values()))[:40]}"
    )


EQUATIONS = {
    "bij,bkj->bi": [(2, 3, 4), (2, 5, 4)],
    "ij,jk->ik": [(3, 4), (4, 0)],
    "iji,kj": [(3, 2, 3), (4, 2)],
    "...ij,...jk->...ik": [(5, 1, 2, 3), (4, 3, 2)],
    "ij,jk,kl->il": [(2, 3), (3, 4), (4, 5)],
    ",i->i": [(), (3,)],
    "a,a->a": [(1,), (3,)],
}

sort, sdpa, where = aten.sort.stable, aten.scaled_dot_product_attention.default, aten.where
CASES = [
    *[
        case(sort, x, stable=True, dim=d, descending=down)
        for x in (ROWS, NUMBERS)
        for d, down in ((0, False), (-1, True))
    ],
    *[case(sort, x, stable=True) for x in (NUMBERS > 3, torch.tensor(3.0), torch.zeros(2, 0))],
    *[
        case(aten.cumprod.default, x, -1)
        for x in (ROWS, NUMBERS, ROWS[:, :0], torch.tensor(2.0), NUMBERS > 0)
    ],
    *[case(aten.cummax.default, x, d) for x, d in ((ROWS, 0), (NUMBERS, 1), (torch.tensor(2.0), 0))],
    *[case(aten.cummin.default, x, 1) for x in (ROWS, NUMBERS)],
    *[case(aten.diagonal.default, GRID, offset, 1, -1) for offset in (-4, -1, 0, 2)],
    case(aten.linalg_diagonal.default, GRID, offset=1),
    *[
        case(operation, x, keepdim=keepdim)
        for operation in (aten.amax.default, aten.amin.default)
        for x, keepdim in ((ROWS, True), (NUMBERS, False), (torch.tensor(3.0), True))
    ],
    case(where.Scalar, ROWS > 0, True, -2.5),
    case(where.ScalarOther, NUMBERS > 5, NUMBERS, nan),
    case(where.ScalarSelf, NUMBERS > 5, 0.5, NUMBERS.to(torch.int8)),
    *[
        case(aten.einsum.default, equation, list(map(torch.randn, sizes)))
        for equation, sizes in EQUATIONS.items()
    ],
    case(sdpa, Q, K, V, ALLOWED, enable_gqa=True),
    case(sdpa, Q[:, :2], K, V, BIAS),
    case(sdpa, Q[0, :2], K[0], V[0], None, 0.0, True, scale=0.3),
    case(sdpa, Q[:, :2], K, V),
    case(aten._safe_softmax.default, BIAS, -1),
]


@pytest.mark.parametrize(("operation", "args", "kwargs"), CASES)
def test_a_decomposition_equals_its_operation(
    operation: Any, args: Any, kwargs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "topk", topk_of_onnx)
    found, expected = table()[operation](*args, **kwargs), operation(*args, **kwargs)
    if isinstance(expected, torch.Tensor):
        found, expected = [found], [expected]
    for one, other in zip(flat(found), flat(expected), strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)


def topk_of_onnx(x: torch.Tensor, k: int, dim: int, largest: bool) -> tuple[torch.Tensor, ...]:
    """The first of equals comes first, which PyTorch does not promise."""
    return tuple([part.narrow(dim, 0, k) for part in torch.sort(x, dim=dim, descending=largest, stable=True)])


def flat(parts: Any) -> list[torch.Tensor]:
    return [inner for part in parts for inner in (flat(part) if isinstance(part, (tuple, list)) else [part])]


def test_calls_outside_a_decomposition_are_left_alone() -> None:
    bodies = table()
    assert bodies[sdpa](Q[:, :2], K, V, None, 0.5) is NotImplemented
    assert bodies[aten.amax.default](ROWS, [1]) is NotImplemented
    assert bodies[aten.where.ScalarOther](ROWS > 0, ROWS, 0) is NotImplemented
    assert bodies[aten.where.ScalarSelf](ROWS > 0, nan, ROWS.double()) is NotImplemented


def test_a_program_keeps_its_meaning_with_sizes_that_vary() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (
                x.cumprod(0),
                *x.cummax(0),
                x.diagonal(),
                (x > 0).sum(1) / (x > 1).sum(1),
                torch.where(x > 0, x > 1, 2),
                x.amax(),
            )

    dynamic = ({0: torch.export.Dim("rows"), 1: torch.export.Dim("columns")},)
    with quiet():
        program = decomposed(torch.export.export(Model(), (ROWS,), dynamic_shapes=dynamic))
    names = {str(node.target).split(".")[1] for node in program.graph.nodes if "aten" in str(node.target)}
    assert not names & {"cumprod", "cummax", "diagonal", "sort"}
    for x in (ROWS, ROWS.T.contiguous(), torch.randn(4, 4)):
        for one, other in zip(program.module()(x), Model()(x), strict=True):
            torch.testing.assert_close(one, other, equal_nan=True)
