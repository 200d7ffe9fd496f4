"""Samplers' readings over a window of time: figures, clocks that dropped, memory that grows."""
