"""torch.func.vmap over data and masks gives what a loop gives, forward and backward, for every operation."""

from __future__ import annotations

import pytest
import torch
from torch.func import vmap

from tests.conformance.families import family_of, groups_of
from tests.conformance.outcomes import Outcome, assert_same, dense, outcome_of, weight_of
from tests.conformance.programs import DATA_DEPENDENT, MASKS, RANDOM_ELSEWHERE, RECORDS, Program, program_of

#: What vmap does not take, each with its reason.
UNMAPPED: dict[str, str] = {
    **DATA_DEPENDENT,
    "bincount": "how large the result is depends on the numbers",
    **dict.fromkeys(
        ("slice_inverse", "unsafe_split_with_sizes", "column_stack", "histogramdd"),
        "torch's own has no rule for batches",
    ),
    "tensor_split": "its sample has the places in a tensor, for which torch's own has no rule for batches",
    **dict.fromkeys(
        ("lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell"), "torch's own has no rule for batches"
    ),
    **dict.fromkeys(("as_strided", "as_strided_scatter"), "the storage of a batch is not that of a sample"),
    **(
        {}
        if torch.__version__ >= (2, 13)
        else dict.fromkeys(("hash_tensor", "unbind_copy"), "PyTorch 2.12 has no rule for batches")
    ),
}

#: How many programs are mapped in one test.
TOGETHER = 16

RANDOM = {*RANDOM_ELSEWHERE, *(name for name in RECORDS if family_of(name) == "random")}
MAPPED = [name for name in RECORDS if name not in UNMAPPED and name not in RANDOM]


@pytest.mark.parametrize(
    "names", groups_of(MAPPED, TOGETHER, pytest.mark.compiled(per="elsewhere"), family_of)
)
def test_mapped_over_data_and_masks(names: tuple[str, ...]) -> None:
    for name in names:
        check(program_of(name))


def check(program: Program) -> None:
    expected = [outcome_of(program, program.function, kind) for kind in MASKS]
    stacked = [torch.stack(parts) for parts in zip(*map(program.inputs, MASKS), strict=True)]
    leaves = [stacked[at].requires_grad_() for at in program.moving]
    results = vmap(program.function)(*stacked)
    ends = [
        (found, wanted)
        for found, wanted in zip(results, expected[0].results, strict=True)
        if found.requires_grad
    ]
    weights = [weight_of(wanted).expand_as(found) for found, wanted in ends]
    found = [end for end, _ in ends]
    gradients = torch.autograd.grad(found, leaves, weights, allow_unused=True) if found else []
    for k, (kind, wanted) in enumerate(zip(MASKS, expected, strict=True)):
        ours = Outcome(
            tuple(result[k] for result in results),
            tuple(None if gradient is None else dense(gradient)[k] for gradient in gradients),
        )
        assert_same(ours, wanted, program, f"{kind}, mapped")
