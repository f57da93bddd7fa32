"""Losses divided by what all ranks have together."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from maskgrad.distributed.all_reduction import checked_choice
from maskgrad.distributed.global_sums import Gradients, global_sums
from maskgrad.distributed.process_group import ProcessGroup
from maskgrad.masked_tensor import MaskedTensor, masked
from maskgrad.semantics.losses import OPERATIONS
from maskgrad.semantics.losses.adding_up import adding_up

__all__ = ["global_losses"]


@contextlib.contextmanager
def global_losses(group: Any = None, *, gradients: Gradients = "averaged") -> Iterator[None]:
    r"""Within this context losses are reduced over all ranks: the sum of all losses, by the number of all of them.

    .. math:: L = \frac{\sum_r \sum_i m^{(r)}_i \ell^{(r)}_i}{\sum_r \sum_i m^{(r)}_i}

    Every loss of ``torch.nn.functional``, called directly or by a module, with masked or plain arguments: it has the
    value of one process on the joint batch, on every rank. Weighted means divide by the weights of all ranks, and
    ``ignore_index`` counts for nothing anywhere. Otherwise a rank with few specified entries would count as much as
    one with many.

    All ranks call the same losses in the same order, a rank without any sample too: with an empty or fully masked
    batch. They all go through the backward pass.

    Args:
        group: a process group of any backend; None: the default one.
        gradients: what happens to the ranks' gradients afterwards: ``"averaged"``, as by
            :func:`maskgrad.distributed.prepare` and DistributedDataParallel; ``"summed"``, or nothing.

    Gradient:
        Such that the average (or the sum) over the ranks is that of one process on the joint batch. Entries
        that are unspecified get 0. ``reduction="none"`` is left alone.

    Raises:
        RuntimeError: there is no process group; a rank has ended, or did not come within the group's timeout.
        ValueError: ``gradients`` is unknown; in a loss: the ranks do not compute the same kind of loss.

    Dense equivalent: ``reduction="sum"``, and division by a number from ``torch.distributed.all_reduce``.

    Example:
        >>> torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        >>> target = mg.from_nan(torch.tensor([2., float("nan")]))
        >>> with mg.distributed.global_losses():
        ...     torch.nn.functional.mse_loss(torch.zeros(2), target)
        tensor(4.)
        >>> torch.distributed.destroy_process_group()

    Source: Ott et al., "fairseq", NAACL 2019; ``num_items_in_batch`` of Hugging Face's trainer.
    """
    checked_choice("gradients", gradients, ("averaged", "summed"))
    ranks = ProcessGroup(group, "a loss of all ranks")
    adder = functools.partial(_added_up, ranks, gradients)
    with adding_up(adder), _PlainLosses():
        yield


def _added_up(ranks: ProcessGroup, gradients: Gradients, *parts: Tensor) -> tuple[Tensor, ...]:
    return global_sums(ranks, parts, gradients)


class _PlainLosses(TorchFunctionMode):
    """Lets losses of plain tensors go the same way as masked ones, and gives plain tensors back."""

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
        # of each position: all are specified, and the dtype stays as it is
        return result.filled(torch.nan if result.is_floating_point() else 0)
