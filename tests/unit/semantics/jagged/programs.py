"""Programs on sequences of different lengths: what the table on the page about them lists, and its tests run.

A new one is a line of PROGRAMS. Its text is what is run, on the operands of :func:`operands`, by these names.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

import maskgrad as mg
from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.patterns.jagged import JaggedPattern
from maskgrad.semantics.stored import entries

__all__ = [
    "PROGRAMS", "Program", "every_part", "function_of", "leaves_of", "on", "operands", "padding_seen",
]  # fmt: skip

#: Lengths of the sequences in the programs: different ones, with empty sequences at both ends; one; none at all.
LENGTHS = {"some": (0, 3, 1, 0, 4, 2, 0), "one": (3,), "empty": (0, 0, 0)}
T, D, E = 5, 4, 6


class Program(NamedTuple):
    """A line of code.

    Attributes:
        text: what is run.
        why: it does not run on the rows; nothing if it does.
        in_graph: why it makes the padded form in a graph, if it does so there only.
    """

    text: str
    why: str = ""
    in_graph: str = ""


#: Why something does not run on rows.
BEHIND = "the filled values are specified beyond the ends, too"
PREFIX = "specified positions do not start each sequence"
#: … and why not in a graph.
STATISTIC = "which sequences have a statistic is unknown in a graph"
READ = "the lengths are unknown in a graph"
SUMMED = "sums over positions"
ALONG = "positions are read along each sequence"
RUNNING = "entries along each sequence; the result has the rows"
MATRICES = "a matrix for each sequence; the result has the rows"
EQUATION = "any equation; the result has the rows"
REPEATED = "entries are repeated"
MOVED = "write x[order], of sequences in another order"

PROGRAMS: dict[str, tuple[Program, ...]] = {
    "Selection": (
        Program("torch.where(sequence, x, y)"),
        Program("torch.where(position, x, y)"),
        Program("torch.where(feature, x, y)"),
        Program("torch.where(feature, x, torch.zeros_like(x))"),
        Program("x * sequence"),
        Program("torch.where(feature, x, 0.0)", BEHIND),
        Program("x.masked_fill(feature, 0.0)", BEHIND),
        Program("x.masked_fill(x > 1, 0.0)"),
        Program("x[(x > 0).filled(False)]", PREFIX),
        Program("x.masked_select((x > 0).filled(False))", PREFIX),
    ),
    "Products": (
        Program("x @ weight"),
        Program("x @ matrices", MATRICES),
        Program("torch.einsum('btd,de->bte', x, weight)", EQUATION),
        Program("torch.einsum('btd,bd->bt', x, query)", EQUATION),
        Program("torch.einsum('btd,btf->df', x, y)", SUMMED),
        Program("torch.einsum('bthc,hce->bthe', x.unflatten(-1, (2, 2)), heads)", EQUATION),
        Program("torch.einsum('btd,bsd->bts', x, y)", "products of all pairs of positions"),
        Program("F.bilinear(x, y, cube, bias)", "of two batches"),
        Program("F.prelu(x, slope)"),
        Program("F.glu(x)"),
    ),
    "Per-sequence statistics": (
        Program("x - x.mean(1, keepdim=True)", in_graph=STATISTIC),
        Program("(x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)", in_graph=STATISTIC),
        Program(
            "(x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True, correction=0) + 1e-5).sqrt()",
            in_graph=STATISTIC,
        ),
        Program("x - x.mean()"),
        Program("x.softmax(1)"),
        Program("(e := (x - x.amax(1, keepdim=True)).exp()) / e.sum(1, keepdim=True)", in_graph=STATISTIC),
        Program("(x - x.logsumexp(1, keepdim=True)).exp()", in_graph=STATISTIC),
        Program("x.max(1).values"),
        Program("F.normalize(x, dim=1)"),
        Program("x.cumsum(1)", RUNNING),
        Program("x.sort(1).values", RUNNING),
    ),
    "Shapes": (
        Program("x.unsqueeze(1)"),
        Program("x.unsqueeze(-1).expand(-1, -1, -1, 3)"),
        Program("x.repeat(2, 1, 1)", REPEATED),
        Program("x.repeat_interleave(2, dim=-1)"),
        Program("x.repeat(1, 2, 1)", PREFIX),
        Program("torch.cat([token.expand(x.shape[0], 1, -1), x], 1)", "a plain part"),
        Program("torch.cat([x, token.expand(x.shape[0], 1, -1)], 1)", PREFIX),
        Program("torch.cat([x, y])"),
        Program("x.flip(1)", PREFIX),
    ),
    "Indexing": (
        Program("x.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)"),
        Program("x.take_along_dim(labels.unsqueeze(-1), -1)"),
        Program("x.take_along_dim(x.argsort(1), 1)", ALONG),
        Program("x.gather(1, places)", ALONG),
        Program("F.one_hot(labels, 4)"),
        Program("torch.bucketize(x, edges)"),
        Program("torch.searchsorted(edges, x)", "bucketize runs on rows"),
        Program("torch.isin(labels, which)"),
        Program("x[which]", in_graph=READ),
        Program("x.flip(0)", MOVED),
        Program("x[:, :3]", in_graph=READ),
        Program("x.narrow(0, -3, 2)", in_graph=READ),
        Program("x.split(2, 1)", in_graph=READ),
        Program("x.transpose(0, 1).split_with_sizes([1, 4])", in_graph=READ),
        Program("x.chunk(3)", in_graph=READ),
        Program("x[:, ::2]", "skipped positions"),
    ),
}  # fmt: skip


def operands(kind: str = "some") -> dict[str, Any]:
    """The plain operands by name; NaN stands behind the ends of x and y, an odd number behind those of labels."""
    torch.manual_seed(0)
    numbers = partial(torch.randn, dtype=torch.float64)
    lengths = torch.tensor(LENGTHS[kind])
    batch = len(lengths)
    behind = torch.arange(T) >= lengths[:, None]
    found: dict[str, Any] = {
        "x": numbers(batch, T, D), "y": numbers(batch, T, D),
        "labels": torch.randint(0, D, (batch, T)), "lengths": lengths,
        "sequence": torch.rand(batch, 1, 1) > 0.4, "position": torch.rand(1, T, 1) > 0.4,
        "feature": torch.rand(D) > 0.4,
        "weight": numbers(D, E),
        "matrices": numbers(batch, D, E), "query": numbers(batch, D),
        "heads": numbers(2, 2, 3), "cube": numbers(E, D, D),
        "bias": numbers(E), "slope": torch.rand(1).double(),
        "token": numbers(1, 1, D), "edges": torch.tensor([-1.0, 0.0, 1.0]).double(),
        "which": torch.tensor([batch - 1, 0, 0]), "places": torch.randint(0, T, (batch, 2, D)),
    }  # fmt: skip
    for name in ("x", "y"):
        found[name][behind] = float("nan")
    found["labels"][behind] = -77
    return found


def leaves_of(given: dict[str, Any]) -> dict[str, Tensor]:
    """Those with gradients, by name."""
    numbers = {k: v for k, v in given.items() if v.is_floating_point() and k != "edges"}
    return {k: v.requires_grad_() for k, v in numbers.items()}


def on(layout: torch.layout, given: dict[str, Any]) -> dict[str, Any]:
    """The operands with the sequences on a layout, ``torch.jagged`` or ``torch.strided`` (a Boolean mask)."""
    labels = given["labels"].to(given["x"].dtype).unsqueeze(-1)
    together = torch.cat([given["x"], given["y"], labels], -1)  # of lengths that are known to be the same
    both = mg.from_lengths(together, given["lengths"], layout=layout)
    made = {"x": both[..., :D].clone(), "y": both[..., D:-1].clone(), "labels": both[..., -1].detach().long()}
    return {**given, **made}


def function_of(program: Program) -> Callable[[dict[str, Any]], Any]:
    """The program as a function of its operands."""
    used = compile(program.text, "", "eval").co_names
    names = [name for name in operands() if name in used]
    made = eval(f"lambda {', '.join(names)}: {program.text}", {"torch": torch, "F": F})
    return lambda given: made(*[given[name] for name in names])


def every_part(result: Any) -> list[Any]:
    """The tensors of a result."""
    if isinstance(result, (tuple, list)):
        return [part for entry in result for part in every_part(entry)]
    return [result] if isinstance(result, (Tensor, MaskedTensor)) else []


@contextmanager
def padding_seen() -> Any:
    """A list that grows whenever a padded form is made."""
    seen: list[str] = []
    plain, mask = entries._padded, JaggedPattern.mask

    def padded(*args: Any) -> Any:
        seen.append("values")
        return plain(*args)

    def whole(pattern: JaggedPattern) -> Tensor:
        seen.append("mask")
        return mask.fget(pattern)

    with (
        mock.patch.object(entries, "_padded", padded),
        mock.patch.object(JaggedPattern, "mask", property(whole)),
    ):
        yield seen
