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
from maskgrad.gradients.per_sample_inputs import Batch, padded
from maskgrad.gradients.per_sample_mode import Looked, NotBatchedError, OneSample, at_level, call_with
from maskgrad.gradients.per_sample_rows import finite, restricted, sparse_rows, squared_norms
from maskgrad.gradients.train_only import trained_entries
from maskgrad.masked_tensor import MaskedTensor
from maskgrad.masked_tensor.other_packages import level_of_user
from maskgrad.semantics.numbers import noting

__all__ = ["Chunk", "Method", "PerSample"]

Method = Literal["auto", "batched", "loop"]


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
        method: Method,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, found {type(model).__name__}")
        if not callable(loss_fn):
            raise TypeError(f"loss_fn must be callable, found {type(loss_fn).__name__}")
        if chunk_size is not None and (not isinstance(chunk_size, int) or chunk_size < 1):
            raise ValueError(f"chunk_size must be a positive number or None, found {chunk_size!r}")
        if method not in ("auto", "batched", "loop"):
            raise ValueError(f"method must be 'auto', 'batched' or 'loop', found {method!r}")
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise ValueError("model has no parameter that requires a gradient; call requires_grad_() on one")
        self.device = next(iter(self.parameters.values())).device
        self._batch = Batch.of(inputs, targets)
        self._model, self._loss_fn, self._method = model, loss_fn, method
        self._chunk_size = chunk_size or max(self._batch.size, 1)
        self._masks = {name: trained_entries(p) for name, p in self.parameters.items()}
        #: names of tables with sparse gradients, by the id of the parameter
        self.sparse: dict[int, str] = {}
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
        elif isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            getattr(module, "flush", lambda: None)()  # applies pending updates of rows
            if module.sparse and id(module.weight) in names:
                self.sparse[id(module.weight)] = names[id(module.weight)]
        if module._backward_hooks or module._backward_pre_hooks:
            self._hooked = f"{name} ({type(module).__name__})"

    def chunks(self) -> Iterator[Chunk]:
        """Yield the gradients of the batch: chunk by chunk, or sample by sample in the loop."""
        reason, connected = "", not self._batch.size
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
            alone = (self._alone(batch.part(i, i + 1)) for i in range(batch.size))
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

    def zeros(self, name: str, samples: int, sparse: bool) -> Tensor:
        """Return the gradients of an unused parameter."""
        p = self.parameters[name].detach()
        size = (samples, *p.shape)
        if sparse:
            rows = torch.empty(0, dtype=torch.long, device=p.device)
            return sparse_rows(rows, rows, p.new_empty(0, *p.shape[1:]), size)
        return p.new_zeros(size)

    @torch.enable_grad()
    def _at_once(self, batch: Batch) -> Chunk:
        """Differentiate all samples under ``vmap``."""
        if self._hooked:  # a hook expects one sample's gradient
            raise NotBatchedError(f"{self._hooked} has a backward hook")
        leaves, spec = pytree.tree_flatten(list(map(padded, batch.leaves)))  # a masked tensor has several
        # Tables with sparse gradients stay in the model: only rows that were looked up have a gradient.
        dense = {name: p for name, p in self.parameters.items() if id(p) not in self.sparse}
        copies = {name: p.detach() for name, p in dense.items()}
        anchor = {"": torch.zeros((), device=self.device)} if self.sparse else {}
        used: list[str] = []

        def one_sample(*samples: Tensor) -> Any:
            level = functorch.maybe_current_level() or 0
            modes: list[OneSample] = []
            flags: list[Tensor] = []

            def loss_of(given: dict[str, Tensor]) -> Tensor:
                each = iter(samples)
                rows = [next(each).unsqueeze(0) if isinstance(x, Tensor) else x for x in leaves]
                inputs, targets = pytree.tree_unflatten(pytree.tree_unflatten(rows, spec), batch.spec)
                modes.append(OneSample(self.sparse, given.get("")))
                with modes[0]:
                    output = call_with({id(p): given[name] for name, p in dense.items()}, self._model, inputs)
                    loss, flags[:] = self._loss(output, targets)
                return loss

            found, loss = torch.func.grad_and_value(loss_of)({**copies, **anchor})
            used[:] = [name for name, g in found.items() if functorch.is_batchedtensor(g) or bool(g.any())]
            looked = {
                name: [tuple(at_level(x, level) for x in one) for one in parts]
                for name, parts in modes[0].looked.items()
            }
            return {n: found[n] for n in used if n}, loss, [at_level(f, level) for f in flags], looked

        with warnings.catch_warnings():
            # Operations without a rule for vmap run sample by sample, as in a loop.
            warnings.filterwarnings("ignore", message="There is a performance drop")
            kept, losses, specified, looked = torch.func.vmap(one_sample, randomness="different")(
                *(x for x in leaves if isinstance(x, Tensor))
            )
        if losses.requires_grad:
            raise NotBatchedError(
                "a parameter is used through a reference outside of the module, which vmap cannot see"
            )
        kept |= {name: self._rows(name, parts, batch.size) for name, parts in looked.items() if parts}
        return self._chunk(kept, specified, batch.size)

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
    def _alone(self, sample: Batch) -> Chunk:
        """Run model and loss on one sample, without vmap."""
        inputs, targets = pytree.tree_unflatten(sample.leaves, sample.spec)
        loss, some = self._loss(call_with({}, self._model, inputs), targets)
        kept: dict[str, Tensor] = {}
        if loss.requires_grad:
            found = torch.autograd.grad(loss, [*self.parameters.values()], allow_unused=True)
            for name, gradient in zip(self.parameters, found, strict=True):
                if gradient is None:
                    continue
                g = gradient.unsqueeze(0)
                if g.layout is torch.sparse_coo and g.sparse_dim() == 2 and g.dim() == 3:
                    kept[name] = sparse_rows(g._indices()[0], g._indices()[1], g._values(), g.shape)
                else:
                    kept[name] = g.to_dense()
        return self._chunk(kept, some, 1)

    def _chunk(self, kept: dict[str, Tensor], flags: Sequence[Tensor], size: int) -> Chunk:
        """Return the gradients with zeros for samples and entries that have none."""
        specified = torch.full((size,), not flags, device=self.device)
        for flag in flags:
            specified = specified | flag.reshape(size).to(self.device)
        if flags and not bool(specified.all()):
            # Zero times a masked value may be NaN; other gradients are those of additional terms of the loss.
            kept = {name: finite(part, ~specified) for name, part in kept.items()}
            for part in kept.values():
                specified = specified | (squared_norms(part) > 0)
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
        return loss.reshape(()) if loss.ndim else loss, [at_level(mask, level).any() for mask in noted]


@functools.cache
def _warn_once(message: str) -> None:
    """Warn of a model that needs the loop, once: not at every step."""
    warnings.warn(message, stacklevel=level_of_user())
