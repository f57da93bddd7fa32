"""Derivatives of every output of a network by its input, for a whole batch: forward pass included."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

import maskgrad as mg
from benchmarks.agreement import agree
from benchmarks.case import OURS, Case, Comparison, Implementation
from benchmarks.plan import Family, Point
from benchmarks.samples import random_values

__all__ = ["FAMILY", "network"]

NAME = "batched"
WORK = "forward + Jacobians"
FEATURES, WIDTH = 64, 256
OUTPUTS = (16, 1)


def network(outputs: int, dtype: str) -> nn.Sequential:
    """Three layers, the same in every run."""
    sizes = (FEATURES, WIDTH, WIDTH, outputs)
    layers: list[nn.Module] = []
    for number, (inside, outside) in enumerate(itertools.pairwise(sizes)):
        layer = nn.Linear(inside, outside)
        with torch.no_grad():
            layer.weight.copy_(random_values((outside, inside), "float32", number, 0.0) / inside**0.5)
            layer.bias.copy_(random_values((outside,), "float32", 10 + number, 0.0))
        layers += [layer, nn.Tanh()]
    return nn.Sequential(*layers[:-1]).to(getattr(torch, dtype))


def _cases(point: Point) -> Iterator[Case]:
    for outputs in OUTPUTS if point.in_full else OUTPUTS[:1]:
        for coupling in ("check", "independent"):
            yield _case(point, outputs, coupling, with_loop=point.in_full and coupling == "check")


def _case(point: Point, outputs: int, coupling: str, with_loop: bool) -> Case:
    samples, dtype = point.size, point.dtype

    def prepare() -> Comparison:
        model = network(outputs, dtype)
        x = random_values((samples, FEATURES), dtype, around=0.0).requires_grad_()

        contenders: dict[str, Callable[[], Implementation]] = {
            OURS: lambda: Implementation(lambda: mg.batched_grad(model(x), x, coupling=coupling)),
            "is-grads-batched": lambda: Implementation(lambda: _at_once(model(x), x)),
            "vmap-jacrev": lambda: Implementation(_by_functions(model, x.detach())),
        }
        if with_loop:
            contenders["double-loop"] = lambda: Implementation(lambda: _double_loop(model(x), x))
        return Comparison(
            contenders,
            verify=lambda found: agree(found, _by_hand(model, x), dtype),
            agree=lambda ours, theirs: agree(theirs, ours, dtype),
        )

    note = f"{outputs} outputs, {coupling}"
    return Case(NAME, "batched_grad", WORK, (samples, FEATURES), None, dtype, prepare, note)


def _at_once(y: Tensor, x: Tensor) -> Tensor:
    samples, outputs = y.shape
    cotangents = torch.eye(outputs, dtype=y.dtype)[:, None].expand(outputs, samples, outputs)
    return torch.autograd.grad(y, x, cotangents, is_grads_batched=True)[0].movedim(0, 1)


def _by_functions(model: nn.Module, x: Tensor) -> Callable[[], Tensor]:
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def of_one_sample(sample: Tensor) -> Tensor:
        y: Tensor = torch.func.functional_call(model, parameters, (sample,))
        return y

    jacobians: Callable[[Tensor], Tensor] = torch.func.vmap(torch.func.jacrev(of_one_sample))
    return lambda: jacobians(x)


def _double_loop(y: Tensor, x: Tensor) -> Tensor:
    rows = [
        torch.stack([torch.autograd.grad(entry, x, retain_graph=True)[0][b] for entry in row])
        for b, row in enumerate(y)
    ]
    return torch.stack(rows)


def _by_hand(model: nn.Sequential, x: Tensor) -> Tensor:
    """The product of the Jacobians of the layers, in float64."""
    h = x.detach().double()
    jacobians = torch.eye(FEATURES, dtype=torch.float64).expand(len(h), -1, -1)
    for layer in model:
        if isinstance(layer, nn.Linear):
            weight = layer.weight.detach().double()
            h, jacobians = h @ weight.t() + layer.bias.detach().double(), weight @ jacobians
        else:
            h = h.tanh()
            jacobians = (1 - h**2)[:, :, None] * jacobians
    return jacobians


FAMILY = Family(
    NAME,
    f"a network of {FEATURES} features and two layers of {WIDTH} units, differentiated by its input",
    size_is="samples",
    cases=_cases,
    sizes=(256, 32),
    quick_size=32,
)
