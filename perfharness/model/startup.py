"""From the start of a process to its first batch: `startup` of benchmark.json."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class FirstCuda:
    """The first CUDA calls that a trace holds; UTC nanoseconds.

    `first_work_end` is the end of the first call that cannot do without a context: an allocation, a copy, a launch, a
    stream, a module.
    """

    first_call_unix_ns: int
    first_work_end_unix_ns: int | None


@dataclass(frozen=True)
class StartupPart:
    """A `startup_range`; `begin_ms` counts from the start of the process."""

    name: str
    begin_ms: float
    duration_ms: float
    failed: bool


@dataclass(frozen=True)
class Startup:
    """Milliseconds; what is not known is None, and `reasons` says why, by name.

    `interpreter_and_imports_ms` ends at the first thing that is known of the script's own doing: a start-up range, a
    recorder, a CUDA call. `cuda_context_ms` and `model_load_ms` are the start-up ranges of these names; without one,
    `cuda_context_ms` is the time from the first CUDA call to the end of the first that needs a context
    (`cuda_context_source`: which of them), at most, for the script may do something else in between. Parts may
    overlap or lie within each other. `other_ms` is the rest of `process_to_first_batch_ms` besides imports, ranges,
    context and the wait at the start barrier.
    """

    process_to_first_batch_ms: float | None
    interpreter_and_imports_ms: float | None
    cuda_context_ms: float | None
    cuda_context_source: str | None
    model_load_ms: float | None
    first_batch_ms: float | None
    start_barrier_wait_ms: float
    other_ms: float | None
    parts: list[StartupPart]
    reasons: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As it stands in the files."""
        return asdict(self)
