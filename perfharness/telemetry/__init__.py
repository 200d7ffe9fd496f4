"""Samplers of GPUs and the host, and clocks. Nothing is here yet."""
