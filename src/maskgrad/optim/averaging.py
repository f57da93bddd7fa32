"""Exponential moving averages of weights, at a cost proportional to the number of changed rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from maskgrad.gradients.step_hooks import observe_steps
from maskgrad.masked_tensor import MaskedTensor
from maskgrad.optim.hyperparameters import finite
from maskgrad.optim.lazy.averages import LazyAverage, LazyAverages

__all__ = ["ExponentialMovingAverage"]

#: The logarithm of a decay of 0: its exponential is 0 in float64, and differences stay finite.
_NO_MEMORY = -750.0


class ExponentialMovingAverage:
    r"""Maintains exponential moving averages of weights, lazily for rows without a sparse gradient.

    .. math::
        \bar\theta \leftarrow d\,\bar\theta + (1 - d)\,\theta, \qquad
        \text{so after } n \text{ updates with constant } \theta \quad
        \bar\theta = \theta + d^{\,n} (\bar\theta_{\text{before}} - \theta)

    Call :meth:`update` after each step of the optimizer. It only counts. A row is averaged just before it changes,
    with its old value, in closed form for all updates since; so the cost of a step is proportional to
    the rows of its gradient, and the rest is done when averages are read. The result is the dense average, to rounding.

    Steps of all optimizers are observed, also those of ``torch.optim``. Rows without a gradient are skipped under
    ``mg.optim`` with ``unspecified="skip"``, ``torch.optim.SparseAdam``, ``torch.optim.Adagrad``, and
    ``torch.optim.SGD`` without momentum and weight decay. In all other cases, including dense and masked gradients, the
    whole parameter is averaged at each step. Tensors that do not require gradients (buffers) are averaged at each
    update. Call :meth:`flush` before weights are changed by other means than a step.

    Args:
        params: the tensors to average, floating-point or complex: ``model.parameters()``. Leaf MaskedTensors may be
            among them; their values are averaged.
        decay: the decay rate d, between 0 and 1.

    State:
        One tensor for each parameter, of its shape, in at least float32; and one number per row if rows are
        skipped. The first update copies the weights, as in PyTorch.

    Raises:
        TypeError: ``params`` contains something other than strided floating-point or complex tensors.
        ValueError: ``decay`` is not between 0 and 1, or ``params`` is empty or contains a tensor twice.

    Dense equivalent: ``AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))`` of ``torch.optim.swa_utils``.

    Example:
        >>> table = torch.nn.Embedding(3, 1, sparse=True)
        >>> _ = table.weight.data.fill_(1.0)
        >>> optimizer = mg.optim.SGD(table.parameters(), lr=1.0)
        >>> average = mg.optim.ExponentialMovingAverage(table.parameters(), decay=0.5)
        >>> for row in (0, 1, 2):
        ...     optimizer.zero_grad()
        ...     table(torch.tensor([row])).sum().backward()
        ...     optimizer.step()
        ...     average.update()
        >>> with average.applied():
        ...     table.weight.flatten().tolist()
        [0.0, 0.25, 0.5]
        >>> table.weight.flatten().tolist()
        [0.0, 0.0, 0.0]

    Source: Polyak and Juditsky, "Acceleration of stochastic approximation by averaging", 1992;
    ``torch.optim.swa_utils``.
    """

    def __init__(
        self, params: Iterable[Tensor | MaskedTensor] | Tensor | MaskedTensor, decay: float = 0.999
    ) -> None:
        self.decay = _checked_decay(decay)
        self.num_updates = 0
        given = [params] if isinstance(params, (Tensor, MaskedTensor)) else list(params)
        tensors = [_checked_param(number, param) for number, param in enumerate(given)]
        if not tensors:
            raise ValueError("params is empty; pass model.parameters()")
        if len({id(t) for t in tensors}) < len(tensors):
            raise ValueError("params contains a tensor twice; pass each one once, as in model.parameters()")
        self._tracker = LazyAverages([LazyAverage(t) for t in tensors])
        observe_steps(self._tracker)

    def update(self, decay: float | None = None) -> None:
        """Update the averages with the present weights; the first time, copy them.

        Args:
            decay: the decay rate of this update, for example during warm-up; None: that of the constructor.

        Raises:
            RuntimeError: the averages are applied.
            ValueError: ``decay`` is not between 0 and 1.
        """
        factor = self.decay if decay is None else _checked_decay(decay)
        tracker = self._tracker
        tracker.require_weights("update()")
        if self.num_updates == 0:
            tracker.start()
        else:
            tracker.total += math.log(factor) if factor > 0 else _NO_MEMORY
        for average in tracker.averages:
            if not average.param.requires_grad:  # no step changes it
                average.bring_up(tracker.total)
        self.num_updates += 1

    def flush(self) -> None:
        """Update the averages of all rows."""
        self._tracker.flush()

    def averages(self) -> list[Tensor]:
        """The averages, up to date, in the order of the parameters; not copies.

        Half precision is averaged in float32: with a decay of 0.999, an average in bfloat16 would never move.
        """
        self.flush()
        return [average.values for average in self._tracker.averages]

    def average_of(self, param: Tensor | MaskedTensor) -> Tensor:
        """The average of one parameter, up to date; not a copy.

        Raises:
            KeyError: ``param`` is not averaged here.
        """
        values = param._values if isinstance(param, MaskedTensor) else param
        average = self._tracker.of(values)
        if average is None:
            raise KeyError("param is not one of the averaged tensors; pass it to the constructor")
        self.flush()
        return average.values

    @torch.no_grad()
    def copy_to(self, params: Iterable[Tensor] | None = None) -> None:
        """Copy the averages into ``params``.

        Args:
            params: tensors of the same shapes in the same order, for example the parameters of another model; None:
                the averaged parameters themselves.

        Raises:
            ValueError: their number or a shape differs; nothing is written then.
        """
        values = self.averages()
        if params is None:
            self._tracker.require_weights("copy_to()")
            given = [average.param for average in self._tracker.averages]
        else:
            given = list(params)
        _require_shapes(values, given, "params")
        for param, value in zip(given, values, strict=True):
            param.copy_(value)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Context manager that replaces the parameters by their averages, for evaluation.

        Steps and updates raise an error inside.

        Raises:
            RuntimeError: the averages are applied already.
        """
        tracker = self._tracker
        tracker.require_weights("applied()")
        self.flush()
        weights = [average.param.detach().clone() for average in tracker.averages]
        tracker.applied = True
        try:
            with torch.no_grad():
                for average in tracker.averages:
                    average.param.copy_(average.values)
            yield
        finally:
            with torch.no_grad():
                for average, weight in zip(tracker.averages, weights, strict=True):
                    average.param.copy_(weight)
            tracker.applied = False

    def state_dict(self) -> dict[str, Any]:
        """``{"decay", "num_updates", "averages"}``, the averages up to date and not copied."""
        return {"decay": self.decay, "num_updates": self.num_updates, "averages": self.averages()}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned.

        Raises:
            KeyError: an entry is missing.
            ValueError: the number or a shape of the averages differs, or the decay is out of range. Nothing is
                loaded then.
        """
        decay, values = _checked_decay(state_dict["decay"]), list(state_dict["averages"])
        num_updates = int(state_dict["num_updates"])
        _require_shapes([average.values for average in self._tracker.averages], values, "averages")
        for average, value in zip(self._tracker.averages, values, strict=True):
            average.values.copy_(value)
            average.done = self._tracker.total
        self.decay, self.num_updates = decay, num_updates
        self._tracker.started = num_updates > 0

    def __repr__(self) -> str:
        return (
            f"ExponentialMovingAverage(decay={self.decay}, num_updates={self.num_updates}, "
            f"parameters={len(self._tracker.averages)})"
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        observe_steps(self._tracker)


def _checked_decay(decay: float) -> float:
    number = finite("decay", decay)
    if not 0 <= number <= 1:
        raise ValueError(f"decay must be between 0 and 1, got {number}")
    return number


def _checked_param(number: int, param: object) -> Tensor:
    values = param._values if isinstance(param, MaskedTensor) else param
    if not isinstance(values, Tensor) or values.layout is not torch.strided:
        found = values.layout if isinstance(values, Tensor) else type(values).__name__
        raise TypeError(f"params must contain strided tensors, but tensor {number} is {found}")
    if not (values.is_floating_point() or values.is_complex()):
        raise TypeError(
            f"params: tensor {number} has dtype {values.dtype}, which cannot be averaged; leave such buffers out: "
            "[b for b in model.buffers() if b.is_floating_point()]"
        )
    return values


def _require_shapes(expected: list[Tensor], found: list[Tensor], name: str) -> None:
    if len(expected) != len(found):
        raise ValueError(f"{name} contains {len(found)} tensors, but {len(expected)} are expected")
    for number, (one, other) in enumerate(zip(expected, found, strict=True)):
        if one.shape != other.shape:
            raise ValueError(
                f"{name}: tensor {number} has shape {tuple(other.shape)}, but {tuple(one.shape)} is expected"
            )
