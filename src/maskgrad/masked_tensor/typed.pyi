"""MaskedTensor as type checkers see it: a Tensor whose methods return MaskedTensors. Nothing of it exists at run time.

The arguments of inherited methods are not checked. Each name is declared, because Pyright prefers a declaration, even
Tensor's, to an inferred ``abs = acos = masked``. A test compares the names with the class.
"""

# ruff: noqa: E702, N815
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, overload

import torch
from torch import Tensor

from maskgrad.masked_tensor import completeness, sequence_ends, sequences, storage
from maskgrad.masked_tensor.tensor import MaskedTensor

__all__ = ["TypedTensor"]

class _Ordered(NamedTuple):
    values: MaskedTensor
    indices: MaskedTensor

class _Extrema(NamedTuple):
    min: MaskedTensor
    max: MaskedTensor

class _Exponents(NamedTuple):
    mantissa: MaskedTensor
    exponent: MaskedTensor

class _Histogram(NamedTuple):
    hist: MaskedTensor
    bin_edges: MaskedTensor

_Masked: TypeAlias = Callable[..., MaskedTensor]
_Parts: TypeAlias = Callable[..., tuple[MaskedTensor, ...]]
_Order: TypeAlias = Callable[..., _Ordered]

class _Reduction:
    @overload  # to a number, which is plain
    def __call__(self, *, dim: None = None, dtype: torch.dtype | None = None) -> Tensor: ...
    @overload
    def __call__(self, *args: Any, **kwargs: Any) -> MaskedTensor: ...

class _Spread:
    @overload
    def __call__(self, dim: None = None, *, correction: float | None = 1) -> Tensor: ...
    @overload
    def __call__(self, unbiased: bool) -> Tensor: ...
    @overload
    def __call__(self, *args: Any, **kwargs: Any) -> MaskedTensor: ...

class _Norm:
    @overload
    def __call__(self, p: Any = "fro", dim: None = None, *, dtype: torch.dtype | None = None) -> Tensor: ...
    @overload
    def __call__(self, *args: Any, **kwargs: Any) -> MaskedTensor: ...

class _Extreme:
    @overload
    def __call__(self, other: Tensor | None = None) -> MaskedTensor: ...
    @overload
    def __call__(self, dim: int, keepdim: bool = False) -> _Ordered: ...

class _Type:
    @overload
    def __call__(self) -> str: ...
    @overload
    def __call__(self, dtype: torch.dtype | str, non_blocking: bool = False) -> MaskedTensor: ...

class _Middle:
    @overload
    def __call__(self) -> Tensor: ...
    @overload
    def __call__(self, dim: int, keepdim: bool = False) -> _Ordered: ...

