"""Derivatives of every output of a batch with respect to inputs of the same sample, without a loop over samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from maskgrad.gradients.batch_nodes import (
    Node,
    backward_pass,
    input_nodes,
    outer,
    output_nodes,
    require_batch,
)
from maskgrad.gradients.coupling import require_independent
from maskgrad.masked_tensor import MaskedTensor

__all__ = ["batched_grad", "batched_hessian"]


def batched_grad(
    outputs: Any,
    inputs: Any,
    create_graph: bool = False,
    coupling: str = "check",
    *,
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
        coupling: treatment of samples that influence each other (BatchNorm in training mode, negatives from the
            batch). ``"check"``: additional backward passes (two up to 32 samples, three up to 1024) detect them, and
            raise. ``"independent"``: no check; if samples do influence each other, the result is the derivative of the
            sum of that output over the batch.
        materialize_grads: give zeros for inputs on which an output does not depend, instead of an error.

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

    Source: ``torch.autograd.grad``, ``torch.func.jacrev``.
    """
    if coupling not in ("check", "independent"):
        raise ValueError(
            f"coupling must be 'check' or 'independent', found {coupling!r}; 'check' is the safe one, and the "
            "derivatives by all samples are torch.autograd.functional.jacobian(f, x)"
        )
    befores, nest_of_outputs = output_nodes(outputs)
    afters, nest_of_inputs = input_nodes(inputs)
    for output in befores:
        require_batch(output, afters)
    found = [
        pytree.tree_unflatten(
            _jacobians(output, afters, create_graph, coupling, materialize_grads), nest_of_inputs
        )
        for output in befores
    ]
    return pytree.tree_unflatten(found, nest_of_outputs)


def batched_hessian(
    outputs: Any,
    inputs: Any,
    create_graph: bool = False,
    coupling: str = "check",
    *,
    materialize_grads: bool = False,
) -> Any:
    r"""Return second derivatives of every output of each sample with respect to the inputs of the same sample.

    .. math:: H_{b,o,i,j} = \frac{\partial^2\,\text{outputs}_{b,o}}
              {\partial\,\text{inputs}_{b,i}\,\partial\,\text{inputs}_{b,j}}

    Args:
        outputs: tensor or MaskedTensor (B, \*O) in a graph, often (B,), or a nest of them.
        inputs: tensor or MaskedTensor (B, \*I) in that graph, or a nest of them.
        create_graph: the result can be differentiated again.
        coupling: as for :func:`maskgrad.batched_grad`; first derivatives are checked as well.
        materialize_grads: give zeros where an output does not depend on an input, instead of an error.

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
    first = batched_grad(outputs, inputs, True, coupling, materialize_grads=materialize_grads)
    afters, nest = input_nodes(inputs)
    if create_graph:
        for output in output_nodes(outputs)[0]:
            _require_second_derivatives_only(output, afters)
    gradients, nest_of_gradients = pytree.tree_flatten(first, is_leaf=lambda x: isinstance(x, MaskedTensor))

    def second(gradient: Any) -> Any:
        values = gradient._values if isinstance(gradient, MaskedTensor) else gradient
        if not values.requires_grad:  # a linear output has constant first derivatives
            mask = gradient.mask if isinstance(gradient, MaskedTensor) else None
            flat = Node("outputs", values, values.shape, mask)
            return pytree.tree_unflatten([_zeros(flat, after) for after in afters], nest)
        (node,), _ = output_nodes(gradient)
        found = _jacobians(node, afters, create_graph, coupling, True)
        return pytree.tree_unflatten(found, nest)

    return pytree.tree_unflatten([second(gradient) for gradient in gradients], nest_of_gradients)


def _jacobians(
    output: Node, inputs: Sequence[Node], create_graph: bool, coupling: str, materialize_grads: bool
) -> list[Any]:
    """Return derivatives (B, *O, *I) of one output by each input."""
    plain, features = output.plain, output.shape[1:]
    with torch.set_grad_enabled(create_graph):
        if coupling == "check":
            require_independent(plain, inputs)
        rows = []
        for place in range(features.numel()):
            unit = plain.new_zeros(features.numel())
            unit[place] = 1
            cotangent = unit.view(features).expand(output.shape)
            rows.append(backward_pass(plain, inputs, cotangent, create_graph))
        number = len(rows)
        rows = rows or [backward_pass(plain, inputs, torch.zeros_like(plain))]
        found: list[Any] = []
        for by_input, node in zip(zip(*rows, strict=True), inputs, strict=True):
            known = next((row for row in by_input if row is not None), None)
            if known is None and not materialize_grads:
                raise ValueError(
                    f"{node.name} is not part of the graph of {output.name}: no path leads from one to the other. "
                    "Slices, views and copies of an input are new nodes: differentiate by the tensor that the outputs "
                    "were computed from, and slice the result. materialize_grads=True gives zeros"
                )
            if known is None:
                found.append(_zeros(output, node))
                continue
            # A custom function may omit a gradient that is zero.
            filled = [torch.zeros_like(known) if row is None else row for row in by_input]
            stacked = torch.stack(filled)[:number]
            found.append(outer(stacked.movedim(0, 1).reshape(*output.shape, *node.shape[1:]), output, node))
    return found


def _zeros(output: Node, node: Node) -> Tensor | MaskedTensor:
    return outer(node.plain.new_zeros((*output.shape, *node.shape[1:])), output, node)


def _require_second_derivatives_only(output: Node, inputs: Sequence[Node]) -> None:
    """Raise a NotImplementedError for normalizations, whose second derivatives have wrong derivatives (torch 2.13)."""
    seen = {given.plain.grad_fn for given in inputs}  # do not go beyond inputs; None ends at leaves
    waiting = [output.plain.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting.extend(following for following, _ in node.next_functions)
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
