import torch

import maskgrad as mg

x = torch.tensor([4.0, 0.0, 9.0], requires_grad=True)
mask = x.detach() > 0

torch.where(mask, x.sqrt(), 0).sum().backward()  # the value is fine
print("where:", x.grad.tolist())

with torch.autograd.set_detect_anomaly(True, check_nan=True):
    try:
        torch.where(mask, x.sqrt(), 0).sum().backward()
    except RuntimeError as error:
        print(error)

x.grad = None
with torch.autograd.set_detect_anomaly(True):  # silent
    mg.masked(x, mask).sqrt().sum().backward()
print("masked:", [round(g, 4) for g in x.grad.tolist()])


# In the forward pass: a hook on every module reports the first NaN.
def report(module, inputs, output):
    if output.isnan().any():
        print("NaN after", type(module).__name__)


model = torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.Softmax(1))
for layer in model:
    layer.register_forward_hook(report)
model(torch.tensor([[float("inf")]]))
