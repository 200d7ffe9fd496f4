"""Start-up times of a case in fresh processes, alternately with a cold and a warm file cache.

Cold: files that an earlier process of the case had open or mapped are evicted from the file cache.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from perfharness.backends import model_source
from perfharness.bench.process import result_of, run_process
from perfharness.bench.spec import FILES_NAME
from perfharness.bench.suite.machine import gpu_of
from perfharness.bench.suite.matrix import PlannedCase, plan_cases
from perfharness.bench.suite.store import measuring
from perfharness.bench.suite.suite import Suite
from perfharness.errors import UsageError
from perfharness.model.bench import CaseResult
from perfharness.model.cold_start import CacheState, ColdStart, ColdStartRow
from perfharness.runs.cold_start import prepare_cache, process_names, summarized, write_cold_start
from perfharness_launcher.companions.page_cache import drop_page_cache
from perfharness_launcher.interrupts import Interrupts
from perfharness_launcher.plan.gpus import find_gpus


def make_cold(warm_folder: Path, model: Path | None = None) -> CacheState:
    """Evict a case's files from the file cache; returns what was evicted and what was not, or why eviction failed.

    Args:
        warm_folder: folder of an earlier run of the case: `files.json` has the files.
        model: file or folder, which is closed after reading and so is not in `files.json`.
    """
    try:
        names = json.loads((warm_folder / FILES_NAME).read_text())
    except (OSError, ValueError):
        return CacheState(reason=f"there is no {warm_folder / FILES_NAME}; run the case once with a warm cache first")
    return drop_page_cache({*map(Path, names), *_files(model)})


def _files(model: Path | None) -> Iterator[Path]:
    if model is not None and model.is_dir():
        yield from (entry for entry in model.rglob("*") if entry.is_file())
    elif model is not None and model.is_file():
        yield model


FIGURES = {
    "process_to_first_result_ms": "to the first result",
    "process_ms": "  interpreter, perfharness",
    "import_ms": "  import of the framework",
    "build_ms": "  build",
    "load_ms": "  load",
    "allocate_ms": "  allocate",
    "first_inference_ms": "  first inference",
}

MakeCold = Callable[[Path, Path | None], CacheState]


def startup_figures(result: CaseResult) -> dict[str, float | None]:
    """The parts and their sum; without a part for the build where nothing was built."""
    parts = {name: getattr(result.startup, name) for name in FIGURES if name != "process_to_first_result_ms"}
    known = [value for value in parts.values() if value is not None]
    complete = all(value is not None for name, value in parts.items() if name != "build_ms")
    return {"process_to_first_result_ms": round(sum(known), 6) if complete else None, **parts}


def run_startup(
    suite: Suite,
    output_dir: Path,
    count: int = 5,
    *,
    done: Callable[[ColdStartRow], None] = lambda _: None,
    command: Sequence[str] = (),
) -> ColdStart:
    """Measure import, load or build, allocation and first inference in `count` processes per kind of file cache.

    Args:
        suite: of one case, as `load_suite` makes it.
        output_dir: empty or not there; gets `cold_start.json` and a folder for each process.
        done: called with each row.

    Raises `UsageError`. After an interrupt there are fewer rows than 2 * count + 1.
    """
    facts = find_gpus()
    planned = plan_cases(suite, gpu_of(suite, facts))
    if len(planned) != 1:
        raise UsageError(f"the start-up is that of one case, and there are {len(planned)}")
    if planned[0].refusal is not None:
        raise UsageError(planned[0].refusal)
    with measuring(output_dir) as interrupts:
        if any(output_dir.iterdir()):
            raise UsageError(f"{output_dir} is not empty; name another folder with -o")
        found = measure_startup(
            planned[0],
            output_dir.absolute(),
            count,
            timeout_s=suite.run.timeout_s,
            interrupts=interrupts,
            command=command,
            done=done,
        )
    write_cold_start(found, output_dir)
    return found


def measure_startup(
    planned: PlannedCase,
    out: Path,
    count: int,
    *,
    timeout_s: float,
    interrupts: Interrupts,
    command: Sequence[str] = (),
    done: Callable[[ColdStartRow], None] = lambda _: None,
    cold: MakeCold = make_cold,
) -> ColdStart:
    """A first process, which shows what files are read, then cold and warm ones alternately.

    Args:
        planned: the case; its passes are skipped.
        out: has a subfolder for each process.
    """
    model = model_source(planned.spec.model, planned.spec.model_name).path
    rows: list[ColdStartRow] = []
    for name in process_names(count):
        row = prepare_cache(name, lambda: cold(out / "first", model))
        if row.status == "not_run":
            rows.append(row)
            continue
        row = _measured(row, planned, out / name, timeout_s, interrupts)
        if interrupts:
            break
        rows.append(row)
        done(row)
        if name == "first" and row.status != "ok":
            break
    return summarized(rows, command, planned.case_id, figures=FIGURES)


def _measured(
    row: ColdStartRow, planned: PlannedCase, folder: Path, timeout_s: float, interrupts: Interrupts
) -> ColdStartRow:
    latency = planned.spec.latency.model_copy(update={"warmup": 0})
    spec = planned.spec.model_copy(update={"passes": (), "latency": latency, "file_cache": row.cache})
    end = run_process(spec, folder, interrupts, timeout_s=timeout_s)
    result = result_of(end, spec.case, folder, timeout_s)
    if result.status != "ok":
        return row.model_copy(update={"status": "failed", "reason": result.reason})
    return row.model_copy(update={"startup": startup_figures(result)})
