"""One run of the user's step, forward and backward, after which everything is as it was before."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from maskgrad.doctor.batches import Key, Presented, fields, tensor_of, with_own_memory
from maskgrad.doctor.inferred import IgnoredLabels
from maskgrad.doctor.modes import Guarded, module_calls
from maskgrad.doctor.operations import nodes_of, tensors_in
from maskgrad.doctor.ranks import why_refused, without_replication
from maskgrad.doctor.recorder import has_nan
from maskgrad.doctor.state import State
from maskgrad.errors import ExaminationError
from maskgrad.masked_tensor import MaskedTensor

__all__ = [
    "Outcome", "StepRunner", "backward_from", "call_step", "loss_of", "named", "names_of", "outcome_of",
]  # fmt: skip


#: entries of a gradient of which a part is compared: all rows, since a table has those of ids, and of each some columns
_LARGE, _EVERY = 1 << 18, 8


@dataclass
class Outcome:
    """What one run gave: the loss and the gradients of all leaves that got one."""

    loss: Tensor | None
    gradients: dict[str, Tensor]
    leaves: dict[str, Tensor] = field(default_factory=dict)
    #: names of leaves that the batch holds or the step made: their gradients may have a row for each sample
    own: frozenset[str] = frozenset()

    def tensors(self) -> dict[str, Tensor]:
        """Loss and gradients by what a message calls them."""
        loss = {} if self.loss is None else {"the loss": self.loss}
        return loss | {f"the gradient of {name}": gradient for name, gradient in self.gradients.items()}

    def cloned(self) -> Outcome:
        """What stays when the memory of the run is restored; of large gradients some columns."""
        loss = None if self.loss is None else self.loss.clone()
        plain = {name: grad for name, grad in self.gradients.items() if grad.layout is torch.strided}
        large = [name for name, grad in plain.items() if grad.ndim > 1 and grad.numel() > _LARGE]
        parts = {name: plain[name].flatten(1)[:, ::_EVERY] for name in {*large} - self.own}
        gradients = {name: parts.get(name, grad).clone() for name, grad in self.gradients.items()}
        return Outcome(loss, gradients, own=self.own)

    def has_nan(self) -> bool:
        """Whether there is a NaN in the loss or a gradient."""
        return any(has_nan(tensor) for tensor in self.tensors().values() if tensor.is_floating_point())


class StepRunner:
    """Runs a step under a mode as often as needed, each time from the same state.

    Parameters have the names of ``model``, or of the modules that the step calls first.
    """

    def __init__(self, step: Callable[[Any], Any], batch: Any, model: nn.Module | None) -> None:
        if why := why_refused():
            raise ExaminationError(f"step: {why}")
        self.step, self.presented = step, Presented(batch)
        self.batch = with_own_memory(self.presented.batch)
        self.roots: list[nn.Module] = []
        self.state = State(step, [tensor_of(held) for held in fields(self.batch).values()])
        #: labels that losses ignore in all runs
        self.ignored: IgnoredLabels | None = None
        #: how many rows the outermost modules were given in the first run, call by call
        self.rows: list[int] = []
        self._looks_for_roots = model is None
        if model is not None:
            self._add_root(model)

    def run(self, mode: Guarded, batch: Any = None, after: Callable[[Outcome], Any] | None = None) -> Any:
        """Run the step and its backward pass under ``mode``, then restore everything.

        ``after`` is called with the outcome before that, and what it returns is returned.
        """
        mode.sends_nothing = True
        if self.ignored is not None:
            self.ignored.begin()
            mode.ignored = self.ignored
        given = self.batch if batch is None else batch
        try:
            with (
                self.state.run(mode.keep), without_replication(), torch.compiler.set_stance("force_eager"),
                contextlib.nullcontext() if self.rows else self._watched_modules(), mode, torch.enable_grad(),
            ):  # fmt: skip
                loss = loss_of(call_step(self.step, self.presented, given))
                if not any(leaf.grad is not None for leaf in self.state.leaves()):
                    backward_from(loss)
            outcome = self._outcome(loss, given)
            return outcome if after is None else after(outcome)
        finally:
            self.rows = self.rows or [0]
            self.state.restore()
            mode.restore()

    def _outcome(self, loss: Tensor | None, batch: Any) -> Outcome:
        known = self.state.leaves()
        before = {id(leaf) for leaf in known} - {id(tensor_of(held)) for held in fields(batch).values()}
        made = [leaf for leaf in reached(loss) if id(leaf) not in {id(leaf) for leaf in known}]
        named_leaves = named([*known, *made], self.roots)
        leaves = {name: leaf for name, leaf in named_leaves if leaf.grad is not None}
        gradients: dict[str, Any] = {name: leaf.grad for name, leaf in leaves.items()}
        for leaf in made:  # by the step itself: it had no gradient
            leaf.grad = None
        own = frozenset(name for name, leaf in leaves.items() if id(leaf) not in before)
        return Outcome(loss.detach() if loss is not None else None, gradients, leaves, own)

    def turn(self, keys: Collection[Key]) -> None:
        """Let the samples come first in the tensors of these keys; the step is given them as before."""
        self.presented.batch = self.batch
        self.presented.turn(keys)
        self.batch = self.presented.batch

    def _add_root(self, module: nn.Module) -> None:
        if why := why_refused(module):
            raise ExaminationError(f"model: {why}")
        self.roots.append(module)
        self.state.add(module)

    def _watched_modules(self) -> contextlib.AbstractContextManager[None]:
        """Notes which modules the step itself calls."""
        inside: list[nn.Module] = []

        def enter(module: nn.Module, args: Any) -> None:
            if not inside:
                if self._looks_for_roots and module not in self.roots:
                    self._add_root(module)
                # a hook for all modules is not given keywords
                given = tensors_in([args, sys._getframe(1).f_locals.get("kwargs", {})])
                self.rows.append(next((t.size(0) for t in given if t.is_nested or t.ndim), 0))
            inside.append(module)

        def leave(*_: Any) -> None:
            if inside:
                inside.pop()

        return module_calls(enter, leave)


def call_step(step: Callable[[Any], Any], presented: Presented, batch: Any) -> Any:
    """Where the doctor ends and the user's program begins: frames are searched up to here."""
    return step(presented.as_given(batch))


