"""Each body gives what the operation of PyTorch gives, on awkward operands; the tests of conformance run the files."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from maskgrad.export.capture import quiet
from maskgrad.export.decompositions import decomposed, table

aten = torch.ops.aten
nan, inf = float("nan"), float("inf")

ROWS = torch.tensor([[3.0, nan, -inf, 3.0, 0.5], [nan, nan, 1.0, -0.0, 0.0], [inf, 2.0, 2.0, -7.0, inf]])
NUMBERS = torch.tensor([[5, -3, 5, 0], [2**40, 7, 7, -(2**62)]])
GRID = torch.arange(2 * 3 * 7 * 5.0).reshape(2, 3, 7, 5).sin()
VOLUME = torch.arange(2 * 2 * 5 * 4 * 3.0).reshape(2, 2, 5, 4, 3).cos()
SIGNED = torch.tensor([0.0, -0.0, 1.5, -2.0, inf, -inf, 1e38, -1e-38, 3e-45])
Q, K, V = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 6)
ALLOWED = torch.rand(2, 1, 3, 5) > 0.5
ALLOWED[:, :, 1] = False
BIAS = torch.zeros(3, 5).masked_fill(~ALLOWED[0, 0], -inf)
EDGES = torch.tensor([-1.0, 0.0, 0.25, 2.0])


def case(operation: Any, *args: Any, **kwargs: Any) -> Any:
    return pytest.param(
        operation, args, kwargs, id=f"{operation}-{len(args)}-{'-'.join(map(str, kwargs.values()))[:40]}"
    )


def lstm(
    projection: int,
    layers: int = 1,
    bidirectional: bool = False,
    bias: bool = True,
    batch_first: bool = False,
) -> tuple[Any, ...]:
    """What torch.nn.LSTM passes on, for five steps of three sequences."""
    module = torch.nn.LSTM(4, 6, layers, bias, batch_first, 0.0, bidirectional, projection)
    runs = layers * (1 + bidirectional)
    x = torch.randn((3, 5, 4) if batch_first else (5, 3, 4))
    hidden = [torch.randn(runs, 3, projection or 6), torch.randn(runs, 3, 6)]
    weights = [weight.detach() for weight in module.parameters()]
    return x, hidden, weights, bias, layers, 0.0, False, bidirectional, batch_first


EQUATIONS = [
    ("bij,bkj->bi", [(2, 3, 4), (2, 5, 4)]),
    ("ij,jk->ik", [(3, 4), (4, 0)]),
    ("i,j,k->kji", [(2,), (3,), (4,)]),
    ("ii->i", [(3, 3)]),
    ("iji,kj", [(3, 2, 3), (4, 2)]),
    ("...ij,...jk->...ik", [(5, 1, 2, 3), (4, 3, 2)]),
    ("b...,b...->...", [(2, 3, 4), (2, 3, 4)]),
    ("ij->", [(3, 4)]),
    ("ji", [(3, 4)]),
    ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
    (",i->i", [(), (3,)]),
    ("ab,ac->a", [(2, 3), (2, 4)]),
    ("a,a->a", [(1,), (3,)]),
]

CASES = [
    *[
        case(aten.sort.stable, x, stable=True, dim=d, descending=down)
        for x in (ROWS, NUMBERS)
        for d in (0, -1)
        for down in (False, True)
    ],
    case(aten.sort.stable, NUMBERS > 3, stable=True, dim=1),
    case(aten.sort.stable, torch.tensor(3.0), stable=True),
    case(aten.sort.stable, torch.zeros(2, 0), stable=True),
    case(aten.median.dim, ROWS, 1),
    case(aten.median.dim, ROWS[:, 2:], 0, True),
    case(aten.nanmedian.dim, ROWS, 0),
    case(aten.median.default, NUMBERS),
    case(aten.nanmedian.default, ROWS),
    case(aten.kthvalue.default, torch.tensor([[4.0, 1.0, 9.0, 2.0]]), 3, -1, True),
    case(aten.cumprod.default, ROWS, 1),
    case(aten.cumprod.default, NUMBERS, 0),
    case(aten.cumprod.default, ROWS[:, :0], 1),
    case(aten.cumprod.default, torch.tensor(2.0), 0),
    case(aten.cumprod.default, NUMBERS > 0, 1),
    *[
        case(operation, x, d)
        for operation in (aten.cummax.default, aten.cummin.default)
        for x in (ROWS, NUMBERS)
        for d in (0, 1)
    ],
    case(aten.cummax.default, torch.tensor(2.0), 0),
    case(aten.linalg_vander.default, torch.tensor([[2.0, 0.0, -3.0]])),
    case(aten.linalg_vander.default, torch.tensor([2.0, 0.5]), N=5),
    *[case(aten.diagonal.default, GRID, offset, 1, -1) for offset in (-4, -1, 0, 2)],
    case(aten.diagonal.default, ROWS),
    case(aten.trace.default, ROWS[:, :3]),
    *[
        case(aten.diagonal_scatter.default, torch.ones(3, 5), torch.tensor([2.0, 3.0]), offset)
        for offset in (-1, 3)
    ],
    case(aten.pixel_shuffle.default, torch.arange(2 * 12 * 2 * 3).reshape(2, 12, 2, 3) > 20, 2),
    case(aten.pixel_unshuffle.default, torch.arange(12 * 4 * 6).reshape(12, 4, 6), 2),
    case(aten.repeat_interleave.Tensor, torch.tensor([2, 0, 3]), output_size=5),
    case(aten.as_strided.default, torch.arange(12.0), [2, 3], [1, 2], 4),
    case(aten.put.default, ROWS.clone(), torch.tensor([[0, -1]]), torch.tensor([[8.0, 9.0]])),
    case(aten.put.default, torch.ones(3), torch.tensor([1, 1]), torch.tensor([8.0, 9.0]), True),
    case(aten.nonzero_static.default, NUMBERS, size=9, fill_value=-5),
    case(aten.nonzero_static.default, NUMBERS, size=3),
    case(aten.nonzero_static.default, torch.tensor(3), size=2),
    *[
        case(aten.searchsorted.Tensor, EDGES, torch.tensor([[-5.0, 0.0], [nan, 2.0]]), right=right)
        for right in (False, True)
    ],
    case(
        aten.searchsorted.Tensor,
        EDGES[[2, 0, 3, 1]],
        torch.tensor(0.1),
        side="right",
        sorter=torch.tensor([1, 3, 0, 2]),
    ),
    case(aten.searchsorted.Scalar, EDGES, 0.1, out_int32=True),
    case(aten.searchsorted.Tensor, EDGES.repeat(2, 1), torch.tensor([[0.0], [9.0]])),
    case(aten.bucketize.Tensor, ROWS, EDGES, right=True),
    case(aten.bucketize.Scalar, 0.25, EDGES),
    *[case(operation, SIGNED[:, None], SIGNED) for operation in (aten.copysign.Tensor, aten.hypot.default)],
    case(
        aten.hypot.default, torch.tensor([inf, nan, -inf, nan, 3.0]), torch.tensor([nan, inf, nan, nan, nan])
    ),
    *[
        case(aten.combinations.default, torch.tensor([1.5, nan, -2.0, 4.0][:size]), r, again)
        for size, r, again in ((4, 2, False), (4, 3, True), (4, 0, False), (2, 3, False), (0, 2, True))
        if aten.combinations.default in table()
    ],
    case(aten.copysign.Scalar, SIGNED, -0.0),
    case(aten.copysign.Tensor, torch.tensor([1, -2]), torch.tensor([-3, 4])),
    case(aten.signbit.default, SIGNED),
    case(aten.signbit.default, NUMBERS),
    *[case(operation, ROWS, ROWS.flip(1)) for operation in (aten.fmax.default, aten.fmin.default)],
    case(aten.fmax.default, NUMBERS, NUMBERS.flip(1)),
    case(aten.frexp.Tensor, torch.cat([SIGNED, torch.tensor([nan, 0.5, 8.0, 7.999999, 1e-40])])),
    case(aten.rrelu.default, SIGNED, 0.1, 0.3),
    *[
        case(operation, x, keepdim=keepdim)
        for operation in (aten.amax.default, aten.amin.default)
        for x in (ROWS, NUMBERS, torch.tensor(3.0))
        for keepdim in (False, True)
    ],
    case(aten.where.Scalar, ROWS > 0, 1, 0.5),
    case(aten.where.Scalar, ROWS > 0, True, -2),
    case(aten.where.ScalarOther, ROWS > 0, ROWS > 2, 3),
    case(aten.where.ScalarOther, NUMBERS > 5, NUMBERS, nan),
    case(aten.where.ScalarSelf, NUMBERS > 5, 0.5, NUMBERS.to(torch.int8)),
    case(aten.special_entr.default, torch.cat([SIGNED, torch.tensor([nan])])),
    case(aten.special_entr.default, torch.tensor([2, 0, -1])),
    *[
        case(operation, NUMBERS, torch.tensor([10, 6, 0, 12]))
        for operation in (aten.gcd.default, aten.lcm.default)
    ],
    case(
        aten.gcd.default, torch.tensor([-128, 89], dtype=torch.int8), torch.tensor([64, 55], dtype=torch.int8)
    ),
    case(aten.avg_pool2d.default, GRID, [3, 2], [2], [1], False, True, 4),
    case(aten.avg_pool2d.default, GRID, [3, 3], [2, 3], [1, 0], True, False, 1),
    case(aten.avg_pool3d.default, VOLUME, [2], [], [1], True, True, 3),
    case(aten._adaptive_avg_pool3d.default, VOLUME, [3, 4, 2]),
    case(aten.adaptive_max_pool1d.default, GRID[0], [3]),
    case(aten.adaptive_max_pool2d.default, GRID, [3, 5]),
    case(aten.adaptive_max_pool3d.default, VOLUME, [2, 3, 1]),
    case(aten.conv_tbc.default, torch.randn(5, 2, 3), torch.randn(2, 3, 4), torch.randn(4), 1),
    case(aten.histc.default, ROWS.nan_to_num(posinf=9.0, neginf=-9.0), 7),
    case(aten.histc.default, ROWS, 4, -1, 3),
    case(aten.histc.default, torch.tensor([3.0, 3.0]), 5),
    case(aten.histc.default, torch.tensor([3.0, 5.0]), 3, 2, 2),
    case(aten.histc.default, torch.zeros(0), 3),
    *[
        case(aten.lstm.input, *lstm(projection=2, **kind))
        for kind in ({}, {"layers": 2, "bidirectional": True}, {"bias": False, "batch_first": True})
    ],
    case(aten.histogram.bin_ct, torch.tensor([0.0, 1.0, 2.0, 2.0, 0.5]), 4),
    case(aten.histogram.bin_ct, torch.tensor([3.0, 3.0]), 2, density=True),
    case(
        aten.histogram.bin_ct,
        torch.tensor([3.0, 9.0, 4.0]),
        2,
        range=[2.0, 5.0],
        weight=torch.tensor([1.0, 2.0, 4.0]),
    ),
    case(aten.histogram.bins_tensor, ROWS.nan_to_num(), EDGES, density=True),
    case(aten.histogramdd.default, torch.randn(9, 2), [3, 2], None, torch.rand(9)),
    case(aten.histogramdd.int_bins, torch.randn(9, 2), 3),
    case(aten.histogramdd.TensorList_bins, torch.randn(9, 2), [EDGES, EDGES]),
    *[
        case(aten.einsum.default, equation, [torch.randn(shape) for shape in shapes])
        for equation, shapes in EQUATIONS
    ],
    case(aten.scaled_dot_product_attention.default, Q, K, V, ALLOWED, enable_gqa=True),
    case(
        aten.scaled_dot_product_attention.default,
        Q[:, :2],
        K,
        V,
        BIAS,
    ),
    case(aten.scaled_dot_product_attention.default, Q[0, :2], K[0], V[0], None, 0.0, True, scale=0.3),
    case(aten.scaled_dot_product_attention.default, Q[:, :2], K, V),
    case(aten._safe_softmax.default, BIAS, -1),
]


@pytest.mark.parametrize(("operation", "args", "kwargs"), CASES)
def test_a_body_gives_what_the_operation_gives(
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


@pytest.mark.parametrize(
    ("operation", "args", "kwargs"),
    [
        case(aten.scaled_dot_product_attention.default, Q[:, :2], K, V, None, 0.5),
        case(aten.avg_pool2d.default, GRID, [2, 2]),
        case(aten.rrelu.default, SIGNED, 0.1, 0.3, True),
        case(aten.repeat_interleave.Tensor, torch.tensor([2, 0, 3])),
        case(aten.as_strided.default, torch.arange(12.0)[2:], [2], [3]),
        case(aten.lstm.input, *lstm(projection=0)),
        case(aten.amax.default, ROWS, [1]),
        case(aten.where.ScalarOther, ROWS > 0, ROWS, 0),
        case(aten.where.ScalarSelf, ROWS > 0, nan, ROWS.double()),
    ],
)
def test_what_a_body_does_not_cover_is_left_as_it_is(operation: Any, args: Any, kwargs: Any) -> None:
    assert table()[operation](*args, **kwargs) is NotImplemented


def test_a_program_keeps_its_meaning_with_sizes_that_vary() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (
                x.cumprod(0),
                *x.cummax(0),
                x.diagonal(),
                F.pixel_shuffle(x[None, None], 1),
                (x > 0).sum(1) / (x > 1).sum(1),
                torch.where(x > 0, x > 1, 2),
                x.amax(),
            )

    dynamic = ({0: torch.export.Dim("rows"), 1: torch.export.Dim("columns")},)
    with quiet():
        program = decomposed(torch.export.export(Model(), (ROWS,), dynamic_shapes=dynamic))
    names = {str(node.target) for node in program.graph.nodes}
    assert not names & {
        "aten.cumprod.default",
        "aten.cummax.default",
        "aten.diagonal.default",
        "aten.sort.default",
    }
    for x in (ROWS, ROWS.T.contiguous(), torch.randn(4, 4)):
        for one, other in zip(program.module()(x), Model()(x), strict=True):
            torch.testing.assert_close(one, other, equal_nan=True)
