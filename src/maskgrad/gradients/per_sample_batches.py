"""A model and its loss, differentiated for each sample: at once by ``torch.vmap``, or one by one."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch._C import _functorch as functorch
from torch.utils import _pytree as pytree

from maskgrad.errors import CoupledSamplesError
from maskgrad.gradients.backward_passes import nodes_between
from maskgrad.gradients.per_sample_inputs import Batch, padded
from maskgrad.gradients.per_sample_mode import Looked, NotBatchedError, OneSample, at_level, call_with
from maskgrad.gradients.per_sample_rows import restricted, sparse_rows, without
from maskgrad.gradients.train_only import trained_entries
from maskgrad.masked_tensor import MaskedTensor
from maskgrad.masked_tensor.other_packages import level_of_user
from maskgrad.semantics.numbers import noting

__all__ = ["Chunk", "Method", "PerSample", "Randomness"]

Method = Literal["auto", "batched", "loop"]
Randomness = Literal["different", "same", "error"]

_NOT_TWICE = (
    "gives sparse gradients, which PyTorch cannot differentiate a second time; look up with sparse=False, or leave out "
    "create_graph"
)


class Chunk(NamedTuple):
    """The gradients of consecutive samples."""

    gradients: dict[str, Tensor]
    """(samples, *shape) by the name of the parameter, strided or COO; those without a gradient are omitted."""
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
        self._batch = Batch.of(inputs, targets)
        if not create_graph:
            self._batch = Batch(self._batch.map(lambda x: x.detach()), self._batch.size)
        self._model, self._loss_fn, self._randomness, self._method = model, loss_fn, randomness, method
        self._chunk_size = chunk_size or max(self._batch.size, 1)
        self._masks = {name: trained_entries(p) for name, p in self.parameters.items()}
        #: names of tables with sparse gradients, by the id of the parameter
        self._sparse: dict[int, str] = {}
        names = {id(p): name for name, p in self.parameters.items()}
        hooked = (f"the parameter {name}" for name, p in self.parameters.items() if p._backward_hooks)
        self._hooked = next(hooked, "")
        for name, module in model.named_modules():
            self._check_module(name or "it", module, names)

    def _check_module(self, name: str, module: nn.Module, names: Mapping[int, str]) -> None:
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
            if id(module.weight) in names:
                self._sparse[id(module.weight)] = names[id(module.weight)]
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
                    reason = str(error).split(". ")[0].rstrip(".") or type(error).__name__
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
    def _at_once(self, batch: Batch) -> Chunk:
        """Differentiate all samples under ``vmap``."""
        if self._hooked:  # a hook expects one sample's gradient
            raise NotBatchedError(f"{self._hooked} has a backward hook")
        leaves, spec = pytree.tree_flatten(batch.map(padded))
        # Tables with sparse gradients stay in the model: only rows that were looked up have a gradient.
        dense = {name: p for name, p in self.parameters.items() if id(p) not in self._sparse}
        copies = {name: p.view_as(p) if self.create_graph else p.detach() for name, p in dense.items()}
        anchor = {"": torch.zeros((), device=self.device)} if self._sparse else {}
        used: list[str] = []
        objects: list[bool] = []

        def one_sample(*samples: Tensor) -> Any:
            level = functorch.maybe_current_level() or 0
            modes: list[OneSample] = []
            cotangents: list[Tensor] = []

            def loss_of(given: dict[str, Tensor]) -> Any:
                each = iter(samples)
                rows = [next(each).unsqueeze(0) if isinstance(x, Tensor) else x for x in leaves]
                inputs, targets = pytree.tree_unflatten(rows, spec)
                modes.append(OneSample(self._sparse, given.get("")))
                with modes[0]:
                    output = call_with({id(p): given[name] for name, p in dense.items()}, self._model, inputs)
                    loss, some = self._loss(output, targets)
                if some:
                    outputs = pytree.tree_leaves(output)
                    objects.append(_has_objects(outputs))
                    for x in _in_graph(outputs):
                        x.register_hook(cotangents.append)
                return loss, (loss, some)

            found, of_loss = torch.func.grad(loss_of, has_aux=True)({**copies, **anchor})
            used[:] = [name for name, g in found.items() if functorch.is_batchedtensor(g) or bool(g.any())]
            kept = pytree.tree_map(lambda x: at_level(x, level), (modes[0].looked, cotangents))
            return {name: found[name] for name in used if name}, of_loss, kept

        with warnings.catch_warnings():
            # Operations without a rule for vmap run sample by sample, as in a loop.
            warnings.filterwarnings("ignore", message="There is a performance drop")
            kept, (losses, specified), (looked, cotangents) = torch.func.vmap(
                one_sample, randomness=self._randomness
            )(*(x for x in leaves if isinstance(x, Tensor)))
        legitimate = {copy.grad_fn for copy in copies.values()}
        if losses.requires_grad and _reaches(losses, [*self.parameters.values()], legitimate):
            raise NotBatchedError(
                "a parameter is used through a reference outside of the module, which vmap cannot see"
            )
        kept |= {name: self._rows(name, parts, batch.size) for name, parts in looked.items() if parts}
        if not self.create_graph:
            kept = {name: gradient.detach() for name, gradient in kept.items()}
        return self._chunk(kept, specified, cotangents, any(objects), batch.size)

    def _rows(self, name: str, looked: Sequence[Looked], samples: int) -> Tensor:
        """Return the gradients of a sparse table, COO (samples, V, D)."""
        table = self.parameters[name]
        each: list[tuple[Tensor, Tensor, Tensor]] = []
        for rows, counted, gradient in looked:
            kept = counted.reshape(samples, -1).nonzero(as_tuple=True)
            values = gradient.reshape(samples, -1, table.shape[1])[kept]
            each.append((kept[0], rows.reshape(samples, -1).long()[kept], values.to(table.dtype)))
        at, rows, values = (torch.cat(parts) for parts in zip(*each, strict=True))
        return sparse_rows(at, rows, values, (samples, *table.shape))

    @torch.enable_grad()
    def _alone(self, sample: Batch, random: list[Tensor]) -> Chunk:
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
            return self._chunk({}, some, (), False, 1)
        outputs = pytree.tree_leaves(output) if some else []
        by = [*self.parameters.values(), *_in_graph(outputs)]
        found = [
            None if g is None else g.unsqueeze(0)
            for g in torch.autograd.grad(loss, by, create_graph=self.create_graph, allow_unused=True)
        ]
        kept: dict[str, Tensor] = {}
        for name, g in zip(self.parameters, found, strict=False):
            if g is None:
                continue
            if self.create_graph and g.layout is not torch.strided:
                raise TypeError(f"model: a look-up {_NOT_TWICE}")
            if g.layout is torch.sparse_coo and g.sparse_dim() == 2 and g.dim() == 3:
                kept[name] = sparse_rows(g._indices()[0], g._indices()[1], g._values(), g.shape)
            else:
                kept[name] = g.to_dense()
        return self._chunk(kept, some, found[len(self.parameters) :], _has_objects(outputs), 1)

    def _chunk(
        self,
        kept: dict[str, Tensor],
        flags: Sequence[Tensor],
        cotangents: Sequence[Tensor | None],
        objects: bool,
        size: int,
    ) -> Chunk:
        """Return the gradients with zeros for samples and entries that have none.

        A nonzero gradient by the outputs (NaN included) distinguishes an empty loss from one with additional
        terms; it is not known of outputs in ``objects``.
        """
        specified = torch.full((size,), objects or not flags, device=self.device)
        for flag in flags:
            specified = specified | flag.reshape(size).to(self.device)
        for g in cotangents:
            if g is not None:
                nonzero = (g.detach() != 0).unsqueeze(-1).flatten(1).any(1)
                specified = specified | nonzero.to(self.device)
        if flags and not bool(specified.all()):  # zero times a masked value may be NaN
            kept = {name: without(part, ~specified) for name, part in kept.items()}
        for name, mask in self._masks.items():
            if mask is not None and name in kept:
                kept[name] = restricted(kept[name], mask)
        return Chunk(kept, specified)

    def _loss(self, output: Any, targets: Any) -> tuple[Tensor, list[Tensor]]:
        """Return one sample's loss, and flags of which one is True if it has a specified entry; none: it has."""
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
            return loss.filled(0).reshape(()), [loss.mask.reshape(())]
        # The loss may have made transformations of its own, which have ended.
        level = functorch.maybe_current_level() or 0
        return loss.reshape(()), [at_level(mask, level).any() for mask in noted]


def _in_graph(outputs: Sequence[Any]) -> list[Tensor]:
    return [x for x in outputs if isinstance(x, Tensor) and x.requires_grad]


def _has_objects(outputs: Sequence[Any]) -> bool:
    """Return whether outputs may contain tensors that are not visible."""
    return any(not isinstance(x, (Tensor, int, float, str, type(None))) for x in outputs)


def _reaches(loss: Tensor, leaves: Sequence[Tensor], without: set[Any]) -> bool:
    """Return whether the graph of ``loss`` leads to one of ``leaves`` other than through the nodes ``without``."""
    wanted = {id(leaf) for leaf in leaves}
    ways = nodes_between(loss, leaves) - without
    return any(id(getattr(n, "variable", None)) in wanted for way in ways for n, _ in way.next_functions)


@functools.cache
def _warn_once(message: str) -> None:
    """Warn of a model that needs the loop, once: not at every step."""
    warnings.warn(message, stacklevel=level_of_user())


def _random_state(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def _set_random_state(device: torch.device, states: list[Tensor]) -> None:
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)
