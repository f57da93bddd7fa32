"""Storage: written through strides, and not laid out anew."""

from __future__ import annotations

import pytest
import torch

import maskgrad as mg
from tests.poison import on


def test_as_strided_scatter_has_the_derivative_that_torch_has_not() -> None:
    # torch 2.13 sends to x what belongs to the entries that were written over
    x, src = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 3), (2, 2)))
    mask = on([1, 0, 1], [1, 1, 0], [0, 1, 1])
    assert torch.autograd.gradcheck(
        lambda x, src: torch.as_strided_scatter(mg.masked(x, mask), src, (2, 2), (1, 2), 1).filled(0.0),
        (x, src),
    )


@pytest.mark.parametrize("resize", [lambda x: x.resize_(1), lambda x: x.resize_as_(torch.ones(1))])
def test_storage_is_not_laid_out_anew(resize) -> None:  # type: ignore[no-untyped-def]
    x = mg.masked(torch.ones(2), on(1, 0))
    with pytest.raises(mg.UndefinedOnMaskedError, match="reshape"):
        resize(x)
    assert x.tolist() == [1.0, None]
