"""torch.optim: every optimizer, option and mistake of PyTorch's own database of them, and what maskgrad adds."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

import maskgrad as mg
from tests.peers.suite import Case, Suite

STEPS = 5
POISON = (float("nan"), float("inf"), float("-inf"), 1e38, float("nan"))
#: Rows of the table that have a gradient: at every step another choice, or always the same.
CHANGING = ((0, 2), (3,), (0, 3, 5), (), (2, 5))
SAME = ((0, 2, 5),) * STEPS

Grads = list[list[Tensor]]


def _problem(dtype: torch.dtype, flat: bool) -> tuple[list[Tensor], Grads]:
    """Parameters, a table and (unless matrices are needed) a vector, and their gradients at each step."""
    draw = torch.Generator().manual_seed(0)
    shapes = ((6, 3), (4,)) if flat else ((6, 3),)
    make = partial(torch.randn, generator=draw, dtype=dtype)
    return [make(shape) for shape in shapes], [[make(shape) for shape in shapes] for _ in range(STEPS)]


def _trained(
    make: Callable[[list[Tensor]], Any], start: list[Tensor], steps: Grads, then: Any = None, at: int = STEPS
) -> Any:
    """Parameters and states after all steps; those from ``at`` on by another optimizer, which loads the state."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        params: list[Tensor] = [torch.nn.Parameter(value.clone()) for value in start]
        optimizer = make(params)
        if optimizer.defaults.get("differentiable"):  # it writes into what autograd has recorded: no leaves
            params = [param.clone() for param in params]
            optimizer = make(params)
        for number, grads in enumerate(steps):
            if number == at:
                state = copy.deepcopy(optimizer.state_dict())
                optimizer = then(params)
                optimizer.load_state_dict(state)
            _step(optimizer, params, grads)
        if hasattr(optimizer, "flush"):
            optimizer.flush()
        return [param.detach() for param in params], _numbers(optimizer.state_dict()["state"])


def _step(optimizer: Any, params: list[Any], grads: list[Any]) -> None:
    for param, grad in zip(params, grads, strict=True):
        param.grad = None
        if isinstance(grad, mg.MaskedTensor):
            mg.attach_gradient(param, grad)
        else:
            param.grad = grad.clone()
    optimizer.step()


def _numbers(state: Any) -> list[Any]:
    """All tensors and numbers of a state, in the order of their names."""
    if isinstance(state, dict):
        names = sorted(
            state.keys() - {"momentum_started"}, key=str
        )  # a marker of ours, which PyTorch ignores
        state = {
            **state,
            **({"step": float(state["step"])} if "step" in state else {}),
        }  # a tensor, or an int
        return [part for name in names for part in _numbers(state[name])]
    if isinstance(state, (list, tuple)):
        return [part for value in state for part in _numbers(value)]
    return [] if state is None else [state.detach().to_dense() if isinstance(state, Tensor) else state]


def _maker(cls: Any, kwargs: dict[str, Any]) -> Callable[[list[Tensor]], Any]:
    return lambda params: cls(params, **copy.deepcopy(kwargs))


def _dense(info: Any, config: Any, theirs: Any, ours: Any) -> Iterator[Case]:
    flags = ("", *(flag for flag in ("foreach", "fused", "differentiable") if flag in info.supported_impls))
    for dtype in (torch.float32, torch.float64):
        start, steps = _problem(dtype, True)
        for flag in (*flags, *(("capturable",) if info.has_capturable_arg else ())):
            kwargs = config.kwargs | ({flag: True} if flag else {})
            makers = _maker(theirs, kwargs), _maker(ours, kwargs)
            runs = [partial(_trained, make, start, steps) for make in makers]
            yield Case(f"{theirs.__name__}({config.desc}) {flag}, {dtype}", *runs)
        makers = _maker(theirs, config.kwargs), _maker(ours, config.kwargs)
        whole = partial(_trained, makers[0], start, steps)
        for label, (first, then) in (("to ours", makers), ("to torch", makers[::-1])):
            moved = partial(_trained, first, start, steps, then, 3)
            yield Case(f"{theirs.__name__}({config.desc}) {dtype}, state dict {label}", whole, moved)


