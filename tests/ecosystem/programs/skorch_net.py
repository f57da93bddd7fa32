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
masked = mg.masked(labels, labels != -100)
data = torch.utils.data.StackDataset(tokens, masked)  # a sample: its tokens, its masked labels


class Net(mg.integrations.SkorchMixin, skorch.NeuralNet):
    """The mixin comes first."""

    accumulate_batches = 8


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
