"""Running launches, load tests and bench suites, read from their folders."""

from __future__ import annotations

import shlex
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from statistics import mean
from threading import Lock
from typing import Any, NamedTuple

import psutil

from perfharness.analysis.suites.bench_figures import cell_of
from perfharness.bench.results import CASES
from perfharness.bench.spec import RESULT_NAME
from perfharness.dashboard.known import KnownRuns
from perfharness.errors import HistoryError, PerfHarnessError
from perfharness.files import read_model
from perfharness.load.record import read_lines
from perfharness.metrics.running import RunningRanges, RunningReadings, is_locked, running_folders
from perfharness.model.bench import CaseResult
from perfharness.model.load import WINDOWS_NAME
from perfharness.model.manifest import BENCH_NAME, EXPLAIN_NAME, MANIFEST_NAME, STAGING_PREFIX
from perfharness.model.telemetry import HOST
from perfharness.render.numbers import duration, number
from perfharness.runs.comparison.suites import read_suite
from perfharness.runs.files.run_folder import read_manifest
from perfharness_launcher.staging import ASIDE_PREFIX

SHARED_S = 0.8
"""Open pages share readings that are not older."""

NEWEST = 20
"""Number of newest runs of the history whose folders are searched."""

MOST_STAGES = 7
"""Number of stages with a line: those with the most time."""

KEPT = 5
"""Number of ended runs that are listed."""

NOT_KNOWN = "not known"
LATENCIES = ("p50_ms", "p99_ms")
SECONDS = {"requests/s": ("asked", "answered"), "latency (ms)": ("p50", "p99")}
"""Lines of each panel of a load test: fields of `Second`."""

Points = list[tuple[float, float | None]]
"""Times (UTC, seconds) and values; None: not measured."""


class Panel(NamedTuple):
    """Lines over time in one unit, by name."""

    title: str
    lines: Mapping[str, Points]


class Metric(NamedTuple):
    """Telemetry metric with a panel; `of` is the kind of its subjects."""

    title: str
    of: str
    name: str
    scale: float = 1.0


TELEMETRY = (
    Metric("CPU (% of all cores)", "host", "cpu_percent"),
    Metric("CPU of processes (100 % per core)", "process", "cpu_percent"),
    Metric("memory of processes (GiB)", "process", "rss_bytes", 2**-30),
    Metric("GPU utilisation (%)", "gpu", "gpu_utilization_percent"),
    Metric("GPU memory (GiB)", "gpu", "memory_used_bytes", 2**-30),
    Metric("GPU power (W)", "gpu", "power_instant_mw", 1e-3),
)


def telemetry_panels(readings: RunningReadings) -> Iterator[Panel]:
    """Yield a panel for each metric with readings."""
    names = {subject: f"GPU {index}" for subject, index in readings.gpus.items()}
    for one in TELEMETRY:
        lines = {
            names.get(subject, subject.removeprefix("process:")): [
                (ns / 1e9, None if value is None else value * one.scale) for ns, value in points
            ]
            for (subject, metric), points in readings.series.items()
            if (metric, _kind(subject)) == (one.name, one.of)
        }
        if any(lines.values()):
            yield Panel(one.title, lines)


def _kind(subject: str) -> str:
    kind, colon, name = subject.partition(":")
    if "#" in name:
        return "member"  # of the tree of a launched process
    return kind if colon or subject == HOST else "gpu"


def _title(command: Sequence[str]) -> str:
    return shlex.join([*(Path(name).name for name in command[:1]), *command[1:]])


