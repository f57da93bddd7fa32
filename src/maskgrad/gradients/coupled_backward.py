"""Losses that couple samples, on batches that do not fit into memory: outputs first, then part by part."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree

from maskgrad.gradients.accumulated_sums import GradientSums, check_no_gradients
from maskgrad.gradients.accumulation_ranks import Alone, found_ranks
from maskgrad.gradients.attached import keep_attached
from maskgrad.masked_tensor import MaskedTensor, masked
from maskgrad.masked_tensor.tensor import stored_of

__all__ = ["coupled_backward"]

_TOLERANCE = 1e-2  # other random numbers differ by more, sums in another order by less


def coupled_backward(
    model: nn.Module,
    parts: Iterable[Any],
    loss: Callable[..., Tensor],
    *,
    targets: Iterable[Any] | None = None,
    group: Any = None,
) -> Tensor:
    r"""Run backward from a loss of all samples together, with the graph of one part at a time in memory.

    .. math:: \nabla_\theta L(f(x_1), \ldots, f(x_K)) = \sum_k \frac{\partial L}{\partial y_k} \nabla_\theta f(x_k)

    For losses that compare samples: in-batch negatives (InfoNCE, CLIP), Cox's partial likelihood, triplets with mining,
    correlations. The mean of such losses over micro-batches is a different loss. Here the model computes the outputs
    :math:`y_k` of all parts, the loss is computed on all outputs together, and each part is computed again and
    propagated with the gradient of its outputs. Both passes use the same random numbers (dropout), buffers and autocast
    state.

    Args:
        model: the module as it is called, wrapped or not, as in :class:`maskgrad.GradientAccumulator`.
        parts: arguments of the calls: a tuple is ``model(*part)``, a dict ``model(**part)``, anything else
            ``model(part)``.
        loss: ``loss(outputs)`` returns a 0-dim tensor. The outputs have the structure of the model's; each tensor in
            it, plain or masked, contains all parts of all ranks, concatenated along dimension 0.
        targets: for each part a tensor, or a structure of tensors, for its samples: concatenated in the
            same way, and passed as ``loss(outputs, targets)``. In one process the loss may use them directly.
        group: a process group, as in :class:`maskgrad.GradientAccumulator`. Every rank has at least one part.

    Returns:
        The loss, without a graph; the same on all ranks.

    Gradient:
        In ``.grad``, or attached, that of the loss of the whole batch, in the model's layout: dense, sparse,
        masked; the same on all ranks. Half-precision parameters accumulate in float32. Parameters that the loss itself
        uses, such as a temperature, have their gradients too. For loss scaling return ``scaler.scale(loss)``.

    Raises:
        TypeError, ValueError: outputs without a dimension of samples, or a loss that is not a 0-dim tensor; batch
            normalization in training mode, which couples the samples of each part. On all ranks.
        RuntimeError: a ``.grad`` from before; the second pass gives different outputs from the first; ranks disagree on
            the loss. ``.grad`` is None then.

    Dense equivalent: ``loss(model(torch.cat(parts))).backward()``.

    Example:
        >>> net, x = torch.nn.Linear(3, 1), torch.randn(8, 3)  # patients, the one who died last first
        >>> cox = lambda risk: (risk.logcumsumexp(0) - risk).mean()
        >>> loss = mg.coupled_backward(net, x.split(2), cox)
        >>> torch.allclose(loss, cox(net(x))), net.weight.grad.shape
        (True, torch.Size([1, 3]))

    Source: Gao et al., "Scaling deep contrastive learning batch size under memory limited setup", RepL4NLP 2021.
    """
    named = _trained(model)
    params = list(named.values())
    ranks = found_ranks(model, params, group)
    sums = None
    try:
        batch = _Parts(model, list(parts), None if targets is None else list(targets), ranks)
        whole = batch.loss_of_all(loss, named)
        sums = GradientSums(named)
        name = "loss" if ranks.rank else None  # used by the loss itself: all ranks have the same gradient
        with torch.autocast(whole.device.type, enabled=False):
            sums.backward(name, [whole], [torch.ones_like(whole)])
        batch.propagate(sums)
        ranks.reduce_shards()
        with torch.no_grad():
            sums.write(ranks.exchanged(params, sums.divided({None: 1.0, "loss": math.inf})))
    except BaseException:
        for param in params if sums is not None else ():
            keep_attached(param, None)
            param.grad = None
        raise
    finally:
        if sums is not None:
            sums.close()
        ranks.close()
    return whole.detach()


def _trained(model: object) -> dict[str, Tensor]:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, found {type(model).__name__}")
    return {name: param for name, param in model.named_parameters() if param.requires_grad}


_Structure = tuple[list[Any], pytree.TreeSpec]
"""Outputs or targets of one part: tensors, plain or masked, and their structure."""


class _Parts:
    """The parts of this rank, their outputs in the first pass, and the state in which each was computed."""

    def __init__(self, model: nn.Module, parts: list[Any], targets: list[Any] | None, ranks: Alone) -> None:
        self._model, self._parts, self._targets, self._ranks = model, parts, targets, ranks
        self._outputs: list[_Structure] = []
        self._states: list[tuple[Tensor, list[Tensor]]] = []

    def loss_of_all(self, loss: Callable[..., Tensor], trained: dict[str, Tensor]) -> Tensor:
        """Compute the loss on the outputs of all parts and ranks; raises on all ranks if one has an error."""
        error: Exception | None = None
        targets: list[_Structure] = []
        try:
            _check(self._model, self._parts, self._targets)
            check_no_gradients(trained)
            self._first_pass()
            targets = [_flat(one, "targets") for one in self._targets or ()]
        except Exception as found:
            error = found
        given = self._together([self._outputs, targets] if targets else [self._outputs], error)
        whole = torch.zeros(())
        try:
            whole = loss(*given)
            _check_loss(whole)
        except Exception as found:
            error = found
        values = self._ranks.collected(None if error else float(whole.detach()), error, trained)
        if not all(math.isclose(v, values[0], rel_tol=1e-3) or v != v for v in values):
            raise RuntimeError(
                f"the loss differs between the ranks, {values}, and must be the same function of all outputs; pass "
                "data of samples as targets=, and use the same random seed on all ranks"
            )
        return whole

    def propagate(self, sums: GradientSums) -> None:
        """Recompute each part, and run backward with the gradients of its outputs."""
        with torch.no_grad():
            for name, buffer in self._model.named_buffers():
                buffer.copy_(self._buffers.get(name, buffer))
        with torch.random.fork_rng(self._devices):
            for part, (leaves, _), state in zip(self._parts, self._outputs, self._states, strict=True):
                torch.set_rng_state(state[0])
                for device, cuda_state in zip(self._devices, state[1], strict=True):
                    torch.cuda.set_rng_state(cuda_state, device)
                outputs, gradients = [], []
                again, _ = self._called(part)
                for before, now in zip(leaves, again, strict=True):
                    if not _is_tensor(before):
                        continue
                    _check_same(before, now)
                    if before.requires_grad:
                        leaf = _plain(before)
                        outputs.append(_plain(now))
                        gradients.append(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad)
                if outputs:
                    with torch.autocast(outputs[0].device.type, enabled=False):
                        sums.backward(None, outputs, gradients)

    def _called(self, part: Any) -> _Structure:
        args, kwargs = (part, {}) if isinstance(part, tuple) else ((part,), {})
        if isinstance(part, dict):
            args, kwargs = (), part
        return _flat(self._model(*args, **kwargs), "outputs")

    def _first_pass(self) -> None:
        model = self._model
        self._devices = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
        self._buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
        for part in self._parts:
            cuda = [torch.cuda.get_rng_state(device) for device in self._devices]
            self._states.append((torch.get_rng_state(), cuda))
            # With a graph, which is freed at once: without it, some modules compute something else.
            leaves, spec = self._called(part)
            # Leaves of the loss's graph.
            own = [x.detach().requires_grad_(x.requires_grad) if _is_tensor(x) else x for x in leaves]
            self._outputs.append((own, spec))
        if not any(_is_tensor(one) and one.requires_grad for one in self._outputs[0][0]):
            raise ValueError(
                "the model's outputs require no gradient; return a tensor that depends on parameters"
            )

    def _together(self, kinds: list[list[_Structure]], error: Exception | None) -> list[Any]:
        """Outputs (and targets) of all parts and ranks, as arguments of the loss."""
        own: list[list[Any]] = []
        sent: list[Tensor] = []
        try:
            if error is None:
                own = [_joined(structures) for structures in kinds]
                sent = [one for leaves in own for leaf in leaves for one in self._sent(leaf)]
        except Exception as found:
            error = found
        arrived = [iter(tensors) for tensors in self._ranks.gathered(sent, error)]
        given = []
        for structures, leaves in zip(kinds, own, strict=True):
            joined = []
            for leaf in leaves:
                pieces = [_received(leaf, tensors) for tensors in arrived]
                pieces[self._ranks.rank] = leaf
                joined.append(torch.cat(pieces) if len(pieces) > 1 and _is_tensor(leaf) else leaf)
            given.append(pytree.tree_unflatten(joined, structures[0][1]))
        return given

    def _sent(self, leaf: Any) -> list[Tensor]:
        if not isinstance(leaf, MaskedTensor):
            return [leaf.detach()] if isinstance(leaf, Tensor) else []
        if stored_of(leaf) is not None and self._ranks.size > 1:
            raise TypeError(
                f"outputs of layout {leaf.layout} cannot be sent between ranks; return x.to_dense()"
            )
        return [] if stored_of(leaf) is not None else [leaf._values.detach(), leaf.mask]


def _check(model: nn.Module, parts: list[Any], targets: list[Any] | None) -> None:
    if not parts:
        raise ValueError("parts is empty; pass at least one, on every rank")
    if targets is not None and len(targets) != len(parts):
        raise ValueError(f"targets must be as many as parts, {len(parts)}, found {len(targets)}")
    if not torch.is_grad_enabled():
        raise RuntimeError("coupled_backward() inside torch.no_grad(); call it outside")
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.training:
            raise ValueError(
                f"{name or 'model'} is a {type(module).__name__} in training mode, whose statistics would be those of "
                "a part; call .eval() on it, or use GroupNorm or LayerNorm"
            )


def _check_loss(loss: object) -> None:
    if not isinstance(loss, Tensor) or loss.ndim or not loss.is_floating_point():
        shape = f" of shape {tuple(loss.shape)}" if isinstance(loss, (Tensor, MaskedTensor)) else ""
        raise TypeError(
            f"loss must return a floating-point tensor of shape (), found a {type(loss).__name__}{shape}; "
            "return its mean or sum"
        )
    if not loss.requires_grad:
        raise ValueError(
            "the loss requires no gradient; compute it from the outputs, without detach() and item()"
        )


def _flat(structure: Any, what: str) -> _Structure:
    leaves, spec = pytree.tree_flatten(structure, is_leaf=lambda one: isinstance(one, MaskedTensor))
    if not any(map(_is_tensor, leaves)):
        raise TypeError(
            f"{what} of a part must be tensors, or tuples, lists or dicts of tensors, found {structure!r}"
        )
    for leaf in leaves:
        if _is_tensor(leaf) and leaf.ndim == 0:
            raise ValueError(
                f"{what} of a part include a tensor of shape (), without a dimension of samples; omit it"
            )
    return leaves, spec


def _is_tensor(leaf: object) -> bool:
    return isinstance(leaf, (Tensor, MaskedTensor))


def _plain(leaf: Tensor | MaskedTensor) -> Tensor:
    return leaf._values if isinstance(leaf, MaskedTensor) else leaf


def _joined(structures: list[_Structure]) -> list[Any]:
    """The leaves of all parts, concatenated."""
    first = structures[0][1]
    for number, (_, spec) in enumerate(structures):
        if spec != first:
            raise ValueError(
                f"part {number} has the structure {spec}, but part 0 {first}; return the same structure"
            )
    columns = zip(*(leaves for leaves, _ in structures), strict=True)
    return [torch.cat(column) if _is_tensor(column[0]) else column[0] for column in columns]


def _received(leaf: Any, tensors: Iterator[Tensor]) -> Any:
    """A leaf from another rank."""
    if isinstance(leaf, MaskedTensor):
        return masked(next(tensors), next(tensors)) if stored_of(leaf) is None else leaf
    return next(tensors) if isinstance(leaf, Tensor) else leaf


def _check_same(before: Any, now: Any) -> None:
    """Raise a RuntimeError unless the second pass gives the same outputs as the first."""
    a, b = (_known(x) for x in (before, now))
    if a.shape == b.shape:
        tolerance = _TOLERANCE * float(a.abs().max()) if a.numel() else 0.0
        if bool(((a - b).abs() <= tolerance).all()):
            return
    raise RuntimeError(
        "the model gives different outputs in the second pass: it depends on a state that is neither "
        "a buffer nor PyTorch's random numbers; draw random numbers with torch, or before the call, and keep states "
        "as buffers"
    )


def _known(x: Any) -> Tensor:
    plain = (x.to_dense().filled(0) if isinstance(x, MaskedTensor) else x).detach()
    return torch.nan_to_num(plain.to(torch.promote_types(plain.dtype, torch.float32)))
