"""Replace files atomically, lock folders, read TOML and models."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from perfharness.errors import ResultError, UsageError

if TYPE_CHECKING:
    from pydantic import BaseModel

Model = TypeVar("Model", bound="BaseModel")

STDOUT = Path("-")

LOCK_PERIOD_S = 0.05


def read_toml(path: Path, option: str = "") -> dict[str, Any]:
    """Read a TOML file. Raises `UsageError`, which names the `option` that gave the file."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    what = f"{option} {path}".strip()
    try:
        content: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{what} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{what} is not a TOML file: {error}") from error
    return content


def is_own_folder(path: Path) -> bool:
    """Whether the path is a folder, not a link, so that its content may be removed."""
    return path.is_dir() and not path.is_symlink()


def write_text(path: Path, write: Callable[[TextIO], None]) -> None:
    """Write a text file atomically by a function. Raises `ResultError`."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        write(file)


def write_model(path: Path, model: BaseModel) -> None:
    """Write a model as JSON, atomically. Raises `ResultError`."""
    write_text(path, lambda file: print(model.model_dump_json(indent=2), file=file))


def read_model(path: Path, model: type[Model], hint: str = "it is damaged") -> Model | None:
    """Read a model from JSON, or None if the file is missing. Raises `ResultError`, which ends in `hint`."""
    from pydantic import ValidationError

    try:
        return model.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = reason_of(error)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        reason = ": ".join(part for part in (".".join(map(str, first["loc"])), first["msg"]) if part)
    raise ResultError(f"{path} cannot be read ({reason}); {hint}")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` at the end, or is removed after an error.

    `-` is standard output. Keeps the mode of the file, and links.

    Raises `ResultError` if it cannot be written or is not a regular file.
    """
    try:
        if path == STDOUT:
            with tempfile.TemporaryDirectory(prefix="perfharness-") as folder:
                temporary = Path(folder) / "output"
                yield temporary
                sys.stdout.flush()
                with temporary.open("rb") as source, os.fdopen(os.dup(1), "wb") as sink:
                    shutil.copyfileobj(source, sink)
            return
        target = Path(os.path.realpath(path))
        if os.path.lexists(target) and not target.is_file():
            raise OSError(errno.EINVAL, "not a regular file")
        temporary = target.parent / f".perfharness-{os.urandom(8).hex()}.new"
        temporary.touch()
        try:
            yield temporary
            if target.exists():
                temporary.chmod(stat.S_IMODE(target.stat().st_mode))
            sync(temporary)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise ResultError(f"{path} cannot be written ({reason_of(error)}); check the folder and the disk.") from error


def reason_of(error: OSError) -> str:
    """Return the reason for a failed file operation."""
    return error.strerror or str(error) or type(error).__name__


def sync(path: Path) -> None:
    """Flush a file or folder to the disk. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(folder: Path, patience_s: float = 0.0) -> Iterator[None]:
    """Lock a folder against other perfharness processes.

    Raises `BlockingIOError` if another still holds it after `patience_s`, `OSError` if it cannot be opened.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    deadline = time.monotonic() + patience_s
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(LOCK_PERIOD_S)
        yield
    finally:
        os.close(descriptor)
