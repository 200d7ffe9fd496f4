"""What to measure: cases, sweeps, load profiles. Nothing is here yet."""
