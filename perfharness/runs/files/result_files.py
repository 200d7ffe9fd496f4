"""Result files of a run: written next to the existing ones, then swapped in together."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from perfharness.errors import ResultError
from perfharness.files import is_plain_folder, reason_of
from perfharness.model.result import BENCHMARK_MEAN_NAME, BENCHMARK_NAME, RANGES_NAME
from perfharness.run_swap import RESULTS_PREFIX, has_numbers, mapped, replace_names
from perfharness.runs.files.json_files import write_json

_META = b'\n  "meta": '
"""Where this part of a result file begins, as `write_json` writes it."""


class ResultFiles:
    """The new result files of one analysis.

    Args:
        folders: of the run's processes.
    """

    def __init__(self, run_dir: Path, folders: Iterable[str]) -> None:
        self.problem: str | None = None
        """Why they could not be written, in a sentence."""

        self._run_dir = run_dir
        self._folders = list(folders)
        self._new = run_dir / f"{RESULTS_PREFIX}{os.urandom(8).hex()}"
        self._written: list[str] = []
        try:
            self._new.mkdir()
        except OSError as error:
            self._fail(f"the results could not be written into {run_dir} ({reason_of(error)})")

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Write one, by its name in the run folder; does nothing after one that could not be written."""
        if self.problem is not None:
            return
        try:
            (self._new / name).parent.mkdir(parents=True, exist_ok=True)
            written = write_json(self._new / name, content, follow=False)
        except (OSError, ResultError) as error:
            reason = reason_of(error.__cause__ if isinstance(error.__cause__, OSError) else OSError(str(error)))
            self._fail(f"the results could not be written into {self._run_dir} ({reason})")
        else:
            self._written += [str(path.relative_to(self._new)) for path in written]

    def losses(self, trace_bytes: Mapping[str, int]) -> Iterator[str]:
        """Sources of the existing results that the new ones lack, as text; none: the new ones may replace them.

        Args:
            trace_bytes: sizes of the traces that were read, by folder.
        """
        for folder in self._folders:
            old = self._run_dir / folder / BENCHMARK_NAME
            if not has_numbers(old):
                continue
            sources = _meta(old).get("sources")
            before = sources.get("trace_bytes") if isinstance(sources, dict) else None
            now = trace_bytes.get(folder)
            if now is None:
                yield f"the trace of {folder} is gone or cannot be read"
            elif isinstance(before, int) and now < before:
                yield f"the trace of {folder} has {now} bytes and had {before}"
        if not trace_bytes and has_numbers(self._run_dir / BENCHMARK_MEAN_NAME):
            yield "no trace can be read"

    def put_in_place(self) -> None:
        """Replace the existing files; where that fails, they stay, and `problem` has the reason."""
        if self.problem is not None:
            return
        names = [BENCHMARK_MEAN_NAME, *(f"{folder}/{BENCHMARK_NAME}" for folder in self._folders)]
        tables = [
            str(Path(name).with_name(RANGES_NAME)) for name in names if "data_file" in _meta(self._run_dir / name)
        ]
        going = dict.fromkeys([*names, *tables, *self._written])
        try:
            replace_names(self._run_dir, self._new, list(going), self._written)
        except OSError as error:
            self._fail(f"the results could not be put in place in {self._run_dir} ({reason_of(error)})")

    def discard(self) -> None:
        """Remove the new files; the existing ones stay."""
        shutil.rmtree(self._new, ignore_errors=True)

    def _fail(self, problem: str) -> None:
        self.problem = problem
        self.discard()


def size_of(trace: Path) -> int:
    """Bytes of a trace, a file or a folder of files."""
    files = trace.iterdir() if is_plain_folder(trace) else [trace]
    return sum(file.stat().st_size for file in files)


def _meta(path: Path) -> dict[str, Any]:
    """`meta` of a result file; empty where it cannot be read. The rest, which may be large, is not parsed."""
    with mapped(path) as content:
        begin = content.rfind(_META)
        text = content[begin + len(_META) :].decode("utf-8", "replace") if begin >= 0 else ""
    try:
        meta, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return {}
    return meta if isinstance(meta, dict) else {}
