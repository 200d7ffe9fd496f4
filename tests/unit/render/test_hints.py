"""Hints for failed processes: the next step fits the way it ended, and nothing is repeated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfharness.model.annotations import Annotations, FunctionNote
from perfharness.model.manifest import ProcessRecord, TracerRecord
from perfharness_launcher.processes.outcome import annotation_findings, blocking_hint, failure_hint

SYNTAX = '  File "a.py", line 1\n    def f(:\n          ^\nSyntaxError: invalid syntax\n'
IMPORT = "Traceback (most recent call last):\n  import gone\nModuleNotFoundError: No module named 'gone'\n"
MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20 GiB\n"
OWN = "Traceback (most recent call last):\n  raise ValueError\nValueError: x\n"


@pytest.mark.parametrize(
    ("changes", "stderr", "words"),
    [
        ({"exit_code": 1}, SYNTAX, "compiled"),
        ({"exit_code": 1}, IMPORT, "PYTHON SCRIPT"),
        ({"exit_code": 1}, MEMORY, "-np"),
        ({"exit_code": 1}, OWN, "raised"),
        ({"exit_code": 3}, "", "sys.exit"),
        ({"exit_code": 2}, "usage: a.py [-h]\na.py: error: unrecognized arguments: -np\n", "SCRIPT"),
        ({"signal": "SIGSEGV"}, "", "PYTHONFAULTHANDLER"),
        ({"exit_code": 139}, "", "PYTHONFAULTHANDLER"),
        ({"signal": "SIGKILL"}, "", "memory"),
        ({"signal": "SIGTERM"}, "", "signal"),
        ({"ended": "timeout"}, "", "--timeout"),
        ({"ended": "interrupted"}, "KeyboardInterrupt\n", ""),
    ],
)
def test_the_hint_fits_how_a_process_ended(changes: dict[str, object], stderr: str, words: str) -> None:
    record = ProcessRecord.model_validate(
        {"index": 0, "gpu_index": 0, "folder": "proc_0_gpu_0", "command": ["python", "a.py"], "ended": "failed"}
        | changes
    )
    hint = failure_hint(record, stderr, "/usr/bin/python")
    assert words in hint
    assert bool(hint) is bool(words)


@pytest.mark.parametrize(
    ("ended", "kind", "version", "says"),
    [
        ("timeout", "nsys", "2023.4.4.54-234433681190v0", True),
        ("interrupted", "nsys", "2023.4", True),
        ("failed", "nsys", "2023.4", False),
        ("timeout", "nsys", "2025.3.1", False),
        ("timeout", "embedded", "0.1.0", False),
    ],
)
def test_an_old_nsys_may_have_blocked_what_had_to_be_ended(ended: Any, kind: Any, version: str, says: bool) -> None:
    record = ProcessRecord(index=0, gpu_index=0, folder="proc_0_gpu_0", command=["p"], ended=ended)
    assert bool(blocking_hint(record, TracerRecord(kind=kind, version=version))) is says


def test_what_went_wrong_in_a_child_is_reported_too(tmp_path: Path) -> None:
    """Of torchrun, which calls none of the functions itself."""
    own = FunctionNote("a:b", found=True, called=True, recorded=True)
    for pid, note in ((6, own), (7, FunctionNote("a:b", items_problem="no len"))):
        (tmp_path / f"annotations_{pid}.json").write_text(json.dumps([note.to_json()]))
    record = ProcessRecord(index=0, gpu_index=0, folder="proc_0_gpu_0", command=["p"], ended="ok")
    found = [one.code for one in annotation_findings(tmp_path, record, Annotations())]
    assert found == ["annotation-items-failed"]
