import os
import tempfile

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import maskgrad as mg


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.EmbeddingBag(100, 8, sparse=True)
        self.dense = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, words):
        return self.dense(self.table(words)).squeeze(1)


def train(rank, folder):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.manual_seed(0)
    net = Net()
    fully_shard(net.dense, mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (2,)))
    model = mg.distributed.prepare(net)
    table = mg.optim.Adagrad(net.table.parameters(), lr=0.1)
    dense = torch.optim.AdamW(net.dense.parameters(), lr=0.01)
    words = torch.randint(0, 100, (6, 4), generator=torch.Generator().manual_seed(rank))
    losses = []
    for _ in range(30):
        table.zero_grad()
        dense.zero_grad()
        loss = (model(words) - words.float().mean(1) / 100).square().mean()
        loss.backward()
        table.step()
        dense.step()
        losses.append(loss.item())
    if rank == 0:
        print("the gradient of the table is sparse:", net.table.weight.grad.is_sparse)
        print("a layer holds its part of the rows:", tuple(net.dense[0].weight.to_local().shape))
        print("the loss fell to less than a third:", losses[-1] < losses[0] / 3, flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(train, (tempfile.mkdtemp(),), nprocs=2)
