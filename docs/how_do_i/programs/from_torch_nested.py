import torch

import maskgrad as mg

parts = [torch.tensor([[1.0], [3.0]]), torch.tensor([[5.0]])]
nested = torch.nested.nested_tensor(parts, layout=torch.jagged)
x = mg.from_nested(nested, layout=torch.jagged)
print(x.shape, x.lengths().tolist(), x.values().flatten().tolist())
print("mean of each sequence:", x.mean(1).tolist())
print([part.tolist() for part in mg.interop.to_nested(x).unbind()])

y = mg.from_sequences(parts, layout=torch.jagged)  # straight from the list
print((x + y).values().flatten().tolist())
