"""Gradients of several micro-batches, on several ranks, divided once by the number of all their losses."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from maskgrad.gradients.accumulated_losses import ONE, Losses, LossSum, Mean, Part, Plan, parts_of
from maskgrad.gradients.accumulated_sums import (
    GradientSums,
    Parameters,
    check_no_gradients,
    divided,
    parameter_list,
)
from maskgrad.gradients.accumulation_ranks import Alone, Tally, found_ranks, there_are_groups
from maskgrad.gradients.accumulation_watch import CHANGED, AccumulationWatch, scale_moved
from maskgrad.gradients.attached import keep_attached
from maskgrad.gradients.gradient import widened_dtype
from maskgrad.semantics.entries import HALVES

__all__ = ["GradientAccumulator"]

_SEEDS = 256  # that are kept from step to step


class GradientAccumulator:
    r"""Accumulates gradients over micro-batches and ranks, as one pass over the whole batch would give them.

    .. math:: g = \frac{\sum_r \sum_k \sum_i m^{(rk)}_i \nabla \ell^{(rk)}_i}{\sum_r \sum_k \sum_i m^{(rk)}_i}

    over ranks r, micro-batches k and their specified losses. The mean of the micro-batches' means, which dividing by
    their number gives, weighs a single token in a short micro-batch as much as a thousand in a long one. Here gradients
    of sums are accumulated, and :meth:`finish` divides them once. Later micro-batches need not be known in advance.

    Args:
        model_or_parameters: what is trained; the module that is called, wrapped or not: DistributedDataParallel, what
            :func:`maskgrad.distributed.prepare` returned, ``fully_shard``. While the accumulator exists, wrappers do
            not exchange gradients; ``finish`` does, once. Without a wrapper, parameters are enough.
        group: a process group of any backend; None: that of the wrapper, or the default one, or this process alone if
            there is none.
        scaler: a ``GradScaler``, of PyTorch or :mod:`maskgrad.amp`. Losses are given unscaled; ``.grad`` has its scale
            until ``scaler.unscale_`` or ``scaler.step``.
        mean: ``"entry"``, over all losses; ``"sequence"``, over samples (dimension 0), of each sample's mean.

    Gradient:
        After :meth:`finish`, in ``.grad`` or attached, the mean's: dense, sparse (merged) or masked, as backward gave
        it; equal on all ranks; exactly zero if nothing was specified anywhere. Halves are accumulated in float32 and
        rounded once. Tensors that are not among the parameters keep the gradient of the sum.

    Raises:
        TypeError, ValueError: bad arguments, in ``backward``; with several ranks in ``finish``, on all of them.
        ValueError: a wrapper exchanges the gradients of the parameters, and the accumulator does not know it.
        RuntimeError: a ``.grad`` from before; ``finish`` without ``backward``; ``optimizer.step`` or a plain
            ``backward`` before ``finish``; a rank has ended, or exceeded the group's timeout. Nothing has been divided
            then; call :meth:`reset` to start again.

    Dense equivalent: ``losses.sum().backward()`` for each micro-batch, an all-reduce of gradients and counts, and
    ``p.grad /= count``.

    Example:
        >>> w = torch.nn.Parameter(torch.ones(()))
        >>> accumulator = mg.GradientAccumulator([w])
        >>> for losses in ([1., 3.], [8.]):
        ...     accumulator.backward(mg.masked(w * torch.tensor(losses)))
        >>> accumulator.finish(), w.grad
        (tensor(4.), tensor(4.))

    Source: the mean of means is transformers issue 34242; Ott et al., "Scaling neural machine translation", WMT 2018,
    accumulate sums and divide by the number of tokens.
    """

    def __init__(
        self,
        model_or_parameters: Parameters,
        *,
        group: Any = None,
        scaler: Any = None,
        mean: Mean = "entry",
    ) -> None:
        if mean not in ("entry", "sequence"):
            raise ValueError(f"mean must be 'entry' or 'sequence', found {mean!r}")
        module = model_or_parameters if isinstance(model_or_parameters, nn.Module) else None
        self._params = parameter_list(model_or_parameters)
        self._mean, self._scaler = mean, scaler
        self._ranks = found_ranks(module, self._params, group)
        self._watch = AccumulationWatch(self._params, self._ranks.silenced and self._ranks.size > 1)
        self._open: dict[str, GradientSums] = {}
        self._sums: GradientSums | None = None
        self._reusable: GradientSums | None = (
            None  # of a step with one mean; the next step is probably like it
        )
        self._trained: list[bool] = []
        self._plan: Plan | None = None
        self._used = False
        self._error: Exception | None = None
        self._scale: Tensor | None = None
        self._loss_sums: list[LossSum] = []
        self._seeds: dict[float, Tensor] = {}
        self._device, self._dtype = self._params[0].device, torch.float32
        self._usual_dtype: torch.dtype | None = None  # of a mean on the CPU: the next one is probably like it
        self._before: tuple[Plan | None, tuple[int, ...]] = None, ()
        weakref.finalize(self, _release, self._ranks, self._watch.close, self._open)

    def backward(
        self,
        losses: Losses,
        count: Any = None,
        *,
        mask: Any = None,
        weights: Mapping[str, float] | None = None,
        retain_graph: bool = False,
    ) -> None:
        """Backward from the losses of a micro-batch.

        Args:
            losses: with ``reduction="none"``: a MaskedTensor of any layout, whose specified entries count, or a plain
                tensor with ``mask`` or ``count``. Or their mean, a 0-dim tensor, with ``count``. Or a dict of such
                losses, each with a denominator and a backward pass of its own, with the same names in all
                micro-batches; None for a loss that this micro-batch lacks.
            count: how many entries the losses are the mean (or the sum) of; a number, or a dict like ``losses``. 0: no
                backward pass, even if the loss is NaN. Python numbers need no device synchronization.
            mask: Boolean, True = counts, broadcastable to plain losses; or a dict.
            weights: for losses in a dict: what their means are multiplied by in the sum that is differentiated; 1 if
                not given. The same in all micro-batches.
            retain_graph: keep the graph for another pass.

        Raises:
            TypeError, ValueError: the number of losses is unknown, negative, NaN or no whole number; other names or
                weights than in the micro-batch before. With several ranks :meth:`finish` raises it, on all of them.
            RuntimeError: a parameter has a gradient from before, or the sums were changed.
        """
        if self._error is not None:
            return
        usual = (
            type(losses) is Tensor and losses.dtype is self._usual_dtype and mask is None and weights is None
        )
        if usual and self._backward_mean(losses, count, retain_graph):  # type: ignore[arg-type]
            return
        watch = self._watch
        try:
            plan, parts = parts_of(losses, count, mask, weights, self._mean)
            disturbance = self._disturbance()
            if disturbance is not None:
                raise disturbance
            if plan is not self._plan:
                self._begin(plan)
        except Exception as error:
            # With several ranks it is raised in finish, on all of them: others may be waiting there.
            if self._ranks.size == 1 or self._ranks.in_step:
                raise
            self._error = error
            self._watch.accumulating = True
            return
        watch.accumulating = True
        try:
            in_step = self._ranks.in_step
            passes = [
                n for n, p in enumerate(parts) if p.loss is not None and (in_step or not p.nothing_counts)
            ]
            for place in passes:
                self._propagate(place, parts[place], retain_graph or place != passes[-1])
        except BaseException as error:
            self._failed(error)
            raise
        finally:
            watch.touched.clear()

    def _backward_mean(self, loss: Tensor, count: Any, retain_graph: bool) -> bool:
        """Propagate a mean, if it is like that of the micro-batch before, and nothing has happened in between."""
        touched, sums = self._watch.touched, self._sums
        if type(count) is not int or count <= 0 or loss.ndim or not (loss.is_cpu and loss.requires_grad):
            return False
        if sums is None:  # a step begins, perhaps as the last one did
            sums = self._reusable
            trained = [param.requires_grad for param in self._params]
            if sums is None or trained != self._trained or not sums.can_be_reused():
                return False
            self._sums, self._plan = sums, ONE
            self._loss_sums = [LossSum(-1, self._before[1][0])]
            self._dtype = widened_dtype(loss.dtype)
            self._watch.accumulating = True
        elif touched or self._plan is not ONE or sums.changed():
            return False
        seen = self._loss_sums[0]
        try:
            sums.backward(0, loss, self._seed(seen, count, loss), retain_graph)
            seen.values.append((loss.item(), count))
            seen.counts.append(count)
        except BaseException as error:
            self._failed(error)
            raise
        finally:
            touched.clear()
        return True

    def _failed(self, error: BaseException) -> None:
        self._error = RuntimeError(
            f"a backward pass of the accumulator failed half-way ({type(error).__name__}: {error}), and its sums are "
            "incomplete: call accumulator.reset()"
        )

    def finish(self) -> Any:
        """Divide the gradients by the number of losses on all ranks, and return the mean losses.

        Returns:
            0-dim tensor without a graph: the mean over everything; a dict of them if losses came in dicts, without
            their weights. NaN for losses of which nothing was specified anywhere. The same on all ranks.

        Raises:
            RuntimeError: ``backward`` was called on no rank; the sums were changed; a rank has ended.
            TypeError, ValueError: an earlier call was wrong, or names, weights or scales differ between ranks.
        """
        error = self._error or self._disturbance()
        if self._sums is None and error is None and self._ranks.size > 1:
            try:
                check_no_gradients(self._params)  # others may have data
            except (RuntimeError, ValueError) as leftover:
                error = leftover
        if error is None and self._scaler is not None and self._sums is not None:
            error = scale_moved(self._scale, self._scaler)
        own = None
        if error is None:
            scale = 1.0 if self._scale is None else float(self._scale)
            totals, counts = (
                tuple(x.total() for x in self._loss_sums),
                tuple(x.count() for x in self._loss_sums),
            )
            exponents = tuple(x.exponent for x in self._loss_sums)
            own = Tally(self._plan, totals, counts, exponents, scale, self._mean)
        together = self._ranks.combined(own, error)
        if together.plan is None:
            raise RuntimeError(
                "finish() without a backward() since the last one, on any rank: there is nothing to divide"
            )
        if self._sums is None:  # this rank had no data
            self._open_sums(together.plan)
        sums, dtype = self._sums, self._usual_dtype
        assert sums is not None
        reusable = self._divide(sums, together)
        if isinstance(self._ranks, Alone) and self._scaler is None:
            self._before = together.plan, together.counts
        means = [
            torch.full((), total / count if count else math.nan, dtype=self._dtype, device=self._device)
            for total, count in zip(together.totals, together.counts, strict=True)
        ]
        self._start()
        if reusable and dtype is not None and self._scaler is None:
            self._reusable, self._usual_dtype = sums, dtype
        names = together.plan.names
        return means[0] if names is None else dict(zip(names, means, strict=True))

    def reset(self) -> None:
        """Drop what was accumulated since the last :meth:`finish`; gradients are set to None."""
        if self._sums is not None:
            self._sums.close()
        for param in self._params:
            keep_attached(param, None)
            param.grad = None
        self._start()

    def _disturbance(self) -> Exception | None:
        """An error if gradients were changed from outside."""
        error = self._watch.error()
        if error is None and self._sums is not None and self._sums.changed():
            return RuntimeError(CHANGED)
        return error

    def _start(self) -> None:
        self._sums = self._reusable = self._plan = self._error = self._scale = self._usual_dtype = None
        if self._scaler is not None or len(self._seeds) > _SEEDS:
            self._seeds = {}
        self._loss_sums = []
        self._dtype = torch.float32
        self._watch.accumulating = False
        self._watch.touched.clear()
        self._open.clear()

    def _begin(self, plan: Plan) -> None:
        if self._plan is None:
            if not self._used and isinstance(self._ranks, Alone) and there_are_groups():
                raise RuntimeError(
                    "a process group was initialised after the accumulator was made; make it afterwards"
                )
            if len(plan.weights) > 1 and self._ranks.in_step:
                raise ValueError(
                    "several losses need a sum of gradients each, and fully_shard keeps one; pass their weighted sum, "
                    "or use an accumulator for each"
                )
            self._open_sums(plan)
            self._used = True
        elif plan != self._plan:
            raise ValueError(
                f"this micro-batch has {plan.described()}, the ones before had {self._plan.described()}; pass the same "
                "names and weights each time, and None for a loss that a micro-batch lacks"
            )

    def _open_sums(self, plan: Plan) -> None:
        self._trained = [param.requires_grad for param in self._params]
        params = [param for param in self._params if param.requires_grad]
        self._sums = self._open["sums"] = GradientSums(params, len(plan.weights))
        self._plan, (before, expected) = plan, self._before
        if plan != before or not self._sums.wide:
            expected = (0,) * len(plan.weights)
        self._loss_sums = [LossSum(0 if self._ranks.in_step else -1, number) for number in expected]
        if self._scaler is not None:
            self._scale = self._scaler.scale(torch.ones((), device=self._params[0].device)).detach()

    def _propagate(self, place: int, part: Part, retain_graph: bool) -> None:
        loss, sums = part.loss, self._sums
        assert loss is not None
        assert sums is not None
        if part.nothing_counts and part.mask is None and not bool(loss.isfinite().all()):
            self._error = ValueError(
                "a micro-batch with count=0 has losses that are not finite, and with fully_shard every rank must go "
                "through each backward pass: give unreduced losses with a mask"
            )
        seen = self._loss_sums[place]
        if seen.exponent < 0 and part.size:
            seen.exponent = math.frexp(part.size)[1]
        if loss.dtype in HALVES:
            seen.expected = seen.expected if seen.counts else 0
        sums.backward(place, loss, part.direction(self._seed(seen, part.times, loss)), retain_graph)
        total = part.total()
        seen.values.append((total.item() if loss.device.type == "cpu" else total, part.times))
        seen.counts.append(part.number)
        self._device = loss.device
        if loss.dtype is torch.float64:
            self._dtype = torch.float64
        known = self._plan is ONE and not loss.ndim and loss.is_cpu and loss.dtype not in HALVES
        self._usual_dtype = loss.dtype if known else None

    def _seed(self, seen: LossSum, times: int, loss: Tensor) -> Tensor:
        """What is propagated from a loss that counts ``times``."""
        factor = seen.scaled(times)
        seed = self._seeds.get(factor)
        if seed is None or seed.dtype is not loss.dtype or seed.device != loss.device:
            seed = torch.full((), factor, dtype=loss.dtype, device=loss.device)
            if self._scale is not None:
                seed = (self._scale.to(loss.device) * factor).to(loss.dtype)
            self._seeds[factor] = seed
        return seed

    def _divide(self, sums: GradientSums, together: Tally) -> bool:
        """Divide what all have accumulated; whether the sums can serve the next step."""
        assert together.plan is not None
        for loss, (seen, common) in enumerate(zip(self._loss_sums, together.exponents, strict=True)):
            if 0 <= seen.exponent != common:
                sums.scale(loss, math.ldexp(1.0, seen.exponent - common))
            seen.exponent = common
        divisors = [
            seen.scaled(count) / weight if count and weight else math.inf
            for seen, count, weight in zip(
                self._loss_sums, together.counts, together.plan.weights, strict=True
            )
        ]
        self._ranks.reduce_shards()
        if self._ranks.size == 1 and sums.divide_in_place(divisors[0]):
            return isinstance(self._ranks, Alone)
        with torch.no_grad():
            if self._ranks.size == 1:
                found = sums.divided(divisors, in_place=True)
            elif len(divisors) == 1:  # sums travel, and are divided afterwards
                found = [sums.summed(0, place) for place in range(len(sums.params))]
                found = divided([self._ranks.exchanged(sums.params, found)], divisors, in_place=True)
            else:
                found = self._ranks.exchanged(sums.params, sums.divided(divisors, in_place=False))
            sums.write(found)
        return False


def _release(ranks: Any, stop_watching: Any, held: dict[str, GradientSums]) -> None:
    """Called when an accumulator is garbage-collected."""
    stop_watching()
    ranks.close()
    for sums in held.values():
        sums.close()
