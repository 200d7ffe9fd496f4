"""Read a side of a comparison: runs, series, suites, traces, results of trtexec, `history:ID`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perfharness.errors import UsageError
from perfharness.model.findings import listed
from perfharness.runs.comparison.launches import LaunchFigures, read_launches
from perfharness.runs.comparison.suites import figures_of_suite, read_suite, suite_file
from perfharness.runs.comparison.trtexec import is_trtexec, read_trtexec
from perfharness.runs.files.inputs import locate
from perfharness.runs.files.run_folder import AS_LAUNCHED, ReadAs

HISTORY_PREFIX = "history:"


@dataclass(frozen=True)
class SideInput:
    """Launches of a side, usable or not."""

    name: str
    launches: Sequence[LaunchFigures]

    @property
    def used(self) -> list[LaunchFigures]:
        """Usable launches."""
        return [launch for launch in self.launches if launch.problem is None]

    @property
    def short_name(self) -> str:
        """Name without its parent folders."""
        return Path(self.name).name or self.name


def read_side(text: str, read_as: ReadAs = AS_LAUNCHED) -> SideInput:
    """Read a path, `history:ID`, or several joined by commas. Raises as `read_launches`, or `HistoryError`."""
    paths = [text] if Path(text).exists() else [part for part in text.split(",") if part]
    launches = [launch for path in paths for launch in _read(path, read_as)]
    ids = [launch.run_id for launch in launches]
    twice = [launch.folder for launch in launches if ids.count(launch.run_id) > 1]
    if twice:
        raise UsageError(
            f"{twice[0]} and {twice[1]} are the same launch, or a copy or process of it. Name each launch only once."
        )
    return SideInput(listed(paths, 1), launches)


def _read(text: str, read_as: ReadAs) -> list[LaunchFigures]:
    path = Path(text)
    if text.startswith(HISTORY_PREFIX) and not path.exists():
        from perfharness.runs.history import History, launch_of  # slow to import

        return [launch_of(History().entry(text.removeprefix(HISTORY_PREFIX)).run)]
    if path.is_file() and is_trtexec(path):
        return [read_trtexec(path)]
    if (suite := suite_file(path)) is not None:
        return [figures_of_suite(read_suite(suite), suite.parent)]
    return read_launches(locate(path), read_as)
