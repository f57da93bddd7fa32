"""Gradients of every sample's loss by all parameters, and their clipped sum: forward pass included."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import maskgrad as mg
from benchmarks.agreement import agree
from benchmarks.case import OURS, Case, Comparison, Implementation, LeftOutError
from benchmarks.peers import why_absent
from benchmarks.plan import Family, Point

__all__ = ["FAMILY", "MODELS"]

NAME = "per_sample"
CLASSES, WORDS, WIDTH = 10, 20, 16
#: rows of the tables whose gradient is dense, and sparse
ROWS, SPARSE_ROWS = 2_000, 100_000

Gradients = dict[str, Tensor]


class _Bag(nn.Module):
    def __init__(self, rows: int, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, WIDTH, sparse=sparse)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        """Scores of the mean of the words' vectors."""
        scores: Tensor = self.head(self.table(words).mean(1))
        return scores


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, CLASSES)
    )


def _cnn() -> nn.Module:
    """The network of Opacus' example on MNIST."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, CLASSES),
    )  # fmt: skip


def _words(samples: int, rows: int) -> Tensor:
    return torch.randint(rows, (samples, WORDS))


#: name -> the model, and its input for a number of samples
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "MLP": (_mlp, lambda samples: torch.randn(samples, 784)),
    "CNN": (_cnn, lambda samples: torch.randn(samples, 1, 28, 28)),
    "embedding bag": (lambda: _Bag(ROWS, False), lambda samples: _words(samples, ROWS)),
    "sparse embedding bag": (lambda: _Bag(SPARSE_ROWS, True), lambda samples: _words(samples, SPARSE_ROWS)),
}


def _cases(point: Point) -> Iterator[Case]:
    for name in MODELS if point.in_full else ("MLP",):
        yield _gradients(point, name)
        yield _clipped(point, name)


def _prepared(name: str, samples: int) -> tuple[nn.Module, Tensor, Tensor]:
    build, inputs = MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return build(), inputs(samples), torch.randint(CLASSES, (samples,))


def _gradients(point: Point, name: str) -> Case:
    def prepare() -> Comparison:
        model, x, t = _prepared(name, point.size)
        weights = torch.linspace(-1, 1, point.size)

        def read(found: Gradients) -> tuple[Tensor, ...]:
            # A sum in which every sample has its own weight: right only if no two are mistaken for each other.
            return tuple(_weighted(gradient, weights) for gradient in found.values())

        contenders: dict[str, Callable[[], Implementation]] = {
            OURS: lambda: Implementation(lambda: mg.per_sample_grad(model, F.cross_entropy, x, t), read),
            "vmap-grad": lambda: Implementation(_by_functions(model, x, t), read),
            "opacus": lambda: Implementation(_opacus(model, x, t), read),
            "sample-loop": lambda: Implementation(lambda: _loop(model, x, t), read),
        }
        if name.startswith("sparse"):
            del (
                contenders["vmap-grad"],
                contenders["opacus"],
            )  # one knows no sparse tables, one makes them dense
        return Comparison(
            contenders,
            verify=lambda found: agree(found, _reference(model, x, t, weights)),
            agree=lambda ours, theirs: agree(theirs, ours),
        )

    return Case(
        NAME, "per_sample_grad", "forward + gradients", (point.size,), None, point.dtype, prepare, name
    )


def _clipped(point: Point, name: str) -> Case:
    def prepare() -> Comparison:
        model, x, t = _prepared(name, point.size)

        def ours() -> tuple[Tensor, ...]:
            model.zero_grad()
            mg.clipped_backward(model, F.cross_entropy, x, t, max_norm=1.0, reduction="sum")
            return tuple(p.grad for p in model.parameters() if p.grad is not None)

        def by_gradients(gradients: Callable[[], Gradients]) -> Callable[[], tuple[Tensor, ...]]:
            def clipped() -> tuple[Tensor, ...]:
                found = gradients()
                return tuple(_weighted(gradient, _factors(found)) for gradient in found.values())

            return clipped

        def read(found: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return tuple(gradient.to_dense() for gradient in found)

        contenders: dict[str, Callable[[], Implementation]] = {
            OURS: lambda: Implementation(ours, read),
            "vmap-grad": lambda: Implementation(by_gradients(_by_functions(model, x, t)), read),
            "opacus": lambda: Implementation(by_gradients(_opacus(model, x, t)), read),
            "sample-loop": lambda: Implementation(by_gradients(lambda: _loop(model, x, t)), read),
        }
        if name.startswith("sparse"):
            del contenders["vmap-grad"], contenders["opacus"]
        return Comparison(
            contenders,
            verify=lambda found: agree(found, _reference(model, x, t, None)),
            agree=lambda ours, theirs: agree(theirs, ours),
        )

    work = "forward + clipped backward"
    return Case(NAME, "clipped_backward", work, (point.size,), None, point.dtype, prepare, name)


def _weighted(gradient: Tensor, weights: Tensor) -> Tensor:
    """The sum over samples with ``weights``, dense."""
    if gradient.layout is torch.strided:
        return torch.einsum("b,b...->...", weights.to(gradient.dtype), gradient)
    samples, rows = gradient._indices()
    values = gradient._values() * weights.to(gradient.dtype)[samples, None]
    return values.new_zeros(gradient.shape[1:]).index_add_(0, rows, values)


def _factors(found: Gradients) -> Tensor:
    squares = []
    for gradient in found.values():
        if gradient.layout is torch.strided:
            squares.append(gradient.flatten(1).square().sum(1))
        else:
            merged = gradient.coalesce()
            per_row = merged.values().square().sum(1)
            squares.append(per_row.new_zeros(len(gradient)).index_add_(0, merged.indices()[0], per_row))
    return (1.0 / (torch.stack(squares).sum(0).sqrt() + 1e-6)).clamp(max=1.0)


def _by_functions(model: nn.Module, x: Tensor, t: Tensor) -> Callable[[], Gradients]:
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(values: Gradients, sample: Tensor, target: Tensor) -> Tensor:
        output = torch.func.functional_call(model, values, (sample[None],))
        return F.cross_entropy(output, target[None])

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
    return lambda: gradients(parameters, x, t)


def _opacus(model: nn.Module, x: Tensor, t: Tensor) -> Callable[[], Gradients]:
    if why_absent("opacus"):
        raise LeftOutError(why_absent("opacus"))
    from opacus import GradSampleModule

    hooked: Any = GradSampleModule(copy.deepcopy(model), loss_reduction="sum")

    def gradients() -> Gradients:
        for p in hooked.parameters():
            p.grad, p.grad_sample = None, None
        F.cross_entropy(hooked(x), t, reduction="sum").backward()
        return {name: p.grad_sample for name, p in hooked.named_parameters()}

    return gradients


def _loop(model: nn.Module, x: Tensor, t: Tensor) -> Gradients:
    parameters = list(model.parameters())
    rows = [
        torch.autograd.grad(F.cross_entropy(model(x[i : i + 1]), t[i : i + 1]), parameters)
        for i in range(len(x))
    ]
    names = (name for name, _ in model.named_parameters())
    return dict(zip(names, map(torch.stack, zip(*rows, strict=True)), strict=True))


def _reference(model: nn.Module, x: Tensor, t: Tensor, weights: Tensor | None) -> tuple[Tensor, ...]:
    """The weighted sum, or that of clipped gradients, from one sample after the other in float64."""
    wide = copy.deepcopy(model).double()
    found = _loop(wide, x.double() if x.is_floating_point() else x, t)
    by = _factors(found) if weights is None else weights
    return tuple(_weighted(gradient, by) for gradient in found.values())


FAMILY = Family(
    NAME,
    f"an MLP, a CNN and bags of {WORDS} words, differentiated by their parameters for each sample",
    size_is="samples",
    cases=_cases,
    sizes=(128, 32),
    quick_size=32,
)
