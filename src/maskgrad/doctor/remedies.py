"""What to write instead: for an operation that reads padding, with the mask as it lies on its input, or for a kind.

In all remedies ``mask`` is that of the batch, (B, T), True or 1 where entries are real; ``x``, ``scores``, ``logits``
and so on are the inputs of the line. Each is pasted into a program that draws it by ``tests/doctor/test_remedies.py``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from maskgrad.doctor.operations import Operated

__all__ = ["Setting", "remedy_for"]

_BEFORE = "   # before this line"


@dataclass(frozen=True)
class Setting:
    """What a remedy depends on.

    Attributes:
        operation: that mixes padding into what is real.
        shape: of its first input with padding.
        mask: shape of the mask of the batch.
        dims: dimensions that it reduces, or along which it runs.
        keepdim: whether those stay.
        last: whether it takes the last position.
        layer: the class of the layer of PyTorch that runs it.
        batch_first: whether that layer has samples first.
    """

    operation: str
    shape: tuple[int, ...] = ()
    mask: tuple[int, ...] = ()
    dims: tuple[int, ...] = ()
    keepdim: bool = False
    last: bool = False
    layer: str = ""
    batch_first: bool = True

    @classmethod
    def of(
        cls, call: Operated, shape: tuple[int, ...], masks: Sequence[tuple[int, ...]], layers: Sequence[Any]
    ) -> Setting:
        """Read off the arguments of an operation, and the layers that were running, the outermost first."""
        dims = _argument(call, "dim")
        dims = (dims,) if isinstance(dims, int) else tuple(dims or ())
        dims = tuple(dim % len(shape) for dim in dims) if shape else ()
        layer = next((layer for layer in layers if _layer_of(layer)), None)
        fitting = next((mask for mask in masks if _axes(shape, mask, dims)), masks[0] if masks else ())
        return cls(
            call.facts.name,
            shape,
            fitting,
            dims,
            bool(_argument(call, "keepdim")),
            call.facts.name == "select" and _argument(call, "index") in (-1, shape[dims[0]] - 1),
            _layer_of(layer),
            bool(getattr(layer, "batch_first", True)),
        )


def _argument(call: Operated, name: str) -> Any:
    for place, argument in enumerate(call.func._schema.arguments if hasattr(call.func, "_schema") else ()):
        if argument.name == name:
            return call.args[place] if place < len(call.args) else call.kwargs.get(name)
    return None


def _layer_of(layer: Any) -> str:
    """The name under which a layer of PyTorch has remedies of its own; empty if it has none."""
    return next((base.__name__ for base in type(layer).__mro__ if base.__name__ in _OF_LAYERS), "")


def _axes(shape: tuple[int, ...], mask: tuple[int, ...], dims: tuple[int, ...]) -> tuple[int, ...]:
    """The dimensions of a tensor along which a mask lies, in the mask's order: those that are reduced, if it can be."""
    ways = [
        axes
        for axes in itertools.permutations(range(len(shape)), len(mask))
        if tuple(shape[axis] for axis in axes) == mask
    ]
    return min(
        ways, key=lambda axes: (-len({*axes[1:]} & {*dims}), axes != tuple(sorted(axes)), axes), default=()
    )


def _laid(setting: Setting) -> str:
    """The mask as it broadcasts to the input: ``mask[:, None]``."""
    axes = _axes(setting.shape, setting.mask, setting.dims)
    if not axes:
        return "mask[..., None]" if len(setting.shape) > 2 or not setting.shape else "mask"
    name = "mask" if axes == tuple(sorted(axes)) else "mask.T"
    parts = [":" if axis in axes else "None" for axis in range(len(setting.shape))]
    while parts and parts[-1] == ":":
        parts.pop()
    if parts[: len(axes)] == [":"] * len(axes):
        parts[: len(axes)] = ["..."]
    return f"{name}[{', '.join(parts)}]" if parts else name


def _along(setting: Setting) -> str:
    """The arguments ``dim`` and ``keepdim``, as they were."""
    if not setting.dims:
        return ""
    dims = str(setting.dims[0]) if len(setting.dims) == 1 else str(setting.dims)
    return f"{dims}, keepdim=True" if setting.keepdim else dims


def _count(setting: Setting, mask: str, along: str) -> str:
    """How many real entries each result has."""
    within = set(setting.dims) <= set(_axes(setting.shape, setting.mask, setting.dims)) and setting.dims
    return f"{mask if within else f'{mask}.expand_as(x)'}.sum({along})"


def _mean(setting: Setting) -> tuple[str, ...]:
    mask, along = _laid(setting), _along(setting)
    count = _count(setting, mask, along)
    return (
        f"mg.masked(x, {mask}).mean({along}).filled(0.)",
        f"x.masked_fill({mask} == 0, 0.).sum({along}) / {count}.clamp(min=1)",
    )


def _reduced(name: str, value: str, keyword: str = "") -> Any:
    def lines(setting: Setting) -> tuple[str, ...]:
        mask, along = _laid(setting), _along(setting)
        called = f"{name}({keyword}{along})" if along else f"{name}()"
        return f"mg.masked(x, {mask}).{called}.filled(0.)", f"x.masked_fill({mask} == 0, {value}).{called}"

    return lines


