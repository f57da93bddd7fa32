"""What an examination found: kinds, where, how much, and what to write instead."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from maskgrad.doctor.operations import Operated, Place

__all__ = ["Finding", "Note", "lines_for", "remedy_for"]

#: in all remedies `mask` is that of the batch, (B, T), True or 1 where entries are real; `x`, `scores`, `logits` and so
#: on are the inputs of the line; each is pasted into a program that draws it by `tests/doctor/test_remedies.py`
_BEFORE = "   # before this line"


def lines_for(
    call: Operated, shape: tuple[int, ...], masks: Sequence[tuple[int, ...]], layers: Sequence[Any]
) -> tuple[str, ...]:
    """What to write instead of an operation that mixes padding in; ``shape``: of its first input with padding."""
    names = [argument.name for argument in getattr(getattr(call.func, "_schema", None), "arguments", ())]
    given, name = dict(zip(names, call.args, strict=False)) | call.kwargs, call.facts.name
    dims = given.get("dim")
    dims = (dims,) if isinstance(dims, int) else tuple(dims or ())
    dims = tuple(dim % len(shape) for dim in dims) if shape else ()
    if name.startswith("max_pool"):  # pooling of one dimension is computed as one of two
        shape = tuple(size for size in shape if size != 1)
    fitting = next((mask for mask in masks if _axes(shape, mask, dims)), masks[0] if masks else ())
    axes = _axes(shape, fitting, dims)
    last = name == "select" and given.get("index") in (-1, shape[dims[0]] - 1)
    bases = ((layer, base.__name__) for layer in layers for base in type(layer).__mro__)
    layer, kind = next((found for found in bases if found[1] in _OF_LAYERS), (None, ""))
    found = _OF_LAYERS.get(kind, _LAST if last else None)
    if found is None:
        starts = {start: lines for names, lines in _OF_OPERATIONS.items() for start in names.split()}
        longest = max((start for start in starts if name.startswith(start)), key=len, default="")
        found = starts.get(longest, _ANY if axes else ())
    if found is _BATCH_NORM and (len(shape), len(fitting)) != (3, 2):
        found = _BATCH_NORM[:1]
    batch_first = bool(getattr(layer, "batch_first", True))
    if found is _RECURRENT and not batch_first:
        found = _RECURRENT[1:]
    along = ", ".join(map(str, dims)) if len(dims) < 2 else str(dims)
    along += ", keepdim=True" if dims and given.get("keepdim") else ""
    mask = _laid(shape, axes)
    flat = "mask.flatten()" if shape[:1] != fitting[:1] else "mask"
    # PyTorch 2.14 computes attention without heads as that of one sample whose heads are the samples;
    # a mask without a dimension for heads fits a single sample with heads as well
    heads = len(shape) > 3 and shape[:1] != (1,)
    words = {
        "mask": mask, "along": along, "dim": f"dim={along}" if along else "",
        "count": f"{mask}{'' if dims and {*dims} <= {*axes} else '.expand_as(x)'}.sum({along})",
        "keys": "mask[:, None, None, :]" if heads else "mask[:, None, :]",
        "values": "mask[:, None, :, None]" if heads else "mask[..., None]", "flat": flat,
        "flat_rows": f"{flat}[:, None]", "batch_first": str(batch_first),
        "chosen": "mask != 0" if mask == "mask" else f"({mask} != 0).expand_as(prediction)", "name": name,
        "last": _LAST_OF[dims[:1] == (0,)],
    }  # fmt: skip
    return tuple(line.format(**words) for line in found)


def _axes(shape: tuple[int, ...], mask: tuple[int, ...], dims: tuple[int, ...]) -> tuple[int, ...]:
    """The dimensions of a tensor along which a mask lies, in the mask's order: those that are reduced, if it can be."""
    ways = itertools.permutations(range(len(shape)), len(mask))
    fitting = [axes for axes in ways if tuple(shape[axis] for axis in axes) == mask]
    rank = lambda axes: (-len({*axes[1:]} & {*dims}), list(axes) != sorted(axes), axes)  # noqa: E731
    return min(fitting, key=rank, default=())


def _laid(shape: tuple[int, ...], axes: tuple[int, ...]) -> str:
    """The mask as it broadcasts to the input: ``mask[:, None]``."""
    if not axes:
        return "mask[..., None]" if len(shape) > 2 or not shape else "mask"
    parts = [":" if axis in axes else "None" for axis in range(len(shape))]
    while parts and parts[-1] == ":":
        parts.pop()
    if parts[: len(axes)] == [":"] * len(axes):
        parts[: len(axes)] = ["..."]
    name = "mask" if list(axes) == sorted(axes) else "mask.T"
    return f"{name}[{', '.join(parts)}]" if parts else name


def _reduced(call: str, value: str, name: str = "x") -> tuple[str, str]:
    ours = f"mg.masked({name}, {{mask}}).{call}.filled(0.)"
    return ours, f"{name}.masked_fill({{mask}} == 0, {value}).{call}"


