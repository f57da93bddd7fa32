"""torch.export: every operation, exported on one set of masks, saved, loaded, and run on others."""

from __future__ import annotations

import io

import pytest
import torch

from tests.conformance.exported import (
    Group,
    captured,
    culprits,
    expected_of,
    groups_without,
    inputs_of,
    shares,
)
from tests.conformance.outcomes import Outcome, assert_same
from tests.conformance.programs import DATA_DEPENDENT, MASKS, program_of

#: What torch.export does not take, each with its reason. Each is tried: what begins to work must leave this list.
UNEXPORTED: dict[str, str] = {
    **{
        name: DATA_DEPENDENT[name] for name in ("unique", "equal", "allclose")
    },  # of the others the size is left open
    "nn.functional.ctc_loss": "torch.export does not take torch's own: the size of an intermediate result is data",
    "slice_inverse": "torch's own cannot be traced: its fake body refuses two tensors",
}

GROUPS = groups_without(UNEXPORTED, pytest.mark.compiled(per="elsewhere"))


@pytest.mark.parametrize("group", GROUPS)
def test_a_loaded_program_agrees_on_other_masks(group: Group) -> None:
    program = loaded(group)
    for kind in MASKS:
        expected = list(expected_of(group, kind))
        results = program(*inputs_of(group, kind))
        for (name, parts), found in zip(expected, shares(group, results, expected), strict=True):
            assert_same(Outcome(tuple(found), ()), Outcome(parts, ()), program_of(name), f"{kind}, exported")


def loaded(group: Group) -> torch.nn.Module:
    try:
        file = saved(group)
    except Exception as error:
        raise AssertionError(culprits(group, saved)) from error
    return torch.export.load(file).module()


def saved(group: Group) -> io.BytesIO:
    file = io.BytesIO()
    torch.export.save(captured(group), file)
    file.seek(0)
    return file


@pytest.mark.compiled
@pytest.mark.parametrize("name", UNEXPORTED)
def test_what_cannot_be_exported_says_so(name: str) -> None:
    with pytest.raises(Exception):  # noqa: B017, PT011  (torch.export has many kinds of them)
        saved((name,))
