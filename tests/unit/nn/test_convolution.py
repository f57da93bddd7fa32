"""Convolutions with a choice of what is specified: against loops over windows, and sequences alone."""

from __future__ import annotations

import itertools
import pickle
from functools import partial
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


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_windows_are_looked_at_on_the_smallest_shape_of_a_mask(dims: int) -> None:
    """Compared with all products, counted in full."""
    shape = (2, 4, *range(7, 7 - dims, -1))
    few = [
        shape,
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
        {"padding": 1, "dilation": 3, "groups": 2},
        {"padding": "same", "groups": 2},
    ]
    own = getattr(mg.nn.functional, f"conv{dims}d")
    for size, geometry in itertools.product(few, geometries):
        apply = partial(getattr(F, f"conv{dims}d"), **geometry)
        kernel = (3, 3 if "dilation" in geometry else 2, 3)[:dims]
        mask = (torch.rand(size) < 0.5).expand(shape)
        weight = torch.ones(6, 4 // geometry.get("groups", 1), *kernel)
        tap = torch.zeros_like(weight)
        tap[(..., *((k - 1) // 2 for k in kernel))] = 1
        every, some = (apply(x, weight) for x in (torch.ones(shape), mask.float()))
        inside, at_middle = (apply(x, tap) for x in (torch.ones(shape), mask.float()))
        x = mg.masked(torch.where(mask, 1.0, nan), mask)
        known = (some > 0.5) | (every < 0.5)
        for rule, also in (
            ("any", True),
            ("all", every - some < 0.5),
            ("center", (at_middle > 0.5) | (inside < 0.5)),
        ):
            found = own(x, weight, **geometry, specified=rule)
            assert torch.equal(found.mask, known & also)
            assert torch.equal(found.filled(0), torch.where(found.mask, some, 0))
        assert torch.equal(apply(x, weight).mask, known)


def test_functions_have_the_rules_of_the_layers() -> None:
    functional = mg.nn.functional
    x = poisoned([[1.0, 2.0, None, None]], requires_grad=True)
    w = torch.ones(1, 1, 3).double()
    assert_entries(functional.conv1d(x, w, padding=1, specified="center"), [[3.0, 3.0, None, None]])
    assert_entries(functional.conv1d(x, w, None, 1, 1, 1, 1, specified="all"), [[3.0, None, None, None]])
    words = "specified must be 'any', 'center', 'all' or 'sequence', found 'middle'"
    with pytest.raises(ValueError, match=words):
        functional.conv1d(x, w, specified="middle")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="found 'same'"):
        mg.nn.Conv1d(1, 1, 3, specified="same")  # type: ignore[arg-type]
    plain = functional.conv1d(torch.ones(1, 1, 4), torch.ones(1, 1, 3), specified="center")
    assert plain.tolist() == [[[3.0, 3.0]]]

    def loss(values: Tensor) -> Tensor:
        y = functional.conv1d(mg.masked(values, x.mask), w, padding=1, specified="center")
        return (y**2).sum()  # type: ignore[no-any-return]

    values = torch.randn(1, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(loss, values)
    assert torch.compile(loss, backend="aot_eager", fullgraph=True)(values) == loss(values)
    layer = mg.nn.Conv1d(1, 1, 3, padding=1, padding_mode="circular")
    assert "specified='center'" in repr(layer)
    again = pickle.loads(pickle.dumps(layer))
    half = mg.masked(torch.ones(1, 1, 4), torch.tensor([[[True, True, False, False]]]))
    assert torch.equal(again(half).mask, half.mask)
    assert layer.load_state_dict(nn.Conv1d(1, 1, 3).state_dict())
