"""Snapshots of what the product says of recorded inputs, as data.

Everything goes through the command line and files; the report, whose files are for people, through Python. A sentence
becomes true or false (given or not), because its words may change; numbers, codes, keys and nulls may not.
"""

from __future__ import annotations

import atexit
import contextlib
import csv
import fnmatch
import gzip
import io
import json
import math
import re
import shlex
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import perfharness
from perfharness.cli.main import run
from perfharness.errors import PerfHarnessError

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
SNAPSHOTS = GOLDEN / "snapshots"
MARKS = "marks.json"

VERBS = {
    "analyze": "analyze {input} --format md",
    "slowest": "analyze {input} --slowest 3 --format json",
    "ranges": "export {input} --table ranges -o {out}/ranges.json",
    "timeline": "export {input} -o {out}/timeline.json",
    "tables": "export {input} --format csv -o {out}/tables",
    "report": "report {input} -o {out}/report.md",
}
"""How a run is read. A verb or an option that moves is changed in these tables only."""

OPTIONS_OF_TRACES = dict.fromkeys(VERBS, "-w 1") | {"analyze": "-w 1 -o {out}/analyzed", "ranges": ""}

COMPARE = "compare {input} --format json"
COMPARISONS = {
    "compare_repeats": "{runs}/repeat_base {runs}/repeat_new",
    "compare_repeats_check": "{runs}/repeat_base {runs}/repeat_new --fail-on slower",
    "compare_repeats_limit": "{runs}/repeat_base {runs}/repeat_new --fail-if 'decode.p50 > 100ms'",
    "compare_runs": "{runs}/repeat_base/launch_1 {runs}/repeat_new/launch_1 --spread 2%",
    "compare_one_launch": "{runs}/repeat_base/launch_1 {runs}/repeat_new/launch_1",
    "compare_unlike": "{runs}/two_processes {runs}/everything",
    "compare_traces": "{traces}/graphs.sqlite {traces}/graphs_node.sqlite --spread 1% -w 1",
    "compare_bench": "{runs}/bench {runs}/bench",
    "compare_load": "{runs}/stress {runs}/stress --spread 2%",
}

NONSENSE = ("no_such_run", "empty_folder", "notes.txt", "notes.sqlite", "cut.sqlite", "cut_run")
EXIT_CODES = {
    "version": "--version",
    "no such verb": "no-such-verb",
    "no such option": "analyze --no-such-option",
    "launch ok": "launch --tracer ranges --no-telemetry -o {out}/ok {golden}/programs/two_stages.py 0",
    "launch failed": "launch --tracer ranges --no-telemetry -o {out}/failed {golden}/programs/fails.py",
    "launch nothing measured": "launch --tracer ranges --no-telemetry -o {out}/nothing {golden}/programs/nothing.py",
    "launch no such script": "launch -o {out}/none {out}/no_such_script.py",
    "launch no such tracer": "launch --tracer none-such -o {out}/none {golden}/programs/two_stages.py",
    "launch dry run": "launch --dry-run -o {out}/none {golden}/programs/two_stages.py",
    "explain no such script": "launch --explain -o {out}/none {out}/no_such_script.py",
    "bench no such suite": "bench {out}/no_such_suite.toml",
    "stress no such target": "stress {out}/no_such_target.py:answer --duration 1s -o {out}/none",
    "compare one side": "compare {golden}/runs/repeat_base",
    "compare-engines no image": "compare-engines {out}/notes.txt",
}

SENTENCE = re.compile(
    "conclusion|detail|doubt|evidence|gpu_reason|hint|message|missing|next_step|notes?|problem|reasons?|text"
    "|try_this|warning|what|where_reason|how"
)
"""Keys whose value is written for people, except where it is one word: that is a code."""

VOLATILE = re.compile(
    "analysed_by.*|command|created|environment|made_by|run_id|schema_version|script_arguments|trace_bytes|perfharness"
)

REPORTED = ("throughput", "stages", "advice", "ranks", "load", "suites", "merged")
"""Parts of a report that no other file holds."""

HEADS = re.compile(r"^#+(?= )|(?<=\*\*)-?\d[^*]*")
"""In a line outside of tables: the level of a heading, and figures in bold."""

NUMBERS = re.compile(r"^#+|^-$|(?:^|(?<= to ))[-+]?\d[\d,]*(?:\.\d+)?(?![\w.-])")
"""In a cell: a number at its beginning, both ends of an interval; not those in names, dates and versions."""

