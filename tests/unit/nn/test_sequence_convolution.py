"""``specified="sequence"``: a convolution of padded and of jagged sequences, against each of them alone."""

from __future__ import annotations

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


def alone(layer: Any, part: Tensor) -> Tensor:
    """The oracle; nothing of a sequence that is empty, or that PyTorch refuses."""
    try:
        return layer(part) if part.numel() else part[..., :0]  # type: ignore[no-any-return]
    except RuntimeError:
        return part[..., :0]


def check(layer: Any, lengths: list[int], garbage: float, layout: torch.layout) -> None:
    number = torch.tensor(lengths)
    known = (torch.arange(9) < number[:, None])[:, None].expand(-1, 4, 9)
    data = torch.where(known, torch.randn(known.shape).double(), garbage).requires_grad_()
    x = mg.from_lengths(data, number, dim=2)
    found = layer(x.to_jagged(2) if layout == torch.jagged else x)
    assert found.layout == layout
    noise, leaves = torch.randn(found.shape, dtype=torch.float64), [data, *layer.parameters()]
    total = sum(0 * leaf.sum() for leaf in leaves)
    for b, length in enumerate(lengths):
        expected = alone(layer, data[b, :, :length])
        size = expected.shape[1]
        assert found.mask[b].sum(1).tolist() == [size] * len(found.mask[b])
        if size:
            torch.testing.assert_close(found[b, :, :size].filled(nan), expected)
            total = total + (expected * noise[b, :, :size]).sum()
    right = torch.autograd.grad(total, leaves)
    grads = torch.autograd.grad((found.filled(0.0) * noise).sum(), leaves)
    torch.testing.assert_close(grads, right)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
@pytest.mark.parametrize("kind", ["Conv1d", "ConvTranspose1d"])
@pytest.mark.parametrize("kernel", [1, 3, 4])
def test_every_sequence_as_if_it_were_alone(kind: str, kernel: int, layout: torch.layout) -> None:
    for geometry in FORWARD if kind == "Conv1d" else TRANSPOSED:
        layer = getattr(mg.nn, kind)(
            4, 6, kernel, bias=kernel != 3, **geometry, specified="sequence", dtype=torch.float64
        )
        for lengths in (LENGTHS, [0, 0], [9, 9]):
            check(layer, lengths, inf if kernel == 3 else nan, layout)


def test_images_of_different_sizes() -> None:
    layer = mg.nn.Conv2d(1, 2, 3, stride=2, padding=(1, 0), specified="sequence")
    sizes = [(5, 6), (3, 7), (2, 2), (0, 4), (7, 7)]
    mask = torch.stack([(torch.arange(7) < h)[:, None] & (torch.arange(7) < w) for h, w in sizes])[:, None]
    data = torch.where(mask, torch.randn(mask.shape), nan).requires_grad_()
    found = layer(mg.masked(data, mask))
    expected = [alone(layer, data[b, :, :height, :width]) for b, (height, width) in enumerate(sizes)]
    for b, one in enumerate(expected):
        torch.testing.assert_close(found[b].compressed(), one.flatten())
    grads = [
        torch.autograd.grad(y, data, retain_graph=True)[0]
        for y in (found.sum(), sum(y.sum() for y in expected))
    ]
    torch.testing.assert_close(grads[0], torch.where(mask, grads[1], 0))


def test_masked_weights_and_one_sample() -> None:
    weight = torch.randn(2, 1, 3, dtype=torch.float64)
    masked = mg.masked(weight, torch.tensor([[[True, False, False]], [[True, True, True]]]))
    conv = mg.nn.functional.conv1d
    x = mg.from_lengths(torch.randn(3, 1, 6, dtype=torch.float64), torch.tensor([4, 0, 6]), dim=2)
    found = conv(x, masked, padding=2, specified="sequence")
    for b, length in ((0, 4), (2, 6)):
        row = x.filled(0.0)[b : b + 1, :, :length]
        expected = conv(mg.masked(row, torch.ones_like(row) > 0), masked, padding=2)
        wanted, got = expected[0].filled(nan), found[b, :, : length + 2].filled(nan)
        torch.testing.assert_close(got, wanted, equal_nan=True)
    assert not found.mask[1].any()
    assert conv(x[0], weight, specified="sequence").mask.tolist() == [[True, True, False, False]] * 2
    assert torch.equal(conv(x.to_jagged(2), masked, padding=2, specified="sequence"), found)


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
    for options in ({"padding": "same", "stride": 2}, {"padding": -1}, {"stride": 0}, {"dilation": 3}):
        with pytest.raises(RuntimeError):
            mg.nn.functional.conv1d(jagged, weight, **options, specified="sequence")  # type: ignore[arg-type]


def test_second_derivatives_halves_and_graphs() -> None:
    """Of padded sequences; tests/unit/semantics/jagged has graphs of the others."""
    lengths = torch.tensor([3, 0, 1])
    values = torch.randn(3, 1, 4, dtype=torch.float64, requires_grad=True)
    for module in (
        mg.nn.Conv1d(1, 2, 3, stride=2, padding=1, specified="sequence").double(),
        mg.nn.ConvTranspose1d(1, 2, 3, stride=2).double(),
    ):
        assert "specified='sequence'" in repr(module)
        x = mg.from_lengths(values, lengths, dim=2)
        for layout in (lambda t: t, lambda t: t.to_jagged(2)):
            assert torch.autograd.gradgradcheck(
                lambda v, m=module, to=layout: (m(to(mg.from_lengths(v, lengths, dim=2))) ** 3).sum(), values
            )
        eager = module(x)
        compiled: Any = torch.compile(module, backend="aot_eager", fullgraph=True)(x)
        half = module.to(torch.bfloat16)(x.to(torch.bfloat16))
        assert half.dtype == torch.bfloat16
        for found, near in ((compiled, 1e-9), (half.double(), 0.05)):
            assert torch.equal(found.mask, eager.mask)
            torch.testing.assert_close(found.filled(0.0), eager.filled(0.0), rtol=near, atol=near)
