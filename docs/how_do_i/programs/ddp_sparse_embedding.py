import os
import tempfile

import torch
from torch import nn
from torch.nn import functional as F

import maskgrad as mg

words = torch.randint(0, 100, (8, 4), generator=torch.Generator().manual_seed(1))
labels = words.float().mean(1) / 100
labels[::3] = float("nan")  # unknown


def train(rank, size, folder):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size
    )
    torch.manual_seed(0)
    net = nn.Sequential(nn.EmbeddingBag(100, 8, sparse=True), nn.Linear(8, 1), nn.Flatten(0))
    model = mg.distributed.prepare(net)
    optimizer = mg.optim.Adagrad(net.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        with mg.distributed.global_losses():
            loss = F.mse_loss(model(words[rank::size]), mg.from_nan(labels[rank::size]))
        loss.backward()
        optimizer.step()
    mg.distributed.check_parameters(net)  # all processes have the same model
    if rank == 0:
        torch.save([loss.item(), net[0].weight.grad.is_sparse], f"{folder}/{size}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    one, two = tempfile.mkdtemp(), tempfile.mkdtemp()
    train(0, 1, one)
    torch.multiprocessing.spawn(train, (2, two), nprocs=2)
    found = [torch.load(f"{one}/1.pt"), torch.load(f"{two}/2.pt")]
    print("the gradient of the table is sparse:", found[1][1])
    print("two processes train like one:", abs(found[0][0] - found[1][0]) < 1e-5)
