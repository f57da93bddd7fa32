"""As a pytree: two plain leaves, so that transformations need not know the class."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.utils import _pytree as pytree

from tests.poison import assert_entries, poisoned


def test_the_leaves_are_values_and_mask_and_have_names() -> None:
    x = poisoned([1.0, None])
    leaves, spec = pytree.tree_flatten({"x": x})
    assert len(leaves) == 2
    assert leaves[1] is x.mask
    assert_entries(pytree.tree_unflatten(leaves, spec)["x"], [1.0, None])
    paths = [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path({"x": x})[0]]
    assert paths == ["['x'].values", "['x'].mask"]
    assert "values=1" in repr(pytree.tree_unflatten([1, 2], spec)["x"])  # placeholders
    assert spec == pytree.tree_structure({"x": poisoned([[None]])})
    assert pytree.treespec_loads(pytree.treespec_dumps(spec)) == spec


@pytest.mark.parametrize(
    "function", [lambda t: t[..., :1] if t.is_floating_point() else t, lambda t: t * 2, lambda t: t.float()]
)
def test_parts_that_do_not_fit_together_are_refused(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = poisoned([[1.0, None], [3.0, 4.0]])
    with pytest.raises(ValueError, match=r"the results do not match.* is_leaf=lambda x: isinstance"):
        pytree.tree_map(function, {"x": [x]})
    assert_entries(pytree.tree_map(lambda t: t.flip(0), x), [[3.0, 4.0], [1.0, None]])
