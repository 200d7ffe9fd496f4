"""Which recorder has which NVTX domain.

NVTX keeps one stack for each thread and domain. Two recorders on one stack would end each other's ranges as soon as
they do not nest, and nothing in the trace would tell; so each recorder has a domain of its own.
"""

from __future__ import annotations

import threading

claims: dict[str | None, str] = {}
_lock = threading.Lock()


def claim_domain(domain: str | None, recorder: str) -> str | None:
    """The domain asked for, or `domain:recorder` where a recorder of another name has it already."""
    with _lock:
        while claims.setdefault(domain, recorder) != recorder:
            domain = recorder if domain is None else f"{domain}:{recorder}"
        return domain
