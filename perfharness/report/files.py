"""Files written as a whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from perfharness.errors import ResultError


def write_json(path: Path, content: Any) -> None:
    """Write beside the target, then put it in place. Raises `ResultError` where the folder cannot be written."""
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(content, file, indent=2, allow_nan=False, ensure_ascii=False)
                file.write("\n")
            Path(name).chmod(0o644)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ResultError(f"{path} cannot be written ({error.strerror}); check the folder and the disk.") from error
