"""The GPU's side of a diagnosis: kernels, counters, what limits the GPU's own work."""