def loss_of(returned: Any) -> Tensor | None:
    """The loss among what a step returns; None if it is not there."""
    if isinstance(returned, MaskedTensor):
        returned = returned.filled(0.0)
    if returned is None or isinstance(returned, (int, float)):
        return None  # allowed to a step that calls backward itself
    loss = returned.get("loss") if isinstance(returned, dict) else getattr(returned, "loss", returned)
    if not isinstance(loss, Tensor):
        raise ExaminationError(
            f"step: expected the loss, a tensor with one entry, found {type(returned).__name__}; "
            f"end it with `return loss`"
        )
    if loss.numel() != 1:
        raise ExaminationError(
            f"step: expected a loss with one entry, found shape {tuple(loss.shape)}; write `return loss.mean()` "
            f"or another mean over what counts"
        )
    return loss


def backward_from(loss: Tensor | None) -> None:
    """The backward pass of a step that makes none itself."""
    if loss is None:
        raise ExaminationError(
            "step: it returned no loss, and called no backward() that reached a parameter; end it with `return loss`"
        )
    if not loss.requires_grad:
        raise ExaminationError(
            "step: the loss depends on nothing that requires a gradient; return it without .detach() and .item(), "
            "outside torch.no_grad()"
        )
    loss.backward()


def reached(loss: Tensor | None) -> list[Tensor]:
    """Leaves of the graph of a loss: some were made by the step itself."""
    return [node.variable for node in nodes_of(loss) if hasattr(node, "variable")]


def named(leaves: Iterable[Tensor], roots: Sequence[nn.Module]) -> list[tuple[str, Tensor]]:
    """Leaves with the names of the parameters that they are."""
    names = {
        id(parameter): f"{place}.{name}" if len(roots) > 1 else name
        for place, root in enumerate(roots)
        for name, parameter in root.named_parameters()
    }
    others = ((f"leaf {place} of shape {tuple(leaf.shape)}", leaf) for place, leaf in enumerate(leaves))
    return [(names.get(id(leaf), other), leaf) for other, leaf in others]


def outcome_of(
    loss: Tensor, roots: Sequence[nn.Module], pairs: list[tuple[Tensor, Tensor]] | None
) -> Outcome:
    """What a backward pass from a loss gave; ``pairs``: leaves with their gradients, if not in ``.grad``."""
    found = [(leaf, leaf.grad) for leaf in reached(loss)] if pairs is None else pairs
    names = [name for name, _ in named([leaf for leaf, _ in found], roots)]
    gradients = zip(names, (gradient for _, gradient in found), strict=True)
    return Outcome(loss.detach(), {name: held for name, held in gradients if held is not None})


def names_of(roots: Sequence[nn.Module]) -> dict[int, str]:
    """The dotted name of each module by its id."""
    inside = (found for root in reversed(roots) for found in root.named_modules())
    return {id(module): name or type(module).__name__ for name, module in inside}
