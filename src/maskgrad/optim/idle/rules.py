"""Which rules have a closed form, and with which numbers: the explicit list."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from maskgrad.optim import rules
from maskgrad.optim.engine import Update
from maskgrad.optim.idle.linear import LinearStep
from maskgrad.optim.idle.moments import MomentStep
from maskgrad.optim.idle.table import IdleStep

__all__ = ["IDEMPOTENT", "idle_step"]

Numbers = Mapping[str, Any]


def idle_step(update: Update, number_of_states: int) -> IdleStep | None:
    """What ``update`` does if the gradient is zero, or None if there is no closed form for it."""
    rule = getattr(update.rule, "func", None)
    form = _FORMS.get(rule) if rule is not None else None
    return form(update.rule.keywords, number_of_states) if form is not None else None  # type: ignore[attr-defined]


def _sgd(n: Numbers, states: int) -> IdleStep | None:
    if states > 1:  # the marker of buffers that have started decides entry by entry
        return None
    lr, decay, momentum = n["lr"], n["weight_decay"], n["momentum"]
    if states == 0:
        return LinearStep(((1 - lr * decay, 0.0), (0.0, 1.0)))
    pushed = (1 - n["dampening"]) * decay
    if n["nesterov"]:
        top = (1 - lr * (decay + momentum * pushed), -lr * momentum * momentum)
    else:
        top = (1 - lr * pushed, -lr * momentum)
    return LinearStep((top, (pushed, momentum)), factors=(1.0,), buffer=0)


def _adagrad(n: Numbers, states: int) -> IdleStep | None:
    # 0 / (0 + eps) is NaN for eps = 0
    return LinearStep(factors=(1.0,)) if n["weight_decay"] == 0 and n["eps"] > 0 else None


def _decoupled(n: Numbers) -> float | None:
    """The factor of the parameter, if the decay is decoupled or there is none."""
    if n["weight_decay"] == 0:
        return 1.0
    shrink = 1 - n["lr"] * n["weight_decay"]
    return float(shrink) if n["decoupled"] and shrink > 0 else None


def _adam(n: Numbers, states: int) -> IdleStep | None:
    shrink = _decoupled(n)
    if shrink is None or n["beta2"] == 0:
        return None
    correction1, correction2 = 1 - n["beta1"] ** n["step"], 1 - n["beta2"] ** n["step"]
    return MomentStep(
        size=n["lr"] / correction1,
        root=1 / math.sqrt(correction2),
        decay=shrink,
        beta1=n["beta1"],
        beta2=n["beta2"],
        eps=n["eps"],
        maximum=states > 2,
    )


def _nadam(n: Numbers, states: int) -> IdleStep | None:
    shrink = _decoupled(n)
    if shrink is None or n["beta2"] == 0:
        return None
    return MomentStep(
        size=n["lr"] * n["mu_next"] / (1 - n["mu_product"] * n["mu_next"]),
        root=1 / math.sqrt(1 - n["beta2"] ** n["step"]),
        decay=shrink,
        beta1=n["beta1"],
        beta2=n["beta2"],
        eps=n["eps"],
    )


def _radam(n: Numbers, states: int) -> IdleStep | None:
    shrink = _decoupled(n)
    if shrink is None or n["beta2"] == 0:
        return None
    step, beta2 = n["step"], n["beta2"]
    correction = 1 - beta2**step
    longest = 2 / (1 - beta2) - 1
    length = longest - 2 * step * beta2**step / correction
    if length <= 5:  # plain momentum, without a root
        return None
    rectification = math.sqrt(
        (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
    )
    return MomentStep(
        size=n["lr"] * rectification * math.sqrt(correction) / (1 - n["beta1"] ** step),
        root=1.0,
        decay=shrink,
        beta1=n["beta1"],
        beta2=beta2,
        eps=n["eps"],
    )


def _rmsprop(n: Numbers, states: int) -> IdleStep | None:
    if n["weight_decay"] != 0 or n["eps"] == 0:
        return None
    factors = (n["alpha"],) * states
    if n["momentum"] == 0:
        return LinearStep(factors=factors)
    momentum = n["momentum"]
    return LinearStep(((1.0, -n["lr"] * momentum), (0.0, momentum)), factors=factors, buffer=states - 1)


def _adadelta(n: Numbers, states: int) -> IdleStep | None:
    return LinearStep(factors=(n["rho"],) * 2) if n["weight_decay"] == 0 and n["eps"] > 0 else None


def _asgd(n: Numbers, states: int) -> IdleStep | None:
    kept = 1 - n["lambd"] * n["eta"] - n["eta"] * n["weight_decay"]
    return LinearStep(((kept, 0.0), (n["mu"] * kept, 1 - n["mu"])), factors=(1.0,), buffer=0)


def _lion(n: Numbers, states: int) -> IdleStep | None:
    shrink = 1 - n["lr"] * n["weight_decay"]
    if n["beta1"] == 0 or n["beta2"] == 0:  # the sign of 0
        return None
    return LinearStep(((shrink, -n["lr"]), (0.0, 1.0)), factors=(n["beta2"],), buffer=0, sign=True)


_FORMS: dict[Callable[..., None], Callable[[Numbers, int], IdleStep | None]] = {
    rules.adadelta_: _adadelta,
    rules.adagrad_: _adagrad,
    rules.adam_: _adam,
    rules.asgd_: _asgd,
    rules.lion_: _lion,
    rules.nadam_: _nadam,
    rules.radam_: _radam,
    rules.rmsprop_: _rmsprop,
    rules.sgd_: _sgd,
}

IDEMPOTENT: frozenset[Callable[..., None]] = frozenset({rules.rprop_})
"""Rules for which a second idle step with the same numbers changes nothing."""
