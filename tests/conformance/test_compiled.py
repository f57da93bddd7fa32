"""torch.compile: every operation in one whole graph, compiled once for all masks, forward and backward."""

from __future__ import annotations

import pytest
import torch

import maskgrad as mg
from tests.conformance.outcomes import assert_same, outcome_of
from tests.conformance.programs import DATA_DEPENDENT, MASKS, RECORDS, program_of

#: What torch.compile does not take, each with its reason. Each is tried: what begins to work must leave this list.
UNCOMPILED: dict[str, str] = {
    **{
        name: DATA_DEPENDENT[name]
        for name in ("unique", "equal", "allclose")  # of the others torch.compile leaves the size open
    },
    "nn.functional.ctc_loss": "torch.compile does not take torch's own: the size of an intermediate result is data",
    "random_": "torch.compile does not take torch's own",
    "slice_inverse": "torch's own cannot be traced: its fake body refuses two tensors",
    **dict.fromkeys(("as_strided", "as_strided_scatter"), "a graph knows nothing of the storage of its inputs"),
}

COMPILED = [name for name in RECORDS if name not in UNCOMPILED]


@pytest.mark.parametrize("name", COMPILED)
def test_one_graph_for_all_masks_forward_and_backward(name: str) -> None:
    program = program_of(name)
    fast = torch.compile(program.function, backend="aot_eager", fullgraph=True)
    with mg.count_recompiles() as compilations:
        for kind in MASKS:
            found = outcome_of(program, fast, kind)
            assert_same(found, outcome_of(program, program.function, kind), program, f"{kind}, compiled")
    assert compilations.number == 1, compilations.reasons


@pytest.mark.parametrize("name", UNCOMPILED)
def test_what_cannot_be_compiled_says_so(name: str) -> None:
    program = program_of(name)
    fast = torch.compile(program.function, backend="eager", fullgraph=True)
    with pytest.raises(Exception):  # noqa: B017, PT011  (torch.compile has many kinds of them)
        fast(*program.inputs())
