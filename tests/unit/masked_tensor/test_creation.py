"""Constructors: what they accept, what they share, what they refuse and in which words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import maskgrad as mg
from tests.poison import assert_entries, inf, nan, on

TWO, ROWS = torch.zeros(2), torch.zeros(2, 3)
META, SPARSE = torch.zeros(3, device="meta"), torch.eye(2).to_sparse()
LENGTHS = torch.tensor([2, 1])

DATA = torch.arange(24.0).reshape(3, 4, 2)


def lengths_of(*lengths: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(lengths, dtype=dtype)


def jagged(*lengths: int) -> mg.MaskedTensor:
    return mg.from_lengths(DATA[: len(lengths)], lengths_of(*lengths), layout=torch.jagged)


#: Call, kind of error, and its words.
WRONG: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "a mask in a list": (lambda: mg.masked(TWO, [True, False]), TypeError,
                         "mask must be a Boolean .* found list; .*as_tensor"),
    "a mask elsewhere": (lambda: mg.masked(META, on(1, 0, 1)), ValueError,
                         r"mask must be on the device of the data, meta, found cpu; use mask\.to"),
    "data in a list": (lambda: mg.masked([1.0, 2.0], on(1, 0)), TypeError,
                       r"data must be a strided torch.Tensor, found list; .*as_tensor"),
    "sparse data": (lambda: mg.masked(SPARSE), TypeError, r"found layout torch\.sparse_coo; use mg\.from_sparse"),
    "sparse data with NaN": (lambda: mg.from_nan(SPARSE), TypeError, "strided"),
    "lengths in a list": (lambda: mg.from_lengths(ROWS, [2, 1]), TypeError,
                          r"integer tensor, found list; use torch\.tensor\(lengths\)\.long"),
    "lengths of floats": (lambda: mg.from_lengths(ROWS, LENGTHS * 1.0), TypeError, r"float32; use lengths\.long"),
    "too long": (lambda: mg.from_lengths(ROWS, LENGTHS * 2), ValueError,
                 "lengths must lie between 0 and 3, the size of dim 1, found 2 to 4"),
    "negative": (lambda: mg.from_lengths(ROWS, LENGTHS - 2), ValueError, "between 0 and 3.* found -1 to 0"),
    "a length too many": (lambda: mg.from_lengths(ROWS, torch.ones(3).long()), ValueError,
                          r"shape \(B,\) = \(2,\).*found \(3,\)"),
    "the batch": (lambda: mg.from_lengths(ROWS, LENGTHS, dim=-2), ValueError,
                  "other than 0 .the batch., found -2 for 2 dimensions"),
    "no such dimension": (lambda: mg.from_lengths(ROWS, LENGTHS, dim=2), ValueError, "found 2 for 2 dimensions"),
    "a vector": (lambda: mg.from_lengths(TWO, LENGTHS), ValueError, r"one length for each sequence of data \(2,\)"),
    "lengths elsewhere": (lambda: mg.from_lengths(ROWS, LENGTHS.to("meta")), ValueError,
                          r"lengths must be on the device of data, cpu, found meta; use lengths\.to\('cpu'\)"),
    "a tensor as numpy": (lambda: mg.from_numpy(TWO), TypeError,
                          r"array must be a numpy array, found Tensor; use mg\.masked for tensors"),
    "text": (lambda: mg.from_numpy(np.array(["a"])), TypeError, "array must contain numbers or Booleans"),
    "lengths above T": (lambda: jagged(1, 5, 2), ValueError, "between 0 and 4.*1 to 5"),
    "lengths of Booleans": (lambda: mg.from_lengths(DATA, torch.ones(3) > 0, layout=torch.jagged), TypeError,
                            r"integer tensor.*found a mask of torch.bool"),
    "another layout": (lambda: mg.from_lengths(DATA, lengths_of(1, 2, 3), layout=torch.sparse_csr), ValueError,
                       r"to_sparse\(layout=torch\.sparse_csr\)"),
    "no sequences": (lambda: mg.from_sequences([]), ValueError, r"mg\.from_offsets"),
    "a number of sequences": (lambda: mg.from_sequences(3), TypeError, r"found int; write mg.from_sequences\(\[torch"),  # type: ignore[arg-type]
    "sequences of lists": (lambda: mg.from_sequences([[1.0]]), TypeError, r"found list at 0.*as_tensor"),  # type: ignore[list-item]
    "a sequence without length": (lambda: mg.from_sequences([torch.ones(1), torch.ones(())]), TypeError,
                                  "0-d tensor at 1"),
    "sequences of two dtypes": (lambda: mg.from_sequences([torch.ones(1), torch.ones(1).long()]), TypeError,
                                r"one dtype.*at 1.*\.to\(dtype\)"),
    "sequences of other features": (lambda: mg.from_sequences([torch.ones(1, 2), torch.ones(1, 3)]), ValueError,
                                    r"same features.*\(2,\).*\(3,\)"),
    "sequences in another layout": (lambda: mg.from_sequences([torch.ones(1)], layout=torch.sparse_coo), ValueError,
                                    "torch.strided or torch.jagged"),
    "values without rows": (lambda: mg.from_offsets(torch.ones(()), torch.tensor([0, 1])), TypeError, "values must be"),
    "offsets of floats": (lambda: mg.from_offsets(torch.ones(1), torch.tensor([0.0, 1.0])), TypeError, "offsets"),
    "offsets elsewhere": (lambda: mg.from_offsets(torch.ones(1), torch.zeros(2, dtype=torch.int64, device="meta")),
                          ValueError, r"offsets\.to\('cpu'\)"),
    "offsets that fall": (lambda: mg.from_offsets(torch.ones(4), torch.tensor([0, 3, 2, 4])), ValueError,
                          "decrease from 3 to 2 at sequence 1"),
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
def test_what_is_wrong_is_named(name: str) -> None:
    call, kind, words = WRONG[name]
    with pytest.raises(kind, match=words):
        call()


def test_numpys_true_means_missing() -> None:
    array = np.ma.array([1.0, nan, 3.0], mask=[False, True, False])
    assert_entries(mg.from_numpy(array), [1.0, None, 3.0])
    assert_entries(mg.from_numpy(np.ma.array(nan, mask=True)), None)
    assert np.array_equal(mg.from_numpy(array).to_numpy().filled(0), array.filled(0))
    whole = np.ma.array([1, 2], mask=False)
    x = mg.from_numpy(whole)
    whole[0] = 7  # memory is shared
    assert_entries(x, [7, 2], dtype=torch.int64)


def test_every_dtype_that_both_have_is_taken() -> None:
    for name in ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
                 "float32", "float64", "complex64", "complex128"):  # fmt: skip
        assert mg.from_numpy(np.ones(2, name)).dtype is getattr(torch, name)


LAYOUTS = (torch.strided, torch.jagged, torch.sparse_coo, torch.sparse_csr)


def labels(layout: torch.layout) -> mg.MaskedTensor:
    """Sequences of two lengths, one of whose labels is to be ignored."""
    x = mg.from_lengths(torch.tensor([[5, -100, 3], [7, -100, 9]]), torch.tensor([3, 1]))
    return x if layout == torch.strided else x.to_sparse(layout=layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("of", LAYOUTS)
def test_a_comparison_is_a_mask(layout: torch.layout, of: torch.layout) -> None:
    x = labels(layout)
    found = mg.masked(x, labels(of) != -100)
    assert found.layout == torch.strided
    assert found.tolist() == [[5, None, 3], [7, None, None]]
    leaf = x.double().detach().requires_grad_()
    mg.mask_gradient(leaf, labels(of) != -100).sum().backward()
    assert leaf.grad.tolist() == [[1.0, 0.0, 1.0], [1.0, None, None]]


def test_a_mask_that_does_not_say_it_of_every_entry() -> None:
    data, x = torch.ones(2), mg.masked(torch.ones(2), on(1, 0))
    unknown = x > 0
    assert mg.masked(x) is x
    for whole in (data, mg.masked(data), mg.masked(data).to_sparse()):
        with pytest.raises(ValueError, match=r"not specified at every .* mask.filled\(False\)"):
            mg.masked(whole, unknown)
        assert_entries(mg.masked(whole, unknown.filled(False)), [1.0, None])
    assert_entries(mg.masked(x, unknown), [1.0, None])
    assert_entries(mg.masked(data, mg.masked(on(1, 0))), [1.0, None])
    with pytest.raises(TypeError, match=r"found torch\.float32; use mask != 0"):
        mg.masked(x, x)
    with pytest.raises(TypeError, match=r"found MaskedTensor; use mask.filled\(False\)"):
        mg.functional.mean(data, mask=unknown)


def test_masked_rows_with_offsets() -> None:
    leaf = torch.tensor([[1.0, nan], [2.0, 3.0], [nan, nan], [4.0, 5.0]], requires_grad=True)
    rows = mg.masked(leaf, on([1, 0], [1, 1], [0, 0], [1, 1]))
    found = mg.from_offsets(rows, torch.tensor([0, 3, 4]))
    assert found.tolist() == [[[1.0, None], [2.0, 3.0], [None] * 2], [[4.0, 5.0], [None] * 2, [None] * 2]]
    found.square().sum().backward()
    assert leaf.grad.tolist() == [[2.0, 0.0], [4.0, 6.0], [0.0, 0.0], [8.0, 10.0]]
    assert mg.from_offsets(mg.masked(torch.ones(2)), torch.tensor([0, 2]), 3).tolist() == [[1.0, 1.0, None]]
    with pytest.raises(TypeError, match="strided"):
        mg.from_offsets(rows.to_sparse(), torch.tensor([0, 4]))


def test_nan_becomes_unspecified() -> None:
    parts = mg.from_nan(torch.tensor([complex(nan, 1), complex(1, nan), 2 + 1j, complex(inf, 0)]))
    assert parts.mask.tolist() == [False, False, True, True]
    x = mg.masked(torch.tensor([1.0, nan, nan, 2.0]), on(1, 1, 0, 0))
    assert_entries(mg.from_nan(x), [1.0, None, None, None])
    assert_entries(mg.from_nan(x.to_sparse()), [1.0, None, None, None])


def test_lengths_and_offsets_of_any_integer_dtype() -> None:
    x = mg.from_lengths(DATA, lengths_of(2, 0, 4, dtype=torch.int32), layout=torch.jagged)
    y = mg.from_offsets(x.values(), x.offsets().int(), longest=4)
    for z in (x, y):
        assert z.lengths().tolist() == [2, 0, 4]
        assert z.offsets().dtype == torch.int64
        assert z.offsets().tolist() == [0, 2, 2, 6]
        assert torch.equal(z.filled(0), mg.from_lengths(DATA, lengths_of(2, 0, 4)).filled(0))
    assert jagged(1, 0, 2).shape == (3, 4, 2)  # the size that was given
    assert mg.from_offsets(torch.rand(3), torch.tensor([0, 1, 3])).shape == (2, 2)
    assert mg.from_offsets(torch.rand(0, 5), torch.tensor([0])).shape == (0, 0, 5)
    assert mg.from_lengths(DATA[:0], lengths_of(), layout=torch.jagged).shape == (0, 4, 2)


def test_sequences_are_padded_or_packed() -> None:
    parts = [torch.rand(n, 2, requires_grad=True) for n in (3, 0, 1)]
    for layout in (torch.jagged, torch.strided):
        x = mg.from_sequences(parts, layout=layout)
        assert (x.layout, x.shape) == (layout, (3, 3, 2))
        assert torch.equal(x.filled(0), torch.nn.utils.rnn.pad_sequence(parts, batch_first=True))
        assert x.mask[..., 0].sum(1).tolist() == [3, 0, 1]


@pytest.mark.parametrize("call", [torch.add, torch.max, torch.nn.functional.mse_loss, lambda x, y: x.add_(y)])
def test_other_numbers_of_sequences_are_counted_and_the_remedy_is_named(call: Any) -> None:
    x, y = jagged(1, 4, 2), jagged(3, 2)
    with pytest.raises(ValueError, match=r"number of sequences, found \(3,\) and \(2,\).*x\[indices\]"):
        call(x, y)
    assert (x[[0, 2]] + y).lengths().tolist() == [1, 2]
