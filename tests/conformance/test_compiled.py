"""torch.compile: every operation in one whole graph, compiled once for all masks, forward and backward."""

from __future__ import annotations

import pytest
import torch

import maskgrad as mg
from tests.conformance.families import family_of, groups_of
from tests.conformance.outcomes import assert_same, outcomes_of, together
from tests.conformance.programs import DATA_DEPENDENT, MASKS, RECORDS, Program, program_of

#: What torch.compile does not take, each with its reason.
UNCOMPILED: dict[str, str] = {
    **{
        name: DATA_DEPENDENT[name]
        for name in ("unique", "equal", "allclose")  # of the others torch.compile leaves the size open
    },
    "nn.functional.ctc_loss": "torch.compile does not take torch's own: the size of an intermediate result is data",
    "random_": "torch.compile does not take torch's own",
    "slice_inverse": "torch's own cannot be traced: its fake body refuses two tensors",
    **dict.fromkeys(
        ("as_strided", "as_strided_scatter"), "a graph knows nothing of the storage of its inputs"
    ),
}

COMPILED = [name for name in RECORDS if name not in UNCOMPILED]

#: How many programs are compiled together: one graph of eight takes half as long as eight graphs.
TOGETHER = 8


ELSEWHERE = pytest.mark.compiled(per="elsewhere")


@pytest.mark.parametrize("names", groups_of(COMPILED, TOGETHER, ELSEWHERE, family_of))
def test_one_graph_for_all_masks_forward_and_backward(names: tuple[str, ...]) -> None:
    try:
        check([program_of(name) for name in names])
    except Exception:
        for name in names:  # alone, so that the traceback names it
            torch._dynamo.reset()
            check([program_of(name)])
        raise


#: One operation of each family for Inductor, which takes seconds where ``aot_eager`` takes a fraction of one.
REPRESENTATIVES = (
    ("logaddexp", "var", "matmul"),
    ("nn.functional.conv2d", "nn.functional.max_pool2d", "nn.functional.interpolate"),
    ("cat", "gather", "nn.functional.pad", "scatter_reduce", "nn.functional.cross_entropy", "cdist"),
    ("nn.functional.embedding", "nn.functional.scaled_dot_product_attention", "nn.functional.batch_norm", "lstm_cell"),
    ("softmax", "cumsum", "sort", "median", "histc", "transpose", "triu", "nn.functional.glu", "new_zeros", "to"),
)  # fmt: skip


@pytest.mark.compiled
@pytest.mark.parametrize("names", REPRESENTATIVES, ids=lambda names: names[0])
def test_the_default_backend(names: tuple[str, ...]) -> None:
    check([program_of(name) for name in names if name in COMPILED], "inductor")


def check(programs: list[Program], backend: str = "aot_eager") -> None:
    alike = together(programs)
    fast = torch.compile(alike, backend=backend, fullgraph=True)
    with mg.count_recompiles() as compilations:
        for kind in MASKS:
            expected = outcomes_of(programs, alike, kind)
            for program, ours, theirs in zip(
                programs, outcomes_of(programs, fast, kind), expected, strict=True
            ):
                assert_same(ours, theirs, program, f"{kind}, compiled")
    assert compilations.number == 1, compilations.reasons
