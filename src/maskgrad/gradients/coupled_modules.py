"""Which modules of a model let the samples of a batch influence each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from maskgrad.gradients.backward_passes import BackwardPasses
from maskgrad.gradients.batch_nodes import Node
from maskgrad.gradients.coupling import coupled_input
from maskgrad.masked_tensor import MaskedTensor

__all__ = ["find_coupling"]


def find_coupling(model: nn.Module, batch: Any) -> dict[str, nn.Module]:
    """Name the modules through which samples of a batch influence each other.

    The model is run once, in the mode that it is in. What each module computes by itself, between its inputs and its
    outputs and outside of the modules that it calls, is asked whether the gradient of one sample depends on another.

    Args:
        model: any module.
        batch: what the model is called with: a tensor or MaskedTensor (B, ...), a tuple of positional arguments, or a
            dict of keyword arguments. B, at least 2, is the size of the first dimension of its first tensor.

    Returns:
        The modules by their names in ``model.named_modules()``, in the order in which they were first called; ``""`` is
        the model's own ``forward``. Empty if samples are independent. Buffers, gradients and the random state are
        afterwards as they were.

    Along which dimension of a tensor samples lie is read from its shape: the first of size B, or of a multiple of B (a
    batch flattened into it); the second for recurrent layers and attention with ``batch_first=False``. Choose a B that
    no other dimension has. Modules whose outputs have no such dimension are not asked.

    Gradient: none.

    Raises:
        TypeError: ``batch`` holds no tensor.
        ValueError: it has fewer than two samples.

    Dense equivalent: none.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
        >>> list(mg.find_coupling(model, torch.randn(8, 3)))
        ['1']
        >>> mg.find_coupling(model.eval(), torch.randn(8, 3))
        {}
    """
    args, kwargs = _call_of(batch)
    samples = _number_of_samples(args, kwargs)
    search = _Search(model, samples)
    with search.watching(), _as_it_was(model), torch.enable_grad():
        model(*args, **kwargs)
    return search.found


class _Frame:
    """A module that is running: what came into its own code, and what left it, as tensors (B, entries of a sample)."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.entered: list[Tensor] = []
        self.left: list[Tensor] = []

    def is_coupled(self) -> bool:
        """Whether a sample that entered has changed another one that left."""
        inputs = [Node("", leaf, leaf.shape, None) for leaf in self.entered]
        if not inputs:
            return False
        return any(
            coupled_input(BackwardPasses(output, inputs, chunk_size=1)) is not None for output in self.left
        )


class _Search:
    """Hooks that cut the graph at the border of every module, and ask each piece."""

    def __init__(self, model: nn.Module, samples: int) -> None:
        self.samples = samples
        self.found: dict[str, nn.Module] = {}
        self._names = {module: name for name, module in model.named_modules()}
        self._running: list[_Frame] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        with ExitStack() as stack:
            for module in self._names:
                before = module.register_forward_pre_hook(self._before, with_kwargs=True, prepend=False)
                after = module.register_forward_hook(self._after)
                stack.callback(before.remove)
                stack.callback(after.remove)
            yield

    def _before(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        frame = _Frame(module)
        if self._running:
            self._leave((args, kwargs), self._running[-1], module)
        self._running.append(frame)
        entering: tuple[tuple[Any, ...], dict[str, Any]] = self._enter((args, kwargs), frame, module)
        return entering

    def _after(self, module: nn.Module, *arguments_and_output: Any) -> Any:
        output = arguments_and_output[-1]
        while self._running[-1].module is not module:  # it raised, and its caller went on
            self._running.pop()
        frame = self._running.pop()
        self._leave(output, frame, module)
        name = self._names[module]
        if name not in self.found and frame.is_coupled():
            self.found[name] = module
        if not self._running:
            return output
        if not frame.left:  # an object that we cannot look into; what is in it is asked when it comes out
            self._running[-1].entered += frame.entered
        return self._enter(output, self._running[-1], module)

    def _enter(self, tree: Any, frame: _Frame, module: nn.Module) -> Any:
        """Tensors as new leaves of a graph, which begin in ``frame``."""

        def cut(tensor: Any) -> Any:
            dim = self._samples_along(tensor, module)
            if dim is None:
                return tensor
            leaf = self._by_samples(tensor.detach(), dim).requires_grad_()
            frame.entered.append(leaf)
            # Copied, so that the module may write to what it is given.
            return leaf.reshape(tensor.movedim(dim, 0).shape).movedim(0, dim).clone()

        return pytree.tree_map(cut, tree)

    def _leave(self, tree: Any, frame: _Frame, module: nn.Module) -> None:
        for tensor in pytree.tree_leaves(tree):
            dim = self._samples_along(tensor, module)
            if dim is not None and tensor.requires_grad:
                frame.left.append(self._by_samples(tensor, dim))

    def _samples_along(self, tensor: Any, module: nn.Module) -> int | None:
        """The dimension of the samples; None where there is nothing to differentiate, or no such dimension."""
        if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided or not tensor.numel():
            return None
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return None
        sizes = list(tensor.shape)
        if getattr(module, "batch_first", True) is False and sizes[1:2] == [self.samples]:
            return 1
        if self.samples in sizes:
            return sizes.index(self.samples)
        return 0 if sizes and sizes[0] % self.samples == 0 else None

    def _by_samples(self, tensor: Tensor, dim: int) -> Tensor:
        return tensor.movedim(dim, 0).reshape(self.samples, -1)


@contextmanager
def _as_it_was(model: nn.Module) -> Iterator[None]:
    """Put buffers and random states back at the end."""
    before = [
        (module, name, buffer, None if buffer is None else buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
    ]
    devices = {p.device.index for p in model.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices=sorted(device for device in devices if device is not None)):
        try:
            yield
        finally:
            with torch.no_grad():
                for module, name, buffer, values in before:
                    module._buffers[name] = buffer
                    if buffer is not None and values is not None:
                        buffer.copy_(values)


def _call_of(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(batch, Mapping):
        return (), dict(batch)
    if isinstance(batch, (tuple, list)):
        return tuple(batch), {}
    return (batch,), {}


def _number_of_samples(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    leaves = pytree.tree_leaves((args, kwargs), is_leaf=lambda leaf: isinstance(leaf, MaskedTensor))
    first = next((leaf for leaf in leaves if isinstance(leaf, (Tensor, MaskedTensor)) and leaf.ndim), None)
    if first is None:
        raise TypeError(
            "batch must be a tensor (B, ...), a tuple of arguments or a dict of keyword arguments that holds one, "
            f"found {[type(leaf).__name__ for leaf in leaves]}"
        )
    if first.shape[0] < 2:
        raise ValueError(
            f"batch must hold at least two samples, found a tensor of shape {tuple(first.shape)}"
        )
    return int(first.shape[0])
