"""Differentiable sums over ranks: the derivative of a sum over ranks is a sum over ranks.

If every rank computes its own loss, the gradient here is that of the sum of all losses. If the ranks'
gradients are averaged afterwards, as DistributedDataParallel does, that is the gradient of the mean loss, as in
one process on the joint batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.data import Sampler

from maskgrad.distributed.agreement import check_consistent, digest
from maskgrad.distributed.process_group import ProcessGroup
from maskgrad.masked_tensor import MaskedTensor, masked
from maskgrad.semantics.losses import OPERATIONS
from maskgrad.semantics.losses.adding_up import adding_up

__all__ = ["global_losses", "global_sums", "sampler_mask"]


def global_sums(
    ranks: ProcessGroup, parts: Sequence[Tensor], error: Exception | None = None
) -> tuple[Tensor, ...]:
    """The sum over the ranks of each of ``parts``, strided, of the same shapes and dtypes on all ranks.

    If a part needs a gradient on some rank, the result does on all of them, so that all take part in the backward pass.
    """
    plan = f"{ranks.what} of " + "; ".join(f"{tuple(p.shape)} {p.dtype}" for p in parts)
    wanted = torch.is_grad_enabled() and any(p.requires_grad for p in parts)
    own = torch.tensor([int(error is not None), digest(plan), int(wanted)], device=ranks.device)
    rows = ranks.gather(own).tolist()
    if any(row[0] or row[1] != rows[0][1] for row in rows):
        check_consistent(ranks, plan, error)
    if any(row[2] for row in rows):
        # If nothing needs a gradient, this ensures that the backward pass comes here.
        witness = torch.zeros((), requires_grad=True)
        return cast("tuple[Tensor, ...]", _SumOverRanks.apply(ranks, witness, *parts))  # type: ignore[no-untyped-call]
    return _summed(ranks, parts)


def _summed(ranks: ProcessGroup, parts: Sequence[Tensor]) -> tuple[Tensor, ...]:
    works: list[Any] = []
    sent = []
    for part in parts:
        device = ranks.transport(part.device)
        total = part.detach().to(ranks.summable(part.dtype), memory_format=torch.contiguous_format).to(device)
        total = total.clone() if total.data_ptr() == part.data_ptr() else total
        ranks.add(total, works)
        sent.append(total)
    ranks.wait(works)
    return tuple(total.to(part.device, part.dtype) for total, part in zip(sent, parts, strict=True))


class _SumOverRanks(torch.autograd.Function):
    """Tensors summed over the ranks, as is their gradient, any number of times."""

    @staticmethod
    def forward(ctx: Any, ranks: ProcessGroup, _: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
        ctx.ranks = ranks
        totals = _summed(ranks, parts)
        ctx.mark_non_differentiable(*(t for t in totals if not _has_gradient(t)))
        return totals

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor | None, ...]:
        back: list[Tensor | None] = [None] * len(incoming)
        chosen = {i: g for i, g in enumerate(incoming) if g is not None and _has_gradient(g)}
        if chosen:
            witness = torch.zeros((), requires_grad=True)
            summed = _SumOverRanks.apply(ctx.ranks, witness, *chosen.values())  # type: ignore[no-untyped-call]
            for i, total in zip(chosen, summed, strict=True):
                back[i] = total
        return None, None, *back


def _has_gradient(x: Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


@contextlib.contextmanager
def global_losses(group: Any = None) -> Iterator[None]:
    r"""Context manager in which losses are reduced over all ranks: the sum of all losses, divided by their number.

    .. math:: L = \frac{\sum_r \sum_i m^{(r)}_i \ell^{(r)}_i}{\sum_r \sum_i m^{(r)}_i}

    Every loss of ``torch.nn.functional``, called directly or by a module, with masked or plain arguments, has the value
    of one process on the joint batch, on every rank. Weighted means divide by the weights of all ranks, and
    entries with ``ignore_index`` are ignored. The average of the ranks' own means would give a rank with few specified
    entries the same weight as one with many.

    All ranks must call the same losses in the same order, and run the backward pass; a rank without samples passes an
    empty or fully masked batch.

    Args:
        group: a process group of any backend; None: the default one.

    Gradient:
        Averaged over the ranks it is that of one process on the joint batch; exactly 0 at unspecified entries. Where
        gradients are summed instead, divide the loss by the number of ranks. ``reduction="none"`` is not affected.

    Raises:
        RuntimeError: there is no process group; a rank has ended, or did not respond within the group's timeout.
        ValueError: in a loss: the ranks do not compute the same kind of loss.

    Dense equivalent: ``reduction="sum"``, and division by a count from ``torch.distributed.all_reduce``.

    Example:
        >>> torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        >>> target = mg.from_nan(torch.tensor([2., float("nan")]))
        >>> with mg.distributed.global_losses():
        ...     torch.nn.functional.mse_loss(torch.zeros(2), target)
        tensor(4.)
        >>> torch.distributed.destroy_process_group()

    Source: Ott et al., "fairseq", NAACL 2019; ``num_items_in_batch`` of Hugging Face's trainer.
    """
    ranks = ProcessGroup(group, "a loss of all ranks")
    with adding_up(lambda *parts: global_sums(ranks, parts)), _PlainLosses():
        yield


class _PlainLosses(TorchFunctionMode):
    """Treat losses of plain tensors like masked ones, and return plain tensors."""

    known = frozenset(function for operation in OPERATIONS for function in operation.functions)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        given = (*args, *kwargs.values())
        if func not in self.known or any(isinstance(one, MaskedTensor) for one in given):
            return func(*args, **kwargs)
        if args:
            result = func(masked(args[0]), *args[1:], **kwargs)
        else:
            name = next(name for name in kwargs if isinstance(kwargs[name], Tensor))
            result = func(**{**kwargs, name: masked(kwargs[name])})
        if not isinstance(result, MaskedTensor):
            return result
        # of each position: all are specified, and the dtype is unchanged
        return result.filled(torch.nan if result.is_floating_point() else 0)


def sampler_mask(sampler: Sampler[int]) -> Tensor:
    r"""Mask of this rank's samples: False for those that the sampler repeats to give all ranks equally many.

    .. math:: m_k = (k W + r < N)

    for the k-th sample of rank r of W, of a dataset of N.

    Args:
        sampler: a ``torch.utils.data.DistributedSampler``.

    Returns:
        Boolean tensor (``len(sampler)``,), in the sampler's order, in every epoch. All True
        with ``drop_last=True``. Over all ranks, as many are True as the dataset has samples. Gradient: none.

    Raises:
        TypeError: ``sampler`` is not a DistributedSampler.

    Dense equivalent: none; repeated samples count twice.

    Example:
        >>> sampler = torch.utils.data.DistributedSampler(range(5), num_replicas=2, rank=1)
        >>> len(sampler), mg.distributed.sampler_mask(sampler)
        (3, tensor([ True,  True, False]))

    Source: ``torch.utils.data.DistributedSampler``, which pads with its first indices.
    """
    names = ("dataset", "num_replicas", "rank", "num_samples", "drop_last")
    if not all(hasattr(sampler, name) for name in names):
        raise TypeError(
            f"sampler must be a torch.utils.data.DistributedSampler, found {type(sampler).__name__}"
        )
    number, ranks, rank = sampler.num_samples, sampler.num_replicas, sampler.rank  # type: ignore[attr-defined]
    counted: Tensor = torch.arange(number) * ranks + rank < len(sampler.dataset)  # type: ignore[attr-defined]
    return counted
