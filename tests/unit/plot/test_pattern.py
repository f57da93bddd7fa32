from __future__ import annotations

import sys

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

import maskgrad as mg
from maskgrad.plot.pattern import density


def test_density_counts_every_entry_once() -> None:
    mask = torch.rand(37, 101) < 0.3
    share = density(mask, (7, 10))
    assert share.shape == (7, 10)
    rows = torch.bincount(torch.arange(37) * 7 // 37).double()
    columns = torch.bincount(torch.arange(101) * 10 // 101).double()
    assert round(float((share * torch.outer(rows, columns)).sum())) == int(mask.sum())
    first = mask[: int(rows[0]), : int(columns[0])]
    assert share[0, 0] == first.double().mean()


def test_a_small_matrix_is_drawn_entry_by_entry_or_the_fullest_first() -> None:
    mask = torch.tensor([[False, False, True], [False, True, True]])
    ax = mg.plot.pattern(mg.masked(torch.full((2, 3), torch.nan), mask), Figure().subplots(), title="t")
    assert ax.images[0].get_array().tolist() == mask.int().tolist()
    assert (ax.get_title(loc="left"), ax.get_xlabel(), ax.get_ylabel()) == ("t", "column", "row")
    ax = mg.plot.pattern(mask, Figure().subplots(), sort=True)
    assert ax.images[0].get_array().tolist() == [[1, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize("fill", [0.02, 0.0, 1.0])
def test_a_large_matrix_is_drawn_as_percentages(tmp_path, fill: float) -> None:
    figure = Figure()
    ax = mg.plot.pattern(torch.rand(500, 300) < fill, figure.subplots(), bins=(50, 30))
    percent = np.ma.getdata(ax.images[0].get_array())
    assert percent.shape == (50, 30)
    assert ax.images[0].norm.vmin == percent[percent > 0].min(initial=10.0)  # the rarest has a colour, too
    assert figure.axes[1].get_ylabel() == "specified entries (%)"
    figure.savefig(tmp_path / "pattern.png")  # drawing raises no warning


def test_a_vector_is_a_row_on_axes_of_its_own() -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot

    ax = mg.plot.pattern(torch.tensor([True, False]))
    assert ax.images[0].get_array().shape == (1, 2)
    assert ax.figure is pyplot.gcf()
    pyplot.close("all")


def test_invalid_patterns_are_refused_and_without_matplotlib_the_extra_is_named(monkeypatch) -> None:
    with pytest.raises(TypeError, match=r"a MaskedTensor or a mask, found torch\.float32; pass mg\.masked"):
        mg.plot.pattern(torch.ones(2, 2))
    with pytest.raises(TypeError, match=r"x must be a Boolean torch.Tensor, .* found list"):
        mg.plot.pattern([[True]])
    for shape in [(), (0, 3), (2, 2, 2)]:
        with pytest.raises(ValueError, match="one or two dimensions"):
            mg.plot.pattern(torch.ones(shape, dtype=torch.bool))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(mg.MissingDependencyError, match=r"maskgrad\[plot\]"):
        mg.plot.pattern(torch.tensor([True]))
