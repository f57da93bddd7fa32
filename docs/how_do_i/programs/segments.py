import torch

import maskgrad as mg

torch.manual_seed(0)

# softmax over the edges of each node, in any order
node, scores = torch.tensor([2, 0, 2, 0, 2]), torch.randn(5)
order = node.argsort(stable=True)
offsets = torch.bincount(node, minlength=3).cumsum(0)
by_node = mg.from_offsets(scores[order], torch.nn.functional.pad(offsets, (1, 0)))
weights = torch.empty(5).scatter(0, order, by_node.softmax(1).values())
sums = torch.zeros(3).scatter_reduce(0, node, weights, "sum")
print("segment softmax, sums by node:", sums.round(decimals=4).tolist())

# AUROC of each task, with missing labels
scores, labels = torch.randn(40, 2), mg.masked(torch.randint(0, 2, (40, 2)), torch.rand(40, 2) > 0.3)
rank = mg.ranks(mg.masked(scores, labels.mask), dim=0)
positive = labels.sum(0)
negative = (1 - labels).sum(0)
auroc = ((rank * labels).sum(0) - positive * (positive - 1) / 2) / (positive * negative)
pairs = [scores[:, task][labels.filled(-1)[:, task] == value] for task in (0, 1) for value in (1, 0)]
direct = [(pairs[2 * t][:, None] > pairs[2 * t + 1]).float().mean() for t in (0, 1)]
print("AUROC as by all pairs:", torch.allclose(auroc.filled(0.0), torch.stack(direct)))

# expected calibration error over the known labels
confidence = torch.rand(200)
correct = mg.masked((torch.rand(200) < confidence).float(), torch.rand(200) > 0.2)
bins = torch.bucketize(confidence, torch.linspace(0.1, 0.9, 9))
gap = torch.zeros(10).scatter_reduce(0, bins, (correct - confidence).filled(0.0), "sum")
error = gap.abs().sum() / correct.num_specified()
print("calibration error of a calibrated model below 0.15:", bool(error < 0.15))

# nucleus: the smallest set of tokens that has probability p
logits = torch.tensor([[3.0, 1.0, 2.0, -1.0]])
sorted_, order = logits.softmax(-1).sort(descending=True)
kept = torch.zeros_like(logits, dtype=torch.bool).scatter(1, order, sorted_.cumsum(1) - sorted_ < 0.8)
print("nucleus:", [round(p, 4) if p else None for p in mg.masked(logits, kept).softmax(-1).tolist()[0]])

# length regulator: each token as often as its duration says
tokens = mg.from_sequences([torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0])], layout=torch.jagged)
durations = mg.from_sequences([torch.tensor([2, 0, 1]), torch.tensor([3])], layout=torch.jagged)
frames = tokens.values().repeat_interleave(durations.values())
ends = torch.nn.functional.pad(durations.sum(1).filled(0).cumsum(0), (1, 0))
print("length regulator:", mg.from_offsets(frames, ends).tolist())
