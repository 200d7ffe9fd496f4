"""GPU part of a diagnosis: kernels, counters, and the limit of the GPU's own work."""
