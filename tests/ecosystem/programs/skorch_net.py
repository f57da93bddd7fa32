"""skorch: micro-batches of four sequences, eight of them a step, one denominator."""

import skorch
import torch
from skorch.callbacks import GradientNormClipping
from torch import nn

import maskgrad as mg

mg.integrations.install()

torch.manual_seed(0)
tokens = torch.randint(1, 50, (64, 12))
lengths = torch.randint(1, 13, (64, 1))
labels = torch.where(torch.arange(12) < lengths, tokens % 7, -100)  # -100: nothing to learn there
data = torch.utils.data.StackDataset(tokens, labels)  # a sample: its tokens, its labels


class Net(skorch.NeuralNet):
    """A step has `every` batches, or those that remain of an epoch; the loss of an epoch is a mean over labels."""

    every = 8

    def on_train_begin(self, net, *args, **kwargs):
        super().on_train_begin(net, *args, **kwargs)
        self.waiting, self.accumulator = 0, mg.GradientAccumulator(self.module_)

    def on_train_end(self, net, *args, **kwargs):
        super().on_train_end(net, *args, **kwargs)
        self.accumulator = self.losses = None  # nets are pickled

    def get_loss(self, y_pred, y_true, *args, **kwargs):
        y = y_true.to(self.device)
        self.losses = self.criterion_(y_pred, mg.masked(y, y != -100))
        return self.losses.sum() / self.losses.num_specified().clamp(min=1)

    def train_step(self, batch, **fit_params):
        self.module_.train()
        x, y = batch
        y_pred = self.infer(x, **fit_params)
        loss = self.get_loss(y_pred, y)
        self.accumulator.backward(self.losses)
        self.waiting += 1
        if self.waiting == self.every:
            self.finish()
        return {"loss": loss, "y_pred": y_pred}

    def run_single_epoch(self, *args, **kwargs):
        super().run_single_epoch(*args, **kwargs)
        if self.waiting:
            self.finish()

    def finish(self):
        self.waiting = 0
        self.accumulator.finish()
        named = list(self.module_.named_parameters())
        self.notify("on_grad_computed", named_parameters=named, training=True)  # clips
        self.optimizer_.step()
        self.optimizer_.zero_grad()

    def on_batch_end(self, net, *args, training=False, **kwargs):
        super().on_batch_end(net, *args, training=training, **kwargs)
        count = int(self.losses.num_specified())  # the weight of the batch in the epoch's mean
        self.history.record_batch("train_batch_size" if training else "valid_batch_size", count)


class Tagger(nn.Module):
    """Scores, with the classes where PyTorch's losses want them."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 7))

    def forward(self, x):
        return self.layers(x).transpose(1, 2)


net = Net(
    Tagger,
    criterion=nn.CrossEntropyLoss,
    criterion__reduction="none",
    optimizer=torch.optim.AdamW,
    lr=0.1,
    batch_size=4,
    max_epochs=20,
    iterator_train__shuffle=True,
    callbacks=[GradientNormClipping(1.0)],
)
net.fit(data, y=None)
assert net.history[-1, "train_loss"] < 0.5  # over all labels of the epoch; so is valid_loss
