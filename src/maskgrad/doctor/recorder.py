"""The second pass: which operation first mixes padding into what is real, or makes a NaN."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from maskgrad.doctor.findings import lines_for
from maskgrad.doctor.modes import Guarded, module_calls
from maskgrad.doctor.operations import (
    EMPTY,
    Lines,
    Operated,
    Place,
    any_key,
    callers,
    dense,
    differing,
    key_of,
    tensors_in,
)
from maskgrad.doctor.twins import Twins
from maskgrad.doctor.validity import ValidityMasks

__all__ = ["Event", "Origin", "Origins", "Recorder", "has_nan"]


class Origin(NamedTuple):
    """The operation whose results have NaN while no input has it."""

    operation: str
    place: Place | None
    backward: bool


class Origins(Guarded):
    """Each tensor with NaN knows the operation that its NaN comes from."""

    def __init__(self) -> None:
        super().__init__()
        self._origins: dict[int, dict[Origin, None]] = {}
        self._nodes = Lines()

    def run(self, call: Operated) -> Any:
        """The operation, and where the NaN of its results come from."""
        self._nodes.note()
        if call.facts.view or call.facts.name in EMPTY:
            return call()
        before = self.origins(tensor for tensor in call.inputs if tensor.is_floating_point())
        result = call()
        for tensor in tensors_in(result):
            self._origins.pop(any_key(tensor), None)
            if tensor.is_floating_point() and has_nan(tensor):
                backward = torch._C._current_autograd_node() is not None
                own = Origin(call.facts.name, self._nodes.here(), backward)
                self._origins[any_key(tensor)] = dict.fromkeys(before or [own])
        return result

    def origins(self, tensors: Iterable[Tensor]) -> list[Origin]:
        """Where the NaN of these tensors come from."""
        found = [self._origins.get(any_key(tensor), {}) for tensor in tensors if has_nan(tensor)]
        return list(dict.fromkeys(origin for origins in found for origin in origins))


def has_nan(tensor: Tensor) -> bool:
    """Whether there is a NaN among the entries."""
    stored = tensor._values() if tensor.layout is torch.sparse_coo else dense(tensor)
    return bool(stored.isnan().any())


@dataclass
class Event:
    """An operation of which an output differs between the two runs."""

    operation: str
    place: Place | None
    module: str
    backward: bool
    #: events that wrote the bad inputs; if none is bad, the inputs
    causes: list[int]
    #: an output differs where it is real
    bad: bool
    #: and no input does
    mixes: bool
    #: of an operation that mixes: what to write instead, and the lines that led to it
    instead: tuple[str, ...] = ()
    callers: list[str] = field(default_factory=list)


class Recorder(Twins):
    """Twins that remember every operation whose results differ, and where they are real.

    Shapes are recognised by the masks of the batch; modules have their dotted names by their id.
    """

    def __init__(self, masks: list[Tensor], names: dict[int, str]) -> None:
        super().__init__()
        self.validity = ValidityMasks(masks)
        self.events: list[Event] = []
        self._writers: dict[int, list[int]] = {}
        self._nodes = Lines()
        self._names = names
        self._stack: list[nn.Module] = []
        self._beside.append(module_calls(lambda module, _: self._stack.append(module), self._leave))

    def _leave(self, *_: Any) -> None:
        del self._stack[-1:]

    def forget(self, key: int) -> None:
        """The next tensor at this address is another one."""
        super().forget(key)
        self._writers.pop(key, None)

    def run(self, call: Operated) -> Any:
        """The operation on both; which line it belongs to is noted for the backward pass."""
        self._nodes.note()
        return super().run(call)

    def before(self, call: Operated) -> Any:
        """Which inputs are bad, before a write in place changes them."""
        with_twin = [tensor for tensor in call.inputs if self.twin(tensor) is not None]
        bad = [tensor for tensor in with_twin if self.is_bad(tensor)]
        return self._who_wrote(bad or with_twin), bool(bad)

    def twinned(self, call: Operated, result: Any, before: Any) -> None:
        """Write down what differs, if anything does."""
        outputs = tensors_in(result)
        differs = bad = False
        for index, validity in enumerate(self.validity.of_result(call, result)):
            output = outputs[index]
            self.validity.set(output, validity)
            if index in call.facts.workspaces:
                continue
            if self.twin(output) is None:
                self._writers.pop(any_key(output), None)
                continue
            differs = True
            bad = bad or bool(self._differing(output, validity).any())
        if differs:
            self._add(call, outputs, before, bad=bad, keep=bool(call.written))

    def _add(self, call: Operated, outputs: list[Tensor], before: Any, *, bad: bool, keep: bool) -> None:
        causes, bad_before = before
        running = self._stack[-1] if self._stack else None
        module = "" if running is None else self._names.get(id(running), type(running).__name__)
        backward, mixes = torch._C._current_autograd_node() is not None, bad and not bad_before
        place = self._nodes.here()
        event = Event(call.facts.name, place, module, backward, causes, bad, mixes)
        if mixes:
            first = next((tuple(tensor.shape) for tensor in call.inputs if self.twin(tensor) is not None), ())
            masks = [tuple(mask.shape) for mask in self.validity.masks]
            event.instead = lines_for(call, first, masks, self._layers())
            event.callers = callers(place)
        for output in outputs:
            if not keep:
                self._writers.pop(any_key(output), None)
            self._writers.setdefault(any_key(output), []).append(len(self.events))
        self.events.append(event)

    def _layers(self) -> list[nn.Module]:
        """The modules of PyTorch that are running and no module of the program inside, the outermost first."""
        own = (not type(module).__module__.startswith("torch.nn.") for module in reversed(self._stack))
        count = next((depth for depth, of_program in enumerate(own) if of_program), len(self._stack))
        return self._stack[len(self._stack) - count :]

    def _differing(self, tensor: Tensor, validity: Tensor | None) -> Tensor:
        """Where a tensor differs from its twin and is real; a validity of another shape says nothing."""
        unequal = differing(tensor, self.other(tensor))
        return unequal if validity is None or unequal.shape != validity.shape else unequal & validity

    def _follow(self, call: Operated, result: Any) -> None:
        super()._follow(call, result)
        inputs, name = call.inputs, call.facts.name
        if not inputs or key_of(inputs[0]) is None or self.twin(inputs[0]) is None:
            return
        source, outputs = inputs[0], tensors_in(result)
        if not self.validity.is_slice(source):
            if name not in ("select", "unbind") or torch._C._current_autograd_node() is not None:
                return
            axis = call.args[1] if len(call.args) > 1 else call.kwargs.get("dim", 0)
            if source.ndim < 2 or not self._runs_along(source, axis):
                return
            if any(bool(self._differing(output, None).any()) for output in outputs):
                before: Any = self._who_wrote([source]), self.is_bad(source)
                self._add(call, outputs, before, bad=True, keep=True)
        for output in outputs:
            self.validity.slice(output)

    def _runs_along(self, source: Tensor, axis: int) -> bool:
        """Whether the positions of a sequence are told apart along this axis, and samples along another."""
        validity = self.validity.get(source)
        if validity is None or validity.shape[axis] < 2:
            return False
        changes = bool((validity != validity.narrow(axis, 0, 1)).any())
        sizes = {mask.shape[1] for mask in self.validity.masks if mask.ndim == 2}
        return changes and source.shape[axis] in sizes

    def is_bad(self, tensor: Tensor) -> bool:
        """Whether real entries differ."""
        known = self.twin(tensor) is None or key_of(tensor) in self._workspaces
        return not known and bool(self._differing(tensor, self.validity.get(tensor)).any())

    def _who_wrote(self, tensors: list[Tensor]) -> list[int]:
        return list(dict.fromkeys(n for tensor in tensors for n in self._writers.get(any_key(tensor), [])))

    def mixing(self, ends: list[Tensor]) -> list[Event]:
        """The operations that mix padding into what reaches ``ends``, the first ones first."""
        waiting, seen = self._who_wrote(ends), set[int]()
        while waiting:
            number = waiting.pop()
            if number not in seen:
                seen.add(number)
                event = self.events[number]
                waiting += event.causes if event.bad and not event.mixes else []
        return [self.events[number] for number in sorted(seen) if self.events[number].mixes]