class RunningLaunch:
    """A running launch or load test. The constructor and `read` raise `ResultError` if a file is damaged.

    Attributes:
        folder: locked while the launch runs.
        places: where the results may be afterwards.
        title: the command.
        start_s: start in UTC seconds, or None if not known.
    """

    start_s: float | None

    def __init__(self, folder: Path) -> None:
        self.folder, self.run_id = folder, folder.name.removeprefix(STAGING_PREFIX)
        self.places: Sequence[Path] = (folder.parent, folder.parent / f"{ASIDE_PREFIX}{self.run_id}")
        self._manifest = read_manifest(folder)
        self.title = _title(self._manifest.command)
        self.start_s = datetime.fromisoformat(self._manifest.created).timestamp()
        self._readings, self._ranges, self._load = RunningReadings(folder), RunningRanges(folder), RunningLoad(folder)
        self._counts, self._total_ns = Counter[str](), Counter[str]()
        self._stages: dict[str, Points] = {}
        self._rates: dict[str, Points] = {"items/s": [], "batches/s": []}
        self._read_s: float | None = None

    def left(self) -> str | None:
        """Command that reads what a killed launch left; None if the launch ended by itself."""
        return f"perfharness analyze {self.folder}" if self.folder.is_dir() else None

    def read(self) -> None:
        """Read manifest, telemetry, ranges and load."""
        self._manifest = read_manifest(self.folder)
        self._readings.read()
        self._ranges.read()
        self._load.read()
        self._add_ranges(time.time())

    def _add_ranges(self, now_s: float) -> None:
        """Add a point for the ranges that ended since the previous reading."""
        counts, total_ns = Counter[str](), Counter[str]()
        for process in self._ranges.processes.values():
            counts += Counter({"items/s": process.items or 0, "batches/s": process.batches})
            for (recorder, path), one in process.stages.items():
                counts[f"{recorder}/{path}"] += one.count
                total_ns[f"{recorder}/{path}"] += one.total_ns
        for name in total_ns:
            if new := counts[name] - self._counts[name]:
                mean_ms = (total_ns[name] - self._total_ns[name]) / new / 1e6
                self._stages.setdefault(name, []).append((now_s, mean_ms))
        if self._read_s is not None:
            for name, points in self._rates.items():
                points.append((now_s, (counts[name] - self._counts[name]) / (now_s - self._read_s)))
        self._counts, self._total_ns, self._read_s = counts, total_ns, now_s

    def facts(self) -> dict[str, str]:
        """Texts by name, always with `phase` and `time left`."""
        found = {"phase": self._phase(), **self._load.facts()}
        found.setdefault("time left", NOT_KNOWN)
        if self._counts["batches/s"]:
            found["batches"] = f"{self._counts['batches/s']:,}"
            points = self._rates[self._rate]
            found[self._rate] = number(points[-1][1] if points else None)
        return found

    @property
    def _rate(self) -> str:
        """Items per second, or batches if the script counts no items."""
        return "items/s" if self._counts["items/s"] else "batches/s"

    def _phase(self) -> str:
        if self._manifest.complete:
            profiling = self.folder / EXPLAIN_NAME
            is_done = (profiling / MANIFEST_NAME).exists()
            return "profiling pass" if profiling.is_dir() and not is_done else "reading the traces"
        pids = [process.pid for process in self._manifest.processes]
        if None in pids:
            return "starting"
        alive = sum(psutil.pid_exists(pid) for pid in pids if pid is not None)
        return f"running, {alive} of {len(pids)} processes" if alive else "collecting the traces"

    def panels(self) -> Iterator[Panel]:
        """Yield the panels: load, stages, rate and telemetry."""
        yield from self._load.panels()
        if self._stages:
            most = sorted(self._stages, key=lambda name: self._total_ns[name], reverse=True)[:MOST_STAGES]
            yield Panel("stage (ms)", {name: self._stages[key] for name, key in _short(sorted(most)).items()})
            yield Panel(self._rate, {self._rate: self._rates[self._rate]})
        yield from telemetry_panels(self._readings)


def _short(paths: Sequence[str]) -> dict[str, str]:
    """Paths by their last names if these are unique, else by the whole path."""
    names = {path.rpartition("/")[2]: path for path in paths}
    return names if len(names) == len(paths) else {path: path for path in paths}


