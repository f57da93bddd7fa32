"""The second pass: which operation first mixes padding into what is real, makes a NaN, or gives padding a gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from maskgrad.doctor.frames import Lines, Place, callers
from maskgrad.doctor.modes import Guarded, module_calls
from maskgrad.doctor.operations import EMPTY, Operated, any_key, differing, key_of, tensors_in
from maskgrad.doctor.remedies import lines_for
from maskgrad.doctor.twins import Twins
from maskgrad.doctor.validity import ValidityMasks

__all__ = ["Event", "Origin", "Origins", "Recorder", "has_nan", "stands_at_padding"]

#: what puts numbers into a tensor and computes none
_FILLS = {
    "masked_fill", "masked_fill_", "fill_", "full", "full_like", "where", "index_put", "index_put_", "copy_",
}  # fmt: skip


@dataclass(frozen=True)
class Origin:
    """The operation whose results have the mark while no input has it."""

    operation: str
    place: Place | None
    backward: bool


class Origins(Guarded):
    """Each marked tensor knows the operations that its mark comes from.

    In the backward pass only gradients count as inputs: what the forward pass saved may be marked, and a product with
    it is where a clean gradient gets the mark; the mark is then from where the program made what was saved, unless it
    made it out of NaN or infinity that was put there, in the batch or as a sentinel.

    Args:
        marked: whether a tensor has the mark; None if its shape does not say, then it has it if an input has.
        backward_only: the forward pass is not looked at.
    """

    def __init__(self, marked: Callable[[Tensor], bool | None], *, backward_only: bool = False) -> None:
        super().__init__()
        self._marked, self._backward_only = marked, backward_only
        self._origins: dict[int, dict[Origin, None]] = {}
        self._gradients: set[int] = set()
        #: memory with infinity or NaN that was put there, by the batch or as a sentinel, and not computed
        self._given: set[int] = set()
        self._nodes = Lines()

    def run(self, call: Operated) -> Any:
        """The operation, and whose mark its results have."""
        self._nodes.note()
        backward = torch._C._current_autograd_node() is not None
        if call.facts.view or call.facts.name in EMPTY or (self._backward_only and not backward):
            return call()
        inputs = [tensor for tensor in call.inputs if tensor.is_floating_point()]
        # NaN or infinity comes in that no operation of the program made; masks are made of minus infinity
        given = not backward and any(
            any_key(t) in self._given or (any_key(t) not in self._made and _is_garbage(t)) for t in inputs
        )
        before: dict[Origin, None] = {}
        for tensor in inputs:
            if not backward or any_key(tensor) in self._gradients:
                marked = self._marked(tensor)
                # the batch itself is an origin without an operation
                unknown = {Origin("", None, backward=False): None} if marked and not backward else {}
                if marked is not False:
                    before |= self._origins.get(any_key(tensor), unknown)
        result = call()
        for tensor in tensors_in(result):
            if not tensor.is_floating_point():
                continue
            key = any_key(tensor)
            if backward:
                self._gradients.add(key)
            else:
                self._gradients.discard(key)
                self._given.discard(key)
                if _is_garbage(tensor) if call.facts.name in _FILLS else given and not _finite(tensor):
                    self._given.add(key)
            marked = self._marked(tensor)
            if marked or (marked is None and before):
                made = self._made_before(inputs) if backward and not before else {}
                origin = Origin(call.facts.name, self._nodes.here(), backward)
                self._origins[key] = before or made or {origin: None}
            else:
                self._origins.pop(key, None)
        return result

    def _made_before(self, inputs: list[Tensor]) -> dict[Origin, None]:
        """The operations of the forward pass that gave the mark to what a backward operation reads."""
        made = self.origins(tensor for tensor in inputs if any_key(tensor) not in self._given)
        return {origin: None for origin in made if origin.operation and not origin.backward}

    def origins(self, tensors: Iterable[Tensor]) -> list[Origin]:
        """Where the mark of these tensors comes from."""
        found: dict[Origin, None] = {}
        for tensor in tensors:
            if self._marked(tensor) is not False:
                found |= self._origins.get(any_key(tensor), {})
        return list(found)


def has_nan(tensor: Tensor) -> bool:
    """Whether there is a NaN among the entries."""
    return bool(_stored(tensor).isnan().any())


def _is_garbage(tensor: Tensor) -> bool:
    stored = _stored(tensor)
    return bool((stored.isnan() | stored.isposinf()).any())


def _finite(tensor: Tensor) -> bool:
    return bool(_stored(tensor).isfinite().all())


def _stored(tensor: Tensor) -> Tensor:
    if tensor.layout is torch.strided:
        return tensor
    return tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()


def stands_at_padding(masks: list[Tensor]) -> Callable[[Tensor], bool | None]:
    """The mark of a gradient that is not zero where the mask is False; unknown for other shapes."""
    validities = ValidityMasks(masks)

    def marked(tensor: Tensor) -> bool | None:
        real = validities.by_shape(tensor) if tensor.layout is torch.strided else None
        return None if real is None else bool((tensor[~real] != 0).any())

    return marked


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
    bad: bool = False
    #: an output is bad and no input is
    mixes: bool = False
    #: the share of the real entries that differ
    share: float = 0.0
    shape: tuple[int, ...] = ()
    #: shapes of the inputs
    inputs: tuple[tuple[int, ...], ...] = ()
    #: of an operation that mixes: what to write instead, and the lines that led to it
    instead: tuple[str, ...] = ()
    callers: list[str] = field(default_factory=list)


class Recorder(Twins):
    """Twins that remember every operation whose results differ, and where they are real.

    Args:
        masks: the masks of the batch, by which shapes are recognised.
        names: dotted names of modules by their id.
        forward_only: gradients have no twins.
    """

    def __init__(self, masks: list[Tensor], names: dict[int, str], *, forward_only: bool = False) -> None:
        super().__init__()
        self._forward_only = forward_only
        self.validity = ValidityMasks(masks)
        self.events: list[Event] = []
        self._writers: dict[int, list[int]] = {}
        self._nodes = Lines()
        self._names = names
        self._stack: list[nn.Module] = []

    def __enter__(self) -> Recorder:
        self._calls = module_calls(self._enter, self._leave)
        self._calls.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._calls.__exit__(None, None, None)

    def _enter(self, module: nn.Module, args: Any) -> None:  # noqa: ARG002
        self._stack.append(module)

    def _leave(self, *_: Any) -> None:
        if self._stack:
            self._stack.pop()

    def forget(self, key: int) -> None:
        """The next tensor at this address is another one."""
        super().forget(key)
        self._writers.pop(key, None)

    # operations

    def run(self, call: Operated) -> Any:
        """The operation on both; which line it belongs to is noted for the backward pass."""
        if self._forward_only and torch._C._current_autograd_node() is not None:
            return call()
        self._nodes.note()
        return super().run(call)

    def before(self, call: Operated) -> Any:
        """Which inputs are bad, before a write in place changes them."""
        with_twin = [tensor for tensor in call.inputs if self.twin(tensor) is not None]
        bad = [tensor for tensor in with_twin if self.is_bad(tensor)]
        return self._who_wrote(bad or with_twin), bool(bad), tuple(tuple(t.shape) for t in call.inputs)

    def twinned(self, call: Operated, result: Any, before: Any) -> None:
        """Write down what differs, if anything does."""
        causes, bad_before, shapes = before
        validities, outputs = self.validity.of_result(call, result), tensors_in(result)
        differs, share, shape = False, 0.0, tuple[int, ...]()
        for index, (output, validity) in enumerate(zip(outputs, validities, strict=True)):
            self.validity.set(output, validity)
            if index in call.facts.workspaces:
                continue
            if self.twin(output) is None:
                self._writers.pop(any_key(output), None)
                continue
            differs = True
            real = self._differing(output, validity)
            count = int(real.sum())
            if count:
                share, shape = max(share, count / real.numel()), tuple(output.shape)
        if differs:
            event = self._event(call, causes, shapes)
            event.bad, event.share, event.shape = share > 0, share, shape
            event.mixes = event.bad and not bad_before
            self._add(event, outputs, keep=bool(call.written), call=call)

    def _event(self, call: Operated, causes: list[int], shapes: tuple[tuple[int, ...], ...] = ()) -> Event:
        running = self._stack[-1] if self._stack else None
        module = "" if running is None else self._names.get(id(running), type(running).__name__)
        backward = torch._C._current_autograd_node() is not None
        return Event(call.facts.name, self._nodes.here(), module, backward, causes, inputs=shapes)

    def _layers(self) -> list[nn.Module]:
        """The modules of PyTorch that are running and no module of the program inside, the outermost first."""
        own = (not type(module).__module__.startswith("torch.nn.") for module in reversed(self._stack))
        count = next((depth for depth, of_program in enumerate(own) if of_program), len(self._stack))
        return self._stack[len(self._stack) - count :]

    def _differing(self, tensor: Tensor, validity: Tensor | None) -> Tensor:
        """Where a tensor differs from its twin and is real; a validity of another shape says nothing."""
        unequal = differing(tensor, self.other(tensor))
        return unequal if validity is None or unequal.shape != validity.shape else unequal & validity

    def _add(self, event: Event, outputs: list[Tensor], *, keep: bool, call: Operated) -> None:
        if event.mixes:
            shape = next((tuple(t.shape) for t in call.inputs if self.twin(t) is not None), ())
            masks = [tuple(mask.shape) for mask in self.validity.masks]
            event.instead = lines_for(call, shape, masks, self._layers())
            event.callers = callers(event.place)
        number = len(self.events)
        self.events.append(event)
        for output in outputs:
            if not keep:
                self._writers.pop(any_key(output), None)
            self._writers.setdefault(any_key(output), []).append(number)

    def sent(self, tensor: Tensor) -> Any:
        """Who wrote what is sent."""
        return self._who_wrote([tensor])

    def received(self, target: Tensor, known: Any) -> None:
        """What comes back depends on who wrote what was sent."""
        self._writers[any_key(target)] = known

    def _follow(self, call: Operated, result: Any) -> None:
        super()._follow(call, result)
        inputs, name = call.inputs, call.facts.name
        if not inputs or key_of(inputs[0]) is None or self.twin(inputs[0]) is None:
            return
        source, outputs = inputs[0], tensors_in(result)
        if self.validity.is_slice(source):
            for output in outputs:
                self.validity.slice(output)
            return
        if name not in ("select", "unbind", "slice") or torch._C._current_autograd_node() is not None:
            return
        axis = call.args[1] if len(call.args) > 1 else call.kwargs.get("dim", 0)
        # a recurrent network takes its steps out of a packed sequence by slices
        step = axis == 0 and len(source) in self.validity.packed and outputs[0].shape[:1] != source.shape[:1]
        if source.ndim < 2 or (name == "slice" and not step) or not self._runs_along(source, axis):
            return
        was_bad = self.is_bad(source)
        for output in outputs:
            self.validity.slice(output)
        if any(bool(self._differing(output, None).any()) for output in outputs):
            event = self._event(call, self._who_wrote([source]))
            event.bad, event.mixes, event.shape = True, not was_bad, tuple(outputs[0].shape)
            self._add(event, outputs, keep=True, call=call)

    def _runs_along(self, source: Tensor, axis: int) -> bool:
        """Whether the positions of a sequence are told apart along this axis, and samples along another."""
        validity = self.validity.get(source)
        if validity is None or validity.shape[axis] < 2:
            return False
        changes = [bool((validity != validity.narrow(other, 0, 1)).any()) for other in range(validity.ndim)]
        sizes = {mask.shape[1] for mask in self.validity.masks if mask.ndim == 2}
        packed = self.validity.packed if axis == 0 and sizes else set[int]()
        return changes[axis] and source.shape[axis] in sizes | packed

    def is_bad(self, tensor: Tensor) -> bool:
        """Whether real entries differ."""
        if self.twin(tensor) is None or key_of(tensor) in self._workspaces:
            return False
        return bool(self._differing(tensor, self.validity.get(tensor)).any())

    def _who_wrote(self, tensors: list[Tensor]) -> list[int]:
        return list(dict.fromkeys(n for tensor in tensors for n in self._writers.get(any_key(tensor), [])))

    # walking back

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
