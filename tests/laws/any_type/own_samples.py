"""Calls that PyTorch's database does not make, by the names of the entries: further samples for all laws."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, nan

import torch
from torch import Tensor

from tests.laws.any_type.samples import Sample

__all__ = ["own_samples"]


def own_samples(name: str, dtype: torch.dtype) -> Iterator[Sample]:
    """The further samples of an entry, the same in every run."""
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    if name == "nn.functional.scaled_dot_product_attention":
        yield Sample((numbers(3, 4), numbers(5, 4), numbers(5, 2)), {})
        several = numbers(2, 4, 3, 4), numbers(2, 2, 5, 4), numbers(2, 2, 5, 2)
        yield Sample(several, {"enable_gqa": True})
        allowed = torch.rand(3, 5, generator=generator) < 0.6
        yield Sample((numbers(2, 3, 4), numbers(2, 5, 4), numbers(2, 5, 2)), {"attn_mask": allowed})
    if name == "nn.functional.ctc_loss":
        scores, times = numbers(6, 3, 5).log_softmax(-1), torch.tensor([6, 5, 4])
        joined, lists = torch.tensor([1, 2, 2, 3, 1, 4]), torch.tensor([[1, 2, 2], [3, 1, 4], [4, 4, 1]])
        yield Sample((scores, joined, (6, 5, 4), (3, 2, 1)), {"reduction": "none"})
        yield Sample((scores, lists, times, torch.tensor([3, 2, 1])), {"reduction": "none"})
        yield Sample((scores[:, 1], lists[1, :2], torch.tensor(5), torch.tensor(2)), {})
    if name == "linalg.matrix_norm":
        for order in (1, -1, inf, -inf):
            yield Sample((numbers(2, 3, 4),), {"ord": order})
    if name in ("quantile", "nanquantile"):
        yield Sample((numbers(4, 5), 0.25), {"keepdim": True})
        for interpolation in ("lower", "higher", "nearest"):
            points = torch.tensor([0.1, 0.5, 0.8], dtype=dtype)
            yield Sample((numbers(4, 5), points), {"dim": 1, "interpolation": interpolation})
    if name == "__getitem__":
        last, ends = torch.tensor([-1, 0]), torch.tensor([[0, 1], [1, -1]])
        for index in (slice(None, None, 2), (..., None, -1), (slice(None), last), (None, 1), (ends, last)):
            yield Sample((numbers(3, 4), index), {})
    if name in ("addmm", "addmv"):
        vector = name == "addmv"
        yield Sample(
            (numbers(3), numbers(3, 4), numbers(4) if vector else numbers(4, 3)), {"beta": 0, "alpha": 2}
        )
    if name == "isin":
        elements, others = (torch.randint(5, shape, generator=generator) for shape in ((3, 4), (3,)))
        for options in ({"invert": True}, {"invert": True, "assume_unique": True}):
            yield Sample((elements.to(dtype), others.to(dtype)), options)
    if name == "allclose" and dtype.is_floating_point:
        x = torch.tensor([1.0, nan, 3.0, nan], dtype=dtype)
        yield Sample((x, x.clone()), {"equal_nan": True})
