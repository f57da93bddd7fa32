from __future__ import annotations

import torch

from benchmarks.memory import peak

MEGABYTE = 1 << 20


def test_freed_memory_is_not_counted_twice() -> None:
    def one_after_the_other() -> None:
        for _ in range(3):
            torch.ones(MEGABYTE, dtype=torch.uint8)

    def together() -> list[torch.Tensor]:
        return [torch.ones(MEGABYTE, dtype=torch.uint8) for _ in range(3)]

    assert MEGABYTE <= peak(one_after_the_other) < 1.1 * MEGABYTE
    assert 3 * MEGABYTE <= peak(together) < 3.1 * MEGABYTE
