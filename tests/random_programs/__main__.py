"""``make fuzz``: run many random programs, until one fails."""

from __future__ import annotations

import argparse
import warnings

import torch
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from rich.progress import track

from tests.random_programs.machine import STEPS, Programs

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--number", type=int, default=1_000_000)
number = parser.parse_args().number
torch.set_num_threads(1)
warnings.simplefilter("ignore")  # PyTorch warns of casts
batch = settings(
    max_examples=1_000, stateful_step_count=STEPS, deadline=None, suppress_health_check=list(HealthCheck)
)
# Hypothesis keeps what it has drawn in memory: a batch at a time.
for _ in track(range(0, number, batch.max_examples), description="programs"):
    run_state_machine_as_test(Programs, settings=batch)
