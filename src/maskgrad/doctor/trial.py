"""One run of the user's step, forward and backward, after which everything is as it was before."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from maskgrad.doctor import randomness
from maskgrad.doctor.bookkeeping import Bookkeeping, Flags, of_the_process
from maskgrad.doctor.silence import alone, is_replicated, refuse_coupled
from maskgrad.doctor.trees import tensors_in
from maskgrad.doctor.twins import Guarded
from maskgrad.errors import ExaminationError
from maskgrad.masked_tensor import MaskedTensor

__all__ = ["Outcome", "Trial", "reached"]


@dataclass
class Outcome:
    """What one run gave: the loss and the gradients of all leaves that got one."""

    loss: Tensor | None
    gradients: dict[str, Tensor]
    leaves: dict[str, Tensor] = field(default_factory=dict)


class Trial:
    """Runs a step under a mode as often as needed, each time from the same state.

    Args:
        step: function of the batch that returns the loss; it may call ``backward`` itself.
        batch: what it is given.
        model: whose parameters are named; found by watching which modules are called if None.
    """

    def __init__(self, step: Callable[[Any], Any], batch: Any, model: nn.Module | None) -> None:
        self.step, self.batch = step, batch
        self.roots: list[nn.Module] = [model] if model is not None else []
        if model is not None:
            refuse_coupled(model)
        self._found_roots = model is not None
        self._random = randomness.all_states()
        # all objects of the process are looked through once; what a run makes is taken up when it is reached
        self._leaves, self._keepers, modules = of_the_process()
        self._flags = Flags(modules)
        #: how many rows the outermost modules were given in the first run, call by call
        self.rows: list[int] = []

    def run(self, mode: Guarded, batch: Any = None, after: Callable[[Outcome], Any] | None = None) -> Any:
        """Run the step and its backward pass under ``mode``, then restore everything.

        Args:
            mode: the mode; its twins and records may be read afterwards.
            batch: another batch than that of the trial.
            after: called with the outcome before anything is restored.

        Returns:
            what ``after`` returns, else the outcome.
        """
        mode.silent = True
        kept = _Kept(self._leaves, self._keepers, mode)
        try:
            with (
                kept,
                alone(),
                torch.compiler.set_stance("force_eager"),
                self._watch_modules(),
                mode,
                torch.enable_grad(),
            ):
                returned = call_step(self.step, self.batch if batch is None else batch)
                loss = _loss_of(returned)
                if not any(leaf.grad is not None for leaf in kept.leaves()):
                    _backward(loss)
            outcome = self._outcome(loss, kept)
            return outcome if after is None else after(outcome)
        finally:
            kept.restore()
            mode.restore()
            self._flags.restore()
            self.rewind()

    def rewind(self) -> None:
        """Random numbers are drawn again from the state of the beginning."""
        randomness.restore_all(self._random)

    def _outcome(self, loss: Tensor | None, kept: _Kept) -> Outcome:
        names = {id(parameter): name for name, parameter in self.parameters()}
        gradients, leaves = {}, {}
        kept.take_up(reached(loss))
        for place, leaf in enumerate(kept.leaves()):
            if leaf.grad is not None:
                name = names.get(id(leaf), f"leaf {place} of shape {tuple(leaf.shape)}")
                gradients[name], leaves[name] = leaf.grad, leaf
        return Outcome(loss.detach() if loss is not None else None, gradients, leaves)

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Names and parameters of the modules that the step calls."""
        for place, root in enumerate(self.roots):
            above = f"{place}." if len(self.roots) > 1 else ""
            for name, parameter in root.named_parameters():
                yield f"{above}{name}", parameter

    def replicas(self) -> nn.Module | None:
        """A module of which other ranks have replicas, and examine them as well."""
        inside = (module for root in self.roots for module in root.modules())
        return next(filter(is_replicated, inside), None)

    def modules(self) -> dict[int, str]:
        """The dotted name of each module by its id."""
        return {
            id(module): name or type(module).__name__
            for root in reversed(self.roots)
            for name, module in root.named_modules()
        }

    @contextlib.contextmanager
    def _watch_modules(self) -> Iterator[None]:
        """In the first run: note which modules are called by nobody but the step."""
        if self._found_roots and self.rows:
            yield
            return
        inside: list[nn.Module] = []

        def enter(module: nn.Module, args: Any) -> None:
            if not inside:
                if not self._found_roots and module not in self.roots:
                    self.roots.append(module)
                    refuse_coupled(module)
                self.rows.append(next((t.shape[0] for t in tensors_in(args) if t.ndim), 0))
            inside.append(module)

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            if inside:
                inside.pop()

        handles = [
            nn.modules.module.register_module_forward_pre_hook(enter),
            nn.modules.module.register_module_forward_hook(leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._found_roots = True
            self.rows = self.rows or [0]


def call_step(step: Callable[[Any], Any], batch: Any) -> Any:
    """Where the doctor ends and the user's program begins: frames are searched up to here."""
    return step(batch)


def _loss_of(returned: Any) -> Tensor | None:
    if isinstance(returned, MaskedTensor):
        returned = returned.filled(0.0)
    loss = returned if isinstance(returned, Tensor) else getattr(returned, "loss", None)
    if loss is None and isinstance(returned, dict):
        loss = returned.get("loss")
    if returned is None or isinstance(returned, (int, float)):
        return None  # allowed to a step that calls backward itself
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


def _backward(loss: Tensor | None) -> None:
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
    found: list[Tensor] = []
    seen: set[Any] = set()
    waiting = [loss.grad_fn] if loss is not None else []
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        waiting += [following for following, _ in node.next_functions]
    return found


class _Kept:
    """What a run may change besides the memory of tensors: gradients, books, states of optimizers."""

    def __init__(self, leaves: list[Tensor], keepers: list[Any], mode: Guarded) -> None:
        self._mode = mode
        self._books = Bookkeeping(leaves, keepers)
        self._books.warn_of_late_reads(mode.sees_late_reads)
        self._gradients = [(leaf, leaf.grad) for leaf in leaves]
        #: of each optimizer that makes a step: states and groups, the objects themselves and what was in them
        self._optimizers: dict[int, tuple[Any, dict[Any, Any], list[tuple[Any, Any]]]] = {}

    def leaves(self) -> list[Tensor]:
        return [leaf for leaf, _ in self._gradients]

    def take_up(self, leaves: list[Tensor]) -> None:
        """Leaves that the step made itself: they had no gradient before."""
        known = {id(leaf) for leaf in self.leaves()}
        self._gradients += [(leaf, None) for leaf in leaves if id(leaf) not in known]

    def __enter__(self) -> None:
        for leaf, gradient in self._gradients:
            if gradient is not None:
                leaf.grad = None
        self._handle = register_optimizer_step_pre_hook(self._keep_optimizer)

    def __exit__(self, *_: object) -> None:
        self._handle.remove()

    def _keep_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        if id(optimizer) in self._optimizers:
            return
        inside = [*optimizer.param_groups, *(v for v in optimizer.state.values() if isinstance(v, dict))]
        self._optimizers[id(optimizer)] = (
            optimizer,
            dict(optimizer.state),
            [(one, dict(one)) for one in inside],
        )
        for tensor in tensors_in(
            (list(optimizer.state.values()), [g["params"] for g in optimizer.param_groups])
        ):
            self._mode._keep(tensor)

    def restore(self) -> None:
        for leaf, gradient in self._gradients:
            leaf.grad = gradient
        for optimizer, state, inside in self._optimizers.values():
            optimizer.state.clear()
            optimizer.state.update(state)
            for one, before in inside:
                one.clear()
                one.update(before)
        self._books.restore()
