"""What the GPU's counters, sampled beside a run, say of each stage (docs/guides/counters.md)."""
