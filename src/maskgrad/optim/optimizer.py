"""The base class of all optimizers: reads and checks all gradients first, then updates all parameters."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor
from torch._compile import _disable_dynamo  # imports the compiler only when it is called

from maskgrad.gradients.attached import current_gradient, keep_attached
from maskgrad.gradients.gradient import AnyGradient, Gradient, check_fits, read
from maskgrad.gradients.step_hooks import name_of, named, parameters_of
from maskgrad.gradients.train_only import trained_entries
from maskgrad.masked_tensor import MaskedTensor
from maskgrad.optim.documentation import documentation_of
from maskgrad.optim.engine import apply_update
from maskgrad.optim.hyperparameters import check_options
from maskgrad.optim.lazy.rows import bring_up_to_date, prepare_loading
from maskgrad.optim.lazy.zero_gradients import update_with_zeros
from maskgrad.optim.loading import SHARED_OPTIONS, check_group, check_names, check_shapes
from maskgrad.optim.parameters import check_parameter, with_values
from maskgrad.optim.rows import RowLoop
from maskgrad.optim.rule import Hyperparameters, Rule
from maskgrad.optim.torch_steps import TorchGroup, TorchSteps
from maskgrad.semantics.entries import HALVES

__all__ = ["CorrectionOption", "MaskedOptimizer", "StateOption", "UnspecifiedOption"]

UnspecifiedOption: TypeAlias = Literal["skip", "zero"]
"""Meaning of a missing gradient."""
CorrectionOption: TypeAlias = Literal["steps", "row"]
"""Steps counted by the bias correction: those of the parameter, or those of each row."""
StateOption: TypeAlias = Literal["full", "row"]
"""One state value per entry, or per row."""


@dataclass(slots=True)
class Prepared:
    """A group with checked options, and the steppers of its parameters besides the engine."""

    options: list[Any] | None
    """The group and its options, which are replaced, not changed; None: they may change unnoticed."""
    numbers: Hyperparameters
    dense: TorchGroup | None
    rows: RowLoop | None


Ready = tuple[Tensor, Gradient, Hyperparameters, str]
"""A parameter and its gradient, for the engine."""


def _is_constant(option: Any) -> bool:
    """Return whether an option can only be replaced: contents of tensors and lists may change unnoticed."""
    parts = option if isinstance(option, tuple) else (option,)
    return all(isinstance(part, (int, float, str, type(None))) for part in parts)


class MaskedOptimizer(TorchSteps):
    """A ``torch.optim.Optimizer`` for dense, sparse and masked gradients; subclasses declare the rule."""

    _rule: ClassVar[Rule]
    _late_options: ClassVar[tuple[str, ...]] = ()
    """Hyperparameters missing in checkpoints of older versions or simpler optimizers, which get their defaults."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__doc__ and cls.__module__.startswith(f"{__package__}."):  # no docstring under -OO
            cls.__doc__ = documentation_of(cls)

    def __init__(self, params: Any, options: Mapping[str, Any]) -> None:
        """``options``: the local variables of a subclass's constructor."""
        no_options = ("self", "params", "__class__")
        chosen = {name: value for name, value in options.items() if name not in no_options}
        if not isinstance(params, Iterable):
            name = type(self).__name__
            raise TypeError(
                f"params must be an iterable of parameters or groups, found {type(params).__name__}; "
                f"write {name}(model.parameters())"
            )
        torch.optim.Optimizer.__init__(self, params, chosen)

    @functools.cached_property
    def _prepared(self) -> dict[int, Prepared]:
        """Checked options of each group, by its position."""
        return {}

    def _numbers_now(self, param: Tensor, numbers: Hyperparameters) -> Hyperparameters:
        """Scalars of a step of ``param`` that depend on its state."""
        return numbers

    def _prepare_state(self, param: Tensor, numbers: Hyperparameters) -> list[Tensor]:
        """Convert a loaded state to the form that the rule needs; return states beyond the declared ones."""
        return []

    def _finish(self, param: Tensor, gradient: Gradient) -> None:
        """Clean the state up after an update."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with their own hyperparameters, as in PyTorch.

        A leaf MaskedTensor of any layout can be passed as a parameter: its values are trained, so the cost of a step
        is proportional to the number of specified entries.

        Raises:
            TypeError: a parameter is sparse, or neither floating-point nor complex.
            ValueError: a hyperparameter is out of range. PyTorch's errors are raised, too.
        """
        param_group["params"] = with_values(param_group["params"])
        super().add_param_group(param_group)
        try:
            self._read_group(param_group)
            for name, param in named(param_group, len(self.param_groups) - 1):
                check_parameter(param, name)
        except BaseException:
            self.param_groups.pop()
            raise

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Check and restore a state; options missing in states of ``torch.optim`` are unchanged."""
        self._check_loaded(state, self.__dict__.get("param_groups"))
        for group in state["param_groups"]:
            for param in group["params"]:
                prepare_loading(param)
        torch.optim.Optimizer.__setstate__(self, state)  # its optimizers add missing options, as above

    def __getstate__(self) -> dict[str, Any]:
        self.flush()
        return super().__getstate__()

    def state_dict(self) -> dict[str, Any]:
        """As in PyTorch; with ``unspecified="zero"`` pending updates are applied first."""
        self.flush()
        return super().state_dict()

    def flush(self, params: Tensor | MaskedTensor | Iterable[Tensor | MaskedTensor] | None = None) -> None:
        """Apply pending updates of rows without gradients, before rows are read or written.

        With ``unspecified="zero"`` rows without a gradient are updated at their next step, when looked up by
        :class:`maskgrad.nn.Embedding`, by ``state_dict()``, or here. Otherwise this does nothing.

        Args:
            params: some of this optimizer's parameters; None: all.

        Raises:
            ValueError: a tensor is not a parameter of this optimizer. Nothing is written then.
        """
        chosen = own = list(parameters_of(self))
        if params is not None:
            chosen = with_values([params] if isinstance(params, Tensor | MaskedTensor) else list(params))
            strangers = {id(param) for param in chosen} - {id(param) for param in own}
            if strangers:
                raise ValueError(
                    f"flush() got {len(strangers)} tensors that this optimizer does not train; pass some of "
                    "its parameters, or nothing for all"
                )
        for param in chosen:
            bring_up_to_date(param)

    @_disable_dynamo
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients of all parameters. Attached ones are removed for any ``set_to_none``."""
        super().zero_grad(set_to_none)
        for param in parameters_of(self):
            keep_attached(param, None)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Perform a single optimization step, on the entries that the gradients specify.

        Every gradient, state and hyperparameter is checked before anything is written: if an error is raised,
        parameters and state are unchanged.

        Args:
            closure: reevaluates the model and returns the loss; called once, with gradients enabled.

        Returns:
            What ``closure`` returned, or None.

        Raises:
            TypeError: a gradient has an unknown layout, or a dtype that its parameter cannot take.
            ValueError: a gradient has another shape or device than its parameter, a parameter has two gradients, or a
                hyperparameter is out of range.
            IndexError: an index of a gradient is outside its parameter.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        dense: list[dict[str, Any]] = []
        tables: list[Callable[[], None]] = []
        ready: list[Ready] = []
        for position, group in enumerate(self.param_groups):
            kept = self._prepared_group(position, group)
            if kept.dense is None:
                others = [*enumerate(group["params"])]
            else:
                groups, others = kept.dense.sort(self.state)
                dense += groups
            rows = kept.rows
            for number, param in others:
                table = None if rows is None else rows.table(param, self.state)
                if table is not None:
                    tables.append(table)
                    continue
                name = name_of(group, position, number)
                grad = current_gradient(param, name)
                if grad is not None:
                    ready.append(
                        (param, self._read(param, grad, group, kept.numbers, name), kept.numbers, name)
                    )
        # Nothing is written so far.
        if dense:
            self._step_as_torch(dense)
        for param, gradient, numbers, name in ready:
            self._update(param, gradient, numbers, name)
        for table in tables:
            table()
        return loss

    def _prepared_group(self, position: int, group: dict[str, Any]) -> Prepared:
        """The options of a group, checked again if one has changed."""
        options = [group, *group.values()]
        kept = self._prepared.get(position)
        known = kept.options if kept else None
        if not kept or not known or len(known) != len(options) or not all(map(operator.is_, known, options)):
            numbers = self._read_group(group)
            constant = all(_is_constant(group[name]) for name in self.defaults if name in group)
            dense = rows = None
            if self._torch is not None and not numbers.per_row:
                dense = TorchGroup(self._torch, group, numbers)
            others = numbers.per_row or numbers.zeros or group["differentiable"]
            if not others and numbers.fused(1.0) is not None:
                rows = RowLoop(numbers)
            kept = Prepared(options if constant else None, numbers, dense, rows)
            self._prepared[position] = kept
        return kept

    def _read(
        self, param: Tensor, grad: AnyGradient, group: dict[str, Any], numbers: Hyperparameters, name: str
    ) -> Gradient:
        """Return the gradient on the trained entries, after checking it and the states."""
        if group["differentiable"]:
            raise ValueError(
                f"differentiable=True is available for dense gradients only, and {name} has another kind, or entries "
                "that are not trained; write the update out of place to differentiate through it"
            )
        check_fits(param, grad, f"gradient of {name}")
        gradient = read(grad, f"gradient of {name}").restricted(trained_entries(param))
        check_shapes(self.state.get(param, {}), param, numbers, name)
        return gradient

    def _read_group(self, group: dict[str, Any]) -> Hyperparameters:
        check_options(group, type(self).__name__, self._rule.has_statistics, self._torch is not None)
        return Hyperparameters.of(self._rule, group)

    def _update(self, param: Tensor, gradient: Gradient, numbers: Hyperparameters, name: str) -> None:
        numbers = self._numbers_now(param, numbers)
        states = self._states(param, numbers)
        state = self.state.get(param, {})  # no entry if it has no state
        step = float(state["step"]) + 1 if numbers.counts_steps else 0.0
        scalars = {name: state[name] for name in numbers.scalars}
        update = numbers.update(step, **scalars)
        if numbers.zeros:
            update_with_zeros(update, param, gradient, states, numbers, step, scalars, name)
        else:
            bring_up_to_date(param)  # does nothing, unless the option was changed
            apply_update(update, param, gradient, states)
        # A step counts once it is done.
        state = self.state.get(param, {})
        if numbers.counts_steps:
            state["step"] += 1
        for name, value in update.scalars.items():
            state[name].copy_(value)
        self._finish(param, gradient)

    def _states(self, param: Tensor, numbers: Hyperparameters) -> list[Tensor]:
        """Return the state tensors in the order of the rule's arguments; creates missing ones."""
        scalars = {"step": 0.0} if numbers.counts_steps else {}
        scalars |= numbers.scalars
        wanted = numbers.states
        if not (scalars or wanted):
            return []
        state = self.state[param]
        for name, start in scalars.items():
            # It is a Python number in checkpoints of old PyTorch versions.
            # And loading casts some to the parameter's dtype, where half precision would drop small changes.
            value = state.get(name, start)
            if not isinstance(value, Tensor) or value.dtype in HALVES:
                dtype = torch.float64 if torch.get_default_dtype() is torch.float64 else torch.float32
                device = param.device if numbers.on_device else None
                state[name] = torch.tensor(float(value), dtype=dtype, device=device)
        beyond = self._prepare_state(param, numbers)
        for declared in wanted:
            if state.get(declared.name) is None:
                state[declared.name] = declared.create(param, numbers.row)
            elif declared.counts_rows:  # loading casts some of these, too
                dtype = torch.promote_types(state[declared.name].dtype, torch.float32)
                state[declared.name] = state[declared.name].to(dtype)
        return [*(state[declared.name] for declared in wanted), *beyond]

    def _check_loaded(self, state: dict[str, Any], live: list[dict[str, Any]] | None) -> None:
        """Add missing options to the groups of a state to be loaded, and check that it fits."""
        defaults = state.get("defaults") or self.defaults
        late = {**SHARED_OPTIONS, **{name: self._rule.defaults[name] for name in self._late_options}}
        for position, group in enumerate(state["param_groups"]):
            before = live[position] if live else {**SHARED_OPTIONS, **group}
            chosen = ("unspecified", "state", "bias_correction")
            group.update({**late, **{name: before[name] for name in chosen if name in before}} | group)
            check_group(group, before, defaults, type(self).__name__)
            numbers = self._read_group(group)
            for name, param in named(group, position):
                entry = state["state"].get(param) or {}
                for declared in numbers.rule.counts if numbers.by_row else ():
                    if declared.name in entry:  # PyTorch does not move step counts
                        entry[declared.name] = entry[declared.name].to(param.device)
                check_names(entry, self._rule.required, self._rule.optional, name, type(self).__name__)
                check_shapes(entry, param, numbers, name)
