"""Samplers of GPUs and the host, clocks, and the one way in which all of it asks NVML."""
