"""torch.nested (jagged): the same sequences as nested tensors and as MaskedTensors; values, and gradients of leaves.

What nested tensors refuse (of 1,000 lines like these, one third) is compared with one sequence after the other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import maskgrad as mg
from tests.peers.suite import Case, Masked, Suite

# It says at length why it takes no kernel.
logging.getLogger("torch.nested._internal.sdpa").setLevel(logging.ERROR)

Function = Callable[..., Any]

LENGTHS = ((3, 1, 4), (2, 2), (5,), (1, 6, 2, 3))
FEATURES = ((), (4,), (2, 3))
DTYPES = (torch.float64, torch.float32)

UNARY = (
    "abs", "neg", "exp", "expm1", "sin", "cos", "tanh", "sigmoid", "relu", "square", "sqrt", "rsqrt", "log", "log1p",
    "reciprocal", "erf", "sinh", "cosh", "tan", "atan", "asinh", "sign", "floor", "ceil", "trunc", "round", "frac",
    "sgn", "exp2", "log2", "digamma", "lgamma", "sinc", "clone", "detach", "isnan", "isfinite", "isinf", "log10",
    "acosh", "atanh", "signbit", "logical_not", "deg2rad",
)  # fmt: skip
ACTIVATIONS = (
    "gelu", "silu", "elu", "selu", "celu", "leaky_relu", "softplus", "softsign", "hardtanh", "hardswish", "hardsigmoid",
    "logsigmoid", "mish", "relu6", "tanhshrink", "hardshrink", "softshrink",
)  # fmt: skip
#: On these, only what is above zero has a value.
POSITIVE = {"sqrt", "rsqrt", "log", "log1p", "log2", "log10", "reciprocal", "digamma", "lgamma", "acosh"}
BINARY = (
    "add", "sub", "mul", "div", "maximum", "minimum", "atan2", "eq", "ne", "lt", "le", "gt", "ge", "pow", "fmod",
    "remainder", "hypot", "copysign", "floor_divide", "logaddexp", "logical_and", "logical_or", "logical_xor",
)  # fmt: skip
NUMBERS = ("add", "sub", "mul", "div", "pow", "eq", "lt", "gt", "le", "ge", "remainder", "fmod")
REDUCTIONS = (
    "sum", "mean", "amax", "amin", "prod", "any", "all", "argmax", "argmin", "var", "std", "logsumexp",
    "norm",
)  # fmt: skip

#: Along the last dimension, that of the features.
OVER_FEATURES: dict[str, Function] = {
    "softmax": lambda x: F.softmax(x, -1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "linear": lambda x: F.linear(x, _weight(5, x), _weight(5, x)[:, 0]),
    "matmul": lambda x: x @ _weight(5, x).t(),
    "cumsum": lambda x: x.cumsum(-1),
    "sort": lambda x: x.sort(-1).values,
    "topk": lambda x: x.topk(2, -1).values,
    "normalize": lambda x: F.normalize(x, dim=-1),
    "unsqueeze": lambda x: x.unsqueeze(-1),
    "select": lambda x: x.select(-1, 1),
    "narrow": lambda x: x.narrow(-1, 1, 2),
    "index": lambda x: x[..., 0],
    "chunk": lambda x: x.chunk(2, -1)[0],
    "split": lambda x: x.split(2, -1)[1],
    "cat": lambda x: torch.cat([x, x * 2], -1),
    "dropout in evaluation": lambda x: F.dropout(x, 0.5, training=False),
    "transposed features": lambda x: x.transpose(-1, -2),
    "flattened features": lambda x: x.flatten(2),
    "glu": lambda x: F.glu(torch.cat([x, x], -1)),
}
#: Of the sequences themselves.
OVER_SEQUENCES: dict[str, Function] = {
    "softmax over time": lambda x: torch.softmax(x, 1),
    "masked_fill": lambda x: x.masked_fill(x > 0, 2.0),
    "where": lambda x: torch.where(x > 0, x, x * 2),
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "nan_to_num": torch.nan_to_num,
    "zeros_like": torch.zeros_like,
    "ones_like": torch.ones_like,
    "full_like": lambda x: torch.full_like(x, 3.0),
    "to another dtype": lambda x: x.to(torch.float64),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0.5),
    "lerp": lambda x: torch.lerp(x, x * 3, 0.3),
    "one sequence": lambda x: x[0],
    "unbound": lambda x: x.unbind(0)[-1],
}


class Batch(NamedTuple):
    """Sequences, and where their values begin."""

    label: str
    parts: list[Tensor]


def _weight(size: int, x: Any) -> Tensor:
    width = int(x.shape[-1])
    return torch.linspace(-1, 1, size * width, dtype=x.dtype).reshape(size, width)


def _batches() -> Iterator[Batch]:
    draw = torch.Generator().manual_seed(0)
    for lengths in LENGTHS:
        for features in FEATURES:
            for dtype in DTYPES:
                parts = [
                    torch.randn(n, *features, generator=draw, dtype=torch.float64).to(dtype) for n in lengths
                ]
                alone = " with one alone" if 1 in lengths else ""
                yield Batch(f"{str(dtype)[6:]} {lengths} {features}{alone}", parts)


def _offsets(parts: list[Tensor]) -> Tensor:
    return torch.tensor([0, *np.cumsum([len(part) for part in parts]).tolist()])


def _padded(parts: list[Tensor]) -> Masked:
    parts = [part.detach() for part in parts]
    sizes = [max(part.shape[d] for part in parts) for d in range(parts[0].ndim)]
    values, mask = parts[0].new_zeros(len(parts), *sizes), torch.zeros(len(parts), *sizes, dtype=torch.bool)
    for i, part in enumerate(parts):
        there = (i, *map(slice, part.shape))
        values[there], mask[there] = part, True
    return Masked(values.numpy(), mask.numpy())


def _as_nested(operation: Function, *operands: list[Tensor]) -> tuple[Any, Tensor]:
    """The result, and its entries, one sequence behind the other."""
    offsets = _offsets(operands[0])  # operands that share them fit each other
    nested = [torch.nested.nested_tensor_from_jagged(torch.cat(parts), offsets) for parts in operands]
    found = operation(*nested)
    if not found.is_nested:
        return found, found.reshape(-1)
    parts = found.unbind()
    return _padded(parts), torch.cat([part.reshape(-1) for part in parts])


def _one_by_one(everything: bool, operation: Function, *operands: list[Tensor]) -> tuple[Any, Tensor]:
    if everything:  # sums over all
        found = operation(torch.cat([part.reshape(-1) for part in operands[0]]))
        return found, found.reshape(-1)
    parts = [operation(*(part[None] for part in row))[0] for row in zip(*operands, strict=True)]
    return _padded(parts), torch.cat([part.reshape(-1) for part in parts])


def _as_masked(layout: torch.layout, operation: Function, *operands: list[Tensor]) -> tuple[Any, Tensor]:
    found = operation(*(mg.from_sequences(parts, layout=layout) for parts in operands))
    return found, found.compressed() if isinstance(found, mg.MaskedTensor) else found.reshape(-1)


def _run(run: Function, operation: Function, operands: list[list[Tensor]]) -> Any:
    """The result, and the gradients of the leaves, by weights of which no two are alike."""
    leaves = [[part.clone().requires_grad_() for part in parts] for parts in operands]
    found, flat = run(operation, *leaves)
    if not flat.requires_grad:
        return (found,)
    weights = torch.linspace(0.5, 1.5, flat.numel(), dtype=torch.float64).to(flat.dtype)
    all_leaves = [part for parts in leaves for part in parts]
    gradients = torch.autograd.grad((flat * weights).sum(), all_leaves, allow_unused=True)
    zero = [torch.zeros_like(p) if g is None else g for p, g in zip(all_leaves, gradients, strict=True)]
    return (found, np.concatenate([g.numpy().reshape(-1) for g in zero]))


def _theirs(everything: bool, operation: Function, operands: list[list[Tensor]]) -> Any:
    try:
        return _run(_as_nested, operation, operands)
    except (RuntimeError, NotImplementedError, AttributeError, ValueError, IndexError):
        return _run(partial(_one_by_one, everything), operation, operands)


def _operations(features: int) -> Iterator[tuple[str, Function, int]]:
    """Name, operation, and the number of operands."""
    for name in UNARY:
        positive = name in POSITIVE
        yield name, partial(lambda n, p, x: getattr(torch, n)(x.abs() + 1.1 if p else x), name, positive), 1
    for name in ACTIVATIONS:
        yield name, getattr(F, name), 1
    for name in BINARY:
        positive = name == "pow"
        yield (
            name,
            partial(lambda n, p, x, y: getattr(torch, n)(x.abs() + 1 if p else x, y), name, positive),
            2,
        )
    for name in NUMBERS:
        yield f"{name} with 2.5", partial(lambda n, x: getattr(torch, n)(x.abs(), 2.5), name), 1
    for name in REDUCTIONS:
        dims = [1, *([-1] if features else [])]
        for dim in dims:
            for keepdim in (False, True):
                what = f"{name} dim={dim} keepdim={keepdim}"
                yield what, partial(lambda n, d, k, x: getattr(x, n)(dim=d, keepdim=k), name, dim, keepdim), 1
        yield f"{name} over all", partial(lambda n, x: getattr(x, n)(), name), 1
    for name, operation in OVER_SEQUENCES.items():
        yield name, operation, 1
    for name, operation in OVER_FEATURES.items() if features else ():
        yield name, operation, 1


def _attention(causal: bool, scale: float | None, q: Any, k: Any, v: Any) -> Any:
    """Heads of size 3, from sequences (B, T, 2, 3)."""
    heads = [x.transpose(1, 2) for x in (q, k, v)]
    return F.scaled_dot_product_attention(*heads, is_causal=causal, scale=scale).transpose(1, 2)


def cases() -> Iterator[Case]:
    """Each operation on batches that differ in lengths, features and dtype, jagged; some with a Boolean mask."""
    for number, batch in enumerate(_batches()):
        features = batch.parts[0].ndim - 1
        others = [part.flip(0) * 0.7 + 0.1 for part in batch.parts]
        rtol = 1e-4 if batch.parts[0].dtype is torch.float32 else 1e-9
        for k, (name, operation, operands) in enumerate(_operations(features)):
            if (k + number) % 3:  # each operation on a third of the batches
                continue
            layout = torch.jagged if k % 5 or number % 4 else torch.strided
            given = [batch.parts, others][:operands]
            theirs = partial(_theirs, "over all" in name, operation, given)
            ours = partial(_run, partial(_as_masked, layout), operation, given)
            yield Case(f"{name} {batch.label}", theirs, ours, rtol)
        if features == 2:
            third = [part.cos() for part in batch.parts]
            for causal in (False, True):
                for scale in (None, 0.4):
                    for layout in (torch.jagged, torch.strided):
                        attend = partial(_attention, causal, scale)
                        given = [batch.parts, others, third]
                        yield Case(
                            f"attention causal={causal} scale={scale} {layout} {batch.label}",
                            partial(_theirs, False, attend, given),
                            partial(_run, partial(_as_masked, layout), attend, given),
                            rtol,
                        )


SUITE = Suite("torch.nested", torch.__version__, cases)
