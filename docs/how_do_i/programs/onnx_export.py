import tempfile
from pathlib import Path

import onnxruntime
import torch

import maskgrad as mg


class Pool(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)

    def forward(self, series):
        return self.linear(series).mean(1)


torch.manual_seed(0)
model = Pool().eval()
example = mg.masked(torch.randn(2, 5, 3), torch.ones(2, 5, 3, dtype=torch.bool))
path = Path(tempfile.mkdtemp()) / "pool.onnx"
file = mg.onnx.export(model, example, path)
for port in [*file.inputs, *file.outputs]:
    print(port.name, port.shape)

session = onnxruntime.InferenceSession(path)
data, mask = torch.randn(4, 5, 3), torch.rand(4, 5, 3) < 0.5  # another batch, other masks
found, _ = session.run(None, {"series": data.numpy(), "series_mask": mask.numpy()})
expected = model(mg.masked(data, mask)).filled(0.0)
print("equals PyTorch:", torch.allclose(torch.from_numpy(found), expected, atol=1e-5))
