import torch
from torch import nn

import maskgrad as mg

torch.manual_seed(0)
attention = nn.MultiheadAttention(8, 2, batch_first=True)
x, lengths = torch.randn(3, 5, 8), torch.tensor([5, 2, 0])
batch = mg.from_lengths(x, lengths)

out, _ = attention(batch, batch, batch, need_weights=False)
print("positions with a result:", out.mask.any(2).sum(1).tolist())

padding = torch.arange(5) >= lengths[:, None]  # True: left out
by_hand, _ = attention(x, x, x, key_padding_mask=padding, need_weights=False)
print(
    "the same where both are defined:",
    torch.allclose(out.filled(0.0)[:2], by_hand[:2] * ~padding[:2, :, None], atol=1e-5),
)
print("by hand, a sequence of length 0:", by_hand[2, 0, 0].item(), "with maskgrad:", out.tolist()[2][0][0])
