"""torch.func.vmap over data and masks gives what a loop gives, forward and backward, for every operation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from tests.conformance.families import family_of, groups_of
from tests.conformance.outcomes import Outcome, assert_same, dense
from tests.conformance.programs import DATA_DEPENDENT, RANDOM_ELSEWHERE, RECORDS, Program, program_of

#: What vmap does not take, each with its reason. Each is tried: what begins to work must leave this list.
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

#: Each operation is mapped over one call of each kind of mask.
KINDS = ("traced", "other", "empty", "full")


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


@pytest.mark.compiled
@pytest.mark.parametrize("name", UNMAPPED)
def test_what_cannot_be_mapped_says_so(name: str) -> None:
    with pytest.raises(Exception):  # noqa: B017, PT011  (each function of torch has its own)
        check(program_of(name))


def check(program: Program) -> None:
    looped, leaves = one_by_one(program)
    mapped, stacked = at_once(program, vmap(program.function))
    expected = [torch.stack(parts) for parts in zip(*looped, strict=True)]
    gradients = gradients_of(expected, [torch.stack(parts) for parts in leaves] if leaves else [], leaves)
    what = f"{program.name}, mapped"
    for i, (found, wanted) in enumerate(zip(mapped, expected, strict=True)):
        assert found.shape == wanted.shape, f"{what}, result {i}"
    # the kind is used to look for leaks, which the comparison with the loop already excludes
    assert_same(Outcome(tuple(mapped), ()), Outcome(tuple(expected), ()), program, "mapped")
    for i, (ours, theirs) in enumerate(zip(gradients_of(mapped, stacked), gradients, strict=True)):
        torch.testing.assert_close(
            ours, theirs, rtol=1e-4, atol=1e-4, equal_nan=True, msg=lambda t, i=i: f"{what}, {i}: {t}"
        )


def one_by_one(program: Program) -> tuple[list[tuple[Tensor, ...]], list[list[Tensor]]]:
    """The results of a loop, and the leaves of each operand."""
    calls = [program.inputs(kind, differentiable=True) for kind in KINDS]
    return [program.function(*inputs) for inputs in calls], [
        [inputs[at] for inputs in calls] for at in program.moving
    ]


def at_once(
    program: Program, function: Callable[..., tuple[Tensor, ...]]
) -> tuple[tuple[Tensor, ...], list[Tensor]]:
    """The results of one call on stacked operands, and these operands."""
    calls = [program.inputs(kind) for kind in KINDS]
    stacked = [torch.stack(parts) for parts in zip(*calls, strict=True)]
    for at in program.moving:
        stacked[at].requires_grad_()
    return function(*stacked), [stacked[at] for at in program.moving]


def gradients_of(
    results: list[Tensor] | tuple[Tensor, ...],
    stacked: list[Tensor],
    leaves: list[list[Tensor]] | None = None,
) -> list[Tensor]:
    """The gradients of the stacked operands; of the leaves, if a loop made the results of them; zeros for none."""
    ends = [result for result in results if result.requires_grad]
    if not ends:
        return []
    weights = [torch.linspace(0.5, 1.5, end.numel()).reshape(end.shape).to(end.dtype) for end in ends]
    flat = [leaf for parts in leaves for leaf in parts] if leaves else stacked
    found = torch.autograd.grad(ends, flat, weights, allow_unused=True)
    whole = [torch.zeros_like(x) if g is None else dense(g) for x, g in zip(flat, found, strict=True)]
    if not leaves:
        return whole  # type: ignore[return-value]
    size = len(KINDS)
    return [torch.stack(whole[i : i + size]) for i in range(0, len(whole), size)]  # type: ignore[arg-type]
