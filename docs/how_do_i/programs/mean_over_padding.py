import torch

import maskgrad as mg

padded = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [0.0, 0.0]], [[5.0, 6.0], [0.0, 0.0], [0.0, 0.0]]])
lengths = torch.tensor([2, 1])

print("with padding:", padded.mean(1).tolist())
pooled = mg.from_lengths(padded, lengths).mean(1)
print("without padding:", pooled.tolist())

# By hand: the mask, the zeros, the count, and a guard for sequences of length 0.
mask = torch.arange(padded.shape[1]) < lengths[:, None]
by_hand = (padded * mask[..., None]).sum(1) / lengths.clamp(min=1)[:, None]
print("the same by hand:", torch.equal(pooled.filled(0.0), by_hand))
