"""What ``make bench-gpu`` measures is right, and is written down; here on the CPU."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks import gpu
from maskgrad.kernels import KERNELS


@pytest.mark.compiled(per="elsewhere")  # formulas have tests of their own
def test_formulas_are_checked_measured_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    every = list(gpu.cases(48, "cpu"))
    assert all(KERNELS[name].fuses for name, *_ in every)
    monkeypatch.setattr(gpu, "cases", lambda *_: every[::5])  # each takes seconds to compile
    gpu.main(device="cpu", size=48, out=tmp_path / "gpu.csv")
    with (tmp_path / "gpu.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["kernel"] for row in rows] == [name for name, *_ in every[::5]]
    assert all(float(row["compiled"]) > 0 and float(row["copy"]) > 0 and row["torch"] for row in rows)
