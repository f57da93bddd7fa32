r"""Looking up rows of a table: :math:`y_i = W_{x_i}`, copied bit for bit.

Neighbouring threads read neighbouring columns of a row. As in PyTorch on a GPU, an index outside the table raises an
asynchronous device error; nothing is read for it.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from maskgrad.kernels.cuda.compiler import compiled, index_type, launch, power_of_two
from maskgrad.kernels.cuda.runs import refuse_outside
from maskgrad.kernels.cuda.tiles import ENTRIES, WIDEST, place, walk
from maskgrad.kernels.layout import axes

# Values are only copied, so their bits travel as integers.
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def lookup_rows(table: Tensor, indices: Tensor) -> Tensor:
    """As in the reference; a table with gaps is read in place."""
    refuse_outside(indices, len(table))
    out = table.new_empty((len(indices), *table.shape[1:]), requires_grad=False)
    if not out.numel() or not len(table):
        return out
    bits = _BITS[table.element_size()]
    source, written = table.detach().view(bits), out.view(bits)
    row = walk(axes(written[0].shape, [written[0].stride(), source[0].stride()], ())[0], 2)
    side = power_of_two(row.number, WIDEST)
    tall, pieces = power_of_two(len(indices), ENTRIES // side), -(-row.number // side)
    launch(
        _copy, -(-len(indices) // tall) * pieces, source, indices, written, len(indices), len(table),
        source.stride(0), indices.stride(0), row.number, row.sizes, *row.strides, pieces,
        INDEX=index_type(source, indices, written), TALL=tall, WIDE=side,
    )  # fmt: skip
    return out


@compiled
def _copy(
    table: tl.tensor, indices: tl.tensor, out: tl.tensor, number: tl.tensor, rows: tl.tensor, row_step: tl.tensor,
    index_step: tl.tensor, width: tl.tensor, sizes: tl.tensor, o_steps: tl.tensor, t_steps: tl.tensor,
    pieces: tl.tensor, INDEX: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
) -> None:  # fmt: skip
    """Program p copies piece p % pieces of the results TALL * (p // pieces), ... ."""
    program = tl.program_id(0).to(INDEX)
    entry = program // pieces * TALL + tl.arange(0, TALL)
    column = program % pieces * WIDE + tl.arange(0, WIDE)
    index = tl.load(indices + entry * index_step, mask=entry < number, other=-1)
    there = (index >= 0) & (index < rows)
    from_ = tl.where(there, index, 0).to(INDEX) * row_step
    inside = column < width
    value = tl.load(
        table + from_[:, None] + place(column, sizes, t_steps)[None, :], mask=there[:, None] & inside[None, :], other=0
    )  # fmt: skip
    tl.store(
        out + (entry * width)[:, None] + place(column, sizes, o_steps)[None, :],
        value,
        mask=(entry < number)[:, None] & inside[None, :],
    )