# fmt: off
class _Methods:
    def __getitem__(self, index: Any) -> MaskedTensor: ...
    def __setitem__(self, index: Any, value: Any) -> None: ...

    to_sparse_tensor = storage.to_sparse_tensor
    compressed = storage.compressed
    num_specified = storage.num_specified
    to_jagged = sequences.to_jagged
    offsets = sequences.offsets
    lengths = sequences.lengths
    first = sequence_ends.first
    last = sequence_ends.last
    drop_first = sequence_ends.drop_first
    drop_last = sequence_ends.drop_last
    complete = completeness.complete

    grad: MaskedTensor | None
    T: MaskedTensor; H: MaskedTensor; mT: MaskedTensor; mH: MaskedTensor; real: MaskedTensor
    imag: MaskedTensor; data: MaskedTensor

    all: _Reduction; any: _Reduction; count_nonzero: _Reduction; mean: _Reduction; nanmean: _Reduction
    nansum: _Reduction; prod: _Reduction; sum: _Reduction
    std: _Spread; var: _Spread
    norm: _Norm; type: _Type
    max: _Extreme; min: _Extreme
    median: _Middle; nanmedian: _Middle
    cummax: _Order; cummin: _Order; kthvalue: _Order; mode: _Order; sort: _Order; topk: _Order
    aminmax: Callable[..., _Extrema]
    frexp: Callable[..., _Exponents]
    histogram: Callable[..., _Histogram]
    chunk: _Parts; dsplit: _Parts; hsplit: _Parts; split: _Parts; split_with_sizes: _Parts
    tensor_split: _Parts; unbind: _Parts; unsafe_chunk: _Parts; unsafe_split: _Parts
    unsafe_split_with_sizes: _Parts; vsplit: _Parts

    __eq__: _Masked; __ne__: _Masked  # type: ignore[assignment]
    __neg__: _Masked; __pos__: _Masked; __abs__: _Masked; __invert__: _Masked; __lt__: _Masked
    __le__: _Masked; __gt__: _Masked; __ge__: _Masked; __add__: _Masked
    __sub__: _Masked; __mul__: _Masked; __truediv__: _Masked; __floordiv__: _Masked; __mod__: _Masked
    __pow__: _Masked; __matmul__: _Masked; __and__: _Masked; __or__: _Masked; __xor__: _Masked
    __lshift__: _Masked; __rshift__: _Masked; __radd__: _Masked; __rsub__: _Masked; __rmul__: _Masked
    __rtruediv__: _Masked; __rfloordiv__: _Masked; __rmod__: _Masked; __rpow__: _Masked; __rmatmul__: _Masked
    __rand__: _Masked; __ror__: _Masked; __rxor__: _Masked; __rlshift__: _Masked; __rrshift__: _Masked
    __iadd__: _Masked; __isub__: _Masked; __imul__: _Masked; __itruediv__: _Masked; __ifloordiv__: _Masked
    __imod__: _Masked; __ipow__: _Masked; __imatmul__: _Masked; __iand__: _Masked; __ior__: _Masked
    __ixor__: _Masked; __ilshift__: _Masked; __irshift__: _Masked

    abs: _Masked; abs_: _Masked; absolute: _Masked; absolute_: _Masked; acos: _Masked; acos_: _Masked
    acosh: _Masked; acosh_: _Masked; add: _Masked; add_: _Masked; addbmm: _Masked; addbmm_: _Masked
    addcdiv: _Masked; addcdiv_: _Masked; addcmul: _Masked; addcmul_: _Masked; addmm: _Masked; addmm_: _Masked
    addmv: _Masked; addmv_: _Masked; addr: _Masked; addr_: _Masked; adjoint: _Masked; amax: _Masked
    amin: _Masked; angle: _Masked; arccos: _Masked; arccos_: _Masked; arccosh: _Masked; arccosh_: _Masked
    arcsin: _Masked; arcsin_: _Masked; arcsinh: _Masked; arcsinh_: _Masked; arctan: _Masked; arctan2: _Masked
    arctan2_: _Masked; arctan_: _Masked; arctanh: _Masked; arctanh_: _Masked; argmax: _Masked; argmin: _Masked
    argsort: _Masked; as_strided: _Masked; as_strided_: _Masked; as_strided_scatter: _Masked; asin: _Masked
    asin_: _Masked; asinh: _Masked; asinh_: _Masked; atan: _Masked; atan2: _Masked; atan2_: _Masked
    atan_: _Masked; atanh: _Masked; atanh_: _Masked; baddbmm: _Masked; baddbmm_: _Masked; bernoulli: _Masked
    bernoulli_: _Masked; bfloat16: _Masked; bincount: _Masked; bitwise_and: _Masked; bitwise_and_: _Masked
    bitwise_left_shift: _Masked; bitwise_left_shift_: _Masked; bitwise_not: _Masked; bitwise_not_: _Masked
    bitwise_or: _Masked; bitwise_or_: _Masked; bitwise_right_shift: _Masked; bitwise_right_shift_: _Masked
    bitwise_xor: _Masked; bitwise_xor_: _Masked; bmm: _Masked; bool: _Masked; broadcast_to: _Masked
    byte: _Masked; cauchy_: _Masked; cdouble: _Masked; ceil: _Masked; ceil_: _Masked; cfloat: _Masked
    chalf: _Masked; char: _Masked; clamp: _Masked; clamp_: _Masked; clamp_max: _Masked; clamp_max_: _Masked
    clamp_min: _Masked; clamp_min_: _Masked; clip: _Masked; clip_: _Masked; clone: _Masked; coalesce: _Masked
    conj: _Masked; conj_physical: _Masked; conj_physical_: _Masked; contiguous: _Masked; copy_: _Masked
    copysign: _Masked; copysign_: _Masked; corrcoef: _Masked; cos: _Masked; cos_: _Masked; cosh: _Masked
    cosh_: _Masked; cov: _Masked; cpu: _Masked; cross: _Masked; cuda: _Masked; cumprod: _Masked
    cumprod_: _Masked; cumsum: _Masked; cumsum_: _Masked; deg2rad: _Masked; deg2rad_: _Masked; detach: _Masked
    detach_: _Masked; diag: _Masked; diag_embed: _Masked; diagflat: _Masked; diagonal: _Masked
    diagonal_scatter: _Masked; diff: _Masked; digamma: _Masked; digamma_: _Masked; div: _Masked; div_: _Masked
    divide: _Masked; divide_: _Masked; dot: _Masked; double: _Masked; eq: _Masked; eq_: _Masked; erf: _Masked
    erf_: _Masked; erfc: _Masked; erfc_: _Masked; erfinv: _Masked; erfinv_: _Masked; exp: _Masked
    exp2: _Masked; exp2_: _Masked; exp_: _Masked; expand: _Masked; expand_as: _Masked; expm1: _Masked
    expm1_: _Masked; exponential_: _Masked; fill_: _Masked; fix: _Masked; fix_: _Masked; flatten: _Masked
    flip: _Masked; fliplr: _Masked; flipud: _Masked; float: _Masked; float_power: _Masked
    float_power_: _Masked; floor: _Masked; floor_: _Masked; floor_divide: _Masked; floor_divide_: _Masked
    fmax: _Masked; fmin: _Masked; fmod: _Masked; fmod_: _Masked; frac: _Masked; frac_: _Masked
    gather: _Masked; gcd: _Masked; gcd_: _Masked; ge: _Masked; ge_: _Masked; geometric_: _Masked; ger: _Masked
    greater: _Masked; greater_: _Masked; greater_equal: _Masked; greater_equal_: _Masked; gt: _Masked
    gt_: _Masked; half: _Masked; hardshrink: _Masked; hash_tensor: _Masked; heaviside: _Masked
    heaviside_: _Masked; histc: _Masked; hypot: _Masked; hypot_: _Masked; i0: _Masked; i0_: _Masked
    igamma: _Masked; igamma_: _Masked; igammac: _Masked; igammac_: _Masked; index_add: _Masked
    index_add_: _Masked; index_copy: _Masked; index_copy_: _Masked; index_fill: _Masked; index_fill_: _Masked
    index_put: _Masked; index_put_: _Masked; index_reduce: _Masked; index_reduce_: _Masked
    index_select: _Masked; inner: _Masked; int: _Masked; isclose: _Masked; isfinite: _Masked; isinf: _Masked
    isnan: _Masked; isneginf: _Masked; isposinf: _Masked; isreal: _Masked; kron: _Masked; lcm: _Masked
    lcm_: _Masked; ldexp: _Masked; ldexp_: _Masked; le: _Masked; le_: _Masked; lerp: _Masked; lerp_: _Masked
    less: _Masked; less_: _Masked; less_equal: _Masked; less_equal_: _Masked; lgamma: _Masked
    lgamma_: _Masked; log: _Masked; log10: _Masked; log10_: _Masked; log1p: _Masked; log1p_: _Masked
    log2: _Masked; log2_: _Masked; log_: _Masked; log_normal_: _Masked; log_softmax: _Masked
    logaddexp: _Masked; logaddexp2: _Masked; logcumsumexp: _Masked; logical_and: _Masked
    logical_and_: _Masked; logical_not: _Masked; logical_not_: _Masked; logical_or: _Masked
    logical_or_: _Masked; logical_xor: _Masked; logical_xor_: _Masked; logit: _Masked; logit_: _Masked
    logsumexp: _Masked; long: _Masked; lt: _Masked; lt_: _Masked; masked_fill: _Masked; masked_fill_: _Masked
    masked_scatter: _Masked; masked_scatter_: _Masked; masked_select: _Masked; matmul: _Masked
    matrix_power: _Masked; maximum: _Masked; minimum: _Masked; mm: _Masked; moveaxis: _Masked
    movedim: _Masked; msort: _Masked; mul: _Masked; mul_: _Masked; multinomial: _Masked; multiply: _Masked
    multiply_: _Masked; mv: _Masked; mvlgamma: _Masked; mvlgamma_: _Masked; nan_to_num: _Masked
    nan_to_num_: _Masked; nanquantile: _Masked; narrow: _Masked; narrow_copy: _Masked; ne: _Masked
    ne_: _Masked; neg: _Masked; neg_: _Masked; negative: _Masked; negative_: _Masked; new_empty: _Masked
    new_empty_strided: _Masked; new_full: _Masked; new_ones: _Masked; new_tensor: _Masked; new_zeros: _Masked
    nextafter: _Masked; nextafter_: _Masked; normal_: _Masked; not_equal: _Masked; not_equal_: _Masked
    outer: _Masked; permute: _Masked; pin_memory: _Masked; polygamma: _Masked; polygamma_: _Masked
    positive: _Masked; pow: _Masked; pow_: _Masked; prelu: _Masked; put: _Masked; put_: _Masked
    quantile: _Masked; rad2deg: _Masked; rad2deg_: _Masked; random_: _Masked; ravel: _Masked
    reciprocal: _Masked; reciprocal_: _Masked; relu: _Masked; relu_: _Masked; remainder: _Masked
    remainder_: _Masked; renorm: _Masked; renorm_: _Masked; repeat: _Masked; repeat_interleave: _Masked
    requires_grad_: _Masked; reshape: _Masked; reshape_as: _Masked; resolve_conj: _Masked
    resolve_neg: _Masked; roll: _Masked; rot90: _Masked; round: _Masked; round_: _Masked; rsqrt: _Masked
    rsqrt_: _Masked; scatter: _Masked; scatter_: _Masked; scatter_add: _Masked; scatter_add_: _Masked
    scatter_reduce: _Masked; scatter_reduce_: _Masked; select: _Masked; select_scatter: _Masked; sgn: _Masked
    sgn_: _Masked; short: _Masked; sigmoid: _Masked; sigmoid_: _Masked; sign: _Masked
    sign_: _Masked; signbit: _Masked; sin: _Masked; sin_: _Masked; sinc: _Masked; sinc_: _Masked
    sinh: _Masked; sinh_: _Masked; slice_inverse: _Masked; slice_scatter: _Masked
    softmax: _Masked; sqrt: _Masked; sqrt_: _Masked; square: _Masked; square_: _Masked
    squeeze: _Masked; squeeze_: _Masked; sub: _Masked; sub_: _Masked; subtract: _Masked
    subtract_: _Masked; sum_to_size: _Masked; swapaxes: _Masked; swapaxes_: _Masked; swapdims: _Masked
    swapdims_: _Masked; t: _Masked; t_: _Masked; take: _Masked; take_along_dim: _Masked; tan: _Masked
    tan_: _Masked; tanh: _Masked; tanh_: _Masked; tile: _Masked; to: _Masked; to_dense: _Masked
    to_sparse: _Masked; to_sparse_bsc: _Masked; to_sparse_bsr: _Masked; to_sparse_coo: _Masked
    to_sparse_csc: _Masked; to_sparse_csr: _Masked; transpose: _Masked; transpose_: _Masked; tril: _Masked
    tril_: _Masked; triu: _Masked; triu_: _Masked; true_divide: _Masked; true_divide_: _Masked; trunc: _Masked
    trunc_: _Masked; type_as: _Masked; unflatten: _Masked; unfold: _Masked; uniform_: _Masked
    unsqueeze: _Masked; unsqueeze_: _Masked; vdot: _Masked; view: _Masked; view_as: _Masked; where: _Masked
    xlogy: _Masked; xlogy_: _Masked; zero_: _Masked

class TypedTensor(_Methods, Tensor): ...  # type: ignore[misc]
