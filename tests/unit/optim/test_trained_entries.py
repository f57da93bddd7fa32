"""Nothing outside the mask moves, bit for bit, under any optimizer; what is inside moves as if it were alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from maskgrad.optim.optimizer import MaskedOptimizer
from tests.unit.optim.optimizers import CASES, bits

inf, nan = float("inf"), float("nan")
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    **{name: case.mine for name, case in CASES.items()},
    "adagrad, row": partial(mg.optim.Adagrad, lr=0.1, state="row"),
    "sgd, zero": partial(mg.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1, unspecified="zero"),
    "adamw, zero": partial(mg.optim.AdamW, lr=0.1, weight_decay=0.5, unspecified="zero"),
    "torch's SGD": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1, foreach=True),
    "torch's Adam": partial(torch.optim.Adam, lr=0.1, amsgrad=True, weight_decay=0.1),
    "torch's AdamW": partial(torch.optim.AdamW, lr=0.1, weight_decay=0.5, fused=True),
    "torch's Rprop": partial(torch.optim.Rprop, lr=0.1),
    "torch's Adafactor": partial(torch.optim.Adafactor, lr=0.1, weight_decay=0.1),
    "torch's LBFGS": partial(torch.optim.LBFGS, lr=0.1),
}
#: They read other entries, too.
NOT_ALONE = ("adagrad, row", "torch's Adafactor", "torch's LBFGS")
MASKS = {
    "entries": torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1]]).bool(),
    "rows": torch.tensor([[1], [0], [1]]).bool(),
    "nothing": torch.tensor(False),
}


def random(step: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(step))


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_nothing_outside_the_mask_moves_and_the_rest_moves_alone(name: str, mask: Tensor) -> None:
    p, trained = nn.Parameter(random(0, 3, 4)), mask.expand(3, 4)
    alone = nn.Parameter(p.detach()[trained].clone())
    optimizer, reference = OPTIMIZERS[name]([p]), OPTIMIZERS[name]([alone])

    def step(number: int, garbage: float) -> None:
        def closure() -> float:
            p.grad = torch.where(mask, random(number, 3, 4), garbage)
            alone.grad = random(number, 3, 4)[trained]
            return 1.0

        for one in (optimizer,) if name in NOT_ALONE else (optimizer, reference):
            one.step(closure)

    for number in range(3):  # momentum and second moments build up everywhere
        step(number, 1.0)
    mg.train_only(p, mask)
    special = torch.tensor([nan, -0.0, inf, 1e-42]).expand(3, 4)  # must survive bit for bit
    p.data = torch.where(trained, p.data, special)
    before = p.detach().clone()
    for number in range(3, 6):
        step(number, nan)
    if isinstance(optimizer, MaskedOptimizer):
        optimizer.flush()
    assert torch.equal(bits(p)[~trained], bits(before)[~trained])
    if name in NOT_ALONE:
        assert bool((p.detach() != before)[trained].all())
        assert bool(p.detach()[trained].isfinite().all())
    else:
        torch.testing.assert_close(p.detach()[trained], alone.detach())


def test_the_mask_is_copied_replaced_and_removed() -> None:
    w = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([w], lr=1.0)
    mask = torch.tensor([True, False, False])
    mg.train_only(w, mask)
    mask[1] = True
    for expected, trained, after in (
        ([0.0, 1.0, 1.0], [1.0, 0.0, 0.0], torch.tensor([False, True, False])),
        ([0.0, 0.0, 1.0], [0.0, 1.0, 0.0], None),
        ([-1.0, -1.0, 0.0], [1.0, 1.0, 1.0], None),
    ):
        w.grad = torch.ones(3)
        optimizer.step()
        assert w.tolist() == expected
        assert w.grad.tolist() == trained  # the step hides frozen entries from the optimizer
        mg.train_only(w, after)


def test_invalid_masks_and_parameters_are_refused() -> None:
    p, good = nn.Parameter(torch.ones(2, 3)), torch.ones(2, 3).bool()
    for mask, error, words in (
        (good.float(), TypeError, r"mask must be a Boolean torch\.Tensor, or .* found torch\.float32"),
        (good.tolist(), TypeError, r"mask must be a Boolean torch\.Tensor, .* found list"),
        (good.to_sparse(), TypeError, "mask must be a strided tensor"),
        (good[:, 0], ValueError, r"mask of shape \(2,\) for data of shape \(2, 3\); use mask\[:, None\]"),
        (good[None], ValueError, "as many dimensions"),
        (good.to("meta"), ValueError, "device of the data, cpu, found meta"),
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
    mg.train_only(p, good)
    p.data = p.grad = torch.ones(5, 3)
    for library in (mg.optim, torch.optim):
        with pytest.raises(ValueError, match=r"its shape was changed since: call mg\.train_only"):
            library.SGD([p], lr=0.1).step()