SAME = 5e-7
"""Relative difference of two numbers with the same six digits."""
RESIDUE = 1e-12
"""What may be left of the difference of two equal numbers."""

MANY, EVERY = 300, 100
LARGE_BYTES = 150_000


def names() -> list[str]:
    """Return the names of all snapshots."""
    traces = (path.stem for path in (GOLDEN / "traces").glob("*.sqlite"))
    runs = (path.name for path in (GOLDEN / "runs").iterdir())
    return sorted([*traces, *runs, *COMPARISONS, "exit_codes"])


def make(name: str) -> dict[str, Any]:
    """Compute a snapshot."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder).resolve()
        if name in COMPARISONS:
            snapshot = _comparison(COMPARISONS[name])
            out = _analyzed()
        elif name == "exit_codes":
            snapshot = _exit_codes(out)
        else:
            snapshot = _reading(name, out)
        return dict(_kept(snapshot, (str(out), str(GOLDEN))))


def _reading(name: str, out: Path) -> dict[str, Any]:
    """Return what each verb says of one input, and the result files that are there afterwards."""
    trace = GOLDEN / "traces" / f"{name}.sqlite"
    if trace.exists():
        place = Path(shutil.copy(trace, out))
        options, warmup_batches = OPTIONS_OF_TRACES, 1
    else:
        place = shutil.copytree(GOLDEN / "runs" / name, out / name)
        options, warmup_batches = dict.fromkeys(VERBS, ""), None
    snapshot: dict[str, Any] = {"exit_codes": {}}
    for verb, line in VERBS.items():
        code, printed = _call(f"{line} {options[verb]}", input=place, out=out)
        snapshot["exit_codes"][verb] = code
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):  # nothing was written; the code says so
            if verb in READ:
                snapshot[verb] = READ[verb](printed, out)
    if "report" in snapshot:
        snapshot["page"] = snapshot.pop("report")
    with contextlib.suppress(PerfHarnessError):
        snapshot["report"] = _report(place, warmup_batches)
    snapshot["files"] = {
        str(path.relative_to(out)): json.loads(path.read_text())
        for path in out.glob("*/**/*.json")
        if not _is_unchanged(path, GOLDEN / "runs" / path.relative_to(out))
    }
    return snapshot


def _is_unchanged(path: Path, source: Path) -> bool:
    return source.exists() and source.read_bytes() == path.read_bytes()


@cache
def _analyzed() -> Path:
    """Return the folder of analysed runs, which all comparisons read."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    return Path(folder).resolve()


def _comparison(sides: str) -> dict[str, Any]:
    """Return the comparison of inputs, which are analysed first."""
    runs = _analyzed() / "runs"
    for name in set(re.findall(r"{runs}/(\w+)", sides)):
        if not (runs / name).exists():
            _call(VERBS["analyze"], input=shutil.copytree(GOLDEN / "runs" / name, runs / name))
    code, printed = _call(COMPARE.format(input=sides), runs=runs, traces=GOLDEN / "traces")
    return {"exit_codes": {"compare": code}, "compare": json.loads(printed) if printed else None}


def _exit_codes(out: Path) -> dict[str, Any]:
    (out / "empty_folder").mkdir()
    (out / "notes.txt").write_text("nothing that was measured\n")
    (out / "notes.sqlite").write_text("nothing that was measured\n")
    (out / "cut.sqlite").write_bytes((GOLDEN / "traces" / "cpu.sqlite").read_bytes()[:50_000])
    cut_run = Path(shutil.copytree(GOLDEN / "runs" / "failed", out / "cut_run"))
    (cut_run / "manifest.json").write_text((cut_run / "manifest.json").read_text()[:500])
    codes = {what: _call(line, out=out, golden=GOLDEN)[0] for what, line in EXIT_CODES.items()}
    for nonsense in NONSENSE:
        for verb, line in VERBS.items():
            codes[f"{verb} {nonsense}"] = _call(line, input=out / nonsense, out=out)[0]
        codes[f"compare {nonsense}"] = _call(COMPARE, input=f"{out / nonsense} {GOLDEN / 'runs/failed'}")[0]
    return {"exit_codes": codes}


def _call(line: str, **places: object) -> tuple[int, str]:
    """Run a command line in this process; return its exit code and what it printed."""
    printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        code = run(shlex.split(line.format(**places)))
    printed.seek(0)
    return code, printed.read()


