"""As a pytree: two plain leaves, so that transformations need not know the class."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.func import grad, jacrev, jvp, vmap
from torch.utils import _pytree as pytree

import maskgrad as mg
from tests.poison import assert_entries, leaf, nan, on, poisoned


def test_the_leaves_are_values_and_mask() -> None:
    x = poisoned([1.0, None])
    leaves, spec = pytree.tree_flatten({"x": x})
    assert len(leaves) == 2
    assert leaves[1] is x.mask
    assert_entries(pytree.tree_unflatten(leaves, spec)["x"], [1.0, None])


def test_the_leaves_have_names() -> None:
    paths = [
        pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path({"x": poisoned([1.0, None])})[0]
    ]
    assert paths == ["['x'].values", "['x'].mask"]


def test_placeholders_pass_through() -> None:
    spec = pytree.tree_flatten(poisoned([1.0, None]))[1]
    assert "values=1" in repr(pytree.tree_unflatten([1, 2], spec))


def test_structures_are_equal_whatever_the_mask() -> None:
    assert pytree.tree_structure(poisoned([1.0, None])) == pytree.tree_structure(poisoned([[None]]))


def test_a_specification_can_be_written_to_a_file() -> None:
    spec = pytree.tree_structure((poisoned([1.0, None]), 1))
    assert pytree.treespec_loads(pytree.treespec_dumps(spec)) == spec


def test_vmap_over_rows() -> None:
    x = poisoned([[1.0, None, 3.0], [None, None, None]])
    assert_entries(vmap(lambda row: row.amax())(x), [3.0, None])
    assert_entries(vmap(lambda row: row.mean())(x), [2.0, nan])
    assert_entries(vmap(lambda row: row + 1, in_dims=1, out_dims=1)(x), [[2.0, None, 4.0], [None] * 3])


def test_vmap_over_masks_only() -> None:
    data = torch.tensor([1.0, nan, 3.0])
    sums = vmap(lambda mask: mg.masked(data, mask).sum())(on([1, 0, 1], [0, 0, 1], [0, 0, 0]))
    assert_entries(sums, [4.0, 3.0, 0.0])
    extremes = vmap(lambda mask: mg.masked(data, mask).amax())(on([1, 0, 1], [1, 0, 0], [0, 0, 0]))
    assert_entries(extremes, [3.0, 1.0, None])


def test_gradients_per_sample() -> None:
    weight = torch.tensor([1.0, 2.0], dtype=torch.float64)
    x = poisoned([[1.0, None], [3.0, 4.0], [None, None]])
    per_sample = vmap(grad(lambda w, row: (row * w).square().sum()), in_dims=(None, 0))(weight, x)
    assert_entries(per_sample, [[2.0, 0.0], [18.0, 64.0], [0.0, 0.0]])


def test_gradients_with_respect_to_the_data() -> None:
    data, mask = leaf([1.0, nan], [3.0, 4.0]).detach(), on([1, 0], [1, 1])
    rows = vmap(grad(lambda v, m: mg.masked(v, m).square().mean()))(data, mask)
    assert_entries(rows, [[2.0, 0.0], [3.0, 4.0]])


@pytest.mark.filterwarnings(
    "ignore:.torch.jit.script. is deprecated:DeprecationWarning"
)  # torch's, of itself
def test_forward_and_reverse_derivatives_agree() -> None:
    data, mask = torch.tensor([1.0, nan, 3.0]), on(1, 0, 1)

    def function(v: torch.Tensor) -> torch.Tensor:
        return (mg.masked(v, mask).exp() / 2).sum()

    value, along = jvp(function, (data,), (torch.tensor([1.0, nan, 0.0]),))
    assert_entries(along, torch.tensor(1.0).exp().item() / 2)
    assert_entries(jacrev(function)(data), [1.35914, 0.0, 10.04277], tol=1e-4)
    assert value.isfinite()


@pytest.mark.parametrize(
    "function", [lambda t: t[..., :1] if t.is_floating_point() else t, lambda t: t * 2, lambda t: t.float()]
)
def test_parts_that_do_not_fit_together_are_refused(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = poisoned([[1.0, None], [3.0, 4.0]])
    with pytest.raises(ValueError, match=r"the results do not match.* is_leaf=lambda x: isinstance"):
        pytree.tree_map(function, {"x": [x]})
    same = pytree.tree_map(lambda t: t.flip(0), x)
    assert_entries(same, [[3.0, 4.0], [1.0, None]])
