from __future__ import annotations

from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from examples.movielens.bars import bars


def test_bars_have_their_lengths_numbers_and_colours(tmp_path) -> None:
    figure = Figure()
    ax = bars(
        {"step": {"ours": 1.0, "theirs": 2.5}, "epoch": {"theirs": 9.0}},
        figure.subplots(),
        xlabel="time (ms)",
    )
    lengths = {to_hex(bar.get_facecolor()): [] for bar in ax.patches}
    for bar in ax.patches:
        lengths[to_hex(bar.get_facecolor())].append(bar.get_width())
    assert sorted(lengths.values()) == [[1.0], [2.5, 9.0]]
    assert sorted(text.get_text() for text in ax.texts) == ["1", "2.5", "9"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["step", "epoch"]
    assert ax.get_xlabel() == "time (ms)"
    figure.savefig(tmp_path / "bars.png")


def test_one_bar_each_needs_no_legend() -> None:
    assert bars({"a": {"x": 1.0}}, Figure().subplots()).get_legend() is None
