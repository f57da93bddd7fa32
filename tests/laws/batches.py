"""Law 4, the bits of a sample do not depend on the batch: operations within samples (T, D), and their bits compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import maskgrad as mg
from tests.laws.any_type.comparison import parts_of
from tests.laws.any_type.evaluation import attempt
from tests.laws.any_type.operator_database import entry_named
from tests.laws.deletion_samples import ALONG, LOSSES, OF_ONE, OF_SEVERAL

__all__ = ["CHOSEN", "FAMILIES", "LAYOUTS", "NOT_COVERED", "WITHIN", "Setting", "broken", "settings"]

SAMPLES, LENGTH, WIDTH, HEADS = 64, 37, 24, 4
#: The samples of a smaller batch, at other positions than in the whole one.
CHOSEN = {number: list(range(5, SAMPLES, SAMPLES // number))[:number] for number in (1, 2, 7, 33)}
CHOSEN[33] = list(range(SAMPLES))[::-1][:33]
LAYOUTS = ("rows", "padded", "jagged")
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
GARBAGE = (float("nan"), 1e30, float("-inf"), -3.0)

_generator = torch.Generator().manual_seed(4)
MATRIX, BIAS, SQUARE, SCALE = (
    torch.rand(*size, generator=_generator) - 0.4 for size in ((16, WIDTH), (16,), (WIDTH, WIDTH), (WIDTH,))
)
VALUES = torch.rand(SAMPLES, LENGTH, WIDTH, generator=_generator) * 0.9 + 0.05
LENGTHS = torch.randint(1, LENGTH + 1, (SAMPLES,), generator=_generator)
LENGTHS[0] = LENGTH
VALUES[61, 0] = 0  # beside zeros PyTorch differentiates products in another way
HOLES = torch.rand(SAMPLES, LENGTH, WIDTH, generator=_generator) < 0.7


def _along(name: str, *dims: Any, **options: Any) -> list[Callable[..., Any]]:
    """The function of an entry of the database."""
    function = entry_named(name).function
    return [lambda x, dim=dim: function(x, dim=dim, **options) for dim in dims]


def _each(function: Callable[..., Any], **options: Any) -> list[Callable[..., Any]]:
    """A loss of each position."""
    return [lambda x: function(x, x.detach() * 0.5 + 0.1, reduction="none", **options)]


def _heads(x: Any) -> Any:
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def _labels(x: Any) -> Any:
    return (x.detach().select(-1, 0) * 7).long()


#: Families in which each operation is in one of these two tables.
FAMILIES = (
    "reductions",
    "softmax",
    "scans",
    "normalization",
    "losses",
    "attention",
    "contractions",
    "distances",
)
#: Why the law says nothing of the others.
NOT_COVERED = {
    "of integers, which add exactly, or copies": "hash_tensor",
    "over the batch, or of a matrix without samples": (
        "sum_to_size cov corrcoef linalg.matrix_norm linalg.norm nn.functional.batch_norm native_batch_norm "
        "_batch_norm_with_update renorm mm mv dot vdot inner outer kron tensordot addmm addmv addr addbmm "
        "linalg.multi_dot chain_matmul linalg.matrix_power trace vander linalg.vander cdist dist nn.functional.pdist"
    ),
    "PyTorch's own formula, as by default": (
        "_safe_softmax gradient cumulative_trapezoid native_layer_norm native_group_norm "
        "nn.functional.local_response_norm bmm linalg.vecdot einsum bilinear baddbmm cross linalg.cross "
        "nn.functional.linear_cross_entropy nn.functional.gaussian_nll_loss nn.functional.multilabel_soft_margin_loss "
        "nn.functional.multi_margin_loss nn.functional.multilabel_margin_loss nn.functional.margin_ranking_loss "
        "nn.functional.cosine_embedding_loss nn.functional.triplet_margin_loss nn.functional.ctc_loss "
        "nn.functional.triplet_margin_with_distance_loss nn.functional.multi_head_attention_forward "
        "_nested_tensor_from_mask_left_aligned nn.functional.pairwise_distance"
    ),
    "drawn": "nn.functional.gumbel_softmax",
}


def _record(name: str) -> str:
    return str(entry_named(name).operation.name)


def _covered(name: str) -> bool:
    named = {record for records in NOT_COVERED.values() for record in records.split()}
    return entry_named(name).operation.family in FAMILIES and _record(name) not in named


#: Calls by the names of records.
WITHIN: dict[str, list[Callable[..., Any]]] = {
    **{_record(name): _along(name, 1, 2, (1, 2)) for name in OF_SEVERAL if _covered(name)},
    **{_record(name): _along(name, 1, 2) for name in (*OF_ONE, *ALONG) if _covered(name)},
    **{name: _each(entry_named(name).function) for name in LOSSES if _covered(name)},
    "nn.functional.binary_cross_entropy": _each(F.binary_cross_entropy),
    "nn.functional.layer_norm": [lambda x: F.layer_norm(x, (WIDTH,), SCALE.to(x.dtype), SCALE.to(x.dtype))],
    "nn.functional.rms_norm": [lambda x: F.rms_norm(x, (WIDTH,), SCALE.to(x.dtype))],
    "nn.functional.group_norm": [
        lambda x: F.group_norm(x.transpose(1, 2), 4, SCALE.to(x.dtype)).transpose(1, 2)
    ],
    "nn.functional.instance_norm": [lambda x: F.instance_norm(x.transpose(1, 2)).transpose(1, 2)],
    "nn.functional.cosine_similarity": [lambda x: F.cosine_similarity(x, SCALE.to(x.dtype), -1)],
    "linear": [lambda x: F.linear(x, MATRIX.to(x.dtype), BIAS.to(x.dtype))],
    "matmul": [
        lambda x: x @ SQUARE.to(x.dtype),
        lambda x: x @ x.transpose(1, 2),
        lambda x: x @ SCALE.to(x.dtype),
    ],
    "nn.functional.cross_entropy": [
        lambda x: F.cross_entropy(x.transpose(1, 2), _labels(x), reduction="none"),
        lambda x: F.cross_entropy(x.transpose(1, 2), _labels(x), reduction="none", label_smoothing=0.1),
    ],
    "nn.functional.nll_loss": [lambda x: F.nll_loss(x.transpose(1, 2), _labels(x), reduction="none")],
    "nn.functional.scaled_dot_product_attention": [
        lambda x, causal=causal: F.scaled_dot_product_attention(*[_heads(x)] * 3, is_causal=causal)
        for causal in (False, True)
    ],
}
WITHIN["linalg.vector_norm"] += [
    call for order in (1, 3, 0.5, float("inf")) for call in _along("linalg.vector_norm", 1, 2, ord=order)
]


class Setting(NamedTuple):
    """What must not matter: which samples are in the batch, padding behind them, gradients, threads, garbage."""

    chosen: list[int]
    padding: int = 0
    gradient: bool = True
    threads: int = 1
    garbage: float = 0.0


def settings(light: bool) -> Iterator[Setting]:
    """All of them, or some."""
    place = 0
    for chosen in [CHOSEN[1], CHOSEN[33]] if light else CHOSEN.values():
        for padding in (0, 37) if light else (0, 1, 37):
            for threads in (2,) if light else (1, 2):
                for gradient in (True, False):
                    place += 1
                    yield Setting(
                        chosen, padding, gradient, threads, GARBAGE[(place + place // 4) % len(GARBAGE)]
                    )


def batch(layout: str, dtype: torch.dtype, setting: Setting) -> tuple[Tensor, Any]:
    """The values, with garbage where nothing is specified, and the masked batch."""
    values = F.pad(VALUES[setting.chosen], (0, 0, 0, setting.padding)).to(dtype)
    lengths = LENGTHS[setting.chosen]
    mask = (torch.arange(values.shape[1]) < lengths[:, None])[..., None].expand(values.shape)
    if layout == "rows":
        mask = mask & F.pad(HOLES[setting.chosen], (0, 0, 0, setting.padding))
    values = torch.where(mask, values, setting.garbage).requires_grad_(setting.gradient)
    if layout == "rows":
        return values, mg.masked(values, mask)
    return values, mg.from_lengths(
        values, lengths, layout=torch.jagged if layout == "jagged" else torch.strided
    )


def _fitted(part: Any, length: int) -> Tensor:
    """A plain tensor of the specified entries, without the padding: its dimensions of size ``length``, cut."""
    part = part.to_dense() if isinstance(part, mg.MaskedTensor) and part.layout is torch.jagged else part
    part = part.filled(0) if isinstance(part, mg.MaskedTensor) else part
    for dim in range(1, part.ndim):
        if part.shape[dim] >= length > LENGTH or part.shape[dim] in (length, length - 1):
            part = part.narrow(dim, 0, min(LENGTH - (length - part.shape[dim]), part.shape[dim]))
    return part  # type: ignore[no-any-return]


def computed(function: Callable[..., Any], layout: str, dtype: torch.dtype, setting: Setting) -> list[Tensor]:
    """The results of each sample, and its gradient if one is recorded, of weights that depend on the sample alone."""
    torch.set_num_threads(setting.threads)
    values, x = batch(layout, dtype, setting)
    found = [_fitted(part, values.shape[1]) for part in parts_of(function(x))]
    if setting.gradient:
        moving = [part for part in found if part.requires_grad]
        weights = [
            torch.linspace(-1, 1, SAMPLES * part[0].numel()).reshape(SAMPLES, *part.shape[1:])
            for part in moving
        ]
        pairs = [
            (part, weight[setting.chosen].to(part.dtype))
            for part, weight in zip(moving, weights, strict=True)
        ]
        if pairs:
            parts, given = zip(*pairs, strict=True)
            grads = attempt(torch.autograd.grad, (parts, [values], given), {})
            if isinstance(grads, Exception):
                assert "derivative" in str(grads), grads  # PyTorch has none for some
                grads = ()
            found += [grad[:, :LENGTH] for grad in grads]
    return [part.detach().contiguous() for part in found]


def bits(part: Tensor) -> Tensor:
    return part if part.dtype is torch.bool else part.view(INTEGERS[part.element_size()])


def broken(function: Callable[..., Any], layout: str, dtype: torch.dtype, light: bool = False) -> list[str]:
    """The settings in which a sample has other bits than in the batch of all."""
    threads, found = torch.get_num_threads(), []
    try:
        whole = computed(function, layout, dtype, Setting(list(range(SAMPLES))))
        for setting in settings(light):
            for place, (part, other) in enumerate(
                zip(computed(function, layout, dtype, setting), whole, strict=False)
            ):
                if not torch.equal(bits(part), bits(other[setting.chosen].contiguous())):
                    found.append(f"{place}: {setting._replace(chosen=[len(setting.chosen)])}")
                    break
    finally:
        torch.set_num_threads(threads)
    return found
