"""Operations without a meaning on incomplete data, with the reason and the remedy.

A refusal is a record like any other. It is reviewed by hand; unimplemented operations are not listed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Refusal(NamedTuple):
    """An operation that is refused on masked data.

    Attributes:
        name: torch's name.
        functions: every callable of torch with this meaning.
        reason: why it has no meaning on incomplete data.
        remedy: what to do instead.
        of_values: whether it is PyTorch's function where nothing is missing; else no MaskedTensor is taken.
        methods: names under which ``torch.Tensor`` has it.
    """

    name: str
    functions: tuple[Callable[..., Any], ...]
    reason: str
    remedy: str
    of_values: bool
    methods: tuple[str, ...]


FILL = (
    "Fill it first, x.filled(value): with a known value, or with any if nothing is missing, which cannot be seen in a "
    "graph. "
)
BLOCK = (
    f"{FILL}Or take a complete block, as in k = x.mask.all(-1); x[k][:, k], and without its missing equations a "
    "right-hand side, torch.linalg.lstsq(a[b.mask], b[b.mask])."
)
WINDOW = f"{FILL}Or take a complete part, as in x[:, x.mask.all(0)]."
SIGNAL = (
    "Of padded signals, reflect each at its own end: https://maskgrad.github.io/maskgrad/how_do_i/spectrogram.html. "
    "Filled ones are wrong there."
)

MATRIX = "the result for a matrix with missing entries depends on them"
SPECTRUM = (
    "every coefficient of the transform depends on every entry, and deleting some changes the frequencies"
)

INTERNAL = "it is one half of a derivative, which autograd calls with the complete indices of the other half"
BACKWARD = "Let autograd call it: max_pool2d(x, …) followed by backward()."

PACKED = "a packed sequence has neither padding nor a mask"
PADDED = (
    "Pass the padded batch to nn.LSTM, nn.GRU or nn.RNN, which stop each sequence at its own end; or pack "
    "x.filled(0)."
)

GROUPS: tuple[tuple[str, tuple[Any, ...], str, str, bool], ...] = (
    (
        """cholesky cholesky_ex cholesky_inverse cholesky_solve qr geqrf householder_product orgqr ormqr
        svd svdvals svd_lowrank pca_lowrank eig eigvals eigh eigvalsh lu lu_factor lu_factor_ex lu_solve lu_unpack
        ldl_factor ldl_factor_ex ldl_solve lstsq inv inv_ex inverse pinv pinverse solve solve_ex solve_triangular
        triangular_solve det slogdet logdet cond matrix_rank matrix_exp tensorinv tensorsolve lobpcg""",
        (torch, torch.linalg, Tensor),
        MATRIX,
        BLOCK,
        True,
    ),
    ("spsolve", (torch.sparse,), MATRIX, BLOCK, True),
    ("matrix_sqrth polar", (torch.linalg,), MATRIX, BLOCK, True),  # since 2.15; not torch.polar
    (
        """fft fft2 fftn hfft hfft2 hfftn rfft rfft2 rfftn ifft ifft2 ifftn ihfft ihfft2 ihfftn irfft irfft2 irfftn""",
        (torch.fft,),
        SPECTRUM,
        WINDOW,
        True,
    ),
    ("stft istft", (torch, Tensor), SPECTRUM, SIGNAL, True),
    (
        "resize_ resize_as_",
        (torch, Tensor),
        "it resizes the storage without autograd: entries lose their positions, and new ones hold no data",
        "Use x.reshape(…) if the number of entries stays, else x[…] to take fewer, or torch.nn.functional.pad to add.",
        False,
    ),
    (
        "conv_tbc",
        (torch, F),
        "conv1d is the same convolution, with a rule for masks",
        "Write F.conv1d(x.permute(1, 2, 0), weight.permute(2, 1, 0), bias, padding=pad).permute(2, 0, 1).",
        False,
    ),
    ("_pack_padded_sequence", (torch, torch._C._VariableFunctions), PACKED, PADDED, False),
    ("max_pool2d_with_indices_backward", (torch.ops.aten,), INTERNAL, BACKWARD, False),
    (
        "__dlpack__ __dlpack_device__",
        (Tensor,),
        "DLPack has no place for a mask, and masked values would be read as data",
        "Write x.clone() for a copy, x.filled(0.) for a plain tensor, or pass x.filled(0.) and x.mask.",
        False,
    ),
)


def _functions(name: str, namespaces: tuple[Any, ...]) -> tuple[Callable[..., Any], ...]:
    found = dict.fromkeys(f for namespace in namespaces if callable(f := getattr(namespace, name, None)))
    for operator in tuple(found):
        if isinstance(operator, torch._ops.OpOverloadPacket):  # calls arrive as one of its overloads
            found |= dict.fromkeys(getattr(operator, overload) for overload in operator.overloads())
    return tuple(found)


REFUSALS: tuple[Refusal, ...] = tuple(
    Refusal(
        name, functions, reason, remedy, of_values, (name,) if callable(getattr(Tensor, name, None)) else ()
    )
    for names, namespaces, reason, remedy, of_values in GROUPS
    for name in names.split()
    if (functions := _functions(name, namespaces))
)
