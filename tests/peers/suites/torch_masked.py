"""torch.masked: its functions on the samples of PyTorch's operator database, and the operations of its tensor."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import maskgrad as mg
from tests.peers.suite import Case, Masked, Suite, canonical

POISONS = (float("nan"), float("inf"), float("-inf"), 1e38)
LAYOUTS = {"strided": torch.strided, "COO": torch.sparse_coo, "CSR": torch.sparse_csr}
#: What is written otherwise on a MaskedTensor than ``x.name(…)``.
METHODS: dict[str, Callable[..., Any]] = {
    "softmin": F.softmin,
    "normalize": F.normalize,
    "norm": lambda x, ord=2.0, dim=None, **more: torch.linalg.vector_norm(x, ord, dim, **more),
    "median": lambda x, dim=-1, **more: x.median(dim, **more).values,
    "logsumexp": lambda x, dim=(), **more: x.logsumexp(
        tuple(range(x.ndim)) if dim in (None, ()) else dim, **more
    ),
    "prod": lambda x, dim=None, **more: _product(x, dim, **more),
}


def _product(x: Any, dim: Any, keepdim: bool = False) -> Any:
    """Over several dimensions, which Tensor.prod does not take."""
    if dim is None or dim == ():
        return x.prod(**({"dim": 0} if dim == () and not x.ndim else {}))
    for d in sorted((d % x.ndim for d in dim), reverse=True) if isinstance(dim, tuple) else (dim,):
        x = x.prod(d, keepdim=keepdim)
    return x


def _quiet(run: Callable[[], Any]) -> Callable[[], Any]:
    """The prototype warns at each call, and draws no numbers of its own."""

    @wraps(run)
    def quiet() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return run()

    return quiet


def _dense(x: Any) -> Any:
    return x.to_dense() if isinstance(x, Tensor) and x.layout is not torch.strided else x


def _poisoned(x: Tensor, mask: Tensor | None, poison: float | None) -> Tensor:
    if mask is None or poison is None or not x.is_floating_point():
        return x
    return torch.where(mask, x, poison)


def _theirs(name: str, x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The values, and which of them mean something: the others are free."""
    values = _dense(getattr(torch.masked, name)(x, *args, **kwargs))
    if name == "logaddexp":
        found = [kwargs.get(side) for side in ("input_mask", "other_mask")]
        mask = torch.ones((), dtype=torch.bool) if None in found else found[0] | found[1]
    elif kwargs.get("mask") is None:
        mask = torch.ones((), dtype=torch.bool)
    else:
        more = {key: _dense(value) for key, value in kwargs.items()}
        mask = torch.masked._ops._output_mask(getattr(torch.masked, name), _dense(x), *args, **more)
    if name.startswith("arg"):
        values = values.long()  # torch.masked returns positions as floats
    return Masked(values.numpy(), mask.expand(values.shape).numpy())


