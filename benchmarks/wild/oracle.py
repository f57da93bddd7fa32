"""Who is right: the same samples with other padding, with more of it, and each alone; independent of the doctor."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.wild.batches import Samples

__all__ = ["LEAK", "Case", "Verdict", "judge"]

#: relative: rounding is smaller, also where a model computes some layers in float32
LEAK = {"rewritten": 1e-6, "longer": 1e-4, "alone": 1e-4}
#: where a model does not run in float64
ROUNDING = 1e-3


@dataclass
class Case:
    """A model with its samples.

    Attributes:
        name: of the architecture.
        model: with random weights.
        samples: what it is given.
        outputs: what the model gives for a batch: a loss, or tensors that begin with samples (and positions).
        package: that it comes from.
    """

    name: str
    model: nn.Module
    samples: Samples
    outputs: Callable[[nn.Module, dict[str, Tensor]], dict[str, Tensor]]
    package: str

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        """The model's own loss, or else a weighed mean of what it gives at real positions."""
        return self.loss_of(self.outputs(self.model, batch), batch)

    def loss_of(self, outputs: dict[str, Tensor], batch: dict[str, Tensor]) -> Tensor:
        """That of the outputs of a batch."""
        if "loss" in outputs:
            return outputs["loss"]
        mask = batch.get(self.samples.mask or "")
        return torch.stack([weighed_mean(output, mask) for output in outputs.values()]).sum()


def weighed_mean(output: Tensor, mask: Tensor | None) -> Tensor:
    """A mean with other weights for each feature, over real positions if the output has positions."""
    features = torch.arange(output.shape[-1], device=output.device, dtype=output.dtype).mul(1.7).cos()
    if mask is None or mask.ndim != 2 or output.ndim != 3 or output.shape[:2] != mask.shape:
        return (output * features).mean()
    real = mask.bool()
    return (output * features).mean(-1).masked_fill(~real, 0.0).sum() / real.sum()


@dataclass(frozen=True)
class Verdict:
    """How much changes, relative to what changes; None where it was not asked."""

    rewritten: float | None = None
    longer: float | None = None
    alone: float | None = None
    double: bool = True

    def leaks(self) -> list[str]:
        """What is no rounding."""
        return [
            name
            for name, limit in LEAK.items()
            if (getattr(self, name) or 0.0) > (limit if self.double else ROUNDING)
        ]


def judge(case: Case, side: str, *, training: bool) -> Verdict:
    """Loss and gradients with other padding and with more, outputs of each sample alone; in float64 if that works."""
    try:
        return _judged(case, side, torch.float64, training=training)
    except (ValueError, RuntimeError):
        return _judged(case, side, torch.float32, training=training)


def _judged(case: Case, side: str, dtype: torch.dtype, *, training: bool) -> Verdict:
    model = copy.deepcopy(case.model).to(dtype).train(training)
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # type: ignore[operator]  # the default knows no float64
    case = Case(case.name, model, case.samples, case.outputs, case.package)
    double = dtype == torch.float64
    with _default(dtype):
        batch = _in(dtype, case.samples.batch(side))
        before = _loss_and_gradients(case, batch)
        rewritten = max(_apart(before, after) for after in _with_other_padding(case, batch, side))
        if not case.samples.padding:
            return Verdict(rewritten, double=double)
        without_dropout(model)
        before = _loss_and_gradients(case, batch)
        more = _in(dtype, case.samples.batch(side, case.samples.more()))
        longer = _apart(before, _loss_and_gradients(case, more))
        longer = max(longer, _with_one_column(case, before, side), _without_padding(case, side))
        if "labels" in batch and batch["labels"].ndim == 2 and more["labels"].shape == batch["labels"].shape:
            beyond = torch.full_like(
                batch["labels"][:, :3], -100
            )  # of a decoder, which are padded for themselves
            wide = batch | {"labels": torch.cat([batch["labels"], beyond], 1)}
            longer = max(longer, _apart(before, _loss_and_gradients(case, wide)))
        return Verdict(rewritten, longer, None if training else _alone(case, batch, side), double)


