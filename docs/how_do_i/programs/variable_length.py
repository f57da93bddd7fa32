import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import maskgrad as mg

torch.manual_seed(0)
data = []
for length in torch.randint(1, 9, (64,)).tolist():
    words = torch.randint(0, 20, (length,))
    data.append({"words": words, "label": int((words < 10).float().mean() > 0.5)})
loader = DataLoader(data, batch_size=16, shuffle=True, collate_fn=mg.interop.collate_jagged)

table, head = nn.Embedding(20, 16), nn.Linear(16, 2)
layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
parameters = [*table.parameters(), *encoder.parameters(), *head.parameters()]
optimizer = torch.optim.Adam(parameters, lr=0.01)
losses = []
for _ in range(12):
    for batch in loader:
        optimizer.zero_grad()
        scores = head(encoder(table(batch["words"])).mean(1))
        loss = F.cross_entropy(scores, batch["label"])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
print(
    "layout:",
    batch["words"].layout,
    "rows:",
    batch["words"].values().shape[0] == int(batch["words"].lengths().sum()),
)
print("the loss fell to less than half:", sum(losses[-4:]) < sum(losses[:4]) / 2)
