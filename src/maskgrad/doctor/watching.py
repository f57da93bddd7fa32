"""Programs as they are: their first training steps are run on twins while they happen."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data.dataloader import _BaseDataLoaderIter

from maskgrad.doctor.batches import Key, Padding, fields, recognised
from maskgrad.doctor.case import Hidden, garble
from maskgrad.doctor.comparison import Difference, compare_tensors
from maskgrad.doctor.findings import Note
from maskgrad.doctor.inferred import padded_ids
from maskgrad.doctor.inventory import Skipped
from maskgrad.doctor.leaks import findings_of
from maskgrad.doctor.outputs import examine_outputs
from maskgrad.doctor.ranks import end_group_last, is_sharded
from maskgrad.doctor.recorder import Recorder
from maskgrad.doctor.report import Experiment, Report, check_blame
from maskgrad.doctor.trial import reached, with_gradient

__all__ = ["Watch", "watch"]

#: what is written over the padding of the first step, the second, and so on
_KINDS = ("numbers", "large", "nan")


class Watch:
    """The state of :func:`watch`.

    Attributes:
        report: findings of the completed steps.
        steps: the number of watched steps.
        unpadded: the number of batches without recognised padding.
    """

    def __init__(
        self,
        padding: Mapping[Any, Any] | None = None,
        steps: int = 2,
        *,
        documents: Any = None,
        causal: bool = False,
        stop: bool = False,
        blame: str = "program",
        progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self.report, self.steps, self.unpadded = Report(), 0, 0
        #: backward passes, of whatever
        self.passes = 0
        self._padding, self._wanted, self.stops = padding, steps, stop
        self._progress, self._documents, self._causal = progress, documents, causal
        check_blame(blame)
        self._blame = blame
        #: a call of the model in this step, which may tell who influences whom
        self._calls: list[tuple[nn.Module, inspect.BoundArguments]] = []
        self._influence_is_known = False
        self._recorder: Recorder | None = None
        self._paddings: list[Padding] = []
        self._changed = ""
        self._seen: dict[Key, None] = {}
        self._busy = False
        self._roots: list[nn.Module] = []

    @property
    def done(self) -> bool:
        """Whether as many steps were watched as were wanted, or something was found, or nothing more is to be expected.

        Where no padding was recognised, later batches may have some, but not where something may be padding already.
        """
        asks = any(part.option for part in self.report.inventory)
        expects = self._wanted if asks else self._patience
        return self.steps >= self._wanted or bool(self.report.findings) or self.passes >= expects

    @property
    def ends(self) -> bool:
        """Whether the program is to be stopped: ranks after the same backward pass, or one would wait for another."""
        alone = not dist.is_initialized() or dist.get_world_size() == 1
        return self.stops and (self.done if alone else self.passes >= self._patience)

    @property
    def _patience(self) -> int:
        return max(8, 4 * self._wanted)

    def batch(self, batch: Any) -> None:
        """A batch came from a data loader, or to a model: from here on its padding has twins."""
        if self._busy or self.done or self._recorder is not None:
            return
        self._busy = True
        try:
            self._begin(batch)
        finally:
            self._busy = False

    def _begin(self, batch: Any, inferred: list[Padding] | None = None) -> None:
        inside = fields(batch)
        self._seen |= dict.fromkeys(inside)
        given = self._padding
        if given is not None:
            given = {key: mask for key, mask in given.items() if key in inside}
        known = recognised(batch, given) if inferred is None else inferred
        paddings = [found for found in known if not bool(found.mask.all())]
        if not paddings:
            self.unpadded += bool(inside)
            return
        names = {id(module): name for root in self._roots for name, module in root.named_modules()}
        recorder = Recorder([padding.mask for padding in paddings], names)
        kind = _KINDS[self.steps % len(_KINDS)]
        self._changed = ", ".join(map(str, garble(recorder, batch, paddings, kind, self.steps)))
        if not self._changed:
            self.steps += 1  # nothing of this kind can be written there, such as NaN among ids
            return
        if self._progress is not None:
            self._progress(f"padding-leak: {kind} in {self._changed}", self.steps, self._wanted)
        self._paddings, self._recorder = paddings, recorder
        self.report.padding |= {str(padding.key): padding.source for padding in paddings}
        recorder.__enter__()

    def called(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A module is called; if no loader gave a batch, its arguments are the batch."""
        if self._busy or self.done:
            return
        if not self._roots and is_sharded(module):
            self._leave()
            self._wanted = 0
            self.report.note(
                Note(
                    "padding-leak",
                    f"the parameters of {type(module).__name__} are sharded, which the doctor cannot track: "
                    "nothing is watched; run the script without fully_shard, on one process or under "
                    "DistributedDataParallel",
                )
            )
            return
        if module not in self._roots and not any(module is m for root in self._roots for m in root.modules()):
            self._roots.append(module)
        if isinstance(module, nn.Embedding) and self._recorder is None and self._padding is None:
            self._read_by_table(module, args[0] if args else kwargs.get("input"))
        if not any(parameter.requires_grad for parameter in module.parameters()):
            return
        try:
            call = inspect.signature(module.forward).bind(*args, **kwargs)
        except (TypeError, ValueError):
            call = None
        if self._recorder is None:
            self.batch(dict(enumerate(args)) | kwargs if call is None else dict(call.arguments))
        if call is not None and module in self._roots and not self._calls:
            self._calls.append((module, call))

    def _read_by_table(self, table: nn.Embedding, ids: Any) -> None:
        """Ids that are padded with the table's own id of padding: nothing else in the program may say so."""
        if table.padding_idx is None or not isinstance(ids, Tensor):
            return
        real = padded_ids(ids, table.padding_idx)
        if real is not None:
            self._busy = True
            try:
                source = f"padding_idx={table.padding_idx} of the table that reads it"
                self._begin({"ids": ids}, [Padding("ids", real, source)])
            finally:
                self._busy = False

    def _look_at_influence(self) -> None:
        """A call that packs documents, or any if the model is to be causal, is made a few times more."""
        if (
            self._influence_is_known
            or not self._calls
            or (dist.is_initialized() and dist.get_world_size() > 1)
        ):
            return
        self._busy = True
        try:
            found = examine_outputs(*self._calls.pop(), self._documents, causal=self._causal)
        finally:
            self._busy = False
        if found is not None:
            self._influence_is_known = True
            self.report.take(found)

    def differentiated(self, losses: Any) -> None:
        """A backward pass is over: loss and gradients are compared with their twins."""
        self.passes += 1
        recorder = self._recorder
        if recorder is None:
            self._look_at_influence()
            self.steps += self._influence_is_known  # no padding: this was all
            return
        loss = losses if isinstance(losses, Tensor) else losses[0]
        self._leave()
        params = [(name, param) for root in self._roots for name, param in root.named_parameters()]
        gradients = {name: leaf.grad for name, leaf in with_gradient(reached(loss), params).items()}
        loss = loss.detach()
        difference = compare_tensors(recorder, loss, gradients)
        kind = _KINDS[self.steps % len(_KINDS)]
        self.steps += 1
        changed = f"{kind} in {self._changed}, step {self.steps}"
        result = difference.words() or "nothing else changed"
        self.report.experiments.append(Experiment("padding-leak", changed, result))
        for place, why in recorder.not_followed:
            self.report.note(Note.at(place, "padding-leak", why))
        if difference and (kind != "nan" or self._padding_holds_nan()):
            self._found(recorder, loss, gradients, kind, difference)
        self._look_at_influence()
        if self.done and self._progress is not None:
            self._progress("", self._wanted, self._wanted)

    def _found(
        self, recorder: Recorder, loss: Tensor, gradients: dict[str, Any], kind: str, difference: Difference
    ) -> None:
        ends = [loss] if difference.loss is not None else [gradients[name] for name in difference.gradients]
        name = "nan-under-mask" if kind == "nan" else "padding-leak"
        self.report.add(findings_of(recorder.mixing(ends), Hidden(name, self._paddings), kind, difference))
        self.report.add_lines(recorder.lines)

    def _padding_holds_nan(self) -> bool:
        return any(padding.source in ("NaN", "the pattern of the MaskedTensor") for padding in self._paddings)

    def _leave(self) -> None:
        if self._recorder is not None:
            recorder, self._recorder = self._recorder, None
            recorder.__exit__(None, None, None)

    def close(self, how: str = "") -> None:
        """The program is over, perhaps in the middle of a step; ``how`` it ended if not at its last line."""
        self._leave()
        if how:
            ended = f"the program {how}"
            if self.done:
                self.report.note(Note("end", f"{ended}, after the examined steps"))
            else:
                why = f"{ended} after {self.steps} of {self._wanted} steps"
                self.report.skipped.append(Skipped("padding-leak", why))
        self.report.blame(self._blame)
        if self._seen and not self.report.padding:
            self.report.note(
                Note(
                    "padding",
                    f"none was recognised in the batches of a DataLoader or the arguments of a module "
                    f"({', '.join(map(repr, self._seen))}), and nothing was examined. Pass padding={{key: mask}}, with "
                    "a mask (True = real) or its key, for a key of the batch or an argument of the model. "
                    "Targets and masks that only the loss uses are seen if they come from a DataLoader; otherwise "
                    "call mg.doctor.examine(step, batch)",
                )
            )
        if not self.report.experiments and not self.report.notes:
            self.report.note(
                Note(
                    "steps",
                    "no backward pass followed a batch with padding; watch the training, including loss.backward()",
                )
            )


