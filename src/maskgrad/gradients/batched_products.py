"""Products of vectors with the Jacobian of each sample, without forming the Jacobians."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from maskgrad.gradients.batch_nodes import Node, input_nodes, outer, output_nodes, require_batch
from maskgrad.gradients.batched import Mode, jacobian_rows, require_used
from maskgrad.gradients.coupling import directions, require_independent
from maskgrad.masked_tensor import MaskedTensor

__all__ = ["batched_jvp", "batched_vjp"]

_REMEDY = (
    "coupling='exact' gives the product for each sample separately, at the cost of many more backward passes, and "
    "coupling='independent' skips this check"
)
#: largest difference of two computations of a value, in units of the relative rounding error
_ROUNDING = 2**16


def batched_vjp(
    outputs: Any,
    inputs: Any,
    vectors: Any,
    create_graph: bool = False,
    chunk_size: int | None = None,
    coupling: str = "check",
    *,
    memory_budget: int | None = None,
    allow_unused: bool | None = None,
    materialize_grads: bool = False,
) -> Any:
    r"""Return vectors times the Jacobian of each sample (vector-Jacobian products).

    .. math:: g_{b,n,i} = \sum_o v_{b,n,o} \frac{\partial\,\text{outputs}_{b,o}}{\partial\,\text{inputs}_{b,i}}

    Args:
        outputs: tensor or MaskedTensor (B, \*O) in a graph, or a nest of them, whose products are added.
        inputs: tensor or MaskedTensor (B, \*I) in that graph, or a nest of them.
        vectors: tensor or MaskedTensor (B, \*N, \*O), one vector or many for each sample, nested as ``outputs``.
            Unspecified entries count as zero.
        create_graph: the result can be differentiated again.
        chunk_size: number of the prod(N) backward passes that run at once, as for :func:`maskgrad.batched_grad`.
        coupling: as for :func:`maskgrad.batched_grad`.
        memory_budget: as for :func:`maskgrad.batched_grad`.
        allow_unused: give None for inputs on which no output depends, instead of an error.
        materialize_grads: give zeros for them.

    Returns:
        (B, \*N, \*I), nested as ``inputs``; with the pattern of the input if that is a MaskedTensor.

    Gradient: with ``create_graph``, for the vectors and every tensor of the graph.

    Raises:
        CoupledSamplesError, ValueError, TypeError: as :func:`maskgrad.batched_grad`, and if the shapes of vectors do
            not fit.

    Dense equivalent: ``torch.func.vmap(torch.func.vjp(...))``, or ``torch.autograd.grad(outputs, inputs, vectors)``
    for one vector per sample.

    Example:
        >>> x = torch.tensor([[1., 2.], [3., 4.]], requires_grad=True)
        >>> mg.batched_vjp(x ** 2, x, torch.tensor([[1., 0.], [1., 1.]]))
        tensor([[2., 0.],
                [6., 8.]])

    Source: ``torch.func.vjp``.
    """
    mode = Mode(create_graph, chunk_size, coupling, memory_budget, allow_unused, materialize_grads)
    befores, nest_of_outputs = output_nodes(outputs)
    afters, nest = input_nodes(inputs)
    given, between = _vectors(vectors, befores, nest_of_outputs, "vectors", "outputs")
    with torch.set_grad_enabled(create_graph):
        rows: list[Tensor | None] = [None] * len(afters)
        for output, cotangents in zip(befores, given, strict=True):
            require_batch(output, afters)
            products = _products(output, afters, cotangents, mode)
            rows = [_sum(a, b) for a, b in zip(rows, products, strict=True)]
        require_used(rows, befores[0], afters, mode)
        if materialize_grads:
            rows = [_or_zeros(row, len(given[0]), node) for row, node in zip(rows, afters, strict=True)]
        found = [None if r is None else _by_sample(r, n, between) for r, n in zip(rows, afters, strict=True)]
    return pytree.tree_unflatten(found, nest)


def batched_jvp(
    outputs: Any,
    inputs: Any,
    tangents: Any,
    create_graph: bool = False,
    chunk_size: int | None = None,
    coupling: str = "check",
    *,
    memory_budget: int | None = None,
) -> Any:
    r"""Return the Jacobian of each sample times vectors (Jacobian-vector products).

    .. math:: t_{b,n,o} = \sum_i \frac{\partial\,\text{outputs}_{b,o}}{\partial\,\text{inputs}_{b,i}} u_{b,n,i}

    It takes two backward passes through the existing graph, the second through the first. If a node of the graph cannot
    be differentiated twice, or gives wrong second derivatives, the Jacobian is computed and multiplied.

    Args:
        outputs: tensor or MaskedTensor (B, \*O) in a graph, or a nest of them.
        inputs: tensor or MaskedTensor (B, \*I) in that graph, or a nest of them, whose products are added.
        tangents: tensor or MaskedTensor (B, \*N, \*I), one direction or many for each sample, nested as ``inputs``.
            Unspecified entries count as zero.
        create_graph: the result can be differentiated again.
        chunk_size: number of the prod(N) products that are computed at once, as for :func:`maskgrad.batched_grad`.
        coupling: as for :func:`maskgrad.batched_grad`.
        memory_budget: as for :func:`maskgrad.batched_grad`.

    Returns:
        (B, \*N, \*O), nested as ``outputs``; with the pattern of the output if that is a MaskedTensor. Inputs on which
        an output does not depend contribute nothing.

    Gradient: with ``create_graph``, for the tangents and every tensor of the graph.

    Raises:
        CoupledSamplesError, ValueError, TypeError: as :func:`maskgrad.batched_grad`, and if the shapes of tangents
            do not fit.

    Dense equivalent: ``torch.func.jvp(f, inputs, tangents)`` for independent samples.

    Example:
        >>> x = torch.tensor([[1., 2.], [3., 4.]], requires_grad=True)
        >>> mg.batched_jvp(x.prod(1), x, torch.tensor([[1., 0.], [1., 1.]]))
        tensor([2., 7.])

    Source: J. Townsend, "A new trick for calculating Jacobian vector products", 2017; ``torch.func.jvp``.
    """
    mode = Mode(create_graph, chunk_size, coupling, memory_budget)
    befores, nest_of_outputs = output_nodes(outputs)
    afters, nest = input_nodes(inputs)
    given, between = _vectors(tangents, afters, nest, "tangents", "inputs")
    results = []
    used = [False] * len(afters)
    with torch.set_grad_enabled(create_graph):
        for output in befores:
            require_batch(output, afters)
            results.append(_by_sample(_forward(output, afters, given, mode, used), output, between))
    require_used([one or None for one in used], befores[0], afters, mode)
    return pytree.tree_unflatten(results, nest_of_outputs)


def _by_sample(rows: Tensor, node: Node, between: torch.Size) -> Any:
    """Return rows (N, B, ...) as (B, *N, ...) with the pattern of the node."""
    values = rows.movedim(0, 1).reshape(node.shape[0], *between, *node.shape[1:])
    return outer(values, None, node, len(between))


def _products(output: Node, inputs: list[Node], cotangents: Tensor, mode: Mode) -> list[Tensor | None]:
    """Return vectors (N, B, *O) times Jacobians, (N, B, *I)."""
    passes = mode.passes(output, inputs)
    number = len(cotangents)
    if not number:
        return passes.none()
    if mode.coupling == "exact" and output.shape[0] > 1:
        return passes.diagonal_blocks(lambda start, stop: cotangents[start:stop], number)
    if mode.coupling == "check":
        require_independent(passes, _REMEDY)
    return passes.all(lambda start, stop: cotangents[start:stop], number)


def _forward(
    output: Node, inputs: list[Node], tangents: list[Tensor], mode: Mode, used: list[bool]
) -> Tensor:
    """Return Jacobians times tangents (N, B, *I), (N, B, *O)."""
    passes = mode.passes(output, inputs)
    if mode.coupling == "check":
        require_independent(passes, _REMEDY)
    if mode.coupling != "exact":
        with contextlib.suppress(Exception):  # a node without second derivative; the Jacobian needs none
            found = _twice_backward(output, inputs, tangents, mode, used)
            if found is not None:
                return found
    total: Tensor | None = None
    rows = jacobian_rows(passes, "exact" if mode.coupling == "exact" else "independent")
    for number, (row, tangent) in enumerate(zip(rows, tangents, strict=True)):
        if row is not None:
            used[number] = True
            product = torch.einsum("kbi,nbi->nbk", row.flatten(2), tangent.flatten(2).to(row.dtype))
            total = _sum(total, product)
    return _or_zeros(total, len(tangents[0]), output)


def _twice_backward(
    output: Node, inputs: list[Node], tangents: list[Tensor], mode: Mode, used: list[bool]
) -> Tensor | None:
    """Return the derivative of gradients with respect to their cotangent; None if a check of it fails."""
    plain = output.plain
    shape = plain.shape
    seed = directions(shape.numel(), plain).to(plain.dtype).reshape(shape).requires_grad_()
    found = torch.autograd.grad(
        plain, [node.plain for node in inputs], seed, retain_graph=True, create_graph=True, allow_unused=True
    )
    total: Tensor | None = None
    forth = back = scale = torch.zeros((), device=plain.device)
    for number, (gradient, node, tangent) in enumerate(zip(found, inputs, tangents, strict=True)):
        if gradient is None:
            continue
        used[number] = True
        dense = node.dense(gradient)
        if not dense.requires_grad:  # a custom function that returns constants
            return None
        target = Node("the cotangent", seed, shape, None)
        passes = mode.passes(Node("the gradient", dense, dense.shape, None), [target])
        sent = tangent.to(dense.dtype)
        (moved,) = passes.all(lambda start, stop, sent=sent: sent[start:stop], len(sent))  # type: ignore[misc]
        if moved is None:
            return None
        total = _sum(total, moved)
        back = back + (dense * sent).flatten(1).sum(1)
        forth = forth + (moved * seed.detach()).flatten(1).sum(1)
        scale = scale + (dense.detach() * sent.detach()).abs().flatten(1).sum(1)
    # Some second derivatives of sparse tensors are silently wrong in PyTorch, and some at the boundary of a domain are
    # NaN; then these values differ.
    tolerance = _ROUNDING * torch.finfo(plain.dtype).eps
    if not bool(((forth - back).detach().abs() <= tolerance * scale).all()):
        return None
    if mode.create_graph and not _differentiable_alike(forth, back, inputs, tolerance):
        return None
    return _or_zeros(total, len(tangents[0]), output)


def _differentiable_alike(forth: Tensor, back: Tensor, inputs: list[Node], tolerance: float) -> bool:
    """Return whether two computations of one value have the same derivative with respect to the inputs.

    The derivative of ``forth`` is a third derivative of the graph. In PyTorch (2.13) those of layer and batch
    normalization are silently wrong; that of ``back`` is a second derivative.
    """
    plain = [node.plain for node in inputs]
    for one, other in zip(_slope(forth, plain), _slope(back, plain), strict=True):
        if one is None and other is None:
            continue
        a, b = (torch.zeros(()) if part is None else part for part in (one, other))
        a, b = (part.coalesce().values() if part.layout is torch.sparse_coo else part for part in (a, b))
        if a.shape != b.shape and a.ndim and b.ndim:
            return False
        size = max(float(part.abs().max()) if part.numel() else 0.0 for part in (a, b))
        if not bool(((a - b).abs() <= tolerance * size).all()):
            return False
    return True


def _slope(numbers: Tensor, plain: list[Tensor]) -> tuple[Tensor | None, ...]:
    if not numbers.requires_grad:
        return (None,) * len(plain)
    return torch.autograd.grad(numbers.sum(), plain, retain_graph=True, allow_unused=True)


def _or_zeros(rows: Tensor | None, number: int, node: Node) -> Tensor:
    """Return rows in the shape (number, B, ...); None is zero."""
    shape = (number, *node.shape)
    if rows is None:
        return torch.zeros(shape, dtype=node.plain.dtype, device=node.plain.device)
    return rows.reshape(shape)


def _vectors(
    vectors: Any, nodes: list[Node], nest: pytree.TreeSpec, name: str, whose: str
) -> tuple[list[Tensor], torch.Size]:
    """Return vectors (N, B, ...) for each of the nodes (B, ...), and the shape of N."""
    leaves, own = pytree.tree_flatten(vectors, is_leaf=lambda leaf: isinstance(leaf, MaskedTensor))
    if own != nest:
        raise ValueError(f"{name} must be nested as {whose} are, {nest}, found {own}")
    found: list[Tensor] = []
    between: torch.Size | None = None
    for vector, node in zip(leaves, nodes, strict=True):
        if not isinstance(vector, (Tensor, MaskedTensor)):
            raise TypeError(f"{name} must be tensors, found {type(vector).__name__}")
        features, extra = node.shape[1:], vector.ndim - len(node.shape)
        shape = vector.shape[1 : 1 + max(extra, 0)]
        fits = extra >= 0 and vector.shape[:1] == node.shape[:1] and vector.shape[1 + extra :] == features
        if not fits or between not in (None, shape):
            wanted = ["B", "*N", *map(str, features)]
            raise ValueError(
                f"{name} must have shape ({', '.join(wanted)}) with B = {node.shape[0]} for {node.name} "
                f"{tuple(node.shape)}, and the same N everywhere, found {tuple(vector.shape)}"
            )
        between = shape
        plain = vector.filled(0) if isinstance(vector, MaskedTensor) else vector
        if node.mask is not None:
            mask = node.mask.reshape(node.mask.shape[:1] + (1,) * extra + node.mask.shape[1:])
            plain = torch.where(mask, plain, 0)
        together = plain.reshape(vector.shape[0], shape.numel(), *features)
        found.append(together.movedim(1, 0).to(node.plain.dtype))
    assert between is not None  # there is at least one node
    return found, between


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b
