"""For each record of the registry a small program on plain tensors: data and masks in, filled values and masks out.

``program_of(name)`` is the :class:`Program` of a record of ``RECORDS``; ``EXCLUDED`` has the others, with reasons.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import maskgrad as mg
from maskgrad.semantics.facts import Operation
from maskgrad.semantics.registry import OPERATIONS
from tests.conformance.written_calls import WRITTEN, WrittenCall
from tests.laws.any_type.comparison import parts_of
from tests.laws.any_type.evaluation import attempt
from tests.laws.any_type.notices import without_notices
from tests.laws.any_type.operands import Call, fully_specified, garbage_of
from tests.laws.any_type.operator_database import PRECISE, Entry, differentiable, registered_entries
from tests.laws.effort import samples_of
from tests.laws.evaluation import filled
from tests.laws.laws import refused

__all__ = ["DATA_DEPENDENT", "EXCLUDED", "MASKS", "RECORDS", "Program", "program_of"]

#: How many entries are specified in each kind of mask, and what lies under it.
MASKS: dict[str, tuple[float, str]] = {
    "traced": (0.6, "nan"),
    "other": (0.35, "inf"),
    "empty": (0.0, "-1e30"),
    "full": (1.0, "nan"),
}

#: How many samples of the database are looked at, and how many entries an operand should have at least and at most.
LOOKED_AT, ENOUGH, MOST = 24, 6, 4096

#: Records without a program of their own, each with its reason.
EXCLUDED: dict[str, str] = {
    **{o.name: "says something about a tensor in Python" for o in OPERATIONS if o.family == "metadata"},
    **dict.fromkeys(("autograd.grad", "autograd.backward"), "every backward pass is one"),
    **dict.fromkeys(("cuda", "pin_memory"), "needs a GPU"),
}

#: Records of which no tracer can know the shape, or the Python value, of the result.
DATA_DEPENDENT: dict[str, str] = {
    **dict.fromkeys(
        ("masked_select", "nonzero", "argwhere", "unique", "unique_consecutive"),
        "how large the result is depends on the numbers",
    ),
    **dict.fromkeys(("equal", "allclose"), "the result is a Python number"),
}

RECORDS: tuple[str, ...] = tuple(o.name for o in OPERATIONS if o.name not in EXCLUDED)


@dataclass(frozen=True)
class Slot:
    """The place of a tensor among the arguments."""

    at: int


@dataclass(frozen=True, eq=False)
class Program:
    """One call of one operation as a function of plain tensors.

    Attributes:
        function: takes the tensors of the call, then a mask for each of ``data``; gives for each masked result its
            values, zeros where unspecified, and its mask; the others as they are. It closes over nothing but constants.
        tensors: those of the call.
        data: which of them are masked.
        moving: of which ``inputs(differentiable=True)`` makes leaves; empty if there is no derivative.
        given: masks, where not every mask will do.
    """

    operation: Operation
    function: Callable[..., tuple[Tensor, ...]]
    tensors: tuple[Tensor, ...]
    data: tuple[int, ...]
    moving: tuple[int, ...]
    given: dict[str, tuple[Tensor, ...]]

    @property
    def name(self) -> str:
        return self.operation.name

    @property
    def family(self) -> str:
        return self.operation.family

    @property
    def random(self) -> bool:
        return self.family == "random" or self.name in RANDOM_ELSEWHERE

    @property
    def amplifies(self) -> bool:
        return self.name in PRECISE or self.family in PRECISE

    @property
    def masked(self) -> tuple[tuple[int, int], ...]:
        return tuple((at, len(self.tensors) + i) for i, at in enumerate(self.data))

    def inputs(self, kind: str = "traced", differentiable: bool = False) -> tuple[Tensor, ...]:
        """Fresh tensors, garbage under masks of one of ``MASKS``; of the same shapes and specified values for each."""
        density, garbage = MASKS[kind]
        masks = self.given[kind] if self.given else self._drawn(density)
        tensors = [t.detach().clone() for t in self.tensors]
        for at, mask in zip(self.data, masks, strict=True):
            tensors[at] = torch.where(mask, tensors[at], garbage_of(garbage, tensors[at].dtype))
        if differentiable:
            for at in self.moving:
                tensors[at].requires_grad_()
        return (*tensors, *masks)

    def _drawn(self, density: float) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(int(100 * density))
        return tuple(torch.rand(self.tensors[at].shape, generator=generator) < density for at in self.data)


#: Records outside the family ``random`` that draw random numbers.
RANDOM_ELSEWHERE = (
    "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d",
    "nn.functional.gumbel_softmax", "rrelu", "rand_like", "randn_like", "randint_like",
)  # fmt: skip


@functools.cache
def program_of(name: str) -> Program:
    """The program of a record: hand-written where the database has none, else from the first sample that serves."""
    operation = next(o for o in OPERATIONS if o.name == name)
    if name in WRITTEN:
        return _written(operation, WRITTEN[name])
    with without_notices():
        for entry in _entries_of().get(name, ()):
            call = _call_for(entry)
            if call is not None:
                return _sampled(operation, entry, call)
    raise LookupError(f"{name}: neither a sample of the database nor a hand-written call")


@functools.cache
def _entries_of() -> dict[str, list[Entry]]:
    found: dict[str, list[Entry]] = {}
    for entry in registered_entries():
        found.setdefault(entry.operation.name, []).append(Entry(entry.info, _dtype_of(entry)))
    return found


def _dtype_of(entry: Entry) -> torch.dtype:
    return torch.float32 if torch.float32 in entry.info.dtypes else entry.dtype


def _call_for(entry: Entry) -> Call | None:
    """The smallest sample with enough data, among those that are answered; else the largest of the small ones."""
    calls = [Call.of(entry, s) for s in samples_of(entry, count=LOOKED_AT, looked_at=LOOKED_AT)]
    calls = [c for c in calls if c.data and sum(t.numel() for t in c.tensors) <= MOST]

    def size(call: Call) -> int:
        return min(call.tensors[i].numel() for i in call.data[:1])

    for call in sorted(calls, key=lambda c: (size(c) < ENOUGH, abs(size(c) - ENOUGH))):
        args, kwargs = call.masked(call.leaves(False), fully_specified(call))
        if not isinstance(attempt(_function_of(entry), args, kwargs), Exception) and not refused(entry, call):
            return call
    return None


def _function_of(entry: Entry) -> Callable[..., Any]:
    """The entry's function; torch's own where the database wraps it in what seeds the generator."""
    code = getattr(entry.info.op, "__code__", None)
    if code is None or "wrapper_set_seed" not in code.co_names:
        return entry.function
    named: Any = functools.reduce(
        lambda where, part: getattr(where, part, None), entry.name.split("."), torch
    )
    return entry.readable(named if callable(named) else _method(entry.name))


def _method(name: str) -> Callable[..., Any]:
    def method(first: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(first, name)(*args, **kwargs)

    return method


def _sampled(operation: Operation, entry: Entry, call: Call) -> Program:
    args, kwargs = call.with_tensors([Slot(i) for i in range(len(call.tensors))])
    moving = tuple(
        i for i in call.moving if call.tensors[i].is_floating_point() or call.tensors[i].is_complex()
    )
    program = Program(
        operation,
        _as_function(_function_of(entry), args, kwargs, len(call.tensors), tuple(call.data)),
        tuple(t.detach().contiguous() for t in call.tensors),
        tuple(call.data),
        moving if differentiable(entry) else (),
        {},
    )
    return _without_idle_leaves(program)


def _written(operation: Operation, call: WrittenCall) -> Program:
    slots = tuple(Slot(i) for i in range(len(call.tensors)))
    moving = tuple(i for i in call.data if call.tensors[i].is_floating_point()) if call.differentiable else ()
    program = Program(
        operation,
        _as_function(call.function, slots, {}, len(call.tensors), call.data),
        call.tensors,
        call.data,
        moving,
        {kind: call.masks(density) for kind, (density, _) in MASKS.items()} if call.masks else {},
    )
    return _without_idle_leaves(program)


def _without_idle_leaves(program: Program) -> Program:
    """No leaves if no result of this very call has a derivative."""
    if program.moving:
        torch.manual_seed(0)
        if not any(t.requires_grad for t in program.function(*program.inputs(differentiable=True))):
            return Program(
                program.operation, program.function, program.tensors, program.data, (), program.given
            )
    return program


def _as_function(
    function: Callable[..., Any], args: Any, kwargs: Any, number: int, data: tuple[int, ...]
) -> Callable[..., tuple[Tensor, ...]]:
    def program(*inputs: Tensor) -> tuple[Tensor, ...]:
        operands: list[Any] = list(inputs[:number])
        for at, mask in zip(data, inputs[number:], strict=True):
            operands[at] = mg.masked(operands[at], mask)
        result = function(*_put(args, operands), **_put(kwargs, operands))
        return _plain(result)

    return program


def _put(template: Any, operands: list[Any]) -> Any:
    """The arguments with operands in their slots."""
    if isinstance(template, Slot):
        return operands[template.at]
    if type(template) is tuple or type(template) is list:
        return type(template)([_put(part, operands) for part in template])
    if type(template) is dict:
        return {name: _put(part, operands) for name, part in template.items()}
    return template


def _plain(result: Any) -> tuple[Tensor, ...]:
    found: list[Tensor] = []
    for part in parts_of(result):
        if isinstance(part, mg.MaskedTensor):
            found += [filled(part), part.mask]
        else:
            found.append(part if isinstance(part, Tensor) else torch.as_tensor(part))
    return tuple(found)
