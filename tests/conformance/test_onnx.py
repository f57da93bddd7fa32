"""ONNX: every operation in a file, run by ONNX Runtime on other masks than the ones that were traced."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
import torch

from maskgrad.export.capture import quiet
from maskgrad.export.translation import translated
from maskgrad.export.verification import Session
from tests.conformance.exported import Group, captured, compared, groups_without, made_of
from tests.conformance.programs import RECORDS
from tests.conformance.test_export import UNEXPORTED
from tests.exporter import one_registry
from tests.laws.any_type.comparison import assert_close

#: What no file can hold, by the reason.
UNWRITTEN_BY_REASON: dict[str, str] = {
    "a graph knows nothing of the storage of its inputs": "as_strided as_strided_scatter",
    "ONNX Runtime has no complex numbers": (
        "polar complex imag view_as_real view_as_complex cfloat cdouble chalf"
    ),
    "no operator of ONNX comes near, and nothing that does is built from them": (
        "digamma lgamma mvlgamma special.polygamma special.zeta igamma igammac erfinv special.ndtri special.erfcx "
        "special.log_ndtr special.airy_ai i0 special.i0e special.i1 special.i1e nextafter hash_tensor "
    )
    + " ".join(name for name in RECORDS if re.match(r"special\..*(bessel|polynomial)", name)),
    "PyTorch's exporter has no operators for it, without masks either": (
        "frexp copysign gcd hypot lcm fmax fmin vander linalg.vander nn.functional.adaptive_avg_pool3d "
        "nn.functional.adaptive_max_pool1d nn.functional.adaptive_max_pool2d grid_sampler_3d nonzero_static "
        "select_copy slice_copy detach_copy searchsorted bucketize histogram histogramdd put diagonal_scatter "
        "pixel_shuffle native_channel_shuffle"
    ),
    "PyTorch's exporter ignores divisor_override": "nn.functional.avg_pool2d nn.functional.avg_pool3d",
}
UNWRITTEN = {
    *UNEXPORTED,
    "unique_consecutive",
    *(name for names in UNWRITTEN_BY_REASON.values() for name in names.split()),
}

GROUPS = groups_without(UNWRITTEN, pytest.mark.onnx(per="elsewhere"))


@pytest.fixture(autouse=True, scope="module")
def _one_registry() -> Iterator[None]:
    with one_registry():
        yield


@pytest.mark.onnx(per="elsewhere")  # a batch of each family represents them
@pytest.mark.parametrize("group", GROUPS)
def test_a_file_agrees_on_other_masks(group: Group, tmp_path: Path) -> None:
    path = tmp_path / "group.onnx"
    session = made_of(group, lambda part: written(part, path))
    for name, kind, found, expected in compared(group, session):
        for i, (one, other) in enumerate(zip(found, expected, strict=True)):
            what = f"{name}, {kind}, result {i}"
            assert one.dtype == other.dtype, what
            # within the rounding of a runtime that has its own exp, and sums in its own order
            assert_close(one, other, what, exact=other.dtype == torch.bool, amplified=True)


def written(group: Group, path: Path) -> Session:
    with quiet():
        program = captured(group)
        inputs = [f"input_{i}" for i in range(len(program.graph_signature.user_inputs))]
        outputs = [f"output_{i}" for i in range(len(program.graph_signature.user_outputs))]
        translated(program, inputs, outputs, None).save(path)
        onnx.checker.check_model(path, full_check=True)
        return Session(path)
