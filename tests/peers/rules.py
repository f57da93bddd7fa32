"""Differences that are meant: at most forty, each with the rule that decides it. One that no case needs fails."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.peers.suite import Rule


def _has(*words: str, also: str = "") -> Callable[[str], bool]:
    """Whether a case is one of these operations, or has one of these words after the operation."""
    return lambda case: also in case and any(case.startswith(word) for word in words)


#: Reductions over everything of data that has nothing to reduce, as the suites write them.
OVER_EVERYTHING = (
    r"(x\.(sum|prod|any|all|mean|var|std)\((None|dtype|\)).* of (nothing|no rows)"
    r"|(sum|prod|mean|real mean) of .* nothing|(real )?(var|std)(, ddof 0)? of .* (nothing|one entry))"
)
RULES: tuple[Rule, ...] = (
    Rule(
        ("numpy.ma", "pandas"),
        "a reduction over all entries is missing if none is specified, and a variance if one is; "
        "ours is PyTorch's value for an empty tensor",
        "scalars are plain: an empty sum is 0, an empty mean NaN, with gradient zero",
        lambda case: re.match(OVER_EVERYTHING, case) is not None,
    ),
    Rule(
        ("numpy.ma", "pandas"),
        "a mean or variance of integers is refused, where the peer gives a float",
        "as torch.mean: integers have no mean of their own dtype; write x.mean(dtype=torch.float64)",
        lambda case: (
            re.search(r"^(mean|var|std)|mean", case) is not None
            and re.search(r" int| logic| bytes", case) is not None
        ),
    ),
    Rule(
        ("numpy.ma", "torch.masked"),
        "PyTorch's dtype or refusal differs on plain tensors, too",
        "identity: fully specified results are PyTorch's (NumPy has exp of a Boolean in half precision, and 1 // 0)",
        lambda case: case.endswith("otherwise in PyTorch"),
    ),
    Rule(
        ("numpy.ma", "pandas"),
        "the peer masks undefined or infinite results; ours are PyTorch's NaN or infinity",
        "masks are not inferred from values: a NaN in a specified entry stays NaN",
        lambda case: case.endswith("outside its domain") or case.startswith(("sqrt of", "log of")),
    ),
    Rule(
        ("numpy.ma",),
        "argmax and argmin may give the position of a masked entry, if there is no other, or all others are as small",
        "deletion: the position is that of a specified entry, or unspecified",
        lambda case: re.match(r"x\.(flip\(1\)\.)?arg(max|min)", case) is not None,
    ),
    Rule(
        ("numpy.ma",),
        "an inner product of vectors without a common position is 0; ours is unspecified",
        "contractions sum products of specified factors; without any, the result is unspecified",
        lambda case: case.startswith("torch.inner"),
    ),
    Rule(
        ("numpy.ma",),
        "fill leaves masked entries masked",
        "x.fill_(v) specifies what it writes, as x[...] = v does in both",
        lambda case: "fill_(" in case,
    ),
    Rule(
        ("numpy.ma",),
        "masked Booleans are sorted among the True ones",
        "unspecified entries sort last",
        lambda case: "sort" in case and "of logic" in case,
    ),
    Rule(
        ("numpy.ma",),
        "a correlation takes each variance from all entries of its row",
        "each pair of variables uses the common observations, also for means and variances",
        lambda case: case.startswith(("torch.corrcoef", "torch.cov")),
    ),
    Rule(
        ("torch.masked",),
        "a mask with fewer dimensions than the data is aligned on the right",
        "a mask has the dimensions of the data, size 1 where it repeats: (B,) with (B, B) would mask columns",
        lambda case: case.endswith("a mask with fewer dimensions"),
    ),
    Rule(
        ("torch.masked",),
        "an operation on tensors with different masks is refused",
        "elementwise results are specified where all operands are",
        lambda case: "masks that differ" in case,
    ),
    Rule(
        ("torch.masked", "pandas"),
        "an estimate of too few entries (variance, covariance, correlation) is NaN or 0",
        "an estimate from too few entries is unspecified along a dimension",
        lambda case: case.startswith(("tensor.var(", "tensor.std(", "cov of", "corr of")),
    ),
    Rule(
        ("pandas",),
        "logic is Kleene's: False and missing is False, True or missing is True",
        "logic is elementwise: where an operand is unspecified, so is the result",
        lambda case: case.startswith(("and of", "or of")),
    ),
    Rule(
        ("pandas",),
        "a missing condition selects the second operand",
        "where the condition is unspecified, so is the result",
        lambda case: case.startswith("where of"),
    ),
    Rule(
        ("pandas",),
        "argmax of an empty slice is refused",
        "where PyTorch refuses an empty tensor, the result is unspecified",
        lambda case: case.startswith(("argmax of", "argmin of")) and "nothing" in case,
    ),
    Rule(
        ("torch.optim",),
        "sparse gradients are refused with weight decay",
        "weight decay applies to the specified entries of the gradient",
        lambda case: case.endswith("sparse in both"),
    ),
    Rule(
        ("torch.optim",),
        "options that some PyTorch implementations lack are refused: capturable on a CPU, scalar tensors with foreach",
        "a hyperparameter is a number or a tensor with one element, with the step of the default implementation",
        lambda case: (
            "capturable" in case or "both floats or both Tensors" in case or "as a Tensor is" in case
        ),
    ),
    Rule(
        ("torch.masked",),
        "gradients with infinite entries: NaN for a product over several dimensions; for an infinite maximum, "
        "divided among masked entries, too",
        "deletion and non-interference: gradients are PyTorch's on the specified entries",
        lambda case: case.startswith("gradient of") and "infinite entries" in case,
    ),
    Rule(
        ("numpy.ma",),
        "one mask for all rows can be changed row by row: each array has a mask of its own shape",
        "a write that changes the mask for some entries that share one Boolean is refused; write to x.clone()",
        lambda case: case.endswith("of columns"),
    ),
    Rule(
        ("torch.nested",),
        "argmax over all entries is an index in the padded shape, in the peer one in the flattened lists",
        "as torch.argmax: the index is into x.flatten(), and x has the shape (B, T)",
        lambda case: case.startswith("arg") and "over all" in case,
    ),
    Rule(
        ("torch.nested",),
        "a single sequence has the length of the longest, with its end unspecified; in the peer its own length",
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
        "the gradient of a softmax over time differs",
        "the peer's is wrong (torch 2.13): PyTorch on each sequence alone agrees with ours",
        _has("softmax over time"),
    ),
    Rule(
        ("scipy.sparse",),
        "a sum, a difference, a maximum or a minimum has entries where both operands have, in the peer where one has",
        "elementwise results are specified where all operands are (docs/semantics.md, Elementwise operations)",
        _has("sum of two", "difference of two", "maximum of two", "minimum of two"),
        fewer=True,
    ),
    Rule(
        ("scipy.sparse",),
        "a mean divides by the number of stored entries, the peer's by the size",
        "a missing entry is unspecified, not 0: a mean divides by the number of specified entries",
        _has("mean of all", "mean along"),
    ),
    Rule(
        ("scipy.sparse",),
        "without stored entries or products, the result is unspecified, where the peer gives 0",
        "deletion, and contractions are specified where a product exists",
        lambda case: "empty rows" in case or case.startswith("diagonal"),
        fewer=True,
    ),
    Rule(
        ("scipy.sparse",),
        "a comparison stores False, too, where the peer stores only True",
        "comparisons give masked Booleans: specified where the operands are",
        _has("above 0"),
    ),
    Rule(
        ("scipy.sparse",),
        "a triangle or a Kronecker product is refused, where the peer keeps the stored entries",
        "the zeros of tril are specified, so the result is dense; kron has no rule: both suggest x.to_dense()",
        _has("lower triangle", "upper triangle", "kron"),
    ),
)
