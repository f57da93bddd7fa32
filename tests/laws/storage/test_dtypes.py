"""Halves, integers, Booleans and complex numbers on the storage layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.laws.storage.layouts import BY_NAME, Storage, boolean, entries_of, stored
from tests.laws.storage.test_conformance import filled

HALVES = (torch.float16, torch.bfloat16)
EXACT = (torch.int64, torch.int32, torch.uint8, torch.bool)
SOME = [
    BY_NAME[name]
    for name in ("coo", "coo-hybrid", "csr", "csc-batched", "bsr-2x3", "jagged-hybrid", "jagged-turned")
]

OF_ALL = {
    "sum": lambda x: x.sum(-1),
    "prod": lambda x: x.prod(0),
    "any": lambda x: x.any(-1),
    "all": lambda x: x.all(0),
    "count_nonzero": lambda x: x.count_nonzero(-1),
    "ne": lambda x: x != 0,
    "mul": lambda x: x * x,
    "add 1": lambda x: x + 1,
    "div": lambda x: x / 2,
    "float": lambda x: x.float() if not x.dtype.is_complex else x.abs(),
    "cat": lambda x: torch.cat([x, x]),
    "select": lambda x: x[0],
    "total": lambda x: x.sum(),
}
OF_ORDERED = {
    "amax": lambda x: x.amax(-1),
    "amin": lambda x: x.amin(0),
    "argmax": lambda x: x.argmax(-1),
    "max": lambda x: torch.max(x, dim=0)[0],
}
OF_INEXACT = {
    "mean": lambda x: x.mean(-1),
    "var": lambda x: x.var(-1, correction=0),
    "norm": lambda x: torch.linalg.vector_norm(x, 3, 0),
    "std all": lambda x: x.std(),
    "matmul": lambda x: x @ torch.ones(x.shape[-1], 2, dtype=x.dtype),
}
OF_FLOATS = {
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(0),
    "logsumexp": lambda x: x.logsumexp(-1),
    "normalize": lambda x: torch.nn.functional.normalize(x, dim=-1),
    "mse": lambda x: torch.nn.functional.mse_loss(x, x * 0),
}
#: What reduces everything to a plain number.
NUMBERS = ("total", "std all", "mse")


def operations_for(dtype: torch.dtype) -> dict[str, Callable[..., Any]]:
    found = dict(OF_ALL)
    if not dtype.is_complex:
        found |= OF_ORDERED
    if dtype.is_floating_point or dtype.is_complex:
        found |= OF_INEXACT
    if dtype.is_floating_point:
        found |= OF_FLOATS
    return found


@pytest.mark.layouts(per=lambda dtype: dtype)
@pytest.mark.parametrize("storage", SOME, ids=lambda s: s.name)
@pytest.mark.parametrize("dtype", [*HALVES, *EXACT, torch.float32, torch.complex128], ids=str)
def test_every_dtype_agrees_with_the_boolean_mask(storage: Storage, dtype: torch.dtype) -> None:
    entries = entries_of(storage, dtype).detach()
    for name, run in operations_for(dtype).items():
        if name == "matmul" and storage.dense:
            continue
        ours, theirs = run(stored(storage, entries)), run(boolean(storage, entries))
        assert ours.dtype == theirs.dtype, name
        if name in NUMBERS:
            assert type(ours) is type(theirs) is torch.Tensor, name
        else:
            assert ours.mask.tolist() == theirs.mask.tolist(), name
        tolerance = {"rtol": 1e-2, "atol": 1e-2} if dtype in HALVES else {}
        torch.testing.assert_close(
            filled(ours),
            filled(theirs),
            equal_nan=True,
            **tolerance,
            msg=lambda text, name=name: f"{name}: {text}",
        )


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_halves_are_added_up_in_float32(dtype: torch.dtype) -> None:
    ones = Storage("ones", torch.ones(1, 4096, dtype=torch.bool), torch.sparse_csr)
    x = stored(ones, torch.ones(4096, dtype=dtype))
    for total in (x.sum(), x.sum(1).sum(), x.T.sum(0).sum(), (x @ torch.ones(4096, 1, dtype=dtype)).sum()):
        assert total.item() == 4096
        assert total.dtype == dtype
    assert (x @ x.T).sum().item() == 4096
    x = x * 300
    assert x.prod().item() == float("inf")
    assert torch.linalg.vector_norm(x).item() == pytest.approx(19200, rel=1e-2)


@pytest.mark.parametrize("run", [lambda x: x.mean(), lambda x: x.mean(1), lambda x: x.var()])
def test_integers_have_no_mean(run: Callable[..., object]) -> None:
    with pytest.raises(RuntimeError):
        run(stored(BY_NAME["csr"], entries_of(BY_NAME["csr"], torch.int64)))


def test_complex_numbers_have_no_order() -> None:
    with pytest.raises(RuntimeError, match="complex"):
        stored(BY_NAME["csr"], entries_of(BY_NAME["csr"], torch.complex64)).amax(1)


@pytest.mark.parametrize("storage", SOME, ids=lambda s: s.name)
def test_factors_must_have_one_dtype(storage: Storage) -> None:
    if storage.dense:
        return
    x = stored(storage, entries_of(storage))
    with pytest.raises(RuntimeError, match="same dtype"):
        x @ torch.ones(x.shape[-1], 2)
