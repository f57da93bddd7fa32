"""Declaration of an optimizer: states, limits of hyperparameters, rule, and closed form of idle rows."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch import Tensor

from maskgrad.optim.hyperparameters import betas, flag, non_negative
from maskgrad.optim.lazy import ClosedForm

__all__ = [
    "HYPERPARAMETERS", "NOTHING", "Fused", "Hyperparameters", "Numbers", "Rule", "State", "Update",
    "signed",
]  # fmt: skip

Numbers: TypeAlias = Mapping[str, Any]
"""Hyperparameters by their names in the constructor, as Python numbers."""

NOTHING: Mapping[str, Any] = MappingProxyType({})
HYPERPARAMETERS: set[str] = set()
"""Names of the hyperparameters of all rules."""
#: Arguments of constructors other than hyperparameters.
OPTIONS = frozenset(
    ("params", "maximize", "foreach", "fused", "capturable", "differentiable", "unspecified", "state")
)


@dataclass(frozen=True, slots=True)
class State:
    """A state tensor of the parameter's shape, or, with ``statistic`` and ``state="row"``, one value per row."""

    name: str
    about: str
    """Its description, for the documentation."""
    statistic: bool = False
    """Whether it can have one value per row, as second moments can."""
    initial: float | str | None = 0.0
    """Its initial value, or the name of a hyperparameter; None: a copy of the parameter."""
    needs: str | None = None
    """The hyperparameter that this state requires (not False or 0)."""
    argument: str | None = None
    """Its name in the functional form, if different."""
    counts_rows: bool = False
    """Always one value per row, in at least float32: its number of steps, or a value derived from it."""

    def shape(self, param: Tensor, row: bool) -> torch.Size:
        """The shape of this state; of a parameter with one dimension or none, each entry is a row."""
        if ((row and self.statistic) or self.counts_rows) and param.dim() > 1:
            return torch.Size((param.shape[0], *(1 for _ in param.shape[1:])))
        return param.shape

    def create(self, param: Tensor, row: bool) -> Tensor:
        """A new state; both parts of a complex number have the initial value."""
        start = param.detach()
        if self.initial is None:
            return start.clone()
        if self.shape(param, row) != param.shape:
            start = start.new_empty(self.shape(param, row))
        if self.counts_rows:
            start = start.to(torch.promote_types(start.dtype, torch.float32))
        assert not isinstance(self.initial, str)  # Hyperparameters.states has inserted the number
        value = complex(self.initial, self.initial) if param.is_complex() else self.initial
        return torch.full_like(start, value)


@dataclass(frozen=True, slots=True)
class Fused:
    """A kernel for a rule on the rows of a table, in one pass: merge, scale, decay, update.

    Attributes:
        kernel: its name.
        numbers: its keyword arguments.
        arranged: the states in the order of the kernel's arguments, None for unused ones.
    """

    kernel: str
    numbers: Mapping[str, Any]
    arranged: Callable[[Sequence[Tensor]], list[Tensor | None]] = list


@dataclass(frozen=True, slots=True)
class Update:
    """One update, with its hyperparameters bound.

    ``rule(param, grad, *states)`` works in place on tensors of one shape, except for states with one value per row.
    With those it takes ``specified`` (:mod:`maskgrad.kernels.updates.specified`). ``fused`` is a kernel that does the
    same on the rows of contiguous tables, merging duplicates. ``scalars`` are the scalar states after the update.
    ``closed_form(number of states)`` is the update for a zero gradient.
    """

    rule: Callable[..., None]
    fused: Fused | None = None
    scalars: Mapping[str, Tensor] = field(default_factory=dict)
    closed_form: Callable[[int], ClosedForm | None] = field(default=lambda _: None)


