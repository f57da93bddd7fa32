"""Every optimizer as it is declared for the suite that all of them inherit (``suite.py``).

A new one is one entry of :data:`DECLARED`.
"""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from maskgrad import optim
from maskgrad.optim.optimizer import MaskedOptimizer
from maskgrad.optim.torch_steps import FUSED
from tests.unit.optim.papers import PaperLion

NAN = float("nan")
BETAS = {"betas": (0.7, 0.95)}


class Declared(NamedTuple):
    """What an optimizer says of itself."""

    ours: type[MaskedOptimizer]
    theirs: type[torch.optim.Optimizer]
    """PyTorch's, or the paper's algorithm in plain PyTorch."""
    states: tuple[str, ...]
    """Its state tensors, in the order in which the function of its name takes them."""
    options: dict[str, dict[str, Any]]
    """Sets of options by name; the first, without a name, is the usual one."""
    per_row: tuple[str, ...] = ()
    """Those of its states of which ``state="row"`` keeps one value for each row."""
    lr: float = 0.1


ALL = {**BETAS, "eps": 1e-3, "weight_decay": 0.1, "maximize": True}
DECOUPLED = {"weight_decay": 0.1, "decoupled_weight_decay": True}
MOMENTS = ("exp_avg", "exp_avg_sq")
DECLARED = (
    Declared(
        optim.Adagrad, torch.optim.Adagrad, ("sum",), per_row=("sum",),
        options={
            "": {},
            "all options": {
                "lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5, "eps": 1e-3, "maximize": True,
            },
        },
    ),
    Declared(
        optim.SGD, torch.optim.SGD, ("momentum_buffer",),
        options={
            "": {},
            "momentum": {"momentum": 0.9, "weight_decay": 0.1, "maximize": True},
            "nesterov": {"momentum": 0.9, "nesterov": True},
            "dampening": {"momentum": 0.9, "dampening": 0.3},
        },
    ),
    Declared(
        optim.Adam, torch.optim.Adam, (*MOMENTS, "max_exp_avg_sq"),
        per_row=("exp_avg_sq", "max_exp_avg_sq"),
        options={"": {}, "all options": {**ALL, "amsgrad": True}, "decoupled": DECOUPLED},
    ),
    Declared(
        optim.AdamW, torch.optim.AdamW, (*MOMENTS, "max_exp_avg_sq"),
        per_row=("exp_avg_sq", "max_exp_avg_sq"),
        options={"": {}, "all options": {**ALL, "amsgrad": True}},
    ),
    Declared(
        optim.RMSprop, torch.optim.RMSprop, ("square_avg", "momentum_buffer", "grad_avg"),
        per_row=("square_avg",),
        options={
            "": {},
            "momentum": {"momentum": 0.9, "weight_decay": 0.1, "maximize": True},
            "centered": {"alpha": 0.8, "eps": 1e-3, "centered": True},
            "all options": {"alpha": 0.8, "momentum": 0.9, "centered": True, "weight_decay": 0.1},
        },
    ),
    Declared(
        optim.Adadelta, torch.optim.Adadelta, ("square_avg", "acc_delta"), lr=1.0,
        per_row=("square_avg", "acc_delta"),
        options={
            "": {"eps": 1e-2},
            "all options": {"rho": 0.7, "eps": 1e-2, "weight_decay": 0.1, "maximize": True},
        },
    ),
    Declared(
        optim.Adamax, torch.optim.Adamax, ("exp_avg", "exp_inf"), per_row=("exp_inf",),
        options={"": {}, "all options": ALL},
    ),
    Declared(
        optim.NAdam, torch.optim.NAdam, (*MOMENTS, "mu_product"), per_row=("exp_avg_sq",),
        options={"": {}, "all options": {**ALL, "momentum_decay": 0.1}, "decoupled": DECOUPLED},
    ),
    Declared(
        optim.RAdam, torch.optim.RAdam, MOMENTS, per_row=("exp_avg_sq",),
        options={"": {}, "all options": ALL, "decoupled": DECOUPLED},
    ),
    Declared(
        optim.Rprop, torch.optim.Rprop, ("prev", "step_size"),
        options={"": {}, "all options": {"etas": (0.3, 1.5), "step_sizes": (0.05, 0.4), "maximize": True}},
    ),
    Declared(
        optim.ASGD, torch.optim.ASGD, ("ax", "eta", "mu"),
        options={
            "": {},
            "all options": {"lambd": 0.1, "alpha": 0.5, "t0": 3, "weight_decay": 0.1, "maximize": True},
        },
    ),
    Declared(
        optim.Lion, PaperLion, ("exp_avg",),
        options={"": {}, "all options": {**BETAS, "weight_decay": 0.1, "maximize": True}},
    ),
)  # fmt: skip


class Case(NamedTuple):
    """An optimizer with one set of its options."""

    declared: Declared
    variant: str
    options: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.ours.__name__.lower()}, {self.variant}" if self.variant else self.ours.__name__.lower()

    @property
    def ours(self) -> type[MaskedOptimizer]:
        return self.declared.ours

    @property
    def theirs(self) -> type[torch.optim.Optimizer]:
        return self.declared.theirs

    @property
    def is_torchs(self) -> bool:
        return self.theirs.__module__.startswith("torch.")

    @property
    def row_states(self) -> list[str]:
        """What ``state=`` may be."""
        return ["full", "row"] if self.declared.per_row and not self.options.get("centered") else ["full"]

    @property
    def keeps_singles(self) -> bool:
        """Whether PyTorch keeps some of its numbers in float32, whatever the parameter is."""
        return self.ours.__name__ in ("NAdam", "ASGD")

    def mine(self, params: Any, **more: Any) -> Any:
        return self.ours(params, **{**self.options, **more})  # type: ignore[call-arg]

    def reference(self, params: Any, **more: Any) -> Any:
        return self.theirs(params, **{**self.options, **more})  # type: ignore[call-arg]

    @property
    def same_way(self) -> dict[str, Any]:
        """The options with which PyTorch steps some small dense parameters as we do without any."""
        return {"fused": True} if self.theirs in FUSED else {}

    def assert_same(self, found: Any, expected: Any) -> None:
        """Bit for bit those of PyTorch; a paper's algorithm rounds in another order."""
        if self.is_torchs:
            assert torch.equal(bits(found), bits(expected))
        else:
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


_MADE = [
    Case(one, name, {"lr": one.lr, **options}) for one in DECLARED for name, options in one.options.items()
]
CASES = {str(case): case for case in _MADE}
NAMES = [one.ours.__name__ for one in DECLARED]


def bits(t: Tensor) -> Tensor:
    return t.detach().contiguous().unsqueeze(-1).view(torch.int8)


def twins(*shapes: tuple[int, ...]) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Two lists of the same parameters."""
    first = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    return first, [nn.Parameter(p.detach().clone()) for p in first]


def give(*lists: list[nn.Parameter]) -> None:
    """The same dense gradients to the parameters of each list."""
    for same in zip(*lists, strict=True):
        grad = torch.randn_like(same[0])
        for param in same:
            param.grad = grad.clone()


def accepts(kind: Any, name: str) -> bool:
    """Whether the constructor of an optimizer has an argument of this name."""
    return name in inspect.signature(kind).parameters
