"""Sizes as people write them: `12GB`, `512 MiB`, `1000000`."""

from __future__ import annotations

import re

from perfharness.errors import UsageError

UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


def parse_bytes(text: str | int) -> int:
    """Bytes. Raises `UsageError` where it is no size."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(text))
    if found is None or found[2].lower() not in UNITS:
        raise UsageError(f"{text!r} is no size; write it as 12GB, 512MiB or a number of bytes")
    size = round(float(found[1]) * UNITS[found[2].lower()])
    if size <= 0:
        raise UsageError(f"{text!r} is no size of anything; it must be above 0")
    return size
