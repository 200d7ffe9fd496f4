"""What the verbs that read results have in common: their argument, and how traces are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, Field

from perfharness.model.settings import Option

if TYPE_CHECKING:
    from perfharness.runs.files.run_folder import ReadAs

MEANING = "Batches and ranges"
"""The group of options that say what is read as what."""

SOURCE = "RUN_OR_TRACE"
SOURCE_HELP = "A run, a process of it, a repeat, a sweep, cold starts, or a trace (.sqlite or .nsys-rep)."
"""The argument of every verb that reads results."""


class Reading(BaseModel):
    """How the verbs that read results read their traces."""

    warmup_batches: Annotated[
        int | None,
        Option(
            ("-w", "--warmup-batches"),
            MEANING,
            "Batches excluded as warm-up at both ends of each loop. [default: as launched; 0 for a trace]",
            metavar="N",
        ),
    ] = Field(default=None, ge=0)
    domain: Annotated[
        str | None,
        Option(("--domain",), MEANING, "Read only this NVTX domain, as plain NVTX; `nvtx` is the default domain."),
    ] = None
    batch_pattern: Annotated[
        str | None,
        Option(("--batch-pattern",), MEANING, "Names of plain NVTX ranges that are batches.", metavar="REGEX"),
    ] = None

    def read_as(self, parallel: Literal["auto", "data", "model"] | None = None) -> ReadAs:
        """The same for the readers of `perfharness.runs`."""
        from perfharness.runs.files.run_folder import ReadAs

        return ReadAs(self.warmup_batches, self.domain, self.batch_pattern, parallel=parallel)
