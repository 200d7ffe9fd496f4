"""Units of time."""

from __future__ import annotations

NS_PER_US, NS_PER_MS, NS_PER_S = 1e3, 1e6, 1e9
