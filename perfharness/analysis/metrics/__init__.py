"""What the samplers saw over a window of time: figures, clocks that were not held, memory that grows."""