def _rows(config: Any, theirs: Any, ours: Any) -> Iterator[Case]:
    """Gradients of some rows, in each form: rows without one are stepped with zero, or left alone."""
    forms: dict[str, Callable[[Tensor, Any], Any]] = {
        "COO": lambda grad, rows: torch.sparse_coo_tensor(torch.tensor([rows]), grad[rows], grad.shape),
        "COO, in two parts": lambda grad, rows: torch.sparse_coo_tensor(
            torch.tensor([rows + rows]), torch.cat([grad[rows] * 0.25, grad[rows] * 0.75]), grad.shape
        ),
        "masked": _poisoned,
    }
    for dtype in (torch.float32, torch.float64):
        start, steps = _problem(dtype, False)
        for label, form in forms.items():
            name = f"{theirs.__name__}({config.desc}) {dtype}, {label}"
            dense = [[_zeros_but(grad, list(rows))] for (grad,), rows in zip(steps, CHANGING, strict=True)]
            some = [[form(grad, list(rows))] for (grad,), rows in zip(steps, CHANGING, strict=True)]
            zero = _maker(ours, config.kwargs | {"unspecified": "zero"})
            make = _maker(theirs, config.kwargs)
            yield Case(
                f"{name}, zero",
                partial(_trained, make, start, dense),
                partial(_trained, zero, start, some),
                1e-4,
            )
            some = [[form(grad, list(rows))] for (grad,), rows in zip(steps, SAME, strict=True)]
            alone = [[grad[list(SAME[0])]] for (grad,) in steps]
            yield Case(
                f"{name}, skip",
                partial(_trained, make, [start[0][list(SAME[0])]], alone),
                partial(_of_rows, _maker(ours, config.kwargs), start, some),
            )


def _zeros_but(grad: Tensor, rows: list[int]) -> Tensor:
    return torch.zeros_like(grad).index_copy(0, torch.tensor(rows, dtype=torch.long), grad[rows])


def _poisoned(grad: Tensor, rows: list[int]) -> mg.MaskedTensor:
    mask = _zeros_but(torch.ones_like(grad), rows).bool()
    return mg.masked(torch.where(mask, grad, torch.tensor(POISON[:1]).to(grad.dtype)), mask)


def _of_rows(make: Any, start: list[Tensor], steps: Grads) -> Any:
    """Ours, of the rows that had a gradient; the others must not have moved."""
    (param,), state = _trained(make, start, steps)
    rows = list(SAME[0])
    others = [row for row in range(len(param)) if row not in rows]
    assert torch.equal(param[others], start[0][others])
    return [param[rows]], [
        part[rows] if isinstance(part, Tensor) and part.shape == param.shape else part for part in state
    ]


def _mistakes(info: Any, theirs: Any, ours: Any) -> Iterator[Case]:
    for number, error in enumerate(info.optim_error_inputs_func("cpu", torch.float32)):
        given = error.optimizer_error_input
        params = torch.nn.Parameter(torch.ones(2, 3)) if given.params is None else given.params
        params = [params] if given.params is None else params
        runs = [partial(_mistaken, kind, params, given.kwargs) for kind in (theirs, ours)]
        yield Case(f"{theirs.__name__}: {given.desc} ({number})", *runs)


def _mistaken(kind: Any, params: Any, kwargs: dict[str, Any]) -> Any:
    optimizer = kind(params() if callable(params) else params, **kwargs)
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = torch.ones_like(param)
    optimizer.step()
    return 0


def cases() -> Iterator[Case]:
    """Each optimizer with each of its inputs."""
    from torch.testing._internal.common_optimizers import optim_db

    for info in optim_db:
        theirs = info.optim_cls
        ours = getattr(mg.optim, theirs.__name__, None)
        if ours is None:
            continue
        for config in info.optim_inputs_func("cpu"):
            yield from _dense(info, config, theirs, ours)
            yield from _rows(config, theirs, ours)
            if info.supports_sparse:
                yield from _sparse(config, theirs, ours)
        yield from _mistakes(info, theirs, ours)


def _sparse(config: Any, theirs: Any, ours: Any) -> Iterator[Case]:
    """Gradients of rows where PyTorch takes them itself."""
    for dtype in (torch.float32, torch.float64):
        start, steps = _problem(dtype, False)
        some: Any = [[g * 1, list(rows)] for (g,), rows in zip(steps, CHANGING, strict=True)]
        some = [[torch.sparse_coo_tensor(torch.tensor([r]), g[r], g.shape)] for g, r in some if r]
        # PyTorch's momentum moves a row on, once it had a gradient, as if its gradient were zero.
        more = {"unspecified": "zero"} if "momentum" in config.kwargs else {}
        makers = _maker(theirs, config.kwargs), _maker(ours, config.kwargs | more)
        runs = [partial(_trained, make, start, some) for make in makers]
        name = f"{theirs.__name__}({config.desc}) {dtype}, sparse in both"
        yield Case(name, *runs)
        if more or "weight_decay" in config.kwargs:
            continue
        for label, (first, then) in (("to ours", makers), ("to torch", makers[::-1])):
            yield Case(f"{name}, state dict {label}", runs[0], partial(_trained, first, start, some, then, 3))


SUITE = Suite("torch.optim", torch.__version__, cases)
