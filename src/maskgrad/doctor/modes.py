"""Modes under which a step runs: what it writes can be undone; dropout is left out; results are logged."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as _active_modes

from maskgrad.doctor.operations import EMPTY, Operated, Place, facts_of, here, key_of, on, tensors_in
from maskgrad.doctor.ranks import waited_for, with_fake_group
from maskgrad.kernels.invariant import is_invariant

if TYPE_CHECKING:
    from maskgrad.doctor.inferred import IgnoredLabels

__all__ = [
    "OUTSIDE", "Guarded", "LoggedOperation", "OperationLog", "WithoutDropout", "is_examining", "module_calls",
]  # fmt: skip

#: why it was not tracked
OUTSIDE = "code outside of PyTorch runs once"
_TORCH, _MASKGRAD = str(Path(torch.__file__).parent), str(Path(__file__).parent.parent)
_KERNELS = str(Path(__file__).parent.parent / "kernels")
#: how the memory of a tensor leaves PyTorch
_WAYS: list[tuple[Any, str]] = [(Tensor, name) for name in ("numpy", "tolist", "data_ptr", "__dlpack__")]
_WAYS += [(torch.UntypedStorage, "data_ptr"), (torch.TypedStorage, "data_ptr")]


@contextlib.contextmanager
def outside(mode: Any) -> Iterator[None]:
    """Inside, ``mode`` is notified of tensors whose memory leaves PyTorch."""
    with contextlib.ExitStack() as stack:
        for kind, name in _WAYS:
            left = _notifying(mode, f"{kind.__name__}.{name}", getattr(kind, name))
            stack.enter_context(mock.patch.object(kind, name, left))
        yield


def _notifying(mode: Any, name: str, way: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(way)
    def left(held: Any, *args: Any, **kwargs: Any) -> Any:
        # PyTorch itself asks for pointers only to look at them, and so do we for those of a storage
        ours = _TORCH if isinstance(held, Tensor) else (_TORCH, _MASKGRAD)
        looks = name.endswith("data_ptr") and sys._getframe(1).f_code.co_filename.startswith(ours)
        if not looks and any(active is mode for active in _active_modes()):
            with _disable_current_modes():
                depends = mode.leaves_torch(_tensor_of(held))
            if depends:
                mode.note_not_followed(name, OUTSIDE)
        return way(held, *args, **kwargs)

    return left


def _tensor_of(held: Any) -> Tensor:
    """A tensor, or that of a storage."""
    if isinstance(held, Tensor):
        return held
    storage = held._untyped_storage if isinstance(held, torch.TypedStorage) else held
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


@contextlib.contextmanager
def module_calls(enter: Callable[..., None], leave: Callable[..., None]) -> Iterator[None]:
    """Inside, ``enter`` is called before each module and ``leave`` after it, also when it fails."""
    hooks = nn.modules.module
    with (
        hooks.register_module_forward_pre_hook(enter),
        hooks.register_module_forward_hook(leave, always_call=True),
    ):
        yield


class Guarded(TorchDispatchMode):
    """Remembers what a run writes into memory that was there before it, so that it can be undone."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        #: whether collective operations send nothing
        self.sends_nothing = False
        #: labels that losses ignore
        self.ignored: IgnoredLabels | None = None
        self._made: set[int | None] = set()
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}
        #: modes that are on with it
        self._beside: list[contextlib.AbstractContextManager[Any]] = []

    def __enter__(self) -> Guarded:
        self._held = contextlib.ExitStack()
        for context in (outside(self), *self._beside):
            self._held.enter_context(context)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._held.close()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled where this runs; PyTorch's guard against it took a sixth of the time of a small step."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        facts = facts_of(func)
        if not facts.collective:
            if types:
                args, kwargs = waited_for(types, args, kwargs)
        elif self.sends_nothing:
            args = with_fake_group(func, args)
        call = Operated(func, facts, args, kwargs)
        if self.ignored is not None and facts.name.startswith("nll_loss"):
            call = self.ignored.changed(call)
        for tensor in call.written if facts.writes else ():
            self.keep(tensor)
        result = self.run(call)
        if not facts.view:
            self._made |= {key_of(tensor) for tensor in tensors_in(result)} - self._kept.keys()
        return result

    def run(self, call: Operated) -> Any:
        """The operation itself; subclasses do more."""
        return call()

    def leaves_torch(self, tensor: Tensor) -> bool:
        """The memory of a tensor leaves PyTorch, and may be written; whether it depends on padding."""
        self.keep(tensor)
        return False

    def restore(self) -> None:
        """Write back what was there before."""
        with torch.no_grad():
            for tensor, before in self._kept.values():
                tensor.untyped_storage().copy_(before.untyped_storage())
        self._kept.clear()
        self._made.clear()

    def keep(self, tensor: Tensor) -> None:
        """Remember the memory of a tensor, if it was there before the run."""
        key = key_of(tensor)
        if key is None or key in self._made or key in self._kept:
            return
        whole = on(tensor.untyped_storage(), tensor)
        # the tensor is held too, so that its memory is not given to another one
        self._kept[key] = (tensor.detach(), on(whole.untyped_storage().clone(), whole))


