"""ONNX: every operation in a file, run by ONNX Runtime on other masks than the ones that were traced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from maskgrad.export.capture import quiet
from maskgrad.export.onnx_runtime import Session
from maskgrad.export.translation import translated
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
from tests.conformance.programs import DATA_DEPENDENT, MASKS, RECORDS, program_of
from tests.conformance.test_export import UNEXPORTED
from tests.exporter import one_registry

NO_OPERATOR = "no operator of ONNX comes near, and nothing that does is built from them"

#: What no file can hold, each with its reason. Each is tried: what begins to work must leave this list.
UNWRITTEN: dict[str, str] = {
    **UNEXPORTED,
    "unique_consecutive": DATA_DEPENDENT["unique_consecutive"],
    **dict.fromkeys(
        ("as_strided", "as_strided_scatter"), "a graph knows nothing of the storage of its inputs"
    ),
    **dict.fromkeys(
        ("polar", "complex", "imag", "view_as_real", "view_as_complex", "cfloat", "cdouble", "chalf"),
        "ONNX Runtime has no complex numbers",
    ),
    **dict.fromkeys(
        (
            *("digamma", "lgamma", "mvlgamma", "special.polygamma", "special.zeta", "igamma", "igammac"),
            *("erfinv", "special.ndtri", "special.erfcx", "special.log_ndtr", "special.airy_ai"),
            *("i0", "special.i0e", "special.i1", "special.i1e", "nextafter", "hash_tensor"),
        ),
        NO_OPERATOR,
    ),
    **{
        name: NO_OPERATOR
        for name in RECORDS
        if name.startswith("special.") and ("bessel" in name or "polynomial" in name)
    },
}

GROUPS = groups_without(UNWRITTEN)


@pytest.fixture(autouse=True, scope="module")
def _one_registry() -> Iterator[None]:
    with one_registry():
        yield


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: f"{group[0]}…{group[-1]}")
def test_a_file_agrees_on_other_masks(group: Group, tmp_path: Path) -> None:
    path = tmp_path / "group.onnx"
    try:
        session = written(group, path)
    except Exception as error:
        raise AssertionError(culprits(group, lambda part: written(part, path))) from error
    for kind in MASKS:
        expected = list(expected_of(group, kind))
        results = session(inputs_of(group, kind))
        for (name, parts), found in zip(expected, shares(group, results, expected), strict=True):
            assert_same(Outcome(tuple(found), ()), Outcome(parts, ()), program_of(name), f"{kind}, in a file")


def written(group: Group, path: Path) -> Session:
    with quiet():
        program = captured(group)
        inputs = [f"input_{i}" for i in range(len(program.graph_signature.user_inputs))]
        outputs = [f"output_{i}" for i in range(len(program.graph_signature.user_outputs))]
        translated(program, inputs, outputs, None).save(path)
        onnx.checker.check_model(path, full_check=True)
        return Session(path)


@pytest.mark.parametrize("name", UNWRITTEN)
def test_what_cannot_be_written_says_so(name: str, tmp_path: Path) -> None:
    path = tmp_path / "record.onnx"
    with pytest.raises(Exception):  # noqa: B017, PT012, PT011  (of many kinds; some only when the file is run)
        session = written((name,), path)
        for kind in MASKS:
            expected = list(expected_of((name,), kind))
            found = session(inputs_of((name,), kind))
            assert_same(Outcome(tuple(found), ()), Outcome(expected[0][1], ()), program_of(name), kind)
