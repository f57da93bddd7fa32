"""Random tensors with a mask: any shape, order in memory, broadcast mask, empty slices, and garbage under the mask."""

from __future__ import annotations

from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.unit.kernels import oracles


class Problem(NamedTuple):
    """What a masked reduction is given; ``seed`` is for whatever else a test draws."""

    values: Tensor
    mask: Tensor
    dim: tuple[int, ...]
    keepdim: bool
    seed: int


@st.composite
def problems(draw, dtypes=(torch.float64,), special=(0.0, 1.0), min_dims=0):
    """Values that are often equal to one another and to ``special``; at least ``min_dims`` dimensions are chosen."""
    shape = tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=4)))
    dim = tuple(d for d in range(len(shape)) if draw(st.booleans()))
    if len(dim) < min_dims:
        dim = (draw(st.integers(0, len(shape) - 1)),)
    expanded = tuple(1 if draw(st.booleans()) else n for n in shape)
    seed, density = draw(st.integers(0, 2**16)), draw(st.sampled_from([0.0, 0.2, 0.5, 1.0]))
    generator = torch.Generator().manual_seed(seed)
    order = draw(st.permutations(range(len(shape))))
    values = torch.randn([shape[i] for i in order], generator=generator, dtype=torch.float64).mul(3)
    values = values.permute([order.index(i) for i in range(len(shape))])
    if draw(st.booleans()):
        values = values.round()
    for number in special:
        if draw(st.booleans()):
            values = values.masked_fill(
                torch.rand(shape, generator=generator) < draw(st.sampled_from([0.02, 0.9])), number
            )
    mask = (torch.rand(expanded, generator=generator) < density).expand(shape)
    values = values.to(draw(st.sampled_from(dtypes)))
    values = oracles.soiled(values, mask, draw(st.sampled_from(oracles.GARBAGE)))
    return Problem(values, mask, dim, draw(st.booleans()), seed)
