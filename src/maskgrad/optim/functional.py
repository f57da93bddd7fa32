"""The optimizers' updates as functions, in place and without an optimizer, derived from their rules."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any

import torch
from torch import Tensor

from maskgrad.gradients.gradient import check_fits, read
from maskgrad.instead import missing_attribute
from maskgrad.optim.adadelta import Adadelta
from maskgrad.optim.adagrad import Adagrad
from maskgrad.optim.adam import Adam
from maskgrad.optim.adamax import Adamax
from maskgrad.optim.asgd import ASGD
from maskgrad.optim.documentation import arguments_of, entry
from maskgrad.optim.engine import apply_update
from maskgrad.optim.hyperparameters import finite, flag
from maskgrad.optim.lion import Lion
from maskgrad.optim.nadam import NAdam
from maskgrad.optim.optimizer import MaskedOptimizer
from maskgrad.optim.radam import RAdam
from maskgrad.optim.rmsprop import RMSprop
from maskgrad.optim.rprop import Rprop
from maskgrad.optim.rule import Hyperparameters, State
from maskgrad.optim.sgd import SGD

__all__ = [
    "adadelta_", "adagrad_", "adam_", "adamax_", "asgd_", "lion_", "nadam_", "radam_", "rmsprop_", "rprop_",
    "sgd_",
]  # fmt: skip

PAGE = """Performs one {kind} step in place, on the entries that the gradient specifies.

The formula is that of :class:`maskgrad.optim.{kind}`.

Args:{arguments}

Returns:
    ``param``.

Gradient:
    None; nothing is recorded for autograd.

Raises:
    TypeError: the gradient has an unknown layout, or a dtype that ``param`` cannot take.
    ValueError: shapes or devices differ, a hyperparameter is out of range, NaN or infinite, or a state is missing.
    IndexError: an index is outside ``param``. Nothing is written then.

Dense equivalent: {dense}.

Example:
    >>> grad = mg.masked(torch.tensor([1., float("nan")]), torch.tensor([True, False]))
    >>> mg.optim.functional.{name}(torch.ones(2), grad, {example})
    tensor({result})

