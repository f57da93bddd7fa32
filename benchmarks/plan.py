"""Which cases are measured: families, sizes, densities, dtypes, peers.

Everything by everything would take hours. Unless told otherwise, each family is measured in full at its *anchor* (its
first size, density and dtype); from there one property at a time changes, for the operations that represent the family.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.case import Case
from benchmarks.peers import PEERS
from benchmarks.timing import TimingConfig

__all__ = ["Family", "Plan", "Point", "UnknownNameError"]

QUICK = TimingConfig(fewest=3, most=5, seconds=0.05, shortest=5e-4)
#: torch.compile takes seconds for each case, which --quick has not
_SLOW_PEERS = frozenset(("compiled-where",))


class UnknownNameError(ValueError):
    """No family, peer or dtype has this name, or a number is no size or density; ``option`` says whose it is."""

    def __init__(self, option: str, message: str) -> None:
        self.option = option
        super().__init__(message)


@dataclass(frozen=True)
class Point:
    """Where a family is measured."""

    size: int
    density: float
    dtype: str
    #: every operation of the family, or only those that represent it
    in_full: bool


class CasesAt(Protocol):
    """The cases of a family at one point."""

    def __call__(self, point: Point) -> Iterable[Case]: ...


@dataclass(frozen=True)
class Family:
    """Cases that belong together; the name is that of the files that implement and test the operations."""

    name: str
    about: str
    #: what a size is the size of
    size_is: str
    cases: CasesAt
    #: the anchor first
    sizes: Sequence[int]
    quick_size: int
    #: empty where there is no mask
    densities: Sequence[float] = ()
    dtypes: Sequence[str] = ("float32",)
    #: called when all is measured: drops operands that the cases share
    forget: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Plan:
    """What the user asked for; None: what the family proposes."""

    families: Sequence[str] | None = None
    sizes: Sequence[int] | None = None
    densities: Sequence[float] | None = None
    dtypes: Sequence[str] | None = None
    peers: Sequence[str] | None = None
    quick: bool = False
    pace: TimingConfig = field(default_factory=TimingConfig)

    def chosen(self, families: Sequence[Family]) -> list[Family]:
        """The families to measure, in their own order.

        Raises:
            UnknownNameError: an option names what does not exist.
        """
        _require_known("families", self.families, [family.name for family in families])
        _require_known("peers", self.peers, list(PEERS))
        dtypes = list(dict.fromkeys(dtype for family in families for dtype in family.dtypes))
        _require_known("dtypes", self.dtypes, dtypes)
        for size in self.sizes or ():
            if size < 2:
                raise UnknownNameError("sizes", f"a size must be at least 2, got {size}")
        for density in self.densities or ():
            if not 0 < density <= 1:
                raise UnknownNameError(
                    "densities", f"a density must be above 0 and at most 1, got {density:g}; 0.5 is half"
                )
        return [family for family in families if self.families is None or family.name in self.families]

    def points(self, family: Family) -> Iterator[Point]:
        """Where to measure ``family``: the star around its anchor, or everything by everything that was asked for."""
        anchor_size = family.quick_size if self.quick else family.sizes[0]
        densities = self.densities or (family.densities[:1] if family.densities else ())
        if self.sizes or self.densities or self.dtypes:
            dtypes = [dtype for dtype in self.dtypes or family.dtypes[:1] if dtype in family.dtypes]
            for size in self.sizes or (anchor_size,):
                for dtype in dtypes:
                    for density in densities if family.densities else (1.0,):
                        yield Point(size, density, dtype, in_full=True)
            return
        density, dtype = (family.densities or (1.0,))[0], family.dtypes[0]
        yield Point(anchor_size, density, dtype, in_full=True)
        if self.quick:
            return
        for size in family.sizes[1:]:
            yield Point(size, density, dtype, in_full=False)
        for other in family.densities[1:]:
            yield Point(anchor_size, other, dtype, in_full=False)
        for other_dtype in family.dtypes[1:]:
            yield Point(anchor_size, density, other_dtype, in_full=False)

    def cases(self, family: Family) -> list[Case]:
        """The cases of ``family``, not yet prepared."""
        return [case for point in self.points(family) for case in family.cases(point)]

    def wanted_peers(self) -> list[str]:
        """The peers to compare with, whether they are here or not."""
        if self.peers is not None:
            return list(self.peers)
        return [peer for peer in PEERS if not (self.quick and peer in _SLOW_PEERS)]


def _require_known(option: str, asked: Sequence[str] | None, known: Sequence[str]) -> None:
    unknown = [name for name in asked or () if name not in known]
    if unknown:
        raise UnknownNameError(option, f"{unknown[0]!r} is not among them; there are {', '.join(known)}")
    if asked is not None and not asked:
        raise UnknownNameError(option, f"nothing was named; there are {', '.join(known)}")
