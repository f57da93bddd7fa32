"""Losses of all samples together, part by part, against one pass over the whole batch."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import maskgrad as mg

NAN = float("nan")
GARBAGE = (NAN, float("inf"), float("-inf"), 1e38)
EXACT = {"rtol": 1e-5, "atol": 1e-6}
SAMPLES = 9
SPLITS = ([9], [1] * 9, [4, 1, 4])


class Towers(nn.Module):
    """Two embeddings of each sample, and a risk; a temperature that only the loss uses."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table = nn.Embedding(11, 6, sparse=True)
        self.left = nn.Sequential(nn.Linear(6, 8), nn.Dropout(dropout), nn.Tanh(), nn.Linear(8, 4))
        self.right = nn.Sequential(nn.Linear(6, 8), nn.Dropout(dropout), nn.Tanh(), nn.Linear(8, 4))
        self.temperature = nn.Parameter(torch.tensor(0.3))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, words: Tensor) -> dict[str, Tensor]:
        self.calls += 1
        x = self.table(words)
        return {"left": self.left(x).mean(1), "right": self.right(x).mean(1)}


WORDS = torch.arange(SAMPLES * 3).view(SAMPLES, 3) * 7 % 11
TIMES = torch.tensor([3.0, 1.0, 4.0, 1.5, 9.0, 2.0, 6.0, 5.0, 3.5])
EVENTS = torch.tensor([True, True, False, True, True, False, True, True, True])
CLASSES = torch.tensor([0, 1, 2, 0, 1, 2, 0, 0, 1])


def contrastive(net: Towers, y: dict[str, Tensor], at: dict[str, Tensor]) -> Tensor:
    scores = F.normalize(y["left"], dim=1) @ F.normalize(y["right"], dim=1).T / net.temperature
    target = torch.arange(len(scores))
    return (F.cross_entropy(scores, target) + F.cross_entropy(scores.T, target)) / 2


def cox(net: Towers, y: dict[str, Tensor], at: dict[str, Tensor]) -> Tensor:
    order = at["times"].argsort(descending=True)
    risk, events = y["left"][:, 0][order], at["events"][order]
    return (risk.logcumsumexp(0) - risk)[events].mean()


def triplets(net: Towers, y: dict[str, Tensor], at: dict[str, Tensor]) -> Tensor:
    """Of the farthest sample of the same class and the nearest of another."""
    distance = torch.cdist(y["left"], y["left"] + 1e-3)
    same = at["classes"][:, None] == at["classes"]
    farthest = distance.masked_fill(~same, -1).amax(1)
    nearest = distance.masked_fill(same, 1e9).amin(1)
    return F.relu(farthest - nearest + 1).mean()


LOSSES: dict[str, Callable[[Towers, dict[str, Tensor], dict[str, Tensor]], Tensor]] = {
    f.__name__: f for f in (contrastive, cox, triplets)
}


def targets() -> dict[str, Tensor]:
    return {"times": TIMES, "events": EVENTS, "classes": CLASSES}


def cut(sizes: list[int], at: int = 0) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """Parts of these sizes, and their targets."""
    parts, known = [], []
    for size in sizes:
        rows = slice(at, at + size)
        parts.append(WORDS[rows])
        known.append({name: value[rows] for name, value in targets().items()})
        at += size
    return parts, known


def dense(net: nn.Module) -> dict[str, Tensor | None]:
    return {n: None if p.grad is None else p.grad.to_dense().clone() for n, p in net.named_parameters()}


def whole(name: str) -> tuple[Tensor, dict[str, Tensor | None]]:
    net = Towers()
    loss = LOSSES[name](net, net(WORDS), targets())
    loss.backward()
    return loss.detach(), dense(net)