def _function(
    name: str, poison: float | None, x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """mg.functional: a plain result, of which the specified slots are compared."""
    if name == "logaddexp":
        x = _poisoned(x, kwargs.get("input_mask"), poison)
        args = (_poisoned(args[0], kwargs.get("other_mask"), poison),)
    else:
        x = _poisoned(x, kwargs.get("mask"), poison)
    return getattr(mg.functional, name)(x, *args, **kwargs)


def _method(
    name: str,
    poison: float | None,
    x: Tensor,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    torch_itself: bool = False,
) -> Any:
    """The same on a MaskedTensor, of the layout of ``x``: a masked result, or a plain number."""
    kwargs = dict(kwargs)
    layout = kwargs.pop("layout", x.layout)
    mask = _dense(kwargs.pop("mask", None))
    mask = torch.ones(x.shape, dtype=torch.bool) if mask is None else mask
    found = x if torch_itself else mg.masked(_poisoned(_dense(x), mask, poison), mask)
    if layout is not torch.strided:
        found = found.to_sparse(layout=layout)
    if name in ("var", "std") and "correction" not in kwargs:
        kwargs["correction"] = int(kwargs.pop("unbiased", True))
    return (METHODS.get(name) or getattr(torch, name))(found, *args, **kwargs)


def _only(found: Callable[[], Any], theirs: Callable[[], Any]) -> Any:
    """Ours, compared where theirs means something."""
    ours = canonical(found())
    return ours._replace(mask=theirs().mask)


def _gradient(run: Callable[..., Tensor], slots: Tensor, x: Tensor, mask: Tensor) -> Any:
    """The gradient of the specified slots, each with a weight of its own, at specified entries; and all the rest."""
    leaf = x.clone().requires_grad_()
    found = torch.masked_select(run(leaf), slots)
    (found * torch.linspace(0.5, 2.0, found.numel())).sum().backward()
    gradient = torch.zeros_like(x) if leaf.grad is None else leaf.grad
    mask = mask.expand(x.shape)
    return Masked(gradient.numpy(), mask.numpy()), float(gradient[~mask].abs().sum())


def _gradients(
    name: str, poison: float, x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, Callable[[], Any], Callable[[], Any]]]:
    """That of torch.masked, and ours, whose unspecified entries are poisoned, as a function and as a method."""
    dense = {key: _dense(value) for key, value in kwargs.items()}
    mask, plain = dense["mask"], _dense(x)
    poisoned = _poisoned(plain, mask, poison)

    def slots() -> Tensor:
        return torch.from_numpy(_theirs(name, plain, args, dense).mask)

    def method(leaf: Tensor) -> Tensor:
        found = _method(name, None, leaf, args, {**dense, "layout": x.layout})
        return found.to_dense().filled(0.0) if isinstance(found, mg.MaskedTensor) else found

    theirs = getattr(torch.masked, name)
    peer = _quiet(lambda: _gradient(lambda leaf: theirs(leaf, *args, **dense), slots(), plain, mask))
    if x.layout is torch.strided:
        function = partial(_function, name, None, args=args, kwargs=dense)
        yield "function", peer, lambda: _gradient(lambda leaf: function(x=leaf), slots(), poisoned, mask)
    yield "method", peer, lambda: _gradient(method, slots(), poisoned, mask)


def _samples() -> Iterator[tuple[str, str, str, Any]]:
    """Operation, layout, dtype, and the arguments."""
    from torch.testing._internal.opinfo.definitions._masked import op_db

    for operation in op_db:
        name = operation.name.removeprefix("masked.")
        for dtype in (torch.float32, torch.int64):
            if dtype in operation.dtypes:
                for x, args, kwargs in _drawn(partial(operation.sample_inputs, "cpu", dtype)):
                    orders = [(0.5,), (2.0,), (3.0,)] if name == "norm" and args == (2.0,) else [args]
                    for order in orders:
                        yield name, "strided", str(dtype).removeprefix("torch."), (x, order, kwargs)
        if name in ("sum", "prod", "amax", "amin"):
            for label, layout in list(LAYOUTS.items())[1:]:
                for given in _drawn(partial(operation.sample_inputs_sparse, layout, "cpu", torch.float32)):
                    yield name, label, "float32", given


def _drawn(samples: Callable[[], Any]) -> list[Any]:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return [(sample.input.detach(), sample.args, dict(sample.kwargs)) for sample in samples()]


def _plainly(theirs: Callable[[], Any], pytorch: Callable[[], Any]) -> str:
    """What PyTorch itself, without masks, says of the line: torch.masked may give another dtype."""
    try:
        found = canonical(_quiet(theirs)())
        same = found.values.dtype.kind == canonical(pytorch()).values.dtype.kind
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        same = False
    return "" if same else ", otherwise in PyTorch"


