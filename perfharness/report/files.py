"""Files written as a whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from perfharness.errors import ResultError
from perfharness.model.result import EntryTable
from perfharness.report.entries_json import INDENT, write_entries


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object, in which a value may be a table of entries. Raises `ResultError`, as `replacing` does."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        for position, (key, value) in enumerate(content.items()):
            file.write(f"{',' if position else '{'}\n{INDENT}{json.dumps(key)}: ".encode())
            if isinstance(value, EntryTable):
                file.writelines(write_entries(value, level=1))
            else:
                text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)
                file.write(text.replace("\n", f"\n{INDENT}").encode())  # in a JSON text no other line ends are bare
        file.write(b"\n}\n" if content else b"{}\n")


def write_text(path: Path, write: Callable[[TextIO], None]) -> None:
    """Let `write` fill a file beside the target, then put it in place. Raises `ResultError`."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        write(file)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside the target to write to; it takes the target's place at the end, and goes away on an error.

    Raises `ResultError` where the folder cannot be written.
    """
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        os.close(descriptor)
        temporary = Path(name)
        try:
            yield temporary
            temporary.chmod(0o644)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ResultError(f"{path} cannot be written ({error.strerror}); check the folder and the disk.") from error
