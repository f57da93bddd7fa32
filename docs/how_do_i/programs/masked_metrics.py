import torch

import maskgrad as mg

prediction = torch.tensor([[0, 1, 2], [1, 1, 0]])
labels = torch.tensor([[0, 2, 2], [1, -100, -100]])
masked = mg.masked(labels, labels != -100)

found, expected = mg.align(prediction, masked)
print("pairs:", found.tolist(), expected.tolist())
print("accuracy:", (found == expected).float().mean().item())
print("with padding:", (prediction == labels).float().mean().item())

# The same in one expression: the mean of a masked comparison is over its specified entries.
print("also:", (masked == prediction).float().mean().item())