# What is kept of the output of a verb.


def _table(printed: str, _: Path) -> list[dict[str, str]]:
    """Return the rows of the first table in Markdown."""
    lines = [line for line in printed.splitlines() if line.startswith("|")]
    if not lines:
        return []
    header, _rule, *rows = (
        [cell.replace("&nbsp;", " ").strip() for cell in line.strip("|").split("|")] for line in lines
    )
    return [dict(zip(header, row, strict=True)) for row in rows if len(row) == len(header)]


def _json(printed: str, _: Path) -> Any:
    return json.loads(printed)


def _ranges(_: str, out: Path) -> dict[str, Any]:
    """Return number and totals of the ranges of each name."""
    totals: dict[str, Counter[str]] = defaultdict(Counter)
    for row in json.loads((out / "ranges.json").read_text()):
        total = totals[f"{row['domain']}: {row['name']}"]
        total["count"] += 1
        for column in ("duration_ns", "gpu_duration_ns", "gpu_busy_ns", "gpu_op_count"):
            total[column] += row[column] or 0
    return {name: dict(total) for name, total in totals.items()}


def _timeline(_: str, out: Path) -> dict[str, int]:
    """Return the number of events of each kind."""
    events = json.loads((out / "timeline.json").read_text())["traceEvents"]
    return Counter(f"{event['ph']} {event.get('cat', '')}".strip() for event in events)


def _tables(_: str, out: Path) -> dict[str, Any]:
    """Return columns, rows and totals of each table."""
    tables = {}
    for path in (out / "tables").glob("*.csv"):
        with path.open(newline="") as file:
            columns, *rows = csv.reader(file)
        totals = {
            column: sum(json.loads(row[index]) for row in rows if row[index])
            for index, column in enumerate(columns)
            if column in {"duration_ns", "gpu_duration_ns", "gpu_busy_ns", "gpu_op_count", "items", "bytes"}
        }
        tables[path.stem] = {"columns": columns, "rows": len(rows), "totals": totals}
    return tables


def _page(_: str, out: Path) -> list[list[str]]:
    """Return the levels of a report's headings, and the numbers in each line of its tables and first figures.

    `-` is a number that is not known.
    """
    lines = (out / "report.md").read_text().splitlines()
    cells = [line.strip("|").split("|") if "| " in line[:2] else HEADS.findall(line) for line in lines]
    found = [[number for cell in line for number in NUMBERS.findall(cell.strip())] for line in cells]
    return [numbers for numbers in found if numbers]


def _report(source: Path, warmup_batches: int | None) -> dict[str, Any]:
    report = json.loads(perfharness.report(source, warmup_batches=warmup_batches).model_dump_json())
    parts = [report, *report["runs"]]
    return {f"{index}": {key: part[key] for key in REPORTED if key in part} for index, part in enumerate(parts)}


READ: dict[str, Callable[[str, Path], Any]] = {
    "analyze": _table,
    "slowest": _json,
    "ranges": _ranges,
    "timeline": _timeline,
    "tables": _tables,
    "report": _page,
}


# What is kept of a value.


def _kept(value: Any, folders: Iterable[str]) -> Any:
    if isinstance(value, dict):
        kept = {
            _without(key, folders): _given(item) if SENTENCE.fullmatch(key) else _kept(item, folders)
            for key, item in value.items()
            if not VOLATILE.fullmatch(key)
        }
        return kept if len(kept) <= MANY else _thinned(list(kept.items()), kept.values())
    if isinstance(value, list):
        kept_items = [_kept(item, folders) for item in value]
        return kept_items if len(kept_items) <= MANY else _thinned(list(enumerate(kept_items)), kept_items)
    if isinstance(value, str):
        return _without(value, folders)
    return float(f"{value:.9g}") if isinstance(value, float) else value


def _without(text: str, folders: Iterable[str]) -> str:
    for folder in folders:
        text = text.replace(f"{folder}/", "")
    return text


def _given(value: Any) -> Any:
    """Return whether a sentence is given; a code or a number stays."""
    if isinstance(value, str) and " " not in value:
        return value
    if isinstance(value, dict):
        return {key: _given(item) for key, item in value.items()}
    return bool(value) if value is None or isinstance(value, str | list) else value


