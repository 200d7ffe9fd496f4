"""Prometheus metrics of an annotated service, and of a run while it is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfharness.metrics.endpoint import ServiceCollector


def collector() -> ServiceCollector:
    """Return a collector of this service's stages, to register in a registry of your own.

    Raises `UsageError` if prometheus_client is missing.
    """
    from perfharness.metrics.endpoint import IN_REGISTRY, ServiceCollector, shared_sums

    return ServiceCollector(shared_sums(IN_REGISTRY))
