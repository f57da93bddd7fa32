"""The traps that conftest.py sets for every test do catch something."""

import pytest
import torch


def test_uninitialized_memory_is_nan() -> None:
    assert torch.empty(3).isnan().all()
    assert torch.ones(2).new_empty(3).isnan().all()
    assert torch.empty_like(torch.ones(2, dtype=torch.float16)).isnan().all()


@pytest.mark.nondeterministic
def test_the_filling_can_be_turned_off() -> None:
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("_run", [1, 2])
def test_every_test_draws_the_same_numbers(_run: int) -> None:
    generator = torch.Generator().manual_seed(0)
    assert torch.equal(torch.rand(4), torch.rand(4, generator=generator))


def _double(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


_compiled: list[torch.fx.GraphModule] = []


def _count(graph: torch.fx.GraphModule, _example_inputs: object) -> torch.fx.GraphModule:
    _compiled.append(graph)
    return graph


@pytest.mark.parametrize("_run", [1, 2])
def test_every_test_compiles_afresh(_run: int) -> None:
    _compiled.clear()
    assert torch.compile(_double, backend=_count)(torch.ones(2)).tolist() == [2.0, 2.0]
    assert len(_compiled) == 1


def test_a_warning_is_an_error() -> None:
    import warnings

    with pytest.raises(UserWarning, match="loud"):
        warnings.warn("loud", stacklevel=1)
