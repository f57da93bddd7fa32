"""``state="row"``: one value for each row, of its specified entries, and no mixing with full states."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from maskgrad import attach_gradient
from maskgrad.masked_tensor import masked
from tests.unit.optim.kinds import KINDS, coo, hidden
from tests.unit.optim.optimizers import NAN, Case, bits
from tests.unit.optim.suite.behind import assert_as_near_as_rounding
from tests.unit.optim.suite.refusals import refuses


class PerRow:
    def test_each_row_has_one_value_of_a_second_moment(self, row_case: Case) -> None:
        p, bias, scalar = (nn.Parameter(torch.ones(shape)) for shape in ((4, 3, 2), (5,), ()))
        optimizer = row_case.mine([p, bias, scalar], state="row")
        for q in (p, bias, scalar):
            q.grad = torch.ones_like(q)
        optimizer.step()
        shapes = {key: value.shape for key, value in optimizer.state[p].items() if value.dim() > 0}
        expected = {name for name in row_case.declared.per_row if name in optimizer.state[p]}
        assert expected == {key for key, shape in shapes.items() if shape == (4, 1, 1)} != set()
        assert all(shape in ((4, 1, 1), (4, 3, 2)) for shape in shapes.values())
        for q in (bias, scalar):
            assert all(value.shape in (q.shape, ()) for value in optimizer.state[q].values())

    @pytest.mark.parametrize("scale", [1.0, 1e-8])
    def test_entries_of_equal_size_have_the_state_that_each_would_have(
        self, row_case: Case, scale: float
    ) -> None:
        """PyTorch's is the oracle where the squares in a row are equal, for all kinds, and where epsilon counts."""
        size, signs = (
            scale * torch.randn(12, 3, 1, 1, dtype=torch.float64),
            torch.randn(3, 4, 2).sign().double(),
        )
        q = nn.Parameter(torch.zeros(3, 4, 2, dtype=torch.float64))
        kinds: list[Any] = [
            lambda d: d,
            lambda d: d.to_sparse(1),
            lambda d: d.to_sparse(2),
            Tensor.to_sparse,
            hidden,
        ]
        params = [nn.Parameter(q.detach().clone()) for _ in kinds]
        mine, reference = row_case.mine(params, state="row"), row_case.reference([q])
        for gradient in size * signs:
            for p, kind in zip(params, kinds, strict=True):
                attach_gradient(p, kind(gradient))
            q.grad = gradient
            mine.step()
            reference.step()
        for p in params:
            assert_as_near_as_rounding(p.detach(), q.detach())

    @pytest.mark.parametrize("kind", KINDS)
    def test_the_mean_is_over_specified_entries(self, row_case: Case, kind: str) -> None:
        """Each row by itself, its specified entries alone, is what the optimizer sees; the others stay bit for bit."""
        gradients = torch.randn(5, 4, 6)
        specified = torch.tensor(
            [[1, 1, 0, 0, 1, 1], [0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 0, 0]]
        ).bool()
        start = torch.where(specified, torch.randn(4, 6), NAN)  # which decay would spread, were it looked at
        for row in (0, 2, 3):
            p, q = nn.Parameter(start.clone()), nn.Parameter(start[row, specified[row]][None].clone())
            ours, alone = (row_case.mine([param], state="row", weight_decay=0.1) for param in (p, q))
            only = specified & (torch.arange(4) == row)[:, None]
            for gradient in gradients:
                attach_gradient(p, KINDS[kind](torch.where(only, gradient, 0)))
                q.grad = gradient[row, specified[row]][None]
                ours.step()
                alone.step()
            torch.testing.assert_close(p[row, specified[row]][None], q, rtol=1e-5, atol=1e-6)
            assert torch.equal(bits(p)[~only], bits(start)[~only])
            for name, value in ours.state[p].items():
                if value.dim():
                    others = value[[i for i in range(4) if i != row]]
                    assert len(others.unique()) == 1, name  # as it was made
                    part = value[row] if value.shape[1] == 1 else value[row, specified[row]]
                    torch.testing.assert_close(part, alone.state[q][name][0], rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("sparse_dim", [1, 2])
    def test_rows_of_three_dimensions_listed_in_pieces(self, row_case: Case, sparse_dim: int) -> None:
        size, results = (3, 4, 2), []
        start = torch.randn(size)
        indices = torch.tensor([[2, 0, 2, 2], [3, 1, 0, 3]])[:sparse_dim]
        values = torch.randn(4, *size[sparse_dim:])
        mask = torch.zeros(size, dtype=torch.bool)
        mask[tuple(indices)] = True
        dense = torch.zeros(size).index_put_(tuple(indices), values, accumulate=True)
        for gradient in (coo(indices, values, size), masked(torch.where(mask, dense, NAN), mask)):
            for order in (start.clone(), start.transpose(0, 2).contiguous().transpose(0, 2)):
                p = nn.Parameter(order)
                optimizer = row_case.mine([p], state="row")
                for _ in range(3):
                    attach_gradient(p, gradient)
                    optimizer.step()
                results.append(p.detach())
        for other in results[1:]:
            torch.testing.assert_close(results[0], other, rtol=1e-5, atol=1e-6)

    def test_parts_of_complex_numbers_have_their_own_means(self, row_case: Case) -> None:
        start, gradients = (
            torch.randn(3, 4, dtype=torch.complex64),
            torch.randn(4, 3, 4, dtype=torch.complex64),
        )
        real, imag = nn.Parameter(start.real.clone()), nn.Parameter(start.imag.clone())
        kinds: list[Any] = [
            lambda d: d, lambda d: d.to_sparse(1), lambda d: d.to_sparse(),
            lambda d: masked(d, torch.ones(3, 4, dtype=torch.bool)),
        ]  # fmt: skip
        params = [nn.Parameter(start.clone()) for _ in kinds]
        ours, parts = row_case.mine(params, state="row"), row_case.mine([real, imag], state="row")
        for gradient in gradients:
            for p, kind in zip(params, kinds, strict=True):
                attach_gradient(p, kind(gradient))
            ours.step()
            real.grad, imag.grad = gradient.real.clone(), gradient.imag.clone()
            parts.step()
        for p in params:
            torch.testing.assert_close(p.detach(), torch.complex(real, imag).detach())

    def test_full_and_row_states_are_not_mixed(self, row_case: Case) -> None:
        p, q = nn.Parameter(torch.ones(3, 2)), nn.Parameter(torch.ones(3, 2))
        row, full = row_case.mine([p], state="row"), row_case.mine([q])
        for param, optimizer in ((p, row), (q, full)):
            param.grad = torch.ones(3, 2)
            optimizer.step()
        saved, full_saved = copy.deepcopy(row.state_dict()), copy.deepcopy(full.state_dict())
        from_torch = copy.deepcopy(full_saved)
        for group in from_torch["param_groups"]:
            del group["state"], group["unspecified"]
        words = r"of parameter 0 of group 0 has shape \(3, 2\).* of shape \(3, 1\) \(one value per row\)"
        for optimizer, foreign, text in (
            (row, full_saved, "was made with state='full', but this optimizer has state='row'"),
            (full, saved, "was made with state='row', but this optimizer has state='full'"),
            (row, from_torch, words),
        ):
            refuses(optimizer, lambda o=optimizer, f=foreign: o.load_state_dict(f), ValueError, text)
        row.load_state_dict(saved)
        row.step()
