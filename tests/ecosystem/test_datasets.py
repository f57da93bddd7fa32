"""Hugging Face datasets: tables of Arrow, with null for what is unspecified."""

from __future__ import annotations

from datasets import Dataset, disable_caching, disable_progress_bars

import maskgrad as mg
from tests.ecosystem.truth import assert_refused, garbage

disable_progress_bars()
disable_caching()


def test_columns() -> None:
    x, _, _ = garbage(6)
    ds = Dataset.from_dict({"n": x.tolist()}).add_column("x", x)
    for name in ("n", "x"):
        assert mg.from_arrow(ds.data[name].combine_chunks()).tolist() == x.tolist()
        assert mg.from_nan(ds.with_format("torch")[:][name]).tolist() == x.tolist()


def test_masked_tensors_refuse() -> None:
    x, _, _ = garbage(4, 3)
    assert_refused(
        r"x\.tolist\(\)",
        lambda: Dataset.from_dict({"x": x}),
        lambda: Dataset.from_list([{"x": row} for row in x]),
        lambda: Dataset.from_dict({"n": [0, 1]}).map(lambda row: {"x": x[row["n"]]}),
    )
