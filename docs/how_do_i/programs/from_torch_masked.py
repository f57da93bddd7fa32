import warnings

import torch

import maskgrad as mg

data, mask = torch.tensor([[1.0, 2.0], [3.0, float("nan")]]), torch.tensor([[True, True], [True, False]])

warnings.simplefilter("ignore")  # torch.masked warns that it is a prototype
theirs = torch.masked.masked_tensor(data, mask)
ours = mg.masked(data, mask)
print(theirs.sum(1).get_data().tolist(), ours.sum(1).tolist())
print(torch.masked.mean(data, 1, mask=mask).tolist(), mg.functional.mean(data, 1, mask=mask).tolist())
print("converted:", mg.from_torch_masked(theirs).tolist())

layer = torch.nn.Linear(2, 1)
layer(ours).sum().backward()
print("the layer has a gradient:", layer.weight.grad is not None)
print("the intersection of different masks:", (ours + mg.masked(data, mask.flip(0))).tolist())
