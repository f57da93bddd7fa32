"""``state="row"``: one value for each row, of its specified entries, and no mixing with full states."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from maskgrad import attach_gradient
from tests.unit.optim.kinds import FULL, KINDS
from tests.unit.optim.optimizers import NAN, Case, bits
from tests.unit.optim.suite.behind import assert_as_near_as_rounding
from tests.unit.optim.suite.refusals import refuses


class PerRow:
    @pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
    @pytest.mark.parametrize("scale", [1.0, 1e-8])
    def test_entries_of_equal_size_have_the_state_that_each_would_have(
        self, row_case: Case, scale: float, dtype: torch.dtype
    ) -> None:
        """PyTorch's is the oracle where the squares in a row are equal, for all kinds, and where epsilon counts."""
        q = nn.Parameter(torch.zeros(3, 4, 2, dtype=dtype))
        size, signs = scale * torch.randn(12, 3, 1, 1, dtype=dtype), torch.randn(3, 4, 2).sign()
        kinds: list[Any] = [FULL[name] for name in ("dense", "rows", "rows twice", "coo", "masked")]
        kinds.append(lambda d: d.to_sparse(2))
        params = [nn.Parameter(q.detach().clone()) for _ in kinds]
        params.append(nn.Parameter(q.detach().transpose(0, 2).contiguous().transpose(0, 2)))
        mine, reference = row_case.mine(params, state="row"), row_case.reference([q])
        for gradient in size * signs:
            for p, kind in zip(params, [*kinds, FULL["masked"]], strict=True):
                attach_gradient(p, kind(gradient))
            q.grad = gradient
            mine.step()
            reference.step()
        for p in params:
            assert_as_near_as_rounding(
                torch.view_as_real(p.detach() + 0j), torch.view_as_real(q.detach() + 0j)
            )
            shapes = {key: value.shape for key, value in mine.state[p].items() if value.dim() > 0}
            expected = {name for name in row_case.declared.per_row if name in mine.state[p]}
            assert expected == {key for key, shape in shapes.items() if shape == (3, 1, 1)} != set()

    @pytest.mark.parametrize("kind", KINDS)
    def test_the_mean_is_over_specified_entries(self, row_case: Case, kind: str) -> None:
        """Each row by itself, its specified entries alone, is what the optimizer sees; the others stay bit for bit."""
        some = torch.tensor(
            [[1, 1, 0, 0, 1, 1], [0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 0, 0]]
        ).bool()
        start = torch.where(some, torch.randn(4, 6), NAN)  # which decay would spread, were it looked at
        p, alone = nn.Parameter(start.clone()), {r: nn.Parameter(start[r, some[r]][None]) for r in (0, 2, 3)}
        ours, parts = (row_case.mine(q, state="row", weight_decay=0.1) for q in ([p], alone.values()))
        for gradient in torch.randn(5, 4, 6):
            attach_gradient(p, KINDS[kind](torch.where(some, gradient, 0)))
            for r, q in alone.items():
                q.grad = gradient[r, some[r]][None]
            ours.step()
            parts.step()
        assert torch.equal(bits(p)[~some], bits(start)[~some])
        for r, q in alone.items():
            torch.testing.assert_close(p[r, some[r]][None], q, rtol=1e-5, atol=1e-6)
            for name, value in ours.state[p].items():
                if value.dim():
                    part = value[r] if value.shape[1] == 1 else value[r, some[r]]
                    torch.testing.assert_close(part, parts.state[q][name][0], rtol=1e-5, atol=1e-6)
                    assert len(value[1].unique()) == 1, name  # as it was made

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
