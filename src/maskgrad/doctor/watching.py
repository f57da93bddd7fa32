"""Programs as they are: their first training steps are run on twins while they happen."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from maskgrad.doctor.batches import Key, Padding, fields, recognised, tensor_of
from maskgrad.doctor.case import Hidden, garble
from maskgrad.doctor.comparison import Difference, compare_tensors
from maskgrad.doctor.findings import Note
from maskgrad.doctor.forked import Continued, Snapshot, why_not_forked
from maskgrad.doctor.inferred import padded_ids
from maskgrad.doctor.inventory import Skipped
from maskgrad.doctor.leaks import findings_of
from maskgrad.doctor.outputs import examine_outputs
from maskgrad.doctor.ranks import is_sharded
from maskgrad.doctor.recorder import Recorder
from maskgrad.doctor.report import Experiment, Report, check_blame
from maskgrad.doctor.trial import reached, with_gradient
from maskgrad.doctor.variables import Variables, mask_in

__all__ = ["Watch"]

#: what is written over the padding of the first step, the second, and so on
_KINDS = ("numbers", "large", "nan")


class Watch:
    """The state of :func:`maskgrad.doctor.watch`.

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
        #: the batch of this step in which they are
        self._batch: Any = None
        #: the program as it was at the beginning of this step, and in the process of a run that run
        self._snapshot: Snapshot | None = None
        self._run: Continued | None = None
        self._lengths_are_known = False
        self._not_forked = ""
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
        return self.stops and (self.done if self._alone else self.passes >= self._patience)

    @property
    def _alone(self) -> bool:
        return not dist.is_initialized() or dist.get_world_size() == 1

    @property
    def _patience(self) -> int:
        return max(8, 4 * self._wanted)

    def batch(self, batch: Any, *, of_loader: bool = False) -> Any:
        """A batch came from a data loader, or to a model: from here on its padding has twins.

        What is returned the program goes on with: the batch itself, but for a run of an experiment in its own process.
        """
        if self._busy or self.done or self._recorder is not None or self._run is not None:
            return batch
        if of_loader:
            self._forget()
            batch = self._remembered(batch)
        if self._run is None:
            self._busy = True
            try:
                self._begin(batch)
            finally:
                self._busy = False
        return batch

    def _remembered(self, batch: Any) -> Any:
        """Keep the program as it is now, to go on from here with other batches."""
        tensors = [tensor_of(held) for held in fields(batch).values()]
        tensors += [parameter for root in self._roots for parameter in root.parameters()]
        # in the first step, which is examined for leaks first, modules are not known yet
        if self._lengths_are_known or not self.passes or self._wanted < 2:
            return batch
        self._not_forked = why_not_forked(tensors)
        if self._not_forked:
            return batch
        self._snapshot = Snapshot(batch, self._roots)
        self._run = self._snapshot.continued
        if self._run is None:
            return batch
        self._run.begin(self._roots)
        return self._run.batch

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
        self._paddings, self._batch, self._recorder = paddings, batch, recorder
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
        if self._run is not None:
            return
        try:
            call = inspect.signature(module.forward).bind(*args, **kwargs)
        except (TypeError, ValueError):
            call = None
        arguments = dict(enumerate(args)) | kwargs if call is None else dict(call.arguments)
        if self._recorder is None and module in self._roots and self._snapshot is None:
            variables = Variables(arguments)
            variables.put(self._remembered(variables.tensors))
            if self._run is not None:
                return
        if isinstance(module, nn.Embedding) and self._recorder is None and self._padding is None:
            self._read_by_table(module, args[0] if args else kwargs.get("input"))
        if not any(parameter.requires_grad for parameter in module.parameters()):
            return
        if self._recorder is None:
            self.batch(arguments)
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

    def _look_at_lengths(self, paddings: list[Padding]) -> bool:
        """The step is over: it is made again with other lengths, if it was right; whether anything was tried."""
        if self._not_forked and paddings and not self.report.findings:
            option = "CUDA_VISIBLE_DEVICES= in front of the command to run it on a CPU, or --quick to leave this out"
            self.report.skipped.append(Skipped("padding-length", self._not_forked, option))
            self._lengths_are_known = True
        if self._snapshot is None or self.report.findings:
            return False
        if self._progress is not None and paddings:
            self._progress("padding-length", self.steps - 1, self._wanted)
        known = list(_in_batch(paddings, self._batch, self._snapshot.batch))
        if paddings and not known:
            self.report.note(
                Note("padding-length", "skipped: what is padded is in no variable and no argument")
            )
        try:
            found = self._snapshot.examined(known)
        except BaseException:
            self.report.skipped.append(Skipped("padding-length", "the program was interrupted"))
            raise
        self.report.take(found)
        self._lengths_are_known |= bool(paddings or found.experiments)
        return bool(found.experiments)

    def _forget(self) -> None:
        """Let go of the program as it was."""
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None

    def _look_at_influence(self) -> None:
        """A call that packs documents, or any if the model is to be causal, is made a few times more."""
        if self._influence_is_known or not self._calls or not self._alone:
            return
        self._busy = True
        try:
            found = examine_outputs(*self._calls.pop(), self._documents, causal=self._causal)
        finally:
            self._busy = False
        if found is not None:
            self._influence_is_known = True
            self.report.take(found)

    def differentiated(self, losses: Any, pairs: list[tuple[Tensor, Tensor]] | None = None) -> None:
        """A backward pass is over: loss and gradients are compared with their twins.

        Args:
            losses: its roots.
            pairs: leaves with their gradients, if those are not in ``.grad``.
        """
        loss = losses if isinstance(losses, Tensor) else losses[0]
        if self._run is not None:
            with _disable_current_modes():  # the mode is not left: the program may have entered others since
                self._run.end(loss.detach(), self._gradients(loss, pairs))
        self.passes += 1
        recorder = self._recorder
        if recorder is None:
            # what the step itself pads has a length, too
            self.steps += self._look_at_lengths([])
            self._forget()
            self._look_at_influence()
            self.steps += self._influence_is_known  # no padding: this was all
            return
        self._leave()
        gradients, loss = self._gradients(loss, pairs), loss.detach()
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
        self._look_at_lengths(self._paddings)
        self._forget()
        self._look_at_influence()
        if self.done and self._progress is not None:
            self._progress("", self._wanted, self._wanted)

    def _gradients(self, loss: Tensor, pairs: list[tuple[Tensor, Tensor]] | None) -> dict[str, Any]:
        """The gradients by the names of their parameters."""
        params = [found for root in self._roots for found in root.named_parameters()]
        if pairs is None:
            return {name: leaf.grad for name, leaf in with_gradient(reached(loss), params).items()}
        names = {id(param): name for name, param in params}
        return {names.get(id(leaf), f"leaf {n}"): gradient for n, (leaf, gradient) in enumerate(pairs)}

    def _found(
        self, recorder: Recorder, loss: Tensor, gradients: dict[str, Any], kind: str, difference: Difference
    ) -> None:
        ends = [loss] if difference.loss is not None else [gradients[name] for name in difference.gradients]
        name = "nan-under-mask" if kind == "nan" else "padding-leak"
        self.report.add(findings_of(recorder.mixing(ends), Hidden(name, self._paddings), kind, difference))
        self.report.add_lines(recorder.lines)

    def _padding_holds_nan(self) -> bool:
        return any(padding.source in ("NaN", "the pattern of the MaskedTensor") for padding in self._paddings)

    def fail(self, error: BaseException | None) -> None:
        """The program is over: a run of its own process ends with it."""
        if self._run is not None:
            self._run.fail(error)

    def _leave(self) -> None:
        if self._recorder is not None:
            recorder, self._recorder = self._recorder, None
            recorder.__exit__(None, None, None)

    def close(self, how: str = "") -> None:
        """The program is over, perhaps in the middle of a step; ``how`` it ended if not at its last line."""
        self._leave()
        self._forget()
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


def _in_batch(paddings: list[Padding], held: Any, batch: Any) -> Iterator[Padding]:
    """The paddings of the tensors that ``batch`` has, too, by the keys that they have there."""
    inside, found = fields(held), fields(batch)
    for padding in paddings:
        tensor = tensor_of(inside[padding.key])
        for key, other in found.items():
            mask = mask_in(tensor, padding.mask, tensor_of(other))
            if mask is not None:
                mask_key = padding.mask_key if padding.mask_key in found else None
                yield replace(padding, key=key, mask=mask, mask_key=mask_key)
