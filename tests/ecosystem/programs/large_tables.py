"""TorchRec: a table sharded by rows over two processes, masked sequences and targets, and a checkpoint that resumes."""

import functools
import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torchrec
from torch import nn
from torch.nn import functional as F
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

import maskgrad as mg

ROWS, WIDTH = 100, 8


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        first = functools.partial(nn.init.constant_, val=0.1)
        table = torchrec.EmbeddingConfig(
            name="words", embedding_dim=WIDTH, num_embeddings=ROWS, feature_names=["words"], init_fn=first
        )
        self.tables = torchrec.EmbeddingCollection(tables=[table], device=torch.device("meta"))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, words):
        features = mg.interop.to_keyed_jagged({"words": words})
        rows = mg.interop.from_keyed_jagged(self.tables(features))[
            "words"
        ]  # jagged: a sequence for each sample
        return self.head(rows.mean(1).filled(0.0)).squeeze(-1)


def sharded(seed):
    torch.manual_seed(seed)
    model = Model()
    # the table's own step, fused
    apply_optimizer_in_backward(torch.optim.Adagrad, model.tables.parameters(), {"lr": 0.1})
    sharders = [EmbeddingCollectionSharder()]
    constraints = {"words": ParameterConstraints(sharding_types=["row_wise"])}
    planner = EmbeddingShardingPlanner(topology=Topology(2, "cpu"), constraints=constraints)
    plan = planner.collective_plan(model, sharders, dist.group.WORLD)
    model = DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=sharders)
    return model, torch.optim.SGD([p for name, p in model.named_parameters() if "head" in name], 0.1)


def batch(rank):
    """Six sentences for rank 0, three for rank 1; every third target is missing."""
    generator = torch.Generator().manual_seed(rank)
    lengths = torch.randint(1, 5, (6 - 3 * rank,), generator=generator).tolist()
    sentences = [torch.randint(0, ROWS, (length,), generator=generator) for length in lengths]
    words = mg.from_sequences(sentences, layout=torch.jagged)
    target = words.float().mean(1).filled(0.0) / ROWS
    return words, mg.masked(target, torch.arange(len(target)) % 3 != 1)


def step(model, optimizer, words, target):
    optimizer.zero_grad()
    with mg.distributed.global_losses():  # one denominator: the targets of both ranks
        loss = F.mse_loss(model(words), target)
    loss.backward()
    optimizer.step()
    return loss.item()


def train(rank, folder):
    os.environ.update(
        GLOO_SOCKET_IFNAME="lo", LOCAL_RANK=str(rank), RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2"
    )
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    words, target = batch(rank)
    model, optimizer = sharded(seed=0)
    losses = [step(model, optimizer, words, target) for _ in range(10)]
    state = {"model": model.state_dict(), "table": model.fused_optimizer.state_dict()}
    dcp.save(state, checkpoint_id=f"{folder}/saved")
    losses += [step(model, optimizer, words, target) for _ in range(10)]

    again, optimizer = sharded(seed=1)  # other first values, soon replaced
    state = {"model": again.state_dict(), "table": again.fused_optimizer.state_dict()}
    dcp.load(state, checkpoint_id=f"{folder}/saved")
    again.load_state_dict(state["model"])
    again.fused_optimizer.load_state_dict(state["table"])
    resumed = [step(again, optimizer, words, target) for _ in range(10)]
    if rank == 0:
        torch.save((losses, resumed), f"{folder}/losses")
    rows = torch.zeros(ROWS, WIDTH) if rank == 0 else None
    for name, shards in model.state_dict().items():
        if name.startswith("tables"):
            shards.gather(dst=0, out=rows)
    if rank == 0:
        torch.save((rows, model.module.head.weight.detach()), f"{folder}/weights")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    folder = tempfile.mkdtemp()
    torch.multiprocessing.spawn(train, (folder,), nprocs=2)
    losses, resumed = torch.load(f"{folder}/losses")
    assert losses[-1] < losses[0] / 100
    assert torch.allclose(torch.tensor(resumed), torch.tensor(losses[10:]))  # as if nothing had happened
