import os
import tempfile

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import maskgrad as mg


def begin(rank):
    torch.manual_seed(0)
    model = mg.distributed.prepare(nn.Sequential(nn.EmbeddingBag(50, 8, sparse=True), nn.Linear(8, 1)))
    torch.manual_seed(rank)
    return model, mg.optim.AdamW(model.parameters(), lr=0.01)


def steps(model, optimizer):
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randint(0, 50, (4, 3))).square().mean().backward()
        optimizer.step()


def state(model, optimizer):
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model_state_dict": of_model, "optim_state_dict": of_optimizer}


def train(rank, folder):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    model, optimizer = begin(rank)
    steps(model, optimizer)
    dcp.save(state(model, optimizer), checkpoint_id=f"{folder}/saved")
    random = torch.get_rng_state()
    steps(model, optimizer)
    without_a_break = [parameter.detach() for parameter in model.parameters()]

    model, optimizer = begin(rank)
    saved = state(model, optimizer)  # of the same form, to read into
    dcp.load(saved, checkpoint_id=f"{folder}/saved")
    set_state_dict(model, optimizer, **saved)
    torch.set_rng_state(random)
    steps(model, optimizer)
    if rank == 0:
        equal = map(torch.equal, model.parameters(), without_a_break)
        print("bitwise equal on two ranks:", all(equal), flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(train, (tempfile.mkdtemp(),), nprocs=2)
