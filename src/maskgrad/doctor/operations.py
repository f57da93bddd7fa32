"""Facts about operations of PyTorch that their schemas do not say."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from maskgrad.doctor.tensors import tensors_in

__all__ = ["COMPARISONS", "COPIES", "EMPTY", "SEES_NAN", "Call", "Facts", "facts_of"]

#: outputs that share memory with an input although no annotation says so, or change shapes and strides only
_VIEWS = {
    "_unsafe_view", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk", "transpose_", "t_", "squeeze_",
    "unsqueeze_", "swapaxes_", "swapdims_", "as_strided_", "_reshape_alias", "lift_fresh", "detach_",
}  # fmt: skip
#: what is not written yet: two runs find other garbage there
EMPTY = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"}
#: position of arguments that are written without an annotation
_WRITES = {"native_batch_norm": (3, 4), "cudnn_batch_norm": (3, 4), "miopen_batch_norm": (3, 4)}
#: position of outputs that are working memory: two runs with the same inputs may leave other garbage there
_WORKSPACES = {
    "mkldnn_rnn_layer": (3,), "_cudnn_rnn": (3,), "miopen_rnn": (4,), "cudnn_batch_norm": (3,),
    "_embedding_bag": (1, 2, 3), "_embedding_bag_forward_only": (1, 2, 3), "_thnn_fused_lstm_cell": (2,),
    "_thnn_fused_gru_cell": (1,), "_ctc_loss": (1,), "_cudnn_ctc_loss": (1,),
}  # fmt: skip
#: what tests a marker (a label of -100, the id of a padding token) for what it is
COMPARISONS = {
    "eq", "ne", "lt", "le", "gt", "ge", "isin",
    "nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward",
}  # fmt: skip
#: what treats NaN as a marker
SEES_NAN = {"isnan", "isfinite", "isinf", "nansum", "nanmedian", "eq", "ne"}


#: operations whose results hold the entries of an input unchanged
COPIES = {
    "clone", "copy", "copy_", "_to_copy", "cat", "stack", "index_select", "index", "gather", "flip", "roll", "repeat",
    "constant_pad_nd", "contiguous", "slice_backward", "take", "masked_select", "tril", "triu",
}  # fmt: skip


@dataclass(frozen=True)
class Facts:
    """What the doctor asks of an operation before it runs."""

    name: str
    view: bool = False
    #: positions and names of the arguments that are written
    writes: tuple[int | str, ...] = ()
    random: bool = False
    workspaces: tuple[int, ...] = ()
    pointwise: bool = False
    collective: bool = False
    #: whether markers are told from other numbers
    looks: bool = False


@functools.cache
def facts_of(func: Any) -> Facts:
    """All facts about one overload."""
    namespace, _, name = str(func._schema.name).partition("::")  # aten::add, without the overload
    arguments = func._schema.arguments
    written: list[int | str] = [
        argument.name if argument.kwarg_only else position
        for position, argument in enumerate(arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    view = func.is_view or name in _VIEWS
    return Facts(
        name=name,
        view=view,
        writes=() if view else (*written, *_WRITES.get(name, ())),
        random=torch.Tag.nondeterministic_seeded in func.tags,
        workspaces=_WORKSPACES.get(name, ()),
        pointwise=torch.Tag.pointwise in func.tags,
        collective=namespace in ("c10d", "_c10d_functional"),
        looks=name in COMPARISONS or name in SEES_NAN,
    )


@dataclass
class Call:
    """An operation of PyTorch, or whatever else reads and writes tensors, with its arguments."""

    func: Callable[..., Any]
    facts: Facts
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self) -> Any:
        """Run it."""
        return self.func(*self.args, **self.kwargs)

    @functools.cached_property
    def inputs(self) -> list[Tensor]:
        """All tensors among the arguments."""
        return tensors_in((self.args, self.kwargs))

    @functools.cached_property
    def written(self) -> list[Tensor]:
        """Those that are written."""
        found = []
        for place in self.facts.writes:
            if isinstance(place, str):
                found += tensors_in(self.kwargs.get(place))
            elif place < len(self.args):
                found += tensors_in(self.args[place])
        return found
