r"""Closed form of linear steps: parameter :math:`p` and buffer :math:`b` by a matrix, other states by a factor.

.. math:: \begin{pmatrix} p \\ b \end{pmatrix} \leftarrow A_t \begin{pmatrix} p \\ b \end{pmatrix}, \qquad
          s_i \leftarrow c_{i,t}\, s_i

Column s of the table is :math:`A_t \cdots A_{s+1}`, in float64. Composed from the left step by step, it needs no
inverse and no power, and is exact for any schedule of any hyperparameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskgrad.optim.lazy import ClosedForm, ClosedFormTable, grown, per_row

__all__ = ["LinearStep", "LinearTable"]

_IDENTITY = ((1.0, 0.0), (0.0, 1.0))


@dataclass(frozen=True, slots=True)
class LinearStep(ClosedForm):
    """A linear step; ``matrix`` is ((p from p, p from b), (b from p, b from b))."""

    matrix: tuple[tuple[float, float], tuple[float, float]] = _IDENTITY
    factors: tuple[float, ...] = ()
    """One per state; that of the buffer is unused."""
    buffer: int | None = None
    """Index of the buffer among the states, if any."""
    sign: bool = False
    """The parameter is updated by the sign of the buffer (which has a factor, then)."""

    def changes_nothing(self) -> bool:
        """Return whether matrix and factors are ones."""
        return self.matrix == _IDENTITY and all(factor == 1 for factor in self.factors)

    def new_table(self, number_of_states: int, precision: float) -> LinearTable:
        """Return an empty table."""
        return LinearTable(number_of_states, self.buffer, self.sign)


class LinearTable(ClosedFormTable):
    """Products of matrices and of factors."""

    def __init__(self, number_of_states: int, buffer: int | None, sign: bool) -> None:
        super().__init__()
        self._buffer, self._sign = buffer, sign
        self._maps = np.zeros((2, 2, 64))
        self._factors = np.ones((number_of_states, 64))
        self._begin_column()

    def fits(self, step: ClosedForm | None) -> bool:
        """Return whether it is linear in the same buffer."""
        return (
            isinstance(step, LinearStep)
            and (step.buffer, step.sign) == (self._buffer, self._sign)
            and len(step.factors) == len(self._factors)
        )

    def append(self, step: ClosedForm) -> None:
        """Multiply every column from the left."""
        assert isinstance(step, LinearStep)
        columns = self.steps + 1
        old = self._maps[..., :columns].reshape(2, -1)
        self._maps[..., :columns] = (np.array(step.matrix) @ old).reshape(2, 2, columns)
        self._factors[:, :columns] *= np.array(step.factors)[:, None]
        self.steps += 1
        self._begin_column()

    def _begin_column(self) -> None:
        self._maps = grown(self._maps, self.steps + 1)
        self._factors = grown(self._factors, self.steps + 1)
        self._maps[..., self.steps] = np.eye(2)
        self._factors[:, self.steps] = 1

    def apply_(self, tensors: Sequence[Tensor], since: Tensor) -> None:
        """One multiplication by matrix and factors; nothing is replayed."""
        param, states = tensors[0], tensors[1:]
        column = since.cpu().numpy()
        maps: Any = self._maps[..., column]
        if self._buffer is None:
            param.mul_(per_row(maps[0, 0], param))
        else:
            buffer = states[self._buffer]
            pushed = buffer.sign() if self._sign else buffer
            moved = pushed * per_row(maps[0, 1], param)
            if not self._sign:
                pulled = param * per_row(maps[1, 0], param)
                buffer.mul_(per_row(maps[1, 1], param)).add_(pulled)
            param.mul_(per_row(maps[0, 0], param)).add_(moved)
        for number, state in enumerate(states):
            if number == self._buffer and not self._sign:
                continue
            factor = per_row(self._factors[number, column], state)
            if self._sign:
                # Step by step a value never reaches 0, because of rounding; here it must not lose its
                # sign.
                least = torch.finfo(state.dtype).tiny
                shrunk = (state * factor).abs().clamp_min(least).copysign(state)
                state.copy_(torch.where(state == 0, state, shrunk))
            else:
                state.mul_(factor)
