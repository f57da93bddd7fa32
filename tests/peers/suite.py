"""What a comparison with another package is made of: cases, outcomes, and the rules that explain differences."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

import maskgrad as mg

#: Of each suite, every tenth case (drawn with a fixed seed) belongs to the light run.
LIGHT = 10


class Case(NamedTuple):
    """One operation of a peer, and ours on the same data and masks.

    Attributes:
        name: unique in its suite; says what is called, and on which data.
        theirs: gives the peer's result, as :func:`canonical` understands it, or raises.
        ours: gives ours.
        rtol: the relative rounding error that is allowed.
    """

    name: str
    theirs: Callable[[], Any]
    ours: Callable[[], Any]
    rtol: float = 1e-5


class Rule(NamedTuple):
    """A difference that is meant, and why: a row of the table on ``docs/proof.md``.

    Attributes:
        suites: the suites whose cases it explains.
        differs: what the two give, in one sentence.
        because: the rule of maskgrad that decides it.
        explains: whether a case, by its name, is one of these.
        fewer: ours specifies fewer entries, and these must agree with the peer's if it gives any; a case with
            another difference is not explained.
    """

    suites: tuple[str, ...]
    differs: str
    because: str
    explains: Callable[[str], bool]
    fewer: bool = False


@dataclass
class Suite:
    """All cases of one peer.

    Attributes:
        name: of the package, or of its part (``"numpy.ma"``).
        version: of the package.
        cases: makes them, in the same order each time.
    """

    name: str
    version: str
    cases: Callable[[], Iterable[Case]]


@dataclass
class Result:
    """The outcome of a suite.

    Attributes:
        equal: how many cases give the same values, masks and dtypes, or are refused by both.
        explained: how many each rule explains.
        faults: what no rule explains: the name of the case, and what the two give.
    """

    equal: int = 0
    explained: Counter[str] = field(default_factory=Counter)
    faults: list[tuple[str, str]] = field(default_factory=list)


class Masked(NamedTuple):
    """What everything is compared as: values where specified (garbage elsewhere), and the mask, True = specified."""

    values: np.ndarray
    mask: np.ndarray


def canonical(x: Any) -> Any:
    """Reduce a result to numpy: :class:`Masked`, or a tuple of them; a suite converts its own types before."""
    if isinstance(x, mg.MaskedTensor):
        dense = x.to_dense()
        return Masked(_numpy(dense.filled(False)), _numpy(dense.mask))
    if isinstance(x, torch.Tensor):
        plain = _numpy(x)
        return Masked(plain, np.ones(plain.shape, dtype=bool))
    if isinstance(x, np.ma.MaskedArray):
        return Masked(np.asarray(x.filled(0) if x.dtype != object else x.data), ~np.ma.getmaskarray(x))
    if isinstance(x, Masked):
        return x
    if isinstance(x, (tuple, list)):
        return tuple(canonical(part) for part in x)
    plain = np.asarray(x)
    return Masked(plain, np.ones(plain.shape, dtype=bool))


def _numpy(x: torch.Tensor) -> np.ndarray:
    x = x.detach().cpu()
    return np.asarray((x.float() if x.dtype is torch.bfloat16 else x).resolve_conj().resolve_neg().numpy())


def difference(theirs: Any, ours: Any, rtol: float) -> str:
    """Say what differs; the empty string if nothing does. Masks are compared before values."""
    if isinstance(theirs, tuple) and not isinstance(theirs, Masked):
        if not isinstance(ours, tuple) or isinstance(ours, Masked) or len(ours) != len(theirs):
            return f"{len(theirs)} results, ours {type(ours).__name__}"
        found = (difference(a, b, rtol) for a, b in zip(theirs, ours, strict=True))
        return next((text for text in found if text), "")
    if not isinstance(ours, Masked):
        return f"one result, ours {len(ours)}"
    if theirs.values.shape != ours.values.shape:
        return f"shape {theirs.values.shape}, ours {ours.values.shape}"
    if theirs.values.dtype.kind not in ("O", ours.values.dtype.kind):  # an object: the peer has lost it
        return f"dtype {theirs.values.dtype}, ours {ours.values.dtype}"
    if not np.array_equal(theirs.mask, ours.mask):
        return f"mask {theirs.mask.tolist()}, ours {ours.mask.tolist()}"
    a, b = theirs.values[theirs.mask], ours.values[ours.mask]
    if a.dtype.kind in "fc":
        same = np.allclose(a, b, rtol=rtol, atol=rtol, equal_nan=True)
    else:
        same = bool(np.array_equal(a, b))
    return "" if same else f"values {a.tolist()[:8]}, ours {b.tolist()[:8]}"


def outcome(run: Callable[[], Any]) -> Any:
    """What it gives, or the error that it raises."""
    try:
        return canonical(run())
    except (
        Exception
    ) as error:  # a refusal is an outcome; what kind of error it is, is the package's own affair
        return error


def judged(suite: Suite, rules: Iterable[Rule], share: int = 1) -> Result:
    """Run a suite, or one case in ``share`` of it, drawn with a fixed seed."""
    result, own = Result(), [rule for rule in rules if suite.name in rule.suites]
    for case in drawn(suite, share):
        with warnings.catch_warnings():  # results are compared, not what is said beside them
            warnings.simplefilter("ignore")
            theirs, ours = outcome(case.theirs), outcome(case.ours)
        if isinstance(theirs, Exception) or isinstance(ours, Exception):
            both = isinstance(theirs, Exception) and isinstance(ours, Exception)
            text = "" if both else f"{_said(theirs)}; ours {_said(ours)}"
        else:
            text = difference(theirs, ours, case.rtol)
        rule = next((rule for rule in own if text and _explained(rule, case, theirs, ours)), None)
        if not text:
            result.equal += 1
        elif rule is not None:
            result.explained[rule.differs] += 1
        else:
            result.faults.append((case.name, text))
    return result


def _explained(rule: Rule, case: Case, theirs: Any, ours: Any) -> bool:
    if not rule.explains(case.name):
        return False
    if not rule.fewer or (isinstance(theirs, Exception) and not isinstance(ours, Exception)):
        return True
    if not isinstance(theirs, Masked) or not isinstance(ours, Masked) or theirs.mask.shape != ours.mask.shape:
        return False
    return not difference(Masked(theirs.values, theirs.mask & ours.mask), ours, case.rtol)


def _said(outcome: Any) -> str:
    return f"{type(outcome).__name__}: {outcome}" if isinstance(outcome, Exception) else "a result"


def drawn(suite: Suite, share: int) -> Iterator[Case]:
    """Yield one case in ``share``, the same ones each time."""
    draw = random.Random(suite.name)
    for case in suite.cases():
        if draw.randrange(share) == 0:
            yield case
