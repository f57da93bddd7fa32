from __future__ import annotations

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from benchmarks.charts import dots


def test_a_name_has_one_colour_in_all_groups(tmp_path) -> None:
    figure = Figure()
    ax = dots(
        {"mean": {"a": 2.0, "b": 30.0}, "sum": {"b": 40.0}},
        figure.subplots(),
        level=("maskgrad", 1.0),
        log=True,
        colors={"b": "#112233"},
        title="t",
        xlabel="times as long",
    )
    a, b, level = ax.lines
    assert (list(a.get_xdata()), list(a.get_ydata())) == ([2.0], [0])
    assert (list(b.get_xdata()), list(b.get_ydata())) == ([30.0, 40.0], [0, 1])
    assert to_hex(b.get_color()) == "#112233"
    assert list(level.get_xdata()) == [1.0, 1.0]
    assert a.get_marker() != b.get_marker()
    assert ax.get_xscale() == "log"
    low, high = ax.get_ylim()
    assert low > high  # the first group on top
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a", "b", "maskgrad"]
    figure.savefig(tmp_path / "dots.png")


def test_one_name_needs_no_legend() -> None:
    ax = dots({"mean": {"a": 0.0}}, Figure().subplots())
    assert ax.get_legend() is None
    assert ax.get_xscale() == "linear"


def test_no_groups(tmp_path) -> None:
    figure = Figure()
    dots({}, figure.subplots())
    figure.savefig(tmp_path / "empty.png")


def test_a_number_without_a_logarithm_is_refused() -> None:
    with pytest.raises(ValueError, match="'a' of 'mean' is 0"):
        dots({"mean": {"a": 0.0}}, Figure().subplots(), log=True)
