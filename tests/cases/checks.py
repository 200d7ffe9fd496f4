"""Checks of a run: of its output, results and exit codes. `cases.txt` calls them by name."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, TypeVar

Tree = dict[str, Any]

Limit = tuple[str, str | None]
"""Code of a cause and its detail."""
ADVICE = r"^ *\d+\. (.+?)  ([a-z-]+)(?: \((.+?)\))?(?:  |$)"


@dataclass(frozen=True)
class Ran:
    """Output and results of one command, and of those that read its results."""

    out: Path
    done: tuple[CompletedProcess[str], ...]
    truth: Path
    """What the program measured itself, `PID.json`."""

    @cached_property
    def mean(self) -> Tree:
        return read(self.out / "benchmark_mean.json")

    @cached_property
    def processes(self) -> list[Tree]:
        return [read(path) for path in sorted(self.out.glob("proc_*/**/benchmark.json"))]

    @cached_property
    def findings(self) -> list[Tree]:
        """Each once; the mean repeats those of processes."""
        found = [*read(self.out / "manifest.json")["findings"]]
        for body in [self.mean, *self.processes]:
            found += body["meta"]["findings"]
        return found

    def spans(self, key: str) -> list[float]:
        """Milliseconds of each span of that name that the program timed by its own clock."""
        rows = [row for path in self.truth.glob("*.json") for row in json.loads(path.read_text())]
        return [(end - start) / 1e6 for name, start, end in rows if name == key]

    @property
    def printed(self) -> str:
        return self.done[0].stdout

    def said(self, run: int) -> str:
        return self.done[run].stdout + self.done[run].stderr

    def stages(self, name: str) -> list[Tree]:
        """Diagnoses of the stages of that name, one per process that has it."""
        found = [stage for body in self.processes for stage in body["diagnosis"]["stages"]]
        return [stage for stage in found if stage["path"][-1] == name]

    def limits(self, name: str) -> list[Limit]:
        """What limits the stages of that name, one per process that has it."""
        return [(one["causes"][0]["code"], one["causes"][0]["detail"]) for one in self.stages(name)]

    def advice(self) -> list[tuple[str, Limit]]:
        """Stage and cause of each numbered line of what to do first."""
        found = re.findall(ADVICE, self.printed, re.MULTILINE)
        return [(stage.split("/")[-1], (code, detail or None)) for stage, code, detail in found]


Check = Callable[[Ran], None]
T = TypeVar("T")

LATE_MS = 3.0
"""How late a busy machine wakes a thread, at most, in the median."""


def read(path: Path) -> Tree:
    body: Tree = json.loads(path.read_text("utf-8"))
    return body


def named(tree: Tree, name: str) -> Iterator[Tree]:
    """Every object below `tree` with that key, or the one at a whole path."""
    if "/" in name:
        for key in name.split("/"):
            tree = tree.get(key, {})
        yield from [tree] if tree else []
        return
    for key, value in tree.items():
        if isinstance(value, dict):
            if key == name:
                yield value
            yield from named(value, name)


def only(found: Iterable[T]) -> T:
    """The one that there has to be."""
    every_one = list(found)
    assert len(every_one) == 1
    return every_one[0]


def near(found: float | None, expected: float, within: float) -> None:
    assert found is not None
    assert abs(found - expected) <= within * abs(expected), f"{found} instead of {expected}"


def took(found: float | None, ms: float, within: float) -> None:
    """A time as planted: a sleep is never short, and late on a busy machine."""
    assert found is not None
    assert 0.95 * ms <= found <= (1 + within) * ms + LATE_MS, f"{found} ms instead of {ms} ms"


def lasts(ran: Ran, stage: str, ms: float, within: float = 0.3, statistic: str = "p50") -> None:
    """A stage's host time per batch, without warm-up; by default the median, which one late sleep does not move."""
    found = only(named(ran.mean["stats_minus_warmup"], stage))
    took(found["cpu_time"][statistic], ms, within)


def at_most(ran: Ran, stage: str, ms: float) -> None:
    """A stage's median host time per batch is no longer than that."""
    found = only(named(ran.mean["stats_minus_warmup"], stage))
    assert found["cpu_time"]["p50"] <= ms


