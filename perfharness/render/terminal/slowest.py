"""The slowest requests beside the typical one, for people."""

from __future__ import annotations

from rich.console import Console

from perfharness.analysis.slowest.results import CommonCause, Part, Reason, Slowest, SlowLoop, SlowRequest
from perfharness.model.host_samples import Frame
from perfharness.model.text import NOT_MEASURED
from perfharness.render.places import place_text
from perfharness.render.terminal.console import Column, Row, fixed, print_table, say, styled

REASONS = {
    Reason.QUEUE: "waited before service began",
    Reason.GENERATOR: "the generator sent it late: a fault of the measurement",
    Reason.OUTSIDE: "time outside of the batch",
    Reason.HOST: "host time",
    Reason.COLLECTION: "garbage collection",
    Reason.INTERPRETER_LOCK: "waited for the interpreter lock",
    Reason.LOCK: "waited for another thread (a lock, a queue)",
    Reason.SLEEP: "slept",
    Reason.PROCESS: "waited for another process",
    Reason.FILE: "waited for a file",
    Reason.SOCKET: "waited for the network",
    Reason.OFF_CPU: "was off the CPU; what it waited for was not recorded",
    Reason.CROWDED: "waited for a CPU that its own process used",
    Reason.CPU: "was ready and had no CPU",
    Reason.LAUNCH: "CUDA calls that start work took longer",
    Reason.SYNCHRONIZE: "waited in CUDA while none of its GPU work ran",
    Reason.ALLOCATE: "CUDA allocated or freed memory",
    Reason.COPY_CALL: "the host's side of copies",
    Reason.COMPILE: "code was compiled or loaded",
    Reason.CUDA_CALL: "another CUDA call",
    Reason.KERNEL: "waited longer for kernels that took no longer",
    Reason.KERNEL_LONGER: "kernels took longer",
    Reason.MORE_KERNELS: "more kernels than usual",
    Reason.COPY: "waited longer for copies that took no longer",
    Reason.COPY_LONGER: "copies took longer",
    Reason.COPY_LARGER: "copies moved more bytes",
    Reason.MORE_COPIES: "more copies than usual",
    Reason.MEMSET: "memsets",
    Reason.GRAPH: "replays of CUDA graphs",
    Reason.OTHER_WORK: "waited for GPU work that another batch, stream or thread started",
    Reason.THROTTLED: "GPU work took longer while its clocks were throttled",
    Reason.SEVERAL: "many small parts, none of which stands out",
}
OUTSIDE = (Reason.QUEUE, Reason.GENERATOR, Reason.OUTSIDE)
"""Of a request, and not of its batch."""
EVIDENCE = {"trace": "", "readings": "at least; by counters of the thread", "samples": "by samples"}
VERDICTS = {
    "explained": "", "unexplained": "nothing in the trace explains it",
    "usual": "within the usual spread of its loop", "not-compared": "",
}  # fmt: skip


def print_slowest(console: Console, result: Slowest, *, details: bool = False) -> None:
    """A table of each loop, what slow requests have in common, and the slowest one's stages and GPU work.

    Args:
        details: those of all requests.
    """
    for loop in result.loops:
        _print_loop(console, loop)
        for common in loop.common:
            say(console, f" {common.requests} of {common.of}: ", styled(common_text(common), "bold"))
        if loop.unexplained:
            say(console, f" {loop.unexplained} of {len(loop.requests)}: nothing in the trace explains them")
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
        remark = remark_text(request)
        has_stages = bool(request.stages)
        parts = [(f"{part.ms:+.3f}", fixed(part.usual_ms), part_text(part, has_stages)) for part in request.parts]
        if remark or not parts:
            parts.insert(0, ("", "", remark))
        if request.waited_for is not None:
            wait = request.waited_for
            usual = "" if wait.typical_ms is None else f" (typical: {fixed(wait.typical_ms)} ms)"
            text = f"of this, in collectives until rank {wait.rank} had come: {fixed(wait.ms)} ms{usual}"
            parts.append(("", "", text))
        if request.parts and request.small_ms is not None and request.rest_ms is not None:
            parts.append((f"{request.small_ms + request.rest_ms:+.3f}", "", "rest: within the usual spread, or small"))
        for number, part in enumerate(parts):
            rows.append([*(head if number == 0 else [""] * len(head)), *part])
    print_table(console, columns, rows)


def remark_text(request: SlowRequest) -> str:
    """Why it is not explained part by part, and its error."""
    remark = request.reason or VERDICTS[request.verdict]
    if request.error is None:
        return remark
    return f"error {request.error}" + (f"; {remark}" if remark else "")


def part_text(part: Part, has_stages: bool = True) -> str:
    """What was different, without its time: stage, reason, name, counts, who, where.

    Args:
        part: of a request.
        has_stages: whether its batch has any.
    """
    more = []
    if part.count is not None and part.typical_count is not None and part.count != part.typical_count:
        more.append(f"{part.count} instead of {part.typical_count:g}")
    if part.size_bytes is not None and part.size_bytes != part.typical_size_bytes:
        more.append(f"{_bytes(part.size_bytes)} instead of {_bytes(part.typical_size_bytes or 0.0)}")
    if part.where is not None:
        more.append(place_text(Frame(part.where.function, part.where.file, part.where.line)))
    more += [one for one in (part.detail, EVIDENCE[part.evidence]) if one]
    if part.reason is Reason.HOST and not more:
        more.append("it computed, or waited for what was not recorded")
    behind = f" ({'; '.join(more)})" if more else ""
    place = "in no stage: " if part.stage is None and has_stages and part.reason not in OUTSIDE else _place(part.stage)
    return f"{place}{REASONS[part.reason]}{_named(part.name)}{behind}"


def common_text(common: CommonCause) -> str:
    """What several requests have in common."""
    return f"{_place(common.stage)}{REASONS[common.reason]}{_named(common.name)}, {common.median_ms:.3f} ms (median)"


def _place(stage: str | None) -> str:
    return "" if stage is None else f"{stage}: "


def _named(name: str | None) -> str:
    return "" if name is None else f", {name}"


def _print_beside(console: Console, request: SlowRequest) -> None:
    if request.typical is None:
        return
    alike = f" with {', '.join(request.typical.alike)}" if request.typical.alike else ""
    drawn = "" if request.typical.of == request.typical.batches else f" (of {request.typical.of}, drawn at random)"
    typical = f"the median of {request.typical.batches} batches{drawn}{alike}"
    say(
        console,
        f" {request.index} of {request.process} beside {typical}; batch {request.typical.nearest_batch} is near it",
    )
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
            Column("typical"), Column("more"),
        ]  # fmt: skip
        print_table(
            console,
            columns,
            [
                [
                    one.name, str(one.count), f"{one.typical_count:g}", fixed(one.gpu_ms), fixed(one.typical_gpu_ms),
                    f"{one.gpu_ms - one.typical_gpu_ms:+.3f}",
                ]
                for one in request.operations
            ],
        )  # fmt: skip


def _more(request: SlowRequest) -> str:
    return NOT_MEASURED if request.difference_ms is None else f"{request.difference_ms:+.3f}"


def _bytes(value: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:g} B"
