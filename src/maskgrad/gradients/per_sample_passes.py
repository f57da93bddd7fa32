"""Forward and backward for a batch of samples, all at once or one by one; both give the same gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from maskgrad.errors import CoupledSamplesError
from maskgrad.gradients.per_sample_batches import Batch, NonzeroCotangents, any_specified, for_each_sample
from maskgrad.gradients.per_sample_gradients import Full, Rows, SampleGradients, joined
from maskgrad.gradients.per_sample_mode import NotBatchedError, PerSampleMode
from maskgrad.gradients.per_sample_rules import RULES
from maskgrad.gradients.train_only import trained_entries
from maskgrad.masked_tensor import MaskedTensor
from maskgrad.semantics.numbers import noting

__all__ = ["Chunk", "Method", "PerSample", "Randomness"]

_Found = tuple[dict[str, SampleGradients], Tensor | None]
Method = Literal["auto", "batched", "loop"]
Randomness = Literal["different", "same", "error"]


@dataclass(frozen=True)
class Chunk:
    """The gradients of consecutive samples."""

    gradients: dict[str, SampleGradients]
    """By the name of the parameter; those without a gradient are missing."""
    specified: Tensor | None
    """Boolean (B,): whose loss is specified. None: all."""
    start: int
    stop: int


_NOT_TWICE = (
    "gives sparse gradients, which PyTorch cannot differentiate a second time; look up with sparse=False, or leave out "
    "create_graph"
)


class _LossAloneError(Exception):
    """``vmap`` takes the model, but not the loss."""


class PerSample:
    """A model and a loss, ready to be differentiated for each sample of a batch."""

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
        self.model, self.loss_fn = model, loss_fn
        self.batch = Batch.of(inputs, targets, in_graph=create_graph)
        self.create_graph = create_graph
        self.chunk_size, self.randomness, self.method = chunk_size or self.batch.size, randomness, method
        #: tables whose gradient is sparse also where nothing was looked up: their sizes
        self.tables: dict[int, tuple[int, int]] = {}
        self._tables_to_flush: list[Any] = []
        self._hooked: str | None = None
        masks = {name: trained_entries(p) for name, p in self.parameters.items()}
        self._trained = {name: mask for name, mask in masks.items() if mask is not None}
        for name, module in model.named_modules():
            self._check_module(name, module)
        for name, p in self.parameters.items():
            if p._backward_hooks:
                self._hooked = f"the parameter {name}"

    def _check_module(self, name: str, module: nn.Module) -> None:
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            if module.training or module.running_mean is None:
                raise CoupledSamplesError(
                    f"model couples samples: {name or 'it'} ({type(module).__name__}) normalises over the batch, so "
                    "that a sample has no gradient of its own. Use GroupNorm, LayerNorm or InstanceNorm, or put this "
                    "module into evaluation mode with .eval()"
                )
        elif isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            if module.sparse and self.create_graph:
                raise TypeError(f"model: {name or 'it'} ({type(module).__name__}) {_NOT_TWICE}")
            if module.sparse:
                self.tables[id(module.weight)] = module.num_embeddings, module.embedding_dim
            if callable(getattr(module, "flush", None)):
                self._tables_to_flush.append(module)
        if module._backward_hooks or module._backward_pre_hooks:
            self._hooked = f"{name or 'the model'} ({type(module).__name__})"

    @property
    def device(self) -> torch.device:
        """That of the first parameter."""
        return next(iter(self.parameters.values())).device

    def chunks(self) -> Iterator[Chunk]:
        """The gradients of the batch, chunk by chunk."""
        for table in self._tables_to_flush:
            table.flush()  # brings rows up to date that are behind
        for start in range(0, self.batch.size, max(self.chunk_size, 1)):
            stop = min(start + self.chunk_size, self.batch.size)
            with torch.enable_grad():
                kept, specified = self._gradients(self.batch.part(start, stop))
            if specified is not None:
                kept = {name: part.without(~specified) for name, part in kept.items()}
            for name, mask in self._trained.items():
                if name in kept:
                    kept[name] = kept[name].within(mask)
            yield Chunk(kept, specified, start, stop)

    def zeros(self, name: str, batch: int) -> SampleGradients:
        """Gradients of a parameter that took no part."""
        p = self.parameters[name]
        table = self.tables.get(id(p))
        if table is None:
            return Full(p.new_zeros((batch, *p.shape)).detach())
        none = torch.empty(0, dtype=torch.long, device=p.device)
        return Rows(none, none, p.detach().new_empty((0, table[1])), batch, table, True)

    def _gradients(self, batch: Batch) -> _Found:
        if self.method == "loop":
            return self._one_by_one(batch)
        try:
            return self._at_once(batch)
        except (CoupledSamplesError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as reason:
            if self.method == "batched":
                raise
            found = self._one_by_one(batch)  # if the model itself is at fault, its own error comes out here
            lines = str(reason).strip().splitlines()
            warnings.warn(
                "the gradients per sample are computed by a slow loop over the samples: "
                f"{lines[0] if lines else type(reason).__name__} (method='loop' silences this warning)",
                stacklevel=5,
            )
            self.method = "loop"
            return found

    def _at_once(self, batch: Batch, each_loss_alone: bool = False) -> _Found:
        if self._hooked:  # a hook expects one sample's gradient, and is not called at all under vmap
            raise NotBatchedError(f"{self._hooked} has a backward hook")
        mode = PerSampleMode(self.parameters, batch.size, RULES, self.create_graph)
        cotangents, masked = NonzeroCotangents(batch.size, self.device), False
        # Copies: a forward pass may write into buffers.
        buffers = {id(buffer): buffer.clone() for buffer in self.model.buffers()}
        places = list(_places_of_tensors(self.model))
        names = {id(p): name for name, p in self.parameters.items()}
        spec: Any = None

        def output(copies: dict[str, Tensor], number: Tensor, leaves: list[Any]) -> tuple[Any, Any]:
            args, kwargs, targets = batch.arguments([leaf.unsqueeze(0) for leaf in leaves])
            with mode.sample(copies, number):
                here = {**buffers, **{identity: copies[name] for identity, name in names.items()}}
                state = {place: here[identity] for place, identity in places if identity in here}
                return torch.func.functional_call(self.model, state, args, kwargs, tie_weights=False), targets

        def loss_of(found: Any, targets: Any) -> tuple[Tensor, Tensor]:
            nonlocal masked
            loss, some = self._loss(found, targets)
            masked = masked or some is not None
            some = torch.ones((), dtype=torch.bool, device=loss.device) if some is None else some
            return loss, some

        def loss_only(copies: dict[str, Tensor], number: Tensor, leaves: list[Any]) -> tuple[Tensor, ...]:
            found, targets = output(copies, number, leaves)
            try:
                with mode:
                    both = loss_of(found, targets)
            except Exception as error:
                raise _LossAloneError from error
            if masked:
                cotangents.watch(pytree.tree_leaves(found))
            return both

        def output_only(copies: dict[str, Tensor], number: Tensor, leaves: list[Any]) -> list[Tensor]:
            nonlocal spec
            found, spec = pytree.tree_flatten(output(copies, number, leaves)[0])
            return found

        given = mode.copies, mode.numbers, list(batch.leaves)
        with warnings.catch_warnings():
            # Operations that vmap knows no rule for run sample by sample, as they would in a loop.
            warnings.filterwarnings("ignore", message="There is a performance drop")
            if each_loss_alone:
                leaves = torch.vmap(output_only, randomness=self.randomness)(*given)
                pairs = [
                    loss_of(
                        pytree.tree_unflatten([leaf[i] for leaf in leaves], spec),
                        batch.part(i, i + 1).arguments()[2],
                    )
                    for i in range(batch.size)
                ]
                losses, some = (torch.stack(column) for column in zip(*pairs, strict=True))
                if masked:
                    cotangents.watch(leaves)
            else:
                try:
                    losses, some = for_each_sample(loss_only, *given, self.randomness)
                except _LossAloneError:
                    return self._at_once(batch, each_loss_alone=True)
            if not losses.requires_grad:
                raise NotBatchedError("the loss depends on no parameter")
            mode.backward(losses.sum())
        kept = {name: joined(parts).to(self.parameters[name].dtype) for name, parts in mode.kept.items()}
        return kept, some | cotangents.found if masked else None

    def _one_by_one(self, batch: Batch) -> _Found:
        names, parameters = list(self.parameters), list(self.parameters.values())
        found: list[list[Tensor | None]] = []
        specified: list[bool] = []
        masked, connected = False, False
        buffers = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        random = _random_state(self.device)
        try:
            for i in range(batch.size):
                if self.randomness == "same":
                    _set_random_state(self.device, random)
                args, kwargs, targets = batch.part(i, i + 1).arguments()
                output = self.model(*args, **kwargs)
                loss, some = self._loss(output, targets)
                if self.randomness == "error" and not all(
                    map(torch.equal, random, _random_state(self.device))
                ):
                    raise RuntimeError(
                        "the model draws random numbers, and randomness='error'; use 'different' or 'same', or "
                        "model.eval()"
                    )
                masked = masked or some is not None
                specified.append(some is None or bool(some))
                if not loss.requires_grad:
                    found.append([None] * len(parameters))
                    continue
                connected = True
                cotangents = NonzeroCotangents(1, loss.device)
                if not specified[-1]:
                    cotangents.watch(pytree.tree_leaves(output), dim=None)
                gradients = torch.autograd.grad(
                    loss, parameters, create_graph=self.create_graph, allow_unused=True
                )
                found.append(list(gradients))
                specified[-1] = specified[-1] or bool(cotangents.found)
        finally:
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
        if not connected and not masked:
            raise ValueError(
                "loss_fn's result depends on no parameter of the model that requires a gradient; remove a detach() or "
                "torch.no_grad() in between"
            )
        columns = zip(names, zip(*found, strict=True), strict=True)
        kept = {n: _stacked(c, self.create_graph) for n, c in columns if any(g is not None for g in c)}
        return kept, torch.tensor(specified, device=self.device) if masked else None

    def _loss(self, output: Any, targets: Any) -> tuple[Tensor, Tensor | None]:
        """One sample's loss, and whether its targets and outputs were specified anywhere; None: nothing was masked.

        The loss of nothing has gradient zero, but zero times what a masked sample holds may be NaN.
        """
        with noting() as noted:
            loss = self.loss_fn(output) if targets is None else self.loss_fn(output, targets)
        if not isinstance(loss, (Tensor, MaskedTensor)):
            raise TypeError(f"loss_fn must return a tensor, found {type(loss).__name__}")
        if loss.shape.numel() != 1:
            raise ValueError(
                f"loss_fn must return one number for one sample, found shape {tuple(loss.shape)}; use reduction='mean' "
                "or reduction='sum'"
            )
        if isinstance(loss, MaskedTensor):
            return loss.filled(0).reshape(()), loss.mask.reshape(())
        return loss.reshape(()), any_specified(noted) if noted else None


def _places_of_tensors(model: nn.Module) -> Iterator[tuple[str, int]]:
    """Every parameter and buffer of a module, by its place, once, and which tensor is there.

    Each is exchanged on its own (``tie_weights=False``): by name, a module with several names gets back a wrong one.
    """
    for prefix, module in model.named_modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                yield (f"{prefix}.{name}" if prefix else name), id(tensor)


def _stacked(column: tuple[Tensor | None, ...], create_graph: bool) -> SampleGradients:
    """Gradients of one parameter, one per sample; None is zero."""
    present = [g for g in column if g is not None]
    if create_graph:
        if any(g.layout is not torch.strided for g in present):
            raise TypeError(f"model: a look-up {_NOT_TWICE}")
        zeros = torch.zeros_like(present[0])
        return Full(torch.stack([zeros if g is None else g for g in column]))
    if all(g.layout is torch.sparse_coo and g.sparse_dim() == 1 and g.dim() == 2 for g in present):
        counts = torch.tensor([0 if g is None else g._nnz() for g in column], device=present[0].device)
        samples = torch.arange(len(column), device=counts.device).repeat_interleave(counts)
        rows = torch.cat([g._indices()[0] for g in present])
        values = torch.cat([g._values() for g in present])
        height, width = present[0].shape
        return Rows(samples, rows, values, len(column), (height, width), True)
    stacked = present[0].new_zeros((len(column), *present[0].shape), layout=torch.strided)
    for i, gradient in enumerate(column):
        if gradient is not None:
            stacked[i] = gradient if gradient.layout is torch.strided else gradient.to_dense()
    return Full(stacked)


def _random_state(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def _set_random_state(device: torch.device, states: list[Tensor]) -> None:
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)
