"""What is measured: the commit of the script, and digests of the script and of the files that its arguments name."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypedDict

from perfharness.model.manifest import InputFileRecord, SourceRecord

GIT_TIMEOUT_S = 10
LARGEST_DIGEST_BYTES = 256 << 20
"""Of all files together; what is larger is known by its size."""

MOST_FILES = 32
READ_BYTES = 1 << 20


def find_source(script: str | None, arguments: Sequence[str]) -> SourceRecord:
    """The source of a launch. What cannot be found out is None, with the reason.

    Args:
        script: as a path; None: it is no file.
        arguments: of the script.
    """
    file = Path(script) if script is not None and Path(script).is_file() else None
    budget = _Budget(LARGEST_DIGEST_BYTES)
    return SourceRecord(
        **(_commit(file.resolve().parent) if file is not None else {"git_reason": "it is no file"}),
        script_sha256=None if file is None else budget.digest(file),
        input_files=[
            InputFileRecord(argument=place, name=path.name, bytes=path.stat().st_size, sha256=budget.digest(path))
            for place, path in _named_files(arguments)
        ],
    )


def file_of_target(target: str) -> str | None:
    """The file of `path/file`, `path/file.py:function` or `module:function`; None: it is not in this folder."""
    name = target.rpartition(":")[0]
    module = name.replace(".", "/")
    candidates = (target, name, f"{module}.py", f"{module}/__init__.py")
    return next((one for one in candidates if one and Path(one).is_file()), None)


class _Budget:
    """Reads no more bytes than it has."""

    def __init__(self, left: int) -> None:
        self._left = left

    def digest(self, path: Path) -> str | None:
        """SHA-256 of a file; None where it is too large, or cannot be read."""
        try:
            size = path.stat().st_size
            if size > self._left:
                return None
            self._left -= size
            digest = hashlib.sha256()
            with path.open("rb") as file:
                while part := file.read(READ_BYTES):
                    digest.update(part)
        except OSError:
            return None
        return digest.hexdigest()


def _named_files(arguments: Sequence[str]) -> Iterator[tuple[int, Path]]:
    """Regular files that arguments name, as `model.onnx` or `--model=model.onnx`, each with the argument's place."""
    found = 0
    for place, argument in enumerate(arguments):
        name = argument.partition("=")[2] if argument.startswith("-") else argument
        try:
            is_file = bool(name) and stat.S_ISREG(Path(name).stat().st_mode)
        except (OSError, ValueError):
            continue
        if is_file and found < MOST_FILES:
            found += 1
            yield place, Path(name)


class _Commit(TypedDict, total=False):
    git_commit: str
    git_dirty: bool
    git_reason: str


def _commit(folder: Path) -> _Commit:
    """The commit that is checked out, and whether tracked files differ from it; or why it is not known."""
    try:
        commit = _git(folder, "rev-parse", "HEAD").strip()
        changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except FileNotFoundError:
        return {"git_reason": "git is not installed"}
    except subprocess.CalledProcessError:
        return {"git_reason": "the script is in no git repository, or that has no commit"}
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return {"git_reason": f"git could not be asked ({type(error).__name__})"}
    return {"git_commit": commit, "git_dirty": bool(changes)}


def _git(folder: Path, *arguments: str) -> str:
    """What git prints; no program that the repository names is run."""
    return subprocess.run(
        ["git", "-c", "core.fsmonitor=false", "-C", str(folder), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        errors="replace",
        timeout=GIT_TIMEOUT_S,
        check=True,
        env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
    ).stdout.strip()
