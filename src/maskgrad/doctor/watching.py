"""Programs as they are: their first training steps are run on twins while they happen."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from maskgrad.doctor.batches import Key, Presented, fields, tensor_of
from maskgrad.doctor.case import PerturbedInput, compare_twins, ends_of, randomize_padding
from maskgrad.doctor.examination import examine_outputs
from maskgrad.doctor.forked import Continued, Snapshot, Variables, bound, paddings_in, why_not_forked
from maskgrad.doctor.inferred import IdsRead
from maskgrad.doctor.leaks import findings_of
from maskgrad.doctor.modes import OUTSIDE, is_examining
from maskgrad.doctor.operations import key_of
from maskgrad.doctor.padding import Padding, padded_ids
from maskgrad.doctor.ranks import why_refused
from maskgrad.doctor.recorder import Recorder
from maskgrad.doctor.report import Part, Report, ignored_by_loss, recognised
from maskgrad.doctor.runner import Outcome, names_of, outcome_of
from maskgrad.doctor.validity import distinct
from maskgrad.doctor.variants import KINDS

__all__ = ["Watch"]

#: what is written over the padding of the first step, the second, and so on
_KINDS = ("numbers", "large")


class Watch:
    """The state of :func:`maskgrad.doctor.watch`: the ``report`` of the completed steps, and how many ``steps``."""

    def __init__(
        self, padding: Mapping[Any, Any] | None = None, steps: int = 2, *, documents: Any = None,
        causal: bool = False, stop: bool = False, progress: Callable[[str], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self.report, self.steps, self.passes = Report(), 0, 0  # backward passes of whatever
        self._padding, self._wanted, self.stops = padding, steps, stop
        self._progress, self._documents, self._causal = progress, documents, causal
        self._call: tuple[nn.Module, inspect.BoundArguments] | None = None
        self._influence_is_known = self._lengths_are_known = self._reads_ahead = self._has_evaluated = False
        self._loader: Any = None  # the iterator of the last batch
        #: the twins of this step; what is padded in it, the tensors with that padding, and what was changed there
        self._recorder: Recorder | None = None
        self._paddings: list[Padding] = []
        self._batch: dict[Key, Any] = {}
        self._changed: list[str] = []
        #: the program at the beginning of this step, and in the process of a run that run
        self._snapshot: Snapshot | None = None
        #: modules that were evaluated since the step began, with the memory they read; None if one was trained, too
        self._evaluated: dict[int, set[int | None]] | None = {}
        self._variables: list[Any] = []  # when the first module was called
        self._run: Continued | None = None
        self._not_forked = ""
        #: the tensors of the batches and arguments, and arrays and lists as tensors, which are not followed
        self._seen: dict[Key, Any] = {}
        self._arrays: dict[Key, Any] = {}
        self._busy = False
        self._roots: list[nn.Module] = []

    @property
    def done(self) -> bool:
        """Whether as many steps were watched as were wanted, or something was found, or no more is to be expected."""
        # where no padding was recognised, later batches may have some, but not where something may be padding already
        is_open = any(part.option for part in self.report.inventory)
        expects = self._wanted if is_open else max(8, 4 * self._wanted)
        return self.steps >= self._wanted or bool(self.report.findings) or self.passes >= expects

    @property
    def is_off(self) -> bool:
        """Return whether code of maskgrad runs, or a step that ``examine`` has called in the block."""
        return self._busy or (self._run is None and is_examining())

    def read_by_loss(self, losses: Any) -> None:
        """A backward pass begins: labels that the loss ignores are no forgotten padding."""
        if self._run is None:
            ignored_by_loss(self.report, losses if isinstance(losses, Tensor) else losses[0], self._seen)

    def batch(self, batch: Any, loader: Any = None) -> Any:
        """A batch came, and its padding has twins from here on; with what is returned the program goes on."""
        if self.done or self._run is not None:
            return batch
        if loader is not None:
            if self._evaluated:
                self._begin_anew()
            # two batches, and no module was called: the program reads ahead, and uses what modules are given
            self._reads_ahead |= loader is self._loader and self._evaluated == {}
            self._has_evaluated |= not torch.is_grad_enabled()
            self._loader = loader
        if self._recorder is not None or self._only_evaluates or (loader is not None and self._reads_ahead):
            return batch
        if loader is not None:
            self._forget()
            batch = self._remembered(batch)
        if self._run is None:
            self._begin(batch)
        return batch

    def _begin_anew(self) -> None:
        """What was evaluated so far was another step's: a validation before the training."""
        self._leave()
        self._forget()
        self._evaluated, self._variables, self._batch = {}, [], {}
        self._loader, self._has_evaluated = None, True

    @property
    def _only_evaluates(self) -> bool:
        """Whether no backward pass is to be expected, as after an evaluation that was seen before."""
        nothing = self._recorder is None and self._evaluated is not None
        return nothing and self._has_evaluated and not torch.is_grad_enabled()

    def _read(self, module: nn.Module, arguments: dict[Key, Any]) -> dict[Key, Any]:
        """A module is called: one that was evaluated before, now with new tensors, begins a step."""
        tensors = [tensor_of(held) for held in fields(arguments).values()]
        own, before, recorder = {key_of(tensor) for tensor in tensors}, self._evaluated or {}, self._recorder
        is_known = any(own & memory for memory in before.values())
        is_known |= recorder is not None and any(recorder.twin(tensor) is not None for tensor in tensors)
        of_loader = self._loader is not None and not self._reads_ahead
        if not (of_loader or is_known) and any(id(inner) in before for inner in module.modules()):
            if any(tensor is held for tensor in tensors for held in self._variables):
                # such as the next states of a trajectory: the step goes on
                arguments = {f"{key}'": held for key, held in arguments.items()}
            else:
                self._begin_anew()
        trains = self._evaluated is None or (module.training and torch.is_grad_enabled())
        self._evaluated = None if trains else {**(self._evaluated or {}), id(module): own}
        return arguments

    def _remembered(self, batch: Any) -> Any:
        """Keep the program as it is now, to go on from here with other batches."""
        # in the first step, which is examined for leaks first, modules are not known yet
        if self._lengths_are_known or not self.passes or self._wanted < 2:
            return batch
        tensors = [tensor_of(held) for held in fields(batch).values()]
        self._not_forked = why_not_forked([*tensors, *(p for root in self._roots for p in root.parameters())])
        if self._not_forked:
            return batch
        self._snapshot = Snapshot(batch, self._roots)
        self._run = self._snapshot.continued
        if self._run is None:
            return batch
        self._run.begin(self._roots)
        return self._run.batch

    def _begin(self, batch: Any) -> None:
        """Rewrite what is padded in a batch, if it is not rewritten yet."""
        with self._apart():
            if self._recorder is not None:  # of what is rewritten already, nothing is to be said
                new = {key: held for key, held in fields(batch).items() if self._is_new(tensor_of(held))}
                batch = {key: held for key, held in new.items() if key not in self._seen}
            inside = fields(batch)
            self._seen |= inside
            plain = fields(Presented(batch).batch)
            self._arrays |= {key: held for key, held in plain.items() if key not in inside}
            paddings = recognised(self.report, batch, self._padding, self._is_new)
            if paddings:
                self._rewrite(paddings, inside)

    def _is_new(self, tensor: Tensor) -> bool:
        # in a step in which nothing has other contents, nothing is new either
        return self._recorder is None or (bool(self._changed) and self._recorder.twin(tensor) is None)

    def _rewrite(self, paddings: list[Padding], inside: Mapping[Key, Any]) -> None:
        """Let paddings have other contents in the second computation, which begins with the first of them."""
        kind = _KINDS[self.steps % len(_KINDS)]
        masks = [padding.by_sample for padding in paddings]
        recorder = self._recorder or Recorder([], names_of(self._roots))
        recorder.validity.masks = distinct([*recorder.validity.masks, *masks])
        # ids have no size: others were in the step before
        known = {part.name for part in self.report.inventory if part.examined}
        ids = [padding.key for padding in paddings if not inside[padding.key].is_floating_point()]
        sized = kind != "large" or len(ids) < len(paddings) or not known.issuperset(map(str, ids))
        changed = [padding.key for padding in paddings]
        if sized:
            changed = randomize_padding(recorder, inside, paddings, kind, self.steps)
        if not changed:
            return
        if sized:
            self._changed += map(str, changed)
            words = f"padding-leak, {KINDS[kind]} in {', '.join(self._changed)}"
            self._progress(f"step {self.steps + 1} of {self._wanted}: {words}")
        self._paddings += paddings
        self._batch |= inside
        self._examined(paddings, changed)
        if self._recorder is None:
            self._recorder = recorder
            recorder.__enter__()

    def _examined(self, paddings: list[Padding], changed: Collection[Key]) -> None:
        """The padding of these parts is known, and has other contents from here on."""
        for padding in paddings:
            if padding.key in changed:
                self.report.mark([padding.key], "padding-leak", recognised=padding.source, option="")

    def called(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A module is called; if no loader gave a batch, its arguments are the batch."""
        if self.done:
            return
        if not self._roots and (why := why_refused(module)):
            self._leave()
            self._wanted = 0
            self.report.skip("padding-leak", f"{why}: nothing is watched")
            return
        if not any(module is inner for root in self._roots for inner in root.modules()):
            self._roots.append(module)
        if self._run is not None:
            return
        is_root = module in self._roots
        call, arguments = bound(module, args, kwargs)
        if is_root:
            arguments = self._read(module, arguments)
        if self._only_evaluates:
            return
        if self._recorder is None and is_root and self._snapshot is None:
            variables = Variables(arguments)
            self._variables = variables.named
            self._remembered(variables.tensors)
            if self._run is not None:
                self._run.put(variables)
                return
        if isinstance(module, nn.Embedding):
            self._read_by_table(module, args[0] if args else kwargs.get("input"))
        if not any(parameter.requires_grad for parameter in module.parameters()):
            return
        if self._recorder is None:
            self.batch(arguments)
        elif is_root and self._padding is None:
            self._begin(arguments)
        if call is not None and is_root and self._call is None:
            self._call = module, call

    def _read_by_table(self, table: nn.Embedding, ids: Any) -> None:
        """Ids that are padded with the table's own id of padding: nothing else in the program may say so."""
        if table.padding_idx is None or not isinstance(ids, Tensor):
            return
        name = names_of(self._roots).get(id(table), type(table).__name__)
        read = IdsRead(ids, table.padding_idx, "padding_idx", "table", name)
        with self._apart():
            seen = {key: held for key, held in self._seen.items() if isinstance(held, Tensor)}
            known = {key: held for key, held in seen.items() if read.of(held)}
            copied = {key: held for key, held in self._arrays.items() if read.of(held.to(ids.dtype))}
            for key, held in known.items():
                if str(key) not in map(str, self._padding or ()):
                    self._rewrite_read(read, key, held)
            # or a copy that was made before
            if not known or (self._recorder is not None and self._is_new(ids)):
                self._rewrite_read(read, f"ids of {read.module}", ids)
                self._examined([Padding(key, held, read.source) for key, held in copied.items()], copied)

    def _rewrite_read(self, read: IdsRead, key: Key, held: Tensor) -> None:
        real = padded_ids(held, read.padding_idx)
        if real is not None and self._is_new(held):
            counts = {len(seen) for seen in self._seen.values() if seen.ndim == 1}
            padding = Padding(key, real, read.source).turned(counts)
            first = padding.samples
            self.report.take_parts([Part.of(key, held, "ids", read.source, first, 1 - first)])
            self._rewrite([padding], {key: held})

    @contextlib.contextmanager
    def _apart(self) -> Iterator[None]:
        self._busy = True  # what is computed inside is not the program's
        try:
            with _disable_current_modes():
                yield
        finally:
            self._busy = False

    def _look_at_lengths(self, paddings: list[Padding]) -> bool:
        """The step is over: it is made again with other lengths, if it was right; whether anything was tried."""
        if self._not_forked and paddings and not self.report.findings:
            option = "CUDA_VISIBLE_DEVICES= in front of the command to run it on a CPU, or --quick to leave this out"
            self.report.skip("padding-length", self._not_forked, option)
            self._lengths_are_known = True
        if self._snapshot is None or self.report.findings:
            return False
        if paddings:
            self._progress(f"step {self.steps} of {self._wanted}: padding-length")
        known = list(paddings_in(paddings, self._batch, Presented(self._snapshot.batch).batch))
        if paddings and not known:
            why = "what is padded is in no variable and no argument"
            self.report.skip("padding-length", why, "mg.doctor.examine(step, batch) to the program")
        try:
            found = self._snapshot.examined(known)
        except BaseException:
            self.report.skip("padding-length", "the program was interrupted")
            raise
        self.report.take(found)
        made = bool(found.experiments)
        self.report.mark([padding.key for padding in paddings if made], "padding-length")
        self._lengths_are_known |= bool(paddings) or made
        return made

    def _forget(self) -> None:
        """Let go of the program as it was."""
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None

    def _look_at_influence(self) -> None:
        """A call that packs documents, or any if the model is to be causal, is made a few times more."""
        if self._influence_is_known or self._call is None:
            return
        with self._apart():
            found = examine_outputs(*self._call, self._documents, causal=self._causal)
        self._call = None
        if found is not None:
            self._influence_is_known = True
            self.report.take(found)

    def differentiated(self, losses: Any, pairs: list[tuple[Tensor, Tensor]] | None = None) -> None:
        """A backward pass from ``losses`` is over; ``pairs``: leaves with their gradients, if not in ``.grad``."""
        loss = losses if isinstance(losses, Tensor) else losses[0]
        if self._run is not None:
            with _disable_current_modes():  # the mode is not left: the program may have entered others since
                self._run.end(outcome_of(loss, self._roots, pairs))
        self.passes += 1
        self._evaluated, self._variables, self._loader = {}, [], None
        recorder, paddings, changed = self._leave()
        if recorder is not None:
            self._compare(recorder, outcome_of(loss, self._roots, pairs), paddings, changed)
        made = self._look_at_lengths(paddings)
        self._batch = {}
        self._forget()
        self._look_at_influence()
        if recorder is None:  # no padding, but for what the step itself pads: this was all
            self.steps += made + self._influence_is_known

    def _compare(self, recorder: Recorder, outcome: Outcome, paddings: list[Padding], changed: Any) -> None:
        difference = compare_twins(recorder, outcome)
        kind = _KINDS[self.steps % len(_KINDS)]
        self.steps += 1
        if not changed:
            return
        words = f"step {self.steps}: {KINDS[kind]} in {', '.join(changed)}"
        result = difference.words() or "nothing else changed"
        self.report.tried("padding-leak", words, result)
        for place, why in recorder.not_followed:
            self.report.note("padding-leak", why, place)
            if why.endswith(OUTSIDE) and not difference:
                self.report.skip("padding-leak", why, "mg.doctor.examine(step, batch) to the program")
        if difference:
            events = recorder.mixing(ends_of(outcome, difference))
            self.report.add(findings_of(events, PerturbedInput("padding-leak", paddings), kind, difference))

    def fail(self, error: BaseException | None) -> None:
        """The program is over: a run of its own process ends with it."""
        if self._run is not None:
            self._run.fail(error)

    def _leave(self) -> tuple[Recorder | None, list[Padding], list[str]]:
        """No more twins: those of this step, and what was changed in it."""
        left = self._recorder, self._paddings, self._changed
        self._recorder, self._paddings, self._changed = None, [], []
        if left[0] is not None:
            left[0].__exit__(None, None, None)
        return left

    def close(self, how: str = "") -> None:
        """The program is over, perhaps in the middle of a step; ``how`` it ended if not at its last line."""
        self._leave()
        self._forget()
        padded = any("padding-leak" in part.examined for part in self.report.inventory)
        if how and self.done:
            self.report.note("end", f"the program {how}, after the examined steps")
        elif how:
            self.report.skip("padding-leak", f"the program {how} after {self.steps} of {self._wanted} steps")
        if padded and self._wanted > 1 and not (self._lengths_are_known or self.report.findings):
            why = f"the program was over after {self.passes} backward pass{'es' * (self.passes > 1)}"
            self.report.skip("padding-length", why, "more steps to it, or --quick to leave this out")
        if self._causal and not self._influence_is_known:
            self.report.skip("future-leak", "no model was called whose outputs could be examined")
        if self._seen and not padded:
            self.report.note(
                "padding",
                f"none was recognised in the batches and arguments ({', '.join(map(repr, self._seen))}); add "
                "padding={key: mask}, or call mg.doctor.examine(step, batch) for what only the loss reads",
            )
        if not self.report.experiments and not self.report.notes:
            why = "no backward pass followed a batch with padding"
            self.report.note("steps", f"{why}; watch the training, including loss.backward()")
