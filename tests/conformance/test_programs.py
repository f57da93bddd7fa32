"""Every record has a program or a reason for having none; a program gives what the operation gives, on every mask."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from maskgrad.semantics.registry import OPERATIONS
from tests.conformance.programs import DATA_DEPENDENT, EXCLUDED, MASKS, RECORDS, program_of
from tests.conformance.written_calls import WRITTEN


def test_every_record_has_a_program_or_a_reason() -> None:
    names = [operation.name for operation in OPERATIONS]
    assert {*RECORDS, *EXCLUDED} == {*names}
    assert not {*RECORDS} & {*EXCLUDED}
    assert {*names} >= {*DATA_DEPENDENT, *WRITTEN}


@pytest.mark.parametrize("family", sorted({operation.family for operation in OPERATIONS} - {"metadata"}))
def test_programs_take_plain_tensors_and_give_plain_tensors(family: str) -> None:
    names = [o.name for o in OPERATIONS if o.family == family and o.name not in EXCLUDED]
    for program in map(program_of, names):
        shapes = set()
        for kind, (density, _) in MASKS.items():
            inputs = program.inputs(kind, differentiable=True)
            assert all(inputs[mask].shape == inputs[data].shape for data, mask in program.masked)
            if density in (0, 1):
                assert all(bool((inputs[mask] == density).all()) for _, mask in program.masked), program.name
            results = program.function(*inputs)
            assert all(type(result) is Tensor for result in results), program.name
            shapes.add(tuple((tuple(x.shape), x.dtype) for x in inputs))
            check_gradients(program.name, inputs, results, program.moving)
        assert len(shapes) == 1, program.name


def check_gradients(
    name: str, inputs: tuple[Tensor, ...], results: tuple[Tensor, ...], moving: tuple[int, ...]
) -> None:
    """A program that is said to be differentiable has a derivative; garbage reaches no gradient."""
    ends = [result for result in results if result.requires_grad]
    assert bool(ends) == bool(moving), name
    if not ends:
        return
    found = torch.autograd.grad(
        ends, [inputs[at] for at in moving], [torch.ones_like(end) for end in ends], allow_unused=True
    )
    assert any(grad is not None for grad in found), name
