"""Specified NaN and infinities surface on the layouts exactly where they do with a Boolean mask."""

from __future__ import annotations

import warnings

import pytest
import torch

from tests.laws.storage.expectations import Operation
from tests.laws.storage.layouts import BY_NAME, Storage, entries_of
from tests.laws.storage.operations import OPERATIONS
from tests.laws.storage.test_conformance import derivatives, filled, leaves_of, parts_of, world

SPECIAL = (float("nan"), float("inf"), float("-inf"))
SOME = [BY_NAME[name] for name in ("coo", "csr", "bsr-2x3", "jagged-hybrid", "jagged-turned")]
#: Operations left out, each with its reason.
UNUSED = {
    "frexp": "torch leaves the exponent of an infinity undefined",
    "F.hardtanh": "torch's own gradient at NaN depends on whether the loop is vectorised",
    "F.elu": "torch's own gradient at NaN depends on whether the loop is vectorised",
    "F.selu": "torch's own gradient at NaN depends on whether the loop is vectorised",
}
#: … and those whose values only are compared: the gradient of an infinite variance is written in two ways.
VALUES_ONLY = ("var", "std")


@pytest.mark.layouts(per=lambda operation: operation.name)
@pytest.mark.parametrize("storage", SOME, ids=lambda s: s.name)
@pytest.mark.parametrize("operation", [o for o in OPERATIONS if o.name not in UNUSED], ids=lambda o: o.name)
def test_real_nan_and_infinities_surface(operation: Operation, storage: Storage) -> None:
    if not operation.fits(storage) or operation.low > 0:
        return
    leaves = leaves_of(storage, operation.low)
    values = entries_of(storage).detach()
    values[2:5] = torch.tensor(SPECIAL, dtype=values.dtype)
    leaves[0] = values.requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = [parts_of(operation.run(world(storage, leaves, on))) for on in (True, False)]
    for part, plain in zip(*results, strict=True):
        torch.testing.assert_close(filled(part), filled(plain), equal_nan=True)
    if operation.name.startswith(VALUES_ONLY):
        return
    found = [derivatives(parts, leaves, min(operation.order, 1)) for parts in results]
    for ours, theirs in zip(*found, strict=bool(found[0] and found[1])):
        torch.testing.assert_close(ours, theirs, equal_nan=True)
