r"""Replacing masked entries by a constant: both sides are read, one is selected.

.. math:: y_i = x_i \text{ where } m_i, \text{ else filler}

Values are only copied, so their bits travel as integers: four kernels serve every dtype, and a constant keeps all
its digits.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from maskgrad.kernels.cuda.compiler import compiled
from maskgrad.kernels.cuda.tiles import entrywise, tile, tile_place

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def masked_filling(values: Tensor, mask: Tensor, filler: float) -> Tensor:
    """As in the reference; the result has the strides of ``torch.empty_like(values)``."""
    out = torch.empty_like(values, requires_grad=False)
    select(out, values.detach(), mask, filler)
    return out


def select(out: Tensor, values: Tensor, mask: Tensor, filler: float) -> None:
    """Write ``values`` where ``mask`` holds, else ``filler``; all three have one shape."""
    if not out.numel():
        return
    bits = _BITS[out.element_size()]
    exact = torch.float64 if out.is_floating_point() else torch.int64
    # On the CPU, so that nothing has to wait.
    constant = int(torch.tensor(filler, dtype=exact, device="cpu").to(out.dtype).view(bits))
    entrywise(_select, out.view(bits), values.view(bits), mask.view(torch.int8), filler=constant)


@compiled
def _select(
    out: tl.tensor, values: tl.tensor, mask: tl.tensor, rows: tl.tensor, row_sizes: tl.tensor, out_rows: tl.tensor,
    v_rows: tl.tensor, m_rows: tl.tensor, length: tl.tensor, sizes: tl.tensor, out_steps: tl.tensor,
    v_steps: tl.tensor, m_steps: tl.tensor, pieces: tl.tensor, filler: tl.int64, INDEX: tl.constexpr,
    TALL: tl.constexpr, WIDE: tl.constexpr,
) -> None:  # fmt: skip
    """Program p writes tile p % pieces of rows p // pieces."""
    row, column, inside = tile(rows, length, pieces, INDEX, TALL, WIDE)
    m = tile_place(row, row_sizes, m_rows, column, sizes, m_steps)
    v = tile_place(row, row_sizes, v_rows, column, sizes, v_steps)
    o = tile_place(row, row_sizes, out_rows, column, sizes, out_steps)
    specified = tl.load(mask + m, mask=inside, other=0) != 0
    value = tl.load(values + v, mask=inside, other=0)
    constant = tl.full((TALL, WIDE), 0, value.dtype) + filler.to(value.dtype)
    tl.store(out + o, tl.where(specified, value, constant), mask=inside)
