"""`perfharness share`: a run as one file for others. It analyses to the same numbers, and names nobody."""

from __future__ import annotations

import json
import mmap
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, Field

from perfharness.errors import ResultError, TraceFormatError, UsageError
from perfharness.files import is_plain, is_plain_folder, read_regular, reason_of, replacing
from perfharness.model.annotations import NOTES_NAME
from perfharness.model.cold_start import COLD_START_NAME
from perfharness.model.journal import JOURNAL_NAME
from perfharness.model.load import LOAD_NAME, REQUESTS_NAME, WINDOWS_NAME
from perfharness.model.manifest import MANIFEST_NAME, RunManifest
from perfharness.model.mlperf import MLPERF_NAME
from perfharness.model.nsys_schema import TRACE_NAME
from perfharness.model.result import BENCHMARK_MEAN_NAME, BENCHMARK_NAME, RANGES_NAME
from perfharness.model.telemetry import TELEMETRY_NAME
from perfharness.model.version import VERSION
from perfharness.runs.files.inputs import Located, locate
from perfharness.runs.files.json_files import json_bytes, read_results
from perfharness.runs.files.run_folder import read_manifest
from perfharness.runs.series.repeat_file import OVERHEAD_NAME, REPEAT_NAME
from perfharness.runs.series.scaling import SCALING_NAME
from perfharness.runs.share.archive import ENDING, write_archive
from perfharness.runs.share.known import MIN_SECRET_CHARS, Known
from perfharness.runs.share.redactor import Redactor
from perfharness.trace.native_symbols import FILE_NAME as NATIVE_SYMBOLS_NAME
from perfharness.trace.readers import open_source
from perfharness.trace.redaction import environment_of, redact_database, redact_samples

RECORD_NAME = "shared.json"
RECORD_VERSION = 1

MAX_DEPTH = 8
RUN_FILES = frozenset(
    {
        BENCHMARK_MEAN_NAME, BENCHMARK_NAME, COLD_START_NAME, JOURNAL_NAME, LOAD_NAME, MANIFEST_NAME, MLPERF_NAME,
        NATIVE_SYMBOLS_NAME, NOTES_NAME, OVERHEAD_NAME, RANGES_NAME, RECORD_NAME, REPEAT_NAME, REQUESTS_NAME,
        SCALING_NAME, TELEMETRY_NAME, TRACE_NAME, WINDOWS_NAME,
    }
)  # fmt: skip
OF_ONE_PROCESS = re.compile(r"(.+)_\d+(\.[a-z]+)")
"""`recorder_PID.json` and so on, where several processes have one folder."""

LOG_NAMES = ("stdout.log", "stderr.log", "tracer.log")
SAMPLES = re.compile(r"host_samples(_\d+)?\.log")
IGNORED = re.compile(r"\.perfharness-.*|\.tmp")

NO_LOGS = "what the script prints; --with-logs keeps it, redacted"
NO_REPORT = "a file of nsys holds the environment, and cannot be changed; the trace made of it is in trace.sqlite"
NOT_KNOWN = "no file of a run"


class LeftOut(BaseModel):
    """A file that is not in the archive."""

    file: str
    reason: str


class ShareRecord(BaseModel):
    """`shared.json`: what was removed from a run before it was shared."""

    schema_version: int = RECORD_VERSION
    perfharness: str = VERSION
    variables: list[str] = Field(default_factory=list)
    """Names of the environment variables whose values were searched for everywhere."""

    not_searched: list[str] = Field(default_factory=list)
    """Variables whose values are too short, or words of every result file; they stay where they are."""

    replaced: dict[str, int] = Field(default_factory=dict)
    """How many places had something of each kind: environment, user, host, program, path, argument, asked, secret."""

    tables: list[str] = Field(default_factory=list)
    """Tables of traces that were dropped."""

    rows: dict[str, int] = Field(default_factory=dict)
    """Rows of other tables that were dropped: the environment, other processes, the machine."""

    left_out: list[LeftOut] = Field(default_factory=list)
    arguments_removed: bool = False
    logs_kept: bool = False


@dataclass(frozen=True)
class Shared:
    """An archive that was written."""

    path: Path
    record: ShareRecord
    files: int
    bytes: int


