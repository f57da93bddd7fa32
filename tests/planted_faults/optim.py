"""Faults in optimizers."""

from __future__ import annotations

from tests.planted_faults.fault import Fault

__all__ = ["FAULTS"]

FAULTS: tuple[Fault, ...] = (
    Fault(
        "a row that is behind is brought up to date but for one step",
        "optim/lazy/linear.py",
        "column = since.cpu().numpy()",
        "column = (since.cpu().numpy() + 1).clip(max=self.steps)",
    ),
    Fault(
        "the steps of rows are not counted",
        "optim/rule.py",
        "    step.add_(1)\n",
        "",
        "tests/unit/optim/test_bias_correction.py",
    ),
    Fault(
        "compiled updates always minimise",
        "optim/rule.py",
        '{"factor": -1.0 if numbers["maximize"] else 1.0,',
        '{"factor": 1.0,',
        "tests/unit/optim/test_dense.py tests/unit/optim/test_rows.py tests/unit/optim/test_signatures.py",
    ),
    Fault(
        "a loaded buffer has not started",
        "optim/sgd.py",
        '(marker != 0) | (state["momentum_buffer"] != 0)',
        "marker != 0",
    ),
    Fault(
        "the first of steps with zeros is dampened",
        "optim/sgd.py",
        'if numbers.zeros and fresh and numbers.numbers["dampening"] != 0:',
        'if numbers.zeros and not fresh and numbers.numbers["dampening"] != 0:',
        "tests/unit/optim/test_sgd.py tests/unit/optim/lazy/test_zero_gradients.py",
    ),
    Fault(
        "a dense step leaves rows behind as they are",
        "optim/lazy/zero_gradients.py",
        "            lazy.flush(param)\n        apply_update",
        "        apply_update",
    ),
    Fault(
        "the version after a step is not remembered",
        "optim/lazy/zero_gradients.py",
        "    lazy.version = param._version\n",
        "",
    ),
    Fault(
        "new states are adopted before rows are up to date",
        "optim/lazy/rows.py",
        "            self.flush(param)\n            self.states = list(states)",
        "            self.states = list(states)",
    ),
    Fault(
        "a step of another kind drops what is pending",
        "optim/lazy/rows.py",
        "            self.flush(param)  # a table or",
        "            self.forget()  # a table or",
        "tests/unit/optim/lazy",
    ),
)
