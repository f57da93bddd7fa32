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
    """After Dynamo is imported, the list of finders is what it was before maskgrad."""
    imports = [
        "import maskgrad; assert ('torch._dynamo' in sys.modules) == came_before",
        "import torch._dynamo",
    ]
    code = (
        f"import operator, sys, torch; came_before = {came == 'before'}\n"
        "before = [*sys.meta_path]\n"
        + "\n".join(imports if came == "after" else imports[::-1])
        + "\nfrom torch._dynamo.variables import builtin\n"
        "for product in (operator.matmul, operator.imatmul):\n"
        "    assert builtin.BUILTIN_TO_TENSOR_RFN_MAP[product] is torch.Tensor.__rmatmul__\n"
        "assert operator.matmul in builtin.BuiltinVariable._binops()\n"
        "assert [f for f in sys.meta_path if f.__class__.__name__ == '_Finder'] == []\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def loss_of(values: Tensor, mask: Tensor) -> Tensor:
    return F.mse_loss(F.gelu(mg.masked(values, mask)), torch.zeros_like(values), reduction="sum")


function: Callable[[Tensor], Tensor] = torch.zeros_like  # one that our own functions call, too
X, MASK = torch.ones(2, 2), torch.ones(2, 2, dtype=torch.bool)


def test_contexts_of_ours_and_functions_that_are_replaced_are_guarded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.compiler.reset()
    compiled: Any = torch.compile(
        lambda x, mask: loss_of(x, mask) + function(x).sum(), fullgraph=True, backend="eager"
    )
    once = compiled(X, MASK).item()
    with adding_up(lambda *parts: tuple(2 * part for part in parts)):
        assert compiled(X, MASK).item() == 2 * once
    assert compiled(X, MASK).item() == once
    monkeypatch.setitem(globals(), "function", torch.ones_like)
    assert compiled(X, MASK).item() == once + 4
    where = torch.where
    monkeypatch.setattr(torch, "where", lambda *operands: 0 * where(*operands))
    assert compiled(X, MASK).item() != once + 4
