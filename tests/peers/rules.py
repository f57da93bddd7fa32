"""Differences that are meant: at most forty, each with the rule that decides it. One that no case needs fails."""

from __future__ import annotations

import re

from tests.peers.suite import Rule

RULES: tuple[Rule, ...] = (
    Rule(
        ("awkward", "numpy.ma"),
        "a mean of integers is refused, where the peer gives a float",
        "as torch.mean: integers have no mean of their own dtype; write x.mean(dtype=torch.float64)",
        lambda case: "mean" in case and any(kind in case for kind in (" int", " logic")),
    ),
    Rule(
        ("numpy.ma", "torch.masked"),
        "PyTorch gives another dtype or another refusal for plain data, too",
        "identity: what is fully specified is PyTorch's (NumPy has exp of a Boolean in half precision, and 1 // 0)",
        lambda case: case.endswith("otherwise in PyTorch"),
    ),
    Rule(
        ("numpy.ma",),
        "where a function is undefined, or the result infinite, numpy.ma masks; ours is PyTorch's NaN or infinity",
        "nothing is inferred from values: a NaN in a specified entry stays visible",
        lambda case: case.endswith("outside its domain"),
    ),
    Rule(
        ("numpy.ma",),
        "a reduction over everything gives masked where nothing is specified; ours is the number of an empty tensor",
        "numbers are plain: a sum of nothing is 0, a mean NaN, with a gradient of zero",
        lambda case: (
            re.match(r"x\.(sum|prod|any|all|mean|var|std)\((None|dtype|\)).* of nothing", case) is not None
        ),
    ),
    Rule(
        ("numpy.ma",),
        "argmax and argmin give the position of a masked entry where nothing else is there, or all else is as small",
        "deletion: the position is one of a specified entry, or unspecified",
        lambda case: case.startswith(("x.argmax", "x.argmin")),
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
        ("torch.masked",),
        "a variance of too few entries is a number (NaN or 0)",
        "an estimate for which too few entries are left is unspecified along a dimension",
        lambda case: case.startswith(("tensor.var(", "tensor.std(")),
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
)
