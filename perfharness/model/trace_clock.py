"""What time it was at a moment of a trace: its own clock against UTC, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]

ClockSource = Literal["marks", "tracer", "session_start"]


@dataclass(frozen=True)
class TraceClock:
    """The monotonic clock at moments of a trace, and UTC with it.

    Args:
        source: `marks` of a recorder; the `tracer` itself stamps with that clock; or nothing but the `session_start`,
            which is UTC and independent of the monotonic clock.
        trace_ns: moments of the trace's own clock, in order; one or more.
        unix_ns: UTC at these moments.
        error_ns: by how much UTC may be off, the machine's own tie of UTC to the monotonic clock included.
        drift_ns: how much the offset differs between the first and the last moment; None where there is only one.
        session_start_off_ns: the trace's session start less UTC of trace time 0 by this tie; None where it has none.
    """

    source: ClockSource
    trace_ns: Int64
    unix_ns: Int64
    error_ns: int
    drift_ns: int | None = None
    session_start_off_ns: int | None = None

    @property
    def unix_origin_ns(self) -> int:
        """UTC of trace time 0, by the offset at the first moment."""
        return int(self.unix_ns[0] - self.trace_ns[0])

    def to_unix(self, trace_ns: Int64) -> Int64:
        """UTC of moments of the trace: by the offsets on both sides, weighed by distance; beyond them, by the last."""
        offsets = self.unix_ns - self.trace_ns - self.unix_origin_ns
        moved = np.interp(trace_ns, self.trace_ns, offsets)
        unix_ns: Int64 = trace_ns + self.unix_origin_ns + np.rint(moved).astype(np.int64)
        return unix_ns

    def to_json(self) -> dict[str, Any]:
        """As it stands in `meta` of the results."""
        return {
            "source": self.source,
            "unix_origin_ns": self.unix_origin_ns,
            "error_ns": self.error_ns,
            "drift_ns": self.drift_ns,
            "session_start_off_ns": self.session_start_off_ns,
        }
