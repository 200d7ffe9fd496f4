"""The slowest requests beside the typical one, for people."""

from __future__ import annotations

from rich.console import Console

from perfharness.analysis.slowest import Slowest, SlowLoop, SlowRequest
from perfharness.analysis.slowest.results import GENERATOR, OUTSIDE, QUEUE, Part
from perfharness.model.activity import Activity
from perfharness.model.host_samples import Frame
from perfharness.render.places import place_text
from perfharness.render.terminal.console import Column, Row, fixed, print_table, say, styled
from perfharness.render.text import NOT_MEASURED

REASONS: dict[str, str] = {
    QUEUE: "waited before service began",
    GENERATOR: "the load generator sent it late",
    OUTSIDE: "time outside of the batch",
    Activity.COMPUTE: "computed",
    Activity.NO_CPU: "waited for a free CPU",
    Activity.GIL: "waited for the interpreter lock",
    Activity.LOCK: "waited for another thread (a lock, a queue)",
    Activity.SLEEP: "slept",
    Activity.FILE: "waited for a file",
    Activity.NETWORK: "waited for the network",
    Activity.PROCESS: "waited for another process",
    Activity.GC: "garbage collection",
    Activity.COMPILE: "compiled or loaded code",
    Activity.LAUNCH: "CUDA calls that start work",
    Activity.COPY: "CUDA calls that copy",
    Activity.SYNC: "waited for the GPU",
    Activity.ALLOC: "CUDA allocated or freed memory",
    Activity.OTHER: "another call",
    Activity.UNKNOWN: "not recorded what it did",
}
VERDICTS = {"unexplained": "nothing in the trace explains it", "usual": "within the usual spread of its loop"}


def print_slowest(console: Console, result: Slowest, *, details: bool = False) -> None:
    """A table of each loop, and the slowest request's stages and GPU work.

    Args:
        details: those of all requests.
    """
    for loop in result.loops:
        _print_loop(console, loop)
        for request in loop.requests if details else loop.requests[:1]:
            _print_beside(console, request)
    for note in result.notes:
        say(console, styled("not known", "dim"), f": {note}")


def _print_loop(console: Console, loop: SlowLoop) -> None:
    measure = "latency (done - intended)" if loop.measured_by == "latency" else "duration of the batch"
    processes = f" of {loop.processes} processes" if loop.processes > 1 else ""
    say(console, styled(loop.loop, "bold"), f": the slowest of {loop.batches} batches{processes}, by {measure}; ms")
    columns = [
        Column("request"), Column("process", is_text=True, drop=3), Column("ms"), Column("typical"),
        Column("of", drop=4), Column("more"), Column("part"), Column("usual", drop=2),
        Column("what was different", is_text=True),
    ]  # fmt: skip
    rows: list[Row] = []
    for request in loop.requests:
        head = [str(request.index), request.process, fixed(request.ms)]
        typical = request.typical
        head += [NOT_MEASURED] * 3 if typical is None else [fixed(typical.ms), str(typical.batches), _more(request)]
        parts = [
            ["" if ms is None else f"{ms:+.3f}", "" if usual is None else fixed(usual), text]
            for text, ms, usual in part_rows(request)
        ]
        rows += [[*(head if number == 0 else [""] * len(head)), *part] for number, part in enumerate(parts)]
    print_table(console, columns, rows)


def part_rows(request: SlowRequest) -> list[tuple[str, float | None, float | None]]:
    """What was different: a text, ms, and what is usual."""
    remarks = [request.reason, VERDICTS.get(request.verdict)]
    remarks += [None if request.error is None else f"error {request.error}"]
    remarks += [f"the GPU's clocks were reduced: {', '.join(request.throttled)}" if request.throttled else None]
    remark = "; ".join(one for one in remarks if one)
    rows: list[tuple[str, float | None, float | None]] = [(remark, None, None)] if remark or not request.parts else []
    rows += [(part_text(part), part.ms, part.usual_ms) for part in request.parts]
    if request.parts and request.small_ms is not None and request.rest_ms is not None:
        rows.append(("rest: within the usual spread, or small", request.small_ms + request.rest_ms, None))
    return rows


def part_text(part: Part) -> str:
    """Stage, reason, name, line and number of samples."""
    name = "" if part.name is None else f", {part.name}"
    more = [] if part.where is None else [place_text(Frame(part.where.function, part.where.file, part.where.line))]
    more += [] if part.samples is None else [f"{part.samples} samples"]
    place = "" if part.stage is None else f"{part.stage}: "
    return f"{place}{REASONS[part.reason]}{name}" + (f" ({'; '.join(more)})" if more else "")


def _print_beside(console: Console, request: SlowRequest) -> None:
    typical = request.typical
    if typical is None:
        return
    text = f"the median of {typical.batches} batches; batch {typical.nearest_batch} is near it"
    say(console, f" {request.index} of {request.process} beside {text}")
    if request.stages:
        columns = [Column("stage", is_text=True, is_whole=True), Column("ms"), Column("typical"), Column("more")]
        rows = [
            [one.stage, fixed(one.slow_ms), fixed(one.typical_ms), f"{one.slow_ms - one.typical_ms:+.3f}"]
            for one in request.stages
        ]
        print_table(console, columns, rows)
    if request.operations:
        columns = [
            Column("GPU operation", is_text=True), Column("count"), Column("typical"), Column("GPU ms"),
            Column("typical"), Column("more"), Column("MB"), Column("typical"),
        ]  # fmt: skip
        rows = [
            [
                one.name, str(one.count), f"{one.typical_count:g}", fixed(one.gpu_ms), fixed(one.typical_gpu_ms),
                f"{one.gpu_ms - one.typical_gpu_ms:+.3f}", f"{one.copied_bytes / 1e6:g}",
                f"{one.typical_copied_bytes / 1e6:g}",
            ]
            for one in request.operations
        ]  # fmt: skip
        print_table(console, columns, rows)


def _more(request: SlowRequest) -> str:
    return NOT_MEASURED if request.difference_ms is None else f"{request.difference_ms:+.3f}"