@dataclass(frozen=True)
class Rule:
    """The update rule of an optimizer.

    Attributes:
        update_: ``update_(param, grad, *states, **numbers)``, in place; it gets the hyperparameters in its signature.
        states: in the order of the arguments of ``update_``.
        limits: for each hyperparameter of the constructor the function that checks it, given its name and value, and
            returns a number. Declared only if unusual: by default, Booleans are flags, pairs are
            betas, and numbers are at least 0.
        scalars: scalar states, and their initial values or hyperparameters.
        counts_steps: whether there is a state ``"step"``.
        on_device: whether scalar states are always on the parameter's device.
        markers: names of states that exist only sometimes.
        check: raises if hyperparameters are incompatible; gets them, and whether states are per row.
        prepare: given hyperparameters, step count and scalars, returns the values of this step, and the new scalars.
        fused: the kernel for rows, given the hyperparameters, and whether states are per row.
        closed_form: of a step with gradient zero, given its hyperparameters and the number of states.
        is_idempotent: a second step with gradient zero and the same hyperparameters changes nothing.
        defaults: of the hyperparameters, from the constructor.
    """

    update_: Callable[..., None]
    states: tuple[State, ...]
    limits: Mapping[str, Callable[[str, Any], Any]] = field(default_factory=dict)
    scalars: Mapping[str, float | str] = field(default_factory=dict)
    counts_steps: bool = True
    on_device: bool = False
    markers: frozenset[str] = frozenset()
    check: Callable[[Numbers, bool], None] | None = None
    prepare: Callable[[Numbers, float, Mapping[str, Tensor]], tuple[Numbers, Mapping[str, Tensor]]] | None = (
        None
    )
    fused: Callable[[Numbers, bool], Fused | None] | None = None
    closed_form: Callable[[Numbers, int], ClosedForm | None] = lambda *_: None
    is_idempotent: bool = False
    defaults: Mapping[str, Any] = field(init=False, repr=False, default_factory=dict)

    def __set_name__(self, owner: type, name: str) -> None:
        if "_home" in self.__dict__:  # another class shares it
            return
        self.__dict__["_home"] = owner, name
        parameters = inspect.signature(owner).parameters.values()
        defaults = {p.name: p.default for p in parameters if p.name not in OPTIONS}
        usual: Mapping[type, Any] = {bool: flag, tuple: betas, str: lambda _, word: word}
        limits = {
            key: self.limits.get(key, usual.get(type(default), non_negative))
            for key, default in defaults.items()
        }
        HYPERPARAMETERS.update(limits)
        self.__dict__.update(limits=limits, defaults=defaults)

    def __reduce__(self) -> Any:
        """Pickle by name, as it contains functions."""
        return getattr, self.__dict__["_home"]

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the hyperparameters of ``update_``."""
        parameters = inspect.signature(self.update_).parameters.values()
        return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "specified")

    @functools.cached_property
    def counts(self) -> tuple[State, ...]:
        """States kept per row instead of per parameter if the steps of rows are counted."""
        starts: dict[str, Any] = {"step": 0.0, **self.scalars}
        return tuple(State(name, "of each row", initial=at, counts_rows=True) for name, at in starts.items())

    @functools.cached_property
    def required(self) -> frozenset[str]:
        """Names of the states that every stepped parameter has, for any options."""
        always = (state.name for state in self.states if state.needs is None)
        return frozenset((*always, *self.scalars, *(("step",) if self.counts_steps else ())))

    @functools.cached_property
    def optional(self) -> frozenset[str]:
        """Names of the other states."""
        return self.markers | {state.name for state in self.states if state.needs is not None}

    @property
    def has_statistics(self) -> bool:
        """Return whether a state can have one value per row."""
        return any(state.statistic for state in self.states)


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters of a group as Python numbers, checked."""

    rule: Rule
    numbers: Numbers
    row: bool = False
    """Whether states that can be kept per row are."""
    on_device: bool = False
    """Whether the step count is on the parameter's device, as in PyTorch with ``capturable`` or ``fused``."""
    zeros: bool = False
    """Whether entries without a gradient have gradient zero."""

    @functools.cached_property
    def per_row(self) -> bool:
        """Return whether some states have one value for each row."""
        return self.row or self.by_row

    @functools.cached_property
    def by_row(self) -> bool:
        """Return whether the steps of each row are counted, instead of those of the parameter."""
        return self.numbers.get("bias_correction") == "row"

    @classmethod
    def of(cls, rule: Rule, group: Mapping[str, Any], row: bool = False) -> Hyperparameters:
        """Read and check a parameter group, which may lack options; TypeError or ValueError if invalid."""
        numbers = {name: check(name, group[name]) for name, check in rule.limits.items()}
        numbers["maximize"] = bool(group["maximize"])
        row = row or group.get("state") == "row"
        if rule.check is not None:
            rule.check(numbers, row)
        if numbers.get("bias_correction") == "row" and group.get("unspecified") == "zero":
            raise ValueError(
                "bias_correction='row' is not available with unspecified='zero', where each step applies to all rows; "
                "use bias_correction='steps'"
            )
        on_device = bool(group.get("capturable") or group.get("fused") or rule.on_device)
        return cls(rule, numbers, row, on_device, group.get("unspecified") == "zero")

    @functools.cached_property
    def states(self) -> tuple[State, ...]:
        """The state tensors, in the order of the rule's arguments."""
        numbers = self.numbers
        return tuple(
            replace(state, initial=numbers[state.initial]) if isinstance(state.initial, str) else state
            for state in (*self.rule.states, *(self.rule.counts if self.by_row else ()))
            if state.needs is None or numbers[state.needs]
        )

    @functools.cached_property
    def scalars(self) -> Mapping[str, float]:
        """Scalar states of the whole parameter, and their initial values."""
        numbers = self.numbers
        return {
            name: numbers[start] if isinstance(start, str) else start
            for name, start in (() if self.by_row else self.rule.scalars.items())
        }

    @functools.cached_property
    def counts_steps(self) -> bool:
        """Return whether there is a state ``"step"`` that is a scalar."""
        return self.rule.counts_steps and not self.by_row

    @functools.cached_property
    def counts(self) -> tuple[str, ...]:
        """Names of the scalar states."""
        return (*self.scalars, *(("step",) if self.counts_steps else ()))

    def fused(self, step: float) -> Fused | None:
        """The kernel of step number ``step`` for rows, of a rule without scalar states."""
        rule = self.rule
        if rule.fused is None:
            return None
        numbers = {**self.numbers, "step": step}
        if rule.prepare is not None:
            numbers.update(rule.prepare(self.numbers, step, NOTHING)[0])
        return rule.fused(numbers, self.row)

    def update(self, step: float, **scalars: Tensor) -> Update:
        """The update of step number ``step``, counted from 1 (0 if steps are not counted)."""
        rule, numbers, after = self.rule, {**self.numbers, "step": step}, NOTHING
        if self.by_row:
            return Update(partial(_step_by_row, rule, self.numbers))
        if rule.prepare is not None:
            changed, after = rule.prepare(self.numbers, step, scalars)
            numbers.update(changed)
        return Update(
            partial(rule.update_, **{name: numbers[name] for name in rule.names}),
            rule.fused(numbers, self.row) if rule.fused is not None else None,
            after,
            partial(rule.closed_form, numbers),
        )


def _step_by_row(
    rule: Rule, numbers: Numbers, param: Tensor, grad: Tensor, *states: Tensor, **specified: Any
) -> None:
    """Update each row with its own step count, from the last states."""
    own = len(states) - len(rule.counts)
    step, *scalars = states[own:]
    step.add_(1)
    numbers = {**numbers, "step": step}
    if rule.prepare is not None:
        changed, after = rule.prepare(numbers, step, dict(zip(rule.scalars, scalars, strict=True)))  # type: ignore[arg-type]
        numbers.update(changed)
        for name, scalar in zip(rule.scalars, scalars, strict=True):
            scalar.copy_(after[name])
    rule.update_(param, grad, *states[:own], **{name: numbers[name] for name in rule.names}, **specified)


def signed(numbers: Numbers, *names: str) -> dict[str, Any]:
    """The given hyperparameters for a kernel, which takes a factor of the gradient instead of ``maximize``."""
    return {"factor": -1.0 if numbers["maximize"] else 1.0, **{name: numbers[name] for name in names}}
