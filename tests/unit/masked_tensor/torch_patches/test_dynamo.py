"""Dynamo's tables are completed when, and only when, Dynamo is imported; what its guards look at in each call."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import maskgrad as mg
from maskgrad.semantics.losses.adding_up import adding_up


@pytest.mark.parametrize("came", ["before", "after"])
def test_the_tables_are_completed_and_nothing_waits_for_another_module(came: str) -> None:
    ours = f"import maskgrad; assert ('torch._dynamo' in sys.modules) == {came == 'before'}"
    code = (
        "import operator, sys, torch\n"
        + "\n".join([ours, "import torch._dynamo"][:: 1 if came == "after" else -1])
        + "\nfrom torch._dynamo.variables import builtin\n"
        "for product in (operator.matmul, operator.imatmul):\n"
        "    assert builtin.BUILTIN_TO_TENSOR_RFN_MAP[product] is torch.Tensor.__rmatmul__\n"
        "assert operator.matmul in builtin.BuiltinVariable._binops()\n"
        "assert [f for f in sys.meta_path if f.__class__.__name__ == '_Finder'] == []\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def look_up(guards: Any) -> list[bool]:
    """Fail for a guard on what our functions ask torch for, and nobody replaces."""
    asked = (".bool", ".float32", ".strided", "._C", ".compiler", ".is_grad_enabled")
    return [not guard.name.endswith(asked) or pytest.fail(guard.name) for guard in guards]


def loss_of(values: Tensor, mask: Tensor) -> Tensor:
    return F.mse_loss(F.gelu(mg.masked(values, mask)), torch.zeros_like(values), reduction="sum")


function: Callable[[Tensor], Tensor] = torch.zeros_like  # one that our own functions call, too
X, MASK = torch.ones(2, 2), torch.ones(2, 2, dtype=torch.bool)


def test_contexts_and_functions_that_are_replaced_are_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()

    @torch.compile(fullgraph=True, backend="eager", options={"guard_filter_fn": look_up})
    def compiled(x: Tensor, mask: Tensor) -> Tensor:
        return loss_of(x, mask) + function(x).sum()

    once = compiled(X, MASK).item()
    with adding_up(lambda *parts: tuple(2 * part for part in parts)):
        assert compiled(X, MASK).item() == 2 * once
    assert compiled(X, MASK).item() == once
    monkeypatch.setitem(globals(), "function", torch.ones_like)
    assert compiled(X, MASK).item() == once + 4
    monkeypatch.setattr(torch, "where", lambda *operands, where=torch.where: 0 * where(*operands))
    assert compiled(X, MASK).item() != once + 4
