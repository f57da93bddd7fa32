import torch

import maskgrad as mg

x = mg.masked(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[True, False], [True, True]]))
row = x[0]
row[1] = 9.0  # specifies the entry, in x as well
print(x.tolist())

x[1, 0] = mg.unspecified
x.mul_(10)
print(x.tolist())

x[(x > 50).filled(False)] = 50.0  # an unknown entry is not greater than 50
print(x.tolist())

data = torch.zeros(3)
shared = mg.masked(data, torch.tensor([True, True, False]))
shared.add_(1)  # mg.masked shares its data, as torch.from_numpy does
print(data[:2].tolist(), shared.clone().tolist())
