"""Many backward passes through one graph: with several cotangents at once if that is supported."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import Node as GraphNode
from torch.autograd.graph import get_gradient_edge

from maskgrad.gradients.batch_nodes import Node

__all__ = ["BackwardPasses", "Gradients", "joined", "nodes_between"]

#: (start, stop) -> the cotangents of these indices, (stop - start, B, *O)
Cotangents = Callable[[int, int], Tensor]
Gradients = list[Tensor | None]

#: entries of the output, or of an input's gradient, in the passes that run at once
_AT_ONCE = 2**20


class BackwardPasses:
    """Backward passes from ``output`` (B, *O) to some inputs, ``chunk_size`` of them at once; the graph is kept."""

    def __init__(
        self,
        output: Tensor,
        inputs: Sequence[Node],
        create_graph: bool = False,
        chunk_size: int | None = None,
    ) -> None:
        self.output, self.inputs, self.create_graph = output, inputs, create_graph
        self._plain = [node.plain for node in inputs]
        largest = max(1, *(tensor.numel() for tensor in (output, *self._plain)))
        self._at_once = chunk_size or max(1, _AT_ONCE // largest)

    def one(self, cotangent: Tensor, create_graph: bool = False) -> Gradients:
        """Return the gradients (B, *I) of each input for one cotangent (B, *O); None: it is not reached."""
        found = torch.autograd.grad(
            self.output,
            self._plain,
            cotangent,
            retain_graph=True,
            create_graph=create_graph,
            allow_unused=True,
        )
        return [
            None if gradient is None else _in_memory(node.dense(gradient))
            for gradient, node in zip(found, self.inputs, strict=True)
        ]

    def all(self, cotangents: Cotangents, number: int) -> Gradients:
        """Return gradients (number, B, *I) of all cotangents; None for an input that no pass reached."""
        if not number:
            found = self.one(torch.zeros_like(self.output))
            return [
                None if gradient is None else gradient.new_zeros((0, *gradient.shape)) for gradient in found
            ]
        chunks: list[tuple[int, Gradients]] = []
        start = 0
        while start < number:
            stop = min(start + self._at_once, number)
            sent = cotangents(start, stop)
            together = self._together(sent) if stop - start > 1 else None
            if together is not None:
                chunks.append((stop - start, together))
            else:
                for cotangent in sent:
                    alone = self.one(cotangent, self.create_graph)
                    chunks.append((1, [None if g is None else g[None] for g in alone]))
            start = stop
        return [joined([(size, chunk[i]) for size, chunk in chunks]) for i in range(len(self.inputs))]

    def _together(self, cotangents: Tensor) -> Gradients | None:
        """Run one pass with a batch of cotangents; None if a node of the graph does not support it."""
        try:
            with warnings.catch_warnings():
                # A node without a rule for batches is run in turn by torch, as here.
                warnings.filterwarnings("ignore", message="There is a performance drop")
                found = torch.autograd.grad(
                    self.output,
                    self._plain,
                    cotangents,
                    retain_graph=True,
                    create_graph=self.create_graph,
                    allow_unused=True,
                    is_grads_batched=True,
                )
        except Exception:
            # Sparse products, old custom functions, not enough memory: each is an error of its own kind. If it has
            # another cause than the batch, the pass in turn that follows raises it again.
            self._at_once = 1
            return None
        return [
            torch.stack([node.dense(part) for part in gradient])
            if gradient is not None and node.pattern is not None
            else _in_memory(gradient)
            for gradient, node in zip(found, self.inputs, strict=True)
        ]


def _in_memory(gradient: Tensor | None) -> Tensor | None:
    """Return a gradient that can be written to: some second derivatives are zeros that PyTorch does not store."""
    return gradient.clone() if gradient is not None and gradient._is_zerotensor() else gradient


def joined(pieces: Sequence[tuple[int, Tensor | None]]) -> Tensor | None:
    """Concatenate pieces of given lengths; None is zero, and the result if all pieces are None."""
    known = next((piece for _, piece in pieces if piece is not None), None)
    if known is None:
        return None
    # a custom function may omit a gradient that is zero
    filled = [
        known.new_zeros((length, *known.shape[1:])) if piece is None else piece for length, piece in pieces
    ]
    return filled[0] if len(filled) == 1 else torch.cat(filled)


def nodes_between(output: Tensor, inputs: Sequence[Tensor]) -> set[GraphNode]:
    """Return the nodes of the graph through which a backward pass from ``output`` reaches ``inputs``."""
    ends = {tensor.grad_fn for tensor in inputs if tensor.grad_fn is not None}
    leaves = {id(tensor) for tensor in inputs if tensor.grad_fn is None}
    parents: dict[GraphNode, list[GraphNode]] = {get_gradient_edge(output).node: []}
    waiting = list(parents)
    while waiting:
        node = waiting.pop()
        if node in ends:  # do not go beyond inputs
            continue
        if id(getattr(node, "variable", None)) in leaves:
            ends.add(node)
        for following, _ in node.next_functions:
            if following is None:
                continue
            if following not in parents:
                parents[following] = []
                waiting.append(following)
            parents[following].append(node)
    on_the_way: set[GraphNode] = set()
    waiting = [node for node in ends if node in parents]
    while waiting:
        node = waiting.pop()
        if node not in on_the_way:
            on_the_way.add(node)
            waiting.extend(parents[node])
    return on_the_way
