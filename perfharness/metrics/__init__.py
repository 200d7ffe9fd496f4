"""Prometheus metrics: of a service that is annotated, and of a run while it is measured."""
