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
TABLES = ("pandas", "polars", "pyarrow")
RULES: tuple[Rule, ...] = (
    Rule(
        ("numpy.ma", *TABLES),
        "a reduction over everything gives missing where nothing is specified, and a variance where one entry is; "
        "ours is the number that PyTorch gives for an empty tensor",
        "numbers are plain: a sum of nothing is 0, a mean NaN, with a gradient of zero",
        lambda case: re.match(OVER_EVERYTHING, case) is not None,
    ),
    Rule(
        ("numpy.ma", *TABLES),
        "a mean or variance of integers is refused, where the peer gives a float",
        "as torch.mean: integers have no mean of their own dtype; write x.mean(dtype=torch.float64)",
        lambda case: (
            re.search(r"^(mean|var|std)|mean", case) is not None
            and re.search(r" int| logic| bytes", case) is not None
        ),
    ),
    Rule(
        ("numpy.ma", "torch.masked"),
        "PyTorch gives another dtype or another refusal for what is not masked, too",
        "identity: what is fully specified is PyTorch's (NumPy has exp of a Boolean in half precision, and 1 // 0)",
        lambda case: case.endswith("otherwise in PyTorch"),
    ),
    Rule(
        ("numpy.ma", "pandas"),
        "where a function is undefined, or the result infinite, the peer masks; ours is PyTorch's NaN or infinity",
        "nothing is inferred from values: a NaN in a specified entry stays visible",
        lambda case: case.endswith("outside its domain") or case.startswith(("sqrt of", "log of")),
    ),
    Rule(
        ("numpy.ma",),
        "argmax and argmin give the position of a masked entry where nothing else is there, or all else is as small",
        "deletion: the position is one of a specified entry, or unspecified",
        lambda case: re.match(r"x\.(flip\(1\)\.)?arg(max|min)", case) is not None,
    ),
    Rule(
        ("numpy.ma",),
        "an inner product of vectors that have no position in common is 0; ours is unspecified",
        "contractions add up products of specified factors; where there is none, nothing is specified",
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
        "Booleans that are masked are sorted among those that are True",
        "unspecified entries sort last",
        lambda case: "sort" in case and "of logic" in case,
    ),
    Rule(
        ("numpy.ma",),
        "a correlation takes each variance from all entries of its row",
        "each pair of variables counts on the observations that both have, means and variances, too",
        lambda case: case.startswith(("torch.corrcoef", "torch.cov")),
    ),
    Rule(
        ("torch.masked",),
        "a mask with fewer dimensions than the data is aligned on the right",
        "a mask has the dimensions of the data, size 1 where it repeats: (B,) beside (B, B) would mask columns",
        lambda case: case.endswith("a mask with fewer dimensions"),
    ),
    Rule(
        ("torch.masked",),
        "an operation on tensors whose masks differ is refused",
        "elementwise results are specified where all operands are",
        lambda case: "masks that differ" in case,
    ),
    Rule(
        ("torch.masked", *TABLES[:2]),
        "an estimate of too few entries (variance, covariance, correlation) is a number (NaN or 0)",
        "an estimate for which too few entries are left is unspecified along a dimension",
        lambda case: case.startswith(("tensor.var(", "tensor.std(", "cov of", "corr of")),
    ),
    Rule(
        TABLES,
        "logic is Kleene's: False and missing is False, True or missing is True",
        "logic is elementwise as everything else: where an operand is unspecified, so is the answer",
        lambda case: case.startswith(("and of", "or of")),
    ),
    Rule(
        TABLES[:2],
        "a condition that is missing chooses the second side",
        "where the condition is unspecified, nothing is chosen",
        lambda case: case.startswith("where of"),
    ),
    Rule(
        ("pandas",),
        "the position of a maximum of nothing is refused",
        "where PyTorch refuses an empty tensor, the result is unspecified",
        lambda case: case.startswith(("argmax of", "argmin of")) and "nothing" in case,
    ),
    Rule(
        ("polars",),
        "the sum of a row in which everything is missing is 0",
        "deletion: along a dimension, what has nothing left is unspecified; write x.sum(0).filled(0.0)",
        lambda case: case.startswith("rows: sum"),
    ),
    Rule(
        ("torch.optim",),
        "sparse gradients are refused beside weight decay",
        "weight decay touches the entries that the gradient specifies",
        lambda case: case.endswith("sparse in both"),
    ),
    Rule(
        ("torch.optim",),
        "what one of PyTorch's implementations lacks is refused: capturable on a CPU, numbers in tensors with foreach",
        "a hyperparameter is a number or a tensor with one element, and the step is that of the plain option",
        lambda case: (
            "capturable" in case or "both floats or both Tensors" in case or "as a Tensor is" in case
        ),
    ),
    Rule(
        ("torch.optim",),
        "SparseAdam refuses dense gradients and complex parameters",
        "an optimizer takes any kind of gradient, and the kind may change from step to step",
        lambda case: case.startswith("SparseAdam:"),
    ),
    Rule(
        ("torch.masked",),
        "gradients beside infinite entries: that of a product over several dimensions is NaN, that of a largest entry "
        "that is infinite is shared with masked ones",
        "deletion and non-interference: they are PyTorch's on the specified entries",
        lambda case: case.startswith("gradient of") and "infinite entries" in case,
    ),
    Rule(
        ("numpy.ma",),
        "what is one mask for all rows can be written row by row: each array has a mask of its own shape",
        "a write that changes the mask for some entries that share one Boolean is refused; write to x.clone()",
        lambda case: case.endswith("of columns"),
    ),
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
