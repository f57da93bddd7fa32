"""Operations that ``torch.autocast`` runs in float32, and those on stored entries in half precision, as in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from maskgrad.semantics.entries import HALVES, Entries
from maskgrad.semantics.stored.entries import StoredEntries

# PyTorch's lists (docs: "Automatic Mixed Precision package", op-specific behavior), under the names of the records.
# The rules call the functions that autocast runs in half precision (matmul, linear, conv, …), which casts them; those
# for stored entries do not call them, and get their operands in half precision.
LOSSES = """binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy ctc_loss
    hinge_embedding_loss huber_loss kl_div l1_loss margin_ranking_loss mse_loss multi_margin_loss
    multilabel_margin_loss nll_loss poisson_nll_loss smooth_l1_loss soft_margin_loss triplet_margin_loss"""
CASTABLE = (torch.float32, *HALVES)
FLOAT32 = {
    "cpu": frozenset(
        f"""{LOSSES} adaptive_avg_pool3d adaptive_max_pool3d avg_pool3d cdist fractional_max_pool2d
        fractional_max_pool3d grid_sample lp_pool3d max_pool3d max_unpool1d max_unpool2d max_unpool3d nanquantile polar
        prod quantile trace view_as_complex""".split()
    ),
    "cuda": frozenset(
        f"""{LOSSES} __rdiv__ __rmod__ __rpow__ acos asin cdist cosh cosine_similarity cumprod cumsum dist erfinv exp
        expm1 group_norm layer_norm log log10 log1p log2 log_softmax norm normalize pdist pow prod reciprocal renorm
        rsqrt sinh softmax softmin softplus sum tan""".split()
    ),
}
_NARROWED = "addbmm addmm baddbmm bmm inner linalg.vecdot linear matmul mm prelu"
NARROWED = {
    "cpu": frozenset(_NARROWED.split()),
    "cuda": frozenset(f"{_NARROWED} addmv addr mv".split()),
}


def as_autocast(name: str, body: Callable[..., Any], operands: Any, stored: bool) -> Callable[..., Any]:
    """Wrap the rule of ``name`` (``stored``: on stored entries) to run in the precision of PyTorch's autocast."""
    device, name = _device(operands), name.removeprefix("nn.functional.")
    if name in FLOAT32.get(device, ()):
        dtype = torch.float32
    elif stored and name in NARROWED.get(device, ()):
        dtype = None
    else:
        return body
    if not torch.is_autocast_enabled(device):
        return body
    dtype = dtype or torch.get_autocast_dtype(device)

    def cast_first(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with torch.autocast(device, enabled=False):
            return body(function, cast(args, dtype), cast(kwargs, dtype))

    return cast_first


def cast(operand: Any, dtype: torch.dtype) -> Any:
    """Cast values of at most single precision to ``dtype``; return others unchanged."""
    if isinstance(operand, Entries):
        return Entries(cast(operand.values, dtype), operand.mask)
    if isinstance(operand, StoredEntries):
        return StoredEntries(cast(operand.values, dtype), operand.pattern)
    if type(operand) in (tuple, list):
        return type(operand)([cast(part, dtype) for part in operand])
    if type(operand) is dict:
        return {name: cast(part, dtype) for name, part in operand.items()}
    return operand.to(dtype) if isinstance(operand, Tensor) and operand.dtype in CASTABLE else operand


def _device(operands: Any) -> str:
    """Device type of the first tensor."""
    for operand in operands:
        if isinstance(operand, (Entries, StoredEntries)):
            return operand.values.device.type
        if isinstance(operand, Tensor):
            return operand.device.type
        if type(operand) in (tuple, list):
            found = _device(operand)
            if found:
                return found
    return ""
