from __future__ import annotations

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from benchmarks.charts import scaling


def test_curves_are_drawn_in_the_order_of_their_places(tmp_path) -> None:
    figure = Figure()
    ax = scaling(
        {"ours": ([100, 10], [4.0, 1.0]), "theirs": ([10, 100], [2.0, 20.0])},
        figure.subplots(),
        bands={"ours": ([3.0, 0.5], [5.0, 2.0])},
        colors={"theirs": "#112233"},
        xlabel="entries",
        ylabel="time (ms)",
    )
    ours, theirs = ax.lines
    assert (list(ours.get_xdata()), list(ours.get_ydata())) == ([10, 100], [1.0, 4.0])
    assert to_hex(theirs.get_color()) == "#112233"
    assert ours.get_marker() != theirs.get_marker()
    vertices = {tuple(point) for point in ax.collections[0].get_paths()[0].vertices}
    assert {(10.0, 0.5), (10.0, 2.0), (100.0, 3.0), (100.0, 5.0)} <= vertices
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["ours", "theirs"]
    figure.savefig(tmp_path / "scaling.png")


@pytest.mark.parametrize(("slope", "start"), [(1.0, 2.0), (2.0, 0.2)])
def test_the_reference_ends_at_the_last_point(slope: float, start: float) -> None:
    ax = scaling({"ours": ([10, 100], [5.0, 20.0])}, Figure().subplots(), slope=slope)
    line = ax.lines[-1]
    assert list(line.get_xdata()) == [10, 100]
    assert list(line.get_ydata()) == pytest.approx([start, 20.0])
    assert line.get_label() == f"slope {slope:g}"


def test_nothing_to_draw(tmp_path) -> None:
    figure = Figure()
    ax = scaling({}, figure.subplots(), slope=1)
    assert ax.get_legend() is None
    assert not ax.lines
    figure.savefig(tmp_path / "empty.png")


@pytest.mark.parametrize("points", [([0, 1], [1.0, 1.0]), ([1, 2], [1.0, float("nan")])])
def test_a_number_without_a_logarithm_is_refused(points: tuple[list[float], list[float]]) -> None:
    with pytest.raises(ValueError, match=r"'ours' holds .*no logarithm"):
        scaling({"ours": points}, Figure().subplots())


def test_a_value_for_each_place() -> None:
    with pytest.raises(ValueError, match="2 places and 1 values"):
        scaling({"ours": ([1, 2], [1.0])}, Figure().subplots())
