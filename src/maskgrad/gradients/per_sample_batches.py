"""A batch of samples: checked, and differentiated at once or one by one, with the same gradients."""

from __future__ import annotations

import functools
import operator
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch._C import _functorch as functorch
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

from maskgrad.errors import CoupledSamplesError
from maskgrad.gradients.per_sample_factors import Full, Rows, SampleGradients, joined
from maskgrad.gradients.per_sample_mode import NotBatchedError, PerSampleMode, call_with
from maskgrad.gradients.per_sample_rules import RULES
from maskgrad.gradients.train_only import trained_entries
from maskgrad.masked_tensor import MaskedTensor
from maskgrad.masked_tensor.other_packages import level_of_user
from maskgrad.semantics.numbers import noting

__all__ = ["Chunk", "Method", "PerSample", "Randomness"]

Method = Literal["auto", "batched", "loop"]
Randomness = Literal["different", "same", "error"]

_SHARED = "; put data shared by all samples into the model or loss_fn, as with functools.partial"
_OFFSETS = (
    ". Pass rows and offsets as one argument: mg.from_offsets(rows, offsets), or, where the last offset is missing as "
    "in EmbeddingBag, mg.from_offsets(rows, torch.nn.functional.pad(offsets, (0, 1), value=len(rows)))"
)
_NOT_TWICE = (
    "gives sparse gradients, which PyTorch cannot differentiate a second time; look up with sparse=False, or leave out "
    "create_graph"
)
#: pattern of an error of ``torch.vmap``, and its cause in the model or the loss
_REASONS = (
    (r"\.item\(\)|control flow", "depends on the value of a tensor (item(), if, while)"),
    (r"dynamic shape", "creates a tensor whose size depends on values (nonzero, x[mask])"),
    (r"(?:rule|fallback).* for (aten::\w+)", "calls {}, which torch.vmap does not support"),
    ("", "cannot be run by torch.vmap (method='batched' raises its error)"),
)


@dataclass(frozen=True)
class _Batch:
    """Inputs and targets in which every tensor has the samples in its first dimension."""

    tree: tuple[Any, Any]
    size: int

    @classmethod
    def of(cls, inputs: Any, targets: Any) -> _Batch:
        """Check the user's arguments."""
        if isinstance(inputs, list):
            raise TypeError(
                "inputs must be a tensor, a tuple of positional arguments or a dict of keyword arguments, found a list"
            )
        size: int | None = None
        for name, tree in (("inputs", inputs), ("targets", targets)):
            for value in filter(_is_tensor, pytree.tree_leaves(tree, is_leaf=_is_tensor)):
                size = _number_of_samples(value, name, size)
            if size is None:
                raise TypeError(f"inputs must contain at least one tensor, found {type(inputs).__name__}")
        return cls((inputs, targets), size or 0)

    def map(self, function: Callable[[Any], Any]) -> tuple[Any, Any]:
        """Return inputs and targets with ``function`` applied to their tensors."""
        found: tuple[Any, Any] = pytree.tree_map(
            lambda x: function(x) if _is_tensor(x) else x, self.tree, is_leaf=_is_tensor
        )
        return found

    def part(self, start: int, stop: int) -> _Batch:
        """Return the samples ``start`` to ``stop``."""
        if (start, stop) == (0, self.size):
            return self

        def samples(x: Any) -> Any:
            if isinstance(x, Tensor) and x.layout is not torch.strided:
                return x.index_select(0, torch.arange(start, stop, device=x.device))
            return x[start:stop]

        return _Batch(self.map(samples), stop - start)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, (Tensor, MaskedTensor, PackedSequence))


def _number_of_samples(value: Any, name: str, expected: int | None) -> int:
    if isinstance(value, PackedSequence):
        raise TypeError(
            "inputs and targets must be tensors with a row for each sample, found a PackedSequence, with a row for "
            "each step; use mg.interop.from_packed(packed), and batch_first=True for recurrent layers"
        )
    if isinstance(value, Tensor) and value.layout not in (torch.strided, torch.sparse_coo):
        raise TypeError(
            f"{name} must be strided, COO or masked tensors, found one of layout {value.layout}; write "
            f"mg.from_{'nested' if value.is_nested else 'sparse'}(x)"
        )
    if value.dim() == 0:
        raise ValueError(
            f"{name} must be tensors whose first dimension is that of samples, found a 0-dim tensor{_SHARED}"
        )
    size: int = value.shape[0]
    if expected not in (None, size):
        integers = value.dim() == 1 and not (value.is_floating_point() or value.is_complex())
        raise ValueError(
            f"{name} must have {expected} samples, as the first tensor of inputs, found a tensor of shape "
            f"{tuple(value.shape)}{_OFFSETS if integers else _SHARED}"
        )
    return size


