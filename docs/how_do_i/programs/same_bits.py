import torch
import torch.nn.functional as F
from torch import nn

import maskgrad as mg


class Attention(nn.Module):
    def forward(self, q, k, v, mask=None):
        q, k, v = (x.unflatten(-1, (8, 32)).transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(256, 256) for _ in range(4))
        self.attention = Attention()

    def forward(self, x, mask=None):
        return self.out(self.attention(self.q(x), self.k(x), self.v(x), mask))


torch.manual_seed(0)
model = Model().bfloat16().eval().requires_grad_(False)
lengths = torch.randint(50, 101, (16,))
texts = torch.randn(16, 137, 256, dtype=torch.bfloat16)


def plain(texts, lengths):  # keys behind the end of a text are masked, as in any serving code
    return model(texts, (torch.arange(texts.shape[1]) < lengths[:, None])[:, None, None])


def masked(texts, lengths):
    return model(mg.from_lengths(texts, lengths)).filled(0.0)


def changed(function):
    """Of how many texts other bits come in the batch than alone."""
    together, different = function(texts, lengths), 0
    for i, n in enumerate(lengths):
        alone = function(texts[i : i + 1, :n], lengths[i : i + 1])
        different += not torch.equal(together[i, :n], alone[0])
    return different


print("plain:", changed(plain) > 0)
with mg.use_kernels("invariant"):
    print("invariant:", changed(masked) > 0)
    packed = model(mg.from_lengths(texts, lengths, layout=torch.jagged)).to_dense()
    print("packed as padded:", torch.equal(packed.filled(0.0), masked(texts, lengths)))

# Where: the first line of which a sample's bits depend on its batch.
model.requires_grad_()


def step(batch):
    kept = batch["mask"][..., None]
    return (model(batch["texts"], batch["mask"][:, None, None]) * kept).float().square().mean()


mask = torch.arange(137) < lengths[:, None]
batch = {"texts": texts * mask[..., None], "mask": mask}
(found,) = mg.doctor.examine(step, batch, experiments="batch-bits").findings
print(found.kind, found.code, sep=": ")
