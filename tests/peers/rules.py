"""Differences that are meant: at most forty, each with the rule that decides it. One that no case needs fails."""

from __future__ import annotations

from collections.abc import Callable

from tests.peers.suite import Rule


def _has(*words: str, also: str = "") -> Callable[[str], bool]:
    """Whether a case is one of these operations, or has one of these words after the operation."""
    return lambda case: also in case and any(case.startswith(word) for word in words)


RULES: tuple[Rule, ...] = (
    Rule(
        ("awkward",),
        "a mean, a variance or a softmax of integers is refused, where the peer gives floats",
        "as torch.mean: integers have no mean of their own dtype; write x.mean(dtype=torch.float64)",
        _has("mean ", "var ", "std ", "softmax ", "less its mean", also="int"),
    ),
    Rule(
        ("awkward", "xarray"),
        "along a dimension, what nothing is left for is unspecified, where the peer gives 0, 1, True, NaN or an error",
        "deletion: a result without entries is unspecified, with gradient zero (docs/semantics.md, Deletion)",
        lambda case: "nothing left" in case,
        fewer=True,
    ),
    Rule(
        ("awkward", "torch.nested"),
        "the place of a maximum over all is counted in the padded shape, by the peer in the flattened lists",
        "as torch.argmax: a position is one in x.flatten(), and x has the shape (B, T)",
        lambda case: case.startswith("arg") and ("axis=None" in case or "over all" in case),
    ),
    Rule(
        ("torch.nested",),
        "one sequence of a batch has the length of the longest, with its end unspecified; the peer's has its own",
        "as torch.Tensor: x[0] has the shape x.shape[1:]; x[0].compressed() is the sequence",
        _has("one sequence ", "unbound "),
    ),
    Rule(
        ("torch.nested",),
        "the variance of a single entry is unspecified, where the peer gives NaN",
        "an estimate with no more entries than its correction is unspecified along a dimension",
        _has("var dim=1", "std dim=1", also="with one alone"),
    ),
    Rule(
        ("torch.nested",),
        "the gradient of a softmax over time is not the peer's",
        "the peer's is wrong (torch 2.13): on each sequence alone PyTorch gives what we give",
        _has("softmax over time"),
    ),
    Rule(
        ("scipy.sparse", "pydata sparse"),
        "a sum, a difference, a maximum or a minimum has entries where both have, the peer's where one has",
        "elementwise results are specified where all operands are (docs/semantics.md, Elementwise operations)",
        _has("sum of two", "difference of two", "maximum of two", "minimum of two"),
        fewer=True,
    ),
    Rule(
        ("scipy.sparse", "pydata sparse"),
        "a mean divides by the number of stored entries, the peer's by the size",
        "a missing entry is unspecified, not 0: a mean divides by the number of specified entries",
        _has("mean of all", "mean along"),
    ),
    Rule(
        ("scipy.sparse", "pydata sparse"),
        "where nothing is stored, or no product exists, the result is unspecified, where the peer gives 0",
        "deletion, and contractions are specified where a product exists",
        lambda case: "empty rows" in case or case.startswith("diagonal"),
        fewer=True,
    ),
    Rule(
        ("scipy.sparse",),
        "a comparison keeps the answer no, where the peer stores what is true",
        "comparisons give masked Booleans: specified where the operands are",
        _has("above 0"),
    ),
    Rule(
        ("scipy.sparse",),
        "a triangle or a Kronecker product is refused, where the peer keeps what is stored",
        "the zeros of tril are specified, so that nothing sparse is left; kron has no rule: both name x.to_dense()",
        _has("lower triangle", "upper triangle", "kron"),
    ),
    Rule(
        ("xarray",),
        "0 / 0 is a NaN that stays visible, where the peer reads it as a hole",
        "a NaN in a specified entry stays visible: nothing is inferred from values; only from_nan looks for NaN, once",
        _has("standardised ", also=" left"),
    ),
    Rule(
        ("opacus and torch.func",),
        "opacus takes other padding for zeros, trains the row padding_idx, counts an id once in a bag, needs a bias",
        "the gradient of a sample is that of its loss: torch.func gives what we give for these layers",
        lambda case: (
            case.startswith("opacus")
            and any(
                layer in case
                for layer in (
                    "circular",
                    "reflected",
                    "Embedding with padding",
                    "LayerNorm without bias",
                    "EmbeddingBag",
                )
            )
        ),
    ),
)
