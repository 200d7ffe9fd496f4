"""Shared argument and options of verbs that read results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, Field

from perfharness.model.settings import Option

if TYPE_CHECKING:
    from perfharness.runs.files.run_folder import ReadAs

MEANING = "Batches and ranges"
"""Help group."""

SOURCE = "RUN_OR_TRACE"
SOURCE_HELP = "A run, a process of it, a repeat, a sweep, cold starts, or a trace (.sqlite or .nsys-rep)."
"""Argument of verbs that read results."""


class Reading(BaseModel):
    """Options that say how traces are read."""

    warmup_batches: Annotated[
        int | None,
        Option(
            ("-w", "--warmup-batches"),
            MEANING,
            "Batches to drop as warm-up at both ends of each loop. [default: as launched; 0 for a trace]",
            metavar="N",
        ),
    ] = Field(default=None, ge=0)
    domain: Annotated[
        str | None,
        Option(("--domain",), MEANING, "Read only this NVTX domain, as plain NVTX (`nvtx`: the default domain)."),
    ] = None
    batch_pattern: Annotated[
        str | None,
        Option(("--batch-pattern",), MEANING, "Plain NVTX ranges with a matching name are batches.", metavar="REGEX"),
    ] = None

    def read_as(self, parallel: Literal["auto", "data", "model"] | None = None) -> ReadAs:
        """Convert for the readers in `perfharness.runs`."""
        from perfharness.runs.files.run_folder import ReadAs

        return ReadAs(self.warmup_batches, self.domain, self.batch_pattern, parallel=parallel)
