"""Samplers of GPUs and host, clock control, and the only access to NVML."""
