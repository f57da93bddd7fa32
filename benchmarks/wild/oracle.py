"""Who is right: the same samples with other padding, with more of it, and each alone. It knows nothing of the doctor."""

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

#: relative: in float64 rounding is smaller, also where a model computes some layers in float32
LEAK = {"rewritten": 1e-6, "longer": 1e-4, "alone": 1e-4}
MORE = 4


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
        outputs = self.outputs(self.model, batch)
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

    def leaks(self) -> list[str]:
        """What is no rounding."""
        return [name for name, limit in LEAK.items() if (getattr(self, name) or 0.0) > limit]


def judge(case: Case, side: str, *, training: bool) -> Verdict:
    """Loss and gradients with other padding and with more, outputs of each sample alone; all in float64."""
    model = copy.deepcopy(case.model).double().train(training)
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # the default knows no float64
    case = Case(case.name, model, case.samples, case.outputs, case.package)
    with _float64():
        batch = _double(case.samples.batch(side))
        before = _loss_and_gradients(case, batch)
        apart = [_apart(before, after) for after in _with_other_padding(case, batch, side)]
        rewritten = max(apart) if apart else None
        if not case.samples.padding:
            return Verdict(rewritten)
        without_dropout(model)
        before = _loss_and_gradients(case, batch)
        longer = _apart(before, _loss_and_gradients(case, _double(case.samples.batch(side, MORE))))
        return Verdict(rewritten, longer, None if training else _alone(case, batch, side))


@contextlib.contextmanager
def _float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _double(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: held.double() if held.is_floating_point() else held for key, held in batch.items()}


def _loss_and_gradients(case: Case, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    case.model.zero_grad()
    torch.manual_seed(2)
    loss = case.loss(batch)
    if not loss.isfinite():
        raise ValueError("the loss is no number, whatever the padding holds")
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in case.model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach()} | gradients


def _with_other_padding(case: Case, batch: dict[str, Tensor], side: str) -> Iterator[dict[str, Tensor]]:
    """Loss and gradients with garbage where there is padding; ids stay, because models test for the id of padding.

    So the garbage is in what the table of the ids gives. Its gradients of the row of padding are the garbage's own.
    """
    for seed in range(2):
        generator = torch.Generator().manual_seed(100 + seed)
        new, reads = dict(batch), dict[str, Tensor]()
        for key, real in case.samples.hidden(batch, side).items():
            held = batch[key]
            if held.is_floating_point():
                new[key] = torch.where(real, held, torch.randn(held.shape, generator=generator) * 3)
            else:
                ids = held[real].unique()
                reads[key] = torch.where(real, held, ids[torch.randint(len(ids), held.shape, generator=generator)])
        tokens = case.samples.real(side) if reads else None
        with _garbage_from_the_table(case.model, tokens, seed) as given:
            after = _loss_and_gradients(case, new)
        yield after if given or not reads else _loss_and_gradients(case, new | reads)


@contextlib.contextmanager
def _garbage_from_the_table(model: nn.Module, real: Tensor | None, seed: int) -> Iterator[list[int]]:
    """Inside, the table of the tokens gives garbage for padded positions; a list that is empty if nothing asked it."""
    given: list[int] = []

    def garbage(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        if real is None or output.shape[:2] != real.shape:
            return output
        given.append(1)
        noise = torch.randn(output.shape, generator=torch.Generator().manual_seed(seed)).to(output.dtype)
        return torch.where(real[..., None], output, noise * output.detach().abs().max())

    try:
        table = model.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        table = None
    handle = table.register_forward_hook(garbage) if isinstance(table, nn.Embedding) else None
    try:
        yield given
    finally:
        if handle is not None:
            handle.remove()


def without_dropout(model: nn.Module) -> None:
    """Set every probability of dropout to zero, in modules and configurations: shapes change, and random numbers with them."""
    held = {id(owner): owner for module in model.modules() for owner in (module, getattr(module, "config", None)) if owner is not None}
    for owner in held.values():
        for name, value in list(vars(owner).items()):
            if isinstance(value, float) and ("drop" in name or (name == "p" and "Drop" in type(owner).__name__)):
                setattr(owner, name, 0.0)


def _alone(case: Case, batch: dict[str, Tensor], side: str) -> float:
    """How far outputs of the samples in the batch are from those of each sample without padding."""
    worst = 0.0
    with torch.no_grad():
        together = {key: out for key, out in case.outputs(case.model, batch).items() if key != "loss"}
        for row in range(len(case.samples.rows)):
            alone = case.outputs(case.model, _double(case.samples.alone(row).batch()))
            for key, output in together.items():
                single = alone[key]
                if output.ndim == single.ndim and single.shape[0] == 1 and output.shape[0] == len(case.samples.rows):
                    part = output[row]
                    if part.ndim and part.shape != single[0].shape:
                        size = single.shape[1]
                        part = part[-size:] if side == "left" else part[:size]
                    worst = max(worst, _relative(part, single[0]))
    return worst


def _apart(before: dict[str, Tensor], after: dict[str, Tensor]) -> float:
    """The largest relative difference; a gradient counts beside the largest one, if it is much smaller."""
    largest = max(float(gradient.abs().max()) for name, gradient in before.items() if name != "loss" and gradient.numel())
    worst = _relative(before["loss"], after["loss"])
    for name in before.keys() - {"loss"}:
        other = after.get(name, torch.zeros_like(before[name]))
        worst = max(worst, _relative(before[name], other, 0.1 * largest))
    return worst


def _relative(first: Tensor, second: Tensor, least: float = 0.0) -> float:
    if first.shape != second.shape:
        return float("inf")
    if not first.numel() or torch.equal(first.nan_to_num(), second.nan_to_num()):
        return 0.0
    size = max(float(first.abs().max()), least)
    return float((first - second).abs().max()) / size if size else float("inf")