def _of_functions() -> Iterator[Case]:
    for number, (name, label, dtype, (x, args, given)) in enumerate(_samples()):
        kwargs = given
        masks = {key: value for key, value in kwargs.items() if key.endswith("mask") and value is not None}
        poison = POISONS[number % len(POISONS)]
        about = f"{name} {number}: {dtype}, {label}, {tuple(x.shape)}, dim {kwargs.get('dim', args[-1:])}"
        if any(not mask.any() for mask in map(_dense, masks.values())):
            about += ", nothing specified"
        if not _dense(x).isfinite().all():
            about += ", infinite entries"
        theirs = _quiet(partial(_theirs, name, x, args, kwargs))
        if any(mask.ndim < x.ndim for mask in masks.values()):
            if label == "strided":
                run = partial(_function, name, poison, x, args, kwargs)
                yield Case(f"{about}, a mask with fewer dimensions", theirs, run)
            kwargs = {**kwargs, **{key: mask[(None,) * (x.ndim - mask.ndim)] for key, mask in masks.items()}}
        plain = {key: value for key, value in kwargs.items() if not key.endswith("mask")}
        about += _plainly(
            partial(getattr(torch.masked, name), _dense(x), *args, **plain),
            partial(_method, name, poison, _dense(x), args, plain, torch_itself=True),
        )
        if label == "strided":
            run = partial(_only, partial(_function, name, poison, x, args, kwargs), theirs)
            yield Case(f"function {about}", theirs, run)
        if dtype == "float32" and "mask" in masks and not name.startswith("arg"):
            for form, *runs in _gradients(name, poison, x, args, kwargs):
                yield Case(f"gradient of {form} {about}", *runs)
        if name != "logaddexp" and (dtype == "float32" or name in ("sum", "amax")):
            yield Case(f"method {about}", theirs, partial(_method, name, poison, x, args, kwargs))


def _tensors(dtype: torch.dtype, seed: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    values = torch.rand(3, 4, generator=draw) * 0.9 + 0.05
    values = values if dtype.is_floating_point else values * 40
    return values.to(dtype), torch.rand(3, 4, generator=draw) < 0.6


def _prototype(run: Callable[..., Any], *pairs: tuple[Tensor, Tensor]) -> Any:
    found = run(*(torch.masked.masked_tensor(values.clone(), mask) for values, mask in pairs))
    if torch.masked.is_masked_tensor(found):
        return Masked(_dense(found.get_data()).numpy(), _dense(found.get_mask()).numpy())
    return found


def _ours(run: Callable[..., Any], poison: float, *pairs: tuple[Tensor, Tensor]) -> Any:
    return run(*(mg.masked(_poisoned(values.clone(), mask, poison), mask) for values, mask in pairs))


def _of_tensors() -> Iterator[Case]:
    from torch.masked.maskedtensor import binary, reductions, unary

    reduced = [(f"{name}()", name, ()) for name in reductions.REDUCE_NAMES]
    reduced += [(f"{name}({dim})", name, (dim,)) for name in reductions.REDUCE_NAMES for dim in (0, 1, -1)]
    run: Callable[..., Any]
    for dtype in (torch.float32, torch.int64, torch.bool):
        x, y = _tensors(dtype, 0), _tensors(dtype, 1)
        lines: list[tuple[str, Callable[..., Any], Any]] = []
        for name in unary.UNARY_NAMES:
            more = {"clamp": (0.2, 0.5), "clip": (0.2, 0.5), "pow": (2,)}.get(name, ())
            for end in ("", "_"):
                if hasattr(torch.Tensor, name + end):
                    run = lambda a, m=name + end, k=more: getattr(a, m)(*k)  # noqa: E731
                    lines.append((name + end, run, (x,)))
        for name in (*binary.BINARY_NAMES, *binary.INPLACE_BINARY_NAMES):
            run = lambda a, b, m=name: getattr(a, m)(b)  # noqa: E731
            if hasattr(torch.Tensor, name):
                lines += [
                    (f"{name}, one mask", run, (x, (y[0], x[1]))),
                    (f"{name}, masks that differ", run, (x, y)),
                ]
        for about, name, args in reduced:
            run = lambda a, m=name, k=args: getattr(a, m)(*k)  # noqa: E731
            lines.append((about, run, (x,)))
        for number, (about, run, pairs) in enumerate(lines):
            theirs, poison = _quiet(partial(_prototype, run, *pairs)), POISONS[number % 4]
            whole = [(values.clone(), torch.ones_like(mask)) for values, mask in pairs]
            plain = partial(run, *(values.clone() for values, _ in pairs))
            name = f"tensor.{about} of {dtype}" + _plainly(partial(_prototype, run, *whole), plain)
            yield Case(name, theirs, partial(_ours, run, poison, *pairs))


def cases() -> Iterator[Case]:
    """Its functions, then its tensor."""
    yield from _of_functions()
    yield from _of_tensors()


SUITE = Suite("torch.masked", torch.__version__, cases)
