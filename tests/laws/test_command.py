"""``python -m tests.laws``: what it finds in types that are right and wrong, and its exit status."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from tests.defaults import chosen_dtype
from tests.laws.any_type import Adapter, adapters
from tests.laws.any_type.command import QUICK, app
from tests.laws.any_type.judging import Verdict, calls_of, judge
from tests.laws.any_type.operator_database import entry_named

DOCS = Path(__file__).parents[2] / "docs"


pytestmark = pytest.mark.skipif(
    chosen_dtype(None) is not None, reason="its types compute in their own dtypes"
)


class Pair:
    """A masked type that knows the functions below; everything else it refuses."""

    def __init__(self, values: Tensor, mask: Tensor) -> None:
        self.values, self.mask = values, mask


def pairs(**functions: Any) -> Adapter:
    def call(function: Any, args: Any, kwargs: Any) -> Any:
        return functions[function.__name__](*args, **kwargs)

    return Adapter(Pair, lambda x: x.values, lambda x: x.mask, call)


def verdict(adapter: Adapter, name: str) -> Verdict:
    entry = entry_named(name)
    return judge(entry, calls_of(entry, QUICK), adapter, QUICK)


def total(x: Pair, dim: Any = None, **kwargs: Any) -> Pair | Tensor:
    values = torch.where(x.mask, x.values, 0)
    if dim is None:
        return values.sum(**kwargs)
    return Pair(values.sum(dim, **kwargs), x.mask.sum(dim, keepdim=kwargs.get("keepdim", False)) > 0)


def root(x: Pair) -> Pair:
    return Pair(torch.where(x.mask, x.values, 1).sqrt(), x.mask)


def refuses_gradients(x: Pair) -> Pair:
    if x.values.requires_grad:
        raise NotImplementedError
    return root(x)


def refuses_some_garbage(x: Pair) -> Pair:
    if x.values.isnan().any():
        raise ValueError("NaN")
    return root(x)


# torch.masked says so of each tensor
@pytest.mark.filterwarnings(
    "ignore:The PyTorch API of MaskedTensors", "ignore:It is not recommended to create"
)
def test_a_type_that_obeys_is_supported() -> None:
    adapter = pairs(sum=total, sqrt=root)
    assert verdict(adapter, "sum") == verdict(adapter, "sqrt") == Verdict("supported")
    assert verdict(adapter, "mean") == Verdict("refused")
    assert verdict(pairs(sqrt=refuses_gradients), "sqrt") == Verdict("values only")
    # a type may be a plain tensor, or send masked gradients
    missing = Adapter(
        lambda values, mask: torch.where(mask, values, torch.nan), lambda x: x, lambda x: ~x.isnan()
    )
    for each in (missing, adapters.torch_masked()):
        assert verdict(each, "exp") == Verdict("supported")


@pytest.mark.parametrize(
    ("name", "function", "law"),
    [
        # right forward; the NaN arises backward
        ("sqrt", lambda x: Pair(x.values.sqrt(), x.mask), "non-interference"),
        ("sqrt", refuses_some_garbage, "non-interference"),
        ("sqrt", lambda x: Pair(root(x).values, torch.zeros_like(x.mask)), "identity"),
        ("sqrt", lambda x: Pair(root(x).values.detach(), x.mask), "identity"),
        ("sqrt", lambda x: Pair(root(x).values.double(), x.mask), "identity"),
        ("sqrt", lambda x: Pair(root(x).values, x.mask[..., None]), "identity"),
        # entries under the mask count
        (
            "mean",
            lambda x, *dims, **options: torch.where(x.mask, x.values, 0).mean(*dims, **options),
            "deletion",
        ),
    ],
)
def test_what_is_broken_is_found(name: str, function: Any, law: str) -> None:
    found = verdict(pairs(**{name: function}), name)
    assert (found.status, found.law) == ("broken", law)
    assert found.case


# found by its name in this module
def multiplies_garbage_in() -> Adapter:
    return pairs(sum=lambda x, *args, **kwargs: (x.values * x.mask).sum(*args, **kwargs))


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments)


def test_the_command_prints_tables_and_writes_a_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = tmp_path / "table.md"
    result = run("--quick", "--family", "softmax", "--family", "scans", "--markdown", str(page))
    assert result.exit_code == 0, result.output
    assert re.search(r"total .* 16 .* 0 .* 0", result.output)
    assert "| softmax | 6 |  |  |\n| total | 16 | 0 | 0 |\n" in page.read_text(encoding="utf-8")
    monkeypatch.setitem(sys.modules, "types_of_mine", sys.modules[__name__])
    wrong = ("types_of_mine:multiplies_garbage_in", "--quick", "--family", "reductions")
    result = run(*wrong, "--markdown", str(page))
    assert result.exit_code == 1
    assert "multiplies_garbage_in: sum (non-interference): sample" in result.output
    assert "- sum (non-interference): sample" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere:at_all"], "No module named 'nowhere'"),
        (["torch"], "pass module:factory"),
        (["builtins:dict"], "returns a dict"),
        (["--family", "knitting"], "choose one of accumulation"),
    ],
)
def test_mistakes_in_the_arguments(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(re.sub(r"[│╭╮╰╯─]", "", result.output).split())


def test_the_page_agrees_with_the_table_of_coverage() -> None:
    totals = re.search(
        r"\| total \| (\d+) \| (\d+) \| 0 \|", (DOCS / "laws_table.md").read_text(encoding="utf-8")
    )
    coverage = (DOCS / "coverage.md").read_text(encoding="utf-8")
    assert totals is not None
    assert f"**{totals[1]} supported**" in coverage
    assert f"**{totals[2]} refused**" in coverage
