"""Energy: what a GPU's sensors say of a stretch of time, and which stages spent it (docs/guides/energy.md)."""
