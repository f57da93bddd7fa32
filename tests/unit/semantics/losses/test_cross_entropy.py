"""Cross entropy: deleted classes, deleted samples, and what PyTorch knows besides."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import maskgrad as mg
from tests.poison import assert_entries, assert_nothing, gradient, inf, leaf, nan, on, poisoned

LOGITS = [[0.5, None, -1.0, 2.0], [None, 0.3, 0.7, None], [1.0, 2.0, 3.0, 4.0], [None, None, None, None]]
LABELS = torch.tensor([3, 1, 0, 2])


def deleted(row: list[float | None], label: int, **options: Any) -> torch.Tensor:
    """torch on one sample, its unspecified classes deleted."""
    kept = [c for c, logit in enumerate(row) if logit is not None]
    logits = torch.tensor([[row[c] for c in kept]], dtype=torch.float64)
    return F.cross_entropy(logits, torch.tensor([kept.index(label)]), **options)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.3])
def test_unspecified_classes_might_as_well_be_deleted(label_smoothing: float) -> None:
    x = poisoned(LOGITS, requires_grad=True)
    options = {"label_smoothing": label_smoothing}
    rows = [
        deleted(row, label, **options).item() for row, label in zip(LOGITS[:3], LABELS.tolist(), strict=False)
    ]
    loss = F.cross_entropy(x, LABELS, reduction="none", **options)
    assert_entries(loss, [*rows, None])
    assert_entries(nn.CrossEntropyLoss(**options)(x, LABELS), sum(rows) / 3)
    assert not gradient(loss, x)[~x.mask].count_nonzero()


@pytest.mark.parametrize("garbage", [nan, inf, -inf, 1e38])
def test_a_label_of_an_unspecified_class(garbage: float) -> None:
    x = leaf([garbage, 1.0, 1.0], [0.0, 1.0, 1.0])
    loss = F.cross_entropy(mg.masked(x, on([0, 1, 1], [1, 1, 1])), torch.tensor([0, 2]), reduction="none")
    assert_entries(loss, [None, math.log(2 + math.exp(-1))])
    assert gradient(loss, x)[0].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("garbage", [-1, 10**9, 7])
def test_an_unspecified_label_need_not_name_a_class(garbage: int) -> None:
    x = leaf([nan, 1.0], [1.0, 1.0])  # nor is its sample looked at
    labels = mg.masked(torch.tensor([garbage, 0]), on(0, 1))
    loss = F.cross_entropy(x, labels)
    assert_entries(loss, math.log(2))
    assert_entries(gradient(loss, x), [[0.0, 0.0], [-0.5, 0.5]])


def test_a_specified_label_must_name_a_class() -> None:
    x = mg.masked(torch.randn(2, 3), on([1, 1, 0], [1, 1, 0]))
    with pytest.raises(IndexError, match="out of bounds"):
        F.cross_entropy(x, torch.tensor([0, 3]))
    with pytest.raises(ValueError, match="batch_size"):
        F.cross_entropy(x, torch.tensor([0]))
    with pytest.raises(RuntimeError):
        F.cross_entropy(x, torch.tensor([0.0, 1.0]))


@pytest.mark.parametrize("weight", [None, [1.0, 2.0, 3.0, 4.0]])
def test_ignored_labels_and_masks(weight: Any) -> None:
    x = poisoned(LOGITS)
    w = None if weight is None else torch.tensor(weight).double()
    labels = torch.tensor([3, 1, -100, 2])
    rows = [deleted(LOGITS[0], 3).item(), deleted(LOGITS[1], 1).item()]
    shares = [1.0, 1.0] if weight is None else [4.0, 2.0]
    total = rows[0] * shares[0] + rows[1] * shares[1]
    assert_entries(F.cross_entropy(x, labels, w), total / sum(shares))
    assert_entries(F.cross_entropy(x, labels, w, reduction="sum"), total)
    each = [rows[0] * shares[0], rows[1] * shares[1], None, None]
    assert_entries(F.cross_entropy(x, labels, w, reduction="none"), each)
    scores = mg.masked(x.filled(0).log_softmax(1), x.mask)
    assert F.nll_loss(scores, labels, w, reduction="none").mask.tolist() == [True, True, False, False]


#: Labels with an ignored one, -100 or a class, as each kind of operand; and which operands are masked.
IGNORING: dict[str, Any] = {
    "masked labels": lambda x, y, known: (x, mg.masked(torch.where(known, y, 99), known)),
    "masked scores": lambda x, y, known: (
        mg.masked(torch.where(known[:, None], x, nan), known[:, None].expand(x.shape)),
        y,
    ),
    "jagged labels": lambda x, y, known: (x, mg.from_lengths(y, known.sum(1), layout=torch.jagged)),
    "jagged scores": lambda x, y, known: (
        mg.from_lengths(x.movedim(1, -1), known.sum(1), layout=torch.jagged).movedim(-1, 1),
        y,
    ),
    "both jagged": lambda x, y, known: (
        mg.from_lengths(x.movedim(1, -1), known.sum(1), layout=torch.jagged).movedim(-1, 1),
        mg.from_lengths(y, known.sum(1), layout=torch.jagged),
    ),
}


@pytest.mark.parametrize("kind", IGNORING)
@pytest.mark.parametrize(
    ("loss", "ignore_index", "weighted", "compiled"),
    [
        ("cross_entropy", -100, False, False),
        ("cross_entropy", 1, True, False),
        ("nll_loss", -100, True, False),
        ("nll_loss", 1, False, False),
        ("cross_entropy", -100, True, True),
    ],
)
def test_an_ignored_label_is_unspecified(
    kind: str, loss: str, ignore_index: int, weighted: bool, compiled: bool
) -> None:
    torch.manual_seed(1)
    x = torch.randn(3, 4, 5, dtype=torch.float64).log_softmax(1).requires_grad_()
    y = torch.tensor([[ignore_index, 2, 3, 0, 0], [0, ignore_index, 0, 0, 0], [3, 2, 2, 0, ignore_index]])
    known = torch.arange(5) < torch.tensor([3, 2, 5])[:, None]
    w = torch.tensor([1.0, 2.0, 3.0, 4.0]).double() if weighted else None
    here = known & (y != ignore_index)
    function = getattr(F, loss)

    def losses(scores: Any, labels: Any) -> Any:
        return function(scores, labels, w, ignore_index=ignore_index, reduction="none")

    call = torch.compile(losses, backend="aot_eager", fullgraph=True) if compiled else losses
    found = call(*IGNORING[kind](x.detach() if compiled else x, y, known))
    assert found.mask.tolist() == here.tolist()
    expected = function(x.movedim(1, -1)[here], y[here], w, reduction="none")  # the others deleted
    torch.testing.assert_close(found.compressed(), expected)
    torch.testing.assert_close(found.mean(), expected.mean())
    if not compiled:
        torch.testing.assert_close(gradient(found.mean(), x), gradient(expected.mean(), x))


def test_jagged_losses_of_labels_of_which_none_is_ignored_stay_jagged() -> None:
    y = mg.from_lengths(torch.tensor([[0, 2, 3], [1, -1, -1]]), torch.tensor([3, 1]), layout=torch.jagged)
    loss = F.cross_entropy(torch.randn(2, 4, 3), y, reduction="none")
    assert loss.layout is torch.jagged
    assert loss.lengths().tolist() == [3, 1]


def test_plain_losses_are_pytorchs() -> None:
    loss = F.cross_entropy(torch.zeros(2, 3), torch.tensor([0, -100]), reduction="none")
    assert type(loss) is torch.Tensor
    assert loss[1] == 0.0


def test_nothing_left_is_a_number_without_a_gradient() -> None:
    x, w = poisoned(LOGITS, requires_grad=True), torch.ones(4).double()
    none = mg.masked(LABELS, on(0, 0, 0, 1))
    assert_nothing(F.cross_entropy(x, torch.full((4,), -100)), nan, x)
    assert_nothing(F.cross_entropy(x, none), nan, x)
    assert_nothing(F.cross_entropy(x, none, w, label_smoothing=0.1), nan, x)
    assert_nothing(F.nll_loss(x, none), nan, x)
    assert_nothing(F.cross_entropy(x[3:], LABELS[3:], reduction="sum"), 0.0, x)
    empty = mg.masked(torch.zeros(0, 3).double().requires_grad_())
    assert_nothing(F.cross_entropy(empty, torch.zeros(0, dtype=torch.long)), nan, empty)


def test_weights_of_classes() -> None:
    x, w = poisoned(LOGITS), poisoned([1.0, None, 2.0, 3.0])
    rows = [deleted(LOGITS[0], 3).item(), deleted(LOGITS[2], 0).item()]
    assert_entries(F.cross_entropy(x, LABELS, w, reduction="none"), [3 * rows[0], None, rows[1], None])
    assert_entries(
        nn.CrossEntropyLoss(torch.tensor([1.0, 5.0, 2.0, 3.0]).double())(x[:1], LABELS[:1]), rows[0]
    )


def test_probabilities_for_labels() -> None:
    x = poisoned([[0.5, None, -1.0], [None, None, None], [1.0, 2.0, 3.0]], requires_grad=True)
    t = poisoned([[0.2, 0.3, 0.5], [0.1, 0.2, 0.7], [None, 0.5, 0.5]], requires_grad=True)
    first = (
        -(torch.tensor([0.5, -1.0]).double().log_softmax(0) * torch.tensor([0.2, 0.5]).double()).sum().item()
    )
    last = -(torch.tensor([1.0, 2.0, 3.0]).double().log_softmax(0)[1:] * 0.5).sum().item()
    loss = F.cross_entropy(x, t, reduction="none")
    assert_entries(loss, [first, None, last])
    assert_entries(F.cross_entropy(x, t), (first + last) / 2)
    assert not gradient(loss, t)[~(t.mask & x.mask)].count_nonzero()
    with pytest.raises(RuntimeError, match="floating point type for target"):
        F.cross_entropy(x, torch.ones(3, 3, dtype=torch.long))
    with pytest.raises(RuntimeError, match="ignore_index is not supported"):
        F.cross_entropy(x, t, ignore_index=1)
    with pytest.raises(RuntimeError, match="label_smoothing"):
        F.cross_entropy(x, t, label_smoothing=2.0)


def test_images_and_single_samples() -> None:
    x = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    mask = torch.rand(x.shape) < 0.7
    labels = torch.randint(3, (2, 4, 5))
    flat = mg.masked(x.movedim(1, -1).reshape(-1, 3), mask.movedim(1, -1).reshape(-1, 3))
    usual = F.cross_entropy(flat, labels.reshape(-1), reduction="none")
    poisoned_x = mg.masked(torch.where(mask, x, nan), mask)
    result = F.cross_entropy(poisoned_x, labels, reduction="none")
    assert result.shape == (2, 4, 5)
    assert torch.equal(result.mask.reshape(-1), usual.mask)
    torch.testing.assert_close(result.compressed(), usual.compressed())
    assert_entries(F.cross_entropy(poisoned([1.0, None, 1.0]), torch.tensor(2)), math.log(2))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_images_in_any_order_of_memory(smoothing: float) -> None:
    leaf = torch.randn(2, 4, 3, 5, requires_grad=True)
    labels = torch.randint(0, 4, (2, 5, 3))
    mask = (torch.rand(2, 3, 5) > 0.3).transpose(1, 2)
    logits = leaf.transpose(2, 3)
    clean = F.cross_entropy(logits.contiguous(), labels.where(mask, -100), label_smoothing=smoothing)
    (expected,) = torch.autograd.grad(clean, leaf, retain_graph=True)
    garbage = torch.where(mask[:, None], logits, math.nan).transpose(2, 3).contiguous().transpose(2, 3)
    for loss in (
        F.cross_entropy(mg.masked(garbage, mask[:, None]), labels, label_smoothing=smoothing),
        F.cross_entropy(logits, mg.masked(labels, mask), label_smoothing=smoothing),
        F.nll_loss(mg.masked(logits.log_softmax(1), mask[:, None]), labels) if not smoothing else clean,
    ):
        torch.testing.assert_close(loss, clean)
        (found,) = torch.autograd.grad(loss, leaf, retain_graph=True)
        torch.testing.assert_close(found, expected)


def test_log_probabilities_are_read_one_by_one() -> None:
    x = poisoned([[-1.0, None], [None, -3.0], [None, None]], requires_grad=True)
    loss = nn.NLLLoss(reduction="none")(x, torch.tensor([0, 0, 1]))
    assert_entries(loss, [1.0, None, None])
    assert_entries(gradient(loss, x), [[-1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    assert_entries(F.nll_loss(x, torch.tensor([0, 1, -100])), 2.0)
    assert_entries(F.nll_loss(x, torch.tensor([0, 1, 0], dtype=torch.uint8), reduction="sum"), 4.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves(dtype: torch.dtype) -> None:
    x, labels = poisoned(LOGITS, dtype), LABELS
    exact = F.cross_entropy(poisoned(LOGITS), labels, torch.ones(4).double()).item()
    assert_entries(F.cross_entropy(x, labels), exact, dtype=dtype, tol=2e-2)
    assert_entries(F.cross_entropy(x, labels, torch.ones(4, dtype=dtype)), exact, dtype=dtype, tol=2e-2)


def test_derivatives() -> None:
    mask, labels = poisoned(LOGITS).mask, LABELS

    def loss(x: torch.Tensor) -> torch.Tensor:
        garbage = torch.where(mask, x, nan)
        return F.cross_entropy(mg.masked(garbage, mask), labels, label_smoothing=0.2)

    x = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(loss, x)
    assert torch.autograd.gradgradcheck(loss, x)


def test_vmap_and_compile() -> None:
    x, m = torch.randn(5, 4, 3), torch.rand(5, 4, 3) < 0.7
    labels = torch.randint(3, (5, 4))

    def loss(x: torch.Tensor, m: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(mg.masked(x, m), labels, reduction="none").filled(0.0)

    expected = torch.stack([loss(*sample) for sample in zip(x, m, labels, strict=True)])
    torch.testing.assert_close(torch.vmap(loss)(x, m, labels), expected)
    torch.testing.assert_close(
        torch.compile(loss, fullgraph=True, backend="aot_eager")(x[0], m[0], labels[0]), expected[0]
    )
