from __future__ import annotations

import pytest
import torch

import maskgrad as mg
from examples.movielens import step_timing
from examples.movielens.data import ratings_of_frame
from examples.movielens.tests.small_ratings import small_frame


def test_every_step_is_timed_for_both() -> None:
    times = step_timing.no_times()
    step_timing.measure(ratings_of_frame(small_frame()), 12, times)
    assert set(times.whole) == set(times.optimizer) == {"mg.optim.Adagrad", "torch.optim.Adagrad"}
    for name, whole in times.whole.items():
        assert len(whole) == 12
        assert all(0 < part < all_of_it for part, all_of_it in zip(times.optimizer[name], whole, strict=True))


def test_nothing_is_timed_when_the_optimizers_disagree(monkeypatch) -> None:
    class Wrong(mg.optim.Adagrad):
        def step(self, closure=None):
            super().step(closure)
            with torch.no_grad():
                self.param_groups[0]["params"][0][0, 0] += 0.5

    monkeypatch.setattr(mg.optim, "Adagrad", Wrong)
    times = step_timing.no_times()
    with pytest.raises(step_timing.DisagreementError, match=r"differ by up to .* in user_factors\.weight"):
        step_timing.measure(ratings_of_frame(small_frame()), 3, times)
    assert not times.whole["mg.optim.Adagrad"]
