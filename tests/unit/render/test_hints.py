"""Hints for failed processes: the next step fits the way it ended, and nothing is repeated."""

from __future__ import annotations

from typing import Any

import pytest

from perfharness.model.manifest import ProcessRecord, TracerRecord
from perfharness_launcher.outcome import failure_hint

EMBEDDED: tuple[Any, str] = ("embedded", "0.1.0")


@pytest.mark.parametrize(
    ("changes", "stderr", "tracer", "words"),
    [
        ({"exit_code": 1}, "ValueError: x\n", None, ""),
        ({"exit_code": 1}, "Traceback\nEOFError: EOF when reading a line\n", None, "input"),
        ({"exit_code": 1}, "", None, "Run it without"),
        ({"exit_code": 1}, "boost", ("nsys", "2023.4"), "inside nsys"),
        ({"signal": "SIGSEGV"}, "", None, "PYTHONFAULTHANDLER"),
        ({"exit_code": 139}, "", None, "PYTHONFAULTHANDLER"),
        ({"signal": "SIGKILL"}, "", None, "memory"),
        ({"signal": "SIGTERM"}, "", None, "signal"),
        ({"ended": "timeout"}, "", None, "--timeout"),
        ({"ended": "timeout"}, "", ("nsys", "2023.4.4.54-234433681190v0"), "embedded"),
        ({"ended": "interrupted"}, "", ("nsys", "2023.4"), "embedded"),
        ({"ended": "interrupted"}, "", ("nsys", "2025.3.1"), ""),
        ({"ended": "interrupted"}, "KeyboardInterrupt\n", None, ""),
    ],
)
def test_the_hint_fits_how_a_process_ended(
    changes: dict[str, object], stderr: str, tracer: tuple[Any, str] | None, words: str
) -> None:
    record = ProcessRecord.model_validate(
        {"index": 0, "gpu_index": 0, "folder": "proc_0_gpu_0", "command": ["p"], "ended": "failed"} | changes
    )
    kind, version = tracer or EMBEDDED
    hint = failure_hint(record, stderr, "/usr/bin/nsys", TracerRecord(kind=kind, version=version))
    assert words in hint
    assert bool(hint) is bool(words)
