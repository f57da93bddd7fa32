"""An optimizer in a compiled graph: steps and removal of gradients are opaque operators.

The work of a step depends on the layouts of gradients and on their number of entries, and torch.compile
would recompile for each; a COO ``.grad`` cannot enter a graph at all. So a graph contains a call: an operator that
gets the tensors that it writes, and finds the optimizer, its states and gradients by an integer.

The compiler may pass copies of the parameters to an operator that writes them (``aot_eager`` does, Inductor does not),
and other operations of the same graph may have written to those before. So the passed tensors are copied to the
parameters before the step, and back after it: two passes over such copies, none without.

A step is an operator only where gradients are not recorded. Otherwise the graph breaks around it: if a parameter
written by an operator is saved for the backward pass, Inductor (of PyTorch 2.13) takes its memory for that of an
intermediate value, and lets the backward pass overwrite it.
"""

from __future__ import annotations

import abc
import functools
import itertools
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch._compile import _disable_dynamo  # imports the compiler only when it is called

from maskgrad.gradients.step_hooks import parameters_of

__all__ = ["GraphOptimizer"]

# Optimizers by the integer used in compiled code.
_OPTIMIZERS: WeakValueDictionary[int, GraphOptimizer] = WeakValueDictionary()
_NUMBERS = itertools.count()

# Written by both operators, to keep them in program order.
_ORDER = torch.zeros(())


class GraphOptimizer(torch.optim.Optimizer, abc.ABC):
    """A ``torch.optim.Optimizer`` whose steps are operator calls in a graph."""

    _fits_graphs = False
    """Whether a step can be an operator: all parameters are tensors with writable memory."""

    @abc.abstractmethod
    def flush(self) -> None:
        """Apply pending updates of rows."""

    def _patch_step_function(self) -> None:
        """Called when an optimizer is created, copied or loaded; PyTorch wraps the class's step with hooks here."""
        super()._patch_step_function()
        kind = type(self)
        if not getattr(kind.step, "is_one_call", False):
            kind.step = _one_call(kind.step)  # type: ignore[method-assign]
        if "_number" not in self.__dict__:
            self._number = next(_NUMBERS)
            _OPTIMIZERS[self._number] = self

    def _look_at_parameters(self) -> None:
        """Collect the parameters for graphs, after parameters or options have changed.

        A graph that reads ``param_groups`` would be recompiled when an option such as the learning rate changes.
        """
        self._in_graphs = list(parameters_of(self))
        # Graphs increase the version of the parameter after the step, so pending rows would seem to be loaded.
        self._fits_graphs = all(map(_has_memory, self._in_graphs)) and not self._leaves_rows_behind()

    def _leaves_rows_behind(self) -> bool:
        return any(group.get("unspecified") == "zero" for group in self.param_groups)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients of all parameters. Attached ones are removed for any ``set_to_none``."""
        if _in_a_graph() and set_to_none and self._fits_graphs:
            torch.ops.maskgrad.remove_gradients(_ORDER, self._number)
            for param in self._in_graphs:
                param.grad = None  # for reads in the rest of the graph
        else:
            self._remove_gradients(set_to_none)

    #: .grad may be masked: see maskgrad.gradients.attached.
    takes_masked_gradients = True

    @_disable_dynamo
    def _remove_gradients(self, set_to_none: bool) -> None:
        super().zero_grad(set_to_none)


def _one_call(step: Callable[..., Any]) -> Callable[..., Any]:
    """``step``, with its hooks, as an operator in a graph, and as an uncompiled call where it cannot be one."""
    uncompiled = _disable_dynamo(step)

    @functools.wraps(step)
    def step_or_operator(self: GraphOptimizer, *args: Any, **kwargs: Any) -> Any:
        operator = _in_a_graph() and not torch.is_grad_enabled() and self._fits_graphs
        if operator and not (args or kwargs):
            torch.ops.maskgrad.optimizer_step(self._in_graphs, _ORDER, self._number)
            return None
        return uncompiled(self, *args, **kwargs)

    step_or_operator.is_one_call = True  # type: ignore[attr-defined]
    return step_or_operator


def _in_a_graph() -> bool:
    """Return whether torch.compile is tracing; exported programs cannot refer to an optimizer of this process."""
    return torch.compiler.is_compiling() and not torch.compiler.is_exporting()


def _has_memory(param: Tensor) -> bool:
    return type(param) in (Tensor, torch.nn.Parameter) and param.device.type in ("cpu", "cuda")


def _in_a_graph_with_a_backward_pass() -> bool:
    # Such a graph runs as a torch.autograd.Function, whose forward disables what torch.no_grad() leaves enabled.
    return not (torch._C._is_fwd_grad_enabled() or torch.is_inference_mode_enabled())


@_disable_dynamo
def _step(params: list[Tensor], order: Tensor, number: int) -> None:
    optimizer = _OPTIMIZERS.get(number)
    if optimizer is None:  # deleted, so its step was not called
        return
    if _in_a_graph_with_a_backward_pass():
        raise RuntimeError(
            f"{type(optimizer).__name__}.step() under torch.no_grad() is in one compiled graph with operations that "
            "record gradients; their backward pass would overwrite the parameters. Remove no_grad(), "
            "so that the graph breaks around the step, or call torch._dynamo.graph_break() after it"
        )
    copies = [
        (param, given)
        for param, given in zip(optimizer._in_graphs, params, strict=True)
        if param.data_ptr() != given.data_ptr()
    ]
    with torch.no_grad():
        for param, given in copies:
            param.copy_(given)
        try:
            optimizer.step()
            if optimizer._leaves_rows_behind():  # the option was changed after compilation
                optimizer.flush()
                optimizer._look_at_parameters()  # the next step is called outside
        finally:
            for param, given in copies:
                given.copy_(param)


@_disable_dynamo
def _remove_gradients(order: Tensor, number: int) -> None:
    optimizer = _OPTIMIZERS.get(number)
    if optimizer is not None:
        optimizer._remove_gradients(True)


_TAGS = (torch.Tag.cudagraph_unsafe,)  # they run Python code, which CUDA graphs would not record
for _name, _arguments, _body in (
    ("optimizer_step", "Tensor(a!)[] params, Tensor(b!) order, SymInt number", _step),
    ("remove_gradients", "Tensor(a!) order, SymInt number", _remove_gradients),
):
    torch.library.define(f"maskgrad::{_name}", f"({_arguments}) -> ()", tags=_TAGS)
    torch.library.impl(f"maskgrad::{_name}", "default", _body)
    torch.library.register_fake(f"maskgrad::{_name}", lambda *_: None)
