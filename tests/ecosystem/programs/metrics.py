"""Metrics of torchmetrics and ignite on predictions and targets with holes."""

import torch
import torchmetrics
from ignite.engine import Engine
from ignite.metrics import Loss

import maskgrad as mg

mg.integrations.install()

torch.manual_seed(0)
target = torch.randn(40, 12)
known = torch.arange(12) < torch.randint(1, 13, (40, 1))  # sequences have different lengths
target = torch.where(known, target, float("nan"))
prediction = torch.randn(40, 12)
batches = list(zip(prediction.split(16), mg.masked(target, known).split(16), strict=True))

metrics = torchmetrics.MetricCollection(
    {"mse": torchmetrics.MeanSquaredError(), "r": torchmetrics.PearsonCorrCoef()}
)
for x, y in batches:
    metrics.update(*mg.align(x, y))
found = {name: value.item() for name, value in metrics.compute().items()}

evaluator = Engine(lambda _, batch: mg.align(*batch))  # (y_pred, y), as pairs
Loss(torch.nn.functional.mse_loss).attach(evaluator, "mse")
found["ignite"] = evaluator.run(batches).metrics["mse"]

pairs = prediction[known], target[known]
truth = torch.nn.functional.mse_loss(*pairs).item()
assert abs(found["mse"] - truth) < 1e-5
assert abs(found["ignite"] - truth) < 1e-5
assert abs(found["r"] - torch.corrcoef(torch.stack(pairs))[0, 1].item()) < 1e-5
