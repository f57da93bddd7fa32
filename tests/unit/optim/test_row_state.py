"""One accumulator per row: its shape, its mean over specified entries, and the states it does not mix with."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from maskgrad import attach_gradient, optim
from maskgrad.masked_tensor import MaskedTensor, masked
from tests.unit.optim.kinds import coo, every_kind, hidden
from tests.unit.optim.optimizers import NAMES, NAN, WITH_ROW_STATE, bits
from tests.unit.optim.test_all_or_nothing import assert_unchanged, snapshot

# What is kept per row, of each optimizer.
PER_ROW = {
    "Adagrad": {"sum"},
    "Adam": {"exp_avg_sq", "max_exp_avg_sq"},
    "AdamW": {"exp_avg_sq"},
    "RMSprop": {"square_avg"},
    "Adadelta": {"square_avg", "acc_delta"},
    "Adamax": {"exp_inf"},
    "NAdam": {"exp_avg_sq"},
    "RAdam": {"exp_avg_sq"},
    "LAMB": {"exp_avg_sq"},
}
OPTIONS: dict[str, dict[str, Any]] = {"Adam": {"amsgrad": True}, "RMSprop": {"momentum": 0.9}}
every_row_optimizer = pytest.mark.parametrize("name", WITH_ROW_STATE)


def build(name: str, params: Any, **options: Any) -> Any:
    return getattr(optim, name)(params, **{"lr": 0.1, "state": "row", **OPTIONS.get(name, {}), **options})


def step(optimizer: Any, p: Tensor, gradient: Any) -> None:
    attach_gradient(p, gradient)
    optimizer.step()


@every_row_optimizer
def test_second_moments_have_one_value_per_row_and_the_others_one_per_entry(name: str) -> None:
    p, bias, scalar = (nn.Parameter(torch.ones(shape)) for shape in ((4, 3, 2), (5,), ()))
    optimizer = build(name, [p, bias, scalar])
    for q in (p, bias, scalar):
        q.grad = torch.ones_like(q)
    optimizer.step()
    shapes = {key: value.shape for key, value in optimizer.state[p].items() if value.dim() > 0}
    assert {key for key, shape in shapes.items() if shape == (4, 1, 1)} == PER_ROW[name]
    assert all(shape in ((4, 1, 1), (4, 3, 2)) for shape in shapes.values())
    for q in (bias, scalar):
        assert all(value.shape in (q.shape, ()) for value in optimizer.state[q].values())


@every_kind
@every_row_optimizer
def test_the_mean_is_over_specified_entries(
    name: str, kind: Callable[[Tensor], Tensor | MaskedTensor]
) -> None:
    # Each row by itself, its specified entries alone, is what the optimizer sees of a masked gradient. Of LAMB the
    # norms too are those of the specified entries, here of all rows: one row at a time.
    gradients = torch.randn(5, 4, 6)
    specified = torch.tensor(
        [[1, 1, 0, 0, 1, 1], [0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 0, 0]]
    ).bool()
    start = torch.where(specified, torch.randn(4, 6), NAN)  # which decay would spread, were it looked at
    for row in range(4):
        p, q = nn.Parameter(start.clone()), nn.Parameter(start[row, specified[row]][None].clone())
        ours, alone = build(name, [p], weight_decay=0.1), build(name, [q], weight_decay=0.1)
        for gradient in gradients:
            only = specified & (torch.arange(4) == row)[:, None]
            step(ours, p, kind(torch.where(only, gradient, 0)))
            q.grad = gradient[row, specified[row]][None]
            if specified[row].any():
                alone.step()
        torch.testing.assert_close(p[row, specified[row]][None], q, rtol=1e-5, atol=1e-6)
        untouched = ~(specified & (torch.arange(4) == row)[:, None])
        assert torch.equal(bits(p)[untouched], bits(start)[untouched])


@every_kind
@every_row_optimizer
def test_all_layouts_agree(name: str, kind: Callable[[Tensor], Tensor | MaskedTensor]) -> None:
    start = torch.randn(4, 6)
    results = []
    for convert in (hidden, kind):
        torch.manual_seed(3)
        p = nn.Parameter(start.clone())
        optimizer = build(name, [p])
        for _ in range(4):
            pairs = (torch.rand(4, 3, 1) < 0.5).expand(4, 3, 2).reshape(4, 6)
            pairs[1] = False
            step(optimizer, p, convert(torch.where(pairs, torch.randn(4, 6), 0)))
        results.append((p.detach(), {k: v for k, v in optimizer.state[p].items() if k in PER_ROW[name]}))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)


@every_row_optimizer
def test_rows_without_a_gradient_keep_parameter_and_state_bit_for_bit(name: str) -> None:
    p = nn.Parameter(torch.tensor([[NAN, -0.0], [1.0, 2.0], [1e38, float("inf")], [3.0, 4.0]]))
    optimizer = build(name, [p])
    step(optimizer, p, torch.randn(4, 2))
    row_1 = (torch.arange(4) == 1)[:, None].expand(4, 2)
    for gradient in (
        coo([[3, 1, 3]], torch.randn(3, 2), (4, 2)),
        coo([[3, 1], [0, 1]], torch.randn(2), (4, 2)),
        masked(torch.where(row_1, 1.0, NAN), row_1),
    ):
        before = {key: value.clone() for key, value in optimizer.state[p].items() if value.dim() > 0}
        before["param"] = p.detach().clone()
        step(optimizer, p, gradient)
        for key, old in before.items():
            new = p if key == "param" else optimizer.state[p][key]
            assert torch.equal(bits(new)[[0, 2]], bits(old)[[0, 2]]), key
            if key in PER_ROW[name] - {"max_exp_avg_sq", "exp_inf"} and name != "LAMB":
                assert new[1].item() != old[1].item()


@every_row_optimizer
def test_entries_of_a_row_share_one_step_size(name: str) -> None:
    # Signs and proportions of the first step are those of the gradient.
    p = nn.Parameter(torch.zeros(2, 3))
    optimizer = build(name, [p])
    gradient = torch.tensor([[1.0, -2.0, 4.0], [3.0, 0.0, -3.0]])
    step(optimizer, p, gradient)
    for row in (0, 1):
        direction = p[row] / p[row].norm()
        torch.testing.assert_close(direction, -gradient[row] / gradient[row].norm(), rtol=1e-4, atol=1e-5)


def test_row_wise_adagrad_adds_the_mean_of_squares() -> None:
    p = nn.Parameter(torch.ones(3, 2))
    optimizer = build("Adagrad", [p], lr=1.0)
    step(optimizer, p, coo([[1, 1]], [[1.0, 3.0], [2.0, 1.0]], (3, 2)))
    assert optimizer.state[p]["sum"].tolist() == [[0.0], [12.5], [0.0]]  # (3² + 4²) / 2
    torch.testing.assert_close(p[1], 1 - torch.tensor([3.0, 4.0]) / 12.5**0.5)
    step(
        optimizer,
        p,
        masked(
            torch.tensor([[NAN, 2.0], [NAN, NAN], [1.0, 3.0]]), torch.tensor([[0, 1], [0, 0], [1, 1]]).bool()
        ),
    )
    assert optimizer.state[p]["sum"].tolist() == [[4.0], [12.5], [5.0]]


@every_row_optimizer
@pytest.mark.parametrize("sparse_dim", [1, 2])
def test_rows_of_three_dimensions_listed_in_pieces(name: str, sparse_dim: int) -> None:
    start, results = torch.randn(3, 4, 2), []
    indices = torch.tensor([[2, 0, 2, 2], [3, 1, 0, 3]])[:sparse_dim]
    size = (3, 4, 2)
    values = torch.randn(4, *size[sparse_dim:])
    listed = coo(indices, values, size)
    mask = torch.zeros(size, dtype=torch.bool)
    mask[tuple(indices)] = True
    dense = torch.zeros(size).index_put_(tuple(indices), values, accumulate=True)
    for gradient in (listed, masked(torch.where(mask, dense, NAN), mask)):
        for order in (start.clone(), start.transpose(0, 2).contiguous().transpose(0, 2)):
            p = nn.Parameter(order)
            optimizer = build(name, [p])
            for _ in range(3):
                step(optimizer, p, gradient)
            results.append(p.detach())
    for other in results[1:]:
        torch.testing.assert_close(results[0], other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@every_row_optimizer
def test_means_of_halves_are_taken_in_float32(name: str, dtype: torch.dtype) -> None:
    # The squares of 300 are beyond float16.
    p, q = nn.Parameter(torch.ones(2, 4, dtype=dtype)), nn.Parameter(torch.ones(2, 4))
    ours, wide = build(name, [p], eps=1e-3), build(name, [q], eps=1e-3)
    step(ours, p, torch.full((2, 4), 300.0))
    step(wide, q, torch.full((2, 4), 300.0))
    assert all(value.dtype == dtype for key, value in ours.state[p].items() if value.dim() > 0)
    torch.testing.assert_close(p.float(), q, rtol=1e-2, atol=1e-2)


# LAMB's norms are those of whole complex numbers.
@pytest.mark.parametrize("name", [name for name in WITH_ROW_STATE if name != "LAMB"])
@pytest.mark.parametrize("layout", ["dense", "rows", "entries", "masked"])
def test_parts_of_complex_numbers_have_their_own_means(name: str, layout: str) -> None:
    start, gradients = torch.randn(3, 4, dtype=torch.complex64), torch.randn(4, 3, 4, dtype=torch.complex64)
    kinds: dict[str, Callable[[Tensor], Any]] = {
        "dense": lambda d: d,
        "rows": lambda d: d.to_sparse(1),
        "entries": lambda d: d.to_sparse(),
        "masked": lambda d: masked(d, torch.ones(3, 4, dtype=torch.bool)),
    }
    p, real, imag = (
        nn.Parameter(start.clone()),
        nn.Parameter(start.real.clone()),
        nn.Parameter(start.imag.clone()),
    )
    ours, parts = build(name, [p]), build(name, [real, imag])
    for gradient in gradients:
        step(ours, p, kinds[layout](gradient))
        real.grad, imag.grad = gradient.real.clone(), gradient.imag.clone()
        parts.step()
    torch.testing.assert_close(p.detach(), torch.complex(real, imag).detach())


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(WITH_ROW_STATE)))
def test_rules_without_a_second_moment_say_why_not(name: str) -> None:
    with pytest.raises(
        ValueError, match=rf"state='row' is not available: {name} has no second moment.*use state='full'"
    ):
        getattr(optim, name)([nn.Parameter(torch.ones(2))], state="row")


def test_centered_rmsprop_has_no_row_state() -> None:
    with pytest.raises(
        ValueError, match="state='row' is not available with centered=True: the square of an entry's"
    ):
        build("RMSprop", [nn.Parameter(torch.ones(2))], centered=True)


@every_row_optimizer
def test_full_and_row_states_are_not_mixed(name: str) -> None:
    p, q = nn.Parameter(torch.ones(3, 2)), nn.Parameter(torch.ones(3, 2))
    row, full = build(name, [p]), build(name, [q], state="full")
    for param, optimizer in ((p, row), (q, full)):
        param.grad = torch.ones(3, 2)
        optimizer.step()
    saved, full_saved = copy.deepcopy(row.state_dict()), copy.deepcopy(full.state_dict())
    from_torch = copy.deepcopy(full_saved)
    for group in from_torch["param_groups"]:
        del group["state"], group["unspecified"]
    for optimizer, foreign, words in (
        (row, full_saved, "was made with state='full', but this optimizer has state='row'"),
        (full, saved, "was made with state='row', but this optimizer has state='full'"),
        (
            row,
            from_torch,
            r"of parameter 0 of group 0 has shape \(3, 2\).* of shape \(3, 1\) \(one value per row\)",
        ),
    ):
        before = snapshot(optimizer)
        with pytest.raises(ValueError, match=words):
            optimizer.load_state_dict(foreign)
        assert_unchanged(optimizer, before)
    row.load_state_dict(saved)
    row.step()


@every_row_optimizer
def test_row_state_is_saved_and_continued(name: str) -> None:
    start, gradients = torch.randn(3, 2), torch.randn(6, 3, 2)
    p = nn.Parameter(start.clone())
    straight = build(name, [p])
    q = nn.Parameter(start.clone())
    optimizer = build(name, [q])
    for i, gradient in enumerate(gradients):
        p.grad, q.grad = gradient.clone(), gradient.clone()
        if i == 3:
            saved = copy.deepcopy(optimizer.state_dict())
            optimizer = build(name, [q], lr=0.7)
            optimizer.load_state_dict(saved)
        straight.step()
        optimizer.step()
    assert torch.equal(bits(p), bits(q))
