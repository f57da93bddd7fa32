"""A run that can be undone: what it writes into memory that was there before it is remembered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from maskgrad.doctor.black_boxes import outside
from maskgrad.doctor.operations import Facts, facts_of
from maskgrad.doctor.sending import waited_for
from maskgrad.doctor.silence import to_nobody
from maskgrad.doctor.trees import tensors_in

__all__ = ["Guarded", "key_of", "on"]


def key_of(tensor: Tensor) -> int | None:
    """What is the same for all views of one memory; None for what has several memories, such as sparse tensors."""
    if tensor.layout is not torch.strided:
        return None
    key: int = tensor.untyped_storage()._cdata
    return key


class Guarded(TorchDispatchMode):
    """Remembers what a run writes into memory that was there before it, so that it can be undone."""

    #: whether an optimizer is to warn of rows that were read while they were behind
    sees_late_reads = False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        #: whether collective operations send nothing
        self.silent = False
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
        elif self.silent:
            args = to_nobody(func, args)
        return self.operation(func, facts, args, kwargs)

    def operation(self, func: Callable[..., Any], facts: Facts, args: Any, kwargs: Any) -> Any:
        """Run an operation of PyTorch, or whatever else reads and writes tensors."""
        if facts.writes:
            for tensor in self._written(facts, args, kwargs):
                self._keep(tensor)
        result = self.run(func, facts, args, kwargs)
        if not facts.view:
            for tensor in tensors_in(result):
                key = key_of(tensor)
                if key is not None and key not in self._kept:
                    self._made.add(key)
        return result

    def run(self, func: Callable[..., Any], facts: Facts, args: Any, kwargs: Any) -> Any:  # noqa: ARG002
        """The operation itself; subclasses do more."""
        return func(*args, **kwargs)

    def black_box(self, func: Callable[..., Any], facts: Facts, args: Any, kwargs: Any) -> None:
        """A function of which only arguments and results are seen."""
        self.run(func, facts, args, kwargs)

    def leaves(self, tensor: Tensor) -> bool:
        """The memory of a tensor is given to somebody else, who may write there; whether it depends on padding."""
        self._keep(tensor)
        return False

    def restore(self) -> None:
        """Write back what was there before."""
        with torch.no_grad():
            for tensor, before in self._kept.values():
                tensor.untyped_storage().copy_(before.untyped_storage())
        self._kept.clear()
        self._made.clear()

    @staticmethod
    def _written(facts: Facts, args: Any, kwargs: Any) -> Iterator[Tensor]:
        for place in facts.writes:
            positional = args[place] if isinstance(place, int) and place < len(args) else None
            yield from tensors_in(kwargs.get(place) if isinstance(place, str) else positional)

    def _keep(self, tensor: Tensor) -> None:
        key = key_of(tensor)
        if key is None or key in self._made or key in self._kept:
            return
        whole = on(tensor.untyped_storage(), tensor)
        # the tensor is held too, so that its memory is not given to another one
        self._kept[key] = (tensor.detach(), on(whole.untyped_storage().clone(), whole))


def on(storage: torch.UntypedStorage, like: Tensor) -> Tensor:
    """A tensor of the geometry of ``like`` on other memory."""
    made = torch.empty(0, dtype=like.dtype, device=like.device)
    made.set_(storage, like.storage_offset(), like.shape, like.stride())
    if like.is_conj():
        made = torch._conj(made)
    return torch._neg_view(made) if like.is_neg() else made