def is_examining() -> bool:
    """Whether a step runs that the doctor itself has called."""
    active = (mode for mode in _active_modes() if isinstance(mode, Guarded))
    return any(mode.sends_nothing for mode in active)


#: functions whose dropout is drawn in C++; all that have it in their names, too
_DROPPING = {
    "scaled_dot_product_attention", "multi_head_attention_forward", "lstm", "gru", "rnn_tanh", "rnn_relu",
}  # fmt: skip
#: functions that pad to the longest of some sequences, and what they are given
_PADDING = {
    "_pad_packed_sequence": ("data", "batch_sizes", "batch_first", "padding", "width"),
    "pad_sequence": ("data", "batch_first", "padding", "side"),
    "to_padded_tensor": ("data", "padding", "output_size"),
    "nested_to_padded_tensor": ("data", "padding", "output_size"),
}


class _Functions(TorchFunctionMode):
    """Functions of PyTorch without dropout, of which those that pad to the longest may pad wider."""

    def __init__(self, wider: int) -> None:
        super().__init__()
        self._wider = wider
        #: whether a function with dropout is running, and whether maskgrad was to choose a kernel by size
        self.drops = self.chooses = False
        #: lengths of what the program has padded, and whether it did on the left
        self.pads: list[tuple[list[int], bool]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs, before = getattr(func, "__name__", ""), kwargs or {}, self.drops
        self.chooses |= sys._getframe(1).f_code.co_filename.startswith(_KERNELS) and not is_invariant()
        if "dropout" in name or name in _DROPPING:
            self.drops = True
            # how much is dropped is the only fraction among the positional arguments
            args = tuple(0.0 if isinstance(given, float) else given for given in args)
            kwargs = {**kwargs, **{key: 0.0 for key in ("p", "dropout_p", "dropout") if key in kwargs}}
        try:
            result = func(*args, **kwargs)
        finally:
            self.drops = before
        return self._padded(name, args, kwargs, result) if name in _PADDING else result

    def _padded(self, name: str, args: Any, kwargs: Any, result: Any) -> Any:
        given, packed = dict(zip(_PADDING[name], args, strict=False)) | kwargs, name == "_pad_packed_sequence"
        padded, sizes = result if packed else (result, [len(sequence) for sequence in given["data"]])
        lengths, left = [int(size) for size in sizes], given.get("side") == "left"
        if given.get("output_size") or given.get("width", max(lengths)) != max(lengths):
            return result  # the program itself says how wide
        self.pads.append((lengths, left))
        if self._wider:
            columns = [self._wider, 0] if left else [0, self._wider]
            inner = [0, 0] * (padded.ndim - (2 if given.get("batch_first", True) else 1))
            padded = torch.nn.functional.pad(padded, inner + columns, value=given["padding"])
        return (padded, sizes) if packed else padded


#: what takes several positions for a frame, or chooses the largest
_FRAMES = ("convolution", "max_pool", "avg_pool", "unfold", "stft", "_fft", "topk")


class WithoutDropout(Guarded):
    """Dropout of probability 0: where shapes or rows change, other numbers would be drawn."""

    def __init__(self, *, wider: int = 0) -> None:
        super().__init__()
        #: where the program draws numbers itself, and of which shape
        self.draws: list[tuple[Place | None, tuple[int, ...]]] = []
        #: sizes of what operations gave that take several positions for a frame, or choose the largest
        self.frames: set[int] = set()
        self.functions = _Functions(wider)
        self.pads = self.functions.pads
        self._beside.append(self.functions)

    def run(self, call: Operated) -> Any:
        """The operation; see the class."""
        result = call()
        if call.facts.random and not self.functions.drops:
            self.draws += [(here(), tuple(tensor.shape)) for tensor in tensors_in(result)]
        elif call.facts.name.startswith(_FRAMES) and torch._C._current_autograd_node() is None:
            self.frames.update(size for output in tensors_in(result) for size in output.shape[1:])
        return result


@dataclass
class LoggedOperation:
    """One operation of a forward pass, with what it gave."""

    operation: str
    place: Place | None
    outputs: list[Tensor]


class OperationLog(WithoutDropout):
    """Keeps what each operation of the forward pass gave."""

    def __init__(self, *, wider: int = 0) -> None:
        super().__init__(wider=wider)
        self.entries: list[LoggedOperation] = []

    def run(self, call: Operated) -> Any:
        """The operation; see the class."""
        result = super().run(call)
        if call.facts.view or call.facts.name in EMPTY or torch._C._current_autograd_node() is not None:
            return result
        outputs = [
            tensor.detach().clone()
            for index, tensor in enumerate(tensors_in(result))
            if tensor.is_floating_point()
            and tensor.layout is torch.strided
            and index not in call.facts.workspaces
        ]
        if outputs:
            self.entries.append(LoggedOperation(call.facts.name, here(), outputs))
        return result
