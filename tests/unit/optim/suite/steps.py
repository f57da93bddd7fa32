"""Steps: PyTorch's on dense gradients; the same on every kind of gradient; nothing where nothing is specified."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from maskgrad import attach_gradient
from maskgrad.masked_tensor import masked
from maskgrad.optim import attached_gradient
from tests.unit.optim.beside import Skipped
from tests.unit.optim.kinds import BY_ROWS, FULL, KINDS, coo, dense_of, specified
from tests.unit.optim.optimizers import NAN, Case, bits, give, twins

SHAPES = [(4, 3), (5,), (), (2, 3, 2), (0, 3)]
WAYS: list[dict[str, bool]] = [{"foreach": False}, {"foreach": True}, {"fused": True}, {"fused": False}, {}]
SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "one cycle": lambda o: lr_scheduler.OneCycleLR(
        o,
        max_lr=0.2,
        total_steps=12,
        cycle_momentum="betas" in o.defaults or bool(o.defaults.get("momentum")),
    ),
    "warm restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=3),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.0 if epoch == 2 else 1 / (epoch + 1)),
}
#: Where parameters lie in memory: the fused loops of PyTorch take another order for the usual one.
ORDERS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": Tensor.clone,
    "transposed": lambda t: t.t().contiguous().t(),
    "strided": lambda t: t.repeat_interleave(2, 1)[:, ::2],
}


def fits(case: Case, way: dict[str, bool]) -> bool:
    return not way or (case.is_torchs and ("fused" not in way or bool(case.same_way)))


class Steps:
    def test_dense_steps_are_those_of_torch(self, case: Case) -> None:
        """In every way that PyTorch has, under schedules, in groups with numbers of their own."""
        for way in [way for way in WAYS if fits(case, way)]:
            asked = way or case.same_way
            if way == {"fused": False}:
                asked = {"fused": False, "foreach": True}  # some small parameters
            for schedule in [None] if way else [None, *SCHEDULES.values()]:
                params = twins(SHAPES)
                grouped = [
                    [{"params": p[:3]}, {"params": p[3:], "lr": 0.05, "maximize": True}] for p in params
                ]
                optimizers = case.mine(grouped[0], **way), case.reference(grouped[1], **asked)
                schedules = [schedule(optimizer) for optimizer in optimizers] if schedule else []
                for _ in range(9 if schedule else 4):
                    give(*params)
                    for one in (*optimizers, *schedules):
                        one.step()
                for p, q in zip(*params, strict=True):
                    case.assert_same(p, q)

    @pytest.mark.dtypes(per=lambda case: case.ours)
    @pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
    def test_a_gradient_of_everything_is_a_dense_one_whatever_its_kind(self, case: Case, dtype: Any) -> None:
        """Kinds take turns on one state. No gradient is written to."""
        ((p,), (q,)) = twins([(4, 6)], dtype)
        mine, reference = case.mine([p]), case.reference([q])
        for kind in [*FULL.values(), *reversed(FULL.values())]:
            q.grad = torch.randn(4, 6, dtype=dtype)
            mine.zero_grad()
            attach_gradient(p, kind(q.grad))
            given = dense_of(attached_gradient(p)).clone()
            mine.step()
            reference.step()
            assert torch.equal(dense_of(attached_gradient(p)), given)
        near = 1e-4 if dtype.is_complex else 1e-6 if case.keeps_singles else 1e-12
        torch.testing.assert_close(p, q, rtol=near, atol=near / 10)
        for name, value in reference.state[q].items():
            if torch.is_tensor(value) and value.dim() and not (dtype.is_complex and "max" in name):
                torch.testing.assert_close(mine.state[p][name], value, rtol=near, atol=near / 10)

    @pytest.mark.layouts(per=lambda case: case.ours)
    @pytest.mark.parametrize("kind", [*reversed(KINDS), *BY_ROWS])
    def test_what_is_unspecified_stays_bit_for_bit(self, case: Case, kind: str) -> None:
        """And the others step as PyTorch's do that have all gradients, wherever the parameter lies in memory."""
        start = torch.randn(4, 6)
        start[0] = torch.tensor([NAN, -0.0, 1e38, float("inf"), 1e-42, 1.0])  # never specified
        mine = [case.mine([nn.Parameter(order(start))]) for order in ORDERS.values()]
        q = nn.Parameter(start.clone())
        reference = Skipped(case.reference([q]), q)
        for step in range(4):
            some = (torch.rand(4, 3, 1) < 0.5).expand(4, 3, 2).reshape(4, 6) | (step == 0)
            some[1:] = some[1:, :1] if kind in BY_ROWS else some[1:]
            some[0], some[1], some[2] = False, step == 0, True
            dense = torch.where(some, torch.randn(4, 6), 0)
            gradient = FULL[kind](dense)
            assert torch.equal(specified(gradient), some)
            reference.step(dense, some)
            for optimizer in mine:
                (p,) = optimizer.param_groups[0]["params"]
                before = {"param": p.detach().clone()}
                before |= {name: value.clone() for name, value in optimizer.state[p].items() if value.dim()}
                attach_gradient(p, gradient)
                optimizer.step()
                now = {"param": p, **optimizer.state[p]}
                for name, old in before.items():
                    assert torch.equal(bits(now[name])[~some], bits(old)[~some]), name
                assert bool(p[2:].isfinite().all())
                assert step or bool((p != start)[1:].all())
                torch.testing.assert_close(p[2:], q[2:], rtol=1e-4, atol=1e-5)
                reference.assert_states_close(optimizer.state[p], slice(2, 4))

    def test_a_gradient_without_entries_changes_nothing(self, case: Case) -> None:
        p = nn.Parameter(torch.ones(3, 1))
        optimizer = case.mine([p])
        start = {
            "sum": case.options.get("initial_accumulator_value", 0),
            "step_size": case.options["lr"],
            "ax": 1.0,
        }
        empty: list[Any] = [
            coo(torch.empty(1, 0, dtype=torch.int64), torch.empty(0, 1), (3, 1)),
            coo(torch.empty(2, 0, dtype=torch.int64), torch.empty(0), (3, 1)),
            torch.zeros(3, 1).to_sparse_csr(),
            masked(torch.full((3, 1), NAN), torch.zeros(3, 1, dtype=torch.bool)),
        ]
        for gradient in empty:
            attach_gradient(p, gradient)
            optimizer.step()
            assert p.tolist() == [[1.0]] * 3
            for key, value in optimizer.state[p].items():
                assert value.shape != p.shape or torch.equal(value, torch.full((3, 1), start.get(key, 0.0)))

    def test_parameters_without_entries(self, plain: Case) -> None:
        for size in ((0,), (0, 3), (3, 0)):
            for state in plain.row_states:
                p, nothing = nn.Parameter(torch.zeros(size)), torch.zeros(size)
                optimizer = plain.mine([p], state=state)
                hidden = masked(nothing, torch.zeros(size, dtype=torch.bool))
                for gradient in (nothing, nothing.to_sparse(), nothing.to_sparse(1), hidden):
                    attach_gradient(p, gradient)
                    optimizer.step()
                assert p.shape == size
                assert all(not value.isnan().any() for value in optimizer.state.get(p, {}).values())

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    def test_dtypes_are_kept(self, case: Case, dtype: torch.dtype) -> None:
        p = nn.Parameter(torch.ones(4, 2, dtype=dtype))
        optimizer = case.mine([p])
        twice = coo([[1, 1]], torch.ones(2, 2), (4, 2))
        for gradient in (torch.ones(4, 2), torch.ones(4, 2, dtype=torch.float16), twice):
            attach_gradient(p, gradient)
            optimizer.step()
        assert p.dtype == dtype
        assert all(v.dtype in (dtype, torch.bool) for v in optimizer.state[p].values() if v.shape == p.shape)
        assert torch.equal(p[0], p[2])
        assert not torch.equal(p[0], p[1])

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_duplicates_of_halves_are_added_in_float32(self, plain: Case, dtype: torch.dtype) -> None:
        """PyTorch adds 4,096 ones to 2,048 and to 256."""
        listed = coo(torch.ones(1, 4096, dtype=torch.int64), torch.ones(4096, 2), (3, 2), dtype)
        single = coo([[1]], torch.full((1, 2), 4096.0), (3, 2))
        p, q = nn.Parameter(torch.zeros(3, 2)), nn.Parameter(torch.zeros(3, 2))
        a, b = plain.mine([p]), plain.mine([q])
        for _ in range(2):
            attach_gradient(p, listed)
            attach_gradient(q, single)
            a.step()
            b.step()
        torch.testing.assert_close(p, q)
        for key, value in b.state[q].items():
            torch.testing.assert_close(a.state[p][key], value)
        assert q[1].abs().min() > 0
