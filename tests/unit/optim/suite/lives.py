"""Random lives of optimizers, next to PyTorch's: steps are right, and nothing is kept that has been taken away.

Between steps, states are cleared, deleted, replaced, reordered, loaded and written, entries are frozen, groups and
parameters are added and replaced, and the gradient of each step is dense, sparse, masked, or none. PyTorch's optimizer
of the same name gets zeros where a gradient is unspecified; entries that are to be skipped are put back after the step.
"""

from __future__ import annotations

import copy
import random
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from maskgrad.optim.torch_steps import FUSED
from tests.unit.optim.beside import put_back
from tests.unit.optim.kinds import BY_ROWS, FULL, dense_of, specified
from tests.unit.optim.optimizers import Case, accepts, bits

SHAPES = [(4, 6), (6, 2), (4,), (2, 2, 2)]
#: Those of any shape; of matrices, all.
KINDS = ["dense", "rows", "rows twice", "masked", "coo", "whole", "none"]


class Life:
    """Our optimizer and PyTorch's, of equal parameters."""

    def __init__(self, case: Case, unspecified: str, seed: int) -> None:
        self.theirs, self.unspecified, self.told = case.theirs, unspecified, list[str]()
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.usual = self.random.choice(["always dense", "always dense", "dense", "rows", "masked", "mixed"])
        dtypes = [torch.float64, torch.float64, torch.float32, torch.complex128]
        # PyTorch's AMSGrad has no maxima of the parts of complex numbers.
        self.dtype = self.random.choice(dtypes[: 3 if case.options.get("amsgrad") else 4])
        ways: list[dict[str, Any]] = [{}, {"foreach": True}, {"foreach": False}]
        # PyTorch's fused SGD fails if some have no buffer yet; none takes complex numbers.
        can_fuse = self.theirs in FUSED and self.theirs is not torch.optim.SGD and not self.dtype.is_complex
        ways += [{}, {"fused": True}] if can_fuse else []
        self.way = way = self.random.choice([way for way in ways if not way or accepts(self.theirs, *way)])
        near = 1e-3 if self.dtype is torch.float32 else 1e-6 if case.keeps_singles else 1e-8
        self.close = {"rtol": near, "atol": near / 10}
        both = [self.parameters() for _ in range(self.random.randint(1, 3))]
        mine, reference = map(list, zip(*both, strict=True))
        self.mine: Any = case.mine(mine, **way, unspecified=unspecified)
        self.reference: Any = case.reference(reference, **way)
        if self.usual == "masked" or self.random.random() < 0.4:
            self.freeze()

    def normal(self, *shape: int) -> Tensor:
        wide = torch.promote_types(self.dtype, torch.float64)
        return torch.randn(shape, generator=self.generator, dtype=wide).to(self.dtype)

    def parameters(self) -> tuple[nn.Parameter, nn.Parameter]:
        """Ours lies in memory in any order; the fused loops of PyTorch are wrong for others than the usual one."""
        start = self.normal(*self.random.choice(SHAPES))
        order = self.random.choice(["contiguous", "contiguous", "contiguous", "transposed", "strided"])
        ours = start.clone()
        if order == "transposed":
            ours = ours.transpose(0, -1).contiguous().transpose(0, -1)
        elif order == "strided":
            ours = ours.repeat_interleave(2, -1)[..., ::2]
        return nn.Parameter(ours), nn.Parameter(start)

    def all(self) -> list[tuple[nn.Parameter, nn.Parameter]]:
        groups = zip(self.mine.param_groups, self.reference.param_groups, strict=True)
        return [pair for a, b in groups for pair in zip(a["params"], b["params"], strict=True)]

    def both(self) -> list[Any]:
        return [self.mine, self.reference]

    def one(self) -> Iterator[tuple[Any, Tensor]]:
        """Each optimizer, and the same of its parameters."""
        return zip(self.both(), self.random.choice(self.all()), strict=True)

    def states_of_one(self) -> Iterator[tuple[dict[str, Any], str, Tensor]]:
        """The state of the same parameter in each optimizer, with the name and the value of each tensor in it."""
        self.mine.flush()
        for optimizer, param in self.one():
            state = optimizer.state.get(param, {})
            yield from ((state, name, value) for name, value in [*state.items()] if isinstance(value, Tensor))

    # What happens between steps

    def clear(self) -> None:
        for optimizer in self.both():
            optimizer.state.clear()

    def delete(self) -> None:
        for optimizer, param in self.one():
            optimizer.state.pop(param, None)

    def replace_states(self) -> None:
        for optimizer in self.both():
            other = defaultdict(dict, {p: dict(state) for p, state in optimizer.state.items()})
            optimizer.state = other

    def replace_tensors(self) -> None:
        for state, name, value in self.states_of_one():
            state[name] = value.clone()

    def write_states(self) -> None:
        for _, name, value in self.states_of_one():
            if value.is_floating_point() and name not in ("step", "mu_product"):
                value.mul_(0.5)

    def other_memory_of_states(self) -> None:
        for _, _, value in self.states_of_one():
            value.data = value.data.clone()

    def swap_states(self) -> None:
        """Of two parameters of one shape, in a dictionary that lists equal values in the same order as before."""
        pairs = self.all()
        self.mine.flush()
        for i, (p, q) in enumerate(pairs):
            for r, s in pairs[i + 1 :]:
                if p.shape == r.shape and q in self.reference.state and s in self.reference.state:
                    for optimizer, one, other in ((self.mine, p, r), (self.reference, q, s)):
                        states = dict(optimizer.state)
                        states[one], states[other] = states[other], states[one]
                        before = [id(v) for v in optimizer.state.values()]
                        optimizer.state.clear()
                        optimizer.state.update(sorted(states.items(), key=lambda kv: before.index(id(kv[1]))))
                    return

    def load(self) -> None:
        for optimizer in self.both():
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))

    def load_theirs(self) -> None:
        state = copy.deepcopy(self.reference.state_dict())
        for group in state["param_groups"]:
            group["unspecified"] = self.unspecified
        self.mine.flush()
        self.mine.load_state_dict(state)

    def copy(self) -> None:
        self.mine.flush()
        self.mine, self.reference = (copy.deepcopy(optimizer) for optimizer in self.both())

    def add_group(self) -> None:
        if len(self.mine.param_groups) < 3:
            for optimizer, param in zip(self.both(), self.parameters(), strict=True):
                optimizer.add_param_group({"params": [param]})

    def replace_a_parameter(self) -> None:
        group = self.random.randrange(len(self.mine.param_groups))
        number = self.random.randrange(len(self.mine.param_groups[group]["params"]))
        self.mine.flush()
        for optimizer, param in zip(self.both(), self.parameters(), strict=True):
            optimizer.state.pop(optimizer.param_groups[group]["params"][number], None)
            optimizer.param_groups[group]["params"][number] = param

    def reverse_parameters(self) -> None:
        for optimizer in self.both():
            optimizer.param_groups[0]["params"].reverse()

    def other_memory(self) -> None:
        self.mine.flush()
        for param in self.random.choice(self.all()):
            param.data = param.data.clone()

    def other_rate(self) -> None:
        rate = self.random.choice([0.05, 0.1, 0.2])
        for optimizer in self.both():
            optimizer.param_groups[0]["lr"] = rate

    def freeze(self) -> None:
        """Some entries or rows, or none any more."""
        p, _ = self.random.choice(self.all())
        size = (len(p), *(1 for _ in p.shape[1:])) if self.random.random() < 0.5 else tuple(p.shape)
        mask = torch.rand(size, generator=self.generator) < 0.7
        mg.train_only(p, None if self.random.random() < 0.4 else mask)

    def nothing(self) -> None:
        pass

    # A step

    def gradient(self, param: Tensor, kind: str) -> tuple[Any, Tensor]:
        """A gradient, and what it is with zeros."""
        shape = tuple(param.shape)
        whole = 1 if kind in BY_ROWS else 2 if kind == "pieces" else len(shape)
        some = torch.rand(shape[:whole], generator=self.generator) < self.random.choice([0.3, 0.7])
        mask = some.view(*some.shape, *(1 for _ in shape[whole:])).expand(shape) | (
            kind in ("dense", "whole")
        )
        zeroed = torch.where(mask, self.normal(*shape), 0)
        return zeroed.to_sparse(2) if kind == "pieces" else FULL[kind](zeroed), zeroed

    def step(self) -> None:
        before, usual = [], self.usual
        self.start_sums()
        for p, q in self.all():
            kinds = [*KINDS, *{2: FULL, 3: ["pieces"]}.get(p.dim(), ())]
            kind = usual if usual in kinds and self.random.random() < 0.8 else self.random.choice(kinds)
            kind = "dense" if usual == "always dense" else kind
            self.told.append(kind)
            mg.attach_gradient(p, None)
            q.grad = None
            if kind == "none":
                continue
            gradient, q.grad = self.gradient(p, kind)
            mg.attach_gradient(p, gradient)
            everywhere = torch.ones(p.shape, dtype=torch.bool)
            mask = everywhere if kind == "whole" or self.unspecified == "zero" else specified(gradient)
            trained = mg.optim.trained_entries(p)
            mask = mask if trained is None else mask & trained
            state = copy.deepcopy(dict(self.reference.state.get(q, {})))
            given = dense_of(gradient).clone()
            before.append((p, q, mask, p.detach().clone(), q.detach().clone(), given, state))
        self.mine.step()
        self.reference.step()
        for p, q, mask, start, param, given, state in before:
            put_back(self.reference, q, mask, param, state)
            if not self.way.get("foreach"):  # in which PyTorch's Nesterov momentum writes to gradients
                assert torch.equal(dense_of(mg.optim.attached_gradient(p)), given)
            if self.unspecified == "skip":
                assert torch.equal(bits(p)[~mask], bits(start)[~mask])

    def start_sums(self) -> None:
        """Adagrad's, which PyTorch's makes in the constructor, and misses after that."""
        if isinstance(self.reference, torch.optim.Adagrad):
            for group in self.reference.param_groups:
                for q in group["params"]:
                    if not self.reference.state.get(q):
                        start = group["initial_accumulator_value"] * (1 + 1j if q.is_complex() else 1)
                        self.reference.state[q] = {
                            "step": torch.tensor(0.0),
                            "sum": torch.full_like(q, start),
                        }

    def compare(self) -> None:
        self.mine.flush()
        for p, q in self.all():
            torch.testing.assert_close(p.detach(), q.detach(), **self.close)
        mine, reference = (optimizer.state_dict() for optimizer in self.both())
        stepped, others = (  # Adagrad's states are there before the first step
            {k for k, state in one["state"].items() if state and float(state.get("step", 1)) > 0}
            for one in (mine, reference)
        )
        assert stepped == others
        for key in stepped:
            for name, value in reference["state"][key].items():
                if value is not None and not (
                    self.dtype.is_complex and "max" in name
                ):  # PyTorch's has no parts
                    got = torch.as_tensor(mine["state"][key][name]).to(self.dtype)
                    torch.testing.assert_close(got, torch.as_tensor(value).to(self.dtype), **self.close)
        for a, b in zip(mine["param_groups"], reference["param_groups"], strict=True):
            assert {name: a[name] for name in b if name in a} == {name: b[name] for name in b if name in a}