def _one_of(x: Tensor | MaskedTensor, split: Callable[[Tensor], Tensor]) -> Any:
    """Return a batch of one sample of ``x``, under ``vmap``; jagged tensors are padded for it."""
    if x.layout not in (torch.strided, torch.jagged):
        raise NotBatchedError(
            f"the samples of a tensor of layout {x.layout} have different numbers of entries; pass x.to_dense() if "
            "memory allows"
        )
    return pytree.tree_map(split, x.to_dense() if x.layout is torch.jagged else x).unsqueeze(0)


class Chunk(NamedTuple):
    """The gradients of consecutive samples."""

    gradients: dict[str, SampleGradients]
    """By the name of the parameter; those without a gradient are omitted."""
    specified: Tensor
    """Samples whose loss is specified, Boolean (samples,)."""


class PerSample:
    """A model and a loss, to be differentiated for each sample of a batch."""

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[..., Any],
        inputs: Any,
        targets: Any,
        chunk_size: int | None,
        randomness: Randomness,
        method: Method,
        create_graph: bool = False,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, found {type(model).__name__}")
        if not callable(loss_fn):
            raise TypeError(f"loss_fn must be callable, found {type(loss_fn).__name__}")
        if chunk_size is not None and (not isinstance(chunk_size, int) or chunk_size < 1):
            raise ValueError(f"chunk_size must be a positive number or None, found {chunk_size!r}")
        for argument, value, known in (
            ("randomness", randomness, ("different", "same", "error")),
            ("method", method, ("auto", "batched", "loop")),
        ):
            if value not in known:
                raise ValueError(f"{argument} must be one of {', '.join(map(repr, known))}, found {value!r}")
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise ValueError("model has no parameter that requires a gradient; call requires_grad_() on one")
        self.device = next(iter(self.parameters.values())).device
        self.create_graph = create_graph
        self._batch = _Batch.of(inputs, targets)
        if not create_graph:
            self._batch = _Batch(self._batch.map(lambda x: x.detach()), self._batch.size)
        self._model, self._loss_fn, self._randomness, self._method = model, loss_fn, randomness, method
        self._chunk_size = chunk_size or max(self._batch.size, 1)
        self._masks = {name: trained_entries(p) for name, p in self.parameters.items()}
        #: parameters whose gradient is sparse even without a look-up
        self._sparse: set[int] = set()
        hooked = (f"the parameter {name}" for name, p in self.parameters.items() if p._backward_hooks)
        self._hooked = next(hooked, "")
        for name, module in model.named_modules():
            self._check_module(name or "it", module)

    def _check_module(self, name: str, module: nn.Module) -> None:
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            if module.training or module.running_mean is None:
                raise CoupledSamplesError(
                    f"model couples samples: {name} ({type(module).__name__}) normalises over the batch, so "
                    "that a sample has no gradient of its own. Use GroupNorm, LayerNorm or InstanceNorm, or put this "
                    "module into evaluation mode with .eval()"
                )
        elif isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
            if self.create_graph:
                raise TypeError(f"model: {name} ({type(module).__name__}) {_NOT_TWICE}")
            self._sparse.add(id(module.weight))
        if module._backward_hooks or module._backward_pre_hooks:
            self._hooked = f"{name} ({type(module).__name__})"

    def chunks(self) -> Iterator[Chunk]:
        """Yield the gradients of the batch: chunk by chunk, or sample by sample in the loop."""
        for module in self._model.modules():
            if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
                getattr(module, "flush", lambda: None)()  # applies pending updates of rows
        random = _random_state(self.device) if self._randomness == "same" else []
        reason = ""
        connected = not self._batch.size
        for start in range(0, self._batch.size, self._chunk_size):
            batch = self._batch.part(start, min(start + self._chunk_size, self._batch.size))
            found = None
            if self._method != "loop" and not reason:
                try:
                    found = self._at_once(batch)
                except (CoupledSamplesError, MemoryError, torch.OutOfMemoryError):
                    raise
                except Exception as error:
                    if self._method == "batched":
                        raise
                    reason = _in_words(error)
            alone = (self._alone(batch.part(i, i + 1), random) for i in range(batch.size))
            for chunk in alone if found is None else (found,):
                connected |= bool(chunk.gradients) or not bool(chunk.specified.all())
                yield chunk
        if not connected:
            raise ValueError(
                "loss_fn's result depends on no parameter of the model that requires a gradient; remove a detach() or "
                "torch.no_grad() in between"
            )
        if reason:  # last: if the model itself has an error, the loop raises it
            _warn_once(
                f"the gradients per sample are computed by a slow loop over the samples: {reason} "
                f"({type(self._model).__name__}). method='loop' silences this warning"
            )

    def zeros(self, name: str, samples: int, sparse: bool | None = None) -> Tensor:
        """Return the gradients of an unused parameter; COO if ``sparse`` (None: if looked up so)."""
        p = self.parameters[name].detach()
        if sparse or (sparse is None and id(self.parameters[name]) in self._sparse):
            at = torch.empty(2, 0, dtype=torch.long, device=p.device)
            size, none = (samples, *p.shape), p.new_empty(0, *p.shape[1:])
            return torch.sparse_coo_tensor(at, none, size, is_coalesced=True, check_invariants=False)
        return p.new_zeros(samples, *p.shape)

    @torch.enable_grad()
    def _at_once(self, batch: _Batch, loss_alone: bool = False) -> Chunk:
        """Run the model on all samples under ``vmap``, and the loss; ``loss_alone``: the loss sample by sample."""
        if self._hooked:  # a hook expects one sample's gradient, and is not called at all under vmap
            raise NotBatchedError(f"{self._hooked} has a backward hook")
        rules = {} if self.create_graph else RULES  # what they keep cannot be differentiated again
        mode, failed = PerSampleMode(self.parameters, batch.size, rules, self.create_graph), False
        with warnings.catch_warnings():
            # Operations without a rule for vmap run sample by sample, as in a loop.
            warnings.filterwarnings("ignore", message="There is a performance drop")
            with mode.samples(self._randomness):
                inputs, targets = batch.map(lambda x: _one_of(x, mode.split))
                with mode:
                    output: Any = mode.call(self._model, inputs)
                    pair: Any = ()
                    try:
                        pair = () if loss_alone else self._loss(output, targets)
                    except Exception:
                        failed = True
                leaves, spec = pytree.tree_flatten(output)
                leaves, pair = [[mode.merged(x) for x in xs] for xs in (leaves, pair)]
            if failed:
                return self._at_once(batch, loss_alone=True)
            if loss_alone:
                rows = [[x[i] if isinstance(x, Tensor) else x for x in leaves] for i in range(batch.size)]
                pairs = [
                    self._loss(pytree.tree_unflatten(row, spec), batch.part(i, i + 1).tree[1])
                    for i, row in enumerate(rows)
                ]
                pair = map(torch.stack, zip(*pairs, strict=True))
            losses, specified = pair
            if not losses.requires_grad:
                raise NotBatchedError("the loss depends on no parameter")
            watched, unknown = _watched(leaves, specified)
            cotangents = mode.backward(losses.sum(), watched)
        kept = {name: joined(parts).to(self.parameters[name].dtype) for name, parts in mode.kept.items()}
        return self._chunk(kept, specified | unknown, cotangents)

    @torch.enable_grad()
    def _alone(self, sample: _Batch, random: list[Tensor]) -> Chunk:
        """Run model and loss on one sample, without vmap."""
        if random:
            _set_random_state(self.device, random)
        before = _random_state(self.device)
        inputs, targets = sample.tree
        output = call_with({}, self._model, inputs)
        loss, some = self._loss(output, targets)
        if self._randomness == "error" and not all(map(torch.equal, before, _random_state(self.device))):
            raise RuntimeError(
                "the model draws random numbers, and randomness='error'; use 'different' or 'same', or model.eval()"
            )
        if not loss.requires_grad:
            return self._chunk({}, some.view(1), ())
        watched, unknown = _watched(pytree.tree_leaves(output), some)
        by = [*self.parameters.values(), *watched]
        found = [
            None if g is None else g.unsqueeze(0)
            for g in torch.autograd.grad(loss, by, create_graph=self.create_graph, allow_unused=True)
        ]
        kept: dict[str, SampleGradients] = {}
        for name, g in zip(self.parameters, found, strict=False):
            if g is None:
                continue
            if self.create_graph and g.layout is not torch.strided:
                raise TypeError(f"model: a look-up {_NOT_TWICE}")
            if g.layout is torch.sparse_coo and g.sparse_dim() == 2 and g.dim() == 3:
                table, at = (g.shape[1], g.shape[2]), g._indices()
                kept[name] = Rows(at[0], at[1], g._values(), 1, table, True)
            else:
                kept[name] = Full(g.to_dense())
        return self._chunk(kept, (some | unknown).view(1), found[len(self.parameters) :])

    def _chunk(
        self, kept: dict[str, SampleGradients], specified: Tensor, cotangents: Sequence[Tensor | None]
    ) -> Chunk:
        """Return the gradients with zeros for samples and entries that have none.

        A nonzero gradient by the outputs (NaN included) distinguishes an empty loss from one with additional
        terms.
        """
        specified = specified.to(self.device)
        for g in cotangents:
            if g is not None:
                nonzero = (g.detach() != 0).unsqueeze(-1).flatten(1).any(1)
                specified = specified | nonzero.to(self.device)
        if not bool(specified.all()):  # zero times a masked value may be NaN
            kept = {name: part.without(~specified) for name, part in kept.items()}
        for name, mask in self._masks.items():
            if mask is not None and name in kept:
                kept[name] = kept[name].within(mask)
        return Chunk(kept, specified)

    def _loss(self, output: Any, targets: Any) -> tuple[Tensor, Tensor]:
        """Return one sample's loss, and whether its targets and outputs were specified anywhere."""
        with noting() as noted:
            loss = self._loss_fn(output) if targets is None else self._loss_fn(output, targets)
        if not isinstance(loss, (Tensor, MaskedTensor)):
            raise TypeError(f"loss_fn must return a tensor, found {type(loss).__name__}")
        if loss.shape.numel() != 1:
            raise ValueError(
                f"loss_fn must return a scalar for one sample, found shape {tuple(loss.shape)}; use reduction='mean' "
                "or reduction='sum'"
            )
        if isinstance(loss, MaskedTensor):
            return loss.filled(0).reshape(()), loss.mask.reshape(())
        some = [_current(mask).any().to(loss.device) for mask in noted]
        return loss.reshape(()), functools.reduce(
            operator.or_, some or [torch.ones((), dtype=torch.bool, device=loss.device)]
        )