def every(ran: Ran, stage: str, *times: float, within: float = 0.3, of_mean: bool = False) -> None:
    """The median host times of the stages with that name, of all processes and recorders, in any order."""
    bodies = [ran.mean] if of_mean else ran.processes
    stages = [one for body in bodies for one in named(body["stats_minus_warmup"], stage)]
    found = sorted(one["cpu_time"]["p50"] for one in stages)
    assert len(found) == len(times), found
    for one, ms in zip(found, sorted(times), strict=True):
        took(one, ms, within)


def accounted(ran: Ran, stage: str, ms: float, within: float = 0.3) -> None:
    """A range is in a table with its host time, or a finding names it."""
    if any(stage in finding["message"] for finding in ran.findings):
        return
    found = only(named(ran.mean["stats_minus_warmup"] or ran.mean["mean_all_batches"], stage))
    took(found["cpu_time"]["p50"] if isinstance(found["cpu_time"], dict) else found["cpu_time"], ms, within)


def outside(ran: Ran, stage: str, count: int, ms: float, within: float = 0.3) -> None:
    """A range outside of batches: its occurrences, and the median of its host time."""
    found = only(row for row in ran.mean["outside_batches"] if row["path"][-1] == stage)
    assert found["count"] == count
    took(found["cpu_time"]["p50"], ms, within)


def number(ran: Ran, path: str, expected: float | None, within: float = 0.0) -> None:
    """A number of benchmark_mean.json, by its keys."""
    compared(ran.mean, path, expected, within)


def reads(ran: Ran, path: str, expected: float | str | None, within: float = 0.0, run: int = -1) -> None:
    """A number of what another verb printed as JSON."""
    compared(json.loads(ran.done[run].stdout), path, expected, within)


def compared(body: Any, path: str, expected: Any, within: float) -> None:
    for key in path.split("/"):
        body = dict(enumerate(body)).get(int(key)) if isinstance(body, list) else body.get(key)
        assert body is not None or expected is None, path
    if within:
        near(body, expected, within)
    else:
        assert body == expected


def throughput(ran: Ran, expected: float | None, within: float = 0.25) -> None:
    """Items per second of the run; None: not measured, with a reason."""
    found = ran.mean["throughput"]
    if expected is None:
        assert found["items_per_second"] is None
        assert found["reason"]
    else:
        near(found["items_per_second"], expected, within)


def batches(ran: Ran, *counts: int, measured: bool = False) -> None:
    """Batches of each loop of all processes, warm-up included or not."""
    key = "total_batches_minus_warmup" if measured else "total_batches"
    assert sorted(count for body in ran.processes for count in body["meta"][key].values()) == sorted(counts)


def cause(ran: Ran, stage: str, code: str, detail: str | None = None, line: int | None = None) -> None:
    """What limits a stage in each process: code and detail of its first cause, and its line."""
    found = ran.stages(stage)
    assert found
    for one in found:
        first_cause = one["causes"][0]
        assert first_cause["code"] == code
        assert detail is None or first_cause["detail"] == detail
        assert line is None or first_cause["place"]["line"] == line


def has_cause(ran: Ran, stage: str, code: str, line: int) -> None:
    """One of a stage's causes, with its line."""
    found = only(ran.stages(stage))
    assert line in [one["place"]["line"] for one in found["causes"] if one["code"] == code and one["place"]]


def never(ran: Ran, stage: str, code: str, detail: str | None = None) -> None:
    """Neither verdict nor advice names this cause of a stage."""
    limits = ran.limits(stage)
    assert limits
    limits += [limit for advised, limit in ran.advice() if advised == stage]
    assert not [limit for limit in limits if limit[0] == code and detail in {None, limit[1]}]


def first(ran: Ran, stage: str, code: str) -> None:
    """Stage and cause of the first line of what to do first."""
    assert [(advised, limit[0]) for advised, limit in ran.advice()][:1] == [(stage, code)]


def times_fit(ran: Ran) -> None:
    """No stage is said to take more of a batch than the batch lasts, where the text sets one against the other."""
    pairs = re.findall(r"([\d.]+) ms of ([\d.]+) ms", ran.printed)
    assert pairs
    assert [pair for pair in pairs if float(pair[0]) > float(pair[1])] == []


