"""Opacus: per-sample gradients, which need plain inputs."""

from __future__ import annotations

from maskgrad.integrations.integration import Integration, refusals

__all__ = ["INTEGRATION"]

INTEGRATION = Integration(
    "opacus",
    without="wrong in silence",
    patches=(
        *refusals(
            "grad_sample_module:GradSampleModule.capture_activations_hook grad_sample_module_fast_gradient_clipping:"
            "GradSampleModuleFastGradientClipping.capture_activations_hook",
            "the rules of Opacus compute with inputs as plain tensors",
            "Use mg.per_sample_grad, or pass x.filled(0.) to the layers and mask the losses.",
            "test_opacus.py::test_masked_inputs_refuse",
            "opacus.grad_sample.",
        ),
    ),
)