def _thinned(items: list[tuple[Any, Any]], values: Iterable[Any]) -> dict[str, Any]:
    """Return the number of many values, the sum of each number in them, and every hundredth."""
    totals: dict[str, float] = defaultdict(float)
    for value in values:
        for path, number in leaves(value):
            if isinstance(number, int | float):
                totals[path] += number
    return {
        "entries": len(items),
        "totals": _kept(totals, ()),
        "every": {str(key): item for key, item in items[::EVERY]},
    }


# Snapshots as files.


def text_of(snapshot: Any, indent: str = "") -> str:
    """Return JSON with sorted keys, and a line for each object or list that holds no other one."""
    items = snapshot.values() if isinstance(snapshot, dict) else snapshot if isinstance(snapshot, list) else ()
    if not any(isinstance(item, dict | list) and item for item in items):
        return json.dumps(snapshot, sort_keys=True, ensure_ascii=False)
    inner = f"{indent} "
    if isinstance(snapshot, list):
        lines = [text_of(item, inner) for item in snapshot]
    else:
        lines = [f"{json.dumps(key)}: {text_of(item, inner)}" for key, item in sorted(snapshot.items())]
    opening, closing = "[]" if isinstance(snapshot, list) else "{}"
    body = ",\n".join(f"{inner}{line}" for line in lines)
    return f"{opening}\n{body}\n{indent}{closing}"


def write(name: str, snapshot: dict[str, Any]) -> None:
    """Write a snapshot; a large one compressed."""
    content = (text_of(snapshot) + "\n").encode()
    for suffix in (".json", ".json.gz"):
        (SNAPSHOTS / f"{name}{suffix}").unlink(missing_ok=True)
    if len(content) > LARGE_BYTES:
        (SNAPSHOTS / f"{name}.json.gz").write_bytes(gzip.compress(content, mtime=0))
    else:
        (SNAPSHOTS / f"{name}.json").write_bytes(content)


def parse(path: Path, content: bytes) -> Any:
    """Return the snapshot that a file of that name holds."""
    return json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)


def round_trip(snapshot: Any) -> Any:
    """Return a snapshot as it is read after it was written."""
    return json.loads(text_of(snapshot))


def read(name: str) -> Any:
    """Return a written snapshot; raises FileNotFoundError."""
    for path in SNAPSHOTS.glob(f"{name}.json*"):
        return parse(path, path.read_bytes())
    raise FileNotFoundError(f"no snapshot of {name}; scripts/snapshots writes it")


# Comparing them.


class Absent:
    """Stands for the value of a key that is not there."""

    def __repr__(self) -> str:
        return "absent"


ABSENT = Absent()


@dataclass(frozen=True)
class Difference:
    """A value that differs; `old` or `new` is ABSENT where there is no such key."""

    name: str
    path: str
    old: Any
    new: Any

    @property
    def kind(self) -> str:
        return "new" if self.old is ABSENT else "gone" if self.new is ABSENT else "changed"

    def __str__(self) -> str:
        return f"{self.name}: {self.path}: {self.old!r} -> {self.new!r}"


def differences(name: str, old: Any, new: Any) -> list[Difference]:
    """Compare two snapshots of one input, numbers to six digits."""
    before, after = dict(leaves(old)), dict(leaves(new))
    return [
        Difference(name, path, before.get(path, ABSENT), after.get(path, ABSENT))
        for path in before | after
        if not _same(before.get(path, ABSENT), after.get(path, ABSENT))
    ]


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value that holds no other one, with its path."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from leaves(item, f"{path}/{key}" if path else str(key))
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}/{index}" if path else str(index))
    elif value is not ABSENT:
        yield path, value


def _same(old: Any, new: Any) -> bool:
    if isinstance(old, float) or isinstance(new, float):
        return _is_number(old) and _is_number(new) and math.isclose(old, new, rel_tol=SAME, abs_tol=RESIDUE)
    return type(old) is type(new) and bool(old == new)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True)
class Mark:
    """Values that are wrong today: only they may change, by the change that mends them."""

    letter: str
    input: str
    path: str
    why: str

    def covers(self, name: str, path: str) -> bool:
        return name == self.input and fnmatch.fnmatchcase(path, self.path)


def marks() -> list[Mark]:
    """Return the marks: one for each pattern of paths in the file."""
    rows = json.loads((SNAPSHOTS / MARKS).read_text())
    return [Mark(row["letter"], row["input"], path, row["why"]) for row in rows for path in row["paths"]]
