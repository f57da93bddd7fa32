"""Padding that the batch does not mark, from its use by tables, modules and losses; labels as losses read them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.utils._python_dispatch import _disable_current_modes

from maskgrad.doctor.batches import Key, fields, ragged, tensor_of
from maskgrad.doctor.modes import Guarded
from maskgrad.doctor.operations import Operated, key_of, nodes_of
from maskgrad.doctor.packed import Documents
from maskgrad.doctor.padding import Padding, Sides, alike, as_mask, layouts, lengths_mask, padded_ids

__all__ = ["IdsRead", "IgnoredLabels", "ObservedUse", "ignored_labels", "labels_ignored", "same_part"]


@dataclass(frozen=True)
class IdsRead:
    """Ids that were read by a table with an id of padding, or labels by a loss that ignores one."""

    ids: Tensor
    padding_idx: int
    argument: str = "ignore_index"
    reader: str = "loss"
    module: str = "the loss"

    @property
    def source(self) -> str:
        """How padding is known by it."""
        return f"{self.argument}={self.padding_idx} of the {self.reader} that reads it"

    def of(self, tensor: Tensor) -> bool:
        """Whether the ids are a tensor, or a part or a copy of it: transposed, flat, or without its ends."""
        same = key_of(self.ids) == key_of(tensor)
        return same or (self.ids.numel() > 0 and same_part(self.ids, tensor) is not None)


def same_part(part: Tensor, whole: Tensor, *others: Tensor) -> list[Tensor] | None:
    """What other tensors have where a tensor has a part, or a copy of it; None if the tensor has no such part."""
    if (part.dtype, part.device) != (whole.dtype, whole.device):
        return None
    for form, *rest in zip(*(_forms(held, part) for held in (whole, *others)), strict=True):
        if form.shape == part.shape and torch.equal(form, part):
            return rest
    return None


def _forms(tensor: Tensor, part: Tensor) -> Iterator[Tensor]:
    """A tensor as a part may have been made of it: its first rows or columns, the last, or those after the first."""
    yield tensor
    if part.ndim == 2 < tensor.ndim:
        yield tensor.flatten(0, -2)
    for table in (tensor, tensor.t()) if tensor.ndim == 2 and part.ndim in (1, 2) else ():
        for axis in (1, 0):
            count = part.shape[axis] if part.ndim == 2 else len(part) // max(table.shape[1 - axis], 1)
            rest = table.shape[axis] - count
            for start in (0, rest, 1):
                if 0 <= start <= rest:
                    piece = table.narrow(axis, start, count)
                    yield piece if part.ndim == 2 else piece.flatten()


def ignored_labels(loss: Tensor) -> list[IdsRead]:
    """The labels that losses have read, and the one that they ignore, before the backward pass."""
    losses = [node for node in nodes_of(loss) if node.name().startswith("NllLoss")]
    # negative ones come as large numbers
    read = [node for node in losses if node._saved_ignore_index < 2**63]
    return [IdsRead(node._saved_target, node._saved_ignore_index) for node in read]


class ObservedUse(Guarded):
    """The first run of a step: ids read by tables with an id of padding, masks of modules, packed lengths."""

    def __init__(self, batch: Any, names: dict[int, str]) -> None:
        super().__init__()
        inside = [*fields(batch).values(), *ragged(batch).values()]
        held = [held.data if isinstance(held, PackedSequence) else tensor_of(held) for held in inside]
        self._batch = {key_of(part.values() if part.layout is torch.jagged else part) for part in held}
        #: whether an operation reads the batch, or it leaves PyTorch
        self.reads_batch = not held or None in self._batch
        self.reads: list[IdsRead] = []
        #: all labels of cross entropies, call by call
        self.labels: list[IdsRead] = []
        #: masks that modules are given, or that lengths are packed with
        self.masks: list[tuple[Sides, str]] = []
        #: leading shapes of what modules are given: positions first, and samples first
        self._time_first: set[tuple[int, int]] = set()
        self.batch_first: set[tuple[int, int]] = set()
        #: numbers of positions for which modules are given masks of pairs
        self._pairs: set[int] = set()
        self._names = names
        self._stack: list[str] = []

    def run(self, call: Operated) -> Any:
        """Note what a table reads, and what is packed."""
        name, args = call.facts.name, call.args
        own = {None, *self._batch}
        self.reads_batch = self.reads_batch or any(key_of(tensor) in own for tensor in call.inputs)
        if name == "embedding" and len(args) > 2 and args[2] >= 0:
            module = self._stack[-1] if self._stack else "a table"
            self.reads.append(IdsRead(args[1], args[2], "padding_idx", "table", module))
        elif name in ("nll_loss_forward", "nll_loss2d_forward"):
            self.labels.append(IdsRead(args[1], args[4]))
            self.reads += self.labels[-1:] * (args[4] >= 0)
        elif name == "_pack_padded_sequence":
            self.masks.append((Sides(_packed(*args[:3]), (0.0, 1.0)), "lengths of pack_padded_sequence"))
        return call()

    def leaves_torch(self, tensor: Tensor) -> bool:
        """The memory of a tensor leaves PyTorch."""
        self.reads_batch |= key_of(tensor) in self._batch
        return super().leaves_torch(tensor)

    def enter(self, module: nn.Module, args: Any) -> None:
        """Note the masks that a module is given, and whether it takes positions first."""
        self._stack.append(self._names.get(id(module), type(module).__name__))
        given = sys._getframe(1).f_locals.get("kwargs", {})  # a hook for all modules is not given keywords
        code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
        named = zip(code.co_varnames[1 : code.co_argcount + 1] if code else (), args, strict=False)
        mapped = torch._C._functorch.peek_interpreter_stack() is not None  # whose tensors cannot be looked at
        with _disable_current_modes():  # these operations are ours
            for name, held in [] if mapped else [*named, *given.items()]:
                if isinstance(held, Tensor) and held.ndim == 2 and (sides := as_mask(held)) is not None:
                    self.masks.append((sides, f"argument {name} of {type(module).__name__}"))
                    self._pairs |= {len(held)} if held.shape[0] == held.shape[1] else set()
        first = next((held for held in (*args, *given.values()) if isinstance(held, Tensor)), None)
        cares = getattr(module, "self_attn", module)
        if isinstance(cares, (nn.RNNBase, nn.MultiheadAttention, nn.Transformer)) and first is not None:
            shapes = self.batch_first if cares.batch_first else self._time_first
            shapes |= {(first.shape[0], first.shape[1])} if first.ndim == 3 else set()

    def leave(self, *_: Any) -> None:
        """A module is done."""
        del self._stack[-1:]

    def turned(self, batch: Any, known: Collection[Key]) -> set[Key]:
        """Keys of tensors in which positions come first: so modules are given them, or masks of pairs of them."""
        # a step may leave out a position at an end; labels or lengths, one for each sample, decide against it
        counts = {held.shape[0] for held in fields(batch).values() if held.ndim == 1}
        inside = {key: tuple(held.shape[:2]) for key, held in fields(batch).items() if held.ndim > 1}
        settled = {shape for key, shape in inside.items() if key in known}
        read = self.paddings(batch, known)
        by_ids = {tuple(each.mask.shape) for each in read if each.turned(counts).samples and not each.samples}
        found = set()
        for rows, columns in set(inside.values()) - settled:
            near = {(rows + step, columns) for step in (-1, 0, 1)}
            pairs, others = ({size + step for step in (-1, 0, 1)} & self._pairs for size in (rows, columns))
            first = bool(pairs and not others) or bool((self._time_first | by_ids) & near)
            first &= columns in counts or rows not in counts
            if rows != columns and first and not self.batch_first & near:
                found |= {key for key, shape in inside.items() if shape in near}
        return found

    def paddings(self, batch: Any, known: Collection[Key]) -> list[Padding]:
        """The padding of tensors of which none is known yet."""
        plain = {key: held for key, held in _strided(batch).items() if key not in known}
        found = (self._padding(key, held) for key, held in plain.items())
        return [padding for padding in found if padding is not None]

    def _padding(self, key: Key, tensor: Tensor) -> Padding | None:
        """That of a table, or a mask of a module, if the data agree: the mask of another input is none of theirs."""
        for read in self.reads:
            if read.of(tensor) and (real := padded_ids(tensor, read.padding_idx)) is not None:
                return Padding(key, real, read.source)
        if tensor.ndim < 2 or as_mask(tensor) is not None:
            return None
        for mask, name in self.masks:
            for laid in layouts(mask, tensor):
                if alike(tensor, laid):
                    return Padding(key, laid.real.clone(), f"the {name}", samples=laid.samples)
        return None

    def read_of(self, batch: Any) -> set[Key]:
        """What tables with an id of padding read: where it has none at its ends, it is not padded."""
        return {key for key, held in _strided(batch).items() if any(read.of(held) for read in self.reads)}

    def shapes_of_labels(self, batch: Any) -> list[tuple[int, ...]]:
        """The shapes of the tensors of two dimensions that cross entropies read."""
        tensors = [held for held in _strided(batch).values() if held.ndim == 2]
        return [tuple(tensor.shape) for tensor in tensors if any(read.of(tensor) for read in self.labels)]

    def unknown(self, batch: Any) -> dict[str, IdsRead]:
        """Padded ids, read by tables, that are nothing of the batch."""
        tensors = _strided(batch).values()
        return {
            f"ids of {read.module}": read for read in self.reads
            if read.reader == "table" and padded_ids(read.ids, read.padding_idx) is not None
            and not any(map(read.of, tensors))
        }  # fmt: skip


def _strided(batch: Any) -> dict[Key, Tensor]:
    return {key: tensor_of(held) for key, held in fields(batch).items() if held.layout is torch.strided}


def _packed(input: Tensor, lengths: Tensor, batch_first: bool) -> Tensor:
    """Which positions are packed, by sample, in the order in which ``pack_padded_sequence`` was given them."""
    mask = lengths_mask(lengths, input.shape[1 if batch_first else 0], input.device)
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code is not pack_padded_sequence.__code__:
        frame = frame.f_back
    order = None if frame is None else frame.f_locals.get("sorted_indices")  # with enforce_sorted=False
    return mask if order is None else torch.empty_like(mask).index_copy_(0, order, mask)


class IgnoredLabels:
    """Cross entropies in which some labels are ignored: for each call in a step what it reads; None: as it is."""

    def __init__(self, labels: Sequence[Tensor | None]) -> None:
        self._labels = labels
        self.begin()

    def begin(self) -> None:
        """Another run begins."""
        self._left = list(self._labels)
        self._given: dict[tuple[Any, ...], Tensor | None] = {}

    def changed(self, call: Operated) -> Operated:
        """The call of a loss, or of its backward pass, with other labels."""
        place = 2 if "backward" in call.facts.name else 1
        read: Tensor = call.args[place]
        name = (key_of(read), tuple(read.shape), read.storage_offset())
        if place == 1:
            self._given[name] = self._left.pop(0) if self._left else None
        other = self._given.get(name)
        if other is None or other.shape != read.shape:
            return call
        return replace(call, args=(*call.args[:place], other, *call.args[place + 1 :]))


def labels_ignored(
    reads: Sequence[IdsRead], batch: Any, tokens: Documents, keep: Callable[[Tensor], Tensor]
) -> IgnoredLabels | None:
    """The losses of a step in which only labels of positions count for which ``keep`` holds; None if none are left.

    A label belongs to the position that predicts it: labels without the first column to those without the last.
    """
    labels: list[Tensor | None] = []
    left = False
    for read in reads:
        masks = (_kept(read, tensor_of(held), tokens, keep) for held in fields(batch).values())
        kept = next((mask for mask in masks if mask is not None), None)
        labels.append(None if kept is None else torch.where(kept, read.ids, read.padding_idx))
        left |= kept is not None and bool((kept & (read.ids != read.padding_idx)).any())
    return IgnoredLabels(labels) if left else None


def _kept(read: IdsRead, held: Tensor, tokens: Documents, keep: Callable[[Tensor], Tensor]) -> Tensor | None:
    """Which of the labels that were read count, if they are those of a tensor."""
    if held.ndim != 2 or tokens.ids.ndim != 2 or len(held) != len(tokens.ids):
        return None
    grids = torch.meshgrid(*map(torch.arange, held.shape), indexing="ij")
    rows, columns = (grid.to(held.device) for grid in grids)
    found = same_part(read.ids, held, columns, rows)
    if found is None or int((position := found[0] - found[0].min()).max()) >= tokens.ids.shape[1]:
        return None
    return keep(tokens.ids.to(held.device)[found[1], position])