_LOWEST, _HIGHEST = "float('-inf')", "float('inf')"
_BATCH_NORM = (
    "norm(mg.masked(x, {mask})).filled(0.)",
    "torch.zeros_like(x.mT).masked_scatter(mask[..., None] != 0, norm(x.mT[mask != 0])).mT",  # for (B, C, T)
)
_RECURRENT = (
    "rnn(mg.from_lengths(x, mask.sum(1), layout=torch.jagged))",
    "rnn(pack_padded_sequence(x, mask.sum(1).cpu(), batch_first={batch_first}, enforce_sorted=False))",
)
#: by the beginnings of an operation's name, with maskgrad first if there are two; the fields are those of `lines_for`
_OF_OPERATIONS: dict[str, tuple[str, ...]] = {
    "mean": (
        "mg.masked(x, {mask}).mean({along}).filled(0.)",
        "x.masked_fill({mask} == 0, 0.).sum({along}) / {count}.clamp(min=1)",
    ),
    "sum nansum": _reduced("sum({along})", "0."),
    "amax max": _reduced("amax({along})", _LOWEST),
    "amin min": _reduced("amin({along})", _HIGHEST),
    "linalg_vector_norm norm": _reduced("norm({dim})", "0."),
    "std": ("mg.masked(x, {mask}).std({along}).filled(0.)",),
    "var": ("mg.masked(x, {mask}).var({along}).filled(0.)",),
    "_softmax": _reduced("softmax({along})", _LOWEST, "scores"),
    "_log_softmax": _reduced("log_softmax({along})", _LOWEST, "scores"),
    "logsumexp": _reduced("logsumexp({along})", _LOWEST, "scores"),
    "argmax topk sort max_pool": (f"x = x.masked_fill({{mask}} == 0, {_LOWEST}){_BEFORE}",),
    "convolution bmm baddbmm mm cumsum": (f"x = x.masked_fill({{mask}} == 0, 0.){_BEFORE}",),
    # a step of a recurrence that is written by hand
    "select unbind slice": ("state = torch.where(mask[:, t, None] != 0, new, state)   # after the step",),
    "_safe_softmax _scaled_dot_product _flash_attention _efficient_attention": (
        "F.scaled_dot_product_attention(q, mg.masked(k, {values}), mg.masked(v, {values}))",
        "F.scaled_dot_product_attention(q, k, v, attn_mask={keys} != 0)   # True = may be read",
    ),
    "native_batch_norm cudnn_batch_norm batch_norm _native_batch_norm": _BATCH_NORM,
    "mkldnn_rnn_layer _cudnn_rnn _thnn_fused": _RECURRENT,
    "nll_loss": (
        "F.cross_entropy(mg.masked(logits, {flat_rows}), labels)",
        "F.cross_entropy(logits, labels.masked_fill({flat} == 0, -100))   # ignore_index=-100",
    ),
    "mse_loss smooth_l1_loss huber_loss binary_cross_entropy": (
        "F.{name}(mg.masked(prediction, {mask}), target)",
        "F.{name}(prediction[{chosen}], target[{chosen}])",
    ),
    "_ctc_loss": ("F.ctc_loss(log_probs, targets, mask.sum(1), target_lengths)   # lengths without padding",),
}
_LAST_OF = ("torch.arange(len(x)), mask.sum(1) - 1", "mask.sum(1) - 1, torch.arange(x.shape[1])")
_LAST = ("x[{last}]   # the last real position of each sample",)
_ANY = (f"x = mg.masked(x, {{mask}}){_BEFORE}",)
#: by the layer of PyTorch that the line calls
_OF_LAYERS: dict[str, tuple[str, ...]] = {
    "Transformer": (
        "transformer(src, tgt, src_key_padding_mask=mask == 0, memory_key_padding_mask=mask == 0)",
    ),
    "TransformerEncoder": ("encoder(x, src_key_padding_mask=mask == 0)",),
    "TransformerEncoderLayer": ("layer(x, src_key_padding_mask=mask == 0)",),
    "TransformerDecoder": ("decoder(x, memory, memory_key_padding_mask=mask == 0)   # mask of the memory",),
    "TransformerDecoderLayer": ("layer(x, memory, memory_key_padding_mask=mask == 0)   # of the memory",),
    "MultiheadAttention": ("attention(q, k, v, key_padding_mask=mask == 0)",),
    "RNNBase": _RECURRENT,
    "_BatchNorm": _BATCH_NORM,
}
#: by the kind of finding: with maskgrad first, if there are two
_OF_KINDS: dict[str, tuple[str, ...]] = {
    "padding-leak": ("x = mg.masked(x, mask[..., None])   # before padding is read",),
    "nan-under-mask": (
        "target = mg.from_nan(target)   # before this line",
        "x = torch.where(mask[..., None] != 0, x, 1.)   # before this line: not its result",
    ),
    "padding-length": (
        "mg.masked(x, mask[..., None]).mean(1).filled(0.)",
        "x.masked_fill(mask[..., None] == 0, 0.).sum(1) / mask.sum(1, keepdim=True)   # not by x.shape[1]",
    ),
    "denominator": (
        "accumulator = mg.GradientAccumulator(model)   # .backward(losses, mask=mask) for each part, then .finish()",
        "loss = loss_sum / tokens_of_the_whole_batch   # one denominator for all parts and ranks",
    ),
    "empty-row": (
        "mg.masked(scores, mask).softmax(-1).filled(0.)",
        "mask = (mask != 0) | (mask == 0).all(-1, keepdim=True)   # before this line; leave such rows out of the loss",
    ),
    "document-leak": (
        "mask = seq_idx[:, :, None] == seq_idx[:, None, :]   # True = may be read; mask[:, None] for heads",
        "first = F.pad(seq_idx[:, 1:] != seq_idx[:, :-1], (1, 0), value=True)   # reset states, end windows there",
    ),
    "document-alone": (
        "positions = torch.cat([torch.arange(length) for length in lengths])   # they restart in each document",
        "loss = losses.sum() / (labels != -100).sum()   # not the length of the pack",
    ),
    "future-leak": (
        "F.scaled_dot_product_attention(q, k, v, is_causal=True)",
        "F.conv1d(F.pad(x, (width - 1, 0)), weight)   # windows that end at their position",
    ),
    "batch-bits": ('with mg.use_kernels("invariant"): loss = step(batch)   # of masked tensors',),
    "order": ("outputs = outputs[order.argsort()]   # before they meet labels in the order of the batch",),
}
_OF_DIVISIONS = ("count = count.clamp(min=1)   # before this line: a row without entries counts as one",)