class Second(NamedTuple):
    """One window of a load test: rates per second and latencies in ms; None without a good answer."""

    at_s: float
    asked: float
    answered: float
    p50: float | None
    p99: float | None


class RunningLoad:
    """Windows of a load test over all its processes; percentiles are of the slowest process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._phase: dict[str, Any] = {}
        self._seconds: list[Second] = []
        self._errors = 0

    def read(self) -> None:
        """Read the windows that all processes have written."""
        files = [read_lines(file) for file in sorted(self._folder.glob(f"*/{WINDOWS_NAME}"))]
        lines = [line for file in files for line in file]
        windows: dict[tuple[int, int], list[dict[str, Any]]] = {}
        for line in lines:
            if line["kind"] == "phase":
                self._phase = line
            elif line["kind"] == "window":
                windows.setdefault((line["phase"], line["index"]), []).append(line)
        self._seconds = [_second(of_all) for _, of_all in sorted(windows.items()) if len(of_all) == len(files)]
        self._errors = sum(sum(line["errors"].values()) for line in lines if line["kind"] == "window")

    def facts(self) -> dict[str, str]:
        """The last window and the time left; empty without a load."""
        if not self._seconds:
            return {}
        left_s = max((self._phase["end_ns"] - time.perf_counter_ns()) / 1e9, 0.0) + self._phase["later_s"]
        last = self._seconds[-1]
        return {
            "load": self._phase["name"],
            "time left": duration(left_s),
            "requests/s": number(last.answered),
            "p99 (ms)": number(last.p99),
            "errors": f"{self._errors:,}",
        }

    def panels(self) -> Iterator[Panel]:
        """Yield the panels of rates and latencies."""
        if self._seconds:
            for title, names in SECONDS.items():
                yield Panel(title, {name: [(one.at_s, getattr(one, name)) for one in self._seconds] for name in names})


def _second(lines: Sequence[Mapping[str, Any]]) -> Second:
    """Join one window of all processes."""
    end_ns = max(line["end_ns"] for line in lines)
    span_s = (end_ns - min(line["start_ns"] for line in lines)) / 1e9
    asked, answered = (sum(line[name] for line in lines) / span_s for name in ("arrivals", "completed"))
    p50, p99 = (max((line[name] for line in lines if line[name] is not None), default=None) for name in LATENCIES)
    return Second((end_ns + time.time_ns() - time.perf_counter_ns()) / 1e9, asked, answered, p50, p99)


class RunningSuite:
    """A running bench suite, with the attributes and methods of a running launch."""

    start_s: float | None = None

    def __init__(self, folder: Path) -> None:
        self.folder, self.places = folder, (folder,)
        self._suite = read_suite(folder)
        self.title = _title(self._suite.command)
        self._case: CaseResult | None = None
        self._readings: dict[Path, RunningReadings] = {}

    def left(self) -> str | None:
        """Advice for a killed suite; None if all its cases were run."""
        self._suite = read_suite(self.folder)
        return None if self._suite.complete else "run the same command with --resume"

    def read(self) -> None:
        """Read the finished cases and the running one."""
        self._suite = read_suite(self.folder)
        self._case = None
        for folder in self.folder.glob(f"{CASES}/.*.running"):
            self._case = read_model(folder / RESULT_NAME, CaseResult) or self._case
            self._readings.setdefault(folder, RunningReadings(folder)).read()
        cases = [*self._suite.cases, *filter(None, [self._case])]
        started = [one.started_unix_ns for one in cases if one.started_unix_ns is not None]
        self.start_s = min(started) / 1e9 if started else None

    def facts(self) -> dict[str, str]:
        """The running case, and the time left at the mean time per case."""
        cases = self._suite.cases
        done = [case for case in cases if case.status != "not-run"]
        times_s = [case.duration_s for case in done if case.duration_s is not None]
        left = duration((len(cases) - len(done)) * mean(times_s)) if times_s else NOT_KNOWN
        phase, process = "between cases", self._case and self._case.process
        if self._case is not None:
            phase = f"{self._case.case.case_id}: {process.phase if process and process.phase else 'starting'}"
        return {"phase": phase, "time left": left, "cases": f"{len(done)} of {len(cases)}"}

    def panels(self) -> Iterator[Panel]:
        """Yield latency and rate of the finished cases, and telemetry."""
        medians: dict[str, Points] = {}
        rates: dict[str, Points] = {}
        for one in self._suite.cases:
            if one.started_unix_ns is not None and one.duration_s is not None:
                name, end_s = f"{one.case.model} {cell_of(one.case)}", one.started_unix_ns / 1e9 + one.duration_s
                if one.latency is not None and one.latency.median is not None:
                    medians.setdefault(name, []).append((end_s, one.latency.median.value))
                if one.items_per_second is not None:
                    rates.setdefault(name, []).append((end_s, one.items_per_second.value))
        for title, lines in {"median of a case (ms)": medians, "items/s of a case": rates}.items():
            if lines:
                yield Panel(title, {name: sorted(points) for name, points in lines.items()})
        for readings in list(self._readings.values())[-1:]:
            yield from telemetry_panels(readings)


Running = RunningLaunch | RunningSuite


class Ended(NamedTuple):
    """A run that ended while it was watched."""

    title: str
    how: str
    run_id: str | None = None
    """Id of its page, if it has one."""


class Watch:
    """Finds running work in the given folders (default: the current one) and in those of the newest runs.

    Attributes:
        lock: guards `look` and the runs it returns.
    """

    def __init__(self, known: KnownRuns) -> None:
        self.lock = Lock()
        self.problems: list[str] = []
        self.ended: deque[Ended] = deque(maxlen=KEPT)
        self.places = list(known.folders.values()) or [Path.cwd()]
        self._known, self._runs, self._looked_s = known, dict[Path, Running](), 0.0

    def look(self) -> list[Running]:
        """Return what is running, latest first."""
        if time.monotonic() - self._looked_s >= SHARED_S:
            self.problems = []
            for folder in dict.fromkeys([*self._runs, *self._found()]):
                self._read(folder)
            self._looked_s = time.monotonic()
        return list(reversed(self._runs.values()))

    def _found(self) -> Iterator[Path]:
        """Yield the folders of running work."""
        try:
            of_newest = [Path(row["folder"]) for row in self._known.newest(NEWEST)]
        except HistoryError as error:
            of_newest = []
            self.problems.append(str(error))
        for place in dict.fromkeys([*self.places, *of_newest]):
            launches = (one for one in running_folders(place) if one.name.startswith(STAGING_PREFIX))
            yield from (one for one in launches if one.parent.name != EXPLAIN_NAME)  # a part of another launch
            suites = (file.parent for file in (*place.glob(BENCH_NAME), *place.glob(f"*/{BENCH_NAME}")))
            yield from (one for one in suites if is_locked(one))

    def _read(self, folder: Path) -> None:
        known = self._runs.get(folder)
        if known is not None and not is_locked(folder):
            del self._runs[folder]
            self.ended.appendleft(self._end_of(known))
            return
        try:
            if known is None:
                is_launch = folder.name.startswith(STAGING_PREFIX)
                known = self._runs[folder] = RunningLaunch(folder) if is_launch else RunningSuite(folder)
            known.read()
        except PerfHarnessError as error:
            self.problems.append(str(error))

    def _end_of(self, one: Running) -> Ended:
        how = one.left()
        for run_id in (run_id for place in one.places for run_id in self._known.runs_in(place)):
            if isinstance(one, RunningSuite) or run_id == one.run_id:
                return Ended(one.title, "ended" if how is None else f"ended early. To go on, {how}", run_id)
        return Ended(one.title, "ended without results" if how is None else f"was killed. To read what it left: {how}")
