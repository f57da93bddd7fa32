"""Dense gradients: the parameters of a group together, by PyTorch's own optimizer.

PyTorch's functions take lists of tensors; one call for 200 parameters costs a fraction of 200 calls. ``fused`` and
``foreach`` of the group choose the implementation; by default it is the fastest one on a CPU (AdamW on one thread,
PyTorch 2.13: 200 tensors of 64 x 64 fused 2.8 ms, foreach 9.4, one by one 14; 8 of 2048 x 1024 fused 15 ms, foreach 69,
one by one 55), and PyTorch's own choice elsewhere.

The states are those of ``torch.optim``, so that its step finds them. If they have another form (one value per row, a
marker of started buffers), if not all entries are trained, or for halves, which PyTorch would round after each
operation, the engine steps.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from maskgrad.optim.rule import Hyperparameters
from maskgrad.optim.whole_groups import FUSED, WholeGroup, is_simple, same
from maskgrad.semantics.entries import HALVES

__all__ = ["SINGLE", "DenseGroup", "DenseParameter"]

STRIDED = torch.strided
SINGLE = (torch.float32, torch.float64)
#: Whose steps are fastest one by one, however small the parameters are.
ONE_BY_ONE = frozenset({torch.optim.ASGD})
#: From so many values of a parameter on, going through all parameters with each operation leaves the cache.
LARGE = 1 << 17
NO_STATE: Mapping[str, Tensor] = {}
#: Hyperparameters that may be tensors.
TENSORS = ("lr", "betas", "weight_decay")
OPTIONS = {"foreach": None, "fused": None, "capturable": False, "differentiable": False}


class DenseParameter:
    """A parameter whose states PyTorch's step can take, checked once; ``is_same`` says whether that still holds."""

    def __init__(self, param: Tensor, state: Mapping[str, Tensor]) -> None:
        self.param = param
        self.state = state
        self.tables: Any = None  # for the loops over rows: maskgrad.optim.rows
        self.call: Any = None
        self.tensors = tuple(state.values())
        self.dtype = param.dtype
        self.cpu = param.device.type == "cpu"
        self.shape = param.shape
        self.address = param.data_ptr()
        self.in_order = param.is_contiguous()
        self.contiguous = self.in_order and all(t.is_contiguous() for t in self.tensors)

    @classmethod
    def of(
        cls, param: Tensor, state: Mapping[str, Any], wanted: tuple[str, ...], counts: int
    ) -> DenseParameter | None:
        """None: its states are not complete, or not such that PyTorch's step computes what ours does.

        ``wanted`` are the names of its states; the last ``counts`` of them are one number.
        """
        if param.dtype not in (*SINGLE, *HALVES) or param.device.type not in ("cpu", "cuda"):
            return None
        if state.keys() != set(wanted):
            return None
        for position, name in enumerate(wanted):
            t = state[name]
            if not isinstance(t, Tensor) or t.layout is not STRIDED:
                return None
            like = (t.shape, t.dtype, t.device) == (param.shape, param.dtype, param.device)
            is_count = position >= len(wanted) - counts
            if not (t.numel() == 1 and t.dtype in SINGLE if is_count else like):
                return None
        return cls(param, state)

    def is_same(self, param: Tensor) -> bool:
        """Whether parameter, memory and the tensors of its state are those that were checked."""
        return (
            param is self.param
            and param.data_ptr() == self.address
            and param.shape == self.shape
            and param.is_contiguous() is self.in_order
            and len(self.state) == len(self.tensors)
            and all(map(operator.is_, self.state.values(), self.tensors))
        )