def check(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    for name, gradient in wanted.items():
        if gradient is None:
            assert found[name] is None or not found[name].any(), name
        else:
            torch.testing.assert_close(found[name], gradient, msg=lambda m, n=name: f"{n}: {m}", **EXACT)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("sizes", SPLITS, ids=str)
def test_any_split_is_the_whole_batch(name: str, sizes: list[int]) -> None:
    expected, wanted = whole(name)
    net = Towers()
    parts, known = cut(sizes)
    loss = mg.coupled_backward(net, parts, lambda y, at: LOSSES[name](net, y, at), targets=known)
    assert not loss.requires_grad
    torch.testing.assert_close(loss, expected, **EXACT)
    check(dense(net), wanted)
    assert net.table.weight.grad.is_sparse
    assert net.calls == len(sizes)  # buffers as after one pass


def test_the_mean_over_parts_would_be_seen() -> None:
    _, wanted = whole("cox")
    net = Towers()
    for part, at in zip(*cut([4, 1, 4]), strict=True):
        (cox(net, net(part), at) / 3).backward()
    with pytest.raises(AssertionError):
        check(dense(net), wanted)


@pytest.mark.parametrize("name", LOSSES)
def test_dropout_has_the_same_random_numbers(name: str) -> None:
    sizes = [4, 1, 4]
    parts, known = cut(sizes)
    oracle, net = Towers(0.5), Towers(0.5)
    torch.manual_seed(1)
    outputs = [oracle(part) for part in parts]
    loss = LOSSES[name](oracle, {k: torch.cat([y[k] for y in outputs]) for k in outputs[0]}, targets())
    loss.backward()
    drawn = torch.rand(3)
    torch.manual_seed(1)
    found = mg.coupled_backward(net, parts, lambda y, at: LOSSES[name](net, y, at), targets=known)
    assert torch.equal(torch.rand(3), drawn)  # what follows draws what would follow one pass
    torch.testing.assert_close(found, loss.detach(), **EXACT)
    check(dense(net), dense(oracle))


@pytest.mark.parametrize("inside", [False, True])
def test_autocast(inside: bool) -> None:
    oracle, net = Towers(), Towers()
    parts, known = cut([4, 1, 4])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = contrastive(oracle, oracle(WORDS), targets())
    loss.backward()
    if inside:
        plain = net.forward

        def forward(words: Tensor) -> dict[str, Tensor]:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return plain(words)

        net.forward = forward  # type: ignore[method-assign]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        seen: list[torch.dtype] = []

        def loss_of(y: dict[str, Tensor], at: dict[str, Tensor]) -> Tensor:
            seen.append(y["left"].dtype)
            return contrastive(net, y, at)

        with torch.autocast("cpu", enabled=False) if inside else contextlib.nullcontext():
            found = mg.coupled_backward(
                net, parts, loss_of if not inside else _under_autocast(loss_of), targets=known
            )
    assert seen == [torch.bfloat16]
    torch.testing.assert_close(found.float(), loss.detach().float(), rtol=1e-2, atol=1e-2)
    for name, gradient in dense(oracle).items():
        assert gradient is not None
        assert dense(net)[name].dtype is torch.float32  # type: ignore[union-attr]
        torch.testing.assert_close(dense(net)[name], gradient, rtol=3e-2, atol=3e-3)


def _under_autocast(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def called(*args: Any) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return function(*args)

    return called


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_masked_outputs(layout: torch.layout) -> None:
    """A product of two means, over what is specified; garbage lies under the mask."""
    lengths = torch.tensor([3, 1, 2, 3, 1])
    known = torch.arange(3) < lengths[:, None]
    x = torch.where(known, torch.arange(15.0).view(5, 3) / 7, torch.tensor(GARBAGE * 4)[:15].view(5, 3))
    w = torch.nn.Parameter(torch.tensor(0.7))
    kept = (torch.nan_to_num(x, 0, 0, 0) * known) * w
    counts = known.sum(1)
    oracle = (kept.sum() / counts.sum()) * (torch.tanh(kept) * known).sum() / counts.sum()
    (wanted,) = torch.autograd.grad(oracle, w)

    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.tensor(0.7))

        def forward(self, x: Any) -> Any:
            return x * self.w

    net = Scale()
    parts = []
    for rows in ([0, 1], [2], [3, 4]):
        if layout is torch.jagged:
            parts.append(mg.from_lengths(x[rows], lengths[rows], layout=layout))
        else:
            parts.append(mg.masked(x[rows], known[rows]))
    loss = mg.coupled_backward(net, parts, lambda y: y.mean() * torch.tanh(y).mean())
    torch.testing.assert_close(loss, oracle.detach())
    torch.testing.assert_close(net.w.grad, wanted)


def test_half_parameters_gather_in_float32() -> None:
    net = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    x = torch.ones(300, 1, dtype=torch.bfloat16)
    mg.coupled_backward(net, x.split(1), lambda y: y.float().sum())  # added up in bfloat16 it stops at 256
    assert net.weight.grad.dtype is torch.bfloat16
    assert net.weight.grad.item() == 300


def test_arguments_of_calls() -> None:
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.tensor(2.0))

        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, str]:
            return x * y * self.w, "a note"

    net = Product()
    parts: list[Any] = [(torch.ones(1), torch.ones(1)), {"x": torch.ones(1), "y": 3 * torch.ones(1)}]
    loss = mg.coupled_backward(net, iter(parts), lambda y: y[0].prod())
    assert (loss.item(), net.w.grad.item()) == (12.0, 12.0)