def _current(x: Tensor) -> Tensor:
    """Return ``x`` without the wrappers of transformations that have ended; the loss may have made some."""
    level = functorch.maybe_current_level() or 0
    while functorch.is_functorch_wrapped_tensor(x) and functorch.maybe_get_level(x) > level:
        x = functorch.get_unwrapped(x)
    return x


def _watched(outputs: Sequence[Any], specified: Tensor) -> tuple[list[Tensor], bool]:
    """Return outputs whose gradients show that a loss is not empty, and whether objects may contain others."""
    if bool(specified.all()):
        return [], False
    unknown = any(not isinstance(x, (Tensor, int, float, str, type(None))) for x in outputs)
    return [x for x in outputs if isinstance(x, Tensor) and x.requires_grad], unknown


@functools.cache
def _warn_once(message: str) -> None:
    """Warn of a model that needs the loop, once: not at every step."""
    warnings.warn(message, stacklevel=level_of_user())


def _in_words(error: Exception) -> str:
    if isinstance(error, NotBatchedError):
        return str(error)
    found = ((re.search(pattern, str(error)), words) for pattern, words in _REASONS)
    return next(f"the model or the loss {words.format(*match.groups())}" for match, words in found if match)


def _random_state(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def _set_random_state(device: torch.device, states: list[Tensor]) -> None:
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)
