"""One tensor, dense, sparse or masked, added up over the ranks."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from maskgrad.distributed.exchange import Exchange, Op, Slot, Way
from maskgrad.distributed.process_group import ProcessGroup
from maskgrad.gradients.attached import AnyGradient
from maskgrad.gradients.padded_rows import PaddedRows
from maskgrad.masked_tensor import MaskedTensor

__all__ = ["AllReduce", "all_reduce", "checked_choice"]


class AllReduce:
    """What :func:`all_reduce` with ``async_op=True`` returns: a result on its way."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange: Exchange | None = exchange
        self._result: Any = None

    def wait(self) -> Any:
        """The result; waits until it has arrived. May be called again.

        Raises:
            RuntimeError: a rank has ended, or did not answer within the group's timeout.
        """
        if self._exchange is not None:
            self._result = self._exchange.finish()[0]
            self._exchange = None
        return self._result


def all_reduce(
    x: AnyGradient,
    op: Op = "sum",
    group: Any = None,
    async_op: bool = False,
    *,
    exchange: Way = "auto",
) -> Any:
    r"""Add up what the ranks have, entry by entry: dense, sparse or masked tensors, also of different kinds.

    .. math:: y_i = \frac1d \sum_{r:\, i \text{ specified on rank } r} x^{(r)}_i, \qquad
              d = 1,\ W \text{ or } |\{r : i \text{ specified on rank } r\}|

    Args:
        x: strided, COO, CSR, CSC, BSR or BSC tensor, MaskedTensor of any layout, or :class:`maskgrad.PaddedRows`; any
            dtype that can be added up. All ranks have the same shape and dtype.
        op: ``"sum"``; ``"avg"``, the sum divided by the number W of ranks, as gradients are averaged; or ``"mean"``,
            divided by the number of ranks on which the entry is specified.
        group: a process group of any backend; None: the default one.
        async_op: return while the entries are still on their way; ``wait()`` of what is returned gives the result.
            How much each rank brings is found out before: that much is waited for.
        exchange: how sparse entries travel. ``"sparse"``: lists of them. ``"dense"``: the whole shape. ``"auto"``:
            whichever needs fewer bytes.

    Returns:
        The result, the same bit for bit on all ranks; ``x`` is left as it is. An entry is specified where it is on some
        rank. One strided tensor makes the result strided, one Boolean mask makes it a MaskedTensor with a mask;
        otherwise it has the common sparse layout, or COO where layouts differ; PaddedRows have the slots of all ranks
        together. Halves are added up in float32 and rounded once; Booleans are counted.

    Gradient:
        None; the result is detached. :func:`maskgrad.distributed.sum` is differentiable.

    Raises:
        TypeError: ``x`` is no tensor, or its dtype has no average. On all ranks.
        ValueError: shapes, dtypes or arguments differ between the ranks; ``op`` or ``exchange`` is unknown.
        IndexError: an index of a sparse ``x`` lies outside its shape, on any rank: on all ranks.
        RuntimeError: there is no process group; a rank has ended, or did not come within the group's timeout.

    Dense equivalent: ``torch.distributed.all_reduce``, in place.

    Example:
        >>> torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        >>> t = torch.sparse_coo_tensor([[1, 1]], [2., 3.], (3,), check_invariants=True)
        >>> mg.distributed.all_reduce(t).values()
        tensor([5.])
        >>> torch.distributed.destroy_process_group()

    Source: the sparse all-reduce that gloo has, and NCCL and half precision lack (PyTorch issue 22400).
    """
    ranks = ProcessGroup(group, "all_reduce")
    refusal: Exception | None = None
    slots: list[Slot] = []
    try:
        checked_choice("op", op, ("sum", "avg", "mean"))
        checked_choice("exchange", exchange, ("auto", "dense", "sparse"))
        if not isinstance(x, (Tensor, MaskedTensor, PaddedRows)):
            raise TypeError(f"x must be a tensor, a MaskedTensor or PaddedRows, found {type(x).__name__}")
        if op != "sum" and not (x.dtype.is_floating_point or x.dtype.is_complex):
            raise TypeError(
                f"op={op!r} has no meaning for dtype {x.dtype}; use op='sum', or convert x to a float"
            )
        slots = [Slot("x", x.shape, x.dtype, x.device, x)]
    except (TypeError, ValueError) as error:  # the other ranks are told
        refusal = error
    started = Exchange(slots, ranks, op, exchange, refusal)
    started.send()
    pending = AllReduce(started)
    return pending if async_op else pending.wait()


def checked_choice(name: str, value: object, known: tuple[str, ...]) -> None:
    """ValueError if ``value`` of argument ``name`` is not among ``known``."""
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, found {value!r}")
