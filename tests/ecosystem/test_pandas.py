"""pandas: nullable columns there and back."""

from __future__ import annotations

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


@refused("pandas", "MaskedTensors in `DataFrame`, `Series` and arithmetic", "`mg.interop.to_pandas(x)`")
def test_masked_tensors_refuse() -> None:
    x, _, _ = garbage(4, 2)
    calls: list[Any] = [
        lambda: pd.DataFrame(x),
        lambda: pd.DataFrame({"a": x[:, 0]}),
        lambda: pd.Series(x[:, 0]),
        lambda: pd.DataFrame({"a": [1, 2, 3, 4]}).assign(b=x[:, 0]),
        lambda: pd.isna(x),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=r"mg\.interop\.to_pandas\(x\)"):
            call()
    with pytest.raises(TypeError):
        pd.Series([1.0, 2.0, 3.0, 4.0]) + x[:, 0]
