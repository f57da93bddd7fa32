"""What no operation of PyTorch tells: Triton kernels, and functions whose data leaves for NumPy, Numba or a pointer.

A kernel that is launched reads and writes the memory of its arguments: it is an operation that may write all of them. A
function of the user's (``torch.autograd.Function``) consists of operations as long as its data stays in PyTorch. If it
calls ``Tensor.numpy``, ``data_ptr`` or the like on a tensor that depends on padding, the whole function is run a second
time, forward and backward, with the other garbage. Outside of such a function nobody knows where the data comes back:
that is written down.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

from maskgrad.doctor.operations import Operated, OperationFacts, mapped, tensors_in
from maskgrad.doctor.state import random_state, set_random_state

__all__ = ["outside"]

_TORCH, _MASKGRAD = str(Path(torch.__file__).parent), str(Path(__file__).parent.parent)
#: classes of Triton's kernels, compiled and interpreted
_LAUNCHERS = (
    ("triton.runtime.jit", "JITFunction"),
    ("triton.runtime.interpreter", "InterpretedFunction"),
)
#: how the memory of a tensor is handed to somebody else
_WAYS: list[tuple[Any, str]] = [(Tensor, name) for name in ("numpy", "tolist", "data_ptr", "__dlpack__")]
_WAYS += [(torch.UntypedStorage, "data_ptr"), (torch.TypedStorage, "data_ptr")]
_PARTS = ("forward", "setup_context", "backward", "vjp")


@contextlib.contextmanager
def outside(mode: Any) -> Iterator[None]:
    """Inside, ``mode`` hears of what runs outside of PyTorch."""
    boxes = _Boxes(mode)
    with contextlib.ExitStack() as stack:
        for module, name in _LAUNCHERS:
            kind = getattr(sys.modules.get(module), name, None)
            if kind is not None:
                stack.enter_context(mock.patch.object(kind, "run", boxes.launching(kind.run)))
        for kind, name in _WAYS:
            way, own = getattr(kind, name), name in vars(kind)
            setattr(kind, name, boxes.leaving(f"{kind.__name__}.{name}", way))
            stack.callback(*((setattr, kind, name, way) if own else (delattr, kind, name)))
        for kind, name, part in _functions(len(torch.autograd.Function.__subclasses__())):
            setattr(kind, name, staticmethod(getattr(boxes, name)(kind, part.__func__)))
            stack.callback(setattr, kind, name, part)
        yield


@functools.lru_cache(maxsize=1)
def _functions(number: int) -> list[tuple[type, str, Any]]:
    """Forward and backward passes that neither PyTorch nor we have written; asked anew if there are more functions."""
    found, waiting = [], list[Any](torch.autograd.Function.__subclasses__())
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind.__module__.partition(".")[0] not in ("torch", "maskgrad"):
            own = [(name, kind.__dict__[name]) for name in _PARTS if name in kind.__dict__]
            found += [(kind, name, part) for name, part in own if isinstance(part, staticmethod)]
    return found


class _Boxes:
    """What is wrapped around kernels, functions and ways out, for one mode."""

    def __init__(self, mode: Any) -> None:
        self._mode = mode
        #: for each function that runs, whether data left it
        self._open: list[bool] = []
        #: what stands for the context of a function in its second run; the context is held, so that its id stays
        self._contexts: dict[int, tuple[Any, _Context]] = {}
        self._pending: tuple[Any, _Context, Any, Any] | None = None

    def _observes(self) -> bool:
        return any(mode is self._mode for mode in _get_current_dispatch_mode_stack())

    # kernels

    def launching(self, run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        def launched(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            pointers = _pointers((args, kwargs))
            if warmup or not pointers or not self._observes():
                return run(kernel, *args, grid=grid, warmup=warmup, **kwargs)
            returned, changed = list[Any](), list[int]()

            def launch(*tensors: Tensor) -> list[Tensor]:
                others = {id(old): new for old, new in zip(pointers, tensors, strict=True)}
                before = [] if returned else [tensor.clone() for tensor in tensors]
                given = _with_pointers((args, kwargs), others)
                returned.append(run(kernel, *given[0], grid=grid, warmup=warmup, **given[1]))
                changed.extend(n for n, old in enumerate(before) if not torch.equal(old, tensors[n]))
                return [tensors[n] for n in changed or range(len(tensors))]

            name = f"the kernel {getattr(kernel, '__name__', 'of Triton')}"
            facts = OperationFacts(name, writes=tuple(range(len(pointers))))
            with _disable_current_modes():
                self._mode.operation(Operated(launch, facts, tuple(pointers), {}))
            return returned[0]

        return launched

    # ways out

    def leaving(self, name: str, way: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(way)
        def left(held: Any, *args: Any, **kwargs: Any) -> Any:
            # PyTorch itself asks for pointers only to look at them, and so do we for those of a storage
            ours = _TORCH if isinstance(held, Tensor) else (_TORCH, _MASKGRAD)
            looks = name.endswith("data_ptr") and sys._getframe(1).f_code.co_filename.startswith(ours)
            if not looks and self._observes():
                with _disable_current_modes():
                    depends = self._mode.leaves_torch(held if isinstance(held, Tensor) else _whole(held))
                if depends and self._open:
                    self._open[-1] = True
                elif depends:
                    self._mode.note_not_followed(
                        name,
                        "code outside of PyTorch runs once; in a torch.autograd.Function or a "
                        "torch.library.custom_op it also runs with changed padding",
                    )
            return way(held, *args, **kwargs)

        return left

    # functions

    def forward(self, kind: Any, part: Callable[..., Any]) -> Callable[..., Any]:
        takes_context = kind.setup_context is torch.autograd.Function.setup_context

        @functools.wraps(part)
        def forward(*args: Any, **kwargs: Any) -> Any:
            if not self._observes():
                return part(*args, **kwargs)
            self._pending = None
            state = random_state()
            left, result = self._watched(part, args, kwargs)
            if left:
                context, args = (args[0], args[1:]) if takes_context else (None, args)
                other = _Context(context, self._mode)
                again = functools.partial(part, other) if takes_context else part
                twins = self._twice(f"{kind.__name__}.forward", result, again, args, kwargs, state)
                if takes_context:
                    self._contexts[id(context)] = (context, other)
                elif twins:
                    self._pending = (kind, other, *twins)
            return result

        return forward

    def setup_context(self, kind: Any, part: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(part)
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            part(ctx, inputs, output)
            if self._pending is not None and self._pending[0] is kind:
                _, other, given, twins = self._pending
                other.stands_for(ctx)
                with _disable_current_modes():
                    part(other, given, twins)
                self._contexts[id(ctx)] = (ctx, other)
                self._pending = None

        return setup_context

    def backward(self, kind: Any, part: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(part)
        def backward(ctx: Any, *gradients: Any) -> Any:
            if not self._observes():
                return part(ctx, *gradients)
            state = random_state()
            left, result = self._watched(part, (ctx, *gradients), {})
            known = self._contexts.pop(id(ctx), None)
            if left or known:
                other = known[1] if known else _Context(ctx, self._mode)
                again = functools.partial(part, other)
                self._twice(f"{kind.__name__}.backward", result, again, gradients, {}, state)
            return result

        return backward

    vjp = backward

    def _watched(self, part: Callable[..., Any], args: Any, kwargs: Any) -> tuple[bool, Any]:
        self._open.append(False)
        try:
            result = part(*args, **kwargs)
        finally:
            left = self._open.pop()
        return left, result

    def _twice(self, name: str, result: Any, again: Any, args: Any, kwargs: Any, state: Any) -> list[Any]:
        """The first run was the program's own; the arguments and results of the second one, on the twins."""
        runs, twins = itertools.count(), list[Any]()

        def replayed(*given: Any, **named: Any) -> Any:
            if next(runs) == 0:
                return result
            after = random_state()
            set_random_state(state)
            try:
                twins[:] = given, again(*given, **named)
            finally:
                set_random_state(after)
            return twins[1]

        with _disable_current_modes(), torch.no_grad():
            self._mode.black_box(Operated(replayed, OperationFacts(name), args, kwargs))
        return twins


