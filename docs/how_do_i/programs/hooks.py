import torch

import maskgrad as mg

data = torch.tensor([3.0, float("nan"), 4.0], requires_grad=True)
x = mg.from_nan(data)
x.register_hook(lambda gradient: gradient / gradient.norm())
(x * x).sum().backward()
print("normalised:", [round(g, 4) for g in data.grad.tolist()])

layer = torch.nn.Softplus()
layer.register_full_backward_hook(
    lambda module, grad_input, grad_output: print("in the module:", grad_input[0].tolist())
)
layer(mg.from_nan(torch.tensor([0.0, float("nan")], requires_grad=True))).sum().backward()

weights = torch.ones(3, requires_grad=True)
mg.mask_gradient(weights, torch.tensor([True, False, True])).sum().backward()
print("masked:", weights.grad.tolist())
