"""Random lives of optimizers, next to PyTorch's: nothing is kept about a state that has been taken away.

Between steps, states are cleared, deleted, replaced, reordered, loaded and written, groups and parameters are added and
replaced, and the gradient of each step is dense, sparse, masked, or none. PyTorch's optimizer of the same name gets
zeros where a gradient is unspecified; where that means that an entry is skipped, it is put back after the step.
"""

from __future__ import annotations

import copy
import random
from collections import defaultdict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from maskgrad.optim.torch_steps import FUSED
from tests.unit.optim.beside import put_back
from tests.unit.optim.kinds import duplicated, rows_twice
from tests.unit.optim.optimizers import CASES, NAN, Case, accepts

SHAPES = [(4, 6), (6, 2), (4,), (2, 2, 2)]


class Life:
    """Our optimizer and PyTorch's, of equal parameters."""

    def __init__(self, case: Case, unspecified: str, seed: int) -> None:
        self.ours, self.theirs, self.options = case.ours, case.theirs, case.options
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.unspecified, self.told = unspecified, list[str]()
        self.usual = self.random.choice(["always dense", "always dense", "dense", "rows", "mixed"])
        ways: list[dict[str, Any]] = [{}, {"foreach": True}, {"foreach": False}]
        ways += [{}, {"fused": True}] if self.theirs in FUSED else []
        # PyTorch's fused SGD fails if some have no buffer yet.
        ways = [way for way in ways if not (way.get("fused") and self.theirs is torch.optim.SGD)]
        self.way = way = self.random.choice([way for way in ways if not way or accepts(self.theirs, *way)])
        self.dtype = self.random.choice([torch.float64, torch.float64, torch.float32])
        self.close = {"rtol": 1e-8, "atol": 1e-10}
        if self.theirs in (
            torch.optim.NAdam,
            torch.optim.ASGD,
        ):  # products of many steps, in single precision
            self.close = {"rtol": 1e-6, "atol": 1e-6}
        if self.dtype is torch.float32:
            self.close = {"rtol": 1e-3, "atol": 1e-4}
        both = [self.parameters() for _ in range(self.random.randint(1, 3))]
        mine, reference = map(list, zip(*both, strict=True))
        self.mine: Any = self.ours(mine, **self.options, **way, unspecified=unspecified)
        self.reference: Any = self.theirs(reference, **self.options, **way)

    @property
    def zeros(self) -> bool:
        return self.unspecified == "zero"

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64).to(self.dtype)

    def parameters(self) -> tuple[nn.Parameter, nn.Parameter]:
        start = self.normal(*self.random.choice(SHAPES))
        return nn.Parameter(start.clone()), nn.Parameter(start.clone())

    def all(self) -> list[tuple[nn.Parameter, nn.Parameter]]:
        groups = zip(self.mine.param_groups, self.reference.param_groups, strict=True)
        return [pair for a, b in groups for pair in zip(a["params"], b["params"], strict=True)]

    def both(self) -> list[Any]:
        return [self.mine, self.reference]

    # What happens between steps

    def clear(self) -> None:
        for optimizer in self.both():
            optimizer.state.clear()

    def delete(self) -> None:
        for optimizer, param in zip(self.both(), self.random.choice(self.all()), strict=True):
            if param in optimizer.state:
                del optimizer.state[param]

    def forget_inside(self) -> None:
        """The dictionary stays, empty."""
        for optimizer, param in zip(self.both(), self.random.choice(self.all()), strict=True):
            if param in optimizer.state:
                optimizer.state[param].clear()

    def replace_states(self) -> None:
        for optimizer in self.both():
            other = defaultdict(dict, {p: dict(state) for p, state in optimizer.state.items()})
            optimizer.state = other

    def replace_tensors(self) -> None:
        self.mine.flush()
        for optimizer, param in zip(self.both(), self.random.choice(self.all()), strict=True):
            for name, value in optimizer.state.get(param, {}).items():
                if isinstance(value, Tensor):
                    optimizer.state[param][name] = value.clone()

    def write_states(self) -> None:
        self.mine.flush()
        for optimizer, param in zip(self.both(), self.random.choice(self.all()), strict=True):
            for name, value in optimizer.state.get(param, {}).items():
                if (
                    isinstance(value, Tensor)
                    and value.is_floating_point()
                    and name not in ("step", "mu_product")
                ):
                    value.mul_(0.5)

    def other_memory_of_states(self) -> None:
        for optimizer, param in zip(self.both(), self.random.choice(self.all()), strict=True):
            for value in optimizer.state.get(param, {}).values():
                if isinstance(value, Tensor):
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

    def load_an_older_one(self) -> None:
        """Saved before: the parameters keep the values that they have now."""
        if self.saved is not None and len(self.saved[0]["param_groups"]) == len(self.mine.param_groups):
            for optimizer, state in zip(self.both(), self.saved, strict=True):
                optimizer.load_state_dict(copy.deepcopy(state))

    def save(self) -> None:
        self.saved = [copy.deepcopy(optimizer.state_dict()) for optimizer in self.both()]

    saved: list[Any] | None = None

    def copy(self) -> None:
        self.mine.flush()
        self.mine, self.reference = (copy.deepcopy(optimizer) for optimizer in self.both())

    def add_group(self) -> None:
        if len(self.mine.param_groups) < 3:
            for optimizer, param in zip(self.both(), self.parameters(), strict=True):
                optimizer.add_param_group({"params": [param]})
            self.saved = None

    def replace_a_parameter(self) -> None:
        group = self.random.randrange(len(self.mine.param_groups))
        number = self.random.randrange(len(self.mine.param_groups[group]["params"]))
        self.mine.flush()
        for optimizer, param in zip(self.both(), self.parameters(), strict=True):
            optimizer.state.pop(optimizer.param_groups[group]["params"][number], None)
            optimizer.param_groups[group]["params"][number] = param
        self.saved = None

    def reverse_parameters(self) -> None:
        for optimizer in self.both():
            optimizer.param_groups[0]["params"].reverse()
        self.saved = None

    def other_memory(self) -> None:
        self.mine.flush()
        for param in self.random.choice(self.all()):
            param.data = param.data.clone()

    def other_rate(self) -> None:
        rate = self.random.choice([0.05, 0.1, 0.2])
        for optimizer in self.both():
            optimizer.param_groups[0]["lr"] = rate

    def nothing(self) -> None:
        pass

    # A step

    def gradient(self, param: Tensor, kind: str) -> tuple[Any, Tensor, Tensor]:
        """A gradient, dense with zeros, and which entries it specifies."""
        shape = tuple(param.shape)
        dense, mask = self.normal(*shape), torch.rand(shape, generator=self.generator) < 0.6
        mask.view(-1)[0] = True
        if kind in ("rows", "rows twice"):
            rows = torch.rand(shape[0], generator=self.generator) < 0.6
            rows[0] = True
            mask = rows.view(-1, *(1 for _ in shape[1:])).expand(shape)
        if kind == "dense":
            return dense, dense, torch.ones_like(mask)
        zeroed = torch.where(mask, dense, 0)
        if kind == "masked":
            return mg.masked(torch.where(mask, dense, NAN), mask), zeroed, mask
        if kind == "csr":
            return mg.masked(dense, mask).to_sparse(layout=torch.sparse_csr).to_sparse_tensor(), zeroed, mask
        if kind == "entries twice":
            return duplicated(zeroed), zeroed, mask
        sparse_dim = 1 if kind.startswith("rows") else param.dim()
        sparse = zeroed.to_sparse(sparse_dim)
        if kind == "rows twice":
            sparse = rows_twice(zeroed)
        return sparse, zeroed, mask

    def step(self) -> None:
        before, usual = [], self.usual
        self.start_sums()
        for p, q in self.all():
            kinds = ["dense", "rows", "rows twice", "masked", "entries", "none"]
            kinds += ["csr", "entries twice"] if p.dim() == 2 else []
            kind = usual if usual in kinds and self.random.random() < 0.8 else self.random.choice(kinds)
            kind = "dense" if usual == "always dense" else kind
            self.told.append(kind)
            mg.attach_gradient(p, None)
            q.grad = None
            if kind == "none":
                continue
            gradient, dense, mask = self.gradient(p, kind)
            if isinstance(gradient, mg.MaskedTensor) or gradient.layout is torch.sparse_csr:
                mg.attach_gradient(p, gradient)
            else:
                p.grad = gradient
            q.grad = dense.clone()
            state = copy.deepcopy(dict(self.reference.state.get(q, {})))
            before.append((q, mask, q.detach().clone(), state))
        self.mine.step()
        self.reference.step()
        if not self.zeros:
            for q, mask, param, state in before:
                put_back(self.reference, q, mask, param, state)

    def start_sums(self) -> None:
        """Adagrad's, which PyTorch's makes in the constructor, and misses after that."""
        if isinstance(self.reference, torch.optim.Adagrad):
            for group in self.reference.param_groups:
                for q in group["params"]:
                    if not self.reference.state.get(q):
                        start = group["initial_accumulator_value"]
                        self.reference.state[q] = {
                            "step": torch.tensor(0.0),
                            "sum": torch.full_like(q, start),
                        }

    def compare(self) -> None:
        self.mine.flush()
        close = self.close
        for p, q in self.all():
            torch.testing.assert_close(p.detach(), q.detach(), **close)
        mine, reference = (optimizer.state_dict() for optimizer in self.both())
        stepped, others = (  # Adagrad's states are there before the first step
            {k for k, state in one["state"].items() if state and float(state.get("step", 1)) > 0}
            for one in (mine, reference)
        )
        assert stepped == others
        for key in stepped:
            for name, value in reference["state"][key].items():
                if value is not None:
                    got = torch.as_tensor(mine["state"][key][name]).to(self.dtype)
                    torch.testing.assert_close(got, torch.as_tensor(value).to(self.dtype), **close)
        for a, b in zip(mine["param_groups"], reference["param_groups"], strict=True):
            assert {name: a[name] for name in b if name in a} == {name: b[name] for name in b if name in a}