def _filled(value: str) -> Any:
    def lines(setting: Setting) -> tuple[str, ...]:
        return (f"x = x.masked_fill({_laid(setting)} == 0, {value}){_BEFORE}",)

    return lines


def _without_ones(setting: Setting) -> Setting:
    """As it was given: pooling of one dimension is computed as one of two."""
    return replace(setting, shape=tuple(size for size in setting.shape if size != 1))


def _spread(setting: Setting) -> tuple[str, ...]:
    mask, along = _laid(setting), _along(setting)
    name, root = ("std", ".sqrt()") if setting.operation.startswith("std") else ("var", "")
    kept = _along(replace(setting, keepdim=bool(setting.dims)))
    mean = f"mean = x.masked_fill({mask} == 0, 0.).sum({kept}) / {_count(setting, mask, kept)}"
    squares = f"(x - mean).masked_fill({mask} == 0, 0.).square().sum({along})"
    return (
        f"mg.masked(x, {mask}).{name}({along}).filled(0.)",
        f"{mean}\n({squares} / ({_count(setting, mask, along)} - 1)){root}",
    )


def _step(setting: Setting) -> tuple[str, ...]:
    """A slice of one position: the last one, or a step of a recurrence that is written by hand."""
    time_first = setting.dims[:1] == (0,)
    if setting.last:
        last = (
            "mask.sum(1) - 1, torch.arange(x.shape[1])"
            if time_first
            else "torch.arange(len(x)), mask.sum(1) - 1"
        )
        return (f"x[{last}]   # the last real position of each sample",)
    return (
        "state = torch.where(mask[:, t, None] != 0, new, state)   # after the step: padding keeps the state",
    )


def _softmax(name: str) -> Any:
    def lines(setting: Setting) -> tuple[str, ...]:
        mask, along = _laid(setting), _along(setting)
        return (
            f"mg.masked(scores, {mask}).{name}({along}).filled(0.)",
            f"scores.masked_fill({mask} == 0, float('-inf')).{name}({along})",
        )

    return lines


def _attention(setting: Setting) -> tuple[str, ...]:
    # PyTorch 2.14 computes attention without heads as that of one sample whose heads are the samples;
    # a mask without a dimension for heads fits a single sample with heads as well
    heads = len(setting.shape) > 3 and setting.shape[:1] != (1,)
    keys = "mask[:, None, None, :]" if heads else "mask[:, None, :]"
    values = "mask[:, None, :, None]" if heads else "mask[..., None]"
    return (
        f"F.scaled_dot_product_attention(q, mg.masked(k, {values}), mg.masked(v, {values}))",
        f"F.scaled_dot_product_attention(q, k, v, attn_mask={keys} != 0)   # True = may be read",
    )


def _batch_norm(setting: Setting) -> tuple[str, ...]:
    mask = _laid(setting)
    with_maskgrad = f"norm(mg.masked(x, {mask})).filled(0.)"
    if len(setting.shape) == 3 and len(setting.mask) == 2:  # (B, C, T)
        rows = "torch.zeros_like(x.mT).masked_scatter(mask[..., None] != 0, norm(x.mT[mask != 0])).mT"
        return with_maskgrad, rows
    return (with_maskgrad,)


def _recurrent(setting: Setting) -> tuple[str, ...]:
    packed = f"rnn(pack_padded_sequence(x, mask.sum(1).cpu(), batch_first={setting.batch_first}, enforce_sorted=False))"
    if not setting.batch_first:
        return (packed,)
    return "rnn(mg.from_lengths(x, mask.sum(1), layout=torch.jagged))", packed


def _likelihood(setting: Setting) -> tuple[str, ...]:
    rows = setting.shape[:1] != setting.mask[:1]
    mask, real = ("mask.flatten()", "mask.flatten()[:, None]") if rows else ("mask", "mask[:, None]")
    return (
        f"F.cross_entropy(mg.masked(logits, {real}), labels)",
        f"F.cross_entropy(logits, labels.masked_fill({mask} == 0, -100))   # ignore_index=-100",
    )


def _error(setting: Setting) -> tuple[str, ...]:
    name, mask = setting.operation, _laid(setting)
    whole = len(setting.shape) == len(setting.mask)
    chosen = "mask != 0" if whole else f"({mask} != 0).expand_as(prediction)"
    return (
        f"F.{name}(mg.masked(prediction, {mask}), target)",
        f"F.{name}(prediction[{chosen}], target[{chosen}])",
    )


def _ctc(_: Setting) -> tuple[str, ...]:
    return ("F.ctc_loss(log_probs, targets, mask.sum(1), target_lengths)   # lengths without padding",)


def _any(setting: Setting) -> tuple[str, ...]:
    return (f"x = mg.masked(x, {_laid(setting)}){_BEFORE}",)


