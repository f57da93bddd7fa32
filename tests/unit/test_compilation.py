"""Compilations are counted, with their reasons; a promise that there are none is kept or raises."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from tests.poison import on


def scaled(x: Tensor, by: float) -> Tensor:
    return x * by


def compiled(function: Any = scaled, **options: Any) -> Any:
    return torch.compile(function, backend="eager", **options)


class TestCounting:
    def test_first_compilations_and_recompilations(self) -> None:
        f = compiled()
        with mg.count_recompiles() as seen:
            f(torch.ones(2), 2.0)
            assert seen.number == 1
            f(torch.zeros(2), 2.0)
            assert seen.number == 1
            f(torch.ones(2).double(), 2.0)
            assert seen.number == int(seen) == 2
        f(torch.ones(2).int(), 2.0)
        assert seen.number == 2
        assert "scaled" in seen.reasons[0]
        assert "compiled for the first time" in seen.reasons[0]
        assert "dtype mismatch" in seen.reasons[1]
        assert repr(seen) == "Compilations(number=2)"

    def test_pieces_of_a_broken_graph(self) -> None:
        def broken(x: Tensor) -> Tensor:
            y = x + 1
            torch._dynamo.graph_break()
            return y * 2

        with mg.count_recompiles() as seen:
            compiled(broken)(torch.ones(2))
        assert seen.number == 2

    @pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
    def test_a_backward_pass_belongs_to_its_forward_pass(self) -> None:
        f = torch.compile(scaled, backend="aot_eager")
        x = torch.ones(2, requires_grad=True)
        y = f(x, 2.0)
        with mg.count_recompiles() as seen:
            y.sum().backward()
        assert seen.number == 0

    def test_reset_and_cleared_counters(self) -> None:
        from torch._dynamo.utils import counters

        f = compiled()
        with mg.count_recompiles() as seen:
            torch._dynamo.reset()
            f(torch.ones(2), 2.0)
        assert seen.number == 1
        with mg.count_recompiles() as seen:
            counters.clear()
            f(torch.ones(3).double(), 2.0)
        assert seen.number == 1

    def test_blocks_may_be_nested(self) -> None:
        f = compiled()
        with mg.count_recompiles() as outer:
            f(torch.ones(2), 2.0)
            with mg.count_recompiles() as inner:
                f(torch.ones(2).double(), 2.0)
        assert (outer.number, inner.number) == (2, 1)

    def test_an_error_in_the_block_passes_and_nothing_stays_registered(self) -> None:
        from torch._dynamo.callback import callback_handler

        before = list(callback_handler.start_callbacks)

        def fail() -> None:
            with mg.assert_no_recompile():
                compiled()(torch.ones(2), 2.0)
                raise KeyError

        with pytest.raises(KeyError):
            fail()
        assert callback_handler.start_callbacks == before

    def test_graphs_of_xla(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # PyTorch/XLA cannot be installed beside this PyTorch: a stand-in with its interface
        metrics = ModuleType("torch_xla.debug.metrics")
        data: list[Any] = [None]
        metrics.metric_data = lambda name: data[0] if name == "CompileTime" else None  # type: ignore[attr-defined]
        debug = ModuleType("torch_xla.debug")
        debug.metrics = metrics  # type: ignore[attr-defined]
        for name, module in (("torch_xla", ModuleType("torch_xla")), ("torch_xla.debug", debug)):
            monkeypatch.setitem(sys.modules, name, module)
        with mg.count_recompiles() as seen:
            assert seen.number == 0
            data[0] = (3, 1.5, [])
        assert seen.number == 3
        assert seen.reasons == ["PyTorch/XLA: 3 graphs"]
        with mg.assert_no_recompile():
            pass


class TestPromise:
    def test_kept_while_masks_change(self) -> None:
        f = compiled(lambda x, m: mg.masked(x, m).mean(), fullgraph=True)
        f(torch.ones(3), on(1, 0, 0))
        with mg.assert_no_recompile():
            for mask in (on(0, 0, 0), on(1, 1, 1), on(0, 1, 1)):
                f(torch.ones(3), mask)

    def test_broken_by_a_first_compilation(self) -> None:
        message = r"compiled once in a block .*\n.*scaled .*first time\nCall the function"
        with pytest.raises(AssertionError, match=message), mg.assert_no_recompile():
            compiled()(torch.ones(2), 2.0)

    def test_says_why(self) -> None:
        f = compiled()
        f(torch.ones(2), 2.0)
        integers = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]

        def change() -> None:
            with mg.assert_no_recompile():
                for dtype in (torch.float64, *integers, torch.half):
                    f(torch.ones(2, dtype=dtype), 2.0)

        with pytest.raises(AssertionError, match=r"compiled 7 times(.|\n)*dtype mismatch(.|\n)*and 2 more"):
            change()

    def test_broken_at_the_limit_of_recompilations(self) -> None:
        def limited(x: Tensor) -> Tensor:
            return x * 3

        f = compiled(limited)
        with torch._dynamo.config.patch(recompile_limit=1):
            f(torch.ones(2))
            with pytest.raises(AssertionError, match="compiled once"), mg.assert_no_recompile():
                f(torch.ones(2).double())


def test_graphs_that_another_version_has_compiled_are_not_found_on_disk() -> None:
    assert torch.compiler.config.cache_key_tag.endswith(f"maskgrad {mg.__version__}")


def test_dynamo_is_imported_by_those_who_count() -> None:
    code = (
        "import sys, maskgrad as mg; assert 'torch._dynamo' not in sys.modules\n"
        "with mg.assert_no_recompile(): pass\n"
        "assert 'torch._dynamo' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
