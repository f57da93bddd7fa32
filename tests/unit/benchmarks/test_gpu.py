"""What ``make bench-gpu`` measures is right, and is written down; here on the CPU."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

from benchmarks import gpu
from maskgrad.kernels import KERNELS


@pytest.mark.compiled(per="elsewhere")  # formulas have tests of their own
def test_every_formula_that_has_a_case_is_checked_and_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = list(gpu.cases(48, "cpu"))
    assert all(KERNELS[name].fuses for name, *_ in every)
    monkeypatch.setattr(gpu, "cases", lambda *_: every[::5])  # each takes seconds to compile
    out = tmp_path / "gpu.csv"
    gpu.main(device="cpu", size=48, out=out)
    with out.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["kernel"] for row in rows] == [name for name, *_ in every[::5]]
    assert all(float(row["compiled"]) > 0 and float(row["copy"]) > 0 for row in rows)
    assert rows[0]["torch"]


def test_a_wrong_result_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    name, arguments, moved = next(iter(gpu.cases(48, "cpu")))
    monkeypatch.setattr(
        KERNELS[name], "backend", lambda _: lambda x, *_: (torch.zeros(x.shape[0]), torch.zeros(x.shape[0]))
    )
    with pytest.raises(AssertionError, match="masked_sum, compiled"):
        gpu.measured(name, arguments, moved, "cpu")
