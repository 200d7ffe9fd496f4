"""Prometheus metrics: of a service that is annotated, and of a run while it is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfharness.metrics.endpoint import ServiceCollector


def collector() -> ServiceCollector:
    """A collector of the stages of this service, for a registry other than prometheus_client's default one.

    Raises `UsageError` if prometheus_client is missing.
    """
    from perfharness.metrics.endpoint import IN_REGISTRY, ServiceCollector, shared_sums

    return ServiceCollector(shared_sums(IN_REGISTRY))
