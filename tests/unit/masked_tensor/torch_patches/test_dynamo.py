"""Dynamo's tables are completed when, and only when, Dynamo is imported; what its guards look at in each call."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import maskgrad as mg
from maskgrad.semantics.losses.adding_up import adding_up


def run(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)


def test_dynamo_is_not_imported_for_it() -> None:
    run("import sys, maskgrad; assert 'torch._dynamo' not in sys.modules")


@pytest.mark.parametrize("came", ["before", "after"])
def test_the_tables_are_completed_and_nothing_waits_for_another_module(came: str) -> None:
    """After Dynamo is imported, the list of finders is what it was before maskgrad."""
    imports = ["import maskgrad", "import torch._dynamo"]
    run(
        "import operator, sys, torch\n"
        "before = [*sys.meta_path]\n"
        + "\n".join(imports if came == "after" else imports[::-1])
        + "\nfrom torch._dynamo.variables import builtin\n"
        "for product in (operator.matmul, operator.imatmul):\n"
        "    assert builtin.BUILTIN_TO_TENSOR_RFN_MAP[product] is torch.Tensor.__rmatmul__\n"
        "assert operator.matmul in builtin.BuiltinVariable._binops()\n"
        "assert [f for f in sys.meta_path if f.__class__.__name__ == '_Finder'] == []\n"
    )


@pytest.fixture
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def loss_of(values: Tensor, mask: Tensor) -> Tensor:
    return F.mse_loss(F.gelu(mg.masked(values, mask)), torch.zeros_like(values), reduction="sum")


@pytest.mark.usefixtures("fresh")
def test_functions_of_ours_are_not_guarded() -> None:
    names: list[str] = []

    def note(guards: Sequence[Any]) -> list[bool]:
        names.extend(guard.orig_guard.name for guard in guards)
        return [True] * len(guards)

    compiled: Any = torch.compile(loss_of, fullgraph=True, options={"guard_filter_fn": note})
    compiled(torch.ones(2, 2), torch.ones(2, 2, dtype=torch.bool))
    assert "L['values']" in names
    ours = {name for name in names if name.startswith("G['__import_maskgrad")}
    assert {name.rpartition(".")[2] for name in ours if ".torch" not in name} == {
        "WRITING",
        "_ADDERS",
        "_NOTED",
    }
    assert len(ours) < 40  # the rest is torch's


@pytest.mark.usefixtures("fresh")
def test_contexts_of_ours_are_guarded() -> None:
    compiled = torch.compile(loss_of, fullgraph=True, backend="eager")
    x, mask = torch.ones(2, 2), torch.ones(2, 2, dtype=torch.bool)
    once = compiled(x, mask).item()
    with adding_up(lambda *parts: tuple(2 * part for part in parts)):
        assert compiled(x, mask).item() == 2 * once
    assert compiled(x, mask).item() == once


function: Callable[[Tensor], Tensor] = torch.zeros_like  # one that our own functions call, too


@pytest.mark.usefixtures("fresh")
def test_what_users_replace_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = torch.compile(lambda x, mask: loss_of(x, mask) * function(x), fullgraph=True, backend="eager")
    x, mask = torch.ones(2, 2), torch.ones(2, 2, dtype=torch.bool)
    assert not compiled(x, mask).any()
    monkeypatch.setitem(globals(), "function", torch.ones_like)
    assert compiled(x, mask).all()


@pytest.mark.usefixtures("fresh")
def test_a_replaced_function_of_torch_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = torch.compile(
        lambda x, mask: mg.masked(x, mask).exp().filled(0.0), fullgraph=True, backend="eager"
    )
    x, mask = torch.ones(2, 2), torch.ones(2, 2, dtype=torch.bool)
    assert compiled(x, mask).all()
    where = torch.where
    monkeypatch.setattr(torch, "where", lambda *operands: 0 * where(*operands))
    assert not compiled(x, mask).any()