def _with_one_column(case: Case, before: dict[str, Tensor], side: str) -> float:
    """How far one more column moves loss and gradients; 0 where the model takes no such size."""
    try:
        wide = _loss_and_gradients(case, _in(torch.get_default_dtype(), case.samples.batch(side, 1)))
    except Exception:
        return 0.0
    return _apart(before, wide)


def _without_padding(case: Case, side: str) -> float:
    """How far loss and gradients of one sample alone are moved by the padding that it has in the batch."""
    dtype, longest, worst = torch.get_default_dtype(), case.samples.real().shape[-1], 0.0
    for row in range(len(case.samples.rows)):
        single = case.samples.alone(row)
        more = longest - single.real().shape[-1]
        try:
            batches = [_in(dtype, single.batch(side, columns)) for columns in (0, more)]
            narrow, wide = (_loss_and_gradients(case, batch) for batch in batches)
        except Exception:  # a normalisation that needs several samples, for instance
            return worst
        worst = max(worst, _apart(narrow, wide))
    return worst


@contextlib.contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _in(dtype: torch.dtype, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: held.to(dtype) if held.is_floating_point() else held for key, held in batch.items()}


def _loss_and_gradients(case: Case, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    case.model.zero_grad()
    torch.manual_seed(2)
    loss = case.loss(batch)
    if not loss.isfinite():
        raise ValueError("the loss is no number, before anything is changed")
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in case.model.named_parameters() if p.grad is not None}
    if not all(gradient.isfinite().all() for gradient in gradients.values()):
        raise ValueError("a gradient is no number, before anything is changed")
    return {"loss": loss.detach()} | gradients


def _with_other_padding(case: Case, batch: dict[str, Tensor], side: str) -> Iterator[dict[str, Tensor]]:
    """Loss and gradients with garbage where there is padding; ids stay, because models test for the id of padding.

    So the garbage is in what the tables of the ids give; where none reads them, in the ids.
    """
    for seed in range(2):
        generator = torch.Generator().manual_seed(100 + seed)
        new, reads = dict(batch), dict[str, Tensor]()
        for key, real in case.samples.hidden(batch, side).items():
            held = batch[key]
            if held.is_floating_point():
                new[key] = torch.where(real, held, torch.randn(held.shape, generator=generator) * 3)
            else:
                # whole entries, because the sides of a box belong together
                places = real if held.ndim < 3 else real.flatten(2).all(-1)
                ids = held[places].unique(dim=0)
                drawn = ids[torch.randint(len(ids), places.shape, generator=generator)]
                reads[key] = torch.where(real, held, drawn)
        with _garbage_from_the_tables(case.model, batch, reads, seed) as given:
            after = _loss_and_gradients(case, new)
        unread = {key: ids for key, ids in reads.items() if key not in given}
        if unread:
            with _garbage_from_the_tables(case.model, batch, {key: reads[key] for key in given}, seed):
                after = _loss_and_gradients(case, new | unread)
        yield after


@contextlib.contextmanager
def _garbage_from_the_tables(
    model: nn.Module, batch: dict[str, Tensor], other: dict[str, Tensor], seed: int
) -> Iterator[set[str]]:
    """Inside, tables give garbage for those ids that are ``other``: a set of the ids that some table has read."""
    given: set[str] = set()

    def garbage(_: nn.Module, args: Any, output: Any) -> Any:
        if not args or not torch.is_tensor(args[0]):
            return output
        first, *rest = output if isinstance(output, tuple) else (output,)
        for key, ids in other.items():
            rewritten = _within(args[0], batch[key], ids != batch[key])
            if rewritten is not None:
                given.add(key)
                noise = torch.randn(first.shape, generator=torch.Generator().manual_seed(seed)).to(
                    first.dtype
                )
                first = torch.where(rewritten[..., None], noise * first.detach().abs().max(), first)
        return (first, *rest) if isinstance(output, tuple) else first

    handles = [
        module.register_forward_hook(garbage)
        for module in model.modules()
        if "Embedding" in type(module).__name__ and module is not model
    ]
    try:
        yield given
    finally:
        for handle in handles:
            handle.remove()