@dataclass
class _Work:
    """Redacted copies in a folder, and what was found on the way."""

    redactor: Redactor
    folder: Path
    with_logs: bool
    record: ShareRecord
    trace_bytes: dict[str, int] = field(default_factory=dict)


def share(
    run: str | Path,
    output: str | Path | None = None,
    *,
    redact_arguments: bool = False,
    with_logs: bool = False,
    remove: Sequence[str] = (),
    nsys: str | Path | None = None,
) -> Shared:
    """Write a run for others; what `perfharness share` does.

    Args:
        run: a run, a series of runs, or a trace.
        output: the archive; None: named after the run, in the working folder.
        nsys: the nsys that exports an `.nsys-rep`; None: what is found.
        redact_arguments, with_logs, remove: as in `share_run`.

    Raises `UsageError`, `ResultError`.
    """
    located = locate(Path(run), None if nsys is None else Path(nsys))
    target = target_of(located, None if output is None else Path(output))
    return share_run(located, target, redact_arguments=redact_arguments, with_logs=with_logs, remove=remove)


def share_run(
    located: Located,
    target: Path,
    *,
    redact_arguments: bool = False,
    with_logs: bool = False,
    remove: Sequence[str] = (),
) -> Shared:
    """Write a run, a series of runs or a trace without what must not be shared.

    Args:
        redact_arguments: the script's arguments are removed too, wherever they are.
        with_logs: the output of the processes stays in, redacted.
        remove: further texts to remove.

    Raises:
        UsageError: what is to be removed is too short; one process of a run was named.
        ResultError: it cannot be read or written, or something that was to be removed is still there: nothing is left.
    """
    if located.process is not None:
        raise UsageError(f"{located.path} is one process of a run; give the run: {located.runs[0]}")
    if located.trace is not None and located.trace.is_dir():
        raise UsageError(f"{located.path} is a trace in Parquet; share the sqlite export of the same report")
    if short := [text for text in remove if len(text.strip()) < MIN_SECRET_CHARS]:
        raise UsageError(f"--remove {short[0]!r}: texts of less than {MIN_SECRET_CHARS} characters are in every file")
    if located.trace is not None:
        with open_source(located.trace):
            pass  # it is a trace, and a whole one
    manifests = [read_manifest(run) for run in located.runs]
    known = _known(located, manifests, remove, arguments=redact_arguments)
    if redact_arguments and len({tuple(manifest.script_arguments) for manifest in manifests}) > 1:
        raise UsageError("--redact-arguments: the launches have different arguments; share them one by one")
    arguments = manifests[0].script_arguments if redact_arguments and manifests else None
    redactor = Redactor(known, arguments, with_output=with_logs)
    record = ShareRecord(arguments_removed=redact_arguments, logs_kept=with_logs)
    try:
        with tempfile.TemporaryDirectory(prefix=".perfharness-", dir=target.absolute().parent) as name:
            work = _Work(redactor, Path(name), with_logs, record)
            _copy(located, work)
            _note(work, known)
            _check(work)
            files = sum(is_plain(path) for path in work.folder.rglob("*"))
            with replacing(target) as temporary:
                write_archive(work.folder, redactor.text(_stem(target)), temporary)
            return Shared(target, work.record, files, target.stat().st_size)
    except OSError as error:
        raise ResultError(f"{target} cannot be written ({reason_of(error)}); check the folder and the disk.") from error


def _stem(target: Path) -> str:
    return target.name.removesuffix(".zst").removesuffix(".tar") or "run"


def _known(located: Located, manifests: Sequence[RunManifest], remove: Sequence[str], *, arguments: bool) -> Known:
    """What is to be removed, from everything that says something of it; what the user named first."""
    known = Known()
    known.add_asked(remove)
    if known.not_searched:
        raise UsageError("--remove: what is a word of every result file cannot be removed from them")
    for manifest in manifests:
        known.add_manifest(manifest, arguments=arguments)
    known.add_folder(str(located.path.resolve()))
    traces = [located.trace] if located.trace is not None else []
    traces += [path for run in located.runs for path, _ in _files(run, run) if path.suffix == ".sqlite"]
    for trace in traces:
        known.add_environment(environment_of(trace))
    known.add_this_machine()
    return known


