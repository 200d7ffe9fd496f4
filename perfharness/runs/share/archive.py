"""`.tar.zst`: a folder as one compressed file, and back. pyarrow, which is needed anyway, has the codec."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import shutil
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import pyarrow as pa

from perfharness.errors import ResultError
from perfharness.files import is_plain, is_plain_folder, read_regular, reason_of

ENDING = ".tar.zst"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
MAX_NAME_BYTES = 1000
MAX_FILES = 100_000

LEAST_LIMIT_BYTES, LARGEST_RATIO = 2**30, 200
"""Content of more than both is refused: a GiB, and so many times the archive's size. Traces compress to a tenth."""

MARK_NAME = ".perfharness-archive"
"""In an unpacked folder: SHA-256 of its archive."""

DIGITS = 8
READ_BYTES = 2**20
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def is_archive(path: Path) -> bool:
    """Whether a file is compressed with Zstandard."""
    if not path.is_file():  # a pipe would be waited for
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(ZSTD_MAGIC)) == ZSTD_MAGIC
    except OSError:
        return False


def write_archive(folder: Path, name: str, target: Path) -> None:
    """Write all files of a folder, under a folder of that name; without owners, times and modes of this machine.

    Raises `OSError`.
    """
    with (
        target.open("wb") as file,
        pa.CompressedOutputStream(pa.PythonFile(file), "zstd") as stream,
        tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in sorted(folder.rglob("*")):
            if not is_plain(path):
                continue
            entry = tarfile.TarInfo(f"{name}/{path.relative_to(folder).as_posix()}")
            entry.size = path.stat().st_size
            with path.open("rb") as content:
                archive.addfile(entry, content)


def folder_of(archive: Path) -> Path:
    """The folder that an archive is unpacked into, next to it, unless something else is there."""
    name = archive.name.removesuffix(".zst").removesuffix(".tar")
    return archive.with_name(name if name != archive.name else f"{name}.unpacked")


def unpacked(archive: Path) -> Path:
    """The folder of an archive's content; unpacked next to it, if it is not there yet.

    A folder of that name that is not made from this very file (the run that was shared, what an earlier file of the
    same name held) is another run: then the folder's name ends in the beginning of the file's digest. Only regular
    files are taken, none outside of the folder. Raises `ResultError`.
    """
    try:
        with archive.open("rb") as file:
            digest = _digest(file)
    except OSError as error:
        raise ResultError(f"{archive} cannot be read ({reason_of(error)}).") from error
    folder = folder_of(archive)
    places = (folder, folder.with_name(f"{folder.name}-{digest[:DIGITS]}"))
    if there := next((place for place in places if _is_from(place, digest)), None):
        return there
    free = next((place for place in places if not os.path.lexists(place)), None)
    if free is None:
        raise ResultError(
            f"{archive} cannot be unpacked: {places[0]} and {places[1]} are there, and hold something else; move one "
            "of them away."
        )
    try:
        work = Path(tempfile.mkdtemp(prefix=".perfharness-", dir=archive.parent))
    except OSError as error:
        raise ResultError(
            f"{archive} cannot be unpacked next to itself ({reason_of(error)}); copy it to a folder that can be "
            f"written to, or unpack it with `tar --zstd -xf`."
        ) from error
    try:
        with archive.open("rb") as file:
            limit = max(LEAST_LIMIT_BYTES, LARGEST_RATIO * archive.stat().st_size)
            _unpack(file, work, limit)
        (work / MARK_NAME).write_text(digest)
        work.chmod(0o755)
        work.rename(free)
    except OSError as error:
        if _is_from(free, digest):  # another process was faster
            return free
        hint = "free some space" if error.errno in NO_SPACE else "it is damaged, or no archive of a run"
        raise ResultError(f"{archive} cannot be unpacked ({reason_of(error)}); {hint}.") from error
    except (tarfile.TarError, pa.ArrowException, EOFError, ValueError, RecursionError) as error:
        raise ResultError(f"{archive} cannot be unpacked ({error}); it is damaged, or no archive of a run.") from error
    finally:
        with suppress(OSError):
            shutil.rmtree(work)
    return free


def _digest(file: BinaryIO) -> str:
    found = hashlib.sha256()
    while part := file.read(READ_BYTES):
        found.update(part)
    return found.hexdigest()


def _is_from(folder: Path, digest: str) -> bool:
    """Whether a folder was unpacked from the file of that digest."""
    try:
        return is_plain_folder(folder) and read_regular(folder / MARK_NAME, follow=False) == digest.encode()
    except OSError:
        return False


class _Limited(io.RawIOBase):
    """What is decompressed, up to a limit: a few KB may be made of terabytes of zeros."""

    def __init__(self, stream: pa.NativeFile, limit: int) -> None:
        super().__init__()
        self._stream = stream
        self._left = limit

    def read(self, size: int = -1) -> bytes:
        found: bytes = self._stream.read(size)
        self._left -= len(found)
        if self._left < 0:
            raise tarfile.TarError("it is far larger than a run that is compressed to its size")
        return found


def _unpack(file: BinaryIO, folder: Path, limit: int) -> None:
    with (
        pa.CompressedInputStream(pa.PythonFile(file), "zstd") as stream,
        tarfile.open(fileobj=_Limited(stream, limit), mode="r|") as members,
    ):
        for number, member in enumerate(members):
            if number >= MAX_FILES:
                raise tarfile.TarError(f"it holds more than {MAX_FILES:,} files")
            _extract(members, member, folder)


def _extract(members: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """One file, without the first folder of its name. Raises `OSError`, `tarfile.TarError`."""
    parts = PurePosixPath(member.name).parts
    if member.isdir():
        return
    if (
        not member.isfile()
        or member.issparse()
        or len(parts) < 2
        or ".." in parts
        or member.name.startswith("/")
        or len(member.name.encode("utf-8", "surrogateescape")) > MAX_NAME_BYTES
    ):
        raise tarfile.TarError(f"{member.name!r} is no plain file below one folder")
    content = members.extractfile(member)
    target = folder.joinpath(*parts[1:])
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as file:
        if content is not None:
            shutil.copyfileobj(content, file)
