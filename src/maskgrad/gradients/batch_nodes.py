"""Outputs and inputs of a batch: their nodes in the autograd graph, and their specified entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from maskgrad.masked_tensor import MaskedTensor
from maskgrad.masked_tensor.tensor import of_entries, stored_of
from maskgrad.patterns import StoredPattern
from maskgrad.semantics.stored.entries import StoredEntries, densified

__all__ = ["Node", "backward_pass", "input_nodes", "outer", "output_nodes", "require_batch"]


class Node(NamedTuple):
    """One output or input of a graph, (B, ...)."""

    #: as in user code, ``"inputs[0]"``
    name: str
    #: the tensor that autograd differentiates; the stored values of a sparse layout
    plain: Tensor
    #: the whole shape
    shape: torch.Size
    #: the specified entries; None: all
    mask: Tensor | None
    pattern: StoredPattern | None = None

    def dense(self, gradient: Tensor) -> Tensor:
        """Return a gradient of ``plain`` in the whole shape; strided."""
        if self.pattern is not None:
            return densified(StoredEntries(gradient, self.pattern))[0]
        return gradient if gradient.layout is torch.strided else gradient.to_dense()


def output_nodes(outputs: Any) -> tuple[list[Node], pytree.TreeSpec]:
    """Return the leaves of ``outputs``, which must be in a graph and have a dimension for the batch."""
    named, spec = _named_leaves(outputs, "outputs")
    nodes = []
    for name, leaf in named:
        if not leaf.ndim:
            raise ValueError(
                f"{name} must have shape (B, ...), one row for each sample, found a tensor without dimensions; "
                "do not reduce over the batch, as in loss.sum(1) instead of loss.sum()"
            )
        if isinstance(leaf, MaskedTensor):
            with torch.enable_grad():  # one more node of the graph that the user built
                values, mask = leaf._dense()
                node = Node(name, torch.where(mask, values, 0), leaf.shape, mask)
        else:
            node = Node(name, leaf, leaf.shape, None)
        if not node.plain.requires_grad:
            raise ValueError(
                f"{name} is not part of a graph: it does not require grad. Compute it from inputs with "
                "requires_grad=True, outside of torch.no_grad() and without detach()"
            )
        nodes.append(node)
    return nodes, spec


def input_nodes(inputs: Any) -> tuple[list[Node], pytree.TreeSpec]:
    """Return the leaves of ``inputs``, which must require grad."""
    named, spec = _named_leaves(inputs, "inputs")
    nodes = []
    for name, leaf in named:
        stored = stored_of(leaf) if isinstance(leaf, MaskedTensor) else None
        if stored is not None:
            node = Node(name, stored.values, leaf.shape, leaf.mask, stored.pattern)
        elif isinstance(leaf, MaskedTensor):
            node = Node(name, leaf._values, leaf.shape, leaf.mask)
        else:
            node = Node(name, leaf, leaf.shape, None)
        if not node.plain.requires_grad:
            raise ValueError(
                f"{name} does not require grad, so it is not part of the graph; call requires_grad_() on this input "
                "before the outputs are computed from it"
            )
        nodes.append(node)
    return nodes, spec


def require_batch(output: Node, inputs: Sequence[Node]) -> int:
    """Return the number of samples B; ValueError if an input does not have shape (B, ...)."""
    samples = output.shape[0]
    for node in inputs:
        if not node.shape or node.shape[0] != samples:
            raise ValueError(
                f"{node.name} must have shape (B, ...) with B = {samples}, the number of samples in {output.name} "
                f"{tuple(output.shape)}, found {tuple(node.shape)}; for parameters, which all samples share, use "
                "mg.per_sample_grad"
            )
    return samples


def backward_pass(
    output: Tensor, inputs: Sequence[Node], cotangent: Tensor, create_graph: bool = False
) -> list[Tensor | None]:
    """Return the gradients (B, *I) of each input for a cotangent (B, *O), None if unreached; the graph is kept."""
    found = torch.autograd.grad(
        output,
        [node.plain for node in inputs],
        cotangent,
        retain_graph=True,
        create_graph=create_graph,
        allow_unused=True,
    )
    return [None if g is None else node.dense(g) for g, node in zip(found, inputs, strict=True)]


def outer(values: Tensor, output: Node, given: Node) -> Tensor | MaskedTensor:
    """Return derivatives (B, *O, *I) with the patterns of outputs and inputs; plain if both are fully specified."""
    own, between = output.mask, len(output.shape) - 1
    if own is None and given.mask is None:
        return values
    mask = torch.ones((), dtype=torch.bool, device=values.device)
    if own is not None:
        mask = mask & own.reshape(own.shape + (1,) * (len(given.shape) - 1))
    if given.mask is not None:
        known = given.mask.to(values.device)
        mask = mask & known.reshape(known.shape[:1] + (1,) * between + known.shape[1:])
    mask = mask.expand(values.shape)
    return of_entries(torch.where(mask, values, 0), mask)


def _named_leaves(tree: Any, name: str) -> tuple[list[tuple[str, Any]], pytree.TreeSpec]:
    leaves, spec = pytree.tree_flatten_with_path(tree, is_leaf=lambda leaf: isinstance(leaf, MaskedTensor))
    named = [(name + pytree.keystr(path), leaf) for path, leaf in leaves]
    for path, leaf in named:
        if not isinstance(leaf, (Tensor, MaskedTensor)):
            raise TypeError(f"{path} must be a tensor, found {type(leaf).__name__}")
    if not named:
        raise ValueError(f"{name} must contain at least one tensor, found {tree!r}")
    return named, spec
