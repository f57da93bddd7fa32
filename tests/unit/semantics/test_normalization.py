"""Normalisation, against torch on each group without its unspecified entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

import maskgrad as mg

# Anomaly mode announces itself; forward-mode derivatives make torch use its own deprecated scripts.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Anomaly Detection:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning"),
    # torch says so, once, of a half input and a float32 weight
    pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight:UserWarning"),
]

nan, inf = float("nan"), float("inf")
GARBAGE = (nan, inf, -inf, 1e38, 7.0)
#: A row with gaps, one of nothing, one of a single entry, a complete one.
MASK = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [0, 0, 1, 0], [1, 1, 1, 1]]).bool()
WHOLE_ROWS = torch.tensor([[1], [0], [1], [1]]).bool().expand(4, 4)


def leaf(garbage: float = nan, mask: Tensor = MASK, dtype: torch.dtype = torch.float64) -> Tensor:
    x = torch.randn(mask.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.where(mask, x, garbage).to(dtype).requires_grad_()


def parameters() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4, generator=generator, dtype=torch.float64).requires_grad_() for _ in "wb"]


def by_deletion(function: Callable[..., Tensor], x: Tensor, mask: Tensor, *along: Tensor) -> Tensor:
    """Row by row; what belongs to an entry (weight, bias) is deleted with it."""
    result = torch.zeros_like(x)
    for row, here in zip(range(len(x)), mask, strict=True):
        if here.any():
            places = (torch.full((int(here.sum()),), row), here.nonzero().squeeze(1))
            result = result.index_put(places, function(x[row, here], *[p[here] for p in along]))
    return result


NORMS: dict[str, tuple[Callable[..., Any], int]] = {
    "layer_norm": (lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), 2),
    "rms_norm": (lambda x, w: F.rms_norm(x, x.shape[-1:], w), 1),
    "rms_norm, eps": (lambda x, w: F.rms_norm(x, x.shape[-1:], w, eps=0.1), 1),
    "native_layer_norm": (lambda x, w, b: torch.native_layer_norm(x, x.shape[-1:], w, b, 1e-5)[0], 2),
    "normalize": (lambda x: F.normalize(x, dim=-1), 0),
    "normalize, p": (lambda x: F.normalize(x, p=1, dim=-1), 0),
    "renorm": (lambda x: torch.renorm(x.reshape(-1, x.shape[-1]), 2, 0, 1.0).reshape(x.shape), 0),
}


@pytest.mark.parametrize("mask", [MASK, WHOLE_ROWS], ids=["gaps", "whole rows"])
@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("name", NORMS)
def test_rows_are_normalized_without_their_unspecified_entries(
    name: str, garbage: float, mask: Tensor
) -> None:
    function, count = NORMS[name]
    cotangent = torch.randn(mask.shape, dtype=torch.float64)
    clean, dirty = leaf(0.0, mask), leaf(garbage, mask)
    along, others = parameters()[:count], parameters()[:count]
    with torch.autograd.detect_anomaly(check_nan=True):
        result = function(mg.masked(dirty, mask), *along)
        found = torch.autograd.grad((result.filled(0.0) * cotangent).sum(), [dirty, *along])
    assert result.mask.equal(mask)
    right = by_deletion(function, clean, mask, *others)
    torch.testing.assert_close(result.filled(0.0), right)
    expected = torch.autograd.grad((right * cotangent).sum(), [clean, *others])
    torch.testing.assert_close(found, expected)
    assert not found[0][~mask].count_nonzero()


@pytest.mark.parametrize("bias", [True, False])
def test_unspecified_weights_and_biases(bias: bool) -> None:
    known = torch.tensor([True, False, True, True])
    also = torch.tensor([True, True, True, False]) if bias else torch.ones(4, dtype=torch.bool)
    x, (w, b) = leaf(), parameters()
    dirty = [torch.where(m, p, nan).detach().requires_grad_() for p, m in ((w, known), (b, also))]
    given = mg.masked(dirty[1], also) if bias else dirty[1]
    for mask in (MASK, WHOLE_ROWS):
        result = F.layer_norm(
            mg.masked(x.detach().nan_to_num(), mask), (4,), mg.masked(dirty[0], known), given
        )
        right = F.layer_norm(mg.masked(x.detach().nan_to_num(), mask), (4,), w, b)
        here = mask & known & also
        assert result.mask.equal(here)
        torch.testing.assert_close(result.filled(0.0), torch.where(here, right.filled(0.0), 0))
        found = torch.autograd.grad(result.filled(0.0).sum(), dirty)
        expected = torch.autograd.grad(right.filled(0.0)[here].sum(), [w, b])
        torch.testing.assert_close(found, expected)
    plain = F.layer_norm(x.detach().nan_to_num(), (4,), mg.masked(dirty[0], known))
    assert plain.mask.equal(known.expand(4, 4))


def test_an_infinite_weight_of_an_unspecified_entry_spoils_nothing() -> None:
    x, (w, _) = leaf(), parameters()
    w = w.detach().clone()
    w[2] = inf
    mask = MASK.clone()
    mask[2:] = False
    result = F.layer_norm(mg.masked(x, mask), (4,), w)
    (grad,) = torch.autograd.grad(result.filled(0.0).sum(), x)
    assert grad.isfinite().all()


def test_a_real_nan_stays_in_its_row() -> None:
    x = torch.tensor([[nan, 1.0, 7.0], [2.0, 4.0, 3.0]])
    w = torch.ones(3, requires_grad=True)
    result = F.layer_norm(mg.masked(x, torch.tensor([[1, 1, 0], [1, 1, 1]]).bool()), (3,), w)
    (grad,) = torch.autograd.grad(result.filled(0.0).sum(), w)
    assert grad.isnan().tolist() == [True, True, False]


def test_one_entry_gives_what_torch_gives_for_one_entry() -> None:
    x = torch.tensor([[nan, 5.0, nan]], requires_grad=True)
    w, b = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([10.0, 20.0, 30.0])
    result = F.layer_norm(mg.masked(x, torch.tensor([[False, True, False]])), (3,), w, b)
    assert result.tolist() == [[None, 20.0, None]]
    assert torch.autograd.grad(result.filled(0.0).sum(), x)[0].tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize("mask", [MASK[:2], WHOLE_ROWS[:2]], ids=["gaps", "whole rows"])
def test_a_group_of_nothing_has_no_derivative_to_be_infinite(mask: Tensor) -> None:
    x = leaf(nan, mask)
    for norm in (F.layer_norm, F.rms_norm):
        with torch.autograd.detect_anomaly(check_nan=True):
            result = norm(mg.masked(x, mask), (4,), eps=0.0)
            (grad,) = torch.autograd.grad(result.filled(0.0).square().sum(), x)
        left = x.detach()[0, mask[0]]
        torch.testing.assert_close(result.filled(0.0)[0, mask[0]], norm(left, left.shape, eps=0.0))
        assert grad.isfinite().all()
        assert not grad[1].count_nonzero()


def test_over_several_dimensions() -> None:
    x, mask = torch.randn(2, 3, 4), torch.rand(2, 3, 4) < 0.5
    result = F.layer_norm(mg.masked(torch.where(mask, x, nan), mask), (3, 4))
    for sample, here, found in zip(x, mask, result.filled(0.0), strict=True):
        left = sample[here]
        torch.testing.assert_close(found[here], F.layer_norm(left, left.shape))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize(
    "name", ["layer_norm", "rms_norm", "group_norm", "native_layer_norm", "native_group_norm"]
)
def test_halves_are_computed_in_float32_and_dtypes_are_torchs(
    name: str, mixed: bool, dtype: torch.dtype
) -> None:
    x, mask = (100 + 10 * torch.randn(3, 4)).to(dtype), torch.rand(3, 4) < 0.7
    w = torch.randn(4).to(torch.float32 if mixed else dtype)
    call = {
        "layer_norm": lambda x, w: F.layer_norm(x, (4,), w),
        "rms_norm": lambda x, w: F.rms_norm(x, (4,), w, 1e-5),
        "group_norm": lambda x, w: F.group_norm(x, 2, w),
        "native_layer_norm": lambda x, w: torch.native_layer_norm(x, (4,), w, None, 1e-5),
        "native_group_norm": lambda x, w: torch.native_group_norm(x, w, None, 3, 4, 1, 2, 1e-5),
    }[name]
    results, right, precise = (
        call(mg.masked(x, mask), w),
        call(x, w),
        call(mg.masked(x.float(), mask), w.float()),
    )
    if isinstance(right, Tensor):
        results, right, precise = (results,), (right,), (precise,)
    for one, other, exact in zip(results, right, precise, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        torch.testing.assert_close(one.filled(0.0), exact.filled(0.0).to(dtype=other.dtype))


def test_native_statistics() -> None:
    x = torch.randn(4, 4)
    out, mean, scale = torch.native_layer_norm(
        mg.masked(torch.where(MASK, x, nan), MASK), (4,), None, None, 1e-5
    )
    assert out.mask.equal(MASK)
    assert mean.mask.equal(MASK.any(1, keepdim=True))
    assert scale.mask.equal(MASK.any(1, keepdim=True))
    for row, here in ((0, MASK[0]), (2, MASK[2]), (3, MASK[3])):
        _, right_mean, right_scale = torch.native_layer_norm(
            x[row, here], (int(here.sum()),), None, None, 1e-5
        )
        torch.testing.assert_close(mean.filled(0.0)[row], right_mean)
        torch.testing.assert_close(scale.filled(0.0)[row], right_scale)


@pytest.mark.parametrize("shape", [(2, 4), (2, 4, 3), (2, 4, 2, 3)])
@pytest.mark.parametrize("whole", [False, True])
def test_group_norm(shape: tuple[int, ...], whole: bool) -> None:
    x, mask = torch.randn(shape, dtype=torch.float64), torch.rand(shape) < 0.6
    if whole:
        mask = torch.tensor([True, False]).reshape(2, *[1] * (len(shape) - 1)).expand(shape)
    module = nn.GroupNorm(2, 4, dtype=torch.float64)
    nn.init.normal_(module.weight)
    nn.init.normal_(module.bias)
    dirty = torch.where(mask, x, nan).requires_grad_()
    result = module(mg.masked(dirty, mask))
    assert result.mask.equal(mask)
    per_channel = [
        p.reshape(-1, *[1] * (len(shape) - 2)).expand(shape[1:]) for p in (module.weight, module.bias)
    ]
    found = result.filled(0.0)
    for n in range(2):
        for channels in (slice(0, 2), slice(2, 4)):
            here = mask[n, channels]
            left = x[n, channels][here]
            if len(left):
                standardized = F.layer_norm(left, left.shape)
                weight, bias = (p[channels][here] for p in per_channel)
                torch.testing.assert_close(found[n, channels][here], standardized * weight + bias)
    result.sum().backward()
    assert dirty.grad is not None
    assert dirty.grad.isfinite().all()
    assert not dirty.grad[~mask].count_nonzero()
    assert module.weight.grad is not None
    assert module.weight.grad.isfinite().all()


def test_an_absent_neighbour_is_one_beyond_the_border() -> None:
    x = torch.tensor([[[3.0], [nan], [4.0]]], requires_grad=True)
    mask = torch.tensor([[[1], [0], [1]]]).bool()
    result = nn.LocalResponseNorm(3, alpha=3.0, beta=1.0, k=0.0)(mg.masked(x, mask))
    torch.testing.assert_close(result.filled(0.0), torch.tensor([[[1 / 3], [0.0], [1 / 4]]]))
    (grad,) = torch.autograd.grad(result.filled(0.0).sum(), x)
    torch.testing.assert_close(grad, torch.tensor([[[-1 / 9], [0.0], [-1 / 16]]]))
    nothing = torch.full((1, 2, 3, 3), nan, requires_grad=True)
    result = F.local_response_norm(mg.masked(nothing, torch.tensor(False)), 2, k=0.0)
    assert not torch.autograd.grad(result.filled(0.0).sum(), nothing)[0].count_nonzero()
    with pytest.raises(ValueError, match="Expected 3D"):
        F.local_response_norm(mg.masked(torch.ones(2, 2), torch.ones(2, 2, dtype=torch.bool)), 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("of", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(2, 5, 3), (2, 5, 3, 4), (2, 5, 2, 2, 2)])
def test_neighbours_under_autocast(shape: Any, of: torch.dtype, dtype: torch.dtype) -> None:
    """PyTorch sums the squares of images and volumes with avg_pool3d, which autocast computes in float32."""
    x, mask = (torch.rand(shape) * 3).to(of), torch.rand(shape) > 0.3
    with torch.autocast("cpu", dtype):
        expected = F.local_response_norm(torch.where(mask, x, 0), 3, alpha=1.0)
        found = F.local_response_norm(mg.masked(torch.where(mask, x, nan), mask), 3, alpha=1.0)
    assert found.dtype == expected.dtype
    assert found.mask.equal(mask)
    torch.testing.assert_close(found.filled(0.0), expected, rtol=0, atol=0)


def test_renorm_in_place() -> None:
    x = mg.masked(
        torch.tensor([[3.0, 4.0, inf], [0.3, nan, 0.4]]), torch.tensor([[1, 1, 0], [1, 0, 1]]).bool()
    )
    assert x.renorm_(2, 0, 1.0) is x
    torch.testing.assert_close(x.filled(0.0), torch.tensor([[0.6, 0.8, 0.0], [0.3, 0.0, 0.4]]))
    assert torch.renorm(input=x, p=2, dim=0, maxnorm=5.0).mask.equal(x.mask)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: F.layer_norm(x, (3,)), RuntimeError, "expected input with shape"),
        (lambda x: F.layer_norm(x, (4,), torch.ones(3)), RuntimeError, "Expected weight"),
        (lambda x: F.rms_norm(x, (3,)), RuntimeError, "shape"),
        (lambda x: F.group_norm(x, 3), RuntimeError, "divisible"),
        (lambda x: F.group_norm(x, 2, torch.ones(3)), RuntimeError, "Expected weight"),
        (lambda x: F.group_norm(x[:1, :2], 2), ValueError, "more than 1 value per channel"),
        (lambda x: F.group_norm(x[0], 2), RuntimeError, "at least 2 dimensions"),
        (lambda x: F.normalize(x[0]), IndexError, "Dimension out of range"),
        (lambda x: torch.renorm(x, -1, 0, 1.0), RuntimeError, "non-positive"),
    ],
)
def test_torchs_errors(call: Callable[..., Any], error: type[Exception], text: str) -> None:
    for x in (torch.ones(4, 4), mg.masked(torch.ones(4, 4), MASK)):
        with pytest.raises(error, match=text):
            call(x)


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "normalize"])
def test_second_derivatives(name: str) -> None:
    function, count = NORMS[name]

    def composed(x: Tensor, *along: Tensor) -> Tensor:
        return function(mg.masked(x, MASK), *along).filled(0.0)

    inputs = (leaf(0.5), *parameters()[:count])
    assert torch.autograd.gradcheck(composed, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(composed, inputs, atol=1e-4)


@pytest.mark.parametrize("module", [nn.LayerNorm(4), nn.RMSNorm(4), nn.GroupNorm(2, 4)])
def test_one_graph(module: nn.Module) -> None:
    def step(x: Tensor, mask: Tensor) -> Tensor:
        return module(mg.masked(x, mask)).square().sum()

    x = leaf(nan, dtype=torch.float32)
    right = torch.autograd.grad(step(x, MASK), x)[0]
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(torch.autograd.grad(compiled(x, MASK), x)[0], right)


def test_under_vmap() -> None:
    x, (w, b) = leaf(), parameters()
    result = torch.vmap(lambda row, mask: F.layer_norm(mg.masked(row, mask), (4,), w, b).filled(0.0))(x, MASK)
    torch.testing.assert_close(result, F.layer_norm(mg.masked(x, MASK), (4,), w, b).filled(0.0))


def test_under_autocast_dtypes_are_torchs() -> None:
    module, x = nn.LayerNorm(4), torch.randn(4, 4, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        assert module(mg.masked(x, MASK)).dtype == module(x).dtype


def test_odd_shapes() -> None:
    empty = torch.zeros(0, 4, dtype=torch.bool)
    for function in (
        lambda x: F.layer_norm(x, (4,)),
        lambda x: F.rms_norm(x, (4,)),
        lambda x: F.group_norm(x, 2),
    ):
        assert function(mg.masked(torch.zeros(0, 4), empty)).shape == (0, 4)
    transposed = torch.randn(4, 4).t()
    right = F.layer_norm(mg.masked(transposed.contiguous(), MASK), (4,))
    torch.testing.assert_close(F.layer_norm(mg.masked(transposed, MASK), (4,)).filled(0.0), right.filled(0.0))


def test_a_group_of_one_channel_has_the_entries_of_its_space() -> None:
    x = torch.randn(1, 2, 5)
    found = F.group_norm(mg.masked(x, torch.ones(1, 2, 5, dtype=torch.bool)), 2)
    torch.testing.assert_close(found.filled(0), F.group_norm(x, 2))
