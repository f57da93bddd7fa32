"""MaskedTensor: values that live in the autograd graph, and a pattern of the specified ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.types import Number

from maskgrad.errors import UnspecifiedValueError, UnsupportedAttributeError
from maskgrad.instead import INSTEAD
from maskgrad.kernels.smallest import is_known_complete
from maskgrad.masked_tensor.instead import instead_of
from maskgrad.masked_tensor.torch_patches.torchscript import refuse_trace, trace_state
from maskgrad.patterns import BooleanPattern, JaggedPattern, Pattern, PatternFacts, StoredPattern
from maskgrad.patterns.boolean import own_storage
from maskgrad.patterns.checks import check_pattern
from maskgrad.patterns.conversion import STORAGES, pattern_of_facts
from maskgrad.patterns.mask_arguments import check_mask
from maskgrad.semantics.entries import Entries, chosen, fill
from maskgrad.semantics.indexing import NO_VALUES
from maskgrad.semantics.stored.entries import StoredEntries, densified, exploded

if TYPE_CHECKING:
    import numpy as np

    from maskgrad.masked_tensor.typed import TypedTensor as Base
else:
    Base = object

__all__ = ["TAKEN_APART", "MaskedTensor", "listed_of", "of_entries", "stored_of"]


#: Ends the errors that code gets which looks for numbers or tensors in sequences.
TAKEN_APART = (
    "If torch.tensor or a collator of samples took it apart: write torch.stack(samples), or for tokens "
    "mg.integrations.TokenCollator. If Lightning looked for the size of the batch: self.log(…, batch_size=len(x)). "
    "If a hook of register_backward_hook did: use register_full_backward_hook."
)


# A dataclass, because code of torch that looks for tensors (fully_shard, DistributedDataParallel) looks into these.
@dataclasses.dataclass(init=False, repr=False, eq=False, match_args=False)
class MaskedTensor(Base):
    """A tensor with unspecified (missing, padding, masked) entries.

    It behaves like a ``torch.Tensor`` through ``__torch_function__`` (every registered function, method and
    operator of torch accepts it), but it is no subclass: autograd, ``torch.compile``, ``torch.export`` and
    ``torch.func`` see its plain parts only. Build one with :func:`maskgrad.masked` or one of the other
    constructors, not with this class.

    What lies under the mask (NaN, infinities, anything) changes no specified entry of a result and no gradient.

    Example:
        >>> import torch, maskgrad as mg
        >>> x = mg.masked(torch.tensor([1., float("nan"), 3.]), torch.tensor([True, False, True]))
        >>> x * 2
        masked([2., --, 6.])
        >>> x.mean()
        tensor(2.)
    """

    __slots__ = ("__weakref__", "_pattern", "_values")

    __hash__ = object.__hash__
    #: numpy leaves operators to us, and so does pandas (its tables have 4000)
    __array_ufunc__ = None
    __pandas_priority__ = 10_000

    _values: Tensor  # type: ignore[assignment]
    _pattern: Pattern

    def __init__(self, _values: Tensor, _pattern: Pattern) -> None:
        if trace_state() is not None:
            refuse_trace()
        if isinstance(_pattern, Tensor):  # as torch.masked writes it
            raise TypeError("MaskedTensor(data, mask) is made by mg.masked(data, mask)")
        self._values = _values
        self._pattern = _pattern

    if not TYPE_CHECKING:  # with it, any name would be right

        def __getattr__(self, name: str) -> Any:
            # Called for what the records of semantics did not put on the class (see methods.py).
            if not name.startswith("__") and hasattr(Tensor, name):
                name = f"torch.Tensor.{name}"
                raise UnsupportedAttributeError(name, instead=instead_of(None, name))
            instead = INSTEAD["attributes"].get(name)
            if instead is not None:
                raise AttributeError(f"MaskedTensor has no attribute {name!r}; did you mean {instead}?")
            raise AttributeError(f"MaskedTensor has no attribute {name!r}", name=name, obj=self)

    def _rebind(self, values: Tensor, pattern: Pattern) -> None:
        self._values = values
        self._pattern = pattern

    def _dense(self) -> tuple[Tensor, Tensor]:
        """Return values and mask of the whole shape; on a sparse layout this allocates them."""
        stored = stored_of(self)
        return densified(stored) if stored is not None else (self._values, self._pattern.mask)

    # reading

    @property
    def mask(self) -> Tensor:
        """Boolean tensor of the same shape, True where the entry is specified; allocated on a sparse layout."""
        pattern = self._pattern
        if not isinstance(pattern, BooleanPattern):
            return self._dense()[1]
        mask = pattern.shared_mask()
        own_storage(mask, mask)  # of what is made of it, writes copy it first
        return mask

    @property
    def layout(self) -> torch.layout:  # type: ignore[override]
        """Storage of the entries."""
        return self._pattern.layout

    @property
    def is_sparse(self) -> bool:  # type: ignore[override]
        """Whether the layout is ``torch.sparse_coo``."""
        return self._pattern.layout is torch.sparse_coo

    @property
    def is_sparse_csr(self) -> bool:  # type: ignore[override]
        """Whether the layout is ``torch.sparse_csr``."""
        return self._pattern.layout is torch.sparse_csr

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        """Sizes, of all entries."""
        pattern = self._pattern
        # not isinstance, which calls the metaclass of abstract classes
        return self._values.shape if type(pattern) is BooleanPattern else pattern.shape(self._values)  # type: ignore[attr-defined]

    @property
    def ndim(self) -> int:  # type: ignore[override]
        """Number of dimensions."""
        return len(self.shape)

    def filled(self, value: float | Tensor = 0) -> Tensor:
        """Return a plain tensor with ``value`` at the unspecified entries.

        Args:
            value: number, or tensor that broadcasts to this shape; promoted with the dtype as in ``torch.where``.

        Returns:
            Plain tensor of this shape. Gradient: passes at specified entries, exactly 0 at the others.

        Example:
            >>> import torch, maskgrad as mg
            >>> mg.from_nan(torch.tensor([1., float("nan")])).filled(0.)
            tensor([1., 0.])
        """
        values, mask = self._dense()
        if isinstance(value, (int, float)) and values.is_floating_point():
            return values.clone() if is_known_complete(mask) else fill(Entries(values, mask), mask, value)
        is_tensor = isinstance(value, (Tensor, MaskedTensor))
        if isinstance(value, NO_VALUES) or (hasattr(value, "__len__") and not is_tensor):
            found = repr(value) if isinstance(value, (str, *NO_VALUES)) else type(value).__name__
            ways = "x.filled(0.), x.filled(x.mean()), x.filled(torch.as_tensor(value)), x.tolist() for None"
            raise TypeError(f"value must be a number or a tensor, found {found}; write {ways}")
        return chosen(mask, values, value)

    def to_tensor(self, value: float | Tensor = 0) -> Tensor:
        """:meth:`filled`, under the name that ``torch.masked`` gives it."""
        return self.filled(value)

    def get_data(self) -> Tensor:
        """Return the raw values, including those under the mask; gradients pass at specified entries only."""
        values, mask = self._dense()
        return torch.where(mask, values, values.detach())

    def get_mask(self) -> Tensor:
        """:attr:`mask`, under the name that ``torch.masked`` gives it."""
        return self.mask

    def item(self) -> Number:
        """Return the Python number of a tensor with one entry.

        Raises:
            UnspecifiedValueError: the entry is unspecified.
        """
        return self._single("item()").item()

    def _single(self, conversion: str) -> Tensor:
        """The only entry; ``conversion`` is what messages say of the conversion to a Python number."""
        if self.shape.numel() != 1:
            raise RuntimeError(
                f"{conversion} needs one entry, but this MaskedTensor has {self.shape.numel()}; write x.tolist() for "
                "all of them, with None, or reduce it, as x.mean()"
            )
        values, mask = self._dense()
        if not bool(mask):
            raise UnspecifiedValueError(
                f"{conversion} needs a specified entry, but this one is unspecified (a missing value, or an empty "
                "reduction); write x.filled(0.).item() for a default"
            )
        return values

    def tolist(self) -> Any:
        """Return nested lists of Python numbers, None where unspecified."""
        values, mask = self._dense()
        return _with_none(values.detach().tolist(), mask.tolist())

    def to_numpy(self) -> np.ma.MaskedArray[Any, Any]:
        """Return a ``numpy.ma.MaskedArray``, whose mask is True where an entry is missing.

        Masked entries are NaN (0 for integers and Booleans), for libraries that ignore the mask, such as scikit-learn.
        """
        import numpy as np

        values, mask = self._dense()
        inexact = values.is_floating_point() or values.is_complex()
        values = fill(Entries(values.detach(), mask), mask, torch.nan if inexact else 0).cpu()
        return np.ma.MaskedArray(values.resolve_conj().resolve_neg().numpy(), mask=~mask.cpu().numpy())

    def __array__(self, *_: object, **__: object) -> np.ndarray[Any, Any]:
        raise TypeError(
            "cannot convert a MaskedTensor to NumPy implicitly: NumPy arrays cannot mark unspecified entries; write "
            "x.filled(float('nan')).numpy() for libraries that handle NaN, such as scikit-learn, x.to_numpy() for a "
            "numpy.ma array (many libraries ignore its mask), mg.interop.to_pandas(x) for pandas, or x.tolist() for "
            "lists with None"
        )

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"len() of a 0-d tensor. {TAKEN_APART}")
        return int(self.shape[0])

    def __iter__(self) -> Iterator[MaskedTensor]:
        if not self.shape:
            raise TypeError(f"iteration over a 0-d tensor. {TAKEN_APART}")
        return iter(self.unbind(0))

    def __bool__(self) -> bool:
        if self.shape.numel() != 1:
            raise RuntimeError(
                f"the truth of a MaskedTensor with {self.shape.numel()} entries is ambiguous (`if x > 0`, `x and y`, "
                "Python's max and sorted); write (x > 0).any() or (x > 0).all(), x & y, x.amax(), x.sort()"
            )
        return bool(self._single("bool()"))

    def __float__(self) -> float:
        return float(self._single("float()"))

    def __int__(self) -> int:
        return int(self._single("int()"))

    def __complex__(self) -> complex:
        return complex(self._single("complex()").item())

    def __index__(self) -> int:
        return self._single("an index of Python").__index__()

    def __contains__(self, value: object) -> bool:
        raise TypeError("`value in masked` has no meaning on incomplete data; use (masked == value).any()")

    def __format__(self, spec: str) -> str:
        if not spec or self.shape:
            return object.__format__(self, spec)
        return format(self.item(), spec) if bool(self.mask) else "--"

    # memory and files

    def __reduce__(self) -> tuple[Any, ...]:
        if stored_of(self) is None:
            return rebuild, (self._values, self._pattern.mask)
        return rebuild_stored, (self._values, tuple(self._pattern.facts()), self._pattern.tensors())

    def __copy__(self) -> MaskedTensor:
        pattern = self._pattern
        if isinstance(
            pattern, BooleanPattern
        ):  # another name for the same memory, as a copied torch.Tensor is
            pattern = pattern.alias(pattern.current)
        return MaskedTensor(self._values, pattern)

    def __deepcopy__(self, memo: dict[int, Any]) -> MaskedTensor:
        import copy

        tensors = tuple([copy.deepcopy(t, memo) for t in self._pattern.tensors()])
        pattern = pattern_of_facts(self._pattern.facts(), tensors)
        return MaskedTensor(copy.deepcopy(self._values, memo), pattern)


def of_entries(values: Tensor, mask: Tensor) -> MaskedTensor:
    """Create a MaskedTensor without checks: the mask is Boolean and has the shape of the values."""
    return MaskedTensor(values, BooleanPattern(mask))


def stored_of(x: MaskedTensor) -> StoredEntries | None:
    """Return the stored values and their pattern; None if the entries have a Boolean mask."""
    pattern = x._pattern
    return StoredEntries(x._values, pattern) if isinstance(pattern, StoredPattern) else None


def listed_of(x: MaskedTensor) -> tuple[Tensor, Tensor] | None:
    """Return coordinates in the first dimensions and the entries there; None if the entries have a Boolean mask.

    Of a jagged tensor with features before its ragged dimension, these are the coordinates of single entries.
    """
    stored = stored_of(x)
    if stored is None:
        return None
    if isinstance(stored.pattern, JaggedPattern) and not stored.pattern.is_canonical:
        return exploded(stored)[:2]
    return stored.pattern.coordinates(), stored.entries


def facts_of(data: Any) -> PatternFacts:
    """The facts of a pattern, read from a file."""
    layout, sizes, blocksize = data
    block = None if blocksize is None else (int(blocksize[0]), int(blocksize[1]))
    return PatternFacts(layout, tuple([int(size) for size in sizes]), block)


def rebuild_stored(values: Tensor, facts: Any, tensors: Any) -> MaskedTensor:
    """Rebuild a sparse layout from a file, which is checked like any other input."""
    if not isinstance(facts, (tuple, list)) or len(facts) != 3 or not isinstance(tensors, (tuple, list)):
        raise ValueError(f"a stored MaskedTensor has a layout, sizes and a block size, found {facts!r}")
    name = facts[0]
    known = [layout for layout in STORAGES if layout != "strided"]
    if name not in known or not all(isinstance(t, Tensor) for t in (values, *tensors)):
        raise ValueError(
            f"a stored MaskedTensor has a layout among {', '.join(known)} and tensors, found {name!r}"
        )
    pattern = pattern_of_facts(facts_of(facts), tuple(tensors))
    check_pattern(pattern, values)
    if name in ("sparse_coo", "jagged"):
        tensors = [t if t.dtype is torch.bool else t.to(torch.int64) for t in tensors]
    return MaskedTensor(values, pattern_of_facts(pattern.facts(), tuple(tensors)))


def rebuild(values: Tensor, mask: Tensor) -> MaskedTensor:
    """Rebuild from a file, which is checked like any other input."""
    if not isinstance(values, Tensor) or values.layout != torch.strided:
        raise TypeError(
            f"values of a stored MaskedTensor must be a strided tensor, found {type(values).__name__}"
        )
    return of_entries(values, check_mask(mask, values.shape, values.device))


def _with_none(values: Any, mask: Any) -> Any:
    if isinstance(mask, list):
        return [_with_none(v, m) for v, m in zip(values, mask, strict=True)]
    return values if mask else None