class _Stopped(BaseException):
    """Enough was seen: ends the program if that was asked for."""


@contextlib.contextmanager
def watch(
    padding: Mapping[Any, Any] | None = None,
    *,
    documents: Any = None,
    causal: bool = False,
    steps: int = 2,
    stop: bool = False,
    blame: str = "program",
    progress: Callable[[str, int, int], None] | None = None,
) -> Iterator[Watch]:
    """Examine the first training steps inside the block while they run.

    For each batch of a ``DataLoader``, or each call of a model, a second computation with different values in the
    padding runs along with the first; after the backward pass, loss and gradients are compared. The results of the
    program do not change. Only experiments that keep all shapes are run; :func:`examine` runs more. With packed
    documents, or for a causal model, the model is called a few more times, from the same state, with changed documents
    or later positions; on one rank only.

    Args:
        padding: as in :func:`examine`; keys are those of the batches, or the names of the model's arguments.
        documents: as in :func:`examine`: the name of the model's argument with them; recognised by common names.
        causal: whether later positions must not reach earlier outputs of the model.
        steps: the number of steps to watch; the first with different values, the second with large ones.
        stop: leave the block after these steps.
        blame: as in :func:`examine`.
        progress: called with the experiment, the number of finished steps, and the number of steps to watch.

    Yields:
        an object whose ``report`` has the findings.

    Example:
        >>> import torch, maskgrad as mg
        >>> class Pooled(torch.nn.Linear):
        ...     def forward(self, x, mask):
        ...         return super().forward(x).mean(1)
        >>> model, x = Pooled(2, 1), torch.ones(2, 3, 2)
        >>> mask = torch.tensor([[True, True, True], [True, False, False]])
        >>> with mg.doctor.watch() as watched:
        ...     model(x, mask).sum().backward()
        >>> [finding.kind for finding in watched.report.findings]
        ['padding-leak']
    """
    watched = Watch(
        padding, steps, documents=documents, causal=causal, stop=stop, blame=blame, progress=progress
    )
    following, backward = _BaseDataLoaderIter.__next__, torch.autograd.backward

    @functools.wraps(following)
    def next_batch(loader: Any) -> Any:
        batch = following(loader)
        watched.batch(batch)
        return batch

    @functools.wraps(backward)
    def run_backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        backward(tensors, *args, **kwargs)
        watched.differentiated(tensors)
        if watched.ends:
            raise _Stopped

    def called(module: nn.Module, args: Any) -> None:
        end_group_last(module)
        # a hook for all modules is not given keywords: they are in the frame of the call
        watched.called(module, args, sys._getframe(1).f_locals.get("kwargs", {}))

    handle = nn.modules.module.register_module_forward_pre_hook(called)
    try:
        with (
            mock.patch.object(_BaseDataLoaderIter, "__next__", next_batch),
            mock.patch.object(torch.autograd, "backward", run_backward),
            torch.compiler.set_stance("force_eager"),
        ):
            yield watched
    except _Stopped:
        pass
    finally:
        watched.close()
        handle.remove()
