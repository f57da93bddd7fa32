import pandas as pd
import torch
from torch import nn
from torch.nn import functional as F

import maskgrad as mg

frame = pd.DataFrame(
    {
        "age": pd.array([31, None, 58, 44], dtype="Int64"),
        "income": [2100.0, 3300.0, float("nan"), 1800.0],
        "city": ["Rome", None, "Oslo", "Rome"],
        "owns": pd.Categorical(["flat", "house", "flat", None]),
        "spent": [210.0, 330.0, float("nan"), 150.0],
    }
)
cities, owned = ["Oslo", "Paris", "Rome"], list(frame["owns"].cat.categories)
numbers = mg.from_pandas(frame[["age", "income"]], dtype=torch.float32)
city = mg.from_pandas(frame["city"], categories=cities)  # the same codes for training and test
owns = mg.from_pandas(frame["owns"])
target = mg.from_pandas(frame["spent"], dtype=torch.float32)
print(city.tolist(), owns.tolist(), numbers.dtype)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.city, self.owns = nn.Embedding(len(cities), 4), nn.Embedding(len(owned), 4)
        self.numbers, self.last = nn.Linear(2, 4), nn.Linear(4, 1)

    def forward(self, numbers, city, owns):
        parts = torch.stack([self.numbers(self.norm(numbers)), self.city(city), self.owns(owns)])
        return self.last(parts.mean(0).relu()).squeeze(1)  # the mean of the specified parts


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
for step in range(200):
    optimizer.zero_grad()
    loss = F.mse_loss(model(numbers, city, owns), target / 100)
    loss.backward()
    optimizer.step()
    if step == 0:
        first = loss.item()
print("the loss fell to less than half:", loss.item() < first / 2)
print("predictions for all rows:", model(numbers, city, owns).mask.all().item())
