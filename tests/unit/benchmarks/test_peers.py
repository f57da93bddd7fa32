from __future__ import annotations

import sys

import pytest

from benchmarks.peers import PEERS, YARDSTICKS, why_absent


@pytest.fixture(autouse=True)
def _ask_anew() -> None:
    why_absent.cache_clear()


def test_what_is_part_of_torch_is_always_here() -> None:
    assert why_absent("torch.masked") == why_absent("where") == ""
    assert set(PEERS) >= YARDSTICKS


@pytest.mark.parametrize(("peer", "module"), [("scipy", "scipy"), ("fbgemm", "fbgemm_gpu")])
def test_an_absent_package_is_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, peer: str, module: str
) -> None:
    for loaded in [name for name in sys.modules if name.startswith(module)]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, module, None)
    reason = why_absent(peer)
    assert module in reason
    assert "maskgrad[bench]" in reason
    why_absent.cache_clear()


def test_without_a_compiler_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "C++ compiler" in why_absent("compiled-where")
    why_absent.cache_clear()
