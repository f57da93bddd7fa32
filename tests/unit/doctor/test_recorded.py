from __future__ import annotations

import torch
from torch import Tensor, nn

import maskgrad as mg


class _Model(nn.Module):
    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4, sparse=True)
        self.head = nn.Linear(4, 7)
        self.idle = nn.Linear(2, 2)
        self.tied = tied

    def forward(self, ids: Tensor) -> Tensor:
        h = self.table(ids)
        return h @ self.table.weight.T if self.tied else self.head.forward(h)


def _kinds(model: nn.Module) -> list[str]:
    ids = torch.tensor([[1, 2, 3], [4, 5, 0]])
    report = mg.doctor.examine(
        lambda b: nn.functional.cross_entropy(model(b["ids"]).flatten(0, 1), b["ids"].flatten()),
        {"ids": ids},
        model=model,
        experiments=["unused-parameter"],
    )
    return sorted(f"{finding.kind} {finding.module}" for finding in report.findings)


def test_a_dense_gradient_of_a_sparse_table_and_unused_parameters() -> None:
    assert _kinds(_Model(tied=True)) == [
        "densified-gradient table",
        "unused-parameter head",
        "unused-parameter head",
        "unused-parameter idle",
        "unused-parameter idle",
    ]


def test_a_hook_of_a_module_whose_forward_is_called_by_name() -> None:
    model = _Model(tied=False)
    del model.idle
    model.head.register_forward_hook(lambda *_: None)
    model.table.register_forward_hook(lambda *_: None)
    assert _kinds(model) == ["silent-hook head"]
    model.forward = lambda ids: model.head(model.table(ids))  # type: ignore[method-assign]
    assert _kinds(model) == []


def test_a_gradient_that_is_zero_because_a_mask_lets_nothing_through() -> None:
    layer, x = nn.Linear(2, 1), torch.ones(3, 2)
    other = nn.Linear(2, 1)

    def step(b: Tensor) -> Tensor:
        return (layer(b) * torch.zeros(3, 1) + other(b)).square().mean()

    report = mg.doctor.examine(step, x, model=nn.ModuleList([layer, other]), experiments=["zero-gradient"])
    assert {(finding.kind, finding.module) for finding in report.findings} == {("zero-gradient", "0")}
