"""The second pass: which operation first mixes what is padding into what is real."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from maskgrad.doctor.equality import differing
from maskgrad.doctor.frames import Lines, Place
from maskgrad.doctor.operations import Facts
from maskgrad.doctor.realness import Shadows
from maskgrad.doctor.trees import tensors_in
from maskgrad.doctor.twins import Twins, key_of

__all__ = ["Event", "Recorder"]


@dataclass
class Event:
    """An operation of which an output differs between the two runs."""

    operation: str
    place: Place | None
    module: str
    backward: bool
    #: an output differs where it is real
    bad: bool
    #: an output is bad and no input is
    mixes: bool
    #: events that wrote the bad inputs; if none is bad, the inputs
    causes: list[int] = field(default_factory=list)
    #: the share of the real entries that differ, and by how much at most
    share: float = 0.0
    shape: tuple[int, ...] = ()
    #: shapes of the inputs
    inputs: tuple[tuple[int, ...], ...] = ()
    #: a non-zero gradient stands at padding in an output, and in no input
    dirties: bool = False
    dirty: bool = False
    sources: list[int] = field(default_factory=list)


class Recorder(Twins):
    """Twins that remember every operation whose results differ, and where they are real.

    Args:
        masks: the masks of the batch, by which shapes are recognised.
        names: dotted names of modules by their id.
    """

    def __init__(self, masks: list[Tensor], names: dict[int, str]) -> None:
        super().__init__()
        self.shadows = Shadows(masks)
        self.events: list[Event] = []
        self._writers: dict[int, list[int]] = {}
        self._nodes = Lines()
        self._names = names
        self._stack: list[str] = []
        #: for each line of the program, whether padding or real entries differed there
        self.lines: dict[tuple[str, int], str] = {}

    def __enter__(self) -> Recorder:
        self._handles = [
            nn.modules.module.register_module_forward_pre_hook(
                lambda module, _: self._stack.append(self._name(module))
            ),
            nn.modules.module.register_module_forward_hook(lambda *_: self._leave(), always_call=True),
        ]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for handle in self._handles:
            handle.remove()

    def _name(self, module: nn.Module) -> str:
        return self._names.get(id(module), type(module).__name__)

    def _leave(self) -> None:
        if self._stack:
            self._stack.pop()

    def forget(self, key: int) -> None:
        """The next tensor at this address is another one."""
        super().forget(key)
        self._writers.pop(key, None)

    def begin(self, tensor: Tensor, real: Tensor) -> None:
        """A tensor of the batch has padding; give it a twin too."""
        self.shadows.set(tensor, real)

    # operations

    def run(self, func: Callable[..., Any], facts: Facts, args: Any, kwargs: Any) -> Any:
        """The operation on both; which line it belongs to is noted for the backward pass."""
        self._nodes.note()
        return super().run(func, facts, args, kwargs)

    def before(self, func: Any, facts: Facts, args: Any, kwargs: Any, written: list[Tensor]) -> Any:  # noqa: ARG002
        """Which inputs are bad, before a write in place changes them."""
        inputs = [tensor for tensor in tensors_in((args, kwargs)) if self.twin(tensor) is not None]
        bad = [tensor for tensor in inputs if self.is_bad(tensor)]
        return (
            self._who_wrote(bad or inputs),
            bool(bad),
            tuple(tuple(t.shape) for t in tensors_in((args, kwargs))),
        )

    def twinned(
        self, func: Callable[..., Any], facts: Facts, args: Any, kwargs: Any, result: Any, before: Any
    ) -> None:
        """Write down what differs, if anything does."""
        causes, bad_before, shapes = before
        shadows = self.shadows.of_result(func, facts, args, kwargs, result)
        outputs = list(tensors_in(result))
        backward = torch._C._current_autograd_node() is not None
        event = Event(facts.name, None, "", backward, False, False, causes, inputs=shapes)
        written = {key_of(tensor) for tensor in self._written(facts, args, kwargs)}
        differs = False
        for place, (output, shadow) in enumerate(zip(outputs, shadows, strict=True)):
            self.shadows.set(output, shadow)
            if place in facts.workspaces:
                continue
            twin = self.twin(output)
            if twin is None:
                self._writers.pop(key_of(output) or 0, None)
                continue
            differs = True
            unequal = differing(output, twin)
            real = unequal if shadow is None or unequal.shape != shadow.shape else unequal & shadow
            count = int(real.sum())
            if count:
                event.bad = True
                event.share = max(event.share, count / max(1, real.numel()))
                event.shape = tuple(output.shape)
        if not differs:
            return
        event.mixes = event.bad and not bad_before
        self._add(event, outputs, keep=bool(written))

    def _add(self, event: Event, outputs: list[Tensor], *, keep: bool = False) -> None:
        event.place = self._nodes.here()
        event.module = self._stack[-1] if self._stack else ""
        number = len(self.events)
        self.events.append(event)
        if event.place is not None:
            line = (event.place.file, event.place.line)
            if event.bad or line not in self.lines:
                self.lines[line] = "mixed" if event.mixes else "real" if event.bad else "padding"
        for output in outputs:
            key = key_of(output)
            if key is None:
                key = -id(output)
            if keep:
                self._writers.setdefault(key, []).append(number)
            else:
                self._writers[key] = [number]

    def passed_on(self, tensor: Tensor, target: Tensor) -> None:
        """What comes back from other ranks depends on who wrote what was sent."""
        key = key_of(target)
        if key is not None and target is not tensor:
            self._writers[key] = self._who_wrote([tensor])

    def _follow(self, func: Any, facts: Facts, args: Any, kwargs: Any, result: Any) -> None:
        super()._follow(func, facts, args, kwargs, result)
        if facts.name not in ("select", "unbind") and not facts.view:
            return
        source = next(tensors_in((args, kwargs)), None)
        if source is None or key_of(source) is None or self.twin(source) is None:
            return
        lost = self.shadows.is_slice(source)
        if not lost and facts.name in ("select", "unbind") and torch._C._current_autograd_node() is None:
            axis = args[1] if len(args) > 1 else kwargs.get("dim", 0)
            lost = source.ndim > 1 and self._runs_along(source, axis)
        if not lost:
            return
        fresh = not self.shadows.is_slice(source)
        passed_on = fresh and self.is_bad(source)
        outputs = list(tensors_in(result))
        for output in outputs:
            self.shadows.slice(output)
        twins = [self.twin(output) for output in outputs]
        if fresh and any(
            twin is not None and bool(differing(output, twin).any())
            for output, twin in zip(outputs, twins, strict=True)
        ):
            event = Event(
                facts.name,
                None,
                "",
                False,
                True,
                not passed_on,
                self._who_wrote([source]),
                shape=tuple(outputs[0].shape),
            )
            self._add(event, outputs, keep=True)

    def _runs_along(self, source: Tensor, axis: int) -> bool:
        """Whether the positions of a sequence are told apart along this axis, and samples along another."""
        shadow = self.shadows.get(source)
        if shadow is None or shadow.shape[axis] < 2:
            return False
        changes = [bool((shadow != shadow.narrow(other, 0, 1)).any()) for other in range(shadow.ndim)]
        sizes = {mask.shape[1] for mask in self.shadows.masks if mask.ndim == 2}
        return changes[axis] and source.shape[axis] in sizes

    def is_bad(self, tensor: Tensor) -> bool:
        """Whether real entries differ."""
        twin = self.twin(tensor)
        if twin is None or key_of(tensor) in self._workspaces:
            return False
        unequal = differing(tensor, twin)
        shadow = self.shadows.get(tensor)
        return bool((unequal if shadow is None or shadow.shape != unequal.shape else unequal & shadow).any())

    def _who_wrote(self, tensors: list[Tensor]) -> list[int]:
        found: dict[int, None] = {}
        for tensor in tensors:
            key = key_of(tensor)
            for number in self._writers.get(-id(tensor) if key is None else key, []):
                found[number] = None
        return list(found)

    # walking back

    def mixing(self, ends: list[Tensor]) -> Iterator[Event]:
        """The operations that mix padding into what reaches ``ends``, the first ones first."""
        waiting, seen, found = self._who_wrote(ends), set[int](), []
        while waiting:
            number = waiting.pop()
            if number in seen:
                continue
            seen.add(number)
            event = self.events[number]
            if event.mixes:
                found.append(number)
            elif event.bad:
                waiting += event.causes
        yield from (self.events[number] for number in sorted(found))