def fits(ran: Ran, columns: int = 200, lines: int = 60) -> None:
    """The printed tables can be read in a terminal."""
    printed = ran.printed.splitlines()
    assert max(map(len, printed)) <= columns
    assert len(printed) <= lines


def exits(ran: Ran, code: int | str, run: int = 0) -> None:
    """The exit code; `any`: no matter."""
    assert code in {"any", ran.done[run].returncode}, ran.said(run)


def finds(ran: Ran, *codes: str) -> None:
    """The results have a finding with one of these codes."""
    found = {finding["code"] for finding in ran.findings}
    assert found & {*codes}, found


def notes(ran: Ran, pattern: str) -> None:
    """A finding's message has this key word."""
    assert any(re.search(pattern, finding["message"]) for finding in ran.findings), ran.findings


def says(ran: Ran, pattern: str, run: int = 0) -> None:
    """What was printed has this key word."""
    assert re.search(pattern, ran.said(run)), ran.said(run)


def silent(ran: Ran, pattern: str, run: int = 0) -> None:
    """What was printed does not have this key word."""
    assert ran.said(run)
    assert not re.search(pattern, ran.said(run))


def any_of(checks: list[Check]) -> Check:
    """A check that one of these holds."""

    def check(ran: Ran) -> None:
        assert any(holds(one, ran) for one in checks)

    return check


def holds(check: Check, ran: Ran) -> bool:
    try:
        check(ran)
    except AssertionError:
        return False
    return True


def rate_matches(ran: Ran, stage: str) -> None:
    """Batches of one item without pauses between them: the rate is the inverse of their mean time."""
    found = only(named(ran.mean["stats_minus_warmup"], stage))
    near(ran.mean["throughput"]["items_per_second"], 1e3 / found["cpu_time"]["mean"], 0.1)


def throughput_as_printed(ran: Ran) -> None:
    """The program's own rate is the last word of its output."""
    (log,) = ran.out.glob("proc_*/stdout.log")
    near(ran.mean["throughput"]["items_per_second"], float(log.read_text().split()[-1]), 0.25)


def range_exceeds_span(ran: Ran, stage: str, ms: float) -> None:
    """A range is that much longer than the program's own span inside it, beyond what a span itself costs; medians."""
    found = only(named(ran.mean["stats_minus_warmup"], stage))
    assert 0 <= found["cpu_time"]["p50"] - statistics.median(ran.spans(stage)) <= bare_span_ms() + ms


def bare_span_ms() -> float:
    """What a span costs after a sleep without perfharness: caches are cold then."""
    done = subprocess.run(
        [sys.executable, "-c", BARE_SPANS],
        cwd=Path(__file__).parent / "truth", capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return float(done.stdout)


BARE_SPANS = """
import statistics, time
from tr import L, span
around = []
for _ in range(150):
    begin = time.perf_counter_ns()
    with span(""):
        time.sleep(0.006)
    around.append(time.perf_counter_ns() - begin)
print((statistics.median(around) - statistics.median(end - begin for _, begin, end in L)) / 1e6)
"""


def line_takes(ran: Ran, stage: str, line: int, span: str, within: float = 0.2) -> None:
    """The share of the line that the first cause names, without the time for which no CPU was free, is that of the
    program's own span.
    """
    found = only(ran.stages(stage))
    place = found["causes"][0]["place"]
    assert place["line"] == line
    running = 1.0 - found["activities"].get("no-cpu", 0.0)
    near(place["line_share"] / running, statistics.fmean(ran.spans(span)) / found["wall_ms"], within)


def takes_share(ran: Ran, stage: str, whole: str, share: float, within: float) -> None:
    """The share of a stage in the time of one around it, over all batches."""
    near(only(ran.stages(stage))["wall_ms"] / only(ran.stages(whole))["wall_ms"], share, within)


def peak_memory(ran: Ran) -> None:
    """Host memory at its peak, as the kernel counted it for the process."""
    (peak,) = (json.loads(path.read_text())["maxrss"] for path in ran.truth.glob("m.json"))
    (version,) = json.loads(ran.done[1].stdout)["versions"]
    row = only(row for row in version["rows"] if row["metric"] == "host_memory")
    near(row["base"]["mean"], peak, 0.02)
