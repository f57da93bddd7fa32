"""Bringing rows up to date that were left behind: for whoever reads, writes, saves or loads a parameter."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from maskgrad.masked_tensor.torch_patches.modules import before_saving
from maskgrad.optim.lazy.access import finer_rows
from maskgrad.optim.lazy.rows import lazy_rows_of

__all__ = ["bring_up_to_date", "flush", "settle"]


@torch.no_grad()
def bring_up_to_date(param: Tensor, rows: Tensor | None = None) -> None:
    """Bring ``rows`` of ``param`` (indices in its first dimension, perhaps twice), or all, up to date."""
    lazy = lazy_rows_of(param)
    if lazy is None:
        return
    lazy.is_read_in_time |= rows is not None
    if len(lazy) == 0:
        return
    if rows is None:
        lazy.flush(param)
        return
    rows = rows.reshape(-1).long()
    if len(rows) == 0 or bool((rows.amin() < 0) | (rows.amax() >= param.shape[0])):
        return  # the look-up itself says what is wrong with an index
    if lazy.leading == 1:
        rows = lazy.behind(rows)
    lazy.catch_up(param, finer_rows(rows.unique(), param, 1, lazy.leading))


def settle(param: Tensor) -> None:
    """Before other states take the place of the present ones: bring rows up to date, or forget that they are behind.

    If somebody has written into the parameter since the last step (loaded a checkpoint, most likely), the values that
    were behind are gone.
    """
    lazy = lazy_rows_of(param)
    if lazy is None:
        return
    if param._version == lazy.version:
        lazy.flush(param)
    else:
        lazy.forget()


@torch.no_grad()
def flush(params: torch.nn.Module | Tensor | Iterable[Tensor]) -> None:
    r"""Bring parameters up to date that were stepped with ``unspecified="zero"``; the optimizer is not needed.

    .. math:: \theta, s \leftarrow u_n(\cdots u_{k+1}(\theta, s; 0) \cdots; 0)

    for a row whose last update was the k-th of n, :math:`u_i` being the update of step i and s its states.

    Args:
        params: a module, a parameter or several; those that owe nothing are left alone.

    Gradient:
        None; nothing is recorded for autograd, and the parameters count as unchanged.

    Raises:
        TypeError: something among ``params`` is not a tensor.

    Dense equivalent: nothing; a dense optimizer is always up to date.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(3, 1))
        >>> optimizer = mg.optim.SGD([p], lr=1.0, weight_decay=0.5, unspecified="zero")
        >>> p.grad = torch.sparse_coo_tensor([[0]], torch.zeros(1, 1), (3, 1))
        >>> optimizer.step()
        >>> del optimizer
        >>> mg.optim.flush(p)
        >>> p.data.view(-1)
        tensor([0.5000, 0.5000, 0.5000])

    Source: ``apply_l2_reg`` and the like of lazily regularised linear models; here exact, and for every optimizer.
    """
    if isinstance(params, torch.nn.Module):
        params = params.parameters()
    for param in [params] if isinstance(params, Tensor) else params:
        if not isinstance(param, Tensor):
            raise TypeError(f"params must be a module, a parameter or several, got a {type(param).__name__}")
        bring_up_to_date(param)


before_saving(bring_up_to_date)
