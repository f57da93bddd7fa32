"""Adam and AdamW: torch's results on dense gradients, only the specified entries on all others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg

OPTIONS: list[dict[str, Any]] = [
    {},
    {"weight_decay": 0.1},
    {"amsgrad": True, "lr": 0.05},
    {"betas": (0.5, 0.9), "eps": 1e-3, "maximize": True},
]
PAIRS = [(mg.optim.Adam, torch.optim.Adam), (mg.optim.AdamW, torch.optim.AdamW)]


def run(kind: Any, start: Tensor, gradients: list[Tensor], **options: Any) -> Tensor:
    p = nn.Parameter(start.clone())
    optimizer = kind([p], **options)
    for gradient in gradients:
        p.grad = gradient.clone()
        optimizer.step()
    return p.detach()


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        (options, dtype)
        for options in OPTIONS
        for dtype in (torch.float32, torch.float64, torch.complex64)
        # torch takes the largest of complex moments apart in its own way
        if not (dtype.is_complex and options.get("amsgrad"))
    ],
)
def test_dense_steps_are_those_of_torch(
    ours: Any, theirs: Any, options: dict[str, Any], dtype: torch.dtype
) -> None:
    start, gradients = torch.randn(3, 4, dtype=dtype), [torch.randn(3, 4, dtype=dtype) for _ in range(20)]
    expected = run(theirs, start, gradients, foreach=False, **options)
    torch.testing.assert_close(run(ours, start, gradients, **options), expected)


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
@pytest.mark.parametrize("first", [0, 1])
def test_states_are_exchanged_with_torch_in_mid_run(ours: Any, theirs: Any, first: int) -> None:
    start, gradients = torch.randn(3, 4), [torch.randn(3, 4) for _ in range(10)]
    expected = run(theirs, start, gradients, foreach=False)
    kinds = (ours, theirs) if first == 0 else (theirs, ours)
    p = nn.Parameter(start.clone())
    optimizers = [kind([p]) for kind in kinds]
    for i, gradient in enumerate(gradients):
        if i == 5:
            optimizers[1].load_state_dict(optimizers[0].state_dict())
        p.grad = gradient.clone()
        optimizers[i >= 5].step()
    torch.testing.assert_close(p.detach(), expected)


def test_rows_are_those_of_sparse_adam_with_duplicates_merged() -> None:
    weight, p = torch.randn(6, 2), None
    results = []
    for kind in (mg.optim.Adam, torch.optim.SparseAdam):
        torch.manual_seed(1)
        p = nn.Parameter(weight.clone())
        optimizer = kind([p], lr=0.1)
        for _ in range(5):
            rows = torch.randint(6, (1, 4))
            p.grad = torch.sparse_coo_tensor(rows, torch.randn(4, 2), (6, 2), check_invariants=False)
            optimizer.step()
        results.append(p.detach())
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("kind", [mg.optim.Adam, mg.optim.AdamW])
def test_what_has_no_gradient_stays_bit_for_bit(kind: Any) -> None:
    p = nn.Parameter(torch.randn(4, 3))
    optimizer = kind([p], lr=0.1, weight_decay=0.3)
    p.grad = torch.randn(4, 3)
    optimizer.step()
    mask = torch.rand(4, 3) < 0.5
    before = [
        t.clone() for t in (p.detach(), optimizer.state[p]["exp_avg"], optimizer.state[p]["exp_avg_sq"])
    ]
    p.grad = None
    mg.attach_gradient(p, mg.masked(torch.randn(4, 3).masked_fill(~mask, float("nan")), mask))
    optimizer.step()
    after = (p.detach(), optimizer.state[p]["exp_avg"], optimizer.state[p]["exp_avg_sq"])
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old[~mask], new[~mask])
        assert (old[mask] != new[mask]).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lr": -1.0}, "lr must be at least 0"),
        ({"eps": float("nan")}, "eps must be finite"),
        ({"betas": (1.0, 0.9)}, "betas must be two numbers"),
        ({"betas": (0.9,)}, "betas must be two numbers"),
        ({"unspecified": "all"}, "not available"),
    ],
)
def test_bad_numbers_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        mg.optim.Adam([nn.Parameter(torch.ones(1))], **options)


def test_positional_arguments_are_those_of_torch() -> None:
    ours = mg.optim.AdamW([nn.Parameter(torch.ones(1))], 0.1, (0.8, 0.9), 1e-4, 0.2, True).param_groups[0]
    assert (ours["lr"], ours["betas"], ours["eps"], ours["weight_decay"], ours["amsgrad"]) == (
        0.1,
        (0.8, 0.9),
        1e-4,
        0.2,
        True,
    )