#: by the beginning of an operation's name
_OF_OPERATIONS: dict[tuple[str, ...], Any] = {
    ("mean",): _mean,
    ("sum", "nansum"): _reduced("sum", "0."),
    ("amax", "max"): _reduced("amax", "float('-inf')"),
    ("amin", "min"): _reduced("amin", "float('inf')"),
    ("argmax", "topk", "sort"): _filled("float('-inf')"),
    ("std", "var"): _spread,
    ("select", "unbind", "slice"): _step,
    ("_softmax",): _softmax("softmax"),
    ("_log_softmax",): _softmax("log_softmax"),
    ("logsumexp",): _softmax("logsumexp"),
    ("_safe_softmax", "_scaled_dot_product", "_flash_attention", "_efficient_attention"): _attention,
    ("native_batch_norm", "cudnn_batch_norm", "batch_norm", "_native_batch_norm"): _batch_norm,
    ("convolution", "bmm", "baddbmm", "mm", "cumsum"): _filled("0."),
    ("max_pool",): lambda setting: _filled("float('-inf')")(_without_ones(setting)),
    ("mkldnn_rnn_layer", "_cudnn_rnn", "_thnn_fused"): _recurrent,
    ("nll_loss",): _likelihood,
    ("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy"): _error,
    ("_ctc_loss",): _ctc,
    ("linalg_vector_norm", "norm"): _reduced("norm", "0.", "dim="),
}
#: by the layer of PyTorch that the line calls
_OF_LAYERS: dict[str, Any] = {
    "Transformer": (
        "transformer(src, tgt, src_key_padding_mask=mask == 0, memory_key_padding_mask=mask == 0)",
    ),
    "TransformerEncoder": ("encoder(x, src_key_padding_mask=mask == 0)",),
    "TransformerEncoderLayer": ("layer(x, src_key_padding_mask=mask == 0)",),
    "TransformerDecoder": ("decoder(x, memory, memory_key_padding_mask=mask == 0)   # mask of the memory",),
    "TransformerDecoderLayer": (
        "layer(x, memory, memory_key_padding_mask=mask == 0)   # mask of the memory",
    ),
    "MultiheadAttention": ("attention(q, k, v, key_padding_mask=mask == 0)",),
    "RNNBase": _recurrent,
    "_BatchNorm": _batch_norm,
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
    "sample-coupling": (
        "attention = nn.MultiheadAttention(width, heads, batch_first=True)   # samples come first",
    ),
    "document-leak": (
        "mask = seq_idx[:, :, None] == seq_idx[:, None, :]   # True = may be read; mask[:, None] for heads",
        "first = F.pad(seq_idx[:, 1:] != seq_idx[:, :-1], (1, 0), value=True)   # reset states, end windows there",
    ),
    "document-alone": (
        "positions = torch.cat([torch.arange(length) for length in lengths])   # they restart in each document",
        "loss = losses.sum() / (labels != -100).sum()   # not the length of the pack",
    ),
    "batch-bits": (
        "y = torch.cat([model(row[None]) for row in x])   # sample by sample, or in batches of a fixed size",
        "torch.testing.assert_close(alone, among)   # a tolerance instead of bits",
    ),
    "future-leak": (
        "F.scaled_dot_product_attention(q, k, v, is_causal=True)",
        "F.conv1d(F.pad(x, (width - 1, 0)), weight)   # windows that end at their position",
    ),
    "order": ("outputs = outputs[order.argsort()]   # before they meet labels in the order of the batch",),
    "densified-gradient": (
        "penalty = rows.square().sum()   # of the rows that were looked up, not of the whole table",
        "head = nn.Linear(width, entries, bias=False)   # a weight of its own, not that of the table",
    ),
    "silent-hook": ("y = module(x)   # not module.forward(x), which skips hooks",),
    "unused-parameter": ("parameter.requires_grad_(False)   # or use it in the loss, or remove it",),
    "zero-gradient": ("mask = mask == 0   # before this line, if the mask is True in the padding",),
    "stale-rows": ("optimizer.flush()   # before this line",),
}
_OF_DIVISIONS = ("count = count.clamp(min=1)   # before this line: a row without entries counts as one",)


def remedy_for(kind: str, operation: str, setting: Setting | None) -> str:
    """The lines to write instead, with maskgrad and without."""
    code: tuple[str, ...] = _OF_KINDS[kind]
    if setting is not None and kind in ("padding-leak", "padding-length"):
        code = _of(setting) or code
    if kind == "empty-row" and operation.startswith("div"):
        code = _OF_DIVISIONS
    if len(code) > 1 and "#" not in code[1]:
        code = (code[0], f"{code[1]}   # without maskgrad")
    return "\n".join(code)


def _of(setting: Setting) -> tuple[str, ...]:
    found = _OF_LAYERS.get(setting.layer)
    if found is None:
        starts = {start: lines for names, lines in _OF_OPERATIONS.items() for start in names}
        longest = max((start for start in starts if setting.operation.startswith(start)), key=len, default="")
        found = starts.get(longest)
    if found is None:
        found = _any if _axes(setting.shape, setting.mask, setting.dims) else ()
    made: tuple[str, ...] = found(setting) if callable(found) else found
    return made
