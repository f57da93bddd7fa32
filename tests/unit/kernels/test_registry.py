"""Every registered operator keeps the promises of its schema; every kernel is called as its reference is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from maskgrad.kernels import KERNELS
from maskgrad.kernels.selection import use_kernels
from tests.unit.kernels.suite import about

X, MASK, ROWS = torch.randn(6, 5, 4), torch.rand(6, 5, 4) < 0.5, torch.tensor([0, 2, 2, 6])
#: What follows the values in a call of each operator.
FOLLOWING: dict[str, tuple[Any, ...]] = {
    "masked_filling": (MASK, -7.0),
    "masked_sum": (MASK, (1,), False, None),
    "masked_mean": (MASK, (0, 2), True, None),
    "masked_expand": (MASK, torch.float64),
    "segment_prod": (ROWS, torch.randperm(6)),
    "masked_variance": (MASK, (1,), False, 1.0),
}


def calls(name: str) -> list[tuple[Any, ...]]:
    """Arguments of some calls; the gradient of a reduction has size 1 where it repeats."""
    x = X[:, :1] if name == "masked_expand" else X
    of_dtype = {torch.float32: x, torch.float16: x.movedim(0, -1).contiguous().movedim(-1, 0).half()}
    real = [
        (y.detach().requires_grad_(KERNELS[name].backward is not None), *FOLLOWING[name])
        for y in of_dtype.values()
    ]
    return [*real, (x.long(), *FOLLOWING[name])] if name in ("masked_sum", "segment_prod") else real


@pytest.mark.every
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # opcheck's own
@pytest.mark.parametrize("name", FOLLOWING)
def test_an_operator_keeps_the_promises_of_its_schema(name: str) -> None:
    operator = getattr(torch.ops.maskgrad, name)
    for args in calls(name):
        with about(args):
            torch.library.opcheck(operator.default, args)
            with use_kernels("cpu"):
                found = operator(*args)
            for result in found if isinstance(found, (tuple, list)) else (found,):
                # PyTorch refuses writes to views made by an operator
                assert not result.requires_grad or not result._is_view()
            # and runs where there is no compiled body
            operator(*(a.detach().to("meta") if isinstance(a, torch.Tensor) else a for a in args))


@pytest.mark.parametrize("body", ["reference", "cpu"])
def test_a_kernel_is_called_as_its_reference_is(body: str) -> None:
    values, mask = torch.randn(4, 3), torch.rand(4, 3) < 0.5
    kernel = KERNELS["masked_sum"]
    with use_kernels(body):
        expected = kernel(values, mask, (0,), False, None)
        assert torch.equal(kernel(values, mask, dim=(0,), keepdim=False)[0], expected[0])
        with pytest.raises(TypeError, match="missing a required argument: 'keepdim'"):
            kernel(values, mask, (0,))
        with pytest.raises(TypeError, match="unexpected keyword argument 'dims'"):
            kernel(values, mask, (0,), False, dims=1)
        with pytest.raises(TypeError, match="mask must be a Boolean tensor"):
            kernel(values, values, (0,), False)
    # the derivative of segment_prod is looked at with it
    operators = {name for name, kernel in KERNELS.items() if kernel.is_operator}
    assert operators == {*FOLLOWING, "segment_prod_backward"}
    for name, kernel in KERNELS.items():
        assert kernel.name == name
        assert kernel.__doc__ == kernel.reference.__doc__
        assert kernel.__doc__
        assert not kernel.has_loops or callable(kernel.backend("cpu"))
