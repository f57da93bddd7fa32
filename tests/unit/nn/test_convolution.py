"""Convolutions with a choice of what is specified: against loops over windows, and sequences alone."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import maskgrad as mg
from tests.poison import assert_entries, inf, nan, poisoned
from tests.unit.semantics.windows import FORWARD, by_windows, forward_table, middles_of


@pytest.mark.parametrize("masked", ["input", "weight", "both"])
@pytest.mark.parametrize("geometry", FORWARD)
@pytest.mark.parametrize("rule", ["any", "center", "all"])
def test_rules_of_what_is_specified(rule: Any, geometry: dict[str, Any], masked: str) -> None:
    groups = geometry.get("groups", 1)
    table = forward_table(6, 3, **geometry)
    middles = middles_of(6, 3, **geometry) if rule == "center" else None
    for density, garbage in itertools.product((0.8, 0.3), (nan, inf)):
        masks = [
            torch.rand(s) < density if masked in (name, "both") else torch.ones(s).bool()
            for s, name in zip(((2, 4, 6), (6, 4 // groups, 3)), ("input", "weight"), strict=True)
        ]
        x, w = (torch.where(m, torch.randn(m.shape).double(), garbage).requires_grad_() for m in masks)
        parts = [
            mg.masked(v, m) if masked in (name, "both") else v
            for v, m, name in zip((x, w), masks, ("input", "weight"), strict=True)
        ]
        found = mg.nn.functional.conv1d(*parts, **geometry, specified=rule)
        expected, known = by_windows(x, masks[0], w, masks[1], groups, table, rule, middles)
        assert torch.equal(found.mask, known)
        torch.testing.assert_close(found.filled(0), torch.where(known, expected, 0))
        noise = torch.randn(known.shape).double()
        zero = sum(0 * v[m].sum() for v, m in zip((x, w), masks, strict=True))
        wanted = torch.autograd.grad((torch.where(known, expected, 0) * noise).sum() + zero, (x, w))
        torch.testing.assert_close(torch.autograd.grad((found.filled(0) * noise).sum(), (x, w)), wanted)


@pytest.mark.parametrize(("rule", "density"), [("center", 0.3), ("all", 0.95)])
def test_rules_in_two_and_three_dimensions(rule: Any, density: float) -> None:
    for spatial, groups in itertools.product((2, 3), (1, 2)):
        kernel, options = (3, 2, 1)[:spatial], {"padding": (1, 0, 2)[:spatial], "stride": (1, 2, 1)[:spatial]}
        layer = getattr(mg.nn, f"Conv{spatial}d")(4, 4, kernel, groups=groups, specified=rule, **options)
        sizes = (5, 6, 3)[:spatial]
        mask = torch.rand(2, 4, *sizes) < density
        y = layer(mg.masked(torch.where(mask, torch.randn(mask.shape), nan), mask))
        whole = layer(torch.ones(2, 4, *sizes))
        assert y.shape == whole.shape
        plain = getattr(F, f"conv{spatial}d")
        kinds = mask.unflatten(1, (groups, -1))
        ones = torch.ones(groups, 1, *kernel)
        if rule == "all":
            missing = plain((~kinds.all(2)).float(), ones, groups=groups, **options)
            expected = missing == 0
        else:
            tap = torch.zeros_like(ones)
            tap[(..., *[(k - 1) // 2 for k in kernel])] = 1
            inside = plain(torch.ones(1, groups, *sizes), tap, groups=groups, **options)
            products = plain(kinds.any(2).float(), ones, groups=groups, **options)
            windows = plain(torch.ones(1, groups, *sizes), ones, groups=groups, **options)
            at_middle = (plain(kinds.any(2).float(), tap, groups=groups, **options) > 0) | (inside == 0)
            expected = at_middle & ((products > 0) | (windows == 0))
        assert torch.equal(y.mask, expected.repeat_interleave(4 // groups, 1))
        assert not y.mask.all()
        assert y.mask.any()


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_masks_that_repeat_have_the_results_of_masks_that_do_not(dims: int) -> None:
    """Windows are looked at on the mask's smallest shape; compared with all products, counted in full."""
    shape = (2, 4, *range(7, 7 - dims, -1))
    repeating = [
        (2, 1, *shape[2:]),
        (1, 1, *shape[2:]),
        (2, 1, *(1,) * dims),
        (2, 4, *(1,) * dims),
        (1, 4, *shape[2:]),
    ]
    geometries = [
        {},
        {"padding": 1, "stride": 2},
        {"padding": 4, "dilation": 2},  # windows without data
        {"padding": 1, "dilation": 5, "groups": 2},
        {"padding": "same", "groups": 2},
    ]
    apply, own = getattr(F, f"conv{dims}d"), getattr(mg.nn.functional, f"conv{dims}d")
    for few, geometry in itertools.product(repeating, geometries):
        mask = (torch.rand(few) < 0.5).expand(shape)
        weight = torch.ones(6, 4 // geometry.get("groups", 1), *(2 if "dilation" in geometry else 3,) * dims)
        every, some = apply(torch.ones(shape), weight, **geometry), apply(mask.float(), weight, **geometry)
        x = mg.masked(torch.where(mask, 1.0, nan), mask)
        known = (some > 0.5) | (every < 0.5)
        found, whole = apply(x, weight, **geometry), own(x, weight, **geometry, specified="all")
        assert torch.equal(found.mask, known)
        assert torch.equal(found.filled(0), some)
        assert torch.equal(whole.mask, known & (every - some < 0.5))
        assert torch.equal(whole.filled(0), torch.where(whole.mask, some, 0))


def test_functions_have_the_rules_of_the_layers() -> None:
    functional = mg.nn.functional
    x = poisoned([[1.0, 2.0, None, None]], requires_grad=True)
    w = torch.ones(1, 1, 3).double()
    assert_entries(functional.conv1d(x, w, padding=1, specified="center"), [[3.0, 3.0, None, None]])
    assert_entries(functional.conv1d(x, w, None, 1, 1, 1, 1, specified="all"), [[3.0, None, None, None]])
    with pytest.raises(
        ValueError, match="specified must be 'any', 'center', 'all' or 'sequence', found 'middle'"
    ):
        functional.conv1d(x, w, specified="middle")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="found 'same'"):
        mg.nn.Conv1d(1, 1, 3, specified="same")  # type: ignore[arg-type]
    assert functional.conv1d(torch.ones(1, 1, 4), torch.ones(1, 1, 3), specified="center").tolist() == [
        [[3.0, 3.0]]
    ]

    def loss(values: Tensor) -> Tensor:
        y = functional.conv1d(mg.masked(values, x.mask), w, padding=1, specified="center")
        return (y**2).sum()  # type: ignore[no-any-return]

    values = torch.randn(1, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(loss, values)
    assert torch.autograd.gradgradcheck(loss, values)
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    assert compiled(values) == loss(values)
    batch = torch.randn(3, 1, 4, dtype=torch.float64)
    torch.testing.assert_close(torch.func.vmap(loss)(batch), torch.stack([loss(v) for v in batch]))
    layer = mg.nn.Conv1d(1, 1, 3, padding=1, padding_mode="circular")
    assert "specified='center'" in repr(layer)
    again = pickle.loads(pickle.dumps(layer))
    assert again.specified == "center"
    assert again(
        mg.masked(torch.ones(1, 1, 4), torch.tensor([[[True, True, False, False]]]))
    ).mask.tolist() == [[[True, True, False, False]]]
    assert layer.load_state_dict(nn.Conv1d(1, 1, 3).state_dict())
