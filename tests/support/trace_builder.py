"""Small synthetic traces in nsys's sqlite schema, from a few lines of a test."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perfharness.analysis.analysis import Analysis, AnalysisOptions
from perfharness.model import conventions
from perfharness.model import nsys_schema as schema
from perfharness.model.host_samples import HostEventKind, HostState
from perfharness.model.trace import CopyKind
from perfharness.trace import open_trace
from tests.support.probe_builder import ProbeBuilder

US, MS = 1_000, 1_000_000
APP, SITE = "/app/main.py", "/usr/lib/python3.11/site-packages"
WORK, WAIT = (f"work@{APP}:7", f"main@{APP}:3"), (f"wait@{APP}:9", f"main@{APP}:3")
WORDS: dict[str, Any] = {
    "work": WORK,
    "wait": WAIT,
    "prepare": (f"prepare@{APP}:40",),
    "loader": (f"_try_get_data@{SITE}/torch/utils/data/dataloader.py:1100", *WAIT),
    "compiler": (f"_compile@{SITE}/torch/_dynamo/convert_frame.py:9", *WORK),
    "import": ("exec_module@<frozen importlib._bootstrap_external>:995", *WORK),
    "D2H": CopyKind.DEVICE_TO_HOST,
    "D2D": CopyKind.DEVICE_TO_DEVICE,
    "P2P": CopyKind.PEER_TO_PEER,
    "none": None,
}
"""What words stand for in the text of `TraceBuilder.add`: stacks, the innermost frame first, and values."""
EVENTS = {
    "collects": HostEventKind.COLLECTION,
    "crowded": HostEventKind.CPU_CONTENTION,
    "used": HostEventKind.CPU_TIME,
}
TABLES = {"memset": schema.TABLE_MEMSET, "graph": schema.TABLE_GRAPH, "operation": schema.TABLE_KERNEL}
NUMBER = r"(-?\d+(?:\.\d+)?)"
SPAN, REPEAT = re.compile(rf"{NUMBER}\.\.{NUMBER}?"), re.compile(rf"x(\d+)\+{NUMBER}")

NVTX_COLUMNS = (
    "start", "end", "eventType", "rangeId", "category", "text", "globalTid", "endGlobalTid", "textId",
    "domainId", "int64Value",
)  # fmt: skip

H200: dict[str, Any] = {
    "name": "NVIDIA H200", "uuid": "c991c9e1-438a-1801-63fb-810fae305a5c", "smCount": 132, "clockRate": 1_980_000_000,
    "memoryBandwidth": 4_814_304_000_000, "totalMemory": 150_109_880_320, "l2CacheSize": 62_914_560,
    "maxWarpsPerSm": 64, "maxBlocksPerSm": 32, "maxRegistersPerSm": 65_536, "maxShmemPerSm": 233_472,
    "computeMajor": 9, "computeMinor": 0,
}  # fmt: skip
"""Row of TARGET_INFO_GPU by nsys 2025.3, as far as it is read."""


class TraceBuilder:
    """Collects events, then writes them. Times are integers in ns; everything is in one process by default.

    Args:
        cuda_traced: the trace's own statement, as nsys writes it; None: without one.
        gpu: whether the trace has a GPU.
    """

    unit = 1
    """Nanoseconds of a number in the text of `add`."""
    of_samples: Mapping[str, Any] = {}
    """Further arguments of samples that `add` makes."""

    def __init__(self, *, cuda_traced: bool | None = True, gpu: bool = True) -> None:
        self.tables: dict[str, list[dict[str, Any]]] = {}
        self.probe = ProbeBuilder()
        self._strings: dict[str, int] = {}
        self._categories: dict[tuple[int, int, str], int] = {}
        self._domains: dict[tuple[int, str], int] = {}
        self._next_correlation = 1
        if cuda_traced is not None:
            self.capture(CAPTURE_EVENT_TYPE="NvtxEvents")
            self.capture(COLLECT_CUDA_TRACE=str(cuda_traced).lower())
        if gpu:
            self.row("TARGET_INFO_GPU", id=0, name="Test GPU")

    def add(
        self, text: str, at: float = 0, *, unit: int | None = None, words: Mapping[str, Any] = WORDS
    ) -> TraceBuilder:
        """Add what a text says, one event per line or `;`, and return the builder.

        ```
        infer 0..50                            a range; `0..` has no end
        launch 10..14 -> 20..30 grid=66        a call and its kernel; copy, memset, graph, operation likewise
        cudaMalloc 0..30 tid=101               a CUDA call
        os:read 5..35                          a call of the operating system
        lock@wait 0..600                       samples in a state, of a stack of `words`, or `f@a.py:3|main@a.py:9`
        collects 0..300                        an event of the host probe; crowded, used likewise
        batch_* 0..9 x50+10                    50 times, each 10 later; `*` is the number
        ```

        Args:
            at: the begin of all times, in units.
            words: what words stand for as names, as values of arguments, and as stacks.
        """
        unit = self.unit if unit is None else unit
        for line in filter(str.strip, re.split(r"[;\n]", text)):
            what, *parts = line.split()
            spans = [found.groups() for part in parts if (found := SPAN.fullmatch(part))]
            repeats = [found.groups() for part in parts if (found := REPEAT.fullmatch(part))]
            pairs = [part.partition("=") for part in parts if "=" in part]
            options = {key: words[value] if value in words else _value(value) for key, _, value in pairs}
            times, step = repeats[0] if repeats else ("1", "0")
            for number in range(int(times)):
                begin = at + number * float(step)
                moments = [tuple(one and round((begin + float(one)) * unit) for one in span) for span in spans]
                name = what.replace("*", str(number))
                self._one(words[name] if isinstance(words.get(name), str) else name, moments, options, words)
        return self

    def _one(self, what: str, spans: list[Any], options: dict[str, Any], words: Mapping[str, Any]) -> None:
        state, _, stack = what.partition("@")
        match what:
            case "launch":
                self.kernel(*spans, **options)
            case "copy":
                self.copy(*spans, **options)
            case "memset" | "graph" | "operation":
                name = "cudaMemsetAsync_v3020" if what == "memset" else "cudaGraphLaunch_v10000"
                start, end = spans[1]
                self.operation(start, end, self.call(name, *spans[0]), table=TABLES[what], **options)
            case "collects" | "crowded" | "used":
                self.probe.event(EVENTS[what], *spans[0], **{"detail": 2, **options})
            case _ if stack:
                frames = words[stack] if stack in words else stack.split("|")
                start, end = spans[0]
                facts = {"state": HostState[state.upper()], **self.of_samples, **options}
                self.probe.samples(start, end, frames, **facts)
            case _ if what.startswith("cu"):
                self.call(what, *spans[0], **options)
            case _ if what.startswith("os:"):
                self.os_call(what.removeprefix("os:"), *spans[0], **options)
            case _:
                self._range(what, *spans[0], **options)

    def _range(self, what: str, start: int, end: int | None, **options: Any) -> None:
        self.range(what, start, end, **options)

    def row(self, table: str, **columns: Any) -> int:
        """Add a row to any table; returns its row id."""
        rows = self.tables.setdefault(table, [])
        rows.append(columns)
        return len(rows)

    def capture(self, **values: str) -> None:
        """Rows of META_DATA_CAPTURE."""
        for name, value in values.items():
            self.row("META_DATA_CAPTURE", name=name, value=value)

    def string(self, value: str) -> int:
        """Id of a string in StringIds."""
        if value not in self._strings:
            self._strings[value] = len(self._strings) + 1
            self.row(schema.TABLE_STRINGS, id=self._strings[value], value=value)
        return self._strings[value]

    def range(
        self,
        name: str,
        start: int,
        end: int | None,
        *,
        pid: int = 100,
        tid: int = 100,
        domain: str | None = None,
        category: str | None = None,
        payload: int | None = None,
        start_end: bool = False,
        end_tid: int | None = None,
        text: bool = False,
    ) -> int:
        """A range; `text` stores the name in the event itself instead of in StringIds. Returns its row id."""
        return self._event(
            schema.NVTX_START_END_RANGE if start_end else schema.NVTX_PUSH_POP_RANGE,
            name, start, end, pid, tid, domain, category, payload, text=text,
            endGlobalTid=None if end_tid is None else schema.global_tid(pid, end_tid),
        )  # fmt: skip

    def mark(
        self, name: str, at: int, *, pid: int = 100, tid: int = 100, domain: str | None = None,
        category: str | None = None, payload: int | None = None,
    ) -> int:  # fmt: skip
        """A mark; returns its row id."""
        return self._event(schema.NVTX_MARK_EVENT, name, at, None, pid, tid, domain, category, payload)

    def call(
        self, name: str, start: int, end: int, *, pid: int = 100, tid: int = 100, correlation: int | None = None,
        result: int = 0,
    ) -> int:  # fmt: skip
        """A CUDA API call; returns its correlation id."""
        if correlation is None:
            correlation, self._next_correlation = self._next_correlation, self._next_correlation + 1
        self.row(
            schema.TABLE_API, start=start, end=end, globalTid=schema.global_tid(pid, tid), correlationId=correlation,
            nameId=self.string(name), returnValue=result, eventClass=schema.EVENT_CLASS_RUNTIME,
        )  # fmt: skip
        return correlation

    def operation(
        self, start: int, end: int, correlation: int, *, table: str = schema.TABLE_KERNEL, pid: int = 100,
        stream: int = 7, device: int = 0, **columns: Any,
    ) -> None:  # fmt: skip
        """A GPU operation; `columns` are further ones of its table."""
        self.row(
            table, start=start, end=end, globalPid=schema.global_tid(pid, 0), correlationId=correlation,
            deviceId=device, streamId=stream, **columns,
        )  # fmt: skip

    def kernel(
        self, call: tuple[int, int], run: tuple[int, int], *, pid: int = 100, tid: int = 100, stream: int = 7,
        device: int = 0, name: str | None = None, grid: int | None = None, block: int = 128, registers: int = 32,
        shared_bytes: int = 0,
    ) -> int:  # fmt: skip
        """A launch call (start, end) and the kernel (start, end) that it started; returns the correlation id.

        With a name or a grid, the kernel has all columns of nsys.
        """
        correlation = self.call("cudaLaunchKernel_v7000", *call, pid=pid, tid=tid)
        details: dict[str, Any] = {}
        if name is not None or grid is not None:
            code = self.string(name or "kernel")
            details = {
                "shortName": code, "demangledName": code, "gridX": grid or 1, "gridY": 1, "gridZ": 1, "blockX": block,
                "blockY": 1, "blockZ": 1, "registersPerThread": registers, "staticSharedMemory": shared_bytes,
                "dynamicSharedMemory": 0,
            }  # fmt: skip
        self.operation(*run, correlation, pid=pid, stream=stream, device=device, **details)
        return correlation

    def copy(
        self,
        call: tuple[int, int],
        run: tuple[int, int],
        *,
        kind: int = CopyKind.HOST_TO_DEVICE,
        pageable: bool = True,
        size: int = 1_000_000,
        pid: int = 100,
        tid: int = 100,
        **more: Any,
    ) -> None:
        """A copy, by default from pageable memory of the host, and its call."""
        host = 0 if pageable else 1
        columns = {
            "bytes": size,
            "copyKind": int(kind),
            "srcKind": host if kind == CopyKind.HOST_TO_DEVICE else 2,
            "dstKind": host if kind == CopyKind.DEVICE_TO_HOST else 2,
        }
        correlation = self.call("cudaMemcpyAsync_v3020", *call, pid=pid, tid=tid)
        self.operation(*run, correlation, table=schema.TABLE_MEMCPY, pid=pid, **(columns | more))

    def os_call(self, name: str, start: int, end: int, *, tid: int = 100) -> None:
        """A call of the operating system, as nsys records them."""
        thread, number = schema.global_tid(100, tid), self.string(name)
        self.row("OSRT_API", start=start, end=end, globalTid=thread, nameId=number)

    def gpu_metric_names(self, names: Sequence[str], *, gpu: int = 0) -> int:
        """Metrics that are sampled, their ids in this order from 0 on; returns the type id of the GPU's readings."""
        type_id = 0x6E74_0000_0000_0000 | gpu  # the last eight bits are the GPU
        for number, name in enumerate(names):
            self.row(
                "TARGET_INFO_GPU_METRICS", typeId=type_id, sourceId=type_id >> 8, typeName=f"GPU Metrics [{gpu}]",
                metricId=number, metricName=name,
            )  # fmt: skip
        return type_id

    def gpu_metric_reading(self, at: int, values: Sequence[int | None], *, type_id: int) -> None:
        """A reading of all metrics that are sampled, at the begin of its period; None: without a row."""
        for number, value in enumerate(values):
            if value is not None:
                self.row(
                    "GPU_METRICS", rawTimestamp=at + 5_000_000_000, timestamp=at, typeId=type_id, metricId=number,
                    value=value,
                )  # fmt: skip

    def write(self, path: Path) -> Path:
        """Write the file; tables have the columns of their rows."""
        path.unlink(missing_ok=True)
        self.tables.setdefault(schema.TABLE_STRINGS, [{"id": 0, "value": ""}])
        connection = sqlite3.connect(path)
        connection.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")  # nobody else reads it yet
        with connection:
            for table, rows in self.tables.items():
                columns = list(dict.fromkeys(column for row in rows for column in row))
                quoted = ", ".join(f'"{column}"' for column in columns)
                connection.execute(f"CREATE TABLE {table} ({quoted})")
                connection.executemany(
                    f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})",
                    [tuple(row.get(column) for column in columns) for row in rows],
                )
        connection.close()
        return path

    def analysis(self, folder: Path, warmup: int = 0) -> Analysis:
        """The analysis of the trace, with what the probe sampled."""
        probe = self.probe.build() if self.probe.has_samples else None
        trace = open_trace(self.write(folder / "t.sqlite"))
        return Analysis(trace, AnalysisOptions(warmup), host_probe=probe)

    def _event(
        self, kind: int, name: str, start: int, end: int | None, pid: int, tid: int, domain: str | None,
        category: str | None, payload: int | None, *, text: bool = False, **more: Any,
    ) -> int:  # fmt: skip
        domain_id = self._domain(pid, tid, domain)
        thread = schema.global_tid(pid, tid)
        columns: dict[str, Any] = dict.fromkeys(NVTX_COLUMNS)
        columns |= {
            "start": start, "end": end, "eventType": kind, "globalTid": thread, "domainId": domain_id,
            "int64Value": payload,
            "category": self._category(pid, tid, domain_id, category),
        }  # fmt: skip
        columns |= {"text": name} if text else {"textId": self.string(name)}
        return self.row(schema.TABLE_NVTX, **columns | more)

    def _domain(self, pid: int, tid: int, domain: str | None) -> int:
        if domain is None:
            return 0
        if (pid, domain) not in self._domains:
            self._domains[pid, domain] = len(self._domains) + 1
            self.row(
                schema.TABLE_NVTX, start=0, eventType=schema.NVTX_DOMAIN_CREATE, text=domain,
                globalTid=schema.global_tid(pid, tid), domainId=self._domains[pid, domain],
            )  # fmt: skip
        return self._domains[pid, domain]

    def _category(self, pid: int, tid: int, domain_id: int, category: str | None) -> int | None:
        if category is None:
            return None
        key = (pid, domain_id, category)
        if key not in self._categories:
            self._categories[key] = len(self._categories) + 1
            self.row(
                schema.TABLE_NVTX, start=0, eventType=schema.NVTX_CATEGORY_EVENT, text=category, domainId=domain_id,
                category=self._categories[key], globalTid=schema.global_tid(pid, tid),
            )  # fmt: skip
        return self._categories[key]


