"""Launch several times: repeats, numbers of processes, cold starts, traced and untraced launches."""

from __future__ import annotations

import os
import random
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from perfharness.errors import LaunchInterruptedError, PerfHarnessError, UsageError
from perfharness.files import write_model
from perfharness.model.conditions import GpuWait
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import SERIES_NAME
from perfharness.runs.launch import LaunchResult, Observe, plan_launches, run_plan, unobserved
from perfharness.runs.series.model import COLD, TRACED, UNTRACED, Kind, Series, SeriesRow
from perfharness.runs.series.summary import LaunchFacts, has_figures, measured_row, new_series
from perfharness_launcher.conditions import as_cool_as_first
from perfharness_launcher.interrupts import noting_interrupts
from perfharness_launcher.options import LaunchOptions, command_of, launch_options
from perfharness_launcher.plan import LaunchPlan
from perfharness_launcher.staging import series_folder

DEFAULT_COUNT = 5
MOST_LAUNCHES = 10_000
"""Per series, because all are planned before the first begins."""

INTERRUPTED = "the series was interrupted"

OUT_OF_MEMORY = re.compile(r"out of memory|OutOfMemory|OUT_OF_MEMORY|MemoryError|bad_alloc", re.IGNORECASE)
DROP_CACHES = Path("/proc/sys/vm/drop_caches")

Say = Callable[[str], None]


class Launch(NamedTuple):
    """A launch to run; `command` is the command line of perfharness, for the manifest."""

    label: str
    options: LaunchOptions
    command: Sequence[str]


@dataclass(frozen=True)
class SeriesLaunch:
    """Result of a launch of a series; `interrupted` if the user ended the series."""

    row: SeriesRow
    result: LaunchResult | None = None
    error: PerfHarnessError | None = None
    interrupted: bool = False


@dataclass(repr=False)
class SeriesRun:
    """A series to measure. `folder` is next to an earlier run if only that has numbers; `seed` is of the order."""

    kind: Kind
    options: LaunchOptions
    launches: Sequence[Launch]
    seed: int
    plans: Sequence[LaunchPlan] = ()
    rows: list[SeriesRow] = field(default_factory=list)
    facts: dict[str, LaunchFacts] = field(default_factory=dict)
    folder: Path = Path()

    def __repr__(self) -> str:
        return f"<SeriesRun {self.folder}: {self.kind}, {len(self.rows)} of {len(self.launches)} launches>"

    @property
    def series(self) -> Series:
        """Series of the launches so far."""
        command, options = self.launches[0].command, self.options
        return new_series(
            self.kind, self.rows, command, options.script, options.script_arguments, self.seed, self.facts
        )

    def plan(self, place: Callable[[str], AbstractContextManager[object]] = lambda label: nullcontext()) -> None:
        """Plan all launches, those of a label in the context of `place`. Raises as `plan_launches`."""
        plans: dict[str, Iterator[LaunchPlan]] = {}
        for label in dict.fromkeys(one.label for one in self.launches):
            with place(label):
                plans[label] = iter(plan_launches([one.options for one in self.launches if one.label == label]))
        self.plans = [next(plans[one.label]) for one in self.launches]

    def run(self, observe: Observe = unobserved, say: Say = lambda line: None) -> Iterator[SeriesLaunch]:
        """Run a launch per iteration, and write `series.json` after each. Raises `LaunchError`, `ResultError`.

        A failed launch is a row with the reason, and the series continues; an interrupt ends it. `say` gets a line if
        an earlier run is moved.
        """
        out = self.options.output_dir
        names = [one.options.output_dir.relative_to(out).as_posix() for one in self.launches]
        interrupted = False
        first_c: dict[str, int] = {}
        with series_folder(out, {name.partition("/")[0] for name in names}, say) as place:
            for number, (name, one) in enumerate(zip(names, self.launches, strict=True)):
                row = SeriesRow(label=one.label, folder=name, place=number, num_processes=one.options.num_processes)
                if interrupted:
                    launched = SeriesLaunch(_failed(row, INTERRUPTED, "not_run"))
                else:
                    launched = self._launch(row, observe, first_c)
                self.rows.append(launched.row)
                write_model(out / SERIES_NAME, self.series)
                interrupted = interrupted or launched.interrupted
                yield launched
        self.folder = place.path

    def _launch(self, row: SeriesRow, observe: Observe, first_c: dict[str, int]) -> SeriesLaunch:
        plan = self.plans[row.place]
        waits: list[GpuWait] = []
        try:
            with observe(plan) as observer:
                with noting_interrupts() as interrupts:
                    if plan.options.cool_down_c is None:  # otherwise the launch waits itself
                        waits = as_cool_as_first(
                            plan.gpus,
                            first_c,
                            limit_s=plan.options.cool_down_limit_s,
                            interrupted=lambda: bool(interrupts),
                            say=observer.stage,
                        )
                row = row.model_copy(update={"waits": waits})
                if interrupts:
                    return SeriesLaunch(_failed(row, INTERRUPTED, "not_run"), interrupted=True)
                if row.label == COLD and (reason := drop_page_cache()) is not None:
                    return SeriesLaunch(_failed(row, reason, "not_run"))
                result = run_plan(plan, self.launches[row.place].command, observer)
        except PerfHarnessError as error:
            failed = _failed(row, str(error).splitlines()[0])
            return SeriesLaunch(failed, error=error, interrupted=isinstance(error, LaunchInterruptedError))
        return SeriesLaunch(self._measured(row, result), result, interrupted=result.was_interrupted)

    def _measured(self, row: SeriesRow, result: LaunchResult) -> SeriesRow:
        manifest, summary = result.manifest, replace(result.summary, folder=result.folder)
        codes = {finding.code for finding in result.findings if finding.severity is not Severity.NOTE}
        row = row.model_copy(
            update={
                "folder": result.folder.relative_to(self.options.output_dir.absolute()).as_posix(),
                "run_id": manifest.run_id,
                "created": manifest.created,
                "exit_codes": [process.exit_code for process in manifest.processes],
                "findings": sorted(codes),
            }
        )
        bad = [process for process in manifest.processes if process.ended != "ok"]
        if bad:
            return _failed(row, _why(len(bad), len(manifest.processes), summary.findings))
        measured, facts = measured_row(row, self.kind, manifest, summary)
        if not has_figures(measured, self.kind):
            return _failed(row, measured.reason or "nothing was measured")
        self.facts[row.folder] = facts
        return measured


