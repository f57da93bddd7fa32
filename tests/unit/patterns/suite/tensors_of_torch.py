"""Sparse tensors of torch in and out: the same tensors, shared memory, gradients in their own layout."""

from __future__ import annotations

import pytest
import torch

import maskgrad as mg
from maskgrad.masked_tensor.sparse_leaves import NOT_ACCUMULATED
from tests.unit.patterns.suite.declaration import Declaration, assert_same

PARTS = ("indices", "crow_indices", "col_indices", "ccol_indices", "row_indices")


class TensorsOfTorch(Declaration):
    def of_torch(self, name: str) -> torch.Tensor:
        """The tensor of torch with ones where something is specified; torch drops zeros."""
        return self.masks[name].double().to_sparse(layout=self.layout, **self.torchs())

    def torchs(self) -> dict[str, object]:
        """The options as torch has them."""
        return {"dense_dim": self.dense, **self.options} if self.layout != torch.sparse_coo else {}

    def test_they_are_stored_alike(self, example: str) -> None:
        x, data, mask = self.of(example)
        expected = self.of_torch(example)
        if self.layout == torch.sparse_coo:
            expected = mask.double().to_sparse(mask.ndim - self.dense)
        assert (x.sparse_dim(), x.dense_dim()) == (expected.sparse_dim(), expected.dense_dim())
        assert x._nnz() == expected._nnz()
        assert x.values().shape == expected.values().shape
        for part in PARTS:
            if part in self.reads:
                assert torch.equal(getattr(x, part)(), getattr(expected, part)())
            else:
                with pytest.raises(RuntimeError, match=rf"x\.{part}\(\) needs layout .*x\.to_sparse\("):
                    getattr(x, part)()
        t = x.detach().to_sparse_tensor()
        assert t.layout == self.layout
        torch.testing.assert_close(t.to_dense(), torch.where(mask, data, 0), rtol=0, atol=0)
        with torch.sparse.check_sparse_tensor_invariants():
            again = mg.from_sparse(t)
        assert again.layout == self.layout
        assert_same(again, data, mask)
        again._values.mul_(2)  # whose memory is shared
        torch.testing.assert_close(t.to_dense(), 2 * torch.where(mask, data, 0))

    def test_a_leaf_gets_its_gradient_in_its_own_layout_again_and_again(self) -> None:
        x, data, mask = self.of("some")
        plain = torch.where(mask, data, 0).detach()
        t = x.detach().to_sparse_tensor().requires_grad_()
        if self.layout in NOT_ACCUMULATED:
            with pytest.raises(TypeError, match=r"make the values the leaf: mg\.from_sparse\(t\.detach"):
                mg.from_sparse(t)
            y = mg.from_sparse(t.detach()).requires_grad_()
            (y**2).sum().backward()
            torch.testing.assert_close(y.grad.filled(0.0), 2 * plain)
            return
        # torch adds no others with dense dimensions
        times = 1 if self.dense and self.layout != torch.sparse_coo else 2
        for _ in range(times):
            (mg.from_sparse(t) ** 2).sum().backward()
        assert t.grad is not None
        assert t.grad.layout == t.layout
        assert t.grad._nnz() == t._nnz()
        (again,) = torch.autograd.grad((mg.from_sparse(t) ** 3).sum(), t)
        assert again.layout == t.layout
        torch.testing.assert_close(again.to_dense(), 3 * plain**2)
        torch.testing.assert_close(t.grad.to_dense(), times * 2 * plain)
        if times > 1:  # twice in one graph
            (again,) = torch.autograd.grad((mg.from_sparse(t) * mg.from_sparse(t)).sum(), t)
            torch.testing.assert_close(again.to_dense(), 2 * plain)

    def test_a_second_derivative_through_torch_is_refused(self) -> None:
        if self.layout in NOT_ACCUMULATED:
            return
        t = self.of("some").x.detach().to_sparse_tensor().requires_grad_()
        with pytest.raises(RuntimeError, match=r"create_graph=True is not supported.*requires_grad_"):
            torch.autograd.grad((mg.from_sparse(t) ** 3).sum(), t, create_graph=True)