class Recorded(TraceBuilder):
    """A trace as a recorder writes it; times are ms.

    In the text of `add`, `batch#3 0..9 items=4` is a batch and `!items 9.. payload=4` a mark; ranges are the recorder's
    unless they have a domain.
    """

    unit = MS

    def __init__(self, recorder: str = "toy", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.declare(recorder)
        self.recorder = recorder

    def declare(self, recorder: str) -> None:
        """Say that there is a recorder."""
        self.mark(conventions.MARK_RECORDER, 0, domain="perfharness", category=recorder)

    def stage(self, name: str, start: float, end: float | None, *, lane: int = 0, **where: Any) -> None:
        """A range; `lane`: of a task."""
        where.setdefault("domain", "perfharness")
        where["category"] = conventions.category_name(where.pop("recorder", self.recorder), where.get("category"), lane)
        stop = None if end is None else round(end * MS)
        self.range(name, round(start * MS), stop, start_end=lane > 0, **where)

    def batch(
        self, index: int, start: float, end: float | None, items: int | None = 1, *, name: str = "batch", **where: Any
    ) -> None:
        """A batch and the number of its items."""
        self.stage(name, start, end, payload=index, **where)
        if items is not None and end is not None:
            self.inside(conventions.MARK_ITEMS, end, payload=items, **where)

    def inside(self, mark: str, end: float, *, lane: int = 0, payload: int | None = None, **where: Any) -> None:
        """A mark just before `end`."""
        category = conventions.category_name(where.pop("recorder", self.recorder), lane=lane)
        self.mark(mark, round(end * MS) - 1, domain="perfharness", category=category, payload=payload, **where)

    def _range(self, what: str, start: int, end: int | None, **options: Any) -> None:
        name, is_batch, index = what.partition("#")
        where = start / MS, None if end is None else end / MS
        if what.startswith("!"):
            self.inside(getattr(conventions, f"MARK_{what[1:].upper()}"), where[0], **options)
        elif is_batch:
            self.batch(int(index), *where, name=name, **options)
        elif "domain" in options:
            self.range(what, start, end, **options)
        else:
            self.stage(what, *where, **options)


def _value(text: str) -> Any:
    """The number, or the text."""
    return int(float(text)) if re.fullmatch(NUMBER, text) else text
