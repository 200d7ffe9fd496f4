"""Files that are replaced atomically, folders that are locked, TOML and models."""

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
"""As an output, standard output."""

LOCK_PERIOD_S = 0.05


def read_toml(path: Path, option: str = "") -> dict[str, Any]:
    """The content of a TOML file.

    Args:
        option: the option that named the file, for the message.

    Raises `UsageError` if it cannot be read or parsed.
    """
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
    """Whether there is a folder, not a link to one: what is in it may be removed."""
    return path.is_dir() and not path.is_symlink()


def write_text(path: Path, write: Callable[[TextIO], None]) -> None:
    """Let `write` fill the file. Raises `ResultError`, as `replacing` does."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        write(file)


def write_model(path: Path, model: BaseModel) -> None:
    """Write it as JSON, atomically. Raises `ResultError`, as `replacing` does."""
    write_text(path, lambda file: print(model.model_dump_json(indent=2), file=file))


def read_model(path: Path, model: type[Model], hint: str = "it is damaged") -> Model | None:
    """Read what `write_model` wrote; None if there is no file. Raises `ResultError`, which ends in `hint`."""
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
    """A temporary path to write to; it replaces `path` at the end, and is removed on an error.

    `-` is standard output. The mode of the file is kept, and where `path` is a link, the link.

    Raises `ResultError` if it cannot be written, also if it is not a regular file.
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
            raise OSError(errno.EINVAL, "it is not a regular file")
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
    """The reason of a failed file operation, as text."""
    return error.strerror or str(error) or type(error).__name__


def sync(path: Path) -> None:
    """Flush the file or folder to the disk; raises where the disk is full or broken."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(folder: Path, patience_s: float = 0.0) -> Iterator[None]:
    """Lock the folder against other perfharness processes.

    Raises `BlockingIOError` where another holds it for longer than that, `OSError` where the folder cannot be opened.
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
