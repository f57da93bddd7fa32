"""Convolutions against loops over windows: a window without a specified product is unspecified."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import maskgrad as mg
from tests.poison import assert_entries, gradient, inf, leaf, nan, on, poisoned
from tests.unit.semantics.windows import FORWARD, by_windows, forward_table, transposed_table

TRANSPOSED = [
    {},
    {"stride": 2},
    {"stride": 4},  # gaps
    {"stride": 3, "output_padding": 2, "padding": 1},
    {"groups": 2, "stride": 2, "dilation": 2},
]


@pytest.mark.parametrize("masked", ["input", "weight", "both"])
@pytest.mark.parametrize(
    ("transposed", "geometry"), [(False, g) for g in FORWARD] + [(True, g) for g in TRANSPOSED]
)
def test_one_dimension(transposed: bool, geometry: dict[str, Any], masked: str) -> None:
    groups = geometry.get("groups", 1)
    shapes = (2, 4, 6), ((4, 6 // groups, 3) if transposed else (6, 4 // groups, 3))
    table = (transposed_table if transposed else forward_table)(6, 3, **geometry)
    function = F.conv_transpose1d if transposed else F.conv1d
    for density, garbage in itertools.product((0.4, 0.05), (nan, inf)):
        masks = [
            torch.rand(s) < density if masked in (name, "both") else torch.ones(s).bool()
            for s, name in zip(shapes, ("input", "weight"), strict=True)
        ]
        x, w = (torch.where(m, torch.randn(m.shape).double(), garbage).requires_grad_() for m in masks)
        parts = [
            mg.masked(v, m) if masked in (name, "both") else v
            for v, m, name in zip((x, w), masks, ("input", "weight"), strict=True)
        ]
        found = function(*parts, **geometry)
        weight, weight_mask = (_as_forward(t, groups) if transposed else t for t in (w, masks[1]))
        expected, known = by_windows(x, masks[0], weight, weight_mask, groups, table)
        assert found.shape == known.shape
        assert torch.equal(found.mask, known)
        torch.testing.assert_close(found.filled(0), torch.where(known, expected, 0))
        noise = torch.randn(known.shape).double()
        zero = sum(0 * v[m].sum() for v, m in zip((x, w), masks, strict=True))
        wanted = torch.autograd.grad((torch.where(known, expected, 0) * noise).sum() + zero, (x, w))
        torch.testing.assert_close(torch.autograd.grad((found.filled(0) * noise).sum(), (x, w)), wanted)


def _as_forward(kernel: Tensor, groups: int) -> Tensor:
    """(in, out / groups, taps) as (out, in / groups, taps)."""
    return kernel.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)


@pytest.mark.parametrize("spatial", [2, 3])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("masked", [(True, False), (False, True), (True, True)])
def test_more_dimensions_agree_with_counting_all_products(
    spatial: int, transposed: bool, masked: tuple[bool, bool]
) -> None:
    function = getattr(F, f"conv_transpose{spatial}d" if transposed else f"conv{spatial}d")
    shapes = [(2, 4, *[4] * spatial), (4, 3, *[2] * spatial) if transposed else (6, 2, *[2] * spatial)]
    geometry = {"stride": 2, "padding": 1, "groups": 2}
    masks = [torch.rand(s) < 0.15 if m else torch.ones(s).bool() for s, m in zip(shapes, masked, strict=True)]
    data = [torch.where(m, torch.randn(m.shape).double(), nan) for m in masks]
    parts = [mg.masked(d, m) if c else d for d, m, c in zip(data, masks, masked, strict=True)]
    found = function(*parts, **geometry)
    count = function(*[m.double() for m in masks], **geometry)
    every = function(*[torch.ones_like(m).double() for m in masks], **geometry)
    assert torch.equal(found.mask, (count > 0.5) | (every < 0.5))
    assert not found.mask.all()
    torch.testing.assert_close(
        found.filled(0), function(*[d.nan_to_num() for d in data], **geometry).where(found.mask, 0)
    )


def test_padding_is_no_data() -> None:
    x, w = poisoned([[[None, None, 1.0]]]), torch.ones(1, 1, 3).double()
    assert_entries(F.conv1d(x, w, padding=1), [[[None, 1.0, 1.0]]])
    # explicit padding is a value like any other
    assert_entries(F.conv1d(F.pad(x, (1, 1)), w), [[[0.0, 1.0, 1.0]]])


def test_without_batch_and_with_a_masked_bias() -> None:
    x, w = poisoned([[1.0, None, 3.0]], requires_grad=True), leaf([[1.0, 2.0]], [[3.0, 4.0]])
    bias = poisoned([None, 10.0], requires_grad=True)
    y = F.conv1d(x, w, bias)
    assert_entries(y, [[None, None], [13.0, 22.0]])
    assert gradient(y, bias).tolist() == [0.0, 2.0]
    assert gradient(y, x).tolist() == [[3.0, 0.0, 4.0]]
    assert_entries(F.conv1d(mg.masked(leaf([1.0, 1.0])), w, leaf(0.5, 0.5)), [[3.5], [7.5]])
    plain = F.conv1d(torch.ones(1, 1, 2).double(), w, bias)
    assert_entries(plain, [[[None], [17.0]]])


def test_positional_arguments() -> None:
    x = poisoned([[[1.0, None, 3.0, 4.0]]])
    w = torch.ones(1, 1, 2).double()
    assert_entries(torch.conv1d(x, w, None, 2, 0, 1, 1), [[[1.0, 7.0]]])
    assert_entries(
        torch.conv_transpose1d(x, w, None, 2, 0, 0, 1, 1), [[[1.0, 1.0, None, None, 3.0, 3.0, 4.0, 4.0]]]
    )


def test_infinite_weights_without_partners() -> None:
    w = torch.tensor([[[inf, 1.0]]]).double()
    assert_entries(F.conv1d(poisoned([[[None, 2.0, None]]]), w), [[[2.0, inf]]])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.complex64])
def test_dtypes(dtype: torch.dtype) -> None:
    assert_entries(
        F.conv1d(poisoned([[[1, None, None]]], dtype), torch.ones(1, 1, 2, dtype=dtype)), [[[1, None]]], dtype
    )


def test_nothing_in_the_batch() -> None:
    assert F.conv2d(mg.masked(torch.ones(0, 2, 4, 4)), torch.ones(3, 2, 2, 2)).shape == (0, 3, 3, 3)


def test_modules_unmodified() -> None:
    x = mg.masked(torch.tensor([[[[1.0, nan], [nan, nan]]]]), torch.tensor([[[[1, 0], [0, 0]]]]).bool())
    for mode in ("zeros", "circular", "replicate", "reflect"):
        conv = nn.Conv2d(1, 2, 3, padding=1, padding_mode=mode)
        y = conv(x)
        y.sum().backward()
        assert conv.weight.grad.isfinite().all()
        assert conv.bias.grad.tolist() == [float(y.mask[0, 0].sum())] * 2
    assert (
        nn.ConvTranspose2d(1, 2, 2, stride=2)(x).mask[0, 0].tolist()
        == [[True] * 2 + [False] * 2] * 2 + [[False] * 4] * 2
    )
    assert_entries(
        nn.Conv1d(1, 1, 1)(mg.masked(torch.zeros(1, 1, 1), torch.zeros(1, 1, 1).bool())), [[[None]]]
    )


def test_time_first_is_refused_with_the_line_to_write() -> None:
    x, w, b = (
        mg.masked(torch.randn(4, 1, 2), on(1, 0, 1, 1)[:, None, None]),
        torch.randn(3, 2, 2),
        torch.zeros(2),
    )
    with pytest.raises(mg.UndefinedOnMaskedError, match=r"F.conv1d\(x.permute"):
        torch.conv_tbc(x, w, b, 1)
    plain = torch.randn(4, 1, 2)
    torch.testing.assert_close(
        torch.conv_tbc(plain, w, b, 1),
        F.conv1d(plain.permute(1, 2, 0), w.permute(2, 1, 0), b, padding=1).permute(2, 0, 1),
    )


def test_compiled_and_vectorised() -> None:
    x, w = poisoned([[[1.0, None, None, 4.0]]]), poisoned([[[1.0, None]], [[1.0, 2.0]]])

    def f(x: Any, w: Any) -> Any:
        return (
            F.conv1d(x, w, padding=1),
            F.conv_transpose1d(x, torch.ones(1, 2, 2).double(), stride=2),
            F.conv1d(x[0], torch.ones(1, 1, 2).double()),
        )

    for found, expected in zip(torch.compile(f, fullgraph=True, backend="eager")(x, w), f(x, w), strict=True):
        assert torch.equal(found.mask, expected.mask)
        torch.testing.assert_close(found.filled(0), expected.filled(0))
    many = torch.vmap(lambda x: F.conv1d(x, torch.ones(1, 1, 2).double()))(torch.stack([x, x]))
    assert_entries(many[1], [[[1.0, None, 4.0]]])


def test_second_derivatives() -> None:
    mask = torch.tensor([[[True, False, True, True]]])

    def f(entries: Tensor, kernel: Tensor) -> Tensor:
        x = mg.masked(torch.full((1, 1, 4), nan).double().masked_scatter(mask, entries), mask)
        return F.conv1d(x * x, kernel).filled(0.0)

    points = torch.randn(3).double().requires_grad_(), torch.randn(2, 1, 2).double().requires_grad_()
    assert torch.autograd.gradcheck(f, points)
    assert torch.autograd.gradgradcheck(f, points)


def test_an_exported_dilated_convolution_takes_any_length() -> None:
    class Dilated(nn.Module):
        def forward(self, values: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            found = F.conv1d(mg.masked(values, mask), torch.ones(1, 2, 3), padding=3, dilation=3)
            return found.filled(0.0), found.mask

    length = torch.export.Dim("length")
    values, mask = torch.randn(2, 2, 9), torch.rand(2, 2, 9) < 0.6
    exported = torch.export.export(Dilated(), (values, mask), dynamic_shapes=({2: length}, {2: length}))
    for n in (2, 9):
        given = values[..., :n], mask[..., :n]
        torch.testing.assert_close(exported.module()(*given), Dilated()(*given))
