"""Checks whether a state fits an optimizer and its parameters, before it is loaded and before a step."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from torch import Tensor

from maskgrad.optim.rule import HYPERPARAMETERS, Hyperparameters

__all__ = ["SHARED_OPTIONS", "check_group", "check_names", "check_shapes"]

SHARED_OPTIONS: dict[str, Any] = {
    "unspecified": "skip",
    "state": "full",
    "maximize": False,
    "foreach": None,
    "differentiable": False,
}
"""Options of every optimizer, and their values if missing in a checkpoint."""

#: Hyperparameters of most optimizers. Any other unexpected one shows that a group is another optimizer's.
COMMON = frozenset({"lr", "eps", "weight_decay", "decoupled_weight_decay"})


def check_group(group: Mapping[str, Any], live: Mapping[str, Any], own: Mapping[str, Any], kind: str) -> None:
    """Raise a ValueError unless a loaded group belongs to the optimizer ``kind``, whose hyperparameters are ``own``."""
    missing = sorted(own.keys() - group.keys() - {"fused", "capturable"})
    foreign = sorted((group.keys() & HYPERPARAMETERS) - COMMON - own.keys())
    if missing or foreign:
        found = [f"has no {', '.join(missing)}"] if missing else []
        found += [f"has {', '.join(foreign)}"] if foreign else []
        raise ValueError(
            f"the loaded state is not from {kind}: its parameter group {' and '.join(found)}; load a state of "
            f"mg.optim.{kind}, or of the optimizer of that name in torch.optim"
        )
    for option in ("state", "bias_correction", "unspecified"):
        made, here = group.get(option), live.get(option)
        if made != here:
            change = ", or set group['unspecified'] for each group of state['param_groups'] before loading it"
            raise ValueError(
                f"the loaded state was made with {option}={made!r}, but this optimizer has {option}={here!r}; build "
                f"the optimizer with {option}={made!r} to load it{change if option == 'unspecified' else ''}"
            )


def check_names(
    state: Mapping[str, Any], required: Set[str], optional: Set[str], name: str, kind: str
) -> None:
    """Raise a ValueError unless a parameter's state belongs to the optimizer ``kind``; it may be empty."""
    if not state:
        return
    unknown, missing = sorted(state.keys() - required - optional), sorted(required - state.keys())
    if unknown or missing:
        expected = ", ".join([*sorted(required), *(f"perhaps {n}" for n in sorted(optional))])
        raise ValueError(
            f"the loaded state of {name} has {', '.join(sorted(state))}, but {kind} needs {expected or 'none'}; load a "
            f"state of mg.optim.{kind}, or of the optimizer of that name in torch.optim"
        )


def check_shapes(state: Mapping[str, Any], param: Tensor, numbers: Hyperparameters, name: str) -> None:
    """Raise a ValueError unless the shape and device of each state tensor fit ``param``."""
    expected = {declared.name: declared.shape(param, numbers.row) for declared in numbers.states}
    for key, shape in expected.items():
        value = state.get(key)
        if value is not None and not (value.shape == shape and value.device == param.device):
            per_row = " (one value per row)" if shape != param.shape else ""
            raise ValueError(
                f"state {key!r} of {name} has shape {tuple(value.shape)} on {value.device}, but the parameter has "
                f"shape {tuple(param.shape)} on {param.device} and needs a state of shape {tuple(shape)}{per_row}; "
                "load a state that belongs to this model and these options"
            )
    for key in numbers.counts:
        value = state.get(key)
        if isinstance(value, Tensor) and value.numel() != 1:
            raise ValueError(
                f"state {key!r} of {name} must be a scalar, got a tensor of shape {tuple(value.shape)}; load a "
                "state that belongs to this model"
            )
