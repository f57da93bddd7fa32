"""Every registered operator keeps the promises of its schema; suites ask those that they call themselves."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from maskgrad.kernels import KERNELS
from maskgrad.kernels.selection import use_kernels
from tests.unit.kernels.suite import KernelSuite

OPS = torch.ops.maskgrad
Sample = tuple[str, tuple[Any, ...], dict[str, Any]]


def others() -> list[Sample]:
    """Calls of operators that no suite makes: name, arguments, keyword arguments."""
    mask = torch.rand(6, 5, 4) < 0.5
    return [
        ("masked_expand", (torch.randn(1, 4), mask, torch.bfloat16), {}),
        ("segment_prod", (torch.randn(6, 2, requires_grad=True), torch.tensor([0, 2, 2, 6]), None), {}),
    ]


def suites(base: type[KernelSuite] = KernelSuite) -> Iterator[type[KernelSuite]]:
    for module in Path(__file__).parent.glob("test_*.py"):
        importlib.import_module(f"{__package__}.{module.stem}")
    for derived in base.__subclasses__():
        if hasattr(derived, "kernel"):
            yield derived
        yield from suites(derived)


@functools.cache
def samples() -> list[Sample]:
    """Calls of every operator."""
    made = (call for suite in suites() for call in suite().calls())
    return [*others(), *(call for call in made if KERNELS[call[0]].is_operator)]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # opcheck's own
@pytest.mark.parametrize("number", range(len(others())))
def test_other_operators_keep_the_promises_of_their_schemas(number: int) -> None:
    name, args, kwargs = others()[number]
    torch.library.opcheck(getattr(OPS, name).default, args, kwargs)


def test_every_kernel_has_a_reference_a_compiled_body_and_a_sample() -> None:
    for name, kernel in KERNELS.items():
        assert kernel.name == name
        assert callable(kernel.reference)
        assert not kernel.has_loops or callable(kernel.backend("cpu"))
    operators = {name for name, kernel in KERNELS.items() if kernel.has_loops and kernel.is_operator}
    assert operators <= {name for name, _, _ in samples()}


def test_results_with_a_gradient_may_be_written_to():
    with use_kernels("cpu"):
        for name, args, kwargs in samples():
            found = getattr(OPS, name)(*args, **kwargs)
            for result in found if isinstance(found, (tuple, list)) else (found,):
                if isinstance(result, torch.Tensor):  # PyTorch refuses writes to views made by an operator
                    assert not result.requires_grad or not result._is_view(), name


def test_every_operator_runs_where_there_is_no_compiled_body():
    for name, args, kwargs in samples():
        moved = [a.detach().to("meta") if isinstance(a, torch.Tensor) else a for a in args]
        options = {k: v.to("meta") if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()}
        getattr(OPS, name)(*moved, **options)


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
    for kernel in KERNELS.values():
        assert kernel.__doc__ == kernel.reference.__doc__
        assert kernel.__doc__
