r"""Closed form of Adam and similar rules: a decaying first moment over a root, with decoupled weight decay.

With gradient zero, step t does, with scalars :math:`c_t, r_t, d_t, \beta_{1,t}, \beta_{2,t}` that are the same for
all entries,

.. math:: m \leftarrow \beta_{1,t} m, \qquad v \leftarrow \beta_{2,t} v, \qquad
          p \leftarrow d_t\, p - c_t \frac{m}{r_t \sqrt{v} + \epsilon}.

Let a row have moments m, v, and let :math:`x = \sqrt v`. After n steps without a gradient, with
:math:`M_k, V_k, D_k` the products of the first k factors :math:`\beta_1`, the first k :math:`\beta_2`, and the
factors d after step k,

.. math:: p_n = D_0\, p - m \sum_{k=1}^{n} \frac{w_k}{a_k x + \epsilon}, \qquad
          w_k = D_k c_k M_k, \quad a_k = r_k \sqrt{V_k}.

**The sum without a loop.** Let :math:`T_j = \sum_k w_k (a_k - \bar a)^j` be the moments of the :math:`a_k` about their
weighted mean :math:`\bar a`, and :math:`z = \bar a x / (\bar a x + \epsilon) \in [0, 1]`. As
:math:`a_k x + \epsilon = (\bar a x + \epsilon)(1 + y_k)` with :math:`y_k = z\,(a_k - \bar a) / \bar a > -1`, the
geometric series gives

.. math:: \sum_k \frac{w_k}{a_k x + \epsilon} = \frac{1}{\bar a x + \epsilon}
          \Bigl( \sum_{j=0}^{J} (-z)^j\, T_j / \bar a^j + R \Bigr), \qquad
          R = \sum_k w_k \frac{(-y_k)^{J+1}}{1 + y_k}.

For odd J the power is even and :math:`1 + y_k \ge \min(1, a_k / \bar a)`, so that, whatever x and epsilon are,

.. math:: |R| \le \frac{\bar a}{\min_k a_k}\, \frac{T_{J+1}}{\bar a^{J+1}}.

Relative to :math:`T_0` this is a number of the column, known beforehand. The smallest J for which it is below the
precision asked for is taken; where even the largest is not enough (within the first few hundred steps of a run the
:math:`a_k` are far apart, because of the bias correction), the sum is taken term by term.

**The sum is short.** Its terms fall at least as :math:`q^k = M_k / \sqrt{V_k}`. A column stops growing (*freezes*)
when :math:`q^k / (1 - q)` is below 1/64 of the precision: all that could still come is less than that fraction of
one step with the undecayed moments m, v. From then on only the factors D, M, V change, which are kept as sums of
logarithms. If :math:`q \ge 1` the column never freezes, and nothing is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskgrad.optim.lazy import ClosedForm, ClosedFormTable, grown, per_row

__all__ = ["MomentStep", "MomentTable", "moment_step"]

_ORDERS = (1, 3, 5, 7)
_ZERO = -1e5  # the logarithm of a factor of 0: its exponential is 0, and differences stay finite
_FINEST = 1e-13  # what the orders above can reach in the steady state of ordinary betas


@dataclass(frozen=True, slots=True)
class MomentStep(ClosedForm):
    """The scalars of one step; ``maximum``: the root is that of the largest second moment, which does not decay."""

    size: float
    root: float
    decay: float
    beta1: float
    beta2: float
    eps: float
    maximum: bool = False

    def new_table(self, number_of_states: int, precision: float) -> MomentTable:
        """Return an empty table."""
        return MomentTable(self.eps, self.maximum, max(precision / 8, _FINEST))


def moment_step(
    numbers: Mapping[str, Any], *, size: float, root: float, maximum: bool = False
) -> MomentStep | None:
    """The step of a rule with Adam's scalars; None: its weight decay is coupled, or it has no second moment."""
    (beta1, beta2), decay = numbers["betas"], 1.0
    if numbers["weight_decay"] != 0:
        decay = 1 - numbers["lr"] * numbers["weight_decay"] if numbers["decoupled_weight_decay"] else 0.0
    if decay <= 0 or beta2 == 0:
        return None
    return MomentStep(
        size=size, root=root, decay=decay, beta1=beta1, beta2=beta2, eps=numbers["eps"], maximum=maximum
    )


