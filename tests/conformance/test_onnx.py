"""ONNX: every operation in a file, run by ONNX Runtime on other masks than the ones that were traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
import torch.nn.functional as F

import maskgrad as mg
from maskgrad.export.capture import quiet
from maskgrad.export.translation import translated
from maskgrad.export.verification import Session
from maskgrad.semantics.registry import OPERATIONS
from tests.conformance.exported import (
    Group,
    captured,
    culprits,
    expected_of,
    groups_without,
    inputs_of,
    shares,
)
from tests.conformance.programs import DATA_DEPENDENT, MASKS, RECORDS
from tests.conformance.test_export import UNEXPORTED
from tests.exporter import one_registry
from tests.laws.any_type.comparison import assert_close, parts_of

NO_OPERATOR = "no operator of ONNX comes near, and nothing that does is built from them"
NOT_OF_PYTORCH = "PyTorch's exporter has no operators for it, without masks either"

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
    **dict.fromkeys(
        (
            *(
                "frexp",
                "copysign",
                "gcd",
                "hypot",
                "lcm",
                "fmax",
                "fmin",
                "vander",
                "linalg.vander",
            ),
            *(
                "nn.functional.adaptive_avg_pool3d",
                "nn.functional.adaptive_max_pool1d",
                "nn.functional.adaptive_max_pool2d",
            ),
            *("grid_sampler_3d", "nonzero_static", "select_copy", "slice_copy", "detach_copy"),
            *("searchsorted", "bucketize", "histogram", "histogramdd", "put", "diagonal_scatter"),
            *("pixel_shuffle", "native_channel_shuffle"),
        ),
        NOT_OF_PYTORCH,
    ),
    **dict.fromkeys(
        ("nn.functional.avg_pool2d", "nn.functional.avg_pool3d"),
        "PyTorch's exporter ignores divisor_override",
    ),
    **{
        name: NO_OPERATOR
        for name in RECORDS
        if name.startswith("special.") and ("bessel" in name or "polynomial" in name)
    },
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
    try:
        session = written(group, path)
    except Exception as error:
        raise AssertionError(culprits(group, lambda part: written(part, path))) from error
    for kind in MASKS:
        expected = list(expected_of(group, kind))
        results = session(inputs_of(group, kind))
        for (name, parts), found in zip(expected, shares(group, results, expected), strict=True):
            assert_agree(found, parts, f"{name}, {kind}")


def assert_agree(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], what: str) -> None:
    """Masks bit for bit; values within the rounding of a runtime that has its own exp, and sums in its own order."""
    for i, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert one.dtype == other.dtype, f"{what}, result {i}: {one.dtype}, not {other.dtype}"
        assert_close(one, other, f"{what}, result {i}", exact=other.dtype == torch.bool, amplified=True)


def written(group: Group, path: Path) -> Session:
    with quiet():
        program = captured(group)
        inputs = [f"input_{i}" for i in range(len(program.graph_signature.user_inputs))]
        outputs = [f"output_{i}" for i in range(len(program.graph_signature.user_outputs))]
        translated(program, inputs, outputs, None).save(path)
        onnx.checker.check_model(path, full_check=True)
        return Session(path)


#: One operation of each family, of samples (batch, 4, 6).
FAMILIES: dict[str, Callable[..., Any]] = {
    "elementwise": lambda x: x.exp() + 1,
    "reductions": lambda x: (
        x.sum(-1),
        x.std(1),
        x.argmax(-1),
        x.logsumexp((1, 2)),
        x.prod(2),
        x.any(1),
        x.norm(dim=-1),
    ),
    "contractions": lambda x: (x @ x.mT, torch.einsum("bij,bkj->bi", x, x), F.linear(x, torch.ones(2, 6))),
    "convolutions": lambda x: F.conv1d(x, torch.ones(3, 4, 3), padding=1),
    "pooling": lambda x: (F.avg_pool1d(x, 2), F.max_pool1d(x, 3), F.adaptive_avg_pool1d(x, 2)),
    "interpolation": lambda x: F.interpolate(x, scale_factor=2.0, mode="linear"),
    "distances": lambda x: (torch.cdist(x, x), F.cosine_similarity(x, x, -1)),
    "views": lambda x: (x.flip(1), x.unsqueeze(1).expand(-1, 3, -1, -1), x.diagonal(0, 1, 2), x.tril()),
    "indexing": lambda x: (
        x[:, 1:3, ::2],
        x.gather(2, torch.zeros_like(x.filled(0.0), dtype=torch.int64)[..., :2]),
    ),
    "joins": lambda x: (torch.cat([x, x], 1), torch.stack([x, x], 2), F.pad(x, (1, 1))),
    "creation": torch.ones_like,
    "accumulation": lambda x: x.scatter_add(1, torch.zeros_like(x.filled(0.0), dtype=torch.int64), x),
    "losses": lambda x: F.mse_loss(x, x + 1, reduction="none"),
    "embeddings": lambda x: (
        F.embedding((x > 0).long(), torch.ones(2, 3)),
        F.embedding_bag((x[..., 0] > 0).long(), torch.ones(2, 3), mode="sum"),
    ),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "normalization": lambda x: (F.layer_norm(x, (6,)), F.instance_norm(x), F.normalize(x, dim=-1)),
    "gating": lambda x: F.glu(x, 1),
    "softmax": lambda x: (x.softmax(1), x.log_softmax(-1)),
    "scans": lambda x: (x.cumsum(1), x.cumprod(-1), *x.cummax(1)),
    "sorting": lambda x: (*x.sort(-1, stable=True), x.topk(2, 1).values),
    "order_statistics": lambda x: (x.median(-1).values, x.kthvalue(1, -1).values),
    "conversion": lambda x: x.double(),
}


class OfEachFamily(torch.nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        samples = mg.masked(x, mask)
        parts = [part for call in FAMILIES.values() for part in parts_of(call(samples))]
        return tuple([tensor for part in parts for tensor in (part.filled(0), part.mask)])


def test_a_batch_of_any_size_of_each_family(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    path = tmp_path / "families.onnx"

    def samples(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        mask = torch.rand(number, 4, 6, generator=generator) < 0.6
        return torch.randn(number, 4, 6, generator=generator).masked_fill(~mask, float("nan")), mask

    batch = {0: torch.export.Dim("batch")}
    with quiet(), torch.no_grad():
        program = torch.export.export(OfEachFamily(), samples(3), dynamic_shapes=(batch, batch), strict=False)
        width = len(program.graph_signature.user_outputs)
        translated(program, ["x", "mask"], [f"output_{i}" for i in range(width)], None).save(path)
        run = Session(path)
    for number in (0, 1, 5):
        given = samples(number)
        expected = OfEachFamily()(*given)
        for i, (one, other) in enumerate(zip(run(given), expected, strict=True)):
            assert one.shape == other.shape, f"output {i} of {number} samples"
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, equal_nan=True, msg=f"output {i}")


def test_each_family_has_a_batch() -> None:
    #: Random numbers have no equals; recurrence needs weights; the others have no batch, or say no more than views.
    without = {"random", "recurrence", "histograms", "metadata", "equality", "differentiation"}
    assert {operation.family for operation in OPERATIONS} == set(FAMILIES) | without


@pytest.mark.onnx
@pytest.mark.parametrize("name", UNWRITTEN)
def test_what_cannot_be_written_says_so(name: str, tmp_path: Path) -> None:
    path = tmp_path / "record.onnx"
    with pytest.raises(Exception):  # noqa: B017, PT012, PT011  (of many kinds; some only when the file is run)
        session = written((name,), path)
        for kind in MASKS:
            expected = list(expected_of((name,), kind))
            found = session(inputs_of((name,), kind))
            assert_agree(found, expected[0][1], f"{name}, {kind}")
