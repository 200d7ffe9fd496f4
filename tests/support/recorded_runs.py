"""Copies of recorded runs for tests/golden/runs: what an analysis needs, without names and paths of the machine."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REMADE = ("benchmark*.json", "*.log", "*.nsys-rep", "*.png", "*.html", "files.json")
"""What an analysis does not read, or writes again."""

KEPT_LOGS = {"host_samples.log"}
ABOUT_THE_MACHINE = ("TARGET_INFO_SYSTEM_ENV", "TARGET_INFO_NIC_INFO", "ProcessStreams")
"""Tables of nsys with the host's name, its addresses, the environment and the output of the program."""

OF_PROCESSES = {"PROCESSES": "globalPid", "ThreadNames": "globalTid"}
"""Tables of nsys with a row for each process or thread of the machine, and whose it is."""

PROCESS_BITS = 24

NAMES_OF_STRINGS = re.compile(r"\w*(?:[tT]extId|nameId|Name|contentId)")
"""Columns of nsys that hold the number of a string."""


def add_run(run: Path, copy: Path, paths: Mapping[str, str]) -> None:
    """Copy a run folder; each path is replaced by one of the same length, because files with binary parts hold some."""
    for old, new in paths.items():
        if len(old) != len(new):
            raise ValueError(f"{old} and {new} must have the same length")
    for source in sorted(path for path in run.rglob("*") if path.is_file()):
        if source.name not in KEPT_LOGS and any(source.match(pattern) for pattern in REMADE):
            continue
        target = copy / source.relative_to(run)
        target.parent.mkdir(parents=True, exist_ok=True)
        content = source.read_bytes()
        for old, new in paths.items():
            content = content.replace(old.encode(), new.encode())
        target.write_bytes(content)
        if target.suffix == ".sqlite":
            _clean_trace(target)
        elif target.suffix == ".json":
            clean = _clean_json(json.loads(target.read_text()))
            target.write_text(json.dumps(clean, separators=(",", ":")) + "\n")


def _clean_trace(path: Path) -> None:
    trace = sqlite3.connect(path)
    tables = {name for (name,) in trace.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    for table in tables.intersection(ABOUT_THE_MACHINE):
        trace.execute(f"DELETE FROM {table}")
    for table in tables.intersection(OF_PROCESSES):
        traced = f"SELECT globalTid >> {PROCESS_BITS} FROM NVTX_EVENTS"
        trace.execute(f"DELETE FROM {table} WHERE {OF_PROCESSES[table]} >> {PROCESS_BITS} NOT IN ({traced})")
    if "META_DATA_CAPTURE" in tables:
        trace.execute("DELETE FROM META_DATA_CAPTURE WHERE name != 'CAPTURE_EVENT_TYPE'")
    if "StringIds" in tables:
        trace.execute(f"DELETE FROM StringIds WHERE id NOT IN ({_strings_in_use(trace, tables)})")
    trace.commit()
    trace.execute("PRAGMA page_size = 1024")
    trace.execute("VACUUM")
    trace.close()


def _strings_in_use(trace: sqlite3.Connection, tables: set[str]) -> str:
    columns = [
        (table, column)
        for table in sorted(tables)
        for (column,) in trace.execute("SELECT name FROM pragma_table_info(?)", (table,))
        if NAMES_OF_STRINGS.fullmatch(column)
    ]
    return " UNION ".join(f"SELECT {column} FROM {table} WHERE {column} IS NOT NULL" for table, column in columns)


def _clean_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_clean_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    clean = {key: _clean_json(item) for key, item in value.items()}
    if "hostname" in clean:
        clean["hostname"] = "machine"
    if "others_cpus" in clean:
        clean["others"] = []  # the names of the other programs that ran
    return clean
