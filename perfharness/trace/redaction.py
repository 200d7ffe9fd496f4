"""Copies of what a trace is made of, with every text replaced: the sqlite file, and what the host probe sampled.

Numbers stay as they are. Tables that hold environment, processes and threads of the whole machine are dropped.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfharness.errors import TraceFormatError
from perfharness.files import read_regular
from perfharness.host_probe import spool
from perfharness.model import nsys_schema as schema
from perfharness.trace.host_samples import chunks

Text = Callable[[str], str]

KEPT_TABLES = re.compile(
    r"StringIds|NVTX_.*|CUPTI_ACTIVITY_.*|CUDA_.*|OSRT_.*|GPU_.*|GENERIC_EVENT.*|PROFILER_OVERHEAD|DIAGNOSTIC_EVENT"
    r"|TARGET_INFO_(GPU|CUDA|NVTX|SESSION).*|ENUM_.*|PERFHARNESS_META|(META_DATA|EXPORT_META|TARGET_INFO_SYSTEM).*"
)
"""All others hold what is not of the measured process, or what nothing here reads."""

KEPT_ROWS = {
    "META_DATA_CAPTURE": r"CAPTURE_EVENT_TYPE|.*COLLECT_\w+",
    "META_DATA_EXPORT": r"EXPORT_PRODUCT_\w+|EXPORT_SCHEMA_\w+|EXPORT_PLATFORM|EXPORT_ARCH",
    "EXPORT_META_DATA": r"EXPORT_PRODUCT_\w+|EXPORT_SCHEMA_\w+|EXPORT_PLATFORM|EXPORT_ARCH",
    "TARGET_INFO_SYSTEM_ENV": r"NvDriverVersion|CudaDriverVersion|CpuCores|CpuDescription|CpuArchitecture",
}
"""Of tables of names and values: names of the rows that stay."""

ENVIRONMENT = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="?(.*?)"?\Z', re.DOTALL)
"""A variable as nsys notes it."""

NAMES_A_TEXT = re.compile(
    r"(?i)(?!.*(?:context|enum)).*(name|symbol|module|text|string|message|label|description|filename).*"
)
"""Columns that may hold the number of a row of `StringIds`."""


@dataclass
class Redacted:
    """What was removed of a trace.

    Attributes:
        tables: dropped, in order.
        rows: deleted, by table.
        texts: how many were deleted that no kept table refers to: environment, processes, threads.
    """

    tables: list[str] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    texts: int = 0


def environment_of(trace: Path) -> dict[str, str]:
    """The environment of the process, and names of user and host, as far as nsys noted them in a sqlite trace."""
    found: dict[str, str] = {}
    try:
        with closing(sqlite3.connect(f"{trace.resolve().as_uri()}?mode=ro", uri=True)) as opened:
            opened.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
            tables = {name for (name,) in opened.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            for table in tables & set(KEPT_ROWS):
                for name, value in opened.execute(f"SELECT name, value FROM {table}"):
                    if str(name).endswith("ENVIRONMENT_VARIABLE"):
                        if matched := ENVIRONMENT.match(str(value)):
                            found.setdefault(matched[1], matched[2])
                    elif name in ("EXPORT_HOST", "Hostname", "DEVICE_DISPLAY_NAME"):
                        found.setdefault("HOSTNAME", str(value))
                    elif str(name).endswith(("EXPORT_USER", "USER_NAME")) and value:
                        found.setdefault("USER", str(value))
    except sqlite3.DatabaseError:
        return found  # the copy reports what is wrong with it
    return found


def redact_database(source: Path, target: Path, text: Text) -> Redacted:
    """Write a copy of a sqlite trace in which each text is replaced; freed pages are not in it.

    Raises `TraceFormatError` where the file is damaged, `OSError` where the copy cannot be written.
    """
    try:
        with (
            closing(sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True)) as trace,
            closing(sqlite3.connect(target, isolation_level=None)) as copy,
        ):
            trace.backup(copy)
            copy.execute("PRAGMA journal_mode=OFF")
            copy.execute("PRAGMA synchronous=OFF")
            copy.execute("PRAGMA temp_store=MEMORY")
            redacted = _redact(copy, text)
            copy.execute("VACUUM")
    except sqlite3.DatabaseError as error:
        raise TraceFormatError(f"{source} cannot be copied ({error}); it is damaged, or the disk is full.") from error
    return redacted


def _redact(copy: sqlite3.Connection, text: Text) -> Redacted:
    copy.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
    redacted = Redacted()
    entries = copy.execute("SELECT type, name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'").fetchall()
    for kind, name in entries:
        if kind in ("view", "trigger"):
            copy.execute(f"DROP {kind} {_quoted(name)}")
    tables = [name for kind, name in entries if kind == "table"]
    kept = [name for name in tables if KEPT_TABLES.fullmatch(name)]
    dropped = [name for name in tables if name not in kept]
    for name in dropped:
        copy.execute(f"DROP TABLE {_quoted(name)}")
        redacted.tables.append(name)
    redacted.texts = _delete_other_texts(copy, kept)
    for name in kept:
        if name in KEPT_ROWS and "name" in _columns(copy, name):
            redacted.rows[name] = _delete_rows(copy, name, re.compile(KEPT_ROWS[name]))
        for column in _columns(copy, name):
            _replace_texts(copy, name, column, text)
    return redacted


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _columns(copy: sqlite3.Connection, table: str) -> list[str]:
    return [name for _, name, *_ in copy.execute(f"PRAGMA table_info({_quoted(table)})")]


def _delete_rows(copy: sqlite3.Connection, table: str, kept: re.Pattern[str]) -> int:
    names = [name for (name,) in copy.execute(f"SELECT DISTINCT CAST(name AS TEXT) FROM {_quoted(table)}")]
    gone = [(_raw(name),) for name in names if not kept.fullmatch(name or "")]
    before = copy.total_changes
    copy.executemany(f"DELETE FROM {_quoted(table)} WHERE CAST(name AS TEXT) = CAST(? AS TEXT)", gone)
    return copy.total_changes - before


def _raw(text: str | None) -> bytes:
    return (text or "").encode("utf-8", "surrogateescape")


def _delete_other_texts(copy: sqlite3.Connection, kept: list[str]) -> int:
    """Delete the texts that no kept table refers to: nsys has the environment among them as one text, the command line,
    and the names of all processes and threads of the machine.
    """
    if schema.TABLE_STRINGS not in kept or not {"id", "value"} <= set(_columns(copy, schema.TABLE_STRINGS)):
        return 0
    used = set(_text_numbers(copy, kept))
    others = [(number,) for (number,) in copy.execute(f"SELECT id FROM {schema.TABLE_STRINGS}") if number not in used]
    copy.executemany(f"DELETE FROM {schema.TABLE_STRINGS} WHERE id = ?", others)
    return len(others)


def _text_numbers(copy: sqlite3.Connection, tables: list[str]) -> Iterator[int]:
    for table in tables:
        if table == schema.TABLE_STRINGS or table.startswith("ENUM_"):
            continue
        for column in _columns(copy, table):
            if NAMES_A_TEXT.fullmatch(column):
                asked = f"SELECT DISTINCT {_quoted(column)} FROM {_quoted(table)} WHERE typeof({_quoted(column)})"
                yield from (number for (number,) in copy.execute(f"{asked} = 'integer'"))


def _replace_texts(copy: sqlite3.Connection, table: str, column: str, text: Text) -> None:
    """Each different text of a column once; what is binary is emptied, for nothing reads it."""
    name, of = _quoted(column), _quoted(table)
    copy.execute(f"UPDATE {of} SET {name} = x'' WHERE typeof({name}) = 'blob' AND length({name}) > 0")
    changed = []
    for (old,) in copy.execute(f"SELECT DISTINCT {name} FROM {of} WHERE typeof({name}) = 'text'"):
        if (new := text(old)) != old:
            changed.append((_raw(old), _raw(new)))
    if not changed:
        return
    copy.execute("CREATE TEMP TABLE replaced (old TEXT PRIMARY KEY, new TEXT)")
    copy.executemany("INSERT OR REPLACE INTO replaced VALUES (CAST(? AS TEXT), CAST(? AS TEXT))", changed)
    copy.execute(
        f"UPDATE {of} SET {name} = (SELECT new FROM replaced WHERE old = {of}.{name} COLLATE BINARY)"
        f" WHERE typeof({name}) = 'text' AND {name} COLLATE BINARY IN (SELECT old FROM replaced)"
    )
    copy.execute("DROP TABLE replaced")


def redact_samples(source: Path, target: Path, text: Text, place: Text) -> None:
    """Write a copy of a file of the host probe.

    Args:
        text: of names of functions and stages, and of sentences.
        place: of paths.

    Raises `TraceFormatError` where it is no such file, `OSError`. What is behind a damaged place is left out.
    """
    content = read_regular(source, follow=False)
    if not content.startswith(spool.MAGIC):
        raise TraceFormatError(f"{source} is not a file of the host probe of this version")
    with target.open("wb") as file:
        file.write(spool.MAGIC)
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            for kind, payload in chunks(content):
                new = bytes(payload)
                if kind not in (spool.SAMPLES, spool.EVENTS, spool.NATIVE, spool.END):
                    new = json.dumps(_chunk(kind, json.loads(new), text, place)).encode()
                file.write(spool.CHUNK.pack(kind, len(new)) + new)


def _chunk(kind: int, content: Any, text: Text, place: Text) -> Any:
    if kind == spool.META:
        return {key: value for key, value in content.items() if not isinstance(value, str)}
    if kind == spool.DEFINE:
        frames = [[text(function), place(file), *rest] for function, file, *rest in content.get("frames", ())]
        stages = [[text(part) for part in stage] for stage in content.get("stages", ())]
        return {**({"stacks": content["stacks"]} if "stacks" in content else {}), "frames": frames, "stages": stages}
    if kind == spool.MAPS:
        return {
            "maps": [[*numbers, place(path)] for *numbers, path in content["maps"]],
            "files": {place(path): identity for path, identity in content["files"].items()},
        }
    return _texts(content, text)


def _texts(content: Any, text: Text) -> Any:
    if isinstance(content, str):
        return text(content)
    if isinstance(content, list):
        return [_texts(one, text) for one in content]
    if isinstance(content, dict):
        return {text(key): _texts(one, text) for key, one in content.items()}
    return content