class DenseGroup:
    """The parameters of a group that PyTorch's optimizer ``kind`` steps, once all gradients have been checked.

    It is kept between steps: what was found about parameters, by their position; the lists of states that PyTorch's
    fused and other steps read, and of which parameters; and the whole group, if all went one way in the last step.
    """

    def __init__(
        self, kind: type[torch.optim.Optimizer], state: Mapping[Tensor, Any], defaults: Mapping[str, Any]
    ) -> None:
        self.kind, self.state, self.defaults = kind, state, defaults
        self.wanted: tuple[str, ...] | None = None
        self.can_fuse = False
        self.known: dict[int, DenseParameter] = {}
        self.lists: dict[bool, tuple[list[DenseParameter], list[Any]]] = {}
        self.whole: WholeGroup | None = None

    def configure(self, group: dict[str, Any], numbers: Hyperparameters) -> None:
        """To be called when options have changed."""
        counts = [*numbers.scalars(), *(["step"] if numbers.rule.counts_steps else [])]
        wanted = (*(declared.name for declared in numbers.states()), *counts)
        self.group, self.counts = group, len(counts)
        self.asked = bool(group.get("fused"))
        unasked = group.get("fused") is None and group.get("foreach") is None
        can_fuse = self.kind in FUSED and (self.asked or unasked)
        if wanted != self.wanted:
            self.known.clear()
        if (wanted, can_fuse) != (self.wanted, self.can_fuse):
            self.whole = None
        self.wanted, self.can_fuse = wanted, can_fuse

    def begin(self) -> None:
        """To be called before a step."""
        self.usual: WholeGroup | None = None
        self.parts: tuple[list[DenseParameter], list[DenseParameter]] = [], []
        self.grads: tuple[list[Tensor], list[Tensor]] = [], []

    def takes_all(self) -> bool:
        """Whether PyTorch is to step all parameters of the group, as it did in the last step."""
        whole = self.whole
        grads = None if whole is None else whole.gradients(self.group["params"])
        if whole is None or grads is None:
            return False
        self.parts[whole.fused].extend(whole.known)
        self.grads[whole.fused].extend(grads)
        self.usual = whole
        return True

    def look(self, number: int, param: Tensor) -> DenseParameter | None:
        """What is known of a parameter; None: the engine must step it."""
        if param.__dict__ and not is_simple(param):
            return None
        known = self.known.get(number)
        if known is None or not known.is_same(param):
            assert self.wanted is not None
            known = DenseParameter.of(param, self.state.get(param, NO_STATE), self.wanted, self.counts)
            if known is not None:
                self.known[number] = known
        return known

    def takes(self, number: int, param: Tensor, grad: Any) -> bool:
        """Whether PyTorch is to step ``param``, whose gradient is ``grad``: a dense one, for all of its entries."""
        if type(grad) is not Tensor or grad.layout is not STRIDED:
            return False
        known = self.look(number, param)
        if known is None or grad.dtype is not known.dtype or grad.shape != known.shape:
            return False
        # The fused loops assume that all tensors have the same order in memory.
        fused = self.can_fuse and known.contiguous and (known.cpu or self.asked) and grad.is_contiguous()
        if not fused and known.dtype not in SINGLE:
            return False
        self.parts[fused].append(known)
        self.grads[fused].append(grad)
        return True

    def step(self, stepped: list[Tensor]) -> None:
        """Step them all, and append those that were stepped to ``stepped``."""
        kind: Any = self.kind
        for fused, known, grads in zip((False, True), self.parts, self.grads, strict=True):
            if not known:
                continue
            if len(known) == len(self.group["params"]) and self.usual is None:
                self.whole = WholeGroup(fused, known)
            params = [one.param for one in known] if self.usual is None else self.usual.params
            options = {**OPTIONS, **self.group, "params": params, "fused": fused}
            if fused:
                options["foreach"] = False
            if known[0].cpu:
                options["capturable"] = False
                options |= {name: _plain(options[name]) for name in TENSORS if name in options}
                if options["foreach"] is None:
                    small = sum(one.shape.numel() for one in known) < LARGE * len(known)
                    options["foreach"] = small and kind not in ONE_BY_ONE
            kept = self.lists.get(fused)
            if kept is None or not same(known, kept[0]):
                kept = self.lists[fused] = known, []
            if self.usual is None or not kept[1] or not self.usual.step(kind, grads, kept[1][0], options):
                optimizer = object.__new__(_with_lists(kind))
                optimizer.__dict__.update(
                    param_groups=[options],
                    state=self.state,
                    defaults=self.defaults,
                    kept=kept[1],
                    given=grads,
                )
                optimizer.bare_step()
            stepped += params


@functools.cache
def _with_lists(kind: Any) -> Any:
    """The optimizer whose step reads the states of the same parameters once, not at each step."""

    class WithLists(kind):  # type: ignore[misc]
        # Without the hooks that PyTorch's optimizers put around it: ours has called them.
        bare_step = inspect.unwrap(kind.step)

        def _init_group(self, group: dict[str, Any], params: list[Any], grads: list[Any], *lists: Any) -> Any:
            if not self.kept:
                returned = super()._init_group(group, params, grads, *lists)
                self.kept += [[*one] for one in lists], returned
                return returned
            params.extend(group["params"])
            grads.extend(self.given)
            for one, filled in zip(lists, self.kept[0], strict=True):
                one.extend(filled)
            return self.kept[1]

    return WithLists


def _plain(value: Any) -> Any:
    """Hyperparameters as numbers: some of PyTorch's ways take no tensors."""
    if isinstance(value, (tuple, list)):
        return tuple(map(_plain, value))
    return value.item() if isinstance(value, Tensor) else value
