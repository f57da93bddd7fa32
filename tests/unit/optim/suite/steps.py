"""Steps: PyTorch's on dense gradients, bit for bit; parameters without entries; halves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from maskgrad import attach_gradient
from maskgrad.masked_tensor import masked
from tests.unit.optim.kinds import coo
from tests.unit.optim.optimizers import Case, give, twins


class Steps:
    def test_dense_steps_are_those_of_torch(self, case: Case) -> None:
        """In groups with numbers of their own; tests/peers has all ways of PyTorch."""
        params = twins((4, 3), (5,), (), (2, 3, 2), (0, 3))
        groups = [[{"params": p[:3]}, {"params": p[3:], "lr": 0.05, "maximize": True}] for p in params]
        optimizers = case.mine(groups[0]), case.reference(groups[1], **case.same_way)
        for _ in range(4):
            give(*params)
            for one in optimizers:
                one.step()
        for p, q in zip(*params, strict=True):
            case.assert_same(p, q)

    def test_parameters_without_entries(self, plain: Case) -> None:
        for size in ((0,), (0, 3), (3, 0)):
            nothing = torch.zeros(size)
            every = [nothing, nothing.to_sparse(), nothing.to_sparse(1), masked(nothing, nothing > 0)]
            ways: list[Any] = [({"state": state}, every) for state in plain.row_states]
            for options, gradients in (*ways, ({"unspecified": "zero"}, every[2:3])):
                p = nn.Parameter(torch.zeros(size))
                optimizer = plain.mine([p], **options)
                for gradient in gradients:
                    attach_gradient(p, gradient)
                    optimizer.step()
                optimizer.flush()
                assert all(not value.isnan().any() for value in optimizer.state.get(p, {}).values())

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_halves_stay_halves_and_their_duplicates_are_added_in_float32(
        self, plain: Case, dtype: torch.dtype
    ) -> None:
        """PyTorch adds 4,096 ones to 2,048 and to 256."""
        listed = coo(torch.ones(1, 4096, dtype=torch.int64), torch.ones(4096, 2), (3, 2), dtype)
        single = coo([[1]], torch.full((1, 2), 4096.0), (3, 2))
        for kind in (torch.float32, dtype):  # of the parameter
            p, q = nn.Parameter(torch.zeros(3, 2, dtype=kind)), nn.Parameter(torch.zeros(3, 2, dtype=kind))
            a, b = plain.mine([p]), plain.mine([q])
            for _ in range(2):
                for param, gradient, optimizer in ((p, listed, a), (q, single, b)):
                    attach_gradient(param, gradient)
                    optimizer.step()
            torch.testing.assert_close(p, q)
            for key, value in b.state[q].items():
                torch.testing.assert_close(a.state[p][key], value)
                assert value.dtype == kind or value.shape != p.shape
            assert q[1].abs().min() > 0
            assert q.dtype == kind
