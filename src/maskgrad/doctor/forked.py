"""A script's step, run again: in a process that is forked when its batch arrives, and goes on to the backward pass.

The process that is forked first waits until the step is over in the script, and then makes the experiments; each run is
another process, which goes on with the script, with another batch, and sends what its backward pass gave.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import os
import pickle
import re
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from maskgrad.doctor.batches import Key, Presented, fields, tensor_of
from maskgrad.doctor.case import Examination
from maskgrad.doctor.inferred import same_part
from maskgrad.doctor.modes import Guarded
from maskgrad.doctor.operations import is_users, key_of
from maskgrad.doctor.padding import Padding
from maskgrad.doctor.report import Report, Skipped
from maskgrad.doctor.reshaped import padding_length
from maskgrad.doctor.runner import Outcome, StepRunner

__all__ = ["Continued", "Snapshot", "Variables", "bound", "mask_in", "paddings_in", "why_not_forked"]

#: a variable may be a batch, and not a list of all data
_FEW = 64
_UNCHANGEABLE = "a variable cannot take another length"


def bound(module: nn.Module, args: Any, kwargs: Any) -> tuple[inspect.BoundArguments | None, dict[Key, Any]]:
    """A call of a module, None if it fits no signature, and its arguments but for what another module has computed."""
    try:
        call = inspect.signature(module.forward).bind(*args, **kwargs)
    except (TypeError, ValueError):
        call = None
    arguments = dict(enumerate(args)) | kwargs if call is None else dict(call.arguments)
    return call, {key: held for key, held in arguments.items() if getattr(held, "grad_fn", None) is None}


class Variables:
    """What a program may have made a batch of; of a tensor and a part of it, such as ``ids[:, :-1]``, the tensor."""

    def __init__(self, arguments: Mapping[Key, Any]) -> None:
        #: by name, those of the arguments first
        self.tensors: dict[Key, Any] = {}
        #: a part, the key of the tensor that it is of, the axis, its first position, and how many positions it lacks
        self._parts: list[tuple[Tensor, Key, int, int, int]] = []
        #: those that have a name, which batches in a list have not
        self.named: list[Any] = []
        found: dict[Key, Any] = {}
        for key, held in [*_held(arguments), *_of_functions(sys._getframe(1))]:
            self.named += [] if re.search(r"\.\d", str(key)) else [held]
            if not any(held is other for other in found.values()):
                name = key
                while name in found:  # another function's variable
                    name = f"{name}'"
                found[name] = held
        for key, tensor in found.items():
            wholes = [(name, other, *at) for name, other in found.items() if (at := _place(tensor, other))]
            if wholes:
                name, whole, axis, start = max(wholes, key=lambda place: place[1].numel())
                self._parts.append((tensor, name, axis, start, whole.shape[axis] - tensor.shape[axis]))
            else:
                self.tensors[key] = tensor

    def put(self, new: Mapping[Key, Any]) -> None:
        """Replace the contents of the tensors in place, for all that refer to them."""
        for key, held in self.tensors.items():
            if new[key] is held:
                continue
            if isinstance(held, Tensor):
                held.data = new[key].detach()
            else:
                # as unpickled: a view, which cannot be resized, has memory of its own from here on
                held.__setstate__(np.ascontiguousarray(new[key]).__reduce__()[2])
        for part, key, axis, start, missing in self._parts:
            part.data = new[key].detach().narrow(axis, start, new[key].shape[axis] - missing)


def _of_functions(frame: FrameType | None) -> Iterator[tuple[Key, Any]]:
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            for name, held in list(frame.f_locals.items()):
                yield from ((name if key == 0 else f"{name}.{key}", part) for key, part in _held(held))
        frame = frame.f_back


def _held(held: Any) -> Iterator[tuple[Key, Any]]:
    """Tensors and arrays of numbers; no parameters, and nothing that was computed with them."""
    if isinstance(held, np.ndarray):
        held = {0: held}
    if isinstance(held, (Mapping, list, tuple)) and len(held) > _FEW:
        return
    arrays = held.items() if isinstance(held, Mapping) else ()
    yield from ((k, a) for k, a in arrays if isinstance(a, np.ndarray) and a.dtype.kind in "bif" and a.ndim)
    for key, tensor in fields(held).items():
        plain = isinstance(tensor, Tensor) and not isinstance(tensor, nn.Parameter)
        if plain and tensor.ndim and tensor.grad_fn is None:
            yield key, tensor


def _place(part: Any, whole: Any) -> tuple[int, int] | None:
    """The axis and the first position of a tensor that has some positions of another, in its memory; None if not."""
    if not (isinstance(part, Tensor) and isinstance(whole, Tensor)) or key_of(part) is None:
        return None
    if key_of(part) != key_of(whole) or part.ndim != whole.ndim or part.ndim < 2:
        return None
    axes = [axis for axis in range(part.ndim) if part.shape[axis] != whole.shape[axis]]
    if len(axes) != 1 or axes[0] > 1 or part.stride() != whole.stride():
        return None
    (axis,) = axes
    offset = int(part.storage_offset() - whole.storage_offset())
    start, rest = divmod(offset, max(whole.stride(axis), 1))
    return (axis, start) if not rest and 0 <= start <= whole.shape[axis] - part.shape[axis] else None


def mask_in(tensor: Tensor, mask: Tensor, other: Tensor) -> Tensor | None:
    """The mask of a tensor as that of ``other``, which holds the same or has it as a part; None if it has not."""
    if other is tensor:
        return mask
    if other.is_floating_point() != tensor.is_floating_point():
        return None
    if other.shape == tensor.shape and bool((other == tensor).all()):  # ids may be copies of another dtype
        return mask
    if tensor.is_floating_point() or mask.shape != tensor.shape or bool(mask.all()):
        return None
    value = tensor[~mask][0]  # the id of padding
    if same_part(tensor, other) is None or not torch.equal(tensor != value, mask):
        return None
    return other != value


def paddings_in(paddings: list[Padding], held: Any, batch: Any) -> Iterator[Padding]:
    """The paddings of the tensors that ``batch`` has, too, by the keys that they have there."""
    inside, found = fields(held), fields(batch)
    for padding in paddings:
        tensor = tensor_of(inside[padding.key])
        for key, other in found.items():
            mask = mask_in(tensor, padding.mask, tensor_of(other))
            if mask is not None:
                mask_values = {name: value for name, value in padding.mask_values.items() if name in found}
                yield replace(padding, key=key, mask=mask, mask_values=mask_values)


#: how long a run may take, in addition to twenty times the script's own step; then a process hangs
_PATIENCE_S = 30.0
_exit = os._exit


def why_not_forked(tensors: Iterable[Tensor]) -> str:
    """Why a process with these tensors cannot be forked and go on; empty if it can."""
    if torch.cuda.is_initialized() or any(tensor.device.type != "cpu" for tensor in tensors):
        return "a process that uses an accelerator cannot be forked"
    return "" if sys.platform == "linux" else f"processes are not forked on {sys.platform}"


def _fork() -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # of processes with threads: ours takes no lock of theirs
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        with contextlib.suppress(OSError, AttributeError):
            # PR_SET_PDEATHSIG: it does not outlive who waits for it
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    return child


class Continued(BaseException):
    """A run, in its own process: raised to leave the experiments there, and go on with the script."""

    def __init__(self, batch: Any, mode: Guarded, after: Any, answers: Connection, memory: str) -> None:
        super().__init__()
        self.batch, self._mode, self._after, self._answers = batch, mode, after, answers
        self._memory = memory

    def begin(self, roots: Sequence[nn.Module]) -> None:
        """From here on the mode sees what the script does; gradients of earlier steps are gone."""
        for root in roots:
            root.zero_grad()
            for module in root.modules():
                if hasattr(module, "require_backward_grad_sync"):
                    vars(module)["require_backward_grad_sync"] = False  # other ranks would wait
        self._mode.__enter__()

    def put(self, variables: Variables) -> None:
        """Let the variables hold the batch of this run."""
        try:
            variables.put(self.batch)
        except Exception as error:
            self.fail(ValueError(f"{_UNCHANGEABLE}: {error}"))

    def end(self, outcome: Outcome) -> None:
        """The backward pass is over: send what it gave, and end."""
        self._send(outcome.cloned() if self._after is None else self._after(outcome))

    def fail(self, error: BaseException | None) -> None:
        """The script ended before its backward pass: send that, and end."""
        kind = type(error).__name__ if error is not None else "EndOfProgram"
        self._send(kind, str(error or "it ended before its backward pass"))

    def _send(self, *answer: Any) -> None:
        try:
            torch.serialization.set_crc32_options(False)  # memory needs no checksum
            torch.save(answer, self._memory)  # a pipe is slow for all gradients of a model
            self._answers.send_bytes(b"saved")
        finally:
            _exit(0)


class _ForkedRunner(StepRunner):
    """A runner of which each run is a process of its own: nothing has to be restored."""

    def __init__(self, batch: Any, roots: list[nn.Module], seconds: float) -> None:
        # there is no step to call: the script goes on
        self.presented, self.roots, self.rows = Presented(batch), roots, [0]
        self.batch = self.presented.batch
        self._patience_s = _PATIENCE_S + 20 * seconds

    def run(self, mode: Guarded, batch: Any = None, after: Callable[[Outcome], Any] | None = None) -> Any:
        """Go on with the script in another process; what ``after`` returns comes back."""
        mode.sends_nothing = True
        answers, theirs = Pipe(duplex=False)
        memory = os.memfd_create("answer")
        path = f"/proc/self/fd/{memory}"
        child = _fork()
        if not child:
            batch = self.presented.as_given(self.batch if batch is None else batch)
            raise Continued(batch, mode, after, theirs, path)
        theirs.close()
        try:
            _received(answers, self._patience_s)
            answer, *failure = torch.load(path, mmap=True, weights_only=False)  # from our own process
        finally:
            _end(child)
            os.close(memory)
        if failure:
            raise type(answer, (Exception,), {})(*failure)
        return answer


def _received(answers: Connection, seconds: float) -> bytes:
    if not answers.poll(seconds):
        raise TimeoutError(f"it did not end within {seconds:.0f} s")
    try:
        return answers.recv_bytes()
    except EOFError:
        raise ChildProcessError("its process ended before its backward pass") from None


def _end(child: int) -> None:
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


class Snapshot:
    """The script as it is when a batch arrives, kept until its step is over."""

    def __init__(self, batch: Any, roots: list[nn.Module]) -> None:
        self.batch = batch
        #: in the process of a run, that run
        self.continued: Continued | None = None
        self._start = time.monotonic()
        self._pipe, theirs = Pipe()
        self._child = _fork()
        if self._child:
            theirs.close()
            return
        self._pipe.close()
        try:
            _make_experiments(theirs, batch, roots)
        except Continued as run:
            self.continued = run
        finally:
            if self.continued is None:
                _exit(0)

    def examined(self, paddings: list[Padding]) -> Report:
        """The report of the experiments with other lengths; called once, when the step is over."""
        seconds = time.monotonic() - self._start
        self._pipe.send_bytes(pickle.dumps((paddings, seconds)))
        try:
            answer = _received(self._pipe, 20 * (_PATIENCE_S + 20 * seconds))
            report: Report = pickle.loads(answer)  # noqa: S301  (from our own process)
        except Exception as error:  # the program goes on as it would without us
            return Report(skipped=[Skipped("padding-length", f"{type(error).__name__}: {error}")])
        return report

    def close(self) -> None:
        """Let go of what is kept."""
        _end(self._child)
        self._pipe.close()


def _make_experiments(orders: Connection, batch: Any, roots: list[nn.Module]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    paddings, seconds = pickle.loads(orders.recv_bytes())  # noqa: S301  (from our own process)
    torch.set_num_threads(1)  # threads do not survive a fork
    silent = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silent, stream)
    runner = _ForkedRunner(batch, roots, seconds)
    inside = fields(runner.batch)
    counts = {len(held) for held in inside.values() if held.ndim == 1}
    paddings = [each.turned(counts) for each in paddings]
    shapes = {padding.mask.shape[:2] for padding in paddings if padding.samples}
    runner.turn({key for key, held in inside.items() if held.shape[:2] in shapes})
    case = Examination(runner, [replace(padding, mask=padding.by_sample, samples=0) for padding in paddings])
    try:
        padding_length(case)
    except Exception as error:
        case.report.skip("padding-length", f"{type(error).__name__}: {error}")
    ours = [note.message for note in case.report.notes if _UNCHANGEABLE in note.message]
    if ours and not case.report.experiments:
        case.report.skip("padding-length", ours[0], "mg.doctor.examine(step, batch) to the program")
    orders.send_bytes(pickle.dumps(case.report))