def _within(read: Tensor, ids: Tensor, marked: Tensor) -> Tensor | None:
    """Where what a table reads is marked, if it reads these ids, maybe with tokens of the model's own at an end."""
    more = (
        read.shape[1] - ids.shape[1] if read.ndim == ids.ndim > 1 and read.shape[:1] == ids.shape[:1] else -1
    )
    for start in sorted({0, more}) if more >= 0 and read.shape[2:] == ids.shape[2:] else ():
        if torch.equal(read.narrow(1, start, ids.shape[1]), ids):
            found = torch.zeros_like(read, dtype=torch.bool)
            found.narrow(1, start, ids.shape[1]).copy_(marked)
            return found
    return None


def without_dropout(model: nn.Module) -> None:
    """Set every probability of dropout to zero, in modules and configurations: other shapes draw other numbers."""
    held = {
        id(owner): owner
        for module in model.modules()
        for owner in (module, getattr(module, "config", None))
        if owner is not None
    }
    for owner in held.values():
        for name, value in list(vars(owner).items()):
            if isinstance(value, float) and (
                "drop" in name or (name == "p" and "Drop" in type(owner).__name__)
            ):
                setattr(owner, name, 0.0)


def _alone(case: Case, batch: dict[str, Tensor], side: str) -> float:
    """How far outputs of the samples in the batch are from those of each sample without padding, where they count."""
    worst, columns = 0.0, case.samples.real().shape[-1]
    outputs = case.outputs(case.model, batch)
    together = {
        key: (out, _counts(out, case.loss_of(outputs, batch)))
        for key, out in outputs.items()
        if key != "loss"
    }
    for row in range(len(case.samples.rows)):
        with torch.no_grad():
            alone = case.outputs(case.model, _in(torch.get_default_dtype(), case.samples.alone(row).batch()))
        for key, (output, counts) in together.items():
            single = alone[key]
            if (
                output.ndim == single.ndim
                and single.shape[0] == 1
                and output.shape[0] == len(case.samples.rows)
            ):
                part, counted = output[row].detach(), counts[row]
                if part.ndim and part.shape != single[0].shape:
                    size = single.shape[1]
                    # what a decoder gives has the positions of the labels, which are padded on the right
                    decoded = "labels" in batch and output.shape[1] == batch["labels"].shape[-1] != columns
                    cut = slice(-size, None) if side == "left" and not decoded else slice(size)
                    part, counted = part[cut], counted[cut]
                worst = max(worst, _relative(part, single[0], counted=counted))
    return worst


def _counts(output: Tensor, loss: Tensor) -> Tensor:
    """Where a loss depends on an output: no label follows the last token. Everywhere if the loss does not read it."""
    gradient = None
    if output.requires_grad:
        (gradient,) = torch.autograd.grad(loss, output, retain_graph=True, allow_unused=True)
    if gradient is None:
        return torch.ones_like(output, dtype=torch.bool)
    return (gradient != 0).any(-1, keepdim=True).expand_as(output) if output.ndim > 2 else gradient != 0


def _apart(before: dict[str, Tensor], after: dict[str, Tensor]) -> float:
    """The largest relative difference; a gradient counts beside the largest one, if it is much smaller."""
    largest = max(
        float(gradient.abs().max())
        for name, gradient in before.items()
        if name != "loss" and gradient.numel()
    )
    worst = _relative(before["loss"], after["loss"])
    for name in before.keys() - {"loss"}:
        other = after.get(name, torch.zeros_like(before[name]))
        worst = max(worst, _relative(before[name], other, 0.1 * largest))
    return worst


def _relative(first: Tensor, second: Tensor, least: float = 0.0, counted: Tensor | None = None) -> float:
    if first.shape != second.shape:
        return float("inf")
    if counted is not None:
        first, second = first[counted], second[counted]
    if not first.numel() or torch.equal(first.nan_to_num(), second.nan_to_num()):
        return 0.0
    size = max(float(first.abs().max()), least)
    return float((first - second).abs().max()) / size if size else float("inf")
