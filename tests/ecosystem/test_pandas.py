"""pandas: nullable columns there and back."""

from __future__ import annotations

import operator

import pandas as pd
import pytest
import torch

import maskgrad as mg
from tests.ecosystem.truth import assert_operators_refused, assert_refused, garbage


def test_there_and_back() -> None:
    x, values, mask = garbage(6, 2)
    table = mg.interop.to_pandas(x, names=["a", "b"])
    assert table["a"].mean() == pytest.approx(values[:, 0][mask[:, 0]].mean().item())
    back = mg.from_pandas(table)
    assert torch.equal(back.mask, mask)
    torch.testing.assert_close(back.filled(0.0).float(), values)


def test_masked_tensors_refuse() -> None:
    x, _, _ = garbage(4, 2)
    table = pd.DataFrame({"a": [1, 2, 3, 4]})
    assert_refused(
        r"mg\.interop\.to_pandas\(x\)",
        lambda: pd.DataFrame(x),
        lambda: pd.Series(x[:, 0]),
        lambda: table.assign(b=x[:, 0]),
        lambda: table["a"].isin(x[:, 0]),
        lambda: table.groupby(x[:, 0]),
        lambda: table.loc.__setitem__((slice(None), "a"), x[:, 0]),
    )
    assert table["a"].tolist() == [1, 2, 3, 4]


def test_arithmetic_refuses() -> None:
    x, _, _ = garbage(4, 2)
    table = pd.DataFrame({"a": [1, 2, 3, 4]})
    others = (table["a"], pd.array([1, 2, None, 4], dtype="Int64"), table)
    for operand in (x, x[:, 0], x[0, 0]):
        words = r"mg\.from_pandas\(…\) for Masked.* mg\.interop\.to_pandas\(x\)"
        assert_operators_refused(
            words, operand, *others, functions=[operator.add, operator.eq, operator.and_]
        )
