"""Which operation makes several ranks differ from one: results are compared along the graph, from the loss back.

A result of one rank on the whole batch may be the same on each of several ranks, their mean, their sum, or their rows
one after the other. The first that is none of them, though what it is computed from is, divides by a count of one rank
or takes a statistic of its samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from maskgrad.doctor.modes import WithoutDropout
from maskgrad.doctor.operations import EMPTY, Operated, Place, any_key, here, tensors_in

__all__ = ["Comparison", "Result", "Traced", "widened"]

_LOW = (torch.float16, torch.bfloat16, torch.float32)
#: of a sum, the terms; what changes a count slightly, such as 1e-8 in a divisor; what takes a statistic of samples
_TERMS = ("add", "sub", "rsub", "mul", "neg", "stack", "cat", "clone", "_to_copy", "sum", "where")
_SHIFTS = ("add", "sub", "clamp", "maximum")
_COUPLES = ("_softmax", "_log_soft", "logsumexp", "var", "std", "norm", "native_batch", "max", "min", "amax")


class Result(NamedTuple):
    """What an operation gave; ``key``: operation, line, and how often before; ``loses``: gradients end there."""

    operation: str
    place: Place | None
    value: Tensor
    inputs: list[int]
    key: Any
    loses: bool


def widened(part: Any) -> Any:
    """A tensor in float64, where rounding vanishes and what differs stays; a dtype as float64."""
    if isinstance(part, Tensor):
        return part.to(torch.float64) if part.dtype in _LOW else part
    return torch.float64 if part in _LOW else part


class Traced(WithoutDropout):
    """Keeps the results of a forward pass, whose rounding is multiplied: other bits take the place of the last three.

    If ``double``, all is computed in float64 instead, whatever the program asks for.
    """

    def __init__(self, double: bool = True) -> None:
        super().__init__()
        #: the results; those from which backward passes began; how many there were when the last one ended
        self.results, self.roots, self.after = list[Result](), list[int](), 0
        self.double, self._counts = double, Counter[Any]()
        self._writers, self._alive = dict[int, int](), list[Tensor]()

    def run(self, call: Operated) -> Any:
        """The operation; see the class."""
        inputs, given = self._known(call.inputs), (call.args, call.kwargs)
        written = {tensor.dtype for tensor in call.written if tensor.dtype in _LOW}
        if self.double and not call.facts.view and not written:  # such as states of an optimizer
            given = tree_map(widened, given)
        result = super().run(Operated(call.func, call.facts, *given))
        strided = [output for output in tensors_in(result) if output.layout is torch.strided]
        made = {any_key(output) for output in strided} - {any_key(given) for given in call.inputs}
        for output in strided if not self.double else ():
            if output.dtype == torch.float32 and any_key(output) in made:
                bits = output.view(torch.int32)  # what is copied stays, as do small integers
                bits.bitwise_and_(-8).bitwise_or_(bits >> 3 & 7)
        if not call.facts.view and torch._C._current_autograd_node() is None:
            for output in tensors_in(result):
                self._writers.pop(any_key(output), None)
            for output in strided[:1] if call.facts.name not in EMPTY else ():
                self._add(call.facts.name, output, inputs)
        return result

    def _add(self, name: str, output: Tensor, inputs: list[int], *, loses: bool = False) -> None:
        if output.is_floating_point() or output.numel() == 1:
            line = (name, here())
            self._writers[any_key(output)] = len(self.results)
            self._alive.append(output.detach())  # its address is not given to another
            key, value = (*line, self._counts[line]), output.detach().clone()
            self.results.append(Result(*line, value, inputs, key, loses))
            self._counts[line] += 1

    def _known(self, tensors: Sequence[Tensor]) -> list[int]:
        found = [self._writers.get(any_key(tensor)) for tensor in tensors]
        return [at for at in dict.fromkeys(found) if at is not None]

    def _begins(self, losses: Any) -> None:
        self.roots += self._known(tensors_in([losses]))

    def _ends(self) -> None:
        self.after = len(self.results)

    def _exchanged(self, what: str, given: list[Tensor], targets: list[Tensor]) -> None:
        loses = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)
        for target in targets:
            self._add(what, target, self._known(given), loses=loses)


class Comparison:
    """The results of one rank, and of several."""

    def __init__(self, whole: Traced, ranks: Sequence[Traced]) -> None:
        self._whole, self._ranks, self.results = whole, ranks, whole.results
        self._values = [{result.key: result.value for result in rank.results} for rank in ranks]
        lines = ([result.key[:2] for result in trace.results] for trace in (whole, *ranks))
        self._counts, self._ways = list(map(Counter, lines)), dict[int, set[str] | None]()
        ends = [at for at, result in enumerate(self.results) if result.operation != "ones_like"]
        self._roots = whole.roots or ends[-1:] or [0]

    def blamed(self, *, is_scaled: bool) -> tuple[str, int]:
        """The kind of the mistake and the result to blame; ``is_scaled``: gradients are off by a factor alone."""
        if not is_scaled and (wrong := self._first_wrong()) is not None:
            return self._judged(wrong)
        if {"mean", "same"} & (self.ways(self._roots[-1]) or set()):  # then something happens to gradients
            for at in range(self._whole.after or len(self.results), len(self.results)):
                if self.ways(at) == set():
                    return "denominator", at
        lost = [at for at, result in enumerate(self.results) if result.loses and not is_scaled]
        return ("sample-coupling", lost[0]) if lost else ("denominator", self._summed(self._roots[-1]))

    def parts(self, at: int) -> list[Tensor]:
        """A result on each of the ranks; empty if not all have it, or a loop has it more often on one of them."""
        key = self.results[at].key
        often = {counts[key[:2]] for counts in self._counts}
        return [values[key] for values in self._values] if len(often) == 1 else []

    def words(self, at: int) -> str:
        """A scalar on the ranks and on one, as part of a sentence."""
        values = [part.item() for part in (*self.parts(at), self.results[at].value) if part.numel() == 1]
        *theirs, ours = [f"{value:.6g}" for value in values] or [""]
        return f" ({', '.join(theirs)} there, {ours} on one)" if len(theirs) == len(self._ranks) else ""

    def ways(self, at: int) -> set[str] | None:
        """How a result follows from those of the ranks; empty if it does not; None if they cannot be compared."""
        if at not in self._ways:
            result, parts = self.results[at], self.parts(at)
            ways = _ways(result.value, parts) if parts else None
            is_one = result.value.numel() == len(result.inputs) == 1
            if ways == set() and is_one and result.operation.startswith(_SHIFTS):
                ways = self.ways(result.inputs[0])
            self._ways[at] = ways
        return self._ways[at]

    def _is(self, at: int, way: str) -> bool:
        """Whether a result follows in this way, and in no better one, as it does from equal parts of the batch."""
        ways = self.ways(at) or set()
        return way in ways and not ways & ({"same", "rows", "mean"} - {way})

    def _first_wrong(self) -> int | None:
        """The deepest result that does not follow from the ranks', while what it is computed from does.

        Below results that differ, and if there is none, below scalars too: of a sum, a small term may differ.
        """
        for below in (
            set[int](),
            {at for at, result in enumerate(self.results) if result.value.numel() == 1},
        ):
            seen, stack = set[int](), [(root, False) for root in reversed(self._roots)]
            while stack:
                at, done = stack.pop()
                if done and self.ways(at) == set():
                    return at
                if not done and at not in seen and (at in below or not self.ways(at)):
                    seen.add(at)
                    stack += [(at, True), *((before, False) for before in reversed(self.results[at].inputs))]
        return None

    def _summed(self, at: int) -> int:
        """Where what is a sum over the ranks was divided last, or summed."""
        terms = [before for before in self.results[at].inputs if self._is(before, "sum")]
        return self._summed(terms[0]) if terms and self.results[at].operation.startswith(_TERMS) else at

    def _judged(self, at: int) -> tuple[str, int]:
        result, inputs = self.results[at], self.results[at].inputs
        sums = [before for before in inputs if self._is(before, "sum")]
        is_scalar, name = result.value.numel() == 1, result.operation
        if is_scalar and name.startswith(_TERMS) and sums:
            return "denominator", self._summed(sums[0])
        shapes = [self.results[before].value.shape for before in inputs if self.ways(before) is None]
        pairs = any(len(shape) == 2 and shape[0] == shape[1] for shape in shapes)
        if (is_scalar and not pairs and not name.startswith(_COUPLES)) or (name.startswith("div") and sums):
            return "denominator", at
        return "sample-coupling", next((before for before in inputs if self._is(before, "mean")), at)


def _ways(whole: Tensor, parts: list[Tensor]) -> set[str] | None:
    tolerance = {torch.float64: 1e-8, torch.float32: 2e-5}.get(whole.dtype, 1e-4)
    whole, parts, found = whole.double(), [part.double() for part in parts], dict[str, bool]()

    def close(value: Tensor) -> bool:
        size = torch.maximum(whole.abs().max(), value.abs().max()) if value.numel() else 0
        return not value.numel() or bool((whole - value).abs().max() <= tolerance * size)

    if all(part.shape == whole.shape for part in parts):
        total = torch.stack(parts).sum(0)
        found = {"sum": close(total), "mean": close(total / len(parts)), "same": all(map(close, parts))}
    for axis in range(whole.ndim):
        rest = [(*part.shape[:axis], *part.shape[axis + 1 :]) for part in parts if part.ndim == whole.ndim]
        if rest == [(*whole.shape[:axis], *whole.shape[axis + 1 :])] * len(parts):
            joined = torch.cat(parts, axis)
            found |= {"rows": found.get("rows") or close(joined)} if joined.shape == whole.shape else {}
    return {way for way, holds in found.items() if holds} if found else None
