"""Constructors of jagged batches: what they make, and what they refuse before anything is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg

DATA = torch.arange(24.0).reshape(3, 4, 2)


def lengths_of(*lengths: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(lengths, dtype=dtype)


def jagged(*lengths: int) -> mg.MaskedTensor:
    return mg.from_lengths(DATA[: len(lengths)], lengths_of(*lengths), layout=torch.jagged)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_lengths_and_offsets_of_any_integer_dtype(dtype: torch.dtype) -> None:
    x = mg.from_lengths(DATA, lengths_of(2, 0, 4, dtype=dtype), layout=torch.jagged)
    y = mg.from_offsets(x.values(), x.offsets().to(dtype), longest=4)
    for z in (x, y):
        assert z.layout == torch.jagged
        assert z.lengths().tolist() == [2, 0, 4]
        assert z.offsets().dtype == torch.int64
        assert z.offsets().tolist() == [0, 2, 2, 6]
        assert torch.equal(z.filled(0), mg.from_lengths(DATA, lengths_of(2, 0, 4)).filled(0))


def test_sequences_are_padded_or_packed() -> None:
    parts = [torch.rand(n, 2, requires_grad=True) for n in (3, 0, 1)]
    for layout in (torch.jagged, torch.strided):
        x = mg.from_sequences(parts, layout=layout)
        assert (x.layout, x.shape) == (layout, (3, 3, 2))
        assert torch.equal(x.filled(0), torch.nn.utils.rnn.pad_sequence(parts, batch_first=True))
        assert x.mask[..., 0].sum(1).tolist() == [3, 0, 1]
        grads = torch.autograd.grad(x.sum(), parts)
        assert all(grad.equal(torch.ones_like(part)) for grad, part in zip(grads, parts, strict=True))


def test_the_size_that_was_given_is_kept() -> None:
    assert jagged(1, 0, 2).shape == (3, 4, 2)
    assert mg.from_offsets(torch.rand(3), torch.tensor([0, 1, 3])).shape == (2, 2)
    assert mg.from_offsets(torch.rand(3), torch.tensor([0, 1, 3]), longest=7).shape == (2, 7)
    assert mg.from_offsets(torch.rand(0, 5), torch.tensor([0])).shape == (0, 0, 5)
    assert mg.from_lengths(DATA[:0], lengths_of(), layout=torch.jagged).shape == (0, 4, 2)


WRONG: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "lengths below 0": (lambda: jagged(1, -1, 2), ValueError, "between 0 and 4.*-1 to 2"),
    "lengths above T": (lambda: jagged(1, 5, 2), ValueError, "between 0 and 4.*1 to 5"),
    "lengths of Booleans": (lambda: mg.from_lengths(DATA, torch.ones(3) > 0, layout=torch.jagged), TypeError,
                            r"integer tensor.*found a mask of torch.bool"),
    "another layout": (lambda: mg.from_lengths(DATA, lengths_of(1, 2, 3), layout=torch.sparse_csr), ValueError,
                       r"to_sparse\(layout=torch\.sparse_csr\)"),
    "no sequences": (lambda: mg.from_sequences([]), ValueError, r"mg\.from_offsets"),
    "sequences of lists": (lambda: mg.from_sequences([[1.0]]), TypeError, r"found list at 0.*as_tensor"),  # type: ignore[list-item]
    "a sequence without length": (lambda: mg.from_sequences([torch.ones(1), torch.ones(())]), TypeError,
                                  "0-d tensor at 1"),
    "sequences of two dtypes": (lambda: mg.from_sequences([torch.ones(1), torch.ones(1).long()]), TypeError,
                                r"one dtype.*at 1.*\.to\(dtype\)"),
    "sequences of other features": (lambda: mg.from_sequences([torch.ones(1, 2), torch.ones(1, 3)]), ValueError,
                                    r"same features.*\(2,\).*\(3,\)"),
    "sequences of two devices": (lambda: mg.from_sequences([torch.ones(1), torch.ones(1, device="meta")]), ValueError,
                                 "same features and device"),
    "sequences in another layout": (lambda: mg.from_sequences([torch.ones(1)], layout=torch.sparse_coo), ValueError,
                                    "torch.strided or torch.jagged"),
    "values in a list": (lambda: mg.from_offsets([1.0], torch.tensor([0, 1])), TypeError, "values must be"),  # type: ignore[arg-type]
    "values without rows": (lambda: mg.from_offsets(torch.ones(()), torch.tensor([0, 1])), TypeError, "values must be"),
    "sparse values": (lambda: mg.from_offsets(torch.eye(2).to_sparse(), torch.tensor([0, 2])), TypeError, "strided"),
    "offsets in a list": (lambda: mg.from_offsets(torch.ones(1), [0, 1]), TypeError, r"torch\.tensor\(offsets\)"),  # type: ignore[arg-type]
    "offsets of floats": (lambda: mg.from_offsets(torch.ones(1), torch.tensor([0.0, 1.0])), TypeError, "offsets"),
    "offsets elsewhere": (lambda: mg.from_offsets(torch.ones(1), torch.zeros(2, dtype=torch.int64, device="meta")),
                          ValueError, r"offsets\.to\('cpu'\)"),
    "offsets that fall": (lambda: mg.from_offsets(torch.ones(4), torch.tensor([0, 3, 2, 4])), ValueError,
                          "decrease from 3 to 2 at sequence 1"),
    "offsets that begin late": (lambda: mg.from_offsets(torch.ones(4), torch.tensor([1, 4])), ValueError,
                                "begin with 1"),
    "offsets that end early": (lambda: mg.from_offsets(torch.ones(4), torch.tensor([0, 3])), ValueError,
                               "number of rows, 4.*end with 3"),
    "offsets of two dimensions": (lambda: mg.from_offsets(torch.ones(4), torch.tensor([[0, 4]])), ValueError,
                                  r"shape \(B \+ 1,\)"),
    "no offsets": (lambda: mg.from_offsets(torch.ones(0), torch.zeros(0, dtype=torch.int64)), ValueError,
                   r"lengths\.cumsum"),
    "longer than the longest": (lambda: mg.from_offsets(torch.ones(4), torch.tensor([0, 4]), longest=3), ValueError,
                                "at least 4.*found 3"),
    "to_jagged of a vector": (lambda: mg.masked(torch.ones(3), torch.ones(3) > 0).to_jagged(), ValueError,
                              r"batch and a ragged dimension.*\(3,\)"),
    "to_jagged along the batch": (lambda: jagged(1, 2, 3).to_dense().to_jagged(0), ValueError, r"x\.transpose\(0, 1\)"),
    "to_jagged of a gap": (lambda: mg.masked(DATA, (DATA // 2) % 4 > 0).to_jagged(), ValueError,
                           r"position 0 of sequence 0 is unspecified and the next one is not; .*use a Boolean mask"),
    "to_jagged in part": (lambda: mg.masked(DATA, DATA != 1).to_jagged(), ValueError,
                          r"position 0 of sequence 0 is specified in some features and not in others"),
    "lengths of a mask": (lambda: jagged(1, 2, 3).to_dense().lengths(), RuntimeError, r"x\.to_jagged\(\)\.lengths\(\)"),
    "offsets of a mask": (lambda: jagged(1, 2, 3).to_dense().offsets(), RuntimeError, r"x\.to_jagged\(\)\.offsets\(\)"),
    "last of nothing": (lambda: mg.from_lengths(torch.ones(2, 0), lengths_of(0, 0)).last(), IndexError, "size 0"),
}  # fmt: skip


@pytest.mark.every
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_before_anything_is_computed(name: str) -> None:
    call, kind, words = WRONG[name]
    with pytest.raises(kind, match=words):
        call()


def two() -> tuple[mg.MaskedTensor, mg.MaskedTensor]:
    return jagged(1, 4, 2), jagged(3, 2)


@pytest.mark.every
@pytest.mark.parametrize(
    "call",
    [
        lambda x, y: x + y,
        torch.maximum,
        torch.max,
        torch.nn.functional.mse_loss,
        lambda x, y: torch.where(x > 0, x, y),
        lambda x, y: x.add_(y),
    ],
    ids=["add", "maximum", "max", "mse_loss", "where", "add_"],
)
def test_other_numbers_of_sequences_are_counted_and_the_remedy_is_named(call: Any) -> None:
    with pytest.raises(ValueError, match=r"number of sequences, found \(3,\) and \(2,\).*x\[indices\]"):
        call(*two())
    x, y = two()
    assert (x[[0, 2]] + y).lengths().tolist() == [1, 2]
