"""What ``torch.autocast`` computes in float32, for the same functions as in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from maskgrad.semantics.entries import HALVES, Entries
from maskgrad.semantics.sparse.entries import SparseEntries

# PyTorch's lists (docs: "Automatic Mixed Precision package", op-specific behavior), under the names of the records.
# What it computes in half precision (matmul, linear, conv, …) the bodies call, and it is cast there.
LOSSES = """binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy ctc_loss
    hinge_embedding_loss huber_loss kl_div l1_loss margin_ranking_loss mse_loss multi_margin_loss
    multilabel_margin_loss nll_loss poisson_nll_loss smooth_l1_loss soft_margin_loss triplet_margin_loss"""
FLOAT32 = {
    "cpu": frozenset(
        f"""{LOSSES} adaptive_avg_pool3d adaptive_max_pool3d avg_pool3d cdist fractional_max_pool2d
        fractional_max_pool3d grid_sample max_pool3d max_unpool1d max_unpool2d max_unpool3d nanquantile polar prod
        quantile trace view_as_complex""".split()
    ),
    "cuda": frozenset(
        f"""{LOSSES} __rdiv__ __rmod__ __rpow__ acos asin cdist cosh cosine_similarity cumprod cumsum dist erfinv exp
        expm1 group_norm layer_norm log log10 log1p log2 log_softmax norm normalize pdist pow prod reciprocal renorm
        rsqrt sinh softmax softmin softplus sum tan""".split()
    ),
}
#: The records that may be on a list of some device.
MAY_WIDEN = frozenset(
    prefix + name for names in FLOAT32.values() for name in names for prefix in ("", "nn.functional.")
)


def in_float32(name: str, body: Callable[..., Any], operands: Any) -> Callable[..., Any]:
    """The body of the record ``name``, in float32 if PyTorch's autocast computes these operands so."""
    device = _device(operands)
    listed = FLOAT32.get(device, frozenset())
    if name.removeprefix("nn.functional.") not in listed or not torch.is_autocast_enabled(device):
        return body

    def widened(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with torch.autocast(device, enabled=False):
            return body(function, wide(args), wide(kwargs))

    return widened


def wide(operand: Any) -> Any:
    """Halves as float32; the others as they are."""
    if isinstance(operand, Entries):
        return Entries(wide(operand.values), operand.mask)
    if isinstance(operand, SparseEntries):
        return SparseEntries(wide(operand.values), operand.pattern)
    if type(operand) in (tuple, list):
        return type(operand)([wide(part) for part in operand])
    if type(operand) is dict:
        return {name: wide(part) for name, part in operand.items()}
    return operand.float() if isinstance(operand, Tensor) and operand.dtype in HALVES else operand


def _device(operands: Any) -> str:
    """The kind of device of the first tensor."""
    for operand in operands:
        if isinstance(operand, (Entries, SparseEntries)):
            return operand.values.device.type
        if isinstance(operand, Tensor):
            return operand.device.type
        if type(operand) in (tuple, list):
            found = _device(operand)
            if found:
                return found
    return ""
