"""Energy: what a GPU's sensors measure over a stretch of time, and which stages spent it (docs/guides/telemetry.md)."""