EVENTS = [
    Life.clear, Life.delete, Life.replace_states, Life.replace_tensors, Life.write_states,
    Life.other_memory_of_states, Life.swap_states, Life.load, Life.load_theirs, Life.copy, Life.add_group,
    Life.replace_a_parameter, Life.reverse_parameters, Life.other_memory, Life.other_rate, Life.freeze, Life.nothing,
]  # fmt: skip
#: What takes states away comes most often: right after the first step, too.
USUAL = [*EVENTS, *[Life.clear, Life.delete, Life.add_group, Life.freeze, Life.nothing] * 4]


class Lives:
    @pytest.mark.forms(per=lambda case, unspecified: (case.ours, unspecified))
    @pytest.mark.filterwarnings("ignore::maskgrad.optim.lazy.zero_gradients.RowsReadLate")
    @pytest.mark.parametrize("unspecified", ["skip", "zero"])
    def test_whatever_happens_to_its_states_an_optimizer_is_pytorchs(
        self, case: Case, unspecified: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if case.options.get("dampening"):
            return  # has a marker: test_states.py
        for seed in range(16):
            monkeypatch.setattr(
                "maskgrad.optim.rows.ADDED", (1, 1 << 20)[seed % 2]
            )  # rows are merged, or added
            life = Life(case, unspecified, seed)
            for _ in range(life.random.choice([3, 4, 12])):
                event = life.random.choice(USUAL)
                life.told.append(event.__name__)
                event(life)
                try:
                    life.step()
                    if life.random.random() < 0.7:
                        life.compare()
                except Exception as error:
                    raise AssertionError(f"life {seed} {life.way}: {', '.join(life.told)}") from error
