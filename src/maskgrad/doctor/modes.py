"""Modes under which a step runs: what it writes can be undone; dropout is left out; results are logged."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from maskgrad.doctor.black_boxes import outside
from maskgrad.doctor.frames import BOUNDARY, Place, here
from maskgrad.doctor.operations import EMPTY, Operated, facts_of, key_of, on, tensors_in
from maskgrad.doctor.ranks import waited_for, with_fake_group

if TYPE_CHECKING:
    from maskgrad.doctor.labels import IgnoredLabels

__all__ = ["Guarded", "LoggedOperation", "OperationLog", "WithoutDropout", "is_examining", "module_calls"]


@contextlib.contextmanager
def module_calls(enter: Callable[..., None], leave: Callable[..., None]) -> Iterator[None]:
    """Inside, ``enter`` is called before each module and ``leave`` after it, also when it fails."""
    handles = [
        nn.modules.module.register_module_forward_pre_hook(enter),
        nn.modules.module.register_module_forward_hook(leave, always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class Guarded(TorchDispatchMode):
    """Remembers what a run writes into memory that was there before it, so that it can be undone."""

    #: whether an optimizer is to warn of rows that were read while they were behind
    sees_late_reads = False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        #: whether collective operations send nothing
        self.sends_nothing = False
        #: labels that losses ignore
        self.ignored: IgnoredLabels | None = None
        self._made: set[int] = set()
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}

    def __enter__(self) -> Guarded:
        self._outside = outside(self)
        self._outside.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._outside.__exit__(None, None, None)

    @classmethod
    def is_infra_mode(cls) -> bool:
        """An ordinary mode: it sees what users call."""
        return False

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
        return self.operation(call)

    def operation(self, call: Operated) -> Any:
        """Run an operation, and remember the memory that it writes or makes."""
        if call.facts.writes:
            for tensor in call.written:
                self.keep(tensor)
        result = self.run(call)
        if not call.facts.view:
            for tensor in tensors_in(result):
                key = key_of(tensor)
                if key is not None and key not in self._kept:
                    self._made.add(key)
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
    return any(
        isinstance(mode, Guarded) and mode.sends_nothing for mode in _get_current_dispatch_mode_stack()
    )


class _Functions(TorchFunctionMode):
    """Knows which function of PyTorch is running: attention and recurrent layers draw their dropout in C++.

    Args:
        wider: by how many columns more than is needed the program's own functions pad.
    """

    def __init__(self, wider: int) -> None:
        super().__init__()
        self.running: list[str] = []
        self._wider = wider
        #: the lengths of what the program has padded
        self.pads: list[list[int]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        self.running.append(name)
        try:
            result = func(*args, **kwargs)
        finally:
            self.running.pop()
        return self._padded(name, args, kwargs, result) if name in _PADS else result

    def _padded(self, name: str, args: Any, kwargs: Any, result: Any) -> Any:
        lengths: Any
        if name == "_pad_packed_sequence":
            padded, lengths = result
            batch_first, value, whole = args[2], args[3], args[4] != len(args[1])
        elif name == "pad_sequence":
            padded, lengths, whole = result, [len(sequence) for sequence in args[0]], False
            given = dict(zip(("batch_first", "padding_value"), args[1:], strict=False)) | kwargs
            batch_first, value = given.get("batch_first", False), given.get("padding_value", 0.0)
        else:
            padded, lengths = result, [sequence.shape[0] for sequence in args[0].unbind()]
            value, whole = (
                args[1] if len(args) > 1 else kwargs["padding"],
                len(args) > 2 or "output_size" in kwargs,
            )
            batch_first = True
        if whole:  # the program itself says how wide
            return result
        self.pads.append([int(length) for length in lengths])
        if self._wider:
            after = [0, 0] * (padded.ndim - (2 if batch_first else 1))
            padded = torch.nn.functional.pad(padded, [*after, 0, self._wider], value=value)
        return (padded, lengths) if name == "_pad_packed_sequence" else padded

    def drop(self) -> bool:
        """Whether the function has a dropout of its own."""
        return any("dropout" in name or "attention" in name or name in _RECURRENT for name in self.running)


#: functions that pad to the longest of some sequences
_PADS = {"_pad_packed_sequence", "pad_sequence", "to_padded_tensor", "nested_to_padded_tensor"}
_FRAMES = ("convolution", "max_pool", "avg_pool", "unfold", "stft", "_fft", "topk")
_RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}


class WithoutDropout(Guarded):
    """Dropout without its random numbers: shapes or rows change, and other numbers would be drawn.

    A dropout multiplies by noise that is 0 or 1 / (1 - p); here it multiplies by 1. Backward passes of fused dropout
    may still scale by a constant, in every run the same.
    """

    def __init__(self, *, wider: int = 0) -> None:
        super().__init__()
        #: where the program itself draws numbers, and of which shape
        self.draws: list[tuple[Place | None, tuple[int, ...]]] = []
        #: sizes of what operations gave that take several positions for a frame, or choose the largest
        self.frames: set[int] = set()
        self._functions = _Functions(wider)

    @property
    def pads(self) -> list[list[int]]:
        """The lengths of what the program itself has padded to the longest."""
        return self._functions.pads

    def __enter__(self) -> WithoutDropout:
        super().__enter__()
        self._functions.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        self._functions.__exit__(*error)  # type: ignore[no-untyped-call]
        super().__exit__(*error)

    def run(self, call: Operated) -> Any:
        """The operation; see the class."""
        name, args, kwargs = call.facts.name, call.args, call.kwargs
        if not call.facts.random and name != "_cudnn_rnn":
            result = call()
            if name.startswith(_FRAMES) and torch._C._current_autograd_node() is None:
                self.frames.update(size for output in tensors_in(result) for size in output.shape[1:])
            return result
        if name == "bernoulli_" and (self._functions.drop() or _in_our_dropout()):
            return args[0].fill_(args[1] if len(args) > 1 else kwargs.get("p", 0.5))
        if name == "native_dropout":
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        names = [argument.name for argument in call.func._schema.arguments]  # type: ignore[attr-defined]
        place = next((n for n, name in enumerate(names) if name in ("dropout_p", "dropout")), None)
        if place is None:
            result = call()
            self.draws += [(here(), tuple(tensor.shape)) for tensor in tensors_in(result)]
            return result
        if place < len(args):
            args = (*args[:place], 0.0, *args[place + 1 :])
        elif names[place] in kwargs:
            kwargs = {**kwargs, names[place]: 0.0}
        return call.func(*args, **kwargs)


def _in_our_dropout() -> bool:
    """Whether the call comes out of a dropout of maskgrad."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != BOUNDARY:
        file, function = frame.f_code.co_filename, frame.f_code.co_name
        if "maskgrad" in file and "doctor" not in file and "dropout" in (function + file):
            return True
        frame = frame.f_back
    return False


@dataclass
class LoggedOperation:
    """One operation of a forward pass, with what it gave."""

    operation: str
    place: Place | None
    outputs: list[Tensor]
    #: how far an output is apart from that of another run
    relative: float = 0.0


class OperationLog(WithoutDropout):
    """Keeps what each operation of the forward pass gave."""

    def __init__(self, *, wider: int = 0) -> None:
        super().__init__(wider=wider)
        self.entries: list[LoggedOperation] = []

    def run(self, call: Operated) -> Any:
        """The operation; see the class."""
        result = super().run(call)
        name = call.facts.name
        if call.facts.view or name in EMPTY:
            return result
        if torch._C._current_autograd_node() is not None:
            return result
        outputs = [
            tensor.detach().clone()
            for index, tensor in enumerate(tensors_in(result))
            if tensor.is_floating_point()
            and tensor.layout is torch.strided
            and index not in call.facts.workspaces
        ]
        if outputs:
            self.entries.append(LoggedOperation(name, here(), outputs))
        return result
