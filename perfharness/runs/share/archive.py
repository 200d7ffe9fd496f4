"""`.tar.zst`: a folder as one compressed file, and back. pyarrow, which is needed anyway, has the codec."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path, PurePosixPath

import pyarrow as pa

from perfharness.errors import ResultError
from perfharness.files import is_plain, is_plain_folder, reason_of

ENDING = ".tar.zst"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
MAX_NAME_BYTES = 1000


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
    """The folder that an archive is unpacked into, next to it."""
    name = archive.name.removesuffix(".zst").removesuffix(".tar")
    return archive.with_name(name if name != archive.name else f"{name}.unpacked")


def unpacked(archive: Path) -> Path:
    """The folder of an archive's content; unpacked next to it, if it is not there yet.

    Only regular files are taken, none outside of the folder. Raises `ResultError`.
    """
    folder = folder_of(archive)
    if is_plain_folder(folder):
        return folder
    try:
        work = Path(tempfile.mkdtemp(prefix=".perfharness-", dir=archive.parent))
    except OSError as error:
        raise ResultError(
            f"{archive} cannot be unpacked next to itself ({reason_of(error)}); copy it to a folder that can be "
            f"written to, or unpack it with `tar --zstd -xf`."
        ) from error
    try:
        with (
            archive.open("rb") as file,
            pa.CompressedInputStream(pa.PythonFile(file), "zstd") as stream,
            tarfile.open(fileobj=stream, mode="r|") as members,
        ):
            for member in members:
                _extract(members, member, work)
        work.chmod(0o755)
        work.rename(folder)
    except (OSError, tarfile.TarError, pa.ArrowException, EOFError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else str(error)
        raise ResultError(f"{archive} cannot be unpacked ({reason}); it is damaged, or no archive of a run.") from error
    finally:
        with suppress(OSError):
            shutil.rmtree(work)
    return folder


def _extract(members: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """One file, without the first folder of its name. Raises `OSError`, `tarfile.TarError`."""
    parts = PurePosixPath(member.name).parts
    if member.isdir():
        return
    if (
        not member.isfile()
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
