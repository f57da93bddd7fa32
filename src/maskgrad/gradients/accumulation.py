"""Gradients of several micro-batches, on several ranks, divided once by the number of all their losses."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from maskgrad.documents.aggregation import OLD_NAMES, How, checked_how
from maskgrad.gradients.accumulated_losses import (
    Losses,
    LossSum,
    Summed,
    check_names,
    parts_of,
    together,
)
from maskgrad.gradients.accumulated_sums import (
    GradientSums,
    Parameters,
    check_no_gradients,
    named_parameters,
)
from maskgrad.gradients.accumulation_ranks import Alone, found_ranks, there_are_groups
from maskgrad.gradients.accumulation_watch import SILENCED, AccumulationWatch
from maskgrad.gradients.attached import keep_attached

__all__ = ["GradientAccumulator"]

_CHANGED = (
    "the gradients were changed between backward() and finish(), by zero_grad, clipping, unscale_ or a plain "
    "backward(); call accumulator.backward(losses) for each micro-batch and the others after finish(), or "
    "accumulator.reset() now, to start again"
)


class GradientAccumulator:
    r"""Accumulates gradients over micro-batches and ranks, equal to those of one pass over the whole batch.

    .. math:: g = \frac{\sum_r \sum_k \sum_i m^{(rk)}_i \nabla \ell^{(rk)}_i}{\sum_r \sum_k \sum_i m^{(rk)}_i}

    over ranks r, micro-batches k and their specified losses. The mean of the micro-batches' means (dividing by
    their number) gives a single token in a short micro-batch the weight of a thousand in a long one. Here gradients
    of sums are accumulated, and :meth:`finish` divides them once. Later micro-batches need not be known in advance.

    Args:
        model_or_parameters: the trained module as it is called, wrapped or not: DistributedDataParallel, the result of
            :func:`maskgrad.distributed.prepare`, ``fully_shard``. While the accumulator exists, wrappers do
            not exchange gradients; ``finish`` does, once. Without a wrapper, parameters suffice.
        group: a process group of any backend; None: that of the wrapper, else the default one, else this process
            only.
        scaler: a ``GradScaler``, of PyTorch or :mod:`maskgrad.amp`. Losses are given unscaled; ``.grad`` has its scale
            until ``scaler.unscale_`` or ``scaler.step``.
        mean: ``"token-mean"``, over all losses, or another name of :func:`maskgrad.aggregate`: over sequences, which
            are samples (dimension 0) or ``documents=``. Each is whole, in one micro-batch.
        constant: as for :func:`maskgrad.aggregate`.

    Gradient:
        After :meth:`finish`, in ``.grad`` or attached, the mean's: dense, sparse (merged) or masked, as backward gave
        it; equal on all ranks; exactly zero if nothing was specified anywhere. Gradients of half-precision parameters
        are accumulated in float32 and rounded once. Tensors that are not among the parameters keep the gradient of the
        sum.

    Raises:
        TypeError, ValueError: bad arguments, in ``backward``; with several ranks in ``finish``, on all of them.
        ValueError: a wrapper exchanges the gradients of the parameters, and was not passed to the accumulator.
        RuntimeError: a ``.grad`` from before; ``finish`` without ``backward``; ``optimizer.step`` or a plain
            ``backward`` before ``finish``; a rank has ended, or exceeded the group's timeout. Call :meth:`reset` then
            to start again.
        TypeError: it is pickled or copied; use :meth:`state_dict`.

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

    _sums: GradientSums | None
    _losses: dict[str | None, LossSum]
    _error: Exception | None
    _scale: float | None

    def __init__(
        self,
        model_or_parameters: Parameters,
        *,
        group: Any = None,
        scaler: Any = None,
        mean: How = "token-mean",
        constant: float | None = None,
    ) -> None:
        self._mean = checked_how(mean, constant, "mean", "mg.GradientAccumulator(model, {})")
        self._constant, self._described = (
            constant,
            self._mean + (f", constant={constant}" if constant else ""),
        )
        module = model_or_parameters if isinstance(model_or_parameters, nn.Module) else None
        self._named = named_parameters(model_or_parameters)
        self._scaler, params = scaler, list(self._named.values())
        self._ranks = found_ranks(module, params, group)
        self._watch = AccumulationWatch(params, self._ranks.silenced and self._ranks.size > 1)
        self._start()

    def backward(
        self,
        losses: Losses,
        count: Any = None,
        *,
        mask: Any = None,
        documents: Any = None,
        weights: Mapping[str, float] | None = None,
        retain_graph: bool = False,
    ) -> None:
        """Backward from the losses of a micro-batch.

        Args:
            losses: with ``reduction="none"``: a MaskedTensor of any layout, whose specified entries count, or a plain
                tensor with ``mask`` or ``count``. Or their mean, a 0-dim tensor, with ``count``. Or a dict of such
                losses, each with its own denominator and backward pass. A micro-batch, on any rank, may omit a
                name that others have, or set it to None.
            count: the denominator: the number of entries that the losses average (or sum), or the sum of their
                weights; a finite number, or a dict like ``losses``. 0: no backward pass, even if the loss is NaN.
                Python numbers need no device synchronization.
            mask: Boolean (or integers 0 and 1), True = counts, with as many dimensions as plain losses, size 1 where it
                repeats; or a dict.
            documents: for packed rows, the document of each token, as for :func:`maskgrad.aggregate`; or a dict.
            weights: for losses in a dict: factors of their means in the total loss, the same in all micro-batches,
                also in those that lack a loss; 1 if not given.
            retain_graph: keep the graph for another pass.

        Raises:
            TypeError, ValueError: the denominator is unknown, negative, not finite or not a number; another weight of a
                name than before; losses with and without names. With several ranks :meth:`finish` raises it, on all of
                them.
            RuntimeError: a parameter has a gradient from before, or the sums were changed.
        """
        if self._error is not None:
            return
        try:
            parts = parts_of(losses, count, mask, weights, documents, how=self._mean, constant=self._constant)
            self._check_unchanged()
            check_names(parts, self._losses)
            if self._ranks.sharded and len({*self._losses, *(part.name for part in parts)}) > 1:
                raise ValueError(
                    "several losses need separate gradient sums, but fully_shard keeps only one; pass their weighted "
                    "sum, or use an accumulator for each"
                )
            sums = self._opened()
        except Exception as error:
            # With several ranks finish raises it, on all of them, as others may be waiting there.
            if self._ranks.size == 1 or self._ranks.sharded:
                raise
            self._error = error
            return
        passes = []
        for name, weight, summed in parts:
            self._losses.setdefault(name, LossSum(weight, 0 if self._ranks.sharded else None))
            if summed is not None and (self._ranks.sharded or summed.number):
                passes.append((name, summed))
        try:
            for place, (name, summed) in enumerate(passes):
                self._propagate(sums, name, summed, retain_graph or place < len(passes) - 1)
        except BaseException as error:
            self._failed("a backward pass", error)
            raise
        finally:
            self._watch.touched.clear()

    def finish(self) -> Any:
        """Divide the gradients by the number of losses on all ranks, and return the mean losses.

        Returns:
            0-dim tensor without a graph: the mean over all losses; a dict of means if losses came in dicts, without
            their weights. NaN for losses without any specified entry. The same on all ranks.

        Raises:
            RuntimeError: ``backward`` was called on no rank; the sums were changed; a rank has ended.
            TypeError, ValueError: an earlier call had wrong arguments, or the trained parameters, weights or scales
                differ between ranks.
        """
        error, own = self._error, None
        try:
            if error is None:
                self._check_unchanged()
                self._check_scale()
                own = self._tally()
        except (RuntimeError, ValueError) as found:
            error = found
        of_all = together(self._ranks.collected(own, error, self._trained()))
        sums = self._opened()  # created here on ranks without data
        divisors = {}
        for name, loss in self._losses.items():
            weight, _, count = of_all[name]
            divisors[name] = loss.scaled(count) / weight if count and weight else math.inf
        try:
            self._ranks.reduce_shards()
            with torch.no_grad():
                sums.write(self._ranks.exchanged(sums.params, sums.divided(divisors)))
        except BaseException as failure:
            self._failed("finish()", failure)
            raise
        means = {
            name: torch.full((), total / count if count else math.nan, dtype=self._dtype, device=self._device)
            for name, (_, total, count) in sorted(of_all.items(), key=str)
        }
        self._start()
        return means.get(None, means)

    def reset(self) -> None:
        """Drop everything accumulated since the last :meth:`finish`; gradients are set to None."""
        if self._sums is not None:
            self._sums.close()
        for param in self._named.values():
            keep_attached(param, None)
            param.grad = None
        self._start()

    def state_dict(self) -> dict[str, Any]:
        """Copy the sums, totals and counts of an unfinished step, for :meth:`load_state_dict` in another process.

        Returns:
            Tensors, masked ones for masked gradients, numbers and strings, which ``torch.load(weights_only=True)``
            loads. With several ranks, of this rank: each saves its own file.

        Raises:
            RuntimeError: a backward pass has failed, or gradients were changed; sums are inside ``fully_shard`` (save
                after :meth:`finish`).
        """
        if self._error is not None:
            raise self._error
        self._check_unchanged()
        if self._ranks.sharded and self._sums is not None:
            raise RuntimeError(
                "fully_shard keeps the sums of gradients until finish(); call state_dict() after finish()"
            )
        return {
            **self._description(),
            "scale": self._scale,
            "is_double": self._dtype is torch.float64,
            "losses": {name: loss.read() for name, loss in self._losses.items()},
            "gradients": {} if self._sums is None else self._sums.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue an unfinished step saved by :meth:`state_dict`; the result is the same, bit for bit.

        Args:
            state: of the same rank, with the same number of ranks and the same parameters. Data loader, random numbers,
                model, optimizer and scaler have their own states; load them first.

        Raises:
            ValueError: parameters, ranks, ``mean`` or the scaler's scale differ from those when it was saved.
            RuntimeError: a step has begun, or a parameter has a gradient.
        """
        if self._sums is not None:
            raise RuntimeError(
                "load_state_dict() in the middle of a step; call reset() first, to drop the step"
            )
        state = {**state, "mean": [OLD_NAMES.get(mean, mean) for mean in state["mean"]]}
        for key, here in self._description().items():
            for saved, own in itertools.zip_longest(state[key], here, fillvalue="nothing more"):
                if saved != own:
                    raise ValueError(
                        f"the state was saved with other {key}: {saved}, and this accumulator has {own}; load it into "
                        "an accumulator made with the same arguments"
                    )
        if not state["losses"]:
            return
        sums = self._opened()
        if state["scale"] != self._scale:
            found = self._scale
            self.reset()
            raise ValueError(
                f"the state was saved with a loss scale of {state['scale']}, and the scaler has {found}; call "
                "scaler.load_state_dict(...) first"
            )
        self._dtype = torch.float64 if state["is_double"] else torch.float32
        self._losses = {name: LossSum(**saved) for name, saved in state["losses"].items()}
        sums.load(state["gradients"])

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a GradientAccumulator cannot be pickled or copied: it is tied to the parameters of this process; save "
            "accumulator.state_dict(), and load it with load_state_dict() into a new accumulator"
        )

    def __del__(self) -> None:
        if sys.is_finalizing():  # PyTorch aborts the process if a gradient is replaced then
            return
        for part in ("_sums", "_watch", "_ranks"):
            found = getattr(self, part, None)
            if found is not None:
                found.close()

    def _start(self) -> None:
        self._sums = self._error = self._scale = None
        self._losses = {}
        self._device, self._dtype = next(iter(self._named.values())).device, torch.float32
        self._watch.accumulating = False
        self._watch.touched.clear()

    def _description(self) -> dict[str, Any]:
        named = [f"{n!r} of shape {tuple(p.shape)} and {p.dtype}" for n, p in self._trained().items()]
        ranks = [f"rank {self._ranks.rank} of {self._ranks.size}"]
        return {"parameters": named, "ranks": ranks, "mean": [self._described]}

    def _trained(self) -> dict[str, Tensor]:
        return {name: param for name, param in self._named.items() if param.requires_grad}

    def _opened(self) -> GradientSums:
        """The sums of this step; begins a step if there are none."""
        if self._sums is None:
            if type(self._ranks) is Alone and there_are_groups():
                raise RuntimeError(
                    "a process group was initialised after the accumulator was made; make it afterwards"
                )
            self._sums = GradientSums(self._trained())
            if self._scaler is not None:
                self._scale = float(self._scaler.scale(torch.ones((), device=self._device)))
            self._watch.accumulating = True
        return self._sums

    def _propagate(self, sums: GradientSums, name: str | None, part: Summed, retain_graph: bool) -> None:
        loss, seen = part.total, self._losses[name]
        if not part.number and not bool(loss.isfinite()):
            self._error = ValueError(
                "a micro-batch with count=0 has losses that are not finite, and with fully_shard every rank must go "
                "through each backward pass; give unreduced losses with a mask"
            )
        if seen.exponent is None:
            seen.exponent = math.frexp(part.number)[1]
        factor = seen.scaled(part.times) * (1.0 if self._scale is None else self._scale)
        seed = torch.full((), factor, dtype=loss.dtype, device=loss.device)
        sums.backward(name, [loss], [seed], retain_graph)
        seen.pending.append(part._replace(total=loss.detach()))
        self._device = loss.device
        if loss.dtype is torch.float64:
            self._dtype = torch.float64

    def _tally(self) -> dict[str, Any] | None:
        if self._sums is None:
            if self._ranks.size > 1:
                check_no_gradients(self._named)  # others may have data
            return None
        losses = [
            [name, *map(loss.read().get, ("weight", "total", "count"))] for name, loss in self._losses.items()
        ]
        return {"mean": self._described, "scale": self._scale, "losses": losses}

    def _check_unchanged(self) -> None:
        if self._sums is not None and self._sums.changed():
            raise RuntimeError(_CHANGED)
        if self._watch.touched:
            raise RuntimeError(SILENCED)

    def _check_scale(self) -> None:
        if self._scale is None:
            return
        now = float(self._scaler.get_scale()) if self._scaler.is_enabled() else 1.0
        if now != self._scale:
            raise RuntimeError(
                f"the scaler's scale went from {self._scale} to {now} between backward() and finish(); call "
                "scaler.update() after the step"
            )

    def _failed(self, what: str, error: BaseException) -> None:
        self._error = RuntimeError(
            f"{what} of the accumulator failed midway ({type(error).__name__}: {error}), and its sums are "
            "incomplete; call accumulator.reset()"
        )
