"""Where a program is watched: at the batches of its loaders, the calls of its modules, and its backward passes."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.utils.data.dataloader import _BaseDataLoaderIter

from maskgrad.doctor.ranks import end_group_last
from maskgrad.doctor.watching import Watch

__all__ = ["watch"]


class _Stopped(BaseException):
    """Enough was seen: ends the program if that was asked for."""


@contextlib.contextmanager
def watch(
    padding: Mapping[Any, Any] | None = None,
    *,
    documents: Any = None,
    causal: bool = False,
    steps: int = 2,
    stop: bool = False,
    blame: str = "program",
    progress: Callable[[str, int, int], None] | None = None,
) -> Iterator[Watch]:
    """Examine the first training steps inside the block while they run.

    For each batch of a ``DataLoader``, or each call of a model, a second computation with different values in the
    padding runs along with the first; after the backward pass, loss and gradients are compared. The results of the
    program do not change. From the second step on, on CPUs under Linux, the step is also run with one more column of
    padding, and with a sample alone: in processes that are forked when its batch arrives. With packed documents, or for
    a causal model, the model is called a few more times, from the same state, with changed documents or later
    positions; on one rank only. :func:`examine` runs more experiments.

    Args:
        padding: as in :func:`examine`; keys are those of the batches, or the names of the model's arguments.
        documents: as in :func:`examine`: the name of the model's argument with them; recognised by common names.
        causal: whether later positions must not reach earlier outputs of the model.
        steps: the number of steps to watch; the first with different values, the second with large ones.
        stop: leave the block after these steps.
        blame: as in :func:`examine`.
        progress: called with the experiment, the number of finished steps, and the number of steps to watch.

    Yields:
        an object whose ``report`` has the findings.

    Example:
        >>> import torch, maskgrad as mg
        >>> class Pooled(torch.nn.Linear):
        ...     def forward(self, x, mask):
        ...         return super().forward(x).mean(1)
        >>> model, x = Pooled(2, 1), torch.ones(2, 3, 2)
        >>> mask = torch.tensor([[True, True, True], [True, False, False]])
        >>> with mg.doctor.watch() as watched:
        ...     model(x, mask).sum().backward()
        >>> [finding.kind for finding in watched.report.findings]
        ['padding-leak']
    """
    watched = Watch(
        padding, steps, documents=documents, causal=causal, stop=stop, blame=blame, progress=progress
    )
    following, backward = _BaseDataLoaderIter.__next__, torch.autograd.backward

    @functools.wraps(following)
    def next_batch(loader: Any) -> Any:
        return watched.batch(following(loader), of_loader=True)

    @functools.wraps(backward)
    def run_backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        backward(tensors, *args, **kwargs)
        watched.differentiated(tensors)
        if watched.ends:
            raise _Stopped

    def called(module: nn.Module, args: Any) -> None:
        end_group_last(module)
        # a hook for all modules is not given keywords: they are in the frame of the call
        watched.called(module, args, sys._getframe(1).f_locals.get("kwargs", {}))

    handle = nn.modules.module.register_module_forward_pre_hook(called)
    try:
        with (
            mock.patch.object(_BaseDataLoaderIter, "__next__", next_batch),
            mock.patch.object(torch.autograd, "backward", run_backward),
            torch.compiler.set_stance("force_eager"),
        ):
            yield watched
    except _Stopped:
        pass
    except BaseException as error:
        watched.fail(error)
        raise
    finally:
        watched.fail(None)
        watched.close()
        handle.remove()
