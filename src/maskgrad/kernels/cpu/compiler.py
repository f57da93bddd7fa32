"""Compilation of loops, and passing tensors to them.

Compiled functions take flat arrays, scalars and a range of tasks ``[lo, hi)``; they start no threads of their own (see
``threads.py``) and hold no lock. Their machine code is cached on disk, and is invalidated when any file of compiled
loops changes: a loop may call functions of another file, or be made for a formula from one (``loops.py``).
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import caching, cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array
from torch import Tensor

# Numba imports its own functions on the first call. Here Ctrl-C waits for that (``selection.uninterrupted``): modules
# that were imported partially cannot be imported again.
cpu_target.typing_context.refresh()
cpu_target.target_context.refresh()

F = TypeVar("F", bound=Callable[..., Any])

# Sums may be reordered (that is what vectorises them) and contracted; NaN, inf and signed zeros keep their meaning.
_REORDER = {"reassoc", "contract"}


# C entry points are never used, those for Python only where a loop is called from Python: each takes 0.02 s to compile.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
_INNER = {**_OPTIONS, "no_cpython_wrapper": True}


@functools.cache
def _stamp() -> str:
    """Return a hash of all files of compiled loops."""
    found = hashlib.sha256()
    for file in sorted(Path(__file__).parents[1].rglob("*.py")):
        if file.name.startswith("cpu") or file.parent.name == "cpu":
            found.update(file.read_bytes())
    return found.hexdigest()


class _Cache(caching.FunctionCache):
    """Numba's cache on disk, which checks only the function's own file, keyed by :func:`_stamp` in addition."""

    def __init__(self, function: Any) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        self._cache_file = caching.IndexDataCacheFile(  # type: ignore[no-untyped-call]
            self._cache_path, self._impl.filename_base, (self._impl.locator.get_source_stamp(), _stamp())
        )

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return sig, codegen.magic_tuple()


def _named(function: Any) -> Any:
    """Name functions made on one line of one file by what they hold, so that the cache on disk tells them apart."""
    held = [getattr(cell.cell_contents, "py_func", cell.cell_contents) for cell in function.__closure__ or ()]
    names = [f"{x.__module__}.{x.__qualname__}" if callable(x) else repr(x) for x in held]
    if names:
        function.__qualname__ += "_" + hashlib.sha256(" ".join(names).encode()).hexdigest()[:12]
    return function


def _cached(function: Any, **options: Any) -> Any:
    dispatcher: Any = numba.njit(**_OPTIONS, **options)(_named(function))
    dispatcher._cache = _Cache(function)
    return dispatcher


def compiled(function: F) -> F:
    """Compile ``function`` in nopython mode on first call; exact floating-point order."""
    return _cached(function)  # type: ignore[no-any-return]


def inlined(function: F) -> F:
    """Inline into the callers: a call would count references to each array argument."""
    return numba.njit(**_INNER, inline="always")(function)  # type: ignore[no-any-return]


def formula(function: F) -> F:
    """A formula for a loop (``loops.py``), inlined so that the loop vectorises."""
    return numba.njit(**_INNER, forceinline=True)(_named(function))  # type: ignore[no-any-return]


def reordered(function: F) -> F:
    """As :func:`compiled`, for sums whose terms may be added in any order fixed at compile time."""
    return _cached(function, fastmath=_REORDER)  # type: ignore[no-any-return]


def array(x: Tensor) -> Any:
    """Return a NumPy array on the memory of ``x``. Numba has no half precision: bfloat16 is uint16, float16 int16."""
    x = x.detach()
    if x.dtype == torch.bfloat16:
        return x.view(torch.uint16).numpy()
    if x.dtype == torch.float16:
        return x.view(torch.int16).numpy()
    return x.view(torch.uint8).numpy() if x.dtype == torch.bool else x.numpy()


#: The type in which scalars of a dtype are passed.
_KINDS = {
    torch.bfloat16: np.uint16(0),
    torch.float16: np.int16(0),
    torch.bool: np.uint8(0),
    **{
        getattr(torch, kind.__name__): kind(0)
        for kind in (np.float32, np.float64, np.uint8, np.int8, np.int16, np.int32, np.int64)
    },
}


def flat(x: Tensor) -> tuple[int, Any]:
    """The memory of ``x`` for a loop, which reads it by :func:`at`: element (i, j, ...) is at sum(i * stride)."""
    return x.data_ptr(), _KINDS[x.dtype]


def _at(_: Any, memory: Any) -> Any:
    """The memory of a tensor (:func:`flat`) as a 1-D array, in compiled code, of a tensor that the caller keeps.

    Written as LLVM instructions: with Numba's own functions each use would take 0.1 s to compile.
    """
    kind = memory.types[1]
    found = types.Array(kind, 1, "C")

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        made = context.make_array(found)(context, builder)
        number = context.get_data_type(kind)
        size, bytes_of_one = (ir.Constant(ir.IntType(64), n) for n in (1 << 60, kind.bitwidth // 8))
        populate_array(  # type: ignore[no-untyped-call]
            made,
            data=builder.inttoptr(builder.extract_value(arguments[0], 0), number.as_pointer()),
            shape=cgutils.pack_array(builder, [size]),  # type: ignore[no-untyped-call]
            strides=cgutils.pack_array(builder, [bytes_of_one]),  # type: ignore[no-untyped-call]
            itemsize=bytes_of_one,
            meminfo=None,
        )
        return made._getvalue()

    return found(memory), generate


def _decode(_: Any, x: Any) -> Any:
    """Return the value of the stored ``x``: float32 from the bits of half precision, anything else unchanged."""
    result = types.float32 if x in (types.uint16, types.int16) else x

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if x == types.int16:
            return context.compile_internal(builder, _decode_float16, signature, arguments)
        if x == types.uint16:  # bfloat16: the upper half of a float32
            bits = builder.zext(arguments[0], ir.IntType(32))
            return builder.bitcast(builder.shl(bits, ir.Constant(ir.IntType(32), 16)), ir.FloatType())
        return arguments[0]

    return result(x), generate


def _decode_float16(x: Any) -> Any:
    # Exponent and fraction move to their float32 positions; 2**112 corrects the bias, subnormals included.
    # Exponent 31 (inf, NaN) must become 255. Branch-free, so that the loop around it vectorises.
    magnitude = np.uint32(np.uint32(x & np.int16(0x7FFF)) << np.uint32(13))
    sign = np.uint32(np.uint32(x & np.int16(-0x8000)) << np.uint32(16))
    finite = np.float32(magnitude.view(np.float32) * np.float32(2.0**112)).view(np.uint32)
    bits = np.uint32(magnitude | np.uint32(0x7F800000)) if magnitude >= np.uint32(0x0F800000) else finite
    return np.uint32(bits | sign).view(np.float32)


at: Any = intrinsic(_at)
decode: Any = intrinsic(_decode)


def _prefetch(_: Any, address: Any) -> Any:
    """Prefetch the cache line at ``address``, without waiting; an address outside any array does no harm.

    A processor cannot predict rows at random positions: it would wait for memory at each of them.
    """

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
            builder.module, ir.FunctionType(ir.VoidType(), [byte, number, number, number]), "llvm.prefetch.p0"
        )
        read, keep, data_cache = (ir.Constant(number, value) for value in (0, 3, 1))
        builder.call(function, [builder.inttoptr(arguments[0], byte), read, keep, data_cache])

    return types.void(types.int64), generate


def _pointer(_: Any, address: Any) -> Any:
    """Return the pointer that ``numba.carray`` takes: the memory at ``address``, of a tensor kept by the caller."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


prefetch: Any = intrinsic(_prefetch)
LINE = 64  # bytes of a cache line


@inlined
def ask(address: Any, size: Any) -> None:
    """Prefetch the ``size`` bytes at ``address``; they may end in one line more, which is waited for."""
    for offset in range(0, size, LINE):
        prefetch(address + offset)


pointer: Any = intrinsic(_pointer)
