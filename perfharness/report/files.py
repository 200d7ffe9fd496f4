"""JSON results as files, in which a value may be a table of entries."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from perfharness.files import replacing
from perfharness.model.result import EntryTable
from perfharness.report.entries_json import INDENT, write_entries

TOKENS_AT_A_TIME = 1 << 16


def write_json(path: Path, content: Mapping[str, Any], *, follow: bool = True) -> None:
    """Write a JSON object, in which a value may be a table of entries. Raises `ResultError`, as `replacing` does."""
    with replacing(path, follow=follow) as temporary, temporary.open("wb") as file:
        file.writelines(json_parts(content))


def json_parts(content: Mapping[str, Any]) -> Iterator[bytes]:
    """The text of a JSON object, in which a value may be a table of entries."""
    for position, (key, value) in enumerate(content.items()):
        yield f"{',' if position else '{'}\n{INDENT}{json.dumps(key)}: ".encode()
        if isinstance(value, EntryTable):
            yield from write_entries(value, level=1)
        else:
            # Of thousands of stages the text is long, so it is never held as one.
            tokens = json.JSONEncoder(indent=2, allow_nan=False, ensure_ascii=False).iterencode(value)
            while text := "".join(itertools.islice(tokens, TOKENS_AT_A_TIME)):
                yield text.replace("\n", f"\n{INDENT}").encode()  # in a JSON text no other line ends are bare
    yield b"\n}\n" if content else b"{}\n"