def _files(folder: Path, root: Path, depth: int = 0) -> Iterator[tuple[Path, bool]]:
    """Files of a folder, and whether each is a regular one."""
    for path in sorted(folder.iterdir()):
        if is_plain_folder(path) and depth < MAX_DEPTH:
            if not IGNORED.fullmatch(path.name):
                yield from _files(path, root, depth + 1)
        elif not IGNORED.fullmatch(path.name):
            yield path, is_plain(path)


def _copy(located: Located, work: _Work) -> None:
    if located.trace is not None:
        _redact_trace(located.trace, work.folder / TRACE_NAME, work)
        return
    for path, plain in _files(located.path, located.path):
        name = path.relative_to(located.path)
        target = work.folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        reason = NOT_KNOWN if not plain else _redact_file(path, target, work)
        if reason:
            work.record.left_out.append(LeftOut(file=work.redactor.text(name.as_posix()), reason=reason))
    _adapt_sources(work)


def _redact_file(path: Path, target: Path, work: _Work) -> str | None:
    """Write the redacted copy of a file; returns why there is none."""
    redactor = work.redactor
    is_of_run = path.name in RUN_FILES or OF_ONE_PROCESS.sub(r"\1\2", path.name) in RUN_FILES
    if path.suffix in (".json", ".sqlite", ".parquet", ".jsonl") and not is_of_run:
        return NOT_KNOWN
    if path.suffix == ".json":
        try:
            content = orjson.loads(read_regular(path, follow=False))
        except orjson.JSONDecodeError:
            return "it is no JSON"
        target.write_bytes(_json(redactor.json(content)))
    elif path.suffix == ".jsonl":
        target.write_bytes(b"".join(_redacted_lines(read_regular(path, follow=False), redactor)))
    elif path.suffix == ".sqlite":
        _redact_trace(path, target, work)
    elif path.suffix == ".parquet":
        try:
            redact_parquet(path, target, redactor)
        except pa.ArrowException as error:
            return f"it is damaged ({str(error).splitlines()[0]})"
    elif SAMPLES.fullmatch(path.name):
        try:
            redact_samples(path, target, redactor.text, redactor.place)
        except TraceFormatError as error:
            return str(error)
    elif path.name in LOG_NAMES:
        if not work.with_logs:
            return NO_LOGS
        text = read_regular(path, follow=False).decode("utf-8", "surrogateescape")
        target.write_bytes(redactor.text(text).encode("utf-8", "surrogateescape"))
    elif path.name.endswith((".nsys-rep", ".qdstrm")):
        return NO_REPORT
    else:
        return NOT_KNOWN
    return None


def _redacted_lines(content: bytes, redactor: Redactor) -> Iterator[bytes]:
    """JSON, one a line; a line that a kill cut off is left out, as readers of the file do."""
    for line in content.splitlines():
        with suppress(orjson.JSONDecodeError):
            yield orjson.dumps(redactor.json(orjson.loads(line)), option=orjson.OPT_APPEND_NEWLINE)


def _json(content: Any) -> bytes:
    return json_bytes(content) if isinstance(content, dict) else json.dumps(content, indent=2).encode()


def _redact_trace(source: Path, target: Path, work: _Work) -> None:
    redacted = redact_database(source, target, work.redactor.text)
    work.record.tables += [table for table in redacted.tables if table not in work.record.tables]
    for table, count in redacted.rows.items():
        work.record.rows[table] = work.record.rows.get(table, 0) + count
    if redacted.texts:
        work.record.rows["StringIds"] = work.record.rows.get("StringIds", 0) + redacted.texts


def redact_parquet(source: Path, target: Path, redactor: Redactor) -> None:
    """Write a copy of a Parquet file whose texts and metadata are redacted. Raises `pyarrow.ArrowException`."""
    with source.open("rb") as file:  # Arrow takes no path that is no UTF-8
        table = pq.read_table(file)
    for number, column in enumerate(table.schema):
        table = table.set_column(number, column, _redacted_column(table.column(number), redactor))
    metadata = {key: _metadata(value, redactor) for key, value in (table.schema.metadata or {}).items()}
    with target.open("wb") as file:
        pq.write_table(table.replace_schema_metadata(metadata), file, compression="zstd")


