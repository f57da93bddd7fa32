"""Models that take or make MaskedTensors, written into files that run without Python."""
