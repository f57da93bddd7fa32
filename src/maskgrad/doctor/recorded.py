"""What one recorded step tells: sparse gradients turned dense, silent hooks, parameters without a gradient."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from maskgrad.doctor.case import Examination
from maskgrad.doctor.findings import Finding
from maskgrad.doctor.frames import Lines, Place, here, is_users
from maskgrad.doctor.modes import Guarded, module_calls
from maskgrad.doctor.operations import Operated, any_key, key_of, tensors_in
from maskgrad.doctor.runner import Outcome, parameters_of
from maskgrad.optim.lazy.zero_gradients import RowsReadLate

__all__ = ["recorded_step"]

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class _Step(Guarded):
    """Notes where sparse tensors become dense, where and which gradients are zero because an input was."""

    sees_late_reads = True

    def __init__(self) -> None:
        super().__init__()
        self._nodes = Lines()
        self.densified: list[tuple[str, Place | None]] = []
        #: for each memory that operations read in the forward pass, the first, and the first that is no look-up
        self.read: dict[int, tuple[str, Place | None]] = {}
        self.read_whole: dict[int, tuple[str, Place | None]] = {}
        #: memories that the last operation wrote because all of a factor was zero
        self.zeroed: dict[int, tuple[str, Place | None]] = {}

    def run(self, call: Operated) -> Any:
        self._nodes.note()
        result = call()
        if call.facts.view:
            return result
        name, inputs, outputs = call.facts.name, call.inputs, tensors_in(result)
        if torch._C._current_autograd_node() is not None:
            self._look_for_zeros(name, inputs, outputs)
            sparse = next((tensor for tensor in inputs if tensor.layout is not torch.strided), None)
            if sparse is not None and any(
                output.layout is torch.strided and output.shape == sparse.shape for output in outputs
            ):
                self.densified.append((name, self._nodes.here()))
        elif torch.is_grad_enabled():
            for table in (self.read, self.read_whole) if "embedding" not in name else (self.read,):
                for key in {key_of(tensor) for tensor in inputs} - table.keys():
                    if key is not None:
                        table[key] = (name, here())
        return result

    def _look_for_zeros(self, name: str, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        zero_factor = any(tensor.numel() and _is_zero(tensor) for tensor in inputs)
        for output in outputs:
            if zero_factor and _is_zero(output):
                self.zeroed[any_key(output)] = (name, self._nodes.here())
            else:
                self.zeroed.pop(any_key(output), None)


def _is_zero(tensor: Tensor) -> bool:
    is_plain = tensor.is_floating_point() and tensor.layout is torch.strided and not tensor.is_nested
    return is_plain and not bool(tensor.any())


def recorded_step(case: Examination) -> None:
    """Run the step once more and look at its gradients, hooks and warnings."""
    mode, called = _Step(), set[int]()
    with (
        warnings.catch_warnings(record=True) as caught,
        _hooks_of_tensors() as silent,
        module_calls(lambda module, *_: called.add(id(module)), lambda *_: None),
    ):
        warnings.simplefilter("always")
        found: list[Finding] = case.runner.run(
            mode, after=lambda outcome: list(_gradients(case, mode, outcome))
        )
    found += [*silent.values(), *_hooks_of_modules(case, called), *_stale(case, mode, caught)]
    case.report.add(found)
    case.tried("recorded step", "nothing", f"{len(found)} findings" if found else "nothing found")


def _gradients(case: Examination, mode: _Step, outcome: Outcome) -> Iterator[Finding]:
    sparse_tables = {
        id(module.weight)
        for root in case.runner.roots
        for module in root.modules()
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse
    }
    leaves = {id(leaf): name for name, leaf in outcome.leaves.items()}
    for name, parameter in parameters_of(case.runner.roots):
        if not parameter.requires_grad or not parameter.numel():
            continue
        module, affected = name.rpartition(".")[0], {"parameter": name, "entries": parameter.numel()}
        if id(parameter) not in leaves:
            message = f"{name} requires a gradient and got none: it does not influence the loss"
            yield Finding.at(None, "unused-parameter", message, module=module, affected=affected)
            continue
        gradient = outcome.gradients[leaves[id(parameter)]]
        if gradient.layout is not torch.strided:
            continue
        if id(parameter) in sparse_tables:
            operation, place = mode.read_whole.get(key_of(parameter) or 0) or next(
                iter(mode.densified), ("", None)
            )
            message = f"{name} belongs to an embedding with sparse=True, and its gradient is dense"
            message += f": {operation} gives it a dense one" if operation else ""
            kind = "densified-gradient"
            yield Finding.at(place, kind, message, module=module, operation=operation, affected=affected)
        if not bool(gradient.any()) and any_key(gradient) in mode.zeroed:
            operation, place = mode.zeroed[any_key(gradient)]
            message = (
                f"the gradient of {name} is exactly zero: every gradient that reached it through {operation} was zero, "
                f"as with a mask that hides everything"
            )
            affected = {"parameter": name}
            yield Finding.at(
                place, "zero-gradient", message, module=module, operation=operation, affected=affected
            )


def _stale(case: Examination, mode: _Step, caught: list[warnings.WarningMessage]) -> Iterator[Finding]:
    names = {id(parameter): name for name, parameter in parameters_of(case.runner.roots)}
    for warning in caught:
        late = warning.message
        if isinstance(late, RowsReadLate):
            operation, place = mode.read.get(key_of(late.param) or 0, ("", None))
            if place is None and is_users(warning.filename):
                place = Place(warning.filename, warning.lineno)
            named = RowsReadLate(late.param, names[id(late.param)]) if id(late.param) in names else late
            yield Finding.at(place, "stale-rows", str(named), operation=operation)


@contextlib.contextmanager
def _hooks_of_tensors() -> Iterator[dict[Place, Finding]]:
    """The places at which the step registers a hook on a tensor, with a finding until it is called."""
    silent: dict[Place, Finding] = {}
    called: set[Place] = set()
    register: Any = Tensor.register_hook

    def registered(tensor: Tensor, hook: Callable[..., Any]) -> Any:
        place = here()
        if place is None:
            return register(tensor, hook)

        def counted(gradient: Tensor) -> Any:
            called.add(place)
            silent.pop(place, None)
            return hook(gradient)

        if place not in called:
            message = "a hook registered here, on a tensor that the loss does not use, was not called"
            silent[place] = Finding.at(place, "silent-hook", message)
        return register(tensor, counted)

    with mock.patch.object(Tensor, "register_hook", registered):
        yield silent


def _hooks_of_modules(case: Examination, called: set[int]) -> Iterator[Finding]:
    """Hooks of the program on modules that were not called; a library knows when its own are."""
    for name, module in (named for root in case.runner.roots for named in root.named_modules()):
        tables = [] if id(module) in called else [(kind, getattr(module, kind)) for kind in _HOOKS]
        for kind, hook in ((kind, hook) for kind, table in tables for hook in table.values()):
            code = getattr(hook, "__code__", None)
            if code is None or is_users(code.co_filename):
                words = kind.replace("_", " ").strip().removesuffix("s")
                yield Finding.at(
                    Place(code.co_filename, code.co_firstlineno) if code else None,
                    "silent-hook",
                    f"a {words} of {name} is registered but was not called in the whole step",
                    module=name,
                    affected={"hook": getattr(hook, "__qualname__", repr(hook))},
                )
