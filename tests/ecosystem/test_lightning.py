"""Lightning: LightningMixin in Lightning's own loop, against one pass over the whole batch."""

from __future__ import annotations

from typing import Any

import lightning
import pytest
import torch
import torchmetrics
from torch import nn
from torch.nn import functional as F

import maskgrad as mg
from tests.ecosystem.micro_batches import Tagger, batch, cut, losses_of, moved

pytestmark = pytest.mark.filterwarnings("ignore")  # of Lightning, about itself


class Net(mg.integrations.LightningMixin, lightning.LightningModule):
    """As the page says."""

    def __init__(self, form: str = "masked", sparse: bool = False) -> None:
        super().__init__()
        self.tagger, self.form = Tagger(sparse), form
        self.val_loss = torchmetrics.MeanMetric()

    def training_step(self, pair: Any, batch_idx: int) -> Any:
        return self.losses(*losses_of(self.tagger, *pair, self.form))

    def validation_step(self, pair: Any, batch_idx: int) -> None:
        losses, _ = losses_of(self.tagger, *pair)
        self.val_loss.update(losses.compressed())
        self.log("val_loss", self.val_loss)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.5)


def fit(net: Any, micro_batches: list[Any], pieces: int, **options: Any) -> Any:
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    given = dict.fromkeys(quiet, False) | {"accelerator": "cpu", "devices": 1, "gradient_clip_val": 0.3}
    trainer = lightning.Trainer(
        max_epochs=1, accumulate_grad_batches=pieces, num_sanity_val_steps=0, **given | options
    )
    loader = torch.utils.data.DataLoader(micro_batches, batch_size=None)
    trainer.fit(net, loader, loader)
    return trainer


def test_the_mean_of_validation_counts_labels() -> None:
    x, y = batch(0)
    net = Net()
    trainer = fit(net, cut(0, x, y, 4), 4)
    whole = F.cross_entropy(net.tagger(x)[y != -100], y[y != -100]).item()
    assert float(trainer.callback_metrics["val_loss"]) == pytest.approx(whole, abs=1e-6)


def test_several_losses_and_clipping_by_value() -> None:
    class Two(Net):
        def training_step(self, pair: Any, batch_idx: int) -> Any:
            losses, _ = losses_of(self.tagger, *pair)
            return self.losses(
                {"main": losses, "aux": self.tagger.out.weight.square().sum()},
                {"aux": 1},
                weights={"aux": 0.1},
            )

    x, y = batch(3)
    net, truth = Two(), Tagger()
    fit(net, cut(3, x, y, 3), 3, gradient_clip_val=0.01, gradient_clip_algorithm="value")
    known = y != -100
    (F.cross_entropy(truth(x)[known], y[known]) + 0.1 * truth.out.weight.square().sum()).backward()
    nn.utils.clip_grad_value_(truth.parameters(), 0.01)
    torch.optim.SGD(truth.parameters(), lr=0.5).step()
    assert moved(net.tagger, truth) < 1e-6


class Forgets(Net):
    def training_step(self, pair: Any, batch_idx: int) -> Any:
        return self.tagger(pair[0]).mean()


class Replaces(Net):
    def on_train_start(self) -> None:
        pass


class Manual(Net):
    automatic_optimization = False


class AccumulatesByItself(lightning.pytorch.strategies.SingleDeviceStrategy):
    handles_gradient_accumulation = True


@pytest.mark.parametrize(
    ("kind", "words", "options"),
    [
        (Forgets, r"Forgets.training_step.*use return self\.losses\(losses\)", {}),
        (Replaces, r"call super\(\)\.on_train_start\(\)", {}),
        (Manual, r"automatic_optimization=False.*mg\.GradientAccumulator", {"gradient_clip_val": None}),
        (
            Net,
            r"AccumulatesByItself accumulates gradients by itself; use strategy='ddp'",
            {"strategy": AccumulatesByItself(torch.device("cpu")), "accelerator": "auto"},
        ),
    ],
)
def test_mistakes_are_named(kind: type[Net], words: str, options: dict[str, Any]) -> None:
    with pytest.raises(RuntimeError, match=words):
        fit(kind(), cut(0, *batch(0), 2), 1 if kind is Manual else 2, **options)


def test_a_batch_whose_size_is_not_given() -> None:
    class Logging(Net):
        def training_step(self, x: Any, batch_idx: int) -> Any:
            losses = x.square() * self.tagger.out.weight.sum()
            self.log("loss", losses.mean().detach(), on_epoch=True, **self.size)
            return self.losses(losses)

        def validation_step(self, x: Any, batch_idx: int) -> None:
            pass

    net, x = Logging(), mg.from_lengths(torch.randn(3, 4), torch.tensor([1, 4, 2]))
    for one in (x, x.to_jagged(), x.to_sparse()):
        net.size = {}
        with pytest.raises(TypeError, match=r"self\.log\(…, batch_size=len\(x\)\)"):
            fit(net, [one], 1)
        net.size = {"batch_size": len(one)}
        fit(net, [one], 1)
