"""Padding that the batch does not mark, from its use: tables with a padding_idx, masks of modules, packed lengths."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from maskgrad.doctor.batches import Key, fields, tensor_of
from maskgrad.doctor.evidence import agreement, is_one_piece, laid_mask, sides_of
from maskgrad.doctor.modes import Guarded
from maskgrad.doctor.operations import Operated, key_of
from maskgrad.doctor.padding import Padding, lengths_mask

__all__ = ["IdsRead", "ObservedUse", "ignored_labels", "padded_ids", "same_part"]


@dataclass(frozen=True)
class IdsRead:
    """Ids that were read by a table with an id of padding, or labels by a loss that ignores one."""

    ids: Tensor
    padding_idx: int
    argument: str
    reader: str
    module: str

    @property
    def source(self) -> str:
        """How padding is known by it."""
        return f"{self.argument}={self.padding_idx} of the {self.reader} that reads it"

    def of(self, tensor: Tensor) -> bool:
        """Whether the ids are a tensor, or a part or a copy of it: transposed, flat, or without its ends."""
        if key_of(self.ids) == key_of(tensor):
            return True
        return bool(self.ids.numel()) and same_part(self.ids, tensor) is not None


def same_part(part: Tensor, whole: Tensor, *others: Tensor) -> list[Tensor] | None:
    """What other tensors have where a tensor has a part, or a copy of it; None if the tensor has no such part."""
    if (part.dtype, part.device) != (whole.dtype, whole.device):
        return None
    for form, *rest in zip(*(_forms(held, part) for held in (whole, *others)), strict=True):
        if form.shape == part.shape and torch.equal(form, part):
            return rest
    return None


def _forms(tensor: Tensor, ids: Tensor) -> Iterator[Tensor]:
    """A tensor as ids may have been made of it."""
    yield tensor
    tables = [tensor, tensor.t()] if tensor.ndim == 2 else [tensor]
    if ids.ndim == 1:
        for table in tables:
            rows = max(len(table), 1)
            yield from (part.flatten() for part in _columns(table, len(ids) // rows))
            yield from (
                part.t().flatten()
                for part in _columns(table.t(), len(ids) // max(table.shape[-1], 1))
                if table.ndim == 2
            )
    elif ids.ndim == 2 and tensor.ndim == 2:
        for table in tables:
            yield from _columns(table, ids.shape[1])
            yield from (part.t() for part in _columns(table.t(), ids.shape[0]))
    elif ids.ndim == 2 and tensor.ndim > 2:
        yield tensor.flatten(0, -2)


def _columns(table: Tensor, count: int) -> Iterator[Tensor]:
    """As many columns as that: all, the first, the last, or those after the first."""
    yield table
    if table.ndim == 2 and 0 < count < table.shape[1]:
        yield from (table[:, :count], table[:, -count:], table[:, 1 : count + 1])


def padded_ids(ids: Tensor, padding_idx: int) -> Tensor | None:
    """Where ids are real, if the id of padding stands at the ends of rows and nowhere else; None otherwise.

    A first column of that id in all rows is real: a decoder starts with it.
    """
    if ids.ndim < 2 or not ids.numel() or ids.is_floating_point():
        return None
    real = ids != padding_idx
    if not bool(real.any()):
        return None
    starts = real.clone()
    starts[..., 0] |= not bool(real[..., 0].any())
    found = next((mask for mask in (starts, real) if is_one_piece(mask.flatten(0, -2))), None)
    return None if found is None or bool(found.all()) else found


def ignored_labels(loss: Tensor) -> list[IdsRead]:
    """The labels that losses have read, and the one that they ignore, before the backward pass."""
    found: list[IdsRead] = []
    seen, waiting = set[Any](), [loss.grad_fn]
    while waiting:
        node: Any = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name().startswith("NllLoss"):
            labels, ignored = node._saved_target, node._saved_ignore_index
            if ignored < 2**63:  # negative ones come as large numbers
                found.append(IdsRead(labels, ignored, "ignore_index", "loss", "the loss"))
        waiting += [following for following, _ in node.next_functions]
    return found


class ObservedUse(Guarded):
    """The first run of a step: ids read by tables with an id of padding, masks of modules, packed lengths."""

    def __init__(self, names: dict[int, str] | None = None) -> None:
        super().__init__()
        self.reads: list[IdsRead] = []
        #: all labels of cross entropies, call by call
        self.labels: list[IdsRead] = []
        #: masks that modules are given, or that lengths are packed with
        self.masks: list[tuple[Tensor, str]] = []
        #: leading shapes of what modules are given: positions first, and samples first
        self._time_first: set[tuple[int, int]] = set()
        self.batch_first: set[tuple[int, int]] = set()
        #: numbers of positions for which modules are given masks of pairs
        self._pairs: set[int] = set()
        self._names = names or {}
        self._stack: list[str] = []

    def run(self, call: Operated) -> Any:
        """Note what a table reads, and what is packed."""
        if call.facts.name == "embedding" and len(call.args) > 2 and call.args[2] >= 0:
            module = self._stack[-1] if self._stack else "a table"
            self.reads.append(IdsRead(call.args[1], call.args[2], "padding_idx", "table", module))
        if call.facts.name in ("nll_loss_forward", "nll_loss2d_forward"):
            self.labels.append(IdsRead(call.args[1], call.args[4], "ignore_index", "loss", "the loss"))
            self.reads += self.labels[-1:] * (call.args[4] >= 0)
        if call.facts.name == "_pack_padded_sequence":
            self.masks.append((_packed(*call.args[:3]), "lengths of pack_padded_sequence"))
        return call()

    def enter(self, module: nn.Module, args: Any) -> None:
        """Note the masks that a module is given, and whether it takes positions first."""
        self._stack.append(self._names.get(id(module), type(module).__name__))
        given = sys._getframe(1).f_locals.get("kwargs", {})  # a hook for all modules is not given keywords
        for name, held in _arguments(module, args, given) if not _is_mapped() else ():
            if isinstance(held, Tensor) and held.ndim == 2 and (sides := sides_of(held)) is not None:
                self.masks.append((sides.core, f"argument {name} of {type(module).__name__}"))
                if held.shape[0] == held.shape[1]:
                    self._pairs.add(len(held))
        first = next((held for held in (*args, *given.values()) if isinstance(held, Tensor)), None)
        positions_first = _takes_positions_first(module)
        if first is not None and first.ndim == 3 and positions_first is not None:
            shapes = self._time_first if positions_first else self.batch_first
            shapes.add((first.shape[0], first.shape[1]))

    def leave(self, *_: Any) -> None:
        """A module is done."""
        if self._stack:
            self._stack.pop()

    # what follows for a batch

    def turned(self, batch: Any, known: Collection[Key]) -> set[Key]:
        """Keys of tensors in which the positions come first: so modules are given them, or masks of pairs of positions.

        A step may leave out the first or the last position. Labels or lengths, one for each sample, decide against it.
        """
        counts = {held.shape[0] for held in fields(batch).values() if held.ndim == 1}
        inside = {key: tuple(held.shape[:2]) for key, held in fields(batch).items() if held.ndim > 1}
        settled = {shape for key, shape in inside.items() if key in known}
        found = set()
        for rows, columns in set(inside.values()) - settled:
            near = [(rows + step, columns) for step in (-1, 0, 1)]
            pairs = any(rows + step in self._pairs for step in (-1, 0, 1))
            pairs &= not any(columns + step in self._pairs for step in (-1, 0, 1))
            first = pairs or not self._time_first.isdisjoint(near)
            first &= columns in counts or rows not in counts
            if rows != columns and first and not self.batch_first.intersection(near):
                found |= {key for key, shape in inside.items() if shape in near}
        return found

    def paddings(self, batch: Any, known: Collection[Key]) -> list[Padding]:
        """The padding of tensors of which none is known yet."""
        found = []
        for key, field in fields(batch).items():
            tensor = tensor_of(field)
            if key in known or not isinstance(field, Tensor) or tensor.layout is not torch.strided:
                continue
            padding = self._by_table(key, tensor) or self._by_mask(key, tensor)
            if padding is not None:
                found.append(padding)
        return found

    def _by_table(self, key: Key, tensor: Tensor) -> Padding | None:
        for read in self.reads:
            if read.of(tensor):
                real = padded_ids(tensor, read.padding_idx)
                if real is not None:
                    return Padding(key, real, read.source)
        return None

    def _by_mask(self, key: Key, tensor: Tensor) -> Padding | None:
        """A mask that a module was given, if the data agree: the mask of another input is none of theirs."""
        if tensor.ndim < 2 or sides_of(tensor) is not None:
            return None
        for mask, name in self.masks:
            for laid in laid_mask(mask.to(tensor.device), tensor, time_first=True):
                if agreement(tensor, laid):
                    return Padding(key, laid.real.clone(), f"the {name}", samples=laid.samples)
        return None

    def read_of(self, batch: Any) -> set[Key]:
        """What tables with an id of padding read: where it has none at its ends, it is not padded."""
        inside = {
            key: tensor_of(field) for key, field in fields(batch).items() if field.layout is torch.strided
        }
        return {key for key, tensor in inside.items() if any(read.of(tensor) for read in self.reads)}

    def shapes_of_labels(self, batch: Any) -> list[tuple[int, ...]]:
        """The shapes of the tensors of two dimensions that cross entropies read."""
        tensors = [tensor_of(field) for field in fields(batch).values() if field.ndim == 2]
        return [tuple(tensor.shape) for tensor in tensors if any(read.of(tensor) for read in self.labels)]

    def unknown(self, batch: Any) -> dict[str, IdsRead]:
        """Padded ids, read by tables, that are nothing of the batch."""
        tensors = [tensor_of(field) for field in fields(batch).values() if field.layout is torch.strided]
        of_tables = [read for read in self.reads if read.reader == "table"]
        return {
            f"ids of {read.module}": read for read in of_tables
            if padded_ids(read.ids, read.padding_idx) is not None and not any(map(read.of, tensors))
        }  # fmt: skip


def _arguments(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The arguments of a module by name."""
    names = _names_of(type(module).forward)
    yield from zip(names, args, strict=False)
    yield from kwargs.items()


def _is_mapped() -> bool:
    """Whether a transform of torch.func runs: its tensors cannot be looked at."""
    return torch._C._functorch.peek_interpreter_stack() is not None


@functools.cache
def _names_of(forward: Any) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(forward).parameters)[1:]
    except (TypeError, ValueError):
        return ()


def _takes_positions_first(module: nn.Module) -> bool | None:
    """Whether a module takes positions before samples; None if it does not care."""
    if isinstance(module, (nn.RNNBase, nn.MultiheadAttention, nn.Transformer)):
        return not module.batch_first
    attention = getattr(module, "self_attn", None)
    return not attention.batch_first if isinstance(attention, nn.MultiheadAttention) else None


def _packed(input: Tensor, lengths: Tensor, batch_first: bool) -> Tensor:
    """Which positions are packed, by sample, in the order in which ``pack_padded_sequence`` was given them."""
    longest = input.shape[1] if batch_first else input.shape[0]
    mask = lengths_mask(lengths, longest, input.device)
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code is not pack_padded_sequence.__code__:
        frame = frame.f_back
    order = None if frame is None else frame.f_locals.get("sorted_indices")  # with enforce_sorted=False
    return mask if order is None else torch.empty_like(mask).index_copy_(0, order, mask)
