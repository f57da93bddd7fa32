import tempfile
from pathlib import Path

import torch

import maskgrad as mg

folder = Path(tempfile.mkdtemp())
x = mg.from_nan(torch.tensor([[1.0, float("nan")], [3.0, 4.0]]))

torch.save(x, folder / "x.pt")
again = torch.load(folder / "x.pt", weights_only=False)
print(again.tolist())

# Plain tensors: any program can read them, and torch.load unpickles no classes.
torch.save({"data": x.filled(0.0), "mask": x.mask}, folder / "parts.pt")
parts = torch.load(folder / "parts.pt")
print(mg.masked(parts["data"], parts["mask"]).tolist())
