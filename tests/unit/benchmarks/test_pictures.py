from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib import image

from benchmarks.pictures import PICTURES, draw
from benchmarks.results import Row
from tests.unit.benchmarks.test_results import ROW

OURS = replace(ROW, note="")


def with_peers(row: Row, *peers: str) -> list[Row]:
    return [row, *(replace(row, peer=peer, ratio=2.0, median_ms=2 * row.median_ms) for peer in peers)]


def rows() -> list[Row]:
    found = []
    for density in (0.1, 0.5, 1.0):
        found += with_peers(replace(OURS, density=density), "torch.masked", "dense", "memory-copy")
    found += with_peers(replace(OURS, work="forward + backward", bytes=None), "torch.masked")
    for entries in (1000, 10**6):
        found += with_peers(replace(OURS, family="growth", entries=entries, median_ms=entries / 1e6), "where")
    for size in (4096, 65536):
        step = replace(OURS, family="updates", operation="SGD", work="step", note=f"{size} rows, each twice")
        found += with_peers(step, "torch.optim")
    found += with_peers(
        replace(OURS, family="steps", operation="SGD", note="8 parameters"), "torch.optim-fused"
    )
    found += with_peers(replace(OURS, family="models", operation="LSTM"), "by-hand")
    for note, shape in (("", "16x128x64"), ("growth", "16x128x64"), ("growth", "64x128x64")):
        batch = replace(
            OURS, family="ragged", operation="LSTM", shape=shape, note=note, median_ms=float(shape[:2])
        )
        found += with_peers(batch, "by-hand")
    return found + with_peers(replace(OURS, family="storage", note="COO"), "torch.sparse")


def test_every_picture_is_drawn(tmp_path: Path) -> None:
    drawn = list(draw(rows(), tmp_path))
    assert [path.stem for path in drawn] == list(PICTURES)
    for path in drawn:
        pixels = image.imread(path)
        assert pixels.std() > 0.01
        assert path.stat().st_size < 200_000


def test_a_picture_without_numbers_is_not_drawn(tmp_path: Path) -> None:
    assert list(draw([], tmp_path)) == []
    only_one = with_peers(replace(OURS, family="storage", note="COO"), "torch.sparse")
    assert [path.stem for path in draw(only_one, tmp_path)] == ["sparse"]


@pytest.mark.parametrize("name", ["density", "growth", "updates"])
def test_one_point_makes_no_curve(name: str) -> None:
    one_of_each = {row.case: row for row in rows() if row.density != 0.1 and row.density != 1.0}
    kept = [row for row in one_of_each.values() if "65536" not in row.note and row.entries != 1000]
    assert PICTURES[name](kept) is None


def test_curves_have_a_reference_slope_and_quartiles() -> None:
    drawn = PICTURES["growth"](rows())
    assert drawn is not None
    (ax,) = drawn.axes
    assert [line.get_label() for line in ax.lines] == ["maskgrad", "where", "slope 1"]
    assert len(ax.collections) == 2


def test_the_roofline_is_the_measured_copy() -> None:
    drawn = PICTURES["roofline"](rows())
    assert drawn is not None
    (ax,) = drawn.axes
    level = next(line for line in ax.lines if line.get_label() == "memory copy")
    copied = next(row for row in rows() if row.peer == "memory-copy").gigabytes_per_second
    assert list(level.get_xdata()) == pytest.approx([copied, copied])
