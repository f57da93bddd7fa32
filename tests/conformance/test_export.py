"""torch.export: every operation, exported on one set of masks, saved, loaded, and run on others."""

from __future__ import annotations

import io

import pytest
import torch

from tests.conformance.exported import Group, captured, compared, groups_without, made_of
from tests.conformance.outcomes import Outcome, assert_same
from tests.conformance.programs import DATA_DEPENDENT, program_of

#: What torch.export does not take, each with its reason.
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
    program = torch.export.load(made_of(group, saved)).module()
    for name, kind, found, expected in compared(group, lambda inputs: program(*inputs)):
        assert_same(Outcome(found, ()), Outcome(expected, ()), program_of(name), f"{kind}, exported")


def saved(group: Group) -> io.BytesIO:
    file = io.BytesIO()
    torch.export.save(captured(group), file)
    file.seek(0)
    return file
