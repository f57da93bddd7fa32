"""A mean over batches, weighted by entries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from maskgrad.gradients.accumulated_losses import summed
from maskgrad.masked_tensor import MaskedTensor

__all__ = ["Mean", "group_of"]


class Mean:
    r"""Mean over all entries of all batches and ranks, for logging.

    .. math:: \frac{\sum_b \sum_i m^{(b)}_i x^{(b)}_i}{\sum_b \sum_i m^{(b)}_i}

    The mean of batch means gives entries of short batches more weight than those of long ones. The denominator is that
    of :class:`maskgrad.GradientAccumulator`.

    Args:
        group: a process group; None: the default one, or this process only if there is none.

    Raises:
        TypeError, ValueError: in ``update``: the number of entries is unknown, negative or not finite.

    Dense equivalent: ``torch.cat([x[mask] for x, mask in batches]).mean()``.

    Example:
        >>> mean = mg.metrics.Mean()
        >>> mean.update(mg.masked(torch.tensor([1., 3., 7.]), torch.tensor([True, True, False])))
        >>> mean.update(torch.tensor(8.), count=1)  # a mean, and the number of its entries
        >>> mean.compute()
        tensor(4.)
    """

    _total: Tensor
    _count: Tensor

    def __init__(self, group: Any = None) -> None:
        self._group = group
        self.reset()

    @torch.no_grad()
    def update(self, value: Tensor | MaskedTensor | float, count: Any = None) -> None:
        """Add the entries of a batch.

        Args:
            value: a MaskedTensor, whose specified entries count; a plain tensor with ``count``; or a mean, a scalar or
                0-dim tensor, with ``count``.
            count: number of entries, or sum of their weights; any finite number of at least 0. 0: nothing is added,
                even if the mean is NaN.
        """
        if isinstance(value, (int, float)):
            value = torch.tensor(float(value), dtype=torch.float64)
        if isinstance(value, (Tensor, MaskedTensor)) and not value.dtype.is_floating_point:
            value = value.to(torch.float32)
        part = summed(value, count, None, "token-mean", "value is", None, None)
        if not part.number:
            return
        device = part.total.device
        self._total = self._total.to(device) + part.total.double() * part.times
        self._count = self._count.to(device) + part.number

    def compute(self) -> Tensor:
        """Return the mean: shape (), the same on all ranks, which all call this; NaN without entries."""
        total, count = self._total, self._count
        ranks = group_of(self._group, "metrics.Mean")
        if ranks is not None:
            own = torch.stack([total, count]).to(ranks.device)
            total, count = ranks.gather(own).sum(0).to(total.device)
        mean: Tensor = total / count
        return mean.to(torch.get_default_dtype())

    def reset(self) -> None:
        """Drop all entries."""
        self._total = self._count = torch.zeros((), dtype=torch.float64)

    def state_dict(self) -> dict[str, Tensor]:
        """Return total and count of this rank as tensors of shape ()."""
        return {"total": self._total.clone(), "count": self._count.clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore a state of :meth:`state_dict`."""
        self._total, self._count = state["total"].clone(), state["count"].clone()


def group_of(group: Any, what: str) -> Any:
    """The ranks of ``group``, or of the default group; None if there is one process."""
    if group is None and not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    from maskgrad.distributed.process_group import ProcessGroup  # takes a second, avoided for one process

    ranks = ProcessGroup(group, what)
    return ranks if ranks.size > 1 else None