def series_of(
    options: LaunchOptions,
    repeat: int | None = None,
    np_sweep: Sequence[int] | None = None,
    *,
    cold: bool = False,
    overhead: bool = False,
    seed: int | None = None,
    command: Sequence[str] | None = None,
) -> SeriesRun:
    """Make the series for options of `perfharness launch`, not planned yet. Raises `UsageError`."""
    is_sweep = np_sweep is not None
    named = {
        "--np-sweep": is_sweep,
        "--cold": cold,
        "--overhead": overhead,
        "--repeat": is_sweep and repeat is not None,
    }
    asked = [option for option, is_asked in named.items() if is_asked]
    if len(asked) > 1:
        raise UsageError(f"{' and '.join(asked)} cannot be combined; use one of them")
    single = "--explain" if options.explain else "--ray" if options.ray else "--nodes" if options.nodes else None
    if single is not None:
        raise UsageError(f"{single} is for one launch, but {[*asked, '--repeat'][0]} makes several; drop one of them")
    count, seed = _count_and_seed(repeat, seed)
    kind: Kind = "cold" if cold else "overhead" if overhead else "repeat"
    words = ["--repeat", str(count), *asked]
    launches: list[tuple[str, str, dict[str, Any]]]  # label, folder, own options
    if np_sweep is not None:
        kind, words = "processes", ["--np-sweep", ",".join(map(str, np_sweep))]
        if not np_sweep or len(set(np_sweep)) < len(np_sweep) or min(np_sweep) < 1:
            raise UsageError(f"{' '.join(words)}: must be different numbers of processes, as in 1,2,4,8")
        if options.num_processes != 1:
            raise UsageError("--np-sweep sets the number of processes; drop -np")
        launches = [
            (f"{number} process{'es' if number > 1 else ''}", f"np_{number}", {"num_processes": number})
            for number in np_sweep
        ]
    elif cold:
        if options.num_processes != 1 or (options.num_gpus or 1) != 1 or len(options.gpus) > 1:
            raise UsageError("--cold starts one process at a time; drop -np and -ng, and name at most one GPU")
        launches = [(label, name, {"history": False}) for label, name in cold_launches(count)]
    elif overhead:
        if options.tracer in ("ranges", "none"):
            raise UsageError(f"--overhead needs a tracer; drop --tracer {options.tracer}")
        untraced = {"tracer": "ranges", "nsys": None, "trace_os": False, "history": False}
        own = {TRACED: {}, UNTRACED: untraced}
        launches = [(label, name, own[label]) for label, name in _rounds((TRACED, UNTRACED), count, seed)]
    else:
        launches = [("launch", f"launch_{number}", {}) for number in range(count)]
    command = command_of(options, *words) if command is None else command
    made = [
        Launch(label, options.model_copy(update={"output_dir": options.output_dir / name, **own}), command)
        for label, name, own in launches
    ]
    return SeriesRun(kind, options, made, seed)


