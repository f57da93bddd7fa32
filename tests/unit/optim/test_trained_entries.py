"""Nothing outside the mask moves, bit for bit, under any optimizer; what is inside moves as if it were alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from tests.unit.optim.kinds import KINDS, every_kind

inf, nan = float("inf"), float("nan")


OURS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "mg SGD": lambda p: mg.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "mg SGD zero": lambda p: mg.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, unspecified="zero"),
    "mg Adagrad": lambda p: mg.optim.Adagrad(p, lr=0.1, weight_decay=0.1),
    "mg Adagrad row": lambda p: mg.optim.Adagrad(p, lr=0.1, state="row"),
    "mg Adam amsgrad": lambda p: mg.optim.Adam(p, lr=0.1, amsgrad=True, weight_decay=0.1),
    "mg Adam zero": lambda p: mg.optim.Adam(p, lr=0.1, weight_decay=0.1, unspecified="zero"),
    "mg AdamW": lambda p: mg.optim.AdamW(p, lr=0.1, weight_decay=0.5),
    "mg AdamW zero": lambda p: mg.optim.AdamW(p, lr=0.1, weight_decay=0.5, unspecified="zero"),
    "mg RMSprop": lambda p: mg.optim.RMSprop(p, lr=0.1, momentum=0.9, centered=True),
    "mg Lion": lambda p: mg.optim.Lion(p, lr=0.1, weight_decay=0.1),
    "mg Rprop": lambda p: mg.optim.Rprop(p, lr=0.1),
    "mg ASGD": lambda p: mg.optim.ASGD(p, lr=0.1, weight_decay=0.1),
}


TORCHS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "SGD foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, foreach=True),
    "Adam amsgrad": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True, weight_decay=0.1),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.5, fused=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.9, centered=True),
    "Adadelta": lambda p: torch.optim.Adadelta(p, weight_decay=0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.1, decoupled_weight_decay=True, weight_decay=0.1),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.1),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.1, weight_decay=0.1),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.1, weight_decay=0.1),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.1),
}


EVERY = OURS | TORCHS


every_optimizer = pytest.mark.parametrize("build", EVERY.values(), ids=EVERY.keys())


MASKS = {
    "entries": torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1]]).bool(),
    "rows": torch.tensor([[1], [0], [1]]).bool(),
    "columns": torch.tensor([[1, 0, 1, 0]]).bool(),
    "nothing": torch.tensor(False),
    "everything": torch.tensor(True),
}


every_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())


def bits(t: Tensor) -> Tensor:
    return t.detach().contiguous().view(torch.int32)


def random(step: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(step))


def special(param: Tensor, mask: Tensor) -> None:
    """Frozen entries hold what must survive bit for bit."""
    frozen = ~mask.expand(param.shape)
    values = torch.tensor([nan, -0.0, inf, 1e-42])[torch.arange(param.numel()) % 4].view(param.shape)
    param.data = torch.where(frozen, values, param.data)


@every_optimizer
@every_mask
def test_nothing_outside_the_mask_moves_and_the_rest_does(build: Any, mask: Tensor) -> None:
    p = nn.Parameter(random(0, 3, 4))
    optimizer = build([p])

    def step(number: int, garbage: float) -> None:
        def closure() -> float:
            p.grad = torch.where(mask, random(number, 3, 4), garbage)
            return 1.0

        optimizer.step(closure)

    for number in range(3):  # momentum and second moments build up everywhere
        step(number, 1.0)
    mg.train_only(p, mask)
    special(p, mask)
    before = p.detach().clone()
    for number in range(3, 6):
        step(number, nan)
    if hasattr(optimizer, "flush"):
        optimizer.flush()
    trained = mask.expand(3, 4)
    assert torch.equal(bits(p)[~trained], bits(before)[~trained])
    assert bool((p.detach() != before)[trained].all())
    assert bool(p.detach()[trained].isfinite().all())


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Rprop"])
@pytest.mark.parametrize("library", [mg.optim, torch.optim], ids=["mg", "torch"])
def test_trained_entries_move_as_a_parameter_of_their_own(name: str, library: Any) -> None:
    mask = MASKS["entries"]
    p = nn.Parameter(random(0, 3, 4))
    alone = nn.Parameter(p.detach()[mask].clone())
    optimizer, reference = getattr(library, name)([p], lr=0.1), getattr(torch.optim, name)([alone], lr=0.1)
    mg.train_only(p, mask)
    for number in range(1, 6):
        grad = random(number, 3, 4)
        p.grad, alone.grad = torch.where(mask, grad, nan), grad[mask]
        optimizer.step()
        reference.step()
    torch.testing.assert_close(p.detach()[mask], alone.detach())


@every_kind
@pytest.mark.parametrize("name", ["mg SGD", "mg SGD zero", "mg Adagrad", "mg Adagrad row", "mg AdamW zero"])
@pytest.mark.parametrize("mask", [MASKS["entries"], MASKS["rows"]], ids=["entries", "rows"])
def test_gradients_of_every_layout(kind: Any, name: str, mask: Tensor) -> None:
    p, q = (nn.Parameter(random(0, 4, 4)) for _ in range(2))
    mask = torch.cat([mask.expand(3, 4), mask.expand(3, 4)[:1]])
    mine, theirs = OURS[name]([p]), OURS[name]([q])
    mg.train_only(p, mask)
    special(p, mask)
    q.data = p.data.clone()
    before = p.detach().clone()
    for number in range(1, 4):
        grad = random(number, 4, 4) * (random(number + 50, 4, 4) > 0)
        spoiled = torch.where(mask | (grad == 0), grad, nan)
        mg.attach_gradient(p, kind(spoiled) if kind is not KINDS["masked"] else mg.masked(spoiled, grad != 0))
        mine.step()
        # The same through a mask on the gradient, layout by layout agnostic: stored zeros are entries.
        specified = mg.optim.attached_gradient(p)
        stored = specified.mask if isinstance(specified, mg.MaskedTensor) else _stored(specified)
        mg.attach_gradient(q, mg.masked(grad, stored & mask))
        mg.train_only(q, mask)
        theirs.step()
    for optimizer in (mine, theirs):
        if hasattr(optimizer, "flush"):
            optimizer.flush()
    assert torch.equal(bits(p)[~mask], bits(before)[~mask])
    torch.testing.assert_close(p.detach()[mask], q.detach()[mask])


def _stored(t: Any) -> Tensor:
    return mg.from_sparse(t.detach()).mask


def test_the_mask_is_copied_replaced_and_removed() -> None:
    w = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([w], lr=1.0)
    mask = torch.tensor([True, False, False])
    assert mg.optim.trained_entries(w) is None
    mg.train_only(w, mask)
    mask[1] = True
    assert mg.optim.trained_entries(w).tolist() == [True, False, False]  # type: ignore[union-attr]
    w.grad = torch.ones(3)
    optimizer.step()
    assert w.tolist() == [0.0, 1.0, 1.0]
    assert w.grad.tolist() == [1.0, 0.0, 0.0]  # the step hides frozen entries from the optimizer
    mg.train_only(w, torch.tensor([False, True, False]))
    w.grad = torch.ones(3)
    optimizer.step()
    assert w.tolist() == [0.0, 0.0, 1.0]
    mg.train_only(w, None)
    mg.train_only(w, None)
    w.grad = torch.ones(3)
    optimizer.step()
    assert w.tolist() == [-1.0, -1.0, 0.0]


def test_invalid_masks_and_parameters_are_refused() -> None:
    p = nn.Parameter(torch.ones(2, 3))
    for mask, error, words in (
        (torch.ones(2, 3), TypeError, r"mask must be a Boolean torch\.Tensor, or .* found torch\.float32"),
        ([[True] * 3] * 2, TypeError, r"mask must be a Boolean torch\.Tensor, .* found list"),
        (torch.ones(2, 3).bool().to_sparse(), TypeError, "mask must be a strided tensor"),
        (
            torch.ones(2).bool(),
            ValueError,
            r"mask of shape \(2,\) for data of shape \(2, 3\); use mask\[:, None\]",
        ),
        (torch.ones(4, 2, 3).bool(), ValueError, "as many dimensions"),
        (torch.ones(1, 2, 3).bool(), ValueError, "as many dimensions"),
        (torch.ones(2, 3, device="meta").bool(), ValueError, "device of the data, cpu, found meta"),
    ):
        with pytest.raises(error, match=words):
            mg.train_only(p, mask)  # type: ignore[arg-type]
        assert mg.optim.trained_entries(p) is None
    for param, words in (
        (torch.eye(2).to_sparse(), "layout torch.sparse_coo"),
        (mg.masked(torch.ones(2), torch.ones(2).bool()), "MaskedTensor"),
        (nn.Linear(1, 1), "Linear"),
    ):
        with pytest.raises(TypeError, match=f"param must be a strided tensor, got {words}"):
            mg.train_only(param, None)  # type: ignore[arg-type]
    mg.train_only(p, torch.ones(2, 3).bool())
    p.data = torch.ones(5, 3)
    p.grad = torch.ones(5, 3)
    for library in (mg.optim, torch.optim):
        with pytest.raises(ValueError, match=r"its shape was changed since: call mg\.train_only"):
            library.SGD([p], lr=0.1).step()
