r"""Looking up rows of a table, in ordinary PyTorch: :math:`y_i = W_{x_i}`."""

from __future__ import annotations

from torch import Tensor


def lookup_rows(table: Tensor, indices: Tensor) -> Tensor:
    """``table[indices]`` for ``indices`` (n,) in [0, len(table))."""
    if indices.numel() and indices.device.type == "cpu":
        outside = ((indices < 0) | (indices >= len(table))).nonzero()
        if len(outside):
            at = int(outside[-1])
            raise IndexError(
                f"indices must lie in [0, {len(table)}), the rows of the table, but indices[{at}] is {int(indices[at])}"
            )
    return table.detach().index_select(0, indices)
