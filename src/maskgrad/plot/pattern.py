"""Plot of the specified entries of a matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskgrad.masked_tensor import MaskedTensor
from maskgrad.patterns.mask_arguments import boolean_mask
from maskgrad.plot.canvas import INK, LABEL_SIZE, TICK_SIZE, axes_to_draw_into, dress

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["density", "pattern"]


def pattern(
    x: MaskedTensor | Tensor,
    ax: Axes | None = None,
    *,
    bins: tuple[int, int] = (200, 200),
    sort: bool = False,
    title: str | None = None,
    xlabel: str | None = "column",
    ylabel: str | None = "row",
) -> Axes:
    """Draw the specified entries of a matrix.

    A matrix with no more rows and columns than ``bins`` is drawn entry by entry; for a larger one each cell shows
    the percentage of its specified entries, on a logarithmic scale. Cells with none stay white.

    Args:
        x: MaskedTensor or mask (Boolean, or integers 0 and 1) with two dimensions, or one (drawn as a row).
        ax: axes to draw into; new ones if None.
        bins: maximum number of rows and columns of cells.
        sort: put the rows and columns with most specified entries first.
        title: title above the plot.
        xlabel: label of the x axis.
        ylabel: label of the y axis.

    Returns:
        The axes.

    Raises:
        TypeError: ``x`` is neither of these.
        ValueError: ``x`` has no entries, more than two dimensions, or is a mask of other integers.
        MissingDependencyError: matplotlib is not installed.

    Example:
        >>> import torch, maskgrad as mg
        >>> from matplotlib.figure import Figure
        >>> x = mg.from_nan(torch.tensor([[1., float("nan")], [3., 4.]]))
        >>> ax = mg.plot.pattern(x, Figure().subplots(), title="One entry is missing")
        >>> ax.get_title(loc="left")
        'One entry is missing'
    """
    mask = _matrix(x)
    if sort:
        mask = mask[mask.sum(1).argsort(descending=True, stable=True)]
        mask = mask[:, mask.sum(0).argsort(descending=True, stable=True)]
    ax = axes_to_draw_into(ax)
    rows, columns = mask.shape
    share = density(mask, bins)  # (cell rows, cell columns)
    # entries are counted from 1
    cells: dict[str, Any] = {
        "extent": (0.5, columns + 0.5, rows + 0.5, 0.5),
        "aspect": "auto",
        "interpolation": "nearest",
    }
    if tuple(share.shape) == (rows, columns):
        from matplotlib.colors import ListedColormap

        ax.imshow(share.numpy(), cmap=ListedColormap(["white", INK]), vmin=0, vmax=1, **cells)
    else:
        _draw_density(ax, share, cells)
    dress(ax, title, xlabel, ylabel)
    return ax


def density(mask: Tensor, bins: tuple[int, int]) -> Tensor:
    """Fraction of True entries in each cell of a grid of at most ``bins`` over a matrix; float64.

    Cells differ by at most one row and one column in size; every entry is in one cell.
    """
    rows, columns = mask.shape
    cell_rows, cell_columns = min(bins[0], rows), min(bins[1], columns)
    row_cell = torch.arange(rows) * cell_rows // rows  # (rows,) index of the cell
    column_cell = torch.arange(columns) * cell_columns // columns
    at_row, at_column = mask.nonzero(as_tuple=True)
    cell = row_cell[at_row] * cell_columns + column_cell[at_column]
    specified = torch.bincount(cell, minlength=cell_rows * cell_columns).reshape(cell_rows, cell_columns)
    return specified.double() / torch.outer(torch.bincount(row_cell), torch.bincount(column_cell))


def _draw_density(ax: Axes, share: Tensor, cells: dict[str, Any]) -> None:
    """Draw percentages of the cells, with a colour bar."""
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import FuncFormatter

    percent = share.numpy() * 100
    low = float(percent[percent > 0].min(initial=10.0))
    norm = LogNorm(vmin=low, vmax=100, clip=False)  # zero has no logarithm: such cells stay white
    image = ax.imshow(percent, cmap="viridis_r", norm=norm, **cells)
    bar = ax.figure.colorbar(image, ax=ax, pad=0.02)
    bar.set_label("specified entries (%)", fontsize=LABEL_SIZE, color=INK)
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    bar.ax.tick_params(labelsize=TICK_SIZE, labelcolor=INK)
    bar.outline.set_visible(False)


def _matrix(x: MaskedTensor | Tensor) -> Tensor:
    """The Boolean mask (rows, columns) of ``x``, on the CPU."""
    mask = x.mask if isinstance(x, MaskedTensor) else x
    if isinstance(mask, Tensor) and mask.is_floating_point():
        raise TypeError(f"x must be a MaskedTensor or a mask, found {mask.dtype}; pass mg.masked(x, mask)")
    mask = boolean_mask(mask, "x")
    mask = mask.unsqueeze(0) if mask.dim() == 1 else mask
    if mask.dim() != 2 or mask.numel() == 0:
        raise ValueError(
            f"x must have one or two dimensions and an entry, but has shape {tuple(mask.shape)}; pass a part of it, "
            "as in x[0], or x.flatten(1)"
        )
    return mask.cpu()
