"""Which runs of the store are meant."""

from __future__ import annotations

from dataclasses import dataclass

LATEST = "latest"
"""As the name of a run: the newest."""


@dataclass(frozen=True)
class RunFilter:
    """Which runs; None: any.

    Args:
        script: as it was given to the launch, its absolute path, or the file's name.
        commit: beginning of a commit's id.
        since_ns, until_ns: when the run began, UTC; the second is excluded.
        top_level: not those that are a part of a repeat, sweep or cold start.
        limit: the newest so many.
    """

    script: str | None = None
    tag: str | None = None
    commit: str | None = None
    kind: str | None = None
    since_ns: int | None = None
    until_ns: int | None = None
    top_level: bool = True
    limit: int | None = None


EVERYTHING = RunFilter(top_level=False)
