"""Export of models with MaskedTensors to files that run without Python."""
