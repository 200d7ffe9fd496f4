"""Run programs of a fault corpus in this process and count how often each executes its marked lines.

marked_line_counts.py PROGRAM… (files) -> JSON on the last line: name -> [count of the faulty, of the mended twin], or
why it failed.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import runpy
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

MARKER = "# fault"


def marked_lines(source: str) -> set[int]:
    """Lines with the marker; of a marked function those of its body, for both twins define it."""
    marked = {number for number, line in enumerate(source.splitlines(), 1) if MARKER in line}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.lineno in marked:
            marked.remove(node.lineno)
            marked.update(range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1))
    return marked


def count_marked(program: Path, *arguments: str) -> int:
    """Executions of marked lines in a run of the program; a line counts in whichever thread it runs."""
    marked = marked_lines(program.read_text(encoding="utf-8"))
    hits = 0

    def in_program(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal hits
        hits += event == "line" and frame.f_lineno in marked
        return in_program

    def on_call(frame: FrameType, event: str, _: Any) -> Any:
        del event
        code: CodeType = frame.f_code
        return in_program if code.co_filename == str(program) else None

    threading.settrace(on_call)
    sys.settrace(on_call)
    sys.argv = [str(program), *arguments]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path(str(program), run_name="__main__")
    finally:
        sys.settrace(None)
        threading.settrace(None)
    return hits


def counts_of(program: Path) -> list[int] | str:
    """Counts of both twins, or the traceback: each program's failure is a result."""
    try:
        return [count_marked(program, "--device", "cpu", *twin) for twin in ([], ["--mended"])]
    except Exception:
        return traceback.format_exc()


def main() -> None:
    programs = [Path(name).resolve() for name in sys.argv[1:]]
    found: dict[str, list[int] | str] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for program in programs:
            found[program.stem] = counts_of(program)
        os.chdir("/")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
