"""Law 4: the bits of a sample do not depend on the batch, under ``use_kernels("invariant")``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import maskgrad as mg
from maskgrad.semantics.facts import Operation
from maskgrad.semantics.registry import OPERATIONS
from tests.effort import is_light
from tests.laws.any_type.evaluation import attempt
from tests.laws.batches import CHOSEN, FAMILIES, LAYOUTS, NOT_COVERED, WITHIN, Setting, batch, bits, broken

ELEMENTWISE = [operation for operation in OPERATIONS if operation.family in ("elementwise", "gating")]


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_no_operation_is_forgotten() -> None:
    named = {name for names in NOT_COVERED.values() for name in names.split()}
    known = {operation.name for operation in OPERATIONS if operation.family in FAMILIES}
    assert known == (set(WITHIN) | named) & known
    assert not named & set(WITHIN)


@pytest.mark.every
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", WITHIN)
def test_a_sample_has_the_same_bits_in_any_batch(name: str, layout: str) -> None:
    with mg.use_kernels("invariant"):
        for place, call in enumerate(WITHIN[name]):
            for dtype in (torch.float32,) if is_light() else (torch.float32, torch.bfloat16):
                found = broken(call, layout, dtype, is_light())
                assert not found, f"call {place} of {name}, {layout}, {dtype}: {found}"


@pytest.mark.parametrize("operation", ELEMENTWISE, ids=lambda operation: operation.name)
def test_so_has_what_is_computed_entry_by_entry(operation: Operation) -> None:
    function = operation.functions[0]
    with mg.use_kernels("invariant"):
        for layout in LAYOUTS:
            calls: list[Callable[[Any], Any]] = [
                function, lambda x: function(x, x), lambda x: function(x, x, x), lambda x: function(x, 2)
            ]  # fmt: skip
            _, probe = batch(layout, torch.float32, Setting([0]))
            call = next((c for c in calls if not isinstance(attempt(c, (probe,), {}), Exception)), None)
            if call is not None:
                assert broken(call, layout, torch.float32, True) == [], layout


def stepped(threads: int) -> list[Tensor]:
    """The gradients of parameters, which are sums over the samples, and the loss."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = torch.nn.ModuleList([torch.nn.Linear(24, 40), torch.nn.LayerNorm(40), torch.nn.Linear(40, 24)])
    _, x = batch(
        "padded", torch.get_default_dtype(), Setting(list(range(64)), 37, False, threads, float("nan"))
    )
    for layer in model:
        x = layer(x)
    loss = F.mse_loss(x, torch.zeros_like(x.filled(0.0)))
    loss.backward()
    grads = [parameter.grad for parameter in model.parameters()]
    return [loss.detach(), *[grad for grad in grads if grad is not None]]


def test_gradients_of_parameters_do_not_depend_on_the_number_of_threads() -> None:
    with mg.use_kernels("invariant"):
        one, two = stepped(1), stepped(2)
    assert all(torch.equal(bits(a), bits(b)) for a, b in zip(one, two, strict=True))


def test_values_are_those_of_the_references() -> None:
    setting = Setting(CHOSEN[7], 1, False)
    for name, calls in WITHIN.items():
        _, x = batch("rows", torch.float64, setting)
        results = []
        for body in ("reference", "invariant"):
            with mg.use_kernels(body):
                results.append(calls[0](x))
        for one, other in zip(*[r if isinstance(r, tuple) else (r,) for r in results], strict=True):
            torch.testing.assert_close(one.filled(0), other.filled(0), msg=name)
