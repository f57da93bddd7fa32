"""What a step must give, computed sample by sample with the padding cut off, and Adam written out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tests.pairs.features import Module

__all__ = ["Adam", "Expected", "expected"]

LR, BETAS, EPS, DECAY = 0.1, (0.9, 0.999), 1e-8, 0.1


class Expected(NamedTuple):
    """Attributes.

    outputs: of each sample, without padding; None if nothing was given.
    of_samples: the gradient of each sample's own mean loss, by the names of the parameters.
    gradient: that of the mean over all specified losses.
    """

    outputs: list[Tensor | None]
    of_samples: list[dict[str, Tensor]]
    gradient: dict[str, Tensor]


def expected(
    module: Module, layer: nn.Module, data: Tensor, lengths: Sequence[int], target: Tensor
) -> Expected:
    """One sample at a time, as long as it is."""
    parameters = dict(layer.named_parameters())
    outputs: list[Tensor | None] = []
    losses: list[Tensor] = []
    for x, length, wanted in zip(data, lengths, target, strict=True):
        if not length:
            outputs.append(None)
            losses.append(wanted.new_zeros(0))
            continue
        y = module.call(layer, x[None, :length])[0]
        outputs.append(y.detach())
        losses.append((y - (wanted if module.pools else wanted[:length])).square().reshape(-1))

    def slopes(loss: Tensor) -> dict[str, Tensor]:
        if not loss.requires_grad:
            return {name: torch.zeros_like(p) for name, p in parameters.items()}
        found = torch.autograd.grad(loss, list(parameters.values()), retain_graph=True)
        return dict(zip(parameters, found, strict=True))

    return Expected(outputs, [slopes(part.mean()) for part in losses], slopes(torch.cat(losses).mean()))


class Adam:
    """The formulas of the paper, with decay in the gradient; rows outside ``touched`` are as if there was no step."""

    def __init__(self, by_row: bool) -> None:
        self._by_row, self._steps, self._states = by_row, 0, {}
        self._states: dict[str, list[Tensor]]

    @torch.no_grad()
    def step(
        self, parameters: dict[str, Tensor], gradient: dict[str, Tensor], touched: Tensor | None
    ) -> None:
        """``touched`` (R,): the rows of tables that have a gradient; None: all."""
        self._steps += 1
        for name, p in parameters.items():
            rows: Any = slice(None) if touched is None else touched
            m, v = self._states.setdefault(name, [torch.zeros_like(p), torch.zeros_like(p)])
            g = gradient[name].to(p.dtype) + DECAY * p
            squares = g.square()
            if self._by_row and p.dim() > 1:
                squares = squares.mean(tuple(range(1, p.dim())), keepdim=True).expand_as(p)
            m[rows] = (BETAS[0] * m + (1 - BETAS[0]) * g)[rows]
            v[rows] = (BETAS[1] * v + (1 - BETAS[1]) * squares)[rows]
            first, second = 1 - BETAS[0] ** self._steps, 1 - BETAS[1] ** self._steps
            p[rows] = (p - LR * (m / first) / ((v / second).sqrt() + EPS))[rows]
