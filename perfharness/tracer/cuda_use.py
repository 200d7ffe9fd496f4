"""Whether this process can have used CUDA. Imported with the session, so that it costs a script nothing to start."""

from __future__ import annotations


def maps_cuda() -> bool:
    """Whether the CUDA driver is in this process's memory; true where the system does not show it."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:  # noqa: PTH123 - start-up time
            return any("libcuda.so" in line for line in maps)
    except OSError:
        return True
