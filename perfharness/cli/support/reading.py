"""Shared argument and options of verbs that read results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel

from perfharness.model.settings import option

if TYPE_CHECKING:
    from perfharness.runs.files.run_folder import ReadAs

MEANING = "Batches and ranges"

SOURCE = "RUN_OR_TRACE"
SOURCE_HELP = "A run, a process of it, a repeat, a sweep, cold starts, or a trace (.sqlite or .nsys-rep)."
"""Argument of verbs that read results."""


class Reading(BaseModel):
    """Options that say how traces are read."""

    warmup_batches: int | None = option(
        "Batches to drop as warm-up at both ends of each loop. [default: as launched; 0 for a trace]",
        MEANING,
        "N",
        flags="-w --warmup-batches",
        ge=0,
    )
    domain: str | None = option("Read only this NVTX domain, as plain NVTX (`nvtx`: the default domain).", MEANING)
    batch_pattern: str | None = option("Plain NVTX ranges with a matching name are batches.", MEANING, "REGEX")

    def read_as(self, parallel: Literal["auto", "data", "model"] | None = None) -> ReadAs:
        """Convert for the readers in `perfharness.runs`."""
        from perfharness.runs.files.run_folder import ReadAs

        return ReadAs(self.warmup_batches, self.domain, self.batch_pattern, parallel=parallel)
