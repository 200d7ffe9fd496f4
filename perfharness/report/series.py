"""A sweep or cold starts, computed again from their runs: what the launch noted of each stays, numbers are new."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from perfharness.analysis.scaling import find_knee, scaling_points
from perfharness.errors import ResultError
from perfharness.files import read_regular
from perfharness.model.cold_start import COLD_START_NAME, ColdStart
from perfharness.model.result import path_text
from perfharness.model.scaling import SCALING_NAME, Scaling, ScalingRow
from perfharness.report.cold_start import spreads, startup_of, write_cold_start
from perfharness.report.run_folder import RunSummary, read_manifest
from perfharness.report.scaling import loop_path, scaling_row, write_scaling

_Model = TypeVar("_Model", bound=BaseModel)


def scaling_again(folder: Path, summaries: Sequence[RunSummary]) -> Scaling | None:
    """`scaling.json` with the runs' new numbers, written; None where the folder has none."""
    noted = _read(folder / SCALING_NAME, Scaling)
    if noted is None:
        return None
    of = {summary.folder.name: summary for summary in summaries}
    rows = [_row(point.row, of.get(point.row.folder)) for point in noted.points]
    points = scaling_points(rows)
    loops = [path for summary in summaries if (path := loop_path(summary.results)) is not None]
    again = noted.model_copy(
        update={
            "points": points,
            "knee": find_knee(points),
            "loop": path_text(loops[0]) if loops else None,
            "base_num_processes": min((row.num_processes for row in rows if row.items_per_second), default=None),
        }
    )
    if not any(summary.is_kept for summary in summaries):
        with suppress(ResultError):  # where nothing can be written, the analysis of the runs has said so
            write_scaling(again, folder)
    return again


def _row(noted: ScalingRow, summary: RunSummary | None) -> ScalingRow:
    if summary is None:
        return noted
    manifest = read_manifest(summary.folder)
    return scaling_row(noted.num_processes, noted.folder, manifest, summary.mean, summary.results, summary.findings)


def cold_starts_again(folder: Path, summaries: Sequence[RunSummary]) -> ColdStart | None:
    """`cold_start.json` with the runs' new numbers, written; None where the folder has none."""
    noted = _read(folder / COLD_START_NAME, ColdStart)
    if noted is None:
        return None
    of = {summary.folder.name: summary.folder for summary in summaries}
    rows = [
        row.model_copy(update={"startup": startup_of(of[row.folder], read_manifest(of[row.folder]).processes[0])})
        if row.status == "ok" and row.folder in of
        else row
        for row in noted.rows
    ]
    again = noted.model_copy(update={"rows": rows, "cold": spreads(rows, "cold"), "warm": spreads(rows, "warm")})
    if not any(summary.is_kept for summary in summaries):
        with suppress(ResultError):
            write_cold_start(again, folder)
    return again


def _read(path: Path, model: type[_Model]) -> _Model | None:
    try:
        return model.model_validate_json(read_regular(path, follow=False))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise ResultError(f"{path} cannot be read ({str(error).splitlines()[0]}); it is damaged.") from error
