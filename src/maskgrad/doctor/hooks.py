"""Where a program is watched: at the batches of its loaders, the calls of its modules, and its backward passes."""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils.data.dataloader import _BaseDataLoaderIter

from maskgrad.doctor.ranks import end_group_last
from maskgrad.doctor.watching import Watch

__all__ = ["watch"]


_ForceDispatchKeyGuard = torch._C._ForceDispatchKeyGuard


def _guard(*keys: Any) -> Any:
    """What a compiled function enters: at its end it would take away a mode that was entered inside."""
    compiled = sys._getframe(1).f_code.co_name == "compile_wrapper"
    return contextlib.nullcontext() if compiled else _ForceDispatchKeyGuard(*keys)


class _Stopped(BaseException):
    """Enough was seen: ends the program if that was asked for."""


@contextlib.contextmanager
def watch(
    padding: Mapping[Any, Any] | None = None, *, documents: Any = None, causal: bool = False,
    steps: int = 2, stop: bool = False, progress: Callable[[str], None] = lambda _: None,
) -> Iterator[Watch]:  # fmt: skip
    """Examine the first training steps inside the block while they run.

    For each batch of a ``DataLoader``, or each call of a model, a second computation with different values in the
    padding runs along with the first; after the backward pass, loss and gradients are compared. The results of the
    program do not change. From the second step on, on CPUs under Linux, the step is also run with one more column of
    padding, and with a sample alone: in processes that are forked when its batch arrives. With packed documents, or for
    a causal model, the model is called a few more times, from the same state, with changed documents or later
    positions. :func:`examine` runs more experiments.

    Args:
        padding: as in :func:`examine`; keys are those of the batches, or the names of the model's arguments.
        documents: as in :func:`examine`: the name of the model's argument with them; recognised by common names.
        causal: whether later positions must not reach earlier outputs of the model.
        steps: the number of steps to watch; the first with different values, the second with large ones.
        stop: leave the block after these steps.
        progress: called with the step and the experiment, in words.

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
    watched = Watch(padding, steps, documents=documents, causal=causal, stop=stop, progress=progress)
    try:
        with _observed(watched):
            yield watched
    except _Stopped:
        pass
    except BaseException as error:
        watched.fail(error)
        raise
    finally:
        watched.fail(None)
        watched.close()


@contextlib.contextmanager
def _observed(watched: Watch) -> Iterator[None]:
    """Batches of data loaders, calls of modules and backward passes are shown to ``watched``."""
    following = _BaseDataLoaderIter.__next__
    backward, grad = torch.autograd.backward, torch.autograd.grad

    @functools.wraps(following)
    def next_batch(loader: Any) -> Any:
        batch = following(loader)
        return batch if watched.is_off else watched.batch(batch, loader)

    @functools.wraps(backward)
    def run_backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        if not watched.is_off:
            watched.read_by_loss(tensors)
        backward(tensors, *args, **kwargs)
        after(tensors)

    @functools.wraps(grad)
    def run_grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        with mock.patch.object(torch.autograd, "grad", grad):  # modes, as of a default device, call it
            found = grad(outputs, inputs, *args, **kwargs)
        pairs = [*zip([inputs] if isinstance(inputs, Tensor) else inputs, found, strict=True)]
        # else it is a part of the loss, such as a penalty of gradients
        creates_graph = kwargs.get("create_graph", args[2] if len(args) > 2 else False)
        if not creates_graph and any(isinstance(leaf, nn.Parameter) for leaf, _ in pairs):
            after(outputs, [(leaf, gradient) for leaf, gradient in pairs if gradient is not None])
        return found

    def after(losses: Any, gradients: list[tuple[Tensor, Tensor]] | None = None) -> None:
        if not watched.is_off:
            watched.differentiated(losses, gradients)
            if watched.stops and watched.done:
                raise _Stopped

    def called(module: nn.Module, args: Any) -> None:
        end_group_last(module)
        if not watched.is_off:
            # a hook for all modules is not given keywords: they are in the frame of the call
            watched.called(module, args, sys._getframe(1).f_locals.get("kwargs", {}))

    warnings.filterwarnings("ignore", "Using `torch.compile.module.` when there are global hooks")
    with (
        nn.modules.module.register_module_forward_pre_hook(called),
        mock.patch.object(_BaseDataLoaderIter, "__next__", next_batch),
        mock.patch.object(torch.autograd, "backward", run_backward),
        mock.patch.object(torch.autograd, "grad", run_grad),
        torch.compiler.set_stance("force_eager"),
        mock.patch.object(torch._C, "_ForceDispatchKeyGuard", _guard),
    ):
        yield
