import torch

import maskgrad as mg


class Square(mg.Function):
    pattern = "intersection"  # elementwise

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


data = torch.tensor([3.0, float("nan"), 4.0], dtype=torch.float64, requires_grad=True)
x = mg.masked(data, torch.tensor([True, False, True]))
y = Square.apply(x)
y.sum().backward()
print(y.tolist(), data.grad.tolist())
print("agrees with finite differences:", mg.gradcheck(Square.apply, x))
print("also on plain tensors:", Square.apply(torch.ones(2)).tolist())