class MomentTable(ClosedFormTable):
    """Weighted power sums of the step sizes' denominators, and logarithms of the decays."""

    def __init__(self, eps: float, maximum: bool, precision: float) -> None:
        super().__init__()
        self.eps, self.maximum, self.precision = eps, maximum, precision
        self._open = 0  # columns before this one are frozen
        self._centred_at = 0  # the number of steps for which the open columns of `_terms` were computed
        self._logs = np.zeros((3, 64))  # of d, beta1, beta2: sums over the steps so far
        self._sizes = np.zeros((2, 64))  # c and r of the step that begins with this column
        self._sums = np.zeros((_ORDERS[-1] + 2, 64))  # moments of a about the first a
        self._first, self._least = np.zeros(64), np.zeros(64)  # the first a, the smallest a
        self._until = np.zeros(64, np.int64)  # step with which the column froze
        self._terms = np.zeros((_ORDERS[-1] + 1, 64))  # (-1)^j T_j / mean^j
        self._mean = np.zeros(64)
        self._order = np.zeros(64, np.int64)  # J, or 0: term by term

    def fits(self, step: ClosedForm | None) -> bool:
        """Return whether it is of this family and has the same eps."""
        return isinstance(step, MomentStep) and (step.eps, step.maximum) == (self.eps, self.maximum)

    def append(self, step: ClosedForm) -> None:
        """Add a term to every open column, and freeze those whose terms have become too small."""
        assert isinstance(step, MomentStep)
        now = self.steps
        self._make_room(now + 2)
        factors = (step.decay, step.beta1, step.beta2)
        self._logs[:, now + 1] = self._logs[:, now] + [math.log(f) if f > 0 else _ZERO for f in factors]
        self._sizes[:, now] = step.size, step.root
        columns = slice(self._open, now + 1)
        first_moment = np.exp(self._logs[1, now + 1] - self._logs[1, columns])
        root = self._roots(self._logs[2, now + 1] - self._logs[2, columns])
        a = step.root * root
        self._first[now] = self._least[now] = a[-1]
        np.minimum(self._least[columns], a, out=self._least[columns])
        offset, term = a - self._first[columns], step.size * first_moment
        for sums in self._sums:
            sums[columns] *= step.decay
            sums[columns] += term
            term = term * offset
        self.steps = now + 1
        self._until[columns] = self.steps
        self._freeze(first_moment / root, step)

    def _roots(self, log: Any) -> Any:
        """Square root of the decay of the second moment."""
        return np.ones_like(log) if self.maximum else np.exp(0.5 * log)

    def _freeze(self, decay: Any, step: MomentStep) -> None:
        q = step.beta1 if self.maximum else step.beta1 / math.sqrt(step.beta2)
        if q >= 1:
            return
        small = decay < self.precision / 64 * (1 - q)
        # Older columns have decayed more, unless betas changed: a column waits for earlier ones.
        number = len(small) if small.all() else int(small.argmin())
        if number:
            self._centre(self._open, self._open + number)
            self._open += number

    def _make_room(self, columns: int) -> None:
        for name in ("_logs", "_sizes", "_sums", "_first", "_least", "_until", "_terms", "_mean", "_order"):
            setattr(self, name, grown(getattr(self, name), columns))

    def _centre(self, start: int, stop: int) -> None:
        """Turn the sums of columns ``start`` to ``stop`` into terms about their mean, and choose the order."""
        columns = slice(start, stop)
        sums = self._sums[:, columns].copy()
        total = sums[0]
        some = total > 0
        shift = np.divide(sums[1], total, out=np.zeros_like(total), where=some)
        for low in range(len(sums) - 1):
            for j in range(len(sums) - 1, low, -1):
                sums[j] -= shift * sums[j - 1]
        mean = np.where(some, self._first[columns] + shift, 1.0)
        scale = np.ones_like(mean)
        order = np.zeros(len(mean), np.int64)
        worst = np.divide(mean, self._least[columns], out=np.ones_like(mean), where=some)
        for j in range(len(sums)):
            if j < len(self._terms):
                self._terms[j, columns] = sums[j] / scale
            if j - 1 in _ORDERS:
                bound = worst * np.abs(sums[j] / scale)
                order[(order == 0) & (bound <= self.precision * total)] = j - 1
            scale = scale * -mean
        self._mean[columns], self._order[columns] = mean, order

    def apply_(self, tensors: Sequence[Tensor], since: Tensor) -> None:
        """Apply the series, or the sum for columns that need it; then the decays."""
        if self._centred_at != self.steps:
            self._centre(self._open, self.steps)
            self._centred_at = self.steps
        self._order[self.steps] = 1  # no steps since
        column = since.cpu().numpy()
        param, first = tensors[0], tensors[1]
        root = tensors[3 if self.maximum else 2].sqrt()
        order = self._order[column]
        # A frozen column has not been multiplied by the decays d since.
        until = np.where(column < self._open, self._until[column], self.steps)
        late = np.exp(self._logs[0, self.steps] - self._logs[0, until])
        if order.all():
            displacement = self._series(root, column, int(order.max()), late)
        else:
            displacement = torch.empty_like(root)
            for exact in (False, True):
                which = np.flatnonzero((order == 0) == exact)
                at = torch.from_numpy(which).to(root.device)
                if exact:
                    part = self._sum(root[at], column[which], late[which])
                else:
                    part = self._series(root[at], column[which], int(order.max()), late[which])
                displacement[at] = part
        decays = np.exp(self._logs[:, self.steps, None] - self._logs[:, column])
        param.mul_(per_row(decays[0], param)).addcmul_(displacement, first, value=-1)
        first.mul_(per_row(decays[1], first))
        tensors[2].mul_(per_row(decays[2], tensors[2]))

    def _series(self, root: Tensor, column: Any, order: int, late: Any) -> Tensor:
        terms = self._terms[: order + 1, column] * late
        scaled = root * per_row(self._mean[column], root)
        bottom = scaled + self.eps
        z = scaled.div_(bottom)
        series = z * per_row(terms[order], root)
        for j in range(order - 1, 1, -1):
            series.add_(per_row(terms[j], root)).mul_(z)
        # T_1 about the mean is 0
        return series.mul_(z).add_(per_row(terms[0], root)).div_(bottom)

    def _sum(self, root: Tensor, column: Any, late: Any) -> Tensor:
        """Term by term; rows with more terms come first, so that others are dropped from the end."""
        lengths = self._until[column] - column
        descending = np.argsort(-lengths, kind="stable")
        place = torch.from_numpy(descending).to(root.device)
        column, lengths, root = column[descending], lengths[descending], root[place]
        until = column + lengths
        total = torch.zeros_like(root)
        for k in range(1, int(lengths[0]) + 1):
            n = int(np.searchsorted(-lengths, -k, side="right"))
            s, t = column[:n], column[:n] + k
            size, stretch = self._sizes[:, t - 1]
            w = size * np.exp(
                self._logs[1, t] - self._logs[1, s] + self._logs[0, until[:n]] - self._logs[0, t]
            )
            a = stretch * self._roots(self._logs[2, t] - self._logs[2, s])
            x = root[:n]
            total[:n] += per_row(w, x) / (x * per_row(a, x)).add_(self.eps)
        result = torch.empty_like(total)
        result[place] = total.mul_(per_row(late[descending], total))
        return result
