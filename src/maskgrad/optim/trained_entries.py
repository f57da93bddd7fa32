"""Frozen entries: what is outside a parameter's mask never moves, under any optimizer."""

from __future__ import annotations

from torch import Tensor

from maskgrad.gradients.train_only import keep_trained_entries, trained_entries
from maskgrad.optim.lazy.rows import bring_up_to_date

__all__ = ["train_only", "trained_entries"]


def train_only(param: Tensor, mask: Tensor | None) -> None:
    r"""Let only the entries under ``mask`` be trained: no optimizer moves another entry, by whatever means.

    .. math::
        \theta_i \leftarrow \begin{cases} \text{the optimizer's result} & m_i \\ \theta_i & \text{otherwise} \end{cases}

    Weight decay, momentum that has built up before, second moments, LAMB's norms, a NaN in the gradient: nothing
    reaches an entry outside the mask, which keeps its value bit for bit. It may be set by hand
    (``param.data[1] = 0``), before or after; that value is then kept.

    The gradient outside the mask is unspecified. Optimizers of ``mg.optim`` skip these entries, states included, at
    a cost that follows the gradient. Every other optimizer is given gradients with 0 there for the time of its step,
    and the entries are put back afterwards: two passes over this parameter. ``.grad`` itself is not changed.
    :func:`maskgrad.grad_norm`, :func:`maskgrad.clip_grad_norm_` and :class:`maskgrad.amp.GradScaler` do not
    count these entries. A parameter without a mask costs the look for one.

    Args:
        param: strided parameter, any shape; a leaf, or about to be one.
        mask: Boolean tensor on the parameter's device, True = trained, of the parameter's shape or broadcastable to
            it: ``rows.unsqueeze(1)`` for whole rows. It is copied, and replaces an earlier mask. None lets all be
            trained.

    The mask belongs to this parameter object. Deep copies and pickles of the parameter or its module have it,
    ``module.to(...)`` keeps it. ``state_dict()`` does not hold it: loading one (without ``assign=True``) leaves the
    masks as they are and replaces values, frozen ones too.

    Raises:
        TypeError: ``param`` is no strided tensor, or ``mask`` is not Boolean.
        ValueError: the mask does not broadcast to the parameter's shape, or is on another device.

    Dense equivalent: ``param.data[~mask] = before[~mask]`` after every step.

    Example:
        >>> w = torch.nn.Parameter(torch.ones(2))
        >>> optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9, weight_decay=0.1)
        >>> mg.train_only(w, torch.tensor([True, False]))
        >>> for _ in range(3):
        ...     w.grad = torch.ones(2)
        ...     optimizer.step()
        >>> w.data
        tensor([0.3882, 1.0000])

    Source: ``torch.nn.utils.prune``, which multiplies by the mask in every forward pass and trains another tensor.
    """
    if isinstance(param, Tensor):
        bring_up_to_date(param)  # with the mask that was in force when the steps were made
    keep_trained_entries(param, mask)
