"""``torch.autograd.grad`` and ``backward`` with masked outputs, inputs and cotangents.

An unspecified output gets no gradient; the gradient of a masked input has the pattern of that input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from maskgrad.errors import UnsupportedOperationError
from maskgrad.semantics.entries import Entries, filled
from maskgrad.semantics.facts import record
from maskgrad.semantics.signatures import paired
from maskgrad.semantics.stored.conversion import cotangent
from maskgrad.semantics.stored.entries import StoredEntries, densified


def _several(argument: Any) -> list[Any]:
    single = isinstance(argument, (Entries, StoredEntries)) or not isinstance(argument, Sequence)
    return [argument] if single else list(argument)


def _sent(output: Any) -> Any:
    """An output as a plain tensor whose unspecified entries are constants."""
    return output.values if isinstance(output, StoredEntries) else filled(output)


def _plain(argument: Any) -> Any:
    return argument.values if isinstance(argument, (Entries, StoredEntries)) else argument


def _seeds(outputs: list[Any], cotangents: Any) -> list[Any] | None:
    """Gradients passed into each output, in its storage."""
    if cotangents is None:
        return None
    given = _several(cotangents)
    if len(given) != len(outputs):
        return [_sent(c) for c in given]  # torch raises the error
    return [_seed(output, c) for output, c in zip(outputs, given, strict=True)]


def _seed(output: Any, gradient: Any) -> Any:
    if isinstance(output, StoredEntries) and gradient is not None:
        return cotangent(output, gradient)
    return filled(densified(gradient)) if isinstance(gradient, StoredEntries) else filled(gradient)


def _alike(gradient: Any, input: Any) -> Any:
    if gradient is None or not isinstance(input, (Entries, StoredEntries)):
        return gradient
    if isinstance(input, StoredEntries):
        return StoredEntries(gradient, input.pattern)
    # with is_grads_batched there is one gradient for each cotangent
    return Entries(
        gradient, input.mask if gradient.ndim == input.mask.ndim else input.mask.expand(gradient.shape)
    )


def grad(outputs: Any, inputs: Any, grad_outputs: Any = None, *args: Any, **options: Any) -> Any:
    """``torch.autograd.grad``: gradients of (masked) outputs with respect to (masked) inputs."""
    names = ("retain_graph", "create_graph", "only_inputs", "allow_unused", "is_grads_batched")
    options |= paired(names, args)
    outputs, inputs = _several(outputs), _several(inputs)
    if options.get("is_grads_batched") and any(isinstance(x, StoredEntries) for x in (*outputs, *inputs)):
        raise UnsupportedOperationError(
            "torch.autograd.grad(is_grads_batched=True)",
            "a sparse layout cannot hold one gradient per cotangent; call it once per cotangent instead",
        )
    sent, seeds = [_sent(output) for output in outputs], _seeds(outputs, grad_outputs)
    gradients = torch.autograd.grad(sent, [_plain(i) for i in inputs], seeds, **options)
    return tuple([_alike(g, i) for g, i in zip(gradients, inputs, strict=True)])


def backward(
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    *,
    inputs: Any = None,
    **options: Any,
) -> None:
    """``torch.autograd.backward``: accumulate gradients of (masked) tensors in the leaves."""
    tensors = _several(tensors)
    leaves = None if inputs is None else [_plain(i) for i in _several(inputs)]
    sent, seeds = [_sent(tensor) for tensor in tensors], _seeds(tensors, grad_tensors)
    torch.autograd.backward(sent, seeds, retain_graph, create_graph, inputs=leaves, **options)


RULES = ((grad, "that of each input", "of second order, if asked"), (backward, "none", "accumulated"))
OPERATIONS = tuple(
    record(f"autograd.{rule.__name__}", "differentiation", rule, *words, functions=(function,))
    for rule, *words in RULES
    if (function := getattr(torch.autograd, rule.__name__))
)
