"""numpy.ma: the same line of code on a masked array and on a MaskedTensor; where names differ, one for each."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

import maskgrad as mg
from tests.peers.suite import Case, Masked, Suite, canonical, difference, outcome

POISONS = (np.nan, np.inf, -np.inf, 1e38)

AXES = ("", "0", "1", "-1", "(0, 1)")
FLOAT_REDUCTIONS = ("mean", "var", "std")
REDUCTIONS = (
    "sum",
    "prod",
    "any",
    "all",
    "max => amax",
    "min => amin",
    "argmax",
    "argmin",
    *FLOAT_REDUCTIONS,
)
UNARY = """exp sin cos tan arctan arcsinh sinh cosh tanh absolute negative floor ceil sqrt log log2 log10 arcsin arccos
arccosh arctanh logical_not conjugate>conj_physical angle around>round"""
BINARY = """add subtract multiply arctan2 equal>eq not_equal>ne less>lt less_equal>le greater>gt greater_equal>ge
logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor hypot divide floor_divide remainder fmod
maximum minimum power>pow left_shift>bitwise_left_shift right_shift>bitwise_right_shift"""
SIGNS = "x + y, x - y, x * y, x / y, x // y, x % y, x == y, x != y, x < y, x <= y, x > y, x >= y, x & y, x | y, x ^ y"
NUMBERS = "x + 2, x - 2, x * 2, x / 2, x // 2, x % 2, x ** 2, x ** 3, x == 2, x < 2"
REFLECTED = "3 + x, 3 - x, 3 * x, 3 / x, 3 // x, 3 >= x"
OPERATORS = (
    *SIGNS.split(", "), *NUMBERS.split(", "), *REFLECTED.split(", "), "-x", "+x", "abs(x)", "x + x[0]", "x * x[:, :1]",
    "x + p", "x < p", "x - x[..., None, 0]",
)  # fmt: skip
READS = (
    "x[0]", "x[-1]", "x[:, 1]", "x[1:]", "x[..., 0]", "x[None]", "x[0, 1]", "x[0:1, 1:3]", "x[I]", "x[:, I]", "x[B]",
    "x[:, None]", "x[0][1]", "x.T", "x.reshape(-1)", "x.ravel()", "x.T[1]", "x.T.ravel()", "x[I[:, None], I]",
    "x[[0, 1], [1, 0]]", "x.swapaxes(0, 1)", "x.squeeze()", "x[()]", "x[...]", "x.diagonal()",
    "x.repeat(2) => x.repeat_interleave(2)", "np.roll(x, 1, 0) => x.roll(1, 0)", "np.flip(x, 1) => x.flip(1)",
    "np.expand_dims(x, 1) => x.unsqueeze(1)", "np.ma.diag(x) => x.diag()", "x.take(I) => x.take(I)",
    "np.ma.take(x, I, axis=1) => x.index_select(1, I)", "x.compressed()", "x.count() => x.num_specified()",
    "x.count(0) => mg.functional.count(p, 0, mask=x.mask)", "x.count(1) => mg.functional.count(p, 1, mask=x.mask)",
    "x.filled(True)", "np.ma.getmaskarray(x) => ~x.mask", "len(x)", "list(x)", "x.astype('float32') => x.float()",
    "x.copy() => x.clone()",
)  # fmt: skip
JOINS = (
    "np.ma.concatenate([x, y]) => torch.cat([x, y])", "np.ma.concatenate([x, y], axis=1) => torch.cat([x, y], dim=1)",
    "np.ma.concatenate([x, p]) => torch.cat([x, p])", "np.ma.stack([x, y]) => torch.stack([x, y])",
    "np.ma.stack([x, y], axis=-1) => torch.stack([x, y], dim=-1)", "np.ma.vstack([x, y]) => torch.vstack([x, y])",
    "np.ma.hstack([x, y]) => torch.hstack([x, y])", "np.ma.dstack([x, y]) => torch.dstack([x, y])",
    "np.ma.column_stack([x, y]) => torch.column_stack([x, y])", "np.ma.where(B, x, y) => torch.where(B, x, y)",
    "np.ma.where(B, x, p) => torch.where(B, x, p)", "np.ma.where(x > 1, x, y) => torch.where(x > 1, x, y)",
    "np.ma.where(B, x, 7) => torch.where(B, x, 7)", "np.ma.clip(x, -1, 2) => x.clip(-1, 2)",
    "np.ma.outer(x[0], y[0]) => torch.outer(x[0], y[0])", "np.ma.dot(x, y.T) => x @ y.T",
    "np.ma.inner(x[0], y[0]) => torch.inner(x[0], y[0])", "np.ma.masked_where(B, x) => mg.masked(x, ~B)",
    "np.ma.masked_greater(x, 1) => mg.masked(x, x <= 1)", "np.ma.append(x, y, axis=0) => torch.cat([x, y], 0)",
    "np.ma.atleast_2d(x[0]) => torch.atleast_2d(x[0])", "np.ma.stack([x, x]) => x.broadcast_to(2, *x.shape)",
    "np.ma.diff(x, axis=0) => x.diff(dim=0)",
)  # fmt: skip
SCANS = (
    *(f"x.cumsum({axis})" for axis in AXES[1:4]), *(f"x.cumprod({axis})" for axis in AXES[1:4]),
    *(f"np.ma.sort(x, axis={axis}) => x.sort({axis}).values" for axis in AXES[1:4]),
    *(f"np.take_along_axis(x, x.argsort({n}), {n}) => x.gather({n}, x.argsort({n}))" for n in ("0", "1")),
    *(f"np.ma.median(x, axis={axis}) => x.quantile(0.5, dim={axis})" for axis in AXES[1:4]),
    *(f"np.ma.average(x, axis={n}, weights=w) => (x * w).sum({n}) / mg.masked(w, x.mask).sum({n})" for n in AXES[1:4]),
    *(f"np.ma.average(x, axis={axis}) => x.to(torch.float64).mean({axis})" for axis in AXES[1:4]),
    *(f"x.var({axis}, ddof={n}) => x.var({axis}, correction={n})" for axis in AXES[1:4] for n in (1, 2)),
    "np.ma.ptp(x, axis=0) => x.amax(0) - x.amin(0)", "x.anom(0) => x - x.mean(0, keepdim=True)",
    "np.ma.median(x) => x.quantile(0.5)", "np.ma.cov(x) => torch.cov(x)",
    "np.ma.cov(x, rowvar=False) => torch.cov(x.T)", "np.ma.corrcoef(x) => torch.corrcoef(x)",
    "x.trace(dtype=x.dtype) => x.trace()", "x.sum(dtype='float64') => x.sum(dtype=torch.float64)",
    "x.mean(0, dtype='float64') => x.mean(0, dtype=torch.float64)",
)  # fmt: skip
MORE = (
    "np.ma.count_masked(x) => x.numel() - x.num_specified()",
    "np.ma.masked_inside(x, -1, 1) => mg.masked(x, (x < -1) | (x > 1))",
    "np.ma.masked_outside(x, -1, 1) => mg.masked(x, (x >= -1) & (x <= 1))",
    "np.ma.masked_equal(x, 1) => mg.masked(x, x != 1)", "np.ma.ediff1d(x.ravel()) => x.reshape(-1).diff()",
    "np.ma.nonzero(x) => torch.nonzero(x, as_tuple=True)", "np.ma.repeat(x, 2, axis=1) => x.repeat_interleave(2, 1)",
    "np.ma.round(x, 1) => x.round(decimals=1)", "np.ma.apply_along_axis(np.ma.sum, 1, x) => torch.sum(x, 1)",
    "np.ma.squeeze(x[None]) => x[None].squeeze(0)", "np.ma.hsplit(x, 2) => torch.hsplit(x, 2)",
    "np.ma.diagflat(x[0]) => torch.diagflat(x[0])", "np.ma.maximum.reduce(x, axis=0) => torch.amax(x, 0)",
    "np.ma.add.reduce(x, axis=1) => torch.sum(x, dim=1)", "np.ma.multiply.reduce(x, axis=1) => torch.prod(x, 1)",
    "np.ma.add.outer(x[0], y[0]) => x[0][:, None] + y[0][None]",
    "np.ma.maximum.outer(x[0], y[0]) => torch.maximum(x[0][:, None], y[0][None])",
    "np.ma.ones_like(x) => torch.ones_like(x)", "np.ma.zeros_like(x) => torch.zeros_like(x)",
    "np.ma.compress(B[0], x, axis=1) => x[:, B[0]]", "x.compress(B[:, 0], axis=0) => x[B[:, 0]]", "x.real", "x.imag",
    "np.ma.minimum(x, 1) => x.clamp_max(1)", "np.ma.maximum(x, p) => torch.maximum(x, p)",
    "np.ma.dot(x[0], y[0]) => torch.dot(x[0], y[0])", "np.ma.dot(x, p.T) => x @ p.T", "np.ma.dot(p, x.T) => p @ x.T",
    "np.rot90(x) => x.rot90()", "np.tile(x, (2, 1)) => x.tile(2, 1)", "np.fliplr(x) => x.fliplr()",
    "np.moveaxis(x, 0, 1) => x.movedim(0, 1)",
    "np.ma.median(x, axis=0, keepdims=True) => x.quantile(0.5, dim=0, keepdim=True)",
    "x.var(0).filled(-1) => x.var(0, correction=0).filled(-1)",
    "x.std(1, ddof=1, keepdims=True) => x.std(1, keepdim=True)",
    "np.ma.argmax(x[:, ::-1], axis=0) => x.flip(1).argmax(0)",
    "(x + y).sum(0) / (x * y).max() => (x + y).sum(0) / (x * y).amax()",
    "(x - x.mean(0)) * x.std(0) => (x - x.mean(0)) * x.std(0, correction=0)",
    "np.ma.where(x > y, x - y, y - x).sum(1) => torch.where(x > y, x - y, y - x).sum(1)",
    "(x * B).sum(0) => (x * B).sum(0)", "np.ma.sqrt(x * x + y * y).mean(1) => torch.sqrt(x * x + y * y).mean(1)",
)  # fmt: skip
WRITES = (
    "x[0] = 1", "x[:, 1] = 5", "x[0, 1] = 5", "x[1:] = 0", "x[...] = 4", "x[:] = y", "x[0] = y[1]", "x[B] = 9",
    "x[I] = 3", "x[I] = y[I]", "x[:, I] = y[:, I]", "x[I, I] = 8", "x[0] = p[0]", "x[..., 0] = 2", "x[::2] = 6",
    "x[:, ::2] = y[:, ::2]", "x[None, 0] = 1", "x[0] = nothing", "x[:, 1] = nothing", "x[0, 1] = nothing",
    "x[B] = nothing", "x[I] = nothing", "x[...] = nothing", "x[~B] = p[~B]", "x += y", "x -= y", "x *= y", "x += 1",
    "x *= 2", "x -= p", "x += x[0]", "x *= x[:, :1]", "x /= 2", "x //= 2", "x **= 2", "x %= 3", "x &= y", "x |= y",
    "x ^= y", "x.T[0] = 5", "x.T[1] = y[:, 1]", "x.T[:] = y.T", "x[0][1] = 7", "x[1:][:, 1:] = 2",
    "x.fill(3) => x.fill_(3)", "x[0].fill(3) => x[0].fill_(3)", "x.sort(0) => x[...] = x.sort(0).values",
    "for r in x: r[1] = 9", "for r in x: r += 1", "v = x[0]; v *= 3", "v = x[:, 1:]; v += v",
    "v = x[0]; v[1] = nothing", "v = x.reshape(-1); v[2] = 9", "v = x.copy(); v[0] = 1 => v = x.clone(); v[0] = 1",
    "x[:] = x[::-1] => x[:] = x.flip(0)",
    "x[0], x[1] = x[1].copy(), x[0].copy() => x[0], x[1] = x[1].clone(), x[0].clone()",
    "np.ma.put(x, I, 5) => x.put_(I, torch.tensor([5, 5], dtype=x.dtype))", "np.ma.putmask(x, B, y) => x[B] = y[B]",
    "np.add(x, y, out=x) => x.add_(y)", "x[x > 1] = 0 => x[(x > 1).filled(False)] = 0",
    "x[~np.ma.getmaskarray(x)] = 1 => x[x.mask] = 1", "x[np.ma.getmaskarray(x)] = 1 => x[~x.mask] = 1",
)  # fmt: skip


def _data() -> Iterator[tuple[str, Any]]:
    """Arrays ``x`` and ``y``, values and masks (True = specified), and their plain companions."""
    draw = np.random.default_rng(0)
    kinds = (
        ("floats", "float64", (3, 4), 0.6), ("single", "float32", (4, 3), 0.7), ("lost row", "float64", (3, 4), 0.6),
        ("whole", "float64", (3, 4), 1.0), ("integers", "int64", (3, 4), 0.6), ("logic", "bool", (3, 4), 0.6),
        ("nothing", "float64", (3, 4), 0.0), ("cube", "float64", (3, 4, 2), 0.6),
        ("complex numbers", "complex128", (3, 4), 0.6), ("bytes", "uint8", (3, 4), 0.6),
        ("no rows", "float64", (0, 4), 0.6),
        ("transposed", "float64", (3, 4), 0.6), ("columns", "float64", (3, 4), 0.6), ("halves", "float16", (3, 4), 0.6),
    )  # fmt: skip
    for label, dtype, shape, share in kinds:
        arrays = []
        for _ in "xy":
            values = _drawn(draw, shape, dtype)
            if label in ("single", "cube"):  # inside of what most functions are defined for
                values = values.clip(-1, 1) * 0.45 + 0.5 + (label == "cube")
            mask = draw.random(shape) < share
            if label == "lost row":
                mask[1] = False
            if label == "transposed":
                values, mask = np.asfortranarray(values), np.asfortranarray(mask)
            if label == "columns":  # one mask for all rows
                mask = np.broadcast_to(mask[:1], shape)
            arrays.append((values, mask))
        plain = _drawn(draw, shape, dtype)
        yield label, (arrays, plain, np.abs(draw.standard_normal(shape)) + 0.1, draw.random(shape) < 0.4)


def _drawn(draw: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    values = draw.standard_normal(shape) * 3
    if dtype == "bool":
        return draw.random(shape) < 0.5
    if dtype == "complex128":
        return values + 1j * draw.standard_normal(shape)
    return (abs(values) if dtype == "uint8" else values).astype(dtype)


def _scope(data: Any, mine: bool, poison: float) -> dict[str, Any]:
    """Everything that a line may name, copied: a line may write."""
    arrays, plain, weights, chosen = data
    make: Callable[[np.ndarray], Any] = torch.tensor if mine else np.copy
    scope: dict[str, Any] = {"np": np, "torch": torch, "mg": mg}
    for name, (values, mask) in zip("xy", arrays, strict=True):
        if not mine:
            scope[name] = np.ma.MaskedArray(values.copy(order="K"), ~mask)
            continue
        garbage = values.copy(order="K")
        if values.dtype.kind in "fc":
            most = float(np.finfo(values.dtype).max)
            garbage[~mask] = min(poison, most) if np.isfinite(poison) else poison
        smallest = mask[:1] if mask.strides[0] == 0 else mask
        scope[name] = mg.masked(torch.from_numpy(garbage), torch.from_numpy(smallest.copy(order="K")))
    scope |= {"p": make(plain), "w": make(weights), "B": make(chosen), "I": make(np.array([0, 2]))}
    return scope | {"nothing": mg.unspecified if mine else np.ma.masked}


def _run(line: str, writes: bool, data: Any, mine: bool, poison: float = 0.0, whole: bool = False) -> Any:
    """What a line gives, or what it has written; with ``whole`` on data without a mask."""
    scope = _scope(data, mine, poison)
    if whole:
        scope |= {
            name: torch.from_numpy(values.copy()) for name, (values, _) in zip("xy", data[0], strict=True)
        }
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        if writes:
            exec(line, scope)
            return scope["x"], scope.get("v", 0)
        found = eval(line, scope)
    return found if mine else _plain(found)


def _plain(found: Any) -> Any:
    """A masked scalar of numpy.ma has lost its dtype."""
    if found is np.ma.masked:
        return Masked(np.asarray(None), np.asarray(False))
    return [_plain(part) for part in found] if isinstance(found, (list, tuple)) else found


def _lines() -> Iterator[tuple[str, str, bool]]:
    for name in UNARY.split():
        theirs, _, ours = name.partition(">")
        yield f"np.ma.{theirs}(x)", f"torch.{ours or theirs}(x)", False
    for name in BINARY.split():
        theirs, _, ours = name.partition(">")
        yield f"np.ma.{theirs}(x, y)", f"torch.{ours or theirs}(x, y)", False
    for name in REDUCTIONS:
        theirs, _, ours = name.partition(" => ")
        more = ", correction=0" if theirs in ("var", "std") else ""
        for axis in AXES:
            if axis != "(0, 1)" or not theirs.startswith(("arg", "prod")):
                yield f"x.{theirs}({axis})", f"x.{ours or theirs}({axis or 'None' * bool(more)}{more})", False
        yield f"x.{theirs}(1, keepdims=True)", f"x.{ours or theirs}(1{more}, keepdim=True)", False
    for group, writes in ((OPERATORS, 0), (READS, 0), (JOINS, 0), (MORE, 0), (SCANS, 0), (WRITES, 1)):
        for line in group:
            theirs, split, ours = line.rpartition(" => ")
            yield theirs if split else ours, ours, bool(writes)


def _plainly(theirs: str, ours: str, writes: bool, data: Any, rtol: float) -> str:
    """What numpy.ma and PyTorch make of the line where nothing is masked."""
    data = ([(values, np.ones_like(mask)) for values, mask in data[0]], *data[1:])
    peer = outcome(partial(_run, theirs, writes, data, False))
    pytorch = outcome(partial(_run, ours, writes, data, True, whole=True))
    if isinstance(pytorch, (AttributeError, TypeError)):  # not a line for tensors without a mask
        return ""
    refused = [isinstance(found, Exception) for found in (peer, pytorch)]
    if any(refused):
        return "" if all(refused) else ", otherwise in PyTorch"
    if not difference(peer, pytorch, rtol):
        return ""
    finite = isinstance(pytorch, Masked) and not difference(peer, _finite(pytorch), rtol)
    return ", outside its domain" if finite else ", otherwise in PyTorch"


def _finite(found: Any) -> Masked:
    """Without what PyTorch says of an argument that a function is not defined for."""
    found = canonical(found)
    return Masked(found.values, found.mask & np.isfinite(found.values))


def _two_writes() -> Iterator[tuple[str, str]]:
    """Pairs of writes, drawn with a fixed seed, without those after which views of numpy.ma see no further write."""
    alone = ("%=", "&=", "|=", "^=", "out=x", "put(", "fill(", "for ")
    lines = [line.partition(" => ") for line in WRITES if not any(word in line for word in alone)]
    draw = random.Random(0)
    drawn = {tuple(draw.choices(range(len(lines)), k=2)): None for _ in range(400)}
    for pair in drawn:
        both = [(lines[n][0], lines[n][2] or lines[n][0]) for n in pair]
        yield "\n".join(theirs for theirs, _ in both), "\n".join(ours for _, ours in both)


def cases() -> Iterator[Case]:
    """Each line on each data set, and two writes in a row; what lies under our masks takes turns."""
    for label, data in _data():
        rtol = 1e-2 if label == "halves" else 1e-5
        for number, (theirs, ours, writes) in enumerate(_lines()):
            name = f"{ours} of {label}{_plainly(theirs, ours, writes, data, rtol)}"
            poison = POISONS[number % len(POISONS)]
            run = partial(_run, ours, writes, data, True, poison)
            peer = partial(_run, theirs, writes, data, False)
            yield Case(name, peer, run, rtol)
            if name.endswith("domain"):
                yield Case(f"{name}: what is finite", peer, partial(lambda run: _finite(run()), run), rtol)
        if label in ("floats", "lost row", "transposed", "single"):
            for number, (theirs, ours) in enumerate(_two_writes()):
                run = partial(_run, ours, True, data, True, POISONS[number % len(POISONS)])
                name = f"{ours} of {label}".replace("\n", "; ")
                yield Case(name, partial(_run, theirs, True, data, False), run)


SUITE = Suite("numpy.ma", np.__version__, cases)
