"""Law 3: a reduction gives what PyTorch gives on the vector with its unspecified entries deleted."""

from __future__ import annotations

import pytest
import torch

import maskgrad as mg
from maskgrad.kernels import use_kernels
from maskgrad.semantics.registry import OPERATIONS
from tests.laws.any_type.comparison import assert_gradients, parts_of
from tests.laws.any_type.evaluation import attempt, cotangents_for, gradients
from tests.laws.any_type.operands import garbage_of
from tests.laws.comparison import assert_result
from tests.laws.deletion_cases import DEVIATIONS, REDUCTIONS, Case, Deviation, cases_of
from tests.laws.deletion_oracle import reduce_by_deletion
from tests.laws.evaluation import plain_parts
from tests.laws.oracles import REDUCES

CALLS = [(name, dtype) for name, reduction in REDUCTIONS.items() for dtype in reduction.dtypes]
COMPILED = ("sum", "mean", "var", "std", "count_nonzero", "nansum", "nanmean")


def test_no_reduction_is_forgotten() -> None:
    assert set(REDUCTIONS) == set(REDUCES.split())
    assert set(REDUCTIONS) <= {operation.name for operation in OPERATIONS if operation.family == "reductions"}


@pytest.mark.dtypes(per=lambda name: name)
@pytest.mark.parametrize(("name", "dtype"), CALLS, ids=lambda value: str(value).removeprefix("torch."))
def test_the_unspecified_entries_might_as_well_be_deleted(name: str, dtype: torch.dtype) -> None:
    check_reduction(name, dtype)


@pytest.mark.parametrize("name", COMPILED)
def test_the_compiled_kernels_obey_too(name: str) -> None:
    with use_kernels("cpu"):
        check_reduction(name, torch.float32)


@pytest.mark.parametrize("deviation", DEVIATIONS, ids=lambda deviation: deviation.reason)
def test_a_known_deviation_is_still_there(deviation: Deviation) -> None:
    # Once this fails, the deviation has been mended: take it off the list.
    for name in deviation.reductions:
        with pytest.raises(AssertionError):
            check_concerned(name, deviation)


def check_concerned(name: str, deviation: Deviation) -> None:
    """The cases of a reduction that a deviation concerns."""
    for dtype in REDUCTIONS[name].dtypes:
        for case in filter(deviation.concerns, cases_of(REDUCTIONS[name], dtype)):
            check_deletion(name, case)


def check_reduction(name: str, dtype: torch.dtype) -> None:
    """All cases of a reduction, less what its known deviations concern."""
    for case in cases_of(REDUCTIONS[name], dtype):
        known = [d for d in DEVIATIONS if name in d.reductions and d.concerns(case)]
        if all(deviation.gradients_only for deviation in known):
            check_deletion(name, case, with_gradients=not known)


def check_deletion(name: str, case: Case, with_gradients: bool = True) -> None:
    """One call against the loop over slices: mask, values, and the gradients of random cotangents."""
    function = REDUCTIONS[name].function
    what = f"{name} of {case.x.dtype}, {case.what}"
    inexact = case.x.is_floating_point() or case.x.is_complex()
    clean = case.x.clone().requires_grad_(inexact)
    leaf = torch.where(case.mask, case.x, garbage_of("nan", case.x.dtype)).requires_grad_(inexact)
    result = attempt(function, (mg.masked(leaf, case.mask),), case.arguments)
    if not case.x.numel() and isinstance(attempt(function, (clean,), case.arguments), Exception):
        assert isinstance(result, Exception), f"{what}: torch does not reduce a dimension of size 0; we do"
        return
    if isinstance(result, Exception):
        raise result
    values, masks = reduce_by_deletion(name, function, clean, case.mask, **case.arguments)
    assert_result(result, values, masks, what)
    if not with_gradients:
        return
    cotangents = cotangents_for(values, masks)
    found = gradients(plain_parts(result), [leaf], cotangents)
    assert_gradients(found, gradients(parts_of(values), [clean], cotangents), what)
    for grad in found:
        assert grad is None or not grad[~case.mask].count_nonzero(), (
            f"{what}: an unspecified entry has a gradient"
        )