Source: {source}
"""
PARAM = "strided tensor, floating-point or complex, any shape; updated in place."
GRAD = (
    "MaskedTensor, or strided, COO, CSR, CSC, BSR or BSC tensor of the same shape; duplicates are merged first, in "
    "float32 for half precision. A stored zero is an entry."
)
STARTED = (
    "Boolean, shape of ``param`` (of its pairs if it is complex), updated in place: entries that have a buffer; the "
    "others start theirs with the undampened gradient. None: all have one."
)


def functional_form(
    kind: type[MaskedOptimizer], example: str, result: str, first_step: Any = Parameter.empty
) -> Callable[..., Tensor]:
    """Make the update of ``kind`` a function, with an example on its page; ``first_step``: the default of ``step``."""
    rule, constructor = kind._rule, inspect.signature(kind).parameters
    by_states = {state.needs for state in rule.states if state.needs and rule.limits[state.needs] is flag}
    starts = {state.initial for state in rule.states} - set(rule.names)
    by_optimizer = {name for name, value in rule.defaults.items() if isinstance(value, str)}  # counted steps
    options = [name for name in rule.limits if name not in by_states | starts | by_optimizer]
    page = arguments_of(str(kind.__doc__))
    no_default = Parameter.empty

    positional: dict[str, tuple[str, Any]] = {"param": (PARAM, no_default), "grad": (GRAD, no_default)}
    for state in rule.states:
        positional[_argument(state)] = _about(state), no_default if state.needs is None else None
    for name, start in rule.scalars.items():
        positional[name] = f"scalar state, {start} at first; updated in place.", no_default
    named: dict[str, tuple[str, Any]] = {}
    if "step" in rule.names or rule.prepare is not None:
        named["step"] = "index of this step, counted from 1.", first_step
    for name in (*options, "maximize"):
        named[name] = page.get(name, ""), constructor[name].default
    if rule.markers:
        named["started"] = STARTED, None
    unused = {name: constructor[name].default for name in rule.limits if name in starts | by_optimizer}
    groups = (Parameter.POSITIONAL_OR_KEYWORD, positional), (Parameter.KEYWORD_ONLY, named)
    parameters = [
        Parameter(name, how, default=default) for how, group in groups for name, (_, default) in group.items()
    ]
    signature = inspect.Signature(parameters)

    def function(*args: Any, **kwargs: Any) -> Tensor:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        with torch.no_grad():
            return _step(kind, bound.arguments, unused)

    name, dense = f"{kind.__name__.lower()}_", kind._torch
    function.__name__ = function.__qualname__ = name
    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__doc__ = PAGE.format(
        kind=kind.__name__,
        arguments="".join(entry(f"{name}: {about}") for name, (about, _) in {**positional, **named}.items()),
        dense=f"``{dense.__module__}.{dense.__name__.lower()}``" if dense else "none in PyTorch",
        name=name,
        example=example,
        result=result,
        source=re.sub(r";\s+``torch.*", ".", str(kind.__doc__).partition("Source: ")[2].strip(), flags=re.S),
    )
    return function


def _argument(state: State) -> str:
    return state.argument or state.name


def _about(state: State) -> str:
    shape = "shape of ``param``" + (", or (rows, 1, ..., 1) for one per row" if state.statistic else "")
    needed = f" Required with ``{state.needs}``." if state.needs is not None else ""
    return f"{state.about}; {shape}; updated in place.{needed}"


def _step(kind: type[MaskedOptimizer], given: Mapping[str, Any], unused: Mapping[str, Any]) -> Tensor:
    """Check what is ``given`` and perform one step; ``unused`` are initial values of states."""
    rule = kind._rule
    param, states = given["param"], {state.name: given[_argument(state)] for state in rule.states}
    present = {state.needs: states[state.name] is not None for state in rule.states if state.needs}
    group = {**unused, **present, **given}
    row = any(_is_per_row(param, states[declared.name], declared) for declared in rule.states)
    numbers = Hyperparameters.of(rule, group, row=row)
    count = finite("step", given.get("step", 1))
    if count < 1:
        raise ValueError(f"step must be at least 1 (the first step), got {given['step']}")
    started = given.get("started")
    if started is not None:
        if started.dtype is not torch.bool:
            raise TypeError(f"started must be a Boolean tensor, got {started.dtype}")
        _require_like(torch.view_as_real(param.detach()) if param.is_complex() else param, started, "started")
    check_fits(param, given["grad"], "gradient of param")
    gradient = read(given["grad"], "gradient of param")
    wanted = numbers.states
    tensors = [_checked(param, states[declared.name], declared) for declared in wanted]
    scalars = {name: _one_number(name, given[name]) for name in rule.scalars}
    update = numbers.update(count, **scalars)
    apply_update(update, param, gradient, [*tensors, *([started] if started is not None and wanted else [])])
    for name, value in update.scalars.items():
        scalars[name].copy_(value)
    return param  # type: ignore[no-any-return]


def _require_like(param: Tensor, other: Tensor, name: str) -> None:
    """Raise a ValueError unless ``other`` is strided and has the shape and device of ``param``."""
    if other.shape != param.shape or other.device != param.device or other.layout is not param.layout:
        raise ValueError(
            f"{name} must be a strided tensor like param, {tuple(param.shape)} on {param.device}; got {other.layout} "
            f"of shape {tuple(other.shape)} on {other.device}"
        )


def _checked(param: Tensor, state: Tensor | None, declared: State) -> Tensor:
    name = _argument(declared)
    if state is None:
        raise ValueError(f"a step with these options needs {name}, e.g. torch.zeros_like(param)")
    if not _is_per_row(param, state, declared):
        _require_like(param, state, name)
    elif state.device != param.device:
        raise ValueError(f"{name} is on {state.device}, but param is on {param.device}; move one with .to()")
    return state.detach()


def _is_per_row(param: Tensor, state: Tensor | None, declared: State) -> bool:
    """Return whether ``state`` has one value per row, and not the parameter's shape."""
    one_per_row = declared.shape(param, row=True)
    return state is not None and state.shape == one_per_row != param.shape


def _one_number(name: str, state: Tensor | None) -> Tensor:
    if state is None or state.numel() != 1:
        found = "None" if state is None else f"a tensor of shape {tuple(state.shape)}"
        raise ValueError(f"{name} must be a tensor with one element, got {found}")
    return state.detach()


def __getattr__(name: str) -> object:
    raise missing_attribute(__name__, name)


TWO = "torch.zeros(2), torch.zeros(2)"
adadelta_ = functional_form(Adadelta, f"{TWO}, eps=1.0", "[0.0465, 1.0000]")
adagrad_ = functional_form(Adagrad, "torch.zeros(2), lr=0.1", "[0.9000, 1.0000]", first_step=1)
adam_ = functional_form(Adam, f"{TWO}, step=1, lr=0.1", "[0.9000, 1.0000]")
adamax_ = functional_form(Adamax, f"{TWO}, step=1, lr=0.1", "[0.9000, 1.0000]")
asgd_ = functional_form(
    ASGD, "torch.ones(2), torch.tensor(0.1), torch.ones(()), step=1, lr=0.1, lambd=0", "[0.9000, 1.0000]"
)
lion_ = functional_form(Lion, "torch.zeros(2), lr=0.1", "[0.9000, 1.0000]")
nadam_ = functional_form(NAdam, f"{TWO}, torch.ones(()), step=1, lr=0.1", "[0.8944, 1.0000]")
radam_ = functional_form(RAdam, f"{TWO}, step=1, lr=0.1", "[0.9000, 1.0000]")
rmsprop_ = functional_form(RMSprop, "torch.zeros(2), lr=0.1, alpha=0.75", "[0.8000, 1.0000]")
rprop_ = functional_form(Rprop, "torch.zeros(2), torch.full((2,), 0.1)", "[0.9000, 1.0000]")
sgd_ = functional_form(SGD, "lr=0.5", "[0.5000, 1.0000]")