def remedy_for(kind: str, operation: str, lines: tuple[str, ...] = ()) -> str:
    """The lines to write instead, with maskgrad and without; ``lines`` are those for the operation."""
    code = lines if lines and kind in ("padding-leak", "padding-length") else _OF_KINDS[kind]
    if kind == "empty-row" and operation.startswith("div"):
        code = _OF_DIVISIONS
    if len(code) > 1 and "#" not in code[1]:
        code = (code[0], f"{code[1]}   # without maskgrad")
    return "\n".join(code)


@dataclass(frozen=True)
class Finding:
    """One mistake: the line of the user's program, the message, and a fix.

    Attributes:
        kind: one of the kinds that the page "Is my masking right?" lists.
        message: what was changed and what followed, in one or two sentences.
        file: path of the source file, empty if no line is known.
        line: number of the line, 0 if none is known.
        code: the text of the line.
        remedy: code to write instead, with maskgrad and without.
        module: dotted name of the running module.
        operation: the first PyTorch operation whose real entries depend on padding.
        package_file: path of a file of an installed package, if the line calls one: the innermost that was running.
        package_line: number of the line in it.
        callers: the lines of the program through which the line was reached, the innermost first, as "file:line: code".
    """

    kind: str
    message: str
    file: str = ""
    line: int = 0
    code: str = ""
    remedy: str = ""
    module: str = ""
    operation: str = ""
    package_file: str = ""
    package_line: int = 0
    callers: list[str] = field(default_factory=list)

    @classmethod
    def at(cls, where: Any, kind: str, message: str) -> Finding:
        """A finding with what to write instead: at a ``Place``, an operation that was seen there, or None."""
        of_place = ("file", "line", "code", "package_file", "package_line")
        held = dict.fromkeys(of_place, getattr(where, "place", where))
        held |= dict.fromkeys(("operation", "module", "callers"), where)
        known = {name: getattr(of, name) for name, of in held.items() if hasattr(of, name)}
        known["remedy"] = remedy_for(kind, known.get("operation", ""), getattr(where, "instead", ()))
        return cls(kind, message, **known)

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.file else "(no line is known)"
        lines = [f"{self.kind} at {where}"]
        if self.code:
            lines.append(f"    {self.code}")
        if self.package_file:
            place = Place(self.package_file, self.package_line)
            short = re.split(r"[\\/](?:site|dist)-packages[\\/]", place.file)[-1]
            lines += [f"  in {short}:{place.line}: {place.code}"]
        lines += [f"  called at {caller}" for caller in self.callers]
        if self.module:
            lines.append(f"  in module {self.module}")
        lines.append(f"  {self.message}")
        if self.remedy:
            meaning = " (mask: (B, T), True or 1 where entries are real)" if "mask" in self.remedy else ""
            lines.append(f"  instead{meaning}:")
            lines += [f"    {line}" for line in self.remedy.splitlines()]
        return "\n".join(lines)


@dataclass(frozen=True)
class Note:
    """A remark that is not a finding; ``about`` names its experiment."""

    about: str
    message: str
    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        where = f" ({self.file}:{self.line})" if self.file else ""
        return f"{self.about}: {self.message}{where}"
