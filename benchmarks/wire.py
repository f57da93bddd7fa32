"""Measures what ``benchmarks.wire_model`` predicts: ``python -m benchmarks.wire`` (Linux, as root; minutes).

Up to eight processes on one machine, each in a network namespace of its own, joined by a bridge; what leaves a process
is held to 100 Mbit/s (``tc``, token bucket) or not at all. Bytes are counted by the kernel, headers and
acknowledgements included. Writes ``docs/pictures/wire_model.csv``; ``docs/pictures/wire_model.py`` draws it.
"""

from __future__ import annotations

import csv
import ctypes
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TO = Path(__file__).resolve().parent.parent / "docs" / "pictures" / "wire_model.csv"
RANKS = (2, 4, 8)
MBITS = (100, 0)
ROWS, WIDTH = 16_384, 64
DRAWS = (256, 2048)
EXPONENTS = (0.0, 1.0)
REPETITIONS = 5
_NETWORK = 0x40000000  # CLONE_NEWNET
COLUMNS = ("way", "ranks", "mbits", "rows", "width", "draws", "exponent", "distinct", "bytes", "seconds")


def shell(command: str) -> None:
    subprocess.run(command.split(), check=True)


def connect(ranks: int) -> None:
    """Give each rank a namespace: ``wire0``, ``wire1`` and so on."""
    shell("ip link add wirebridge type bridge")
    shell("ip link set wirebridge up")
    for rank in range(ranks):
        shell(f"ip netns add wire{rank}")
        shell(f"ip link add wirehost{rank} type veth peer name wire netns wire{rank}")
        shell(f"ip link set wirehost{rank} master wirebridge up")
        shell(f"ip -n wire{rank} addr add 10.77.0.{rank + 1}/24 dev wire")
        shell(f"ip -n wire{rank} link set wire up")
        shell(f"ip -n wire{rank} link set lo up")


def disconnect(ranks: int) -> None:
    for rank in range(ranks):
        subprocess.run(["ip", "netns", "del", f"wire{rank}"], check=False)
    subprocess.run(["ip", "link", "del", "wirebridge"], check=False)


def limit(mbits: int) -> None:
    """Hold what leaves this process to so many Mbit/s; 0: to nothing."""
    subprocess.run(["tc", "qdisc", "del", "dev", "wire", "root"], check=False, capture_output=True)
    if mbits:
        shell(f"tc qdisc add dev wire root tbf rate {mbits}mbit burst 32kb latency 200ms")


def enter(rank: int) -> None:
    """Move this process into the namespace of ``rank``; its threads follow, for there are none yet."""
    with Path(f"/run/netns/wire{rank}").open("rb") as handle:
        if ctypes.CDLL(None, use_errno=True).setns(handle.fileno(), _NETWORK):
            raise OSError(ctypes.get_errno(), "setns")


def sent_and_received() -> tuple[int, int]:
    counters = Path("/proc/net/dev").read_text(encoding="utf-8").split("wire:")[1].split()
    return int(counters[8]), int(counters[0])


def measure(rank: int, ranks: int, answers: Any) -> None:
    """What runs on each rank."""
    enter(rank)
    import torch
    import torch.distributed as dist

    import maskgrad as mg
    from benchmarks.wire_model import distinct_rows

    os.environ["GLOO_SOCKET_IFNAME"] = "wire"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="tcp://10.77.0.1:29500", rank=rank, world_size=ranks)

    def observe(group: Any, step: Callable[[], None]) -> tuple[float, float]:
        """Median seconds and bytes, of the rank that has most of each."""
        step()
        seconds, volumes = [], []
        for _ in range(REPETITIONS):
            dist.barrier(group)
            before, start = sent_and_received(), time.perf_counter()
            step()
            mine = time.perf_counter() - start
            after = sent_and_received()
            both = torch.tensor(
                [mine, max(b - a for a, b in zip(before, after, strict=True))], dtype=torch.float64
            )
            dist.all_reduce(both, dist.ReduceOp.MAX, group)
            seconds.append(both[0].item())
            volumes.append(both[1].item())
        return sorted(volumes)[REPETITIONS // 2], sorted(seconds)[REPETITIONS // 2]

    for size in RANKS:
        group = dist.new_group(list(range(size)))
        if rank < size:
            for mbits in MBITS:
                limit(mbits)
                dist.barrier(group)
                for line in lines(rank, size, group, observe, torch, mg, distinct_rows):
                    if rank == 0:
                        answers.put({**line, "mbits": mbits})
            limit(0)
        dist.barrier()
    if rank == 0:
        answers.put(None)
    dist.barrier()


def lines(rank: int, size: int, group: Any, observe: Any, torch: Any, mg: Any, distinct_rows: Any) -> Any:
    """One after the other what is measured on ``size`` ranks."""
    from torch.distributed import all_reduce

    generator = torch.Generator().manual_seed(rank)
    shape = {"ranks": size, "rows": ROWS, "width": WIDTH}
    dense = torch.ones(ROWS, WIDTH)
    volume, seconds = observe(group, lambda: all_reduce(dense, group=group))
    yield {**shape, "way": "dense", "bytes": volume, "seconds": seconds}
    for draws in DRAWS:
        for exponent in EXPONENTS:
            weights = torch.arange(1.0, ROWS + 1) ** -exponent
            index = torch.multinomial(weights, draws, replacement=True, generator=generator)
            facts = {**shape, "draws": draws, "exponent": exponent}
            facts["distinct"] = distinct_rows(ROWS, draws, exponent)
            distinct = index.unique()
            param = torch.nn.Parameter(torch.zeros(ROWS, WIDTH))

            def exchange(param: Any = param, distinct: Any = distinct) -> None:
                values = torch.ones(len(distinct), WIDTH)
                param.grad = torch.sparse_coo_tensor(
                    distinct[None], values, param.shape, is_coalesced=True, check_invariants=False
                )
                mg.distributed.all_reduce_gradients([param], group, exchange="sparse")

            volume, seconds = observe(group, exchange)
            yield {**facts, "way": "sparse", "bytes": volume, "seconds": seconds}
            for placement in ("block", "cyclic"):
                table = mg.distributed.ShardedEmbedding(ROWS, WIDTH, placement=placement, process_group=group)

                def step(table: Any = table, index: Any = index) -> None:
                    table.weight.grad = None
                    table(index).sum().backward()

                volume, seconds = observe(group, step)
                yield {**facts, "way": f"sharded {placement}", "bytes": volume, "seconds": seconds}


def main() -> None:
    from benchmarks.provenance import provenance

    if sys.platform != "linux" or os.geteuid() != 0:
        sys.exit("this needs Linux and root, for network namespaces and tc")
    facts = provenance()
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    processes = [
        context.Process(target=measure, args=(rank, max(RANKS), answers)) for rank in range(max(RANKS))
    ]
    connect(max(RANKS))
    try:
        for process in processes:
            process.start()
        rows = list(iter(lambda: answers.get(timeout=600), None))
    finally:
        for process in processes:
            process.join(10)
            process.kill()
        disconnect(max(RANKS))
    with TO.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*COLUMNS, *facts], lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, **facts} for row in rows)
    print(f"{len(rows)} lines in {TO}")


if __name__ == "__main__":
    main()
