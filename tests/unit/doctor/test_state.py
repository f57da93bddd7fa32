"""What an examination finds in the process, and puts back."""

from __future__ import annotations

import pytest
import torch

from maskgrad.doctor.state import objects_with_state


def test_tensors_that_autograd_forbids_are_no_leaves() -> None:
    """All objects of the process are looked at, and some raise when they are asked."""
    base = torch.ones(2, requires_grad=True) * 1
    first, second = base.unbind()
    base.mul_(2)
    with pytest.raises(RuntimeError, match="Unbind"):
        _ = second.is_leaf
    leaves, _, _ = objects_with_state()
    assert not any(leaf is first or leaf is second for leaf in leaves)
