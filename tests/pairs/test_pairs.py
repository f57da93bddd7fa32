"""Every pair of features is right, by loops over samples in plain PyTorch, or refused in the words of the table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations

import pytest
import torch

from tests.pairs.features import MODULES, WAYS
from tests.pairs.programs import Program, check
from tests.pairs.table import PAGE, programs_of, programs_of_two_ways, refusal_of, table

pytestmark = [
    pytest.mark.filterwarnings("ignore:the gradients per sample are computed by a slow loop:UserWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]
COMPILED = WAYS[0]


@pytest.fixture(autouse=True)
def _pytorchs_own_loops() -> Iterator[None]:
    """oneDNN, which has no LSTM in bfloat16 where the processor has no AVX-512, stays out of it."""
    # not ``torch.backends.mkldnn.enabled``, which PyTorch's own test utilities forbid to set once they are imported,
    # nor ``flags``, which warns of GPUs
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    yield
    torch._C._set_mkldnn_enabled(before)


def hold(programs: Iterable[Program]) -> None:
    """Each program is right, or refused as it is declared."""
    tried = 0
    for program in programs:
        tried += 1
        words = refusal_of(program.features)
        try:
            check(program)
        except Exception as error:
            if words is None or words not in " ".join(str(error).split()):
                raise AssertionError(f"{' with '.join(program.features)}: {error}") from error
        else:
            assert words is None, f"{program} is not refused any more: take it out of the table"
    assert tried


def test_the_committed_table_is_up_to_date() -> None:
    assert PAGE.read() == table(), "write it anew with: python -m tests.pairs.table"


def test_each_pair_is_in_a_program() -> None:
    every = [p for module in MODULES for way in (None, *WAYS) for p in programs_of(module, way)]
    every += [p for pair in combinations(WAYS, 2) for p in programs_of_two_ways(*pair)]
    together = {frozenset(pair) for p in every for pair in combinations(p.features, 2)}
    rows = [line.split(" | ") for line in table().splitlines() if line.startswith("| ")]
    for row in rows[2:]:
        for column, cell in zip(rows[0][1:], row[1:], strict=True):
            if cell.strip(" |"):
                assert frozenset((row[0].strip("| "), column.strip("| "))) in together, (row[0], column)


@pytest.mark.parametrize("module", MODULES)
def test_layouts_and_options(module: str) -> None:
    hold(programs_of(module))


@pytest.mark.parametrize("way", WAYS[1:])
@pytest.mark.parametrize("module", MODULES)
def test_ways_to_run_a_step(module: str, way: str) -> None:
    hold(programs_of(module, way))


@pytest.mark.compiled(keep=2)
@pytest.mark.parametrize("module", MODULES)
def test_compiled(module: str) -> None:
    hold(programs_of(module, COMPILED))


@pytest.mark.parametrize(("first", "second"), list(combinations(WAYS[1:], 2)))
def test_two_ways(first: str, second: str) -> None:
    hold(programs_of_two_ways(first, second))


@pytest.mark.compiled
@pytest.mark.parametrize("second", WAYS[1:])
def test_compiled_in_another_way(second: str) -> None:
    hold(programs_of_two_ways(COMPILED, second))
