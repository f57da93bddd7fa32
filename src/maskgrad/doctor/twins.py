"""Every tensor may have a twin, computed from other padding: what differs from its twin depends on the padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import WeakIdKeyDictionary

from maskgrad.doctor.modes import Guarded
from maskgrad.doctor.operations import (
    COMPARISONS,
    COPIES,
    EMPTY,
    SEARCHES,
    SEES_NAN,
    Operated,
    Place,
    differing,
    flat,
    here,
    key_of,
    mapped,
    on,
    same,
    tensors_in,
)
from maskgrad.doctor.state import cuda_in_use

__all__ = ["Twins"]

_ORDERS = {"lt", "le", "gt", "ge"}


class Twins(Guarded):
    """Runs each operation a second time on the twins of its inputs, views, writes and backward pass included."""

    def __init__(self) -> None:
        super().__init__()
        #: for each memory that of its twin
        self._storages: dict[int, tuple[StorageWeakRef, torch.UntypedStorage]] = {}
        self._others: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._sentinels: set[int] = set()
        self._workspaces: set[int] = set()
        self._fresh = 0
        self._looks_at_views = type(self)._follow is not Twins._follow
        #: operations that failed on other padding, or gave a result of another shape: line, and what happened
        self.not_followed: list[tuple[Place | None, str]] = []
        #: whether a test of the program was given the sentinel of padding instead of other contents
        self.saw_sentinels = False

    # twins of single tensors

    def twin(self, tensor: Tensor) -> Tensor | None:
        """The twin, or None if it is the tensor itself."""
        key = key_of(tensor)
        if key is None:
            other: Tensor | None = self._others.get(tensor)
            return other
        entry = self._storages.get(key)
        # the weak reference keeps the address: a tensor that lives and has it has this memory
        return None if entry is None else on(entry[1], tensor)

    def set_twin(self, tensor: Tensor, twin: Tensor, *, sentinel: bool = False) -> None:
        """Let ``twin`` stand for ``tensor`` in the second run; tests of a ``sentinel`` see the tensor itself."""
        key = key_of(tensor)
        if key is None:
            self._others[tensor] = twin
            return
        entry = self._storages.get(key)
        if entry is None:
            memory, storage = tensor.untyped_storage(), twin.untyped_storage()
            if _geometry(tensor) != _geometry(twin) or memory.nbytes() != storage.nbytes():
                storage = memory.clone()
                on(storage, tensor).copy_(twin)
            self.forget(key)
            self._storages[key] = (StorageWeakRef(memory), storage)
            self._fresh += 1
            if self._fresh > len(self._storages) // 8:
                self._fresh = 0  # twins of tensors that are gone take memory
                for gone in [key for key, entry in self._storages.items() if entry[0].expired()]:
                    self.forget(gone)
        else:
            on(entry[1], tensor).copy_(twin)
        if sentinel:
            self._sentinels.add(key)

    def forget(self, key: int) -> None:
        """The tensor is its own twin again."""
        self._storages.pop(key, None)
        self._sentinels.discard(key)
        self._workspaces.discard(key)

    # operations

    def run(self, call: Operated) -> Any:
        """The operation on the tensors of the program, and again on their twins if it has any."""
        if call.facts.collective:
            for tensor in call.inputs if self._twins_of(call.inputs) else ():
                if self.twin(tensor) is None:  # it may be written: schemas do not say so
                    self.set_twin(tensor, tensor.clone())
        if call.facts.view:
            result = call()
            if self._looks_at_views or self._others:
                self._follow(call, result)
            return result
        if call.facts.name in EMPTY:
            return call()
        twins = self._twins_of(call.inputs)
        if twins:
            return self._run_both(call, twins)
        if call.facts.writes:
            for tensor in call.written:
                self._sentinels.discard(key_of(tensor) or 0)
        return call()

    def _twins_of(self, tensors: list[Tensor]) -> dict[int, Tensor]:
        """The twins of tensors that have one, by the ``id`` of the tensor."""
        return {id(tensor): twin for tensor in tensors if (twin := self.twin(tensor)) is not None}

    def leaves_torch(self, tensor: Tensor) -> bool:
        """The memory of a tensor leaves PyTorch; whether it depends on padding."""
        super().leaves_torch(tensor)
        return not same(tensor, self.other(tensor))

    def other(self, tensor: Tensor) -> Tensor:
        """The twin, or the tensor itself."""
        twin = self.twin(tensor)
        return tensor if twin is None else twin

    def _run_both(self, call: Operated, twins: dict[int, Tensor]) -> Any:
        facts, written = call.facts, call.written if call.facts.writes else []
        fresh = [tensor for tensor in written if id(tensor) not in twins and key_of(tensor) is not None]
        with_twin = [tensor for tensor in call.inputs if id(tensor) in twins]
        for tensor in fresh:
            if self.twin(tensor) is None:
                self.set_twin(tensor, on(tensor.untyped_storage().clone(), tensor))
        if fresh:
            twins = self._twins_of(call.inputs)

        def other(tensor: Tensor) -> Tensor:
            return twins.get(id(tensor), tensor)

        seen = self._seen(call, with_twin, twins) if facts.looks else other
        twin_args, twin_kwargs = mapped(seen, (call.args, call.kwargs))
        keeps = facts.name in COPIES | {"masked_fill", "where"}  # which write constants as well
        marked = keeps and any(key_of(tensor) in self._sentinels for tensor in with_twin)
        before = self.before(call)
        if call.kwargs.get("generator") is not None:
            twin_kwargs = {**twin_kwargs, "generator": call.kwargs["generator"].clone_state()}
        try:
            with torch.random.fork_rng(cuda_in_use(), enabled=facts.random):
                others = call.func(*twin_args, **twin_kwargs)
        except Exception as error:
            self.note_not_followed(facts.name, str(error))
            return call()
        result = call()
        targets = {key_of(tensor) for tensor in written}
        for index, (output, twin) in enumerate(zip(flat(result), flat(others), strict=False)):
            if not isinstance(output, Tensor):
                if isinstance(output, (int, float, complex)) and output != twin and output == output:
                    self.note_not_followed(facts.name, "a Python number depends on the padding")
            elif targets and key_of(output) in targets:
                continue
            elif index in facts.workspaces or not same(output, twin):
                self._take(call, output, twin, sentinel=marked)
                if index in facts.workspaces:
                    self._workspaces.add(key_of(output) or 0)
        for tensor in written:
            if marked and (key := key_of(tensor)) in self._storages:
                self._sentinels.add(key or 0)  # labels that were shifted into a buffer
            self._drop_equal_copy(tensor)
        self.twinned(call, result, before)
        return result

    def _take(self, call: Operated, output: Tensor, twin: Tensor, *, sentinel: bool = False) -> None:
        if output.shape == twin.shape:
            self.set_twin(output, twin, sentinel=sentinel)
        else:
            why = f"the shape {tuple(output.shape)} depends on the padding"
            self.note_not_followed(call.facts.name, why)

    def _seen(self, call: Operated, held: list[Tensor], twins: dict[int, Tensor]) -> Callable[..., Tensor]:
        """What the second run is given for each tensor; tests of a sentinel see the sentinel."""
        name = call.facts.name
        is_loss, compares, sees_nan = name.startswith("nll_loss"), name in COMPARISONS, name in SEES_NAN
        # a test compares with a number (or a label with the one that is ignored)
        operand = call.args[1] if len(call.args) > 1 else call.kwargs.get("other")
        number = not isinstance(operand, Tensor) or operand.numel() == 1
        tests = name in SEARCHES or (compares and (is_loss or name == "isin" or number))
        itself = len(held) == 2 and held[0] is held[1]
        # only a label that the loss ignores is a sentinel: any other is what the loss is about
        ignored = next((value for value in reversed(call.args) if type(value) is int), None)

        def seen(tensor: Tensor) -> Tensor:
            twin = twins.get(id(tensor))
            if twin is None:
                return tensor
            if tests and key_of(tensor) in self._sentinels:
                if is_loss:
                    return twin if ignored is None else torch.where(tensor.eq(ignored), tensor, twin)
                # the tokens of another document are several ids, those of padding one
                is_number = tensor.is_floating_point()
                if name in SEARCHES and (is_number or len(tensor[differing(tensor, twin)].unique()) > 1):
                    return twin
                if name in _ORDERS and not _tells_padding(call, tensor, twin):
                    return twin
                self.saw_sentinels = True
                return tensor
            if sees_nan and tensor.is_floating_point() and (tests or itself or not compares):
                self.saw_sentinels = True
                return torch.where(tensor.isnan(), tensor, twin)
            return twin

        return seen

    def _drop_equal_copy(self, tensor: Tensor) -> None:
        """Drop a twin that equals its tensor in the whole memory."""
        key, twin = key_of(tensor), self.twin(tensor)
        if key is None or twin is None:
            return
        whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
        if whole and same(tensor, twin):
            self.forget(key)

    def before(self, call: Operated) -> Any:
        """For recorders: called before both runs of an operation; the result is passed on to :meth:`twinned`."""

    def twinned(self, call: Operated, result: Any, before: Any) -> None:
        """For recorders: an operation ran twice."""

    def note_not_followed(self, name: str, why: str) -> None:
        """An operation could not be run with other padding."""
        note = here(), f"{name} was not tracked with changed padding: {why}"
        if note not in self.not_followed:
            self.not_followed.append(note)

    def _follow(self, call: Operated, result: Any) -> None:
        """Views share the memory of the twin by themselves; what has no single memory is viewed twice."""
        if not any(key_of(tensor) is None and tensor in self._others for tensor in call.inputs):
            return
        args, kwargs = mapped(self.other, (call.args, call.kwargs))
        twins = call.func(*args, **kwargs)
        for output, twin in zip(tensors_in(result), tensors_in(twins), strict=False):
            self._take(call, output, twin)


def _tells_padding(call: Operated, tensor: Tensor, twin: Tensor) -> bool:
    """Whether a comparison such as ``ids > 0`` tells what is real from what is not: ``ids > 20`` reads the data."""
    result = call()
    if not isinstance(result, Tensor) or result.shape != tensor.shape:
        return True
    rewritten = differing(tensor, twin)
    inside, outside = result[rewritten], result[~rewritten]
    return not inside.numel() or bool((inside == inside[0]).all() and (outside != inside[0]).all())


def _geometry(x: Tensor) -> tuple[Any, ...]:
    return x.dtype, x.shape, x.layout, x.device, x.stride(), x.storage_offset(), x.is_conj(), x.is_neg()
