"""Many backward passes through one graph: with several cotangents at once if that is faster and supported."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import Node as GraphNode
from torch.autograd.graph import get_gradient_edge

from maskgrad.gradients.batch_nodes import Node

__all__ = ["BackwardPasses", "Cotangents", "gradient_sizes", "joined", "nodes_between"]

#: (start, stop) -> the cotangents of these indices, (stop - start, B, *O)
Cotangents = Callable[[int, int], Tensor]
Gradients = list[Tensor | None]

# Measured on two cores with networks of 5 to 30 nodes: from the first number of entries of a gradient on, passes are
# bound by memory, and several at once (whose gradients no longer fit the cache) take up to twice as long as in turn (16
# outputs of 256 samples in layers of 256 units: 1.3 to 1.4 times, of 128 samples 0.9 to 1.1). Below they save the
# overhead of each node, up to the second number of entries.
_IN_TURN_FROM = 65_536
_AT_ONCE = 2**20
# An accelerator is the opposite: it is idle unless much work is sent at once.
_AT_ONCE_ON_ACCELERATOR = 2**26
#: minimum number of passes
_FEWEST_AT_ONCE = 3


class BackwardPasses:
    """Backward passes from ``output`` (B, *O) to some inputs; the graph is kept.

    ``chunk_size`` is the number of cotangents sent at once; None: chosen by the sizes of gradients.
    """

    def __init__(
        self,
        output: Tensor,
        inputs: Sequence[Node],
        create_graph: bool = False,
        chunk_size: int | None = None,
    ) -> None:
        self.output, self.inputs, self.create_graph = output, inputs, create_graph
        self._plain = [node.plain for node in inputs]
        self._at_once = chunk_size or self._what_pays()
        self._fixed = chunk_size is not None

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

    def none(self) -> Gradients:
        """Return gradients (0, B, *I) of no cotangents; None for an input that no pass would reach."""
        found = self.one(torch.zeros_like(self.output))
        return [None if gradient is None else gradient.new_zeros((0, *gradient.shape)) for gradient in found]

    def each(self, cotangents: Cotangents, number: int) -> Iterator[tuple[int, int, Gradients]]:
        """Yield gradients (n, B, *I) of the cotangents from ``start`` to ``stop`` = start + n, chunk by chunk."""
        start = 0
        while start < number:
            stop = min(start + self._at_once, number)
            sent = cotangents(start, stop)
            pays = stop - start >= (2 if self._fixed else _FEWEST_AT_ONCE)
            together = self._together(sent) if pays else None
            if together is not None:
                yield start, stop, together
            else:
                for offset, cotangent in enumerate(sent):
                    alone = self.one(cotangent, self.create_graph)
                    yield start + offset, start + offset + 1, [None if g is None else g[None] for g in alone]
            start = stop

    def all(self, cotangents: Cotangents, number: int) -> Gradients:
        """Return gradients (number, B, *I) of all cotangents; None for an input that no pass reached."""
        chunks = list(self.each(cotangents, number))
        return [
            joined([(stop - start, found[i]) for start, stop, found in chunks])
            for i in range(len(self.inputs))
        ]

    def diagonal_blocks(self, cotangents: Cotangents, number: int) -> Gradients:
        """Return the same by each sample's own input only, if samples influence each other, in B times the passes."""
        samples = self.output.shape[0]
        found: list[list[tuple[int, Tensor | None]]] = [[] for _ in self.inputs]
        for n in range(number):
            for own in range(samples):
                cotangent = torch.zeros_like(self.output)
                cotangent[own] = cotangents(n, n + 1)[0, own]
                for blocks, gradient in zip(found, self.one(cotangent, self.create_graph), strict=True):
                    blocks.append((1, None if gradient is None else gradient[own : own + 1]))
        together = [joined(blocks) for blocks in found]
        return [None if one is None else one.unflatten(0, (number, samples)) for one in together]

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

    def _what_pays(self) -> int:
        largest = max(1, *gradient_sizes(self.output, self._plain))
        if self.output.device.type != "cpu":
            return max(1, _AT_ONCE_ON_ACCELERATOR // largest)
        return 1 if largest >= _IN_TURN_FROM else _AT_ONCE // largest


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


def gradient_sizes(output: Tensor, inputs: Sequence[Tensor]) -> list[int]:
    """Return the sizes of the gradients that a backward pass from ``output`` to ``inputs`` computes."""
    sizes = [output.numel(), *(tensor.numel() for tensor in inputs)]
    for node in nodes_between(output, inputs):
        shapes = [getattr(received, "shape", ()) for received in getattr(node, "_input_metadata", ())]
        sizes.extend(math.prod(size for size in shape if isinstance(size, int)) for shape in shapes)
    return sizes


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
