"""An optimizer in a compiled graph: a step, and the removal of gradients, are one opaque operator each.

The work of a step depends on the layouts of gradients and on their number of entries, for each of which torch.compile
would compile anew; a COO ``.grad`` cannot enter a graph at all. So a graph contains a call: an operator that gets the
tensors that it writes, and finds the optimizer, its states and gradients by a number.

The compiler may hand copies of the parameters to an operator that writes them (``aot_eager`` does, Inductor does not),
and other operations of the same graph may have written those before. So the parameters are made equal to what is handed
in before the step, and what was handed in to the parameters after it: two passes over such copies, none without.

A step is an operator only where gradients are not recorded. Elsewhere the graph breaks around it: where a parameter
that an operator has written is saved for the backward pass, Inductor (of PyTorch 2.13) takes its memory for that of an
intermediate value, and lets the backward pass write over it.
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

__all__ = ["EFFECT_TAGS", "GraphOptimizer"]

# Where compiled code finds an optimizer.
_OPTIMIZERS: WeakValueDictionary[int, GraphOptimizer] = WeakValueDictionary()
_NUMBERS = itertools.count()

# Written by both operators: what keeps them in the order of the program.
_ORDER = torch.zeros(())


class GraphOptimizer(torch.optim.Optimizer, abc.ABC):
    """A ``torch.optim.Optimizer`` whose steps are calls in a graph."""

    _fits_graphs = False
    """Whether a step can be an operator: all parameters are tensors with memory that a kernel may write."""

    @abc.abstractmethod
    def flush(self) -> None:
        """Bring rows up to date that were left behind."""

    def _patch_step_function(self) -> None:
        """Called whenever an optimizer is made, copied or loaded; PyTorch wraps the class's step with hooks here."""
        super()._patch_step_function()
        kind = type(self)
        if not getattr(kind.step, "is_one_call", False):
            kind.step = _one_call(kind.step)  # type: ignore[method-assign]
        if "_number" not in self.__dict__:
            self._number = next(_NUMBERS)
            _OPTIMIZERS[self._number] = self

    def _look_at_parameters(self) -> None:
        """Collect the parameters for graphs, after parameters or options have changed.

        A graph that read ``param_groups`` would be compiled anew whenever an option changes, such as a learning rate.
        """
        self._in_graphs = list(parameters_of(self))
        # A graph counts a change of the parameter after the step, and rows that are behind are then taken for loaded.
        self._fits_graphs = all(map(_has_memory, self._in_graphs)) and not self._leaves_rows_behind()

    def _leaves_rows_behind(self) -> bool:
        return any(group.get("unspecified") == "zero" for group in self.param_groups)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients of all parameters. Attached ones are removed, whatever ``set_to_none`` says."""
        if _in_a_graph() and set_to_none and self._fits_graphs:
            torch.ops.maskgrad.remove_gradients(_ORDER, self._number)
            for param in self._in_graphs:
                param.grad = None  # for what the rest of the graph may ask
        else:
            self._remove_gradients(set_to_none)

    #: What is in .grad may be masked: maskgrad.gradients.attached.
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
    """Of torch.compile; what torch.export writes cannot refer to an optimizer of this process."""
    return torch.compiler.is_compiling() and not torch.compiler.is_exporting()


def _has_memory(param: Tensor) -> bool:
    return type(param) in (Tensor, torch.nn.Parameter) and param.device.type in ("cpu", "cuda")


def _in_a_graph_with_a_backward_pass() -> bool:
    # Such a graph runs as a torch.autograd.Function, whose forward switches off what torch.no_grad() leaves on.
    return not (torch._C._is_fwd_grad_enabled() or torch.is_inference_mode_enabled())


@_disable_dynamo
def _step(params: list[Tensor], order: Tensor, number: int) -> None:
    optimizer = _OPTIMIZERS.get(number)
    if optimizer is None:  # it was deleted, so its step was not called
        return
    if _in_a_graph_with_a_backward_pass():
        raise RuntimeError(
            f"{type(optimizer).__name__}.step() under torch.no_grad() is in one compiled graph with operations that "
            "record gradients; the compiler would let their backward pass overwrite the parameters. Remove no_grad(), "
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
            if optimizer._leaves_rows_behind():  # the option was set by hand after the graph was made
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


#: Of operators that do something in Python: a recording of CUDA work would leave it out.
EFFECT_TAGS = (torch.Tag.cudagraph_unsafe,)
for _name, _arguments, _body in (
    ("optimizer_step", "Tensor(a!)[] params, Tensor(b!) order, SymInt number", _step),
    ("remove_gradients", "Tensor(a!) order, SymInt number", _remove_gradients),
):
    torch.library.define(f"maskgrad::{_name}", f"({_arguments}) -> ()", tags=EFFECT_TAGS)
    torch.library.impl(f"maskgrad::{_name}", "default", _body)
    torch.library.register_fake(f"maskgrad::{_name}", lambda *_: None)
