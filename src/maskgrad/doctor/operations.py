"""Lines of the program that run; operations of PyTorch: their tensors, and facts that their schemas do not say."""

from __future__ import annotations

import bisect
import functools
import linecache
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "COMPARISONS", "COPIES", "EMPTY", "SEARCHES", "SEES_NAN", "Lines", "Operated", "OperationFacts", "Place",
    "any_key", "callers", "dense", "differing", "expanded", "facts_of", "flat", "here", "is_users", "key_of",
    "mapped", "nodes_of", "on", "same", "tensors_in",
]  # fmt: skip

_OURS = str(Path(__file__).parent.parent)
_DOCTOR = str(Path(__file__).parent)
#: who runs a script: what is beyond, such as ``bin/maskgrad``, is no line of the program
_COMMAND = str(Path(_OURS) / "cli")
_LIBRARIES = tuple(
    {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {str(Path(torch.__file__).parent), _OURS}
)
#: packages whose lines belong to no model
_COMPUTED_BY = frozenset(
    ("torch", "functorch", "numpy", "numba", "triton", "einops", "torch_xla", "_pytest", "pluggy", "xdist")
)
#: the function in which the doctor calls the user's step
BOUNDARY = "call_step"
_BACKWARD = "_engine_run_backward"


@dataclass(frozen=True)
class Place:
    """A line of a file, and the function it is in."""

    file: str
    line: int
    function: str = ""
    #: the innermost line of an installed package that the line calls
    package_file: str = ""
    package_line: int = 0

    @property
    def code(self) -> str:
        """The text of the line."""
        return linecache.getline(self.file, self.line).strip()


@functools.cache
def is_users(file: str) -> bool:
    """Whether a file belongs to the user's program."""
    if file.startswith("<"):
        return file.startswith(("<stdin>", "<ipython"))
    return not re.search(r"[\\/](site|dist)-packages[\\/]", file) and not file.startswith(_LIBRARIES)


@functools.cache
def _is_packages(file: str) -> bool:
    """Whether a file belongs to an installed package that computes with PyTorch, such as a library of models."""
    inside = re.search(r"[\\/](?:site|dist)-packages[\\/](\w+)", file)
    return inside is not None and inside[1] not in _COMPUTED_BY and not file.startswith(_OURS)


def _frames() -> Iterator[tuple[str, FrameType]]:
    """The frames of the program and their files, the innermost first, up to the call of the step or of backward()."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if (frame.f_code.co_name == BOUNDARY and file.startswith(_DOCTOR)) or file.startswith(_COMMAND):
            return
        yield file, frame
        if frame.f_code.co_name == _BACKWARD:
            return
        frame = frame.f_back


def here() -> Place | None:
    """The innermost line of the user's program; that of a package that computes with PyTorch if there is none."""
    package = ("", 0)
    for file, frame in _frames():
        if frame.f_code.co_name == _BACKWARD:
            return None  # who calls backward() is not who computes there
        if is_users(file):
            return Place(file, frame.f_lineno, frame.f_code.co_name, *package)
        if not package[0] and _is_packages(file):
            package = (file, frame.f_lineno)
    return Place(*package) if package[0] else None


def callers(place: Place | None) -> list[str]:
    """The lines of the program through which a line was reached, the innermost first; none in a backward pass."""
    found = [Place(file, frame.f_lineno) for file, frame in _frames() if is_users(file)]
    reached = place is not None and bool(found) and (found[0].file, found[0].line) == (place.file, place.line)
    return [f"{at.file}:{at.line}: {at.code}" for at in found[1:4]] if reached else []


class Lines:
    """Lines of the program to which the nodes of the autograd graph belong, and so what runs in a backward pass.

    Anomaly detection has lines, too, but formats a whole stack for each node: half of the time of a step.
    """

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._places: list[Place | None] = []
        self._last = -1

    def note(self) -> None:
        """An operation is about to run: its node, if it has one, is the newest."""
        made = torch._C._autograd._get_sequence_nr() - 1
        if made > self._last:
            self._last = made
            self._numbers.append(made)
            self._places.append(self.here())

    def here(self) -> Place | None:
        """The line that is running; in a backward pass that of the forward pass which made the node."""
        node = torch._C._current_autograd_node()
        found = here()
        if found is not None or node is None:
            return found
        number = node._sequence_nr()
        if number > self._last:  # leaves have the largest number there is
            return None
        place = bisect.bisect_right(self._numbers, number)
        return self._places[place - 1] if place else None


def flat(tree: Any) -> list[Any]:
    """All that lists, tuples and dicts hold, tensors or not."""
    if isinstance(tree, dict):
        tree = list(tree.values())
    if not isinstance(tree, (tuple, list)):
        return [tree]
    inner = (flat(member) if isinstance(member, (tuple, list, dict)) else (member,) for member in tree)
    return [leaf for leaves in inner for leaf in leaves]


def tensors_in(tree: Any) -> list[Tensor]:
    """The tensors among arguments or results, in lists, tuples and dicts."""
    return [leaf for leaf in flat(tree) if isinstance(leaf, Tensor)]


def mapped(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """Arguments with other tensors; see :func:`tensors_in`."""
    if isinstance(tree, (tuple, list)):
        return type(tree)([mapped(function, member) for member in tree])
    if isinstance(tree, dict):
        return {key: mapped(function, member) for key, member in tree.items()}
    return function(tree) if isinstance(tree, Tensor) else tree


def nodes_of(loss: Tensor | None) -> Iterator[Any]:
    """The nodes of the autograd graph of a loss."""
    seen, waiting = set[Any](), [] if loss is None else [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            waiting += [following for following, _ in node.next_functions]


def key_of(tensor: Tensor) -> int | None:
    """What is the same for all views of one memory; None for what has several memories, such as sparse tensors."""
    if tensor.layout is not torch.strided:
        return None
    key: int = tensor.untyped_storage()._cdata
    return key


def any_key(tensor: Tensor) -> int:
    """The same for all views of one memory; of the tensor itself where it has several."""
    key = key_of(tensor)
    return -id(tensor) if key is None else key


def on(storage: torch.UntypedStorage, like: Tensor) -> Tensor:
    """A tensor of the geometry of ``like`` on other memory."""
    made = torch.empty(0, dtype=like.dtype, device=like.device)
    made.set_(storage, like.storage_offset(), like.shape, like.stride())
    if like.is_conj():
        made = torch._conj(made)
    return torch._neg_view(made) if like.is_neg() else made


def expanded(mask: Tensor, shape: Sequence[int]) -> Tensor:
    """A mask of leading dimensions in the whole shape."""
    return mask.reshape(*mask.shape, *(1,) * (len(shape) - mask.ndim)).expand(shape)


def dense(tensor: Tensor) -> Tensor:
    """The tensor without a sparse layout; the rows of a jagged one."""
    if tensor.layout is torch.jagged:
        return tensor.values()
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal entry for entry; NaN equals NaN."""
    if a.layout is torch.sparse_coo:
        a, b = a.coalesce(), b.coalesce()
        return same(a._indices(), b._indices()) and same(a._values(), b._values())
    a, b = dense(a), dense(b)
    return a.shape == b.shape and (torch.equal(a, b) or not bool(differing(a, b).any()))


def differing(a: Tensor, b: Tensor) -> Tensor:
    """Boolean tensor: True where entries differ; NaN equals NaN."""
    a, b = dense(a), dense(b)
    unequal = a != b
    # a sum is NaN if an entry is, and faster than a search
    return unequal & ~(a.isnan() & b.isnan()) if bool(a.sum().isnan()) else unequal


#: outputs that share memory with an input although no annotation says so, or change shapes and strides only
_VIEWS = {
    "_unsafe_view", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk", "transpose_", "t_", "squeeze_",
    "unsqueeze_", "swapaxes_", "swapdims_", "as_strided_", "_reshape_alias", "lift_fresh", "detach_",
}  # fmt: skip
#: what is not written yet: two runs find different values there
EMPTY = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"}
#: position of arguments that are written without an annotation
_WRITES = {"native_batch_norm": (3, 4), "cudnn_batch_norm": (3, 4), "miopen_batch_norm": (3, 4)}
#: position of outputs that are working memory: two runs with the same inputs may leave different values there
_WORKSPACES = {
    "mkldnn_rnn_layer": (3,), "_cudnn_rnn": (3,), "miopen_rnn": (4,), "cudnn_batch_norm": (3,),
    "_embedding_bag": (1, 2, 3), "_embedding_bag_forward_only": (1, 2, 3), "_thnn_fused_lstm_cell": (2,),
    "_thnn_fused_gru_cell": (1,), "_ctc_loss": (1,), "_cudnn_ctc_loss": (1,),
}  # fmt: skip
#: what tests a sentinel (a label of -100, the id of a padding token) for what it is
COMPARISONS = {
    "eq", "ne", "lt", "le", "gt", "ge", "isin",
    "nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward",
}  # fmt: skip
#: what looks for a special id among others, the largest or the smallest: the id of padding is there on purpose
SEARCHES = {"argmax", "argmin"}
#: what treats NaN as a sentinel
SEES_NAN = {"isnan", "isfinite", "isinf", "nansum", "nanmedian", "eq", "ne"}


#: operations whose results hold the entries of an input unchanged
COPIES = {
    "clone", "copy", "copy_", "_to_copy", "cat", "stack", "index_select", "index", "gather", "flip", "roll", "repeat",
    "constant_pad_nd", "contiguous", "slice_backward", "take", "masked_select", "tril", "triu",
}  # fmt: skip


@dataclass(frozen=True)
class OperationFacts:
    """What the doctor needs to know of an operation before it runs."""

    name: str
    view: bool = False
    #: positions and names of the arguments that are written
    writes: tuple[int | str, ...] = ()
    random: bool = False
    workspaces: tuple[int, ...] = ()
    pointwise: bool = False
    collective: bool = False
    #: whether it may test for a sentinel
    looks: bool = False


@functools.cache
def facts_of(func: Any) -> OperationFacts:
    """All facts about one overload."""
    namespace, _, name = str(func._schema.name).partition("::")  # aten::add, without the overload
    aliases = [(at, each) for at, each in enumerate(func._schema.arguments) if each.alias_info is not None]
    written = [each.name if each.kwarg_only else at for at, each in aliases if each.alias_info.is_write]
    view = func.is_view or name in _VIEWS
    writes = () if view else (*written, *_WRITES.get(name, ()))
    random, pointwise = (tag in func.tags for tag in (torch.Tag.nondeterministic_seeded, torch.Tag.pointwise))
    collective, looks = namespace in ("c10d", "_c10d_functional"), name in COMPARISONS | SEES_NAN | SEARCHES
    return OperationFacts(name, view, writes, random, _WORKSPACES.get(name, ()), pointwise, collective, looks)


@dataclass
class Operated:
    """An operation of PyTorch, or whatever else reads and writes tensors, with its arguments."""

    func: Callable[..., Any]
    facts: OperationFacts
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
        places, args, kwargs = self.facts.writes, self.args, self.kwargs
        return tensors_in([kwargs.get(at) if isinstance(at, str) else args[at : at + 1] for at in places])
