"""The derivative of each sample's output by the same sample's input, where samples may influence each other."""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.gradients.backward_passes import BackwardPasses, Cotangents, joined

__all__ = ["diagonal_blocks"]


def diagonal_blocks(passes: BackwardPasses, cotangents: Cotangents, number: int) -> list[Tensor | None]:
    """Gradients (number, B, *I): sample b is sent its part of a cotangent alone, and only its own input is read.

    B times as many passes as :meth:`BackwardPasses.all` needs, whose results are of the same shape.
    """
    samples = passes.output.shape[0]
    which = torch.arange(samples, device=passes.output.device)

    def to_one_sample(cotangent: Tensor) -> Cotangents:
        def sent(start: int, stop: int) -> Tensor:
            receives = which[start:stop, None] == which
            return torch.where(receives.reshape(*receives.shape, *(1,) * (cotangent.ndim - 1)), cotangent, 0)

        return sent

    rows: list[list[tuple[int, Tensor | None]]] = [[] for _ in passes.inputs]
    for n in range(number):
        blocks: list[list[tuple[int, Tensor | None]]] = [[] for _ in passes.inputs]
        for start, stop, gradients in passes.each(to_one_sample(cotangents(n, n + 1)[0]), samples):
            own = which[start:stop]
            for found, gradient in zip(blocks, gradients, strict=True):
                block = None if gradient is None else gradient[own - start, own][None]
                found.append((stop - start, block))
        for row, found in zip(rows, blocks, strict=True):
            row.append((1, joined(found, dim=1)))
    return [joined(row) for row in rows]
