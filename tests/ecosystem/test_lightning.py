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
from tests.ecosystem.micro_batches import Tagger, batch, cut, losses_of, moved, one_pass
from tests.ecosystem.rows import one_line, refused

pytestmark = [
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:GPU available"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*isinstance.*LeafSpec"),
]
STEPS = 3


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


def loader(micro_batches: list[Any]) -> Any:
    return torch.utils.data.DataLoader(micro_batches, batch_size=None)


def fit(net: Any, micro_batches: list[Any], pieces: int, **options: Any) -> Any:
    given = {
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accumulate_grad_batches": pieces,
        "gradient_clip_val": 0.3,
        "num_sanity_val_steps": 0,
    }
    trainer = lightning.Trainer(**given | options)
    trainer.fit(net, loader(micro_batches), loader(micro_batches))
    return trainer


@one_line("lightning", "`Trainer(accumulate_grad_batches=…)`", "`mg.integrations.LightningMixin`")
def test_a_step_and_the_mean_of_validation() -> None:
    batches, truth = [batch(seed) for seed in range(STEPS)], Tagger()
    one_pass(truth, batches)
    micro = [piece for seed, whole in enumerate(batches) for piece in cut(seed, *whole, 4)]
    net = Net()
    trainer = fit(net, micro, 4)
    assert moved(net.tagger, truth) < 1e-6
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    whole = F.cross_entropy(truth(x)[y != -100], y[y != -100]).item()
    assert float(trainer.callback_metrics["val_loss"]) == pytest.approx(whole, abs=1e-6)


def test_the_last_step_of_an_epoch_has_what_is_left() -> None:
    micro = cut(2, *batch(2), 5)
    net, truth = Net(), Tagger()
    fit(net, micro, 3, max_epochs=2)
    parts = [tuple(torch.cat(t) for t in zip(*some, strict=True)) for some in (micro[:3], micro[3:])]
    one_pass(truth, parts * 2)  # type: ignore[arg-type]
    assert moved(net.tagger, truth) < 1e-6


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


def test_mistakes_are_named() -> None:
    class Forgets(Net):
        def training_step(self, pair: Any, batch_idx: int) -> Any:
            return self.tagger(pair[0]).mean()

    micro = cut(0, *batch(0), 2)
    with pytest.raises(RuntimeError, match=r"Forgets.training_step.*use return self\.losses\(losses\)"):
        fit(Forgets(), micro, 2)

    class Replaces(Net):
        def on_train_start(self) -> None:
            pass

    with pytest.raises(RuntimeError, match=r"call super\(\)\.on_train_start\(\)"):
        fit(Replaces(), micro, 2)

    class Manual(Net):
        automatic_optimization = False

    with pytest.raises(RuntimeError, match=r"automatic_optimization=False.*mg\.GradientAccumulator"):
        fit(Manual(), micro, 1, gradient_clip_val=None)

    class AccumulatesByItself(lightning.pytorch.strategies.SingleDeviceStrategy):
        @property
        def handles_gradient_accumulation(self) -> bool:
            return True

    with pytest.raises(
        RuntimeError, match=r"AccumulatesByItself accumulates gradients by itself; use strategy='ddp'"
    ):
        fit(Net(), micro, 2, strategy=AccumulatesByItself(torch.device("cpu")), accelerator="auto")


class _Started(lightning.fabric.plugins.environments.TorchElasticEnvironment):
    """Processes in a group that is there already."""

    @property
    def main_address(self) -> str:
        return "127.0.0.1"

    @property
    def main_port(self) -> int:
        return 29500

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        pass


@refused(
    "lightning", "`self.log(…)` without `batch_size`, for masked batches", "`self.log(…, batch_size=len(x))`"
)
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged, torch.sparse_coo])
def test_a_batch_whose_size_is_not_given(layout: torch.layout) -> None:
    class Logging(Net):
        def training_step(self, x: Any, batch_idx: int) -> Any:
            losses = x.square() * self.tagger.out.weight.sum()
            self.log("loss", losses.mean().detach(), on_epoch=True, **self.size(x))
            return self.losses(losses)

        def validation_step(self, x: Any, batch_idx: int) -> None:
            pass

    x = mg.from_lengths(torch.randn(3, 4), torch.tensor([1, 4, 2]))
    x = x.to_jagged() if layout is torch.jagged else x if layout is torch.strided else x.to_sparse()
    net = Logging()
    net.size = lambda x: {}
    with pytest.raises(TypeError, match=r"self\.log\(…, batch_size=len\(x\)\)"):
        fit(net, [x], 1)
    net = Logging()
    net.size = lambda x: {"batch_size": len(x)}
    fit(net, [x], 1)
