"""The update formulas as the papers and PyTorch's documentation give them, in float64 NumPy, written apart from ours.

``FORMULAS[name](p, gradients, mean, largest, **options)`` is where a dense parameter arrives. ``mean`` and
``largest`` say over what squares are averaged and sizes compared: nothing (each entry by itself) or rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Statistic = Callable[[Array], Array]


def itself(x: Array) -> Array:
    return x


def _signed(g: Array, p: Array, weight_decay: float, maximize: bool) -> Array:
    return (-g if maximize else g) + weight_decay * p


def _average(history: Sequence[Array], beta: float) -> Array:
    """An exponential moving average that starts with zero, as the sum that it is."""
    n = len(history)
    return sum(
        ((1 - beta) * beta ** (n - 1 - i) * x for i, x in enumerate(history)), start=np.zeros_like(history[0])
    )


def sgd(
    p: Array,
    gradients: Sequence[Array],
    mean: Statistic,
    largest: Statistic,
    *,
    lr: float,
    momentum: float = 0,
    dampening: float = 0,
    weight_decay: float = 0,
    nesterov: bool = False,
    maximize: bool = False,
) -> Array:
    buffer = None
    for gradient in gradients:
        g = _signed(gradient, p, weight_decay, maximize)
        buffer = g if buffer is None or momentum == 0 else momentum * buffer + (1 - dampening) * g
        p = p - lr * (g + momentum * buffer if nesterov else buffer)
    return p


def adagrad(
    p: Array,
    gradients: Sequence[Array],
    mean: Statistic,
    largest: Statistic,
    *,
    lr: float,
    lr_decay: float = 0,
    weight_decay: float = 0,
    initial_accumulator_value: float = 0,
    eps: float = 1e-10,
    maximize: bool = False,
) -> Array:
    total: Any = initial_accumulator_value
    for t, gradient in enumerate(gradients):
        g = _signed(gradient, p, weight_decay, maximize)
        total = total + mean(g**2)
        p = p - lr / (1 + t * lr_decay) * g / (np.sqrt(total) + eps)
    return p


def adam(
    p: Array,
    gradients: Sequence[Array],
    mean: Statistic,
    largest: Statistic,
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0,
    amsgrad: bool = False,
    decoupled_weight_decay: bool = False,
    maximize: bool = False,
) -> Array:
    seen, squares, top = [], [], 0.0
    for t, gradient in enumerate(gradients, 1):
        if decoupled_weight_decay:
            p = p - lr * weight_decay * p
        seen.append(_signed(gradient, p, 0 if decoupled_weight_decay else weight_decay, maximize))
        squares.append(mean(seen[-1] ** 2))
        m = _average(seen, betas[0]) / (1 - betas[0] ** t)
        v = _average(squares, betas[1])
        top = np.maximum(top, v)
        p = p - lr * m / (np.sqrt((top if amsgrad else v) / (1 - betas[1] ** t)) + eps)
    return p


def adamw(
    p: Array,
    gradients: Sequence[Array],
    mean: Statistic,
    largest: Statistic,
    *,
    weight_decay: float = 1e-2,
    **options: Any,
) -> Array:
    return adam(
        p, gradients, mean, largest, weight_decay=weight_decay, decoupled_weight_decay=True, **options
    )


def rmsprop(
    p: Array,
    gradients: Sequence[Array],
    mean: Statistic,
    largest: Statistic,
    *,
    lr: float,
    alpha: float = 0.99,
    eps: float = 1e-8,
    weight_decay: float = 0,
    momentum: float = 0,
    centered: bool = False,
    maximize: bool = False,
) -> Array:
    seen, squares, buffer = [], [], 0.0
    for gradient in gradients:
        seen.append(_signed(gradient, p, weight_decay, maximize))
        squares.append(mean(seen[-1] ** 2))
        v = _average(squares, alpha) - (_average(seen, alpha) ** 2 if centered else 0)
        buffer = momentum * buffer + seen[-1] / (np.sqrt(v) + eps)
        p = p - lr * buffer
    return p


def adadelta(
    p: Array,
    gradients: Sequence[Array],
    mean: Statistic,
    largest: Statistic,
    *,
    lr: float,
    rho: float = 0.9,
    eps: float = 1e-6,
    weight_decay: float = 0,
    maximize: bool = False,
) -> Array:
    squares: list[Array] = []
    changes: list[Array] = []
    for gradient in gradients:
        g = _signed(gradient, p, weight_decay, maximize)
        squares.append(mean(g**2))
        before = _average(changes, rho) if changes else 0.0
        change = np.sqrt(before + eps) / np.sqrt(_average(squares, rho) + eps) * g
        changes.append(mean(change**2))
        p = p - lr * change
    return p


def adamax(
    p: Array,
    gradients: Sequence[Array],
    mean: Statistic,
    largest: Statistic,
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0,
    maximize: bool = False,
) -> Array:
    seen: list[Array] = []
    for t, gradient in enumerate(gradients, 1):
        seen.append(_signed(gradient, p, weight_decay, maximize))
        u = np.max([betas[1] ** (t - 1 - i) * largest(np.abs(g) + eps) for i, g in enumerate(seen)], axis=0)
        p = p - lr * _average(seen, betas[0]) / (1 - betas[0] ** t) / u
    return p


def nadam(
    p: Array,
    gradients: Sequence[Array],
    mean: Statistic,
    largest: Statistic,
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0,
    momentum_decay: float = 4e-3,
    decoupled_weight_decay: bool = False,
    maximize: bool = False,
) -> Array:
    seen, squares = [], []
    mus = [betas[0] * (1 - 0.96 ** (t * momentum_decay) / 2) for t in range(1, len(gradients) + 2)]
    for t, gradient in enumerate(gradients, 1):
        if decoupled_weight_decay:
            p = p - lr * weight_decay * p
        seen.append(_signed(gradient, p, 0 if decoupled_weight_decay else weight_decay, maximize))
        squares.append(mean(seen[-1] ** 2))
        m = mus[t] * _average(seen, betas[0]) / (1 - np.prod(mus[: t + 1]))
        m = m + (1 - mus[t - 1]) * seen[-1] / (1 - np.prod(mus[:t]))
        p = p - lr * m / (np.sqrt(_average(squares, betas[1]) / (1 - betas[1] ** t)) + eps)
    return p


def radam(
    p: Array,
    gradients: Sequence[Array],
    mean: Statistic,
    largest: Statistic,
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0,
    decoupled_weight_decay: bool = False,
    maximize: bool = False,
) -> Array:
    seen, squares = [], []
    end = 2 / (1 - betas[1]) - 1
    for t, gradient in enumerate(gradients, 1):
        if decoupled_weight_decay:
            p = p - lr * weight_decay * p
        seen.append(_signed(gradient, p, 0 if decoupled_weight_decay else weight_decay, maximize))
        squares.append(mean(seen[-1] ** 2))
        rho = end - 2 * t * betas[1] ** t / (1 - betas[1] ** t)
        m = _average(seen, betas[0]) / (1 - betas[0] ** t)
        if rho > 5:
            r = np.sqrt((rho - 4) * (rho - 2) * end / ((end - 4) * (end - 2) * rho))
            m = m * r * np.sqrt(1 - betas[1] ** t) / (np.sqrt(_average(squares, betas[1])) + eps)
        p = p - lr * m
    return p


def rprop(
    p: Array,
    gradients: Sequence[Array],
    mean: Statistic,
    largest: Statistic,
    *,
    lr: float,
    etas: tuple[float, float] = (0.5, 1.2),
    step_sizes: tuple[float, float] = (1e-6, 50),
    maximize: bool = False,
) -> Array:
    p = p.copy()
    for at in np.ndindex(p.shape):
        size, before = lr, 0.0
        for gradient in gradients:
            g = -gradient[at] if maximize else gradient[at]
            if g * before > 0:
                size *= etas[1]
            elif g * before < 0:
                size *= etas[0]
                g = 0.0
            size = min(max(size, step_sizes[0]), step_sizes[1])
            p[at] -= np.sign(g) * size
            before = g
    return p


def asgd(
    p: Array,
    gradients: Sequence[Array],
    mean: Statistic,
    largest: Statistic,
    *,
    lr: float,
    lambd: float = 1e-4,
    alpha: float = 0.75,
    t0: float = 1e6,
    weight_decay: float = 0,
    maximize: bool = False,
) -> Array:
    for t, gradient in enumerate(gradients):
        eta = lr / (1 + lambd * lr * t) ** alpha
        g = _signed(gradient, p, weight_decay, maximize)
        p = p - eta * (g + lambd * p)
    return p


def lion(
    p: Array,
    gradients: Sequence[Array],
    mean: Statistic,
    largest: Statistic,
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.99),
    weight_decay: float = 0,
    maximize: bool = False,
) -> Array:
    seen = [np.zeros_like(p)]
    for gradient in gradients:
        g = _signed(gradient, p, 0, maximize)
        p = p - lr * (np.sign(betas[0] * _average(seen, betas[1]) + (1 - betas[0]) * g) + weight_decay * p)
        seen.append(g)
    return p


def lamb(
    p: Array,
    gradients: Sequence[Array],
    mean: Statistic,
    largest: Statistic,
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-6,
    weight_decay: float = 0.01,
    bias_correction: bool = True,
    norm_bounds: tuple[float, float] | None = None,
    maximize: bool = False,
) -> Array:
    seen, squares = [], []
    for t, gradient in enumerate(gradients, 1):
        seen.append(_signed(gradient, p, 0, maximize))
        squares.append(mean(seen[-1] ** 2))
        m, v = _average(seen, betas[0]), _average(squares, betas[1])
        if bias_correction:
            m, v = m / (1 - betas[0] ** t), v / (1 - betas[1] ** t)
        u = m / (np.sqrt(v) + eps) + weight_decay * p
        length = np.sqrt((p**2).sum())
        p = (
            p
            - lr
            * (length if norm_bounds is None else np.clip(length, *norm_bounds))
            / np.sqrt((u**2).sum())
            * u
        )
    return p


FORMULAS: dict[str, Callable[..., Array]] = {
    "SGD": sgd, "Adagrad": adagrad, "Adam": adam, "AdamW": adamw, "RMSprop": rmsprop, "Adadelta": adadelta,
    "Adamax": adamax, "NAdam": nadam, "RAdam": radam, "Rprop": rprop, "ASGD": asgd, "Lion": lion, "LAMB": lamb,
}  # fmt: skip