EVENTS = [
    Life.clear, Life.delete, Life.forget_inside, Life.replace_states, Life.replace_tensors,
    Life.write_states, Life.other_memory_of_states, Life.swap_states, Life.load, Life.load_theirs,
    Life.load_an_older_one, Life.save, Life.copy, Life.add_group, Life.replace_a_parameter, Life.reverse_parameters,
    Life.other_memory, Life.other_rate, Life.nothing,
]  # fmt: skip
#: What takes states away comes most often: right after the first step, too.
USUAL = [*EVENTS, *[Life.clear, Life.delete, Life.add_group, Life.nothing] * 4]


@pytest.mark.filterwarnings("ignore::maskgrad.optim.lazy.zero_gradients.RowsReadLate")
@pytest.mark.parametrize("unspecified", ["skip", "zero"])
@pytest.mark.parametrize(
    "case", [case for name, case in CASES.items() if name != "sgd, dampening"], ids=str
)  # has a marker: test_sgd.py
def test_whatever_happens_to_its_states_an_optimizer_is_pytorchs(case: Case, unspecified: str) -> None:
    for seed in range(12):
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


@pytest.mark.parametrize("unspecified", ["skip", "zero"])
def test_states_taken_away_after_one_dense_step_are_gone(unspecified: str) -> None:
    for case in CASES.values():
        for event in (Life.clear, Life.delete, Life.forget_inside):
            for way in ({}, {"foreach": True}, {"fused": True}):
                if any(not accepts(case.theirs, name) for name in way) or (
                    "fused" in way and case.theirs not in FUSED
                ):
                    continue
                life = Life(case, unspecified, 0)
                mine, reference = life.parameters()
                life.usual, life.way = "always dense", way
                life.mine = case.mine([mine], **way, unspecified=unspecified)
                life.reference = case.reference([reference], **way)
                for _ in range(3):
                    life.step()
                    life.compare()
                    event(life)
                assert not any(life.mine.state_dict()["state"].values()), case


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_states_of_another_dtype_are_not_read_as_if_they_had_the_old_one(dtype: torch.dtype) -> None:
    """``.data`` of a state was assigned: its memory is shorter or longer than that of the loop over rows."""
    for kind in ("SGD", "RMSprop", "Adagrad"):
        options = {"lr": 0.1, **({"momentum": 0.9} if kind == "SGD" else {})}
        p = nn.Parameter(torch.randn(16, 4))
        q = nn.Parameter(p.detach().clone())
        mine, reference = (getattr(lib, kind)([t], **options) for lib, t in ((mg.optim, p), (torch.optim, q)))
        for step in range(4):
            q.grad = torch.randn(16, 4)
            p.grad = q.grad.to_sparse(1)
            for optimizer, t in ((mine, p), (reference, q)) if step == 2 else ():
                for value in optimizer.state[t].values():
                    value.data = value.data.to(dtype) if value.dim() else value.data
            mine.step()
            reference.step()
        torch.testing.assert_close(p, q, **({"rtol": 0, "atol": 0.02} if dtype is torch.bfloat16 else {}))
