"""Start-up times of a case in fresh processes, alternating cold and warm file cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from perfharness.bench.plan import plan_suite
from perfharness.bench.process import result_of, run_process
from perfharness.bench.results import measuring
from perfharness.bench.spec import CaseSpec
from perfharness.bench.suite import Suite
from perfharness.errors import UsageError
from perfharness.files import write_model
from perfharness.model.manifest import SERIES_NAME
from perfharness.runs.series.launching import cold_launches, drop_page_cache
from perfharness.runs.series.model import COLD, WHOLE, Series, SeriesRow
from perfharness.runs.series.summary import new_series
from perfharness_launcher.interrupts import Interrupts

WHOLE_START = "process_to_first_result_ms"
PARTS = ("process_ms", "import_ms", "build_ms", "load_ms", "allocate_ms", "first_inference_ms")


def run_startup(
    suite: Suite,
    output_dir: Path,
    count: int = 5,
    *,
    done: Callable[[SeriesRow], None] = lambda _: None,
    command: Sequence[str] = (),
) -> Series:
    """Measure import, load or build, allocation and first inference in `count` processes per kind of file cache.

    Args:
        suite: a suite of one case, from `load_suite`.
        output_dir: empty or not existing; gets `series.json` and a folder for each process.
        done: called with each row.

    Raises `UsageError`. After an interrupt there are fewer rows than 2 * count + 1.
    """
    planned = plan_suite(suite).cases
    if len(planned) != 1:
        raise UsageError(
            f"--start-up measures one case, not {len(planned)}; name one model, one backend with its mode, "
            "one precision, one batch size and one GPU"
        )
    if planned[0].refusal is not None:
        raise UsageError(planned[0].refusal)
    spec, out, rows = planned[0].spec, output_dir.absolute(), list[SeriesRow]()
    with measuring(output_dir) as interrupts:
        if any(output_dir.iterdir()):
            raise UsageError(f"{output_dir} is not empty; use another folder with -o")
        for place, (label, name) in enumerate(cold_launches(count)):
            row = SeriesRow(label=label, folder=name, place=place)
            reason = drop_page_cache() if label == COLD else None
            if reason is not None:
                row = row.model_copy(update={"status": "not_run", "reason": reason})
            else:
                row = _measured(row, spec, out / name, suite.run.timeout_s, interrupts)
                if interrupts:
                    break
                done(row)
            rows.append(row)
            if name == "first" and row.status != "ok":
                break
    found = new_series("cold", rows, command, planned[0].case_id)
    write_model(output_dir / SERIES_NAME, found)
    return found


def _measured(row: SeriesRow, spec: CaseSpec, folder: Path, timeout_s: float, interrupts: Interrupts) -> SeriesRow:
    latency = spec.latency.model_copy(update={"warmup": 0})
    cache = "unknown" if row.label == "first" else row.label
    spec = spec.model_copy(update={"passes": (), "accuracy": None, "latency": latency, "file_cache": cache})
    result = result_of(run_process(spec, folder, interrupts, timeout_s=timeout_s), spec.case, folder, timeout_s)
    if result.status != "ok":
        return row.model_copy(update={"status": "failed", "reason": result.reason})
    parts = {name: getattr(result.startup, name) for name in PARTS}
    known = [value for value in parts.values() if value is not None]
    complete = all(value is not None for name, value in parts.items() if name != "build_ms")
    figures = {WHOLE_START: round(sum(known), 6) if complete else None, **parts}
    return row.model_copy(update={"figures": {WHOLE: figures}})
