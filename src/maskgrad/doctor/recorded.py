"""What one recorded step tells: sparse gradients turned dense, silent hooks, parameters without a gradient."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from maskgrad.doctor.experiments import Examination
from maskgrad.doctor.findings import Finding
from maskgrad.doctor.frames import Place, here, is_users
from maskgrad.doctor.operations import Facts
from maskgrad.doctor.origins import Origins
from maskgrad.doctor.remedies import remedy_for
from maskgrad.doctor.tensor_hooks import TensorHooks
from maskgrad.doctor.trees import tensors_in
from maskgrad.doctor.trial import Outcome
from maskgrad.doctor.twins import Guarded, key_of
from maskgrad.optim.lazy.zero_gradients import RowsReadLate

__all__ = ["recorded_step"]

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class _Step(Origins):
    """Notes where sparse tensors become dense, where and which gradients are zero because an input was."""

    sees_late_reads = True

    def __init__(self) -> None:
        super().__init__(lambda _: False, backward_only=True)
        self.densified: list[tuple[str, Place | None]] = []
        #: for each memory that an operation read in the forward pass, the first such operation
        self.read: dict[int, tuple[str, Place | None]] = {}
        #: the same without look-ups
        self.read_whole: dict[int, tuple[str, Place | None]] = {}
        #: memories that the last operation wrote because all of a factor was zero
        self.zeroed: dict[int, tuple[str, Place | None]] = {}

    def run(self, func: Callable[..., Any], facts: Facts, args: Any, kwargs: Any) -> Any:
        self._nodes.note()
        backward = torch._C._current_autograd_node() is not None
        result = Guarded.run(self, func, facts, args, kwargs)
        if facts.view:
            return result
        inputs, outputs = list(tensors_in((args, kwargs))), list(tensors_in(result))
        if not backward and torch.is_grad_enabled():
            for tables in (self.read, self.read_whole) if "embedding" not in facts.name else (self.read,):
                for key in {key_of(tensor) for tensor in inputs} - tables.keys():
                    if key is not None:
                        tables[key] = (facts.name, here())
        sparse = [tensor for tensor in inputs if tensor.layout is not torch.strided]
        if (
            backward
            and sparse
            and any(output.layout is torch.strided and output.shape == sparse[0].shape for output in outputs)
        ):
            self.densified.append((facts.name, self._nodes.here()))
        if backward:
            self._look_for_zeros(facts, inputs, outputs)
        return result

    def _look_for_zeros(self, facts: Facts, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        zero_factor = any(
            tensor.is_floating_point()
            and tensor.numel()
            and tensor.layout is torch.strided
            and not bool(tensor.any())
            for tensor in inputs
        )
        for output in outputs:
            key = key_of(output)
            if key is None:
                continue
            if zero_factor and output.is_floating_point() and not bool(output.any()):
                self.zeroed[key] = (facts.name, self._nodes.here())
            else:
                self.zeroed.pop(key, None)


def recorded_step(case: Examination) -> None:
    """Run the step once more and look at its gradients, hooks and warnings."""
    mode = _Step()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with _CountedHooks(case) as hooks, TensorHooks() as tensor_hooks:
            found: list[Finding] = case.trial.run(
                mode, after=lambda outcome: list(_gradients(case, mode, outcome))
            )
    found += hooks.silent() + tensor_hooks.silent()
    found += _stale(mode, caught)
    case.report.add(found)
    case.tried("recorded step", "nothing", f"{len(found)} findings" if found else "nothing found")


def _gradients(case: Examination, mode: _Step, outcome: Outcome) -> Iterator[Finding]:
    sparse_tables = {
        id(module.weight): name
        for root in case.trial.roots
        for name, module in root.named_modules()
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse
    }
    leaves = {id(leaf): name for name, leaf in outcome.leaves.items()}
    for name, parameter in case.trial.parameters():
        if not parameter.requires_grad or not parameter.numel():
            continue
        known = leaves.get(id(parameter))
        if known is None:
            yield Finding(
                "unused-parameter",
                f"{name} requires a gradient and got none: it takes no part in the loss",
                remedy=remedy_for("unused-parameter"),
                module=name.rpartition(".")[0],
                affected={"parameter": name, "entries": parameter.numel()},
            )
            continue
        gradient = outcome.gradients[known]
        if gradient.layout is torch.strided:
            if id(parameter) in sparse_tables:
                operation, place = mode.read_whole.get(key_of(parameter) or 0) or next(
                    iter(mode.densified), ("", None)
                )
                yield Finding.at(
                    place,
                    "densified-gradient",
                    f"{name} belongs to an embedding with sparse=True, and its gradient is dense"
                    + (f": {operation} gives it a dense one" if operation else ""),
                    remedy=remedy_for("densified-gradient"),
                    module=name.rpartition(".")[0],
                    operation=operation,
                    affected={"parameter": name, "entries": parameter.numel()},
                )
            key = key_of(gradient)
            if not bool(gradient.any()) and key in mode.zeroed:
                operation, place = mode.zeroed[key]
                yield Finding.at(
                    place,
                    "zero-gradient",
                    f"the gradient of {name} is exactly zero: all that reached it in {operation} was zero, as it is "
                    f"where a mask lets nothing through",
                    remedy=remedy_for("zero-gradient"),
                    module=name.rpartition(".")[0],
                    operation=operation,
                    affected={"parameter": name},
                )


def _stale(mode: _Step, caught: list[warnings.WarningMessage]) -> Iterator[Finding]:
    for warning in caught:
        if isinstance(warning.message, RowsReadLate):
            operation, place = mode.read.get(key_of(warning.message.param) or 0, ("", None))
            if place is None and is_users(warning.filename):
                place = Place(warning.filename, warning.lineno)
            yield Finding.at(
                place,
                "stale-rows",
                str(warning.message),
                remedy=remedy_for("stale-rows"),
                operation=operation,
            )


class _CountedHooks:
    """Replaces each hook by one that counts its calls, in the same tables, and puts the hooks back."""

    def __init__(self, case: Examination) -> None:
        self._tables: list[tuple[str, str, dict[Any, Any]]] = []
        for root in case.trial.roots:
            for name, module in root.named_modules():
                for attribute in _HOOKS:
                    table = getattr(module, attribute, None)
                    if table:
                        self._tables.append((name or type(module).__name__, attribute, table))
        for name, parameter in case.trial.parameters():
            if parameter._backward_hooks:
                self._tables.append((name, "_backward_hooks of the parameter", parameter._backward_hooks))
        self._before: list[dict[Any, Any]] = []
        self._calls: dict[tuple[int, Any], int] = {}

    def __enter__(self) -> _CountedHooks:
        for place, (_, _, table) in enumerate(self._tables):
            self._before.append(dict(table))
            for key, hook in list(table.items()):
                self._calls[place, key] = 0
                table[key] = self._counting(place, key, hook)
        return self

    def _counting(self, place: int, key: Any, hook: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self._calls[place, key] += 1
            return hook(*args, **kwargs)

        return counted

    def __exit__(self, *_: object) -> None:
        for (_name, _attribute, table), before in zip(self._tables, self._before, strict=True):
            for key, hook in before.items():
                if key in table:
                    table[key] = hook

    def silent(self) -> list[Finding]:
        """The hooks that nobody called."""
        found = []
        for (place, key), calls in self._calls.items():
            if calls:
                continue
            name, attribute, _ = self._tables[place]
            hook = self._before[place][key]
            code = getattr(hook, "__code__", None)
            where = (
                Place(code.co_filename, code.co_firstlineno) if code and is_users(code.co_filename) else None
            )
            if code is not None and where is None:
                continue  # a hook of a library, which knows when it is called
            what = attribute.replace("_", " ").strip().removesuffix("s")
            found.append(
                Finding.at(
                    where,
                    "silent-hook",
                    f"a {what} of {name} is registered and was not called in the whole step",
                    remedy=remedy_for("silent-hook"),
                    module=name,
                    affected={"hook": getattr(hook, "__qualname__", repr(hook))},
                )
            )
        return found
