"""Where host time goes, by what was sampled in the explaining pass."""
