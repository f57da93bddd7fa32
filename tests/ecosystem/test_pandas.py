"""pandas: nullable columns there and back."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
import torch

import maskgrad as mg
from tests.ecosystem.rows import one_line, refused
from tests.ecosystem.truth import garbage


@one_line("pandas", "tables and columns", "`mg.interop.to_pandas(x)`, `mg.from_pandas(table)`")
def test_there_and_back() -> None:
    x, values, mask = garbage(6, 2)
    table = mg.interop.to_pandas(x, names=["a", "b"])
    assert torch.equal(torch.tensor(table.notna().to_numpy()), mask)
    assert table["a"].mean() == pytest.approx(values[:, 0][mask[:, 0]].mean().item())
    back = mg.from_pandas(table)
    assert torch.equal(back.mask, mask)
    torch.testing.assert_close(back.filled(0.0).float(), values)


@refused(
    "pandas",
    "MaskedTensors in `DataFrame`, `Series`, `isin`, `groupby`, assignments",
    "`mg.interop.to_pandas(x)`",
)
def test_masked_tensors_refuse() -> None:
    x, _, _ = garbage(4, 2)
    table = pd.DataFrame({"a": [1, 2, 3, 4]})
    calls: list[Any] = [
        lambda: pd.DataFrame(x),
        lambda: pd.Series(x[:, 0]),
        lambda: table.assign(b=x[:, 0]),
        lambda: table["a"].isin(x[:, 0]),
        lambda: table.groupby(x[:, 0]),
        lambda: table.loc.__setitem__((slice(None), "a"), x[:, 0]),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=r"mg\.interop\.to_pandas\(x\)"):
            call()
    assert table["a"].tolist() == [1, 2, 3, 4]


OPERANDS = {
    "series": pd.Series([1.0, 2.0, 3.0, 4.0]),
    "array": pd.array([1, 2, None, 4], dtype="Int64"),
    "table": pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]}),
}


@refused(
    "pandas",
    "arithmetic and comparisons with MaskedTensors, in both orders",
    "`mg.from_pandas(series)`, `mg.interop.to_pandas(x)`",
)
@pytest.mark.parametrize("kind", OPERANDS)
@pytest.mark.parametrize("function", [operator.add, operator.eq, operator.and_])
def test_arithmetic_refuses(function: Callable[[Any, Any], Any], kind: str) -> None:
    other, (x, _, _) = OPERANDS[kind], garbage(4, 2)
    for operand in (x, x[:, 0], x[0, 0]):
        for call in (lambda y: function(other, y), lambda y: function(y, other)):
            with pytest.raises(
                TypeError, match=r"mg\.from_pandas\(…\) for Masked.* mg\.interop\.to_pandas\(x\)"
            ):
                call(operand)