class _Context:
    """Stands for the context of a function in its second run: what is kept there is its own."""

    def __init__(self, ctx: Any, mode: Any) -> None:
        self._saved: Any = None
        self._mode = mode
        self.stands_for(ctx)

    def stands_for(self, ctx: Any) -> None:
        self._ctx = ctx
        vars(self).update(mapped(self._mode.other, dict(getattr(ctx, "__dict__", {}))))

    def save_for_backward(self, *tensors: Any) -> None:
        self._saved = tensors

    @property
    def saved_tensors(self) -> Any:
        return mapped(self._mode.other, self._ctx.saved_tensors) if self._saved is None else self._saved

    def _nothing(self, *args: Any) -> None:
        """The first run has said so already."""

    mark_dirty = mark_non_differentiable = set_materialize_grads = save_for_forward = _nothing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)


def _whole(storage: Any) -> Tensor:
    if isinstance(storage, torch.TypedStorage):
        storage = storage._untyped_storage
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _pointers(tree: Any) -> list[Tensor]:
    """The tensors among a kernel's arguments, also those in descriptors."""
    found = [*tensors_in(tree)]
    found += [held.base for part in (tree[0], tree[1].values()) for held in part if _is_descriptor(held)]
    return list({id(tensor): tensor for tensor in found}.values())


def _with_pointers(tree: Any, others: dict[int, Tensor]) -> Any:
    args, kwargs = mapped(lambda tensor: others.get(id(tensor), tensor), tree)

    def described(held: Any) -> Any:
        if not _is_descriptor(held):
            return held
        other = copy.copy(held)
        other.base = others[id(held.base)]
        return other

    return [described(held) for held in args], {name: described(held) for name, held in kwargs.items()}


def _is_descriptor(held: Any) -> bool:
    return type(held).__module__.startswith("triton") and isinstance(getattr(held, "base", None), Tensor)
