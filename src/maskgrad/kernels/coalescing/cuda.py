r"""Merging rows that share an index: PyTorch sorts the indices, then each run of equal ones is reduced in place.

.. math:: \text{merged}_k = \operatorname{reduce}\{\, v_i : \text{indices}_i = r_k \,\}

The number of results depends on the data, so the host waits for the sort, and raises for an index outside the table
then. A run is added in float64 (integers in int64) and rounded once, in a fixed order: one program handles a run, and
the sort is stable.
"""

from __future__ import annotations

from torch import Tensor

from maskgrad.kernels import coalescing as family
from maskgrad.kernels.segments.cuda import merged, sort_rows


def merge_rows(indices: Tensor, values: Tensor, num_rows: int, reduce: str = "sum") -> tuple[Tensor, Tensor]:
    if not values.numel():
        return family.merge_rows.reference(indices, values, num_rows, reduce)
    pointers, order, rows = sort_rows(indices, num_rows)
    return rows, merged(values, pointers, order, reduce, values.dtype)