def test_with_a_scaler() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    net = nn.Linear(1, 1, bias=False)
    mg.coupled_backward(net, [torch.ones(1, 1)] * 2, lambda y: scaler.scale(y.sum()))
    assert net.weight.grad.item() == 16.0


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.w * random.random()


def refusals() -> list[tuple[str, Callable[[nn.Module], Any], type[Exception], str]]:
    x = torch.randn(4, 2)
    normed = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    halves = x.split(2)
    return [
        (
            "a function",
            lambda m: mg.coupled_backward(len, halves, torch.sum),
            TypeError,
            "must be a torch.nn.Module",
        ),  # type: ignore[arg-type]
        ("no parts", lambda m: mg.coupled_backward(m, [], torch.sum), ValueError, "at least one"),
        (
            "targets",
            lambda m: mg.coupled_backward(m, halves, torch.sum, targets=[x]),
            ValueError,
            "2, found 1",
        ),
        (
            "not reduced",
            lambda m: mg.coupled_backward(m, halves, lambda y: y),
            TypeError,
            r"found a Tensor of shape \(4, 1\)",
        ),
        ("a number", lambda m: mg.coupled_backward(m, halves, lambda y: 1.0), TypeError, "found a float"),  # type: ignore[arg-type, return-value]
        (
            "detached",
            lambda m: mg.coupled_backward(m, halves, lambda y: y.sum().detach()),
            ValueError,
            "requires no gradient",
        ),
        (
            "normed",
            lambda m: mg.coupled_backward(normed, halves, torch.sum),
            ValueError,
            "1 is a BatchNorm1d in training",
        ),
        (
            "random",
            lambda m: mg.coupled_backward(Noisy(), halves, torch.sum),
            RuntimeError,
            "different outputs in the second",
        ),
    ]


@pytest.mark.parametrize("number", range(8))
def test_what_is_refused_leaves_no_gradient(number: int) -> None:
    _, call, kind, words = refusals()[number]
    net = nn.Linear(2, 1)
    with pytest.raises(kind, match=words):
        call(net)
    assert net.weight.grad is None
    net.weight.grad = torch.ones(1, 2)
    with pytest.raises((TypeError, ValueError, RuntimeError)):
        call(net)
    assert net.weight.grad.tolist() == [[1.0, 1.0]]


def test_gradients_from_before_and_no_grad() -> None:
    net = nn.Linear(2, 1)
    net.weight.grad = torch.ones(1, 2)
    with pytest.raises(RuntimeError, match=r"\.grad from before"):
        mg.coupled_backward(net, [torch.ones(1, 2)], torch.sum)
    net.weight.grad = None
    with torch.no_grad(), pytest.raises(RuntimeError, match="no_grad"):
        mg.coupled_backward(net, [torch.ones(1, 2)], torch.sum)


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Any:
        return [x * self.w] * len(x) if len(x) > 1 else x.sum() * self.w[0]


def test_outputs_without_samples() -> None:
    with pytest.raises(ValueError, match=r"shape \(\), without a dimension of samples"):
        mg.coupled_backward(Both(), [torch.ones(1)], torch.sum)
    with pytest.raises(ValueError, match="part 1 has the structure"):
        mg.coupled_backward(Both(), [torch.ones(2), torch.ones(3)], torch.sum)
