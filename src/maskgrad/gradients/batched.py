"""Derivatives of every output of a batch with respect to inputs of the same sample, without a loop over samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from maskgrad.gradients.backward_passes import BackwardPasses, nodes_between
from maskgrad.gradients.batch_nodes import Node, input_nodes, outer, output_nodes, require_batch
from maskgrad.gradients.coupling import require_independent
from maskgrad.masked_tensor import MaskedTensor

__all__ = ["batched_grad", "batched_hessian"]


@dataclass(frozen=True)
class _Mode:
    """Options of how derivatives are computed, and the result for inputs that have none."""

    create_graph: bool = False
    chunk_size: int | None = None
    coupling: str = "check"
    allow_unused: bool | None = None
    materialize_grads: bool = False

    def __post_init__(self) -> None:
        if self.coupling not in ("check", "independent"):
            raise ValueError(
                f"coupling must be 'check' or 'independent', found {self.coupling!r}; 'check' is the safe one, and "
                "the derivatives by all samples are torch.autograd.functional.jacobian(f, x)"
            )
        if self.materialize_grads and self.allow_unused is False:
            raise ValueError(
                "allow_unused must be True or left out if materialize_grads is True, found False: unused inputs have "
                "zeros, or raise an error"
            )
        number = self.chunk_size
        if number is not None and (not isinstance(number, int) or number < 1):
            raise ValueError(f"chunk_size must be a positive integer or None, found {number!r}")

    def passes(self, output: Node, inputs: Sequence[Node]) -> BackwardPasses:
        """Return backward passes with these options."""
        return BackwardPasses(output.plain, inputs, self.create_graph, self.chunk_size)


def batched_grad(
    outputs: Any,
    inputs: Any,
    create_graph: bool = False,
    chunk_size: int | None = None,
    coupling: str = "check",
    *,
    allow_unused: bool | None = None,
    materialize_grads: bool = False,
) -> Any:
    r"""Return the derivative of every output of each sample with respect to every input of the same sample.

    .. math:: J_{b,o,i} = \frac{\partial\,\text{outputs}_{b,o}}{\partial\,\text{inputs}_{b,i}}

    It uses the existing graph, as ``torch.autograd.grad`` does: nothing is recomputed, models need no functional form,
    and inputs may be hidden layers. If samples are independent, one backward pass serves all of them.

    Args:
        outputs: tensor or MaskedTensor (B, \*O) in a graph, or a nest (tuple, list, dict) of them.
        inputs: tensor or MaskedTensor (B, \*I), leaf or inner node of that graph, or a nest of them.
        create_graph: the result can be differentiated again.
        chunk_size: number of the prod(O) backward passes that run at once; 1: one after the other. None: chosen by the
            sizes of the gradients in the graph.
        coupling: treatment of samples that influence each other (BatchNorm in training mode, negatives from the
            batch). ``"check"``: additional backward passes (two up to 32 samples, three up to 1024) detect them, and
            raise. ``"independent"``: no check; if samples do influence each other, the result is the derivative of the
            sum of that output over the batch.
        allow_unused: give None for inputs on which an output does not depend, instead of an error.
        materialize_grads: give zeros for them.

    Returns:
        (B, \*O, \*I) in the dtype of the input: a tensor, or nested as ``inputs``, within what is nested as
        ``outputs``. A MaskedTensor if the output or the input is one: an entry is specified if its output and input
        are; always strided. The real part of a complex output is differentiated, as by ``torch.autograd.grad`` with
        cotangent 1.

    Gradient: with ``create_graph``, for every tensor of the graph. The graph is always kept.

    Raises:
        CoupledSamplesError: samples influence each other, and ``coupling`` is ``"check"``.
        ValueError: an input is not part of the graph of an output, shapes do not begin with the same B, or an
            argument is out of range.
        TypeError: an output or input is not a tensor.

    Dense equivalent: ``torch.func.vmap(torch.func.jacrev(f))(inputs)`` for the function of one sample.

    Example:
        >>> x = torch.tensor([[1., 2.], [3., 4.], [5., 6.]], requires_grad=True)
        >>> y = torch.stack([x.prod(1), x.sum(1)], 1)
        >>> mg.batched_grad(y, x)[2]
        tensor([[6., 5.],
                [1., 1.]])

    Source: ``torch.autograd.grad`` (``is_grads_batched``), ``torch.func.jacrev``.
    """
    mode = _Mode(create_graph, chunk_size, coupling, allow_unused, materialize_grads)
    befores, nest_of_outputs = output_nodes(outputs)
    afters, nest_of_inputs = input_nodes(inputs)
    for output in befores:
        require_batch(output, afters)
    with torch.set_grad_enabled(create_graph):
        found = [
            pytree.tree_unflatten(_jacobians(output, afters, mode), nest_of_inputs) for output in befores
        ]
    return pytree.tree_unflatten(found, nest_of_outputs)


def batched_hessian(
    outputs: Any,
    inputs: Any,
    create_graph: bool = False,
    chunk_size: int | None = None,
    coupling: str = "check",
    *,
    allow_unused: bool | None = None,
    materialize_grads: bool = False,
) -> Any:
    r"""Return second derivatives of every output of each sample with respect to the inputs of the same sample.

    .. math:: H_{b,o,i,j} = \frac{\partial^2\,\text{outputs}_{b,o}}
              {\partial\,\text{inputs}_{b,i}\,\partial\,\text{inputs}_{b,j}}

    Args:
        outputs: tensor or MaskedTensor (B, \*O) in a graph, often (B,), or a nest of them.
        inputs: tensor or MaskedTensor (B, \*I) in that graph, or a nest of them.
        create_graph: the result can be differentiated again.
        chunk_size: number of backward passes that run at once, as for :func:`maskgrad.batched_grad`.
        coupling: as for :func:`maskgrad.batched_grad`; first derivatives are checked as well.
        allow_unused: give None where an output does not depend on an input, instead of an error.
        materialize_grads: give zeros there.

    Returns:
        (B, \*O, \*I, \*I), zeros where an output is linear. Nested as ``inputs`` within ``inputs`` within ``outputs``;
        a block (B, \*O, \*I, \*J) of two inputs holds the mixed derivatives. A MaskedTensor if a side is one: an entry
        is specified if its output and inputs are.

    Gradient: with ``create_graph``, for every tensor of the graph.

    Raises:
        CoupledSamplesError, ValueError, TypeError: as :func:`maskgrad.batched_grad`.
        NotImplementedError: with ``create_graph``, outputs pass through a normalization of layers or batches, whose
            third derivatives are wrong in PyTorch.

    Dense equivalent: ``torch.func.vmap(torch.func.hessian(f))(inputs)`` for the function of one sample.

    Example:
        >>> x = torch.tensor([[1., 2.], [3., 4.]], requires_grad=True)
        >>> mg.batched_hessian(x[:, 0] ** 2 * x[:, 1], x)[1]
        tensor([[8., 6.],
                [6., 0.]])

    Source: ``torch.func.hessian``.
    """
    first = batched_grad(
        outputs, inputs, True, chunk_size, coupling,
        allow_unused=allow_unused, materialize_grads=materialize_grads,
    )  # fmt: skip
    mode = _Mode(create_graph, chunk_size, coupling, materialize_grads=True)
    afters, nest = input_nodes(inputs)
    if create_graph:
        for output in output_nodes(outputs)[0]:
            _require_second_derivatives_only(output, afters)
    gradients, nest_of_gradients = pytree.tree_flatten(first, is_leaf=_is_leaf)

    def second(gradient: Any) -> Any:
        if gradient is None:
            return pytree.tree_unflatten([None] * len(afters), nest)
        values = gradient._values if isinstance(gradient, MaskedTensor) else gradient
        if not values.requires_grad:  # a linear output has constant first derivatives
            mask = gradient.mask if isinstance(gradient, MaskedTensor) else None
            flat = Node("outputs", values, values.shape, mask)
            return pytree.tree_unflatten([_zeros(flat, after) for after in afters], nest)
        (node,), _ = output_nodes(gradient)
        return pytree.tree_unflatten(_jacobians(node, afters, mode), nest)

    with torch.set_grad_enabled(create_graph):
        found = [second(gradient) for gradient in gradients]
    return pytree.tree_unflatten(found, nest_of_gradients)


def _jacobian_rows(passes: BackwardPasses, coupling: str) -> list[Tensor | None]:
    """Return derivatives (prod(O), B, *I) of one output by each input; None: it does not depend on the input."""
    output = passes.output
    samples, features = output.shape[0], output.shape[1:]
    number = features.numel()

    def unit_vectors(start: int, stop: int) -> Tensor:
        # Not all of them at once: their size is the square of the number of outputs.
        unit = torch.zeros((stop - start, number), dtype=output.dtype, device=output.device)
        unit.diagonal(start).fill_(1)
        return unit.reshape(-1, 1, *features).expand(-1, samples, *features)

    if coupling == "check":
        require_independent(passes)
    return passes.all(unit_vectors, number)


def _require_used(found: Sequence[Any], output: Node, inputs: Sequence[Node], mode: _Mode) -> None:
    """Raise ValueError if an input that must be used is not part of the graph."""
    for derivative, node in zip(found, inputs, strict=True):
        if derivative is None and not (mode.allow_unused or mode.materialize_grads):
            raise ValueError(
                f"{node.name} is not part of the graph of {output.name}: no path leads from one to the other. Slices, "
                "views and copies of an input are new nodes: differentiate by the tensor that the outputs were "
                "computed from, and slice the result. allow_unused=True gives None, materialize_grads=True zeros"
            )


def _jacobians(output: Node, inputs: Sequence[Node], mode: _Mode) -> list[Any]:
    rows = _jacobian_rows(mode.passes(output, inputs), mode.coupling)
    _require_used(rows, output, inputs, mode)
    shape = output.shape
    found: list[Any] = []
    for row, node in zip(rows, inputs, strict=True):
        if row is None:
            found.append(_zeros(output, node) if mode.materialize_grads else None)
            continue
        # The gradient of a tensor with respect to itself is a cotangent, whose entries may share memory.
        overlaps = any(n > 1 and not stride for n, stride in zip(row.shape, row.stride(), strict=True))
        own = row.clone(memory_format=torch.contiguous_format) if overlaps else row
        found.append(outer(own.movedim(0, 1).reshape(*shape, *node.shape[1:]), output, node))
    return found


def _zeros(output: Node, node: Node) -> Tensor | MaskedTensor:
    like = node.plain
    zeros = torch.zeros((*output.shape, *node.shape[1:]), dtype=like.dtype, device=like.device)
    return outer(zeros, output, node)


def _is_leaf(leaf: Any) -> bool:
    return leaf is None or isinstance(leaf, (Tensor, MaskedTensor))


def _require_second_derivatives_only(output: Node, inputs: Sequence[Node]) -> None:
    """Raise a NotImplementedError for normalizations in between, whose third derivatives are wrong or missing.

    The second derivatives of layer normalization, and of batch normalization in training mode, are right (torch 2.13).
    They use the saved mean and variance of the forward pass, which their own derivatives treat as
    constants. Since 2.15 batches raise an error.
    """
    for node in nodes_between(output.plain, [given.plain for given in inputs]):
        name = node.name()
        # In evaluation mode batch normalization is a multiplication.
        batch = "BatchNorm" in name and getattr(node, "_saved_training", True)
        if batch or "LayerNorm" in name:
            raise NotImplementedError(
                f"create_graph=True: {inputs[0].name} and {output.name} are connected by "
                f"{'batch' if batch else 'layer'} normalization, whose third derivatives are wrong or missing in "
                f"PyTorch {torch.__version__}. Write it out, as in "
                "(x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + eps).sqrt(), or leave "
                "create_graph out"
            )
