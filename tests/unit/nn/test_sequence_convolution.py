"""``specified="sequence"``: a convolution of padded and of jagged sequences, against each of them alone."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from tests.poison import inf, nan

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")

LENGTHS = [5, 0, 2, 9, 1, 3]
FORWARD: list[dict[str, Any]] = [
    {}, {"padding": 2}, {"padding": 1, "stride": 2}, {"padding": 6}, {"dilation": 2, "padding": 3}, {"padding": "same"},
    {"padding": "valid"}, {"groups": 2, "padding": 1}, {"stride": 3, "dilation": 2, "groups": 2, "padding": 1},
    {"stride": 5}, {"padding": "same", "dilation": 3},
]  # fmt: skip
TRANSPOSED: list[dict[str, Any]] = [
    {}, {"stride": 2}, {"stride": 3, "padding": 1, "output_padding": 2}, {"dilation": 2, "padding": 2},
    {"groups": 2, "stride": 4, "output_padding": 3}, {"padding": 3}, {"padding": 3, "stride": 2},
]  # fmt: skip


def batch(
    lengths: list[int], garbage: float, layout: torch.layout
) -> tuple[list[Tensor], Tensor, mg.MaskedTensor]:
    parts = [torch.randn(4, length, dtype=torch.float64, requires_grad=True) for length in lengths]
    data = torch.full((len(lengths), 4, 9), garbage, dtype=torch.float64)
    for row, part in zip(data, parts, strict=True):
        row[:, : part.shape[1]] = part.detach()
    data.requires_grad_()
    x = mg.from_lengths(data, torch.tensor(lengths), dim=2)
    return parts, data, x.to_jagged(2) if layout == torch.jagged else x


def alone(layer: Any, part: Tensor) -> Tensor | None:
    """The oracle; None for a sequence that is empty, or that PyTorch refuses."""
    try:
        return layer(part[None])[0] if part.shape[1] else None
    except RuntimeError:
        return None


def check(layer: Any, lengths: list[int], garbage: float, layout: torch.layout) -> None:
    parts, data, x = batch(lengths, garbage, layout)
    found = layer(x)
    assert found.layout == layout
    noise = torch.randn(found.shape, dtype=torch.float64)
    params = list(layer.parameters())
    total = sum(0 * leaf.sum() for leaf in (*parts, *params))
    for b, part in enumerate(parts):
        expected = alone(layer, part)
        size = 0 if expected is None else expected.shape[1]
        assert found.mask[b, :, :size].all()
        assert not found.mask[b, :, size:].any()
        if expected is not None:
            torch.testing.assert_close(found.filled(0.0)[b, :, :size], expected)
            total = total + (expected * noise[b, :, :size]).sum()
    right = torch.autograd.grad(total, [*parts, *params])
    grads = torch.autograd.grad((found.filled(0.0) * noise).sum(), [data, *params])
    for row, part, wanted in zip(grads[0], parts, right, strict=False):
        torch.testing.assert_close(row[:, : part.shape[1]], wanted)
        assert not row[:, part.shape[1] :].any()
    torch.testing.assert_close(grads[1:], right[len(parts) :])


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
@pytest.mark.parametrize("geometry", FORWARD, ids=str)
def test_every_sequence_as_if_it_were_alone(geometry: dict[str, Any], layout: torch.layout) -> None:
    for kernel, garbage in itertools.product((1, 3, 4), (nan, inf)):
        layer = mg.nn.Conv1d(4, 6, kernel, **geometry, specified="sequence", dtype=torch.float64)
        for lengths in (LENGTHS, [0, 0], [9, 9]):
            check(layer, lengths, garbage, layout)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
@pytest.mark.parametrize("geometry", TRANSPOSED, ids=str)
def test_a_transposed_convolution_sees_each_sequence_alone(
    geometry: dict[str, Any], layout: torch.layout
) -> None:
    for kernel, bias in ((1, True), (3, False), (4, True)):
        layer = mg.nn.ConvTranspose1d(4, 6, kernel, bias=bias, **geometry, dtype=torch.float64)
        check(layer, LENGTHS, nan, layout)


def test_samples_of_two_dimensions() -> None:
    """Spectrograms of different lengths, and images of different sizes."""
    layer = mg.nn.Conv2d(1, 2, 3, stride=2, padding=(1, 0), specified="sequence")
    layer = layer.double()
    sizes = [(5, 6), (3, 7), (2, 2), (0, 4), (7, 7)]
    data = torch.full((5, 1, 7, 7), nan, dtype=torch.float64)
    mask = torch.zeros_like(data, dtype=torch.bool)
    parts = [torch.randn(1, *size, dtype=torch.float64, requires_grad=True) for size in sizes]
    for row, known, part in zip(data, mask, parts, strict=True):
        row[:, : part.shape[1], : part.shape[2]] = part.detach()
        known[:, : part.shape[1], : part.shape[2]] = True
    found = layer(mg.masked(data.requires_grad_(), mask))
    for b, part in enumerate(parts):
        expected = alone(layer, part) if part.numel() else None
        if expected is not None and expected.shape[2]:
            torch.testing.assert_close(found[b].compressed(), expected.flatten())
        else:
            assert not found.mask[b].any()
    (grad,) = torch.autograd.grad(found.sum(), data)
    assert grad.isfinite().all()
    assert not grad[~mask].any()


def test_masked_weights_and_one_sample() -> None:
    weight = torch.randn(2, 1, 3, dtype=torch.float64)
    taps = torch.tensor([[[True, False, False]], [[True, True, True]]])
    conv = mg.nn.functional.conv1d
    x = mg.from_lengths(torch.randn(3, 1, 6, dtype=torch.float64), torch.tensor([4, 0, 6]), dim=2)
    found = conv(x, mg.masked(weight, taps), padding=2, specified="sequence")
    for b, length in ((0, 4), (2, 6)):
        row = x.filled(0.0)[b : b + 1, :, :length]
        expected = conv(mg.masked(row, torch.ones_like(row) > 0), mg.masked(weight, taps), padding=2)
        assert torch.equal(found.mask[b, :, : length + 2], expected.mask[0])
        torch.testing.assert_close(found.filled(0.0)[b, :, : length + 2], expected.filled(0.0)[0])
    assert not found.mask[1].any()
    assert conv(x[0], weight, specified="sequence").mask.tolist() == [[True, True, False, False]] * 2
    jagged = conv(x.to_jagged(2), mg.masked(weight, taps), padding=2, specified="sequence")
    assert torch.equal(jagged, found)


def test_masks_with_holes_and_other_rules_are_refused() -> None:
    weight = torch.ones(1, 2, 3)
    holes = torch.tensor([[[1, 0, 1, 1]] * 2, [[1, 1, 1, 0]] * 2]).bool()
    parts = torch.tensor([[[1, 1, 1, 1], [1, 1, 1, 0]]]).bool()
    for mask in (holes, parts):
        x = mg.masked(torch.ones(mask.shape), mask)
        with pytest.raises(mg.UndefinedOnMaskedError, match=r'this mask has holes.*specified="any"'):
            mg.nn.functional.conv1d(x, weight, specified="sequence")
    with pytest.raises(ValueError, match="specified must be 'any' or 'sequence', found 'center'"):
        mg.nn.ConvTranspose1d(1, 1, 3, specified="center")
    with pytest.raises(ValueError, match='specified="center"'):
        mg.nn.Conv1d(1, 1, 3, padding=1, padding_mode="circular", specified="sequence")
    jagged = mg.from_lengths(torch.ones(2, 2, 4), torch.tensor([3, 1]), dim=2).to_jagged(2)
    for options in (
        {"padding": "same", "stride": 2},
        {"padding": -1},
        {"stride": 0},
        {"groups": 3},
        {"dilation": 3},
    ):
        with pytest.raises(RuntimeError):
            mg.nn.functional.conv1d(jagged, weight, **options, specified="sequence")  # type: ignore[arg-type]


def test_second_derivatives_halves_and_graphs() -> None:
    layer = mg.nn.Conv1d(1, 2, 3, padding=1, specified="sequence", dtype=torch.float64)
    lengths = torch.tensor([3, 0, 1])

    def loss(values: Tensor, jagged: bool) -> Tensor:
        x = mg.from_lengths(values, lengths, dim=2)
        return (layer(x.to_jagged(2) if jagged else x) ** 3).sum()  # type: ignore[no-any-return]

    values = torch.randn(3, 1, 4, dtype=torch.float64, requires_grad=True)
    for jagged in (False, True):
        assert torch.autograd.gradcheck(loss, (values, jagged))
        assert torch.autograd.gradgradcheck(loss, (values, jagged))
    layers = [
        mg.nn.Conv1d(4, 2, 3, stride=2, padding=1, specified="sequence"),
        mg.nn.ConvTranspose1d(4, 2, 3, stride=2),
    ]
    data = torch.randn(3, 4, 6)
    for module in layers:
        assert "specified='sequence'" in repr(module)
        for x in (mg.from_lengths(data, lengths, dim=2), mg.from_lengths(data, lengths, dim=2).to_jagged(2)):
            eager = module(x)
            torch._dynamo.reset()
            compiled: Any = torch.compile(module, backend="aot_eager", fullgraph=True)(x)
            assert torch.equal(compiled.mask, eager.mask)
            torch.testing.assert_close(compiled.filled(0.0), eager.filled(0.0))
        half = module.to(torch.bfloat16)(x.to(torch.bfloat16))
        assert half.dtype == torch.bfloat16
        torch.testing.assert_close(half.float().filled(0.0), eager.filled(0.0), rtol=0.05, atol=0.05)
