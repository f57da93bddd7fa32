from __future__ import annotations

from matplotlib.figure import Figure

import maskgrad as mg


def test_one_curve_for_each_series_and_a_level(tmp_path) -> None:
    figure = Figure()
    ax = mg.plot.curves(
        {"training": [3.0, 2.0, 1.0], "held out": [3.0, 2.5]},
        figure.subplots(),
        title="t",
        ylabel="RMSE (stars)",
        level=("baseline", 2.2),
    )
    training, held_out, level = ax.lines
    assert list(training.get_xdata()) == [1, 2, 3]
    assert list(held_out.get_ydata()) == [3.0, 2.5]
    assert list(level.get_ydata()) == [2.2, 2.2]
    # told apart without colour, too
    assert training.get_linestyle() != held_out.get_linestyle()
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["training", "held out", "baseline"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("epoch", "RMSE (stars)")
    figure.savefig(tmp_path / "curves.png")


def test_a_single_epoch_can_be_seen_and_no_curves_have_no_legend() -> None:
    ax = mg.plot.curves({"training": [1.0]}, Figure().subplots(), legend=False)
    assert ax.lines[0].get_marker() == "o"
    assert ax.get_legend() is None
    assert mg.plot.curves({}, Figure().subplots()).get_legend() is None
