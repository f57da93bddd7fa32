"""What has no meaning on incomplete data is PyTorch's where nothing is missing, by the pattern, not the type."""

from __future__ import annotations

import pytest
import torch

import maskgrad as mg
from tests.poison import poisoned


@pytest.mark.own_dtype
def test_arguments_of_all_kinds() -> None:
    a, b = torch.randn(3, 3).double(), torch.randn(3, 2).double()
    expected = torch.linalg.solve(a, b)
    for found in (
        torch.linalg.solve(mg.masked(a), b),
        torch.linalg.solve(A=a, B=mg.masked(b)),
        torch.linalg.solve(mg.masked(a), mg.masked(b)),
    ):
        assert torch.equal(found.filled(0.0), expected)
    target = mg.masked(torch.zeros(3, 2).double(), torch.zeros(3, 2) > 0)
    assert torch.linalg.solve(a, mg.masked(b), out=target) is target
    assert torch.equal(target.filled(0.0), expected)
    parts = torch.linalg.svd(mg.masked(a))
    assert type(parts) is torch.return_types.linalg_svd
    assert all(part.mask.all() for part in parts)
    assert mg.masked(a).svd().S.shape == (3,)
    assert torch.linalg.matrix_norm(mg.masked(a), 2) == torch.linalg.matrix_norm(a, 2)
    assert torch.equal(mg.masked(a).matrix_power(-2).filled(0.0), a.matrix_power(-2))
    assert torch.linalg.inv(mg.masked(torch.zeros(0, 0))).shape == (0, 0)


@pytest.mark.own_dtype("bfloat16", "float16")
def test_where_masks_cannot_be_read() -> None:
    def inverse(a: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(mg.masked(a, a == a)).filled(0.0)  # type: ignore[no-any-return]

    a = torch.randn(3, 3)
    with pytest.raises(mg.UndefinedOnMaskedError, match=r"x\.filled\(value\)"):
        torch.vmap(inverse)(a[None])
    with pytest.raises(mg.UndefinedOnMaskedError):
        torch.fx.experimental.proxy_tensor.make_fx(inverse)(a)
    advised = torch.compile(lambda x: x.filled(0.0).inverse(), fullgraph=True, backend="eager")
    assert torch.equal(advised(mg.masked(a)), a.inverse())


@pytest.mark.own_dtype
def test_the_advice_about_missing_entries() -> None:
    mask = torch.ones(4, 4) > 0
    mask[1, 2] = mask[2, 1] = False
    x = mg.masked(torch.randn(4, 4).double(), mask)
    with pytest.raises(mg.UndefinedOnMaskedError, match=r"k = x.mask.all\(-1\); x\[k\]\[:, k\]"):
        torch.linalg.inv(x)
    k = x.mask.all(-1)
    expected = x.get_data()[[0, 3]][:, [0, 3]].inverse()
    torch.testing.assert_close(torch.linalg.inv(x[k][:, k]).filled(0.0), expected)

    a, b = torch.randn(4, 2).double(), poisoned([1.0, 2.0, None, 3.0])
    with pytest.raises(mg.UndefinedOnMaskedError, match=r"torch.linalg.lstsq\(a\[b.mask\], b\[b.mask\]\)"):
        torch.linalg.lstsq(a, b)
    found = torch.linalg.lstsq(a[b.mask], b[b.mask]).solution.filled(0.0)
    torch.testing.assert_close(found, a[b.mask].pinverse() @ torch.tensor([1.0, 2.0, 3.0]).double())

    s = mg.masked(torch.randn(2, 4), torch.tensor([[1, 1, 0, 1]]) > 0)
    with pytest.raises(mg.UndefinedOnMaskedError, match=r"x\[:, x.mask.all\(0\)\]"):
        torch.fft.fft(s)
    assert torch.fft.fft(s[:, s.mask.all(0)]).shape == (2, 3)
