"""Lightning: micro-batches of four sequences, eight of them a step, one denominator."""

import lightning
import torch
import torchmetrics
from torch import nn
from torch.nn import functional as F

import maskgrad as mg

mg.integrations.install()

torch.manual_seed(0)
tokens = torch.randint(1, 50, (64, 12))
lengths = torch.randint(1, 13, (64, 1))
labels = torch.where(torch.arange(12) < lengths, tokens % 7, -100)  # -100: nothing to learn there
data = list(zip(tokens, labels, strict=True))


class Net(mg.integrations.LightningMixin, lightning.LightningModule):
    """The mixin comes first."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 7))
        self.val_loss = torchmetrics.MeanMetric()

    def unreduced(self, batch):
        x, y = batch
        return F.cross_entropy(self.layers(x).transpose(1, 2), mg.masked(y, y != -100), reduction="none")

    def training_step(self, batch, batch_idx):
        return self.losses(self.unreduced(batch))

    def validation_step(self, batch, batch_idx):
        self.val_loss.update(self.unreduced(batch).compressed())  # over all labels of the epoch, on all ranks
        self.log("val_loss", self.val_loss)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.1)


trainer = lightning.Trainer(
    accelerator="cpu",
    devices=1,
    max_epochs=20,
    accumulate_grad_batches=8,
    gradient_clip_val=1.0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(
    Net(),
    torch.utils.data.DataLoader(data, batch_size=4, shuffle=True),
    torch.utils.data.DataLoader(data, batch_size=16),
)
assert trainer.callback_metrics["val_loss"] < 0.5