def series_in_turns(
    cases: Sequence[LaunchOptions], output_dir: Path, count: int | None = None, seed: int | None = None
) -> SeriesRun:
    """Make a series of several cases (the base and others) in turns, not planned yet."""
    count, seed = _count_and_seed(count, seed)
    by_label = dict(zip(labels_of_turns(len(cases)), cases, strict=True))
    made = []
    for label, name in _rounds(tuple(by_label), count, seed):
        options = by_label[label].model_copy(update={"output_dir": output_dir / name})
        made.append(Launch(label, options, command_of(options)))
    return SeriesRun("repeat", cases[0].model_copy(update={"output_dir": output_dir}), made, seed)


def labels_of_turns(count: int) -> list[str]:
    """Labels and folders of cases in turns."""
    return ["base", "new"] if count == 2 else ["base", *(f"new_{place}" for place in range(1, count))]


def _count_and_seed(repeat: int | None, seed: int | None) -> tuple[int, int]:
    count = DEFAULT_COUNT if repeat is None else repeat
    if not 1 <= count <= MOST_LAUNCHES:
        raise UsageError(f"--repeat {count}: must be 1 to {MOST_LAUNCHES} launches")
    return count, secrets.randbelow(2**32) if seed is None else seed


def _rounds(labels: Sequence[str], count: int, seed: int) -> list[tuple[str, str]]:
    """Labels and folders of launches in rounds: each round has all labels once, in random order."""
    drawn = random.Random(seed)
    return [
        (label, f"{label}/launch_{number}") for number in range(count) for label in drawn.sample(labels, len(labels))
    ]


def cold_launches(count: int) -> list[tuple[str, str]]:
    """Labels and folders: one launch with the current file cache, then cold and warm ones in turns."""
    turns = [(label, f"{label}_{number}") for number in range(count) for label in (COLD, "warm")]
    return [("first", "first"), *turns]


def _failed(row: SeriesRow, reason: str, status: str = "failed") -> SeriesRow:
    return row.model_copy(update={"status": status, "reason": reason})


def _why(count: int, total: int, findings: Sequence[Finding]) -> str:
    """Describe how many processes failed, how the first one ended, and whether memory ran out."""
    text = f"{count} of {total} processes did not end well"
    ends = [finding for finding in findings if finding.code.startswith("process-")]
    if not ends:
        return text
    first = ends[0].message.splitlines()[0].split("; the end of")[0]
    memory = "out of memory; " if any(OUT_OF_MEMORY.search(finding.message) for finding in ends) else ""
    return f"{memory}{text} ({ends[0].process}: {first})"


def drop_page_cache() -> str | None:
    """Empty the page cache of the machine; return the problem, if any."""
    os.sync()  # only clean pages are dropped
    try:
        DROP_CACHES.write_text("3\n", encoding="ascii")
    except OSError as error:
        return f"The page cache was not emptied ({DROP_CACHES}: {error.strerror}). This needs root on the host."
    return None


def launch_series(
    script: str | Path,
    *script_arguments: str,
    repeat: int | None = None,
    np_sweep: Sequence[int] | None = None,
    cold: bool = False,
    overhead: bool = False,
    seed: int | None = None,
    config: str | Path | None = None,
    observe: Observe = unobserved,
    **settings: Any,
) -> SeriesRun:
    """Launch a script several times, as `perfharness launch` does with these options.

    Args:
        script, script_arguments, config, settings: as in `perfharness.launch`.
        repeat: number of launches; per kind with `cold` and `overhead` (default: 5).
        np_sweep: numbers of processes per GPU.
        cold: launch with an empty and with a warm file cache.
        overhead: launch traced and untraced, in turns.
        seed: seed of the order (default: random; stored in `series.json`).
        observe: open an observer for each launch.

    Raises as `perfharness.launch` before the first launch, and `ResultError` if `series.json` cannot be written.
    """
    options = launch_options(script, script_arguments, settings, config)
    run = series_of(options, repeat, np_sweep, cold=cold, overhead=overhead, seed=seed)
    return _run_to_the_end(run, observe)


def launch_in_turns(
    cases: Sequence[LaunchOptions],
    output_dir: str | Path,
    *,
    count: int = DEFAULT_COUNT,
    seed: int | None = None,
    observe: Observe = unobserved,
) -> SeriesRun:
    """Launch the base and other cases `count` times each, in shuffled rounds, as `launch_series`.

    They are written to `base` and `new` (or `new_1`, …) in one folder; `output_dir` of the cases is ignored.
    """
    return _run_to_the_end(series_in_turns(cases, Path(output_dir), count, seed), observe)


def _run_to_the_end(run: SeriesRun, observe: Observe) -> SeriesRun:
    run.plan()
    for _ in run.run(observe):
        pass
    return run