def _metadata(value: bytes, redactor: Redactor) -> bytes:
    try:
        return orjson.dumps(redactor.json(orjson.loads(value)))
    except orjson.JSONDecodeError:
        return redactor.text(value.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def _redacted_column(column: pa.ChunkedArray, redactor: Redactor) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_dictionary(kind) and _is_text(kind.value_type):
        chunks = [
            pa.DictionaryArray.from_arrays(chunk.indices, _redacted_array(chunk.dictionary, redactor))
            for chunk in column.chunks
        ]
        return pa.chunked_array(chunks, kind)
    if pa.types.is_list(kind) and _is_text(kind.value_type):
        lists = [None if row is None else [_redacted_value(one, redactor) for one in row] for row in column.to_pylist()]
        return pa.chunked_array([pa.array(lists, kind)])
    if _is_text(kind):
        encoded = pc.dictionary_encode(column)
        return pa.chunked_array(
            [chunk.dictionary_decode() for chunk in _redacted_column(encoded, redactor).chunks], kind
        )
    return column


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _redacted_value(value: str | None, redactor: Redactor) -> str | None:
    return None if value is None else redactor.text(value)


def _redacted_array(array: pa.Array, redactor: Redactor) -> pa.Array:
    return pa.array([_redacted_value(value, redactor) for value in array.to_pylist()], array.type)


def _adapt_sources(work: _Work) -> None:
    """Results note how long their trace was, and are kept where it is shorter: it is, by what was removed."""
    for path in work.folder.rglob(BENCHMARK_NAME):
        content = read_results(path) or {}
        sources = content.get("meta", {}).get("sources", {})
        name = str(sources.get("trace"))  # `../…` of a process that shares the trace of its launched one
        trace = (path.parent.parent if name.startswith("../") else path.parent) / Path(name).name
        if "trace_bytes" in sources and is_plain(trace):
            sources["trace_bytes"] = trace.stat().st_size
            path.write_bytes(_json(content))


def _note(work: _Work, known: Known) -> None:
    """Write what was removed."""
    text = work.redactor.text
    work.record.variables = sorted({text(value.label) for value in known.values if value.what == "environment"})
    work.record.not_searched = sorted(map(text, known.not_searched))
    work.record.replaced = dict(sorted(work.redactor.removed.items()))
    (work.folder / RECORD_NAME).write_bytes(json_bytes(work.record.model_dump()))


def _check(work: _Work) -> None:
    """Search what was written for every value that was to be removed. Raises `ResultError`."""
    needles = [needle.encode("utf-8", "surrogateescape") for needle in work.redactor.needles]
    needles += [needle.encode("utf-16-le", "surrogatepass") for needle in work.redactor.needles]
    folders = work.redactor.folders
    for path in sorted(work.folder.rglob("*")):
        if is_plain(path) and any(_holds(content, needles, folders) for content in _contents(path)):
            raise ResultError(
                f"{path.relative_to(work.folder)} still holds a value that was to be removed, so nothing was written; "
                "please report this as a defect of perfharness, with `perfharness --version`."
            )


def _holds(content: mmap.mmap | bytes, needles: Sequence[bytes], folders: re.Pattern[bytes] | None) -> bool:
    if any(content.find(needle) >= 0 for needle in needles):
        return True
    return folders is not None and folders.search(content) is not None


def _contents(path: Path) -> Iterator[mmap.mmap | bytes]:
    """The bytes of a file; of Parquet also the texts of its columns."""
    if path.stat().st_size:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            yield content
    if path.suffix == ".parquet":
        with path.open("rb") as file:
            columns = pq.read_table(file).columns
        for column in columns:
            if not pa.types.is_primitive(column.type):
                values = column if pa.types.is_nested(column.type) else pc.unique(column)
                yield "\n".join(map(str, values.to_pylist())).encode("utf-8", "surrogatepass")


def target_of(located: Located, output: Path | None) -> Path:
    """Where the archive goes. Raises `UsageError` where the name is another format's."""
    target = output or Path(f"{located.name or 'run'}{ENDING}")
    if not target.name.endswith(ENDING):
        raise UsageError(f"-o {target}: the file is a compressed archive; let its name end in {ENDING}")
    return target
