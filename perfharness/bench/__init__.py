"""What to measure: cases, sweeps, load profiles."""
