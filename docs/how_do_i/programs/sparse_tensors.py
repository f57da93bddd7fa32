import torch

import maskgrad as mg

t = torch.sparse_coo_tensor([[0, 1, 1], [0, 0, 2]], [5.0, 0.0, 7.0], (2, 3)).coalesce()
x = mg.from_sparse(t)
print(x.to_dense().tolist())  # the stored zero is specified
print("mean of the stored entries:", x.mean().item(), "of all:", t.to_dense().mean().item())

back = x.to_sparse_tensor()
print(back.layout, back.values().tolist())

csr = mg.from_nan(torch.tensor([[1.0, float("nan")], [float("nan"), 4.0]])).to_sparse(layout=torch.sparse_csr)
print(csr.layout, (csr @ torch.ones(2, 1)).tolist())

weights = torch.ones(3, requires_grad=True)
mg.from_sparse(torch.sparse_coo_tensor([[0, 2, 2]], weights, (4,))).sum().backward()
print("gradient:", weights.grad.tolist())
