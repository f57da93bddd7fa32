"""Finding the modules through which samples of a batch influence each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
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
    """Return the names of the modules through which samples of a batch influence each other.

    The model is run once, in its current mode. For the computations of each module itself, without its submodules,
    it is checked whether the gradient of one sample depends on another.

    Args:
        model: any module.
        batch: input of the model: a tensor or MaskedTensor (B, ...), a tuple of positional arguments, or a
            dict of keyword arguments. B, at least 2, is the size of the first dimension of its first tensor.

    Returns:
        The modules by their names in ``model.named_modules()``, in the order in which they were first called; ``""`` is
        the model's own ``forward``. Empty if samples are independent. Buffers, gradients and the random state are
        restored.

    The sample dimension of a tensor is inferred from its shape: the first of size B, or of a multiple of B (a
    batch flattened into it); the second for recurrent layers and attention with ``batch_first=False``. Choose a B that
    no other dimension has. Modules whose outputs have no such dimension are not checked.

    Gradient: none.

    Raises:
        TypeError: ``batch`` contains no tensor.
        ValueError: it has fewer than two samples.

    Dense equivalent: none.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
        >>> list(mg.find_coupling(model, torch.randn(8, 3)))
        ['1']
        >>> mg.find_coupling(model.eval(), torch.randn(8, 3))
        {}
    """
    args, kwargs, samples = _call_of(batch)
    search = _Search(model, samples)
    with search.hooks(), _as_it_was(model), torch.enable_grad():
        model(*args, **kwargs)
    return search.found


@dataclass(eq=False)
class _Call:
    """A running module: inputs and outputs of its own code, as tensors (B, entries of a sample)."""

    module: nn.Module
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)

    def is_coupled(self) -> bool:
        """Return whether a sample of the inputs changes another one of the outputs."""
        nodes = [Node("", leaf, leaf.shape, None) for leaf in self.inputs]
        passes = [BackwardPasses(output, nodes, chunk_size=1) for output in self.outputs if nodes]
        return any(coupled_input(each) is not None for each in passes)


class _Search:
    """Hooks that cut the graph at the inputs and outputs of every module, and check each piece."""

    def __init__(self, model: nn.Module, samples: int) -> None:
        self.samples = samples
        self.found: dict[str, nn.Module] = {}
        self._names = {module: name for name, module in model.named_modules()}
        self._running: list[_Call] = []

    @contextmanager
    def hooks(self) -> Iterator[None]:
        with ExitStack() as stack:
            for module in self._names:
                stack.callback(
                    module.register_forward_pre_hook(self._before, with_kwargs=True, prepend=False).remove
                )
                stack.callback(module.register_forward_hook(self._after).remove)
            yield

    def _before(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        call = _Call(module)
        if self._running:
            self._leave((args, kwargs), self._running[-1], module)
        self._running.append(call)
        entering: tuple[tuple[Any, ...], dict[str, Any]] = self._enter((args, kwargs), call, module)
        return entering

    def _after(self, module: nn.Module, *arguments_and_output: Any) -> Any:
        output = arguments_and_output[-1]
        while self._running[-1].module is not module:  # it raised, and its caller continued
            self._running.pop()
        call = self._running.pop()
        self._leave(output, call, module)
        name = self._names[module]
        if name not in self.found and call.is_coupled():
            self.found[name] = module
        if not self._running:
            return output
        if not call.outputs:  # an object without known tensors; they are checked where they are read from it
            self._running[-1].inputs += call.inputs
        return self._enter(output, self._running[-1], module)

    def _enter(self, tree: Any, call: _Call, module: nn.Module) -> Any:
        """Return tensors as new leaves of a graph, which are inputs of ``call``."""

        def cut(tensor: Any) -> Any:
            dim = self._samples_along(tensor, module)
            if dim is None:
                return tensor
            leaf = self._by_samples(tensor.detach(), dim).requires_grad_()
            call.inputs.append(leaf)
            # Copied, so that the module may modify its inputs.
            return leaf.reshape(tensor.movedim(dim, 0).shape).movedim(0, dim).clone()

        return pytree.tree_map(cut, tree)

    def _leave(self, tree: Any, call: _Call, module: nn.Module) -> None:
        for tensor in pytree.tree_leaves(tree):
            dim = self._samples_along(tensor, module)
            if dim is not None and tensor.requires_grad:
                call.outputs.append(self._by_samples(tensor, dim))

    def _samples_along(self, tensor: Any, module: nn.Module) -> int | None:
        """Return the dimension of the samples; None: not differentiable, or no such dimension."""
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
    """Restore buffers and random states at the end."""
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


def _call_of(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any], int]:
    """Return positional and keyword arguments of the model, and the number of samples."""
    kwargs = dict(batch) if isinstance(batch, Mapping) else {}
    args = (
        () if isinstance(batch, Mapping) else tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
    )
    leaves = pytree.tree_leaves((args, kwargs), is_leaf=lambda leaf: isinstance(leaf, MaskedTensor))
    first = next((leaf for leaf in leaves if isinstance(leaf, (Tensor, MaskedTensor)) and leaf.ndim), None)
    if first is None:
        raise TypeError(
            "batch must be a tensor (B, ...), a tuple of arguments or a dict of keyword arguments with a tensor, "
            f"found {[type(leaf).__name__ for leaf in leaves]}"
        )
    if first.shape[0] < 2:
        raise ValueError(
            f"batch must have at least two samples, found a tensor of shape {tuple(first.shape)}"
        )
    return args, kwargs, int(first.shape[0])
