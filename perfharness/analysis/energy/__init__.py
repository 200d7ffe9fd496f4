"""Energy: readings of a GPU's sensors over intervals, and the stages that spent it (docs/guides/telemetry.md)."""
