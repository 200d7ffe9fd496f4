"""What is removed from a shared run, and that its numbers stay."""

from __future__ import annotations

import io
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perfharness.errors import ResultError
from perfharness.runs.files.inputs import locate
from perfharness.runs.share.archive import unpacked
from perfharness.runs.share.known import Known
from perfharness.runs.share.redactor import Redactor
from perfharness.runs.share.share import share_run
from tests.support.trace_builder import TraceBuilder
from tests.unit.run_records import manifest_of, process


def redactor(*folders: str, **environment: str) -> Redactor:
    known = Known()
    known.add_environment(environment)
    for folder in folders:
        known.add_folder(folder)
    return Redactor(known)


@pytest.mark.parametrize(
    ("path", "shared"),
    [
        ("/home/anna/x.py", "~/x.py"),
        ("/home/anna", "~"),
        ("/home/anna/acme/src/a.py", "~/dir-1/src/a.py"),
        ("/data/acme/net.onnx", "/data/dir-1/net.onnx"),
        ("/data/acme/v2", "/data/dir-1/dir-2"),
        ("/usr/lib/x86_64-linux-gnu/libc.so.6", "/usr/lib/x86_64-linux-gnu/libc.so.6"),
        (
            "/opt/acme/lib/python3.12/site-packages/torch/nn/a.py",
            "/opt/dir-1/lib/python3.12/site-packages/torch/nn/a.py",
        ),
        ("/scratch/acme/perfharness/recorder/core.py", "/scratch/dir-1/perfharness/recorder/core.py"),
        ("/opt/acme/bin/python3.12", "/opt/dir-1/bin/python3.12"),
        ("/opt/acme/libx.so.13.0", "/opt/dir-1/libx.so.13.0"),
        ("<frozen runpy>", "<frozen runpy>"),
    ],
)
def test_folders_are_replaced_and_files_stay(path: str, shared: str) -> None:
    assert redactor().place(path) == shared


def test_a_text_keeps_its_sense() -> None:
    made = redactor(HOME="/nfs/anna.b", USER="anna.b", HOSTNAME="lab7.acme.example")
    assert made.text("anna.b@lab7: /nfs/anna.b/x.py:12 cannot be read.") == "user-1@host-1: ~/x.py:12 cannot be read."
    assert made.text("lab7.acme.example and LAB7") == "host-1 and host-1"
    assert made.text("lab70, joanna.b") == "lab70, joanna.b"
    assert made.text("see /tmp/acme/out.") == "see /tmp/dir-1/dir-2."
    assert made.text("/conv1/Conv") == "/conv1/Conv", "the name of a layer"
    assert made.text("https://example.org/a/b, 3/4, and/or") == "https://example.org/a/b, 3/4, and/or"
    assert made.text("file:///home/anna/x.py") == "file://~/x.py"
    assert made.text("--token abcdefgh") == "--token ***"


# ---- any secret, in any file ----


def plant(folder: Path, secret: str) -> None:
    """A run with the secret wherever a script, a tracer or a user may have put it."""
    proc = folder / "proc_0_gpu_0"
    proc.mkdir(parents=True)
    manifest = manifest_of(process(0))
    content = orjson.loads(manifest.model_dump_json())
    content["script_arguments"] = [secret, f"--x={secret}"]
    (folder / "manifest.json").write_bytes(orjson.dumps(content))
    (proc / "benchmark.json").write_bytes(
        orjson.dumps({"data": {secret: {f"in {secret}!": {"cpu_time": 1.25}}}, "meta": {"args": {"k": [secret]}}})
    )
    trace = TraceBuilder()
    trace.range(f"stage {secret}", 0, 10)
    trace.range(secret, 20, 30)
    path = trace.write(proc / "trace.sqlite")
    with closing(sqlite3.connect(path)) as made, made:
        made.execute(
            "INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:ENVIRONMENT_VARIABLE', ?)", (f'THE_KEY="{secret}"',)
        )
        made.execute("CREATE TABLE NVTX_MORE (a TEXT, b BLOB)")
        made.execute("INSERT INTO NVTX_MORE VALUES (?, ?)", (f"x{secret}y", secret.encode("utf-16-le")))
    text = pa.array([secret, None, f"_{secret}_"])
    table = pa.table({"a": text, "b": text.dictionary_encode(), "c": pa.array([[secret], [], None]), "n": [1, 2, 3]})
    table = table.replace_schema_metadata({"note": orjson.dumps({"k": secret}), "raw": f"<{secret}>"})
    pq.write_table(table, proc / "ranges.parquet")
    (proc / "stdout.log").write_text(f"{secret!r} {orjson.dumps(secret).decode()} {secret}", encoding="utf-8")


def leaks(folder: Path, secret: str) -> list[str]:
    """Files of a folder that hold the secret, as text of any usual encoding, or in a column."""
    codes = ("utf-8", "utf-16-le", "utf-16-be")
    found = []
    for path in folder.rglob("*"):
        if path.is_file():
            contents = [path.read_bytes()]
            if path.suffix == ".parquet":
                table = pq.read_table(path)
                contents.append(str(table.to_pylist()).encode() + str(table.schema.metadata).encode())
                contents += [str(value).encode() for row in table.to_pylist() for value in row.values()]
            if path.suffix == ".sqlite":
                with closing(sqlite3.connect(path)) as made:
                    contents += [line.encode() for line in made.iterdump()]
            if any(secret.encode(code) in content for content in contents for code in codes):
                found.append(path.name)
    return found


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"], include_characters="\n\t"), min_size=8, max_size=40))
@example("pa'ss\"wo\\rd ü€𝄞")
@example("two\nlines of a key that is long\nand a third one that is long")
@example("/srv/acme corp/x")
@example("$(rm -rf /)%2F..")
@example("'; DROP TABLE StringIds; --")
@example(".*[a-z]+(?P<x>)")
@example("benchmark.json")
@example("rocesses")  # part of a key of our own files: refused, since it cannot be taken out
@settings(max_examples=20)
def test_no_secret_is_left_in_any_file(secret: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, archive = Path(name) / "run", Path(name) / "shared.tar.zst"
        plant(folder, secret)
        try:
            shared = share_run(locate(folder), archive, with_logs=True)
        except ResultError:
            assert not archive.exists()
            return
        if "THE_KEY" in shared.record.variables:
            assert not leaks(unpacked(archive), secret)
            assert leaks(folder, secret) or "\n" in secret
        else:
            assert not secret.strip() or shared.record.not_searched == ["THE_KEY"] or secret.isdigit()


# ---- the archive ----


def archive_of(path: Path, entries: Iterable[tarfile.TarInfo], content: bytes = b"") -> Path:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for entry in entries:
            archive.addfile(entry, io.BytesIO(content))
    with pa.CompressedOutputStream(str(path), "zstd") as stream:
        stream.write(raw.getvalue())
    return path


@pytest.mark.parametrize(
    "change",
    [{"name": "a/../../evil"}, {"name": "/evil"}, {"type": tarfile.SYMTYPE, "linkname": "/etc"}, {"name": "evil"}],
)
def test_an_archive_of_somebody_else_writes_nowhere_else(tmp_path: Path, change: dict[str, Any]) -> None:
    entry = tarfile.TarInfo("a/b")
    for name, value in change.items():
        setattr(entry, name, value)
    (tmp_path / "in").mkdir()
    archive_of(tmp_path / "in" / "x.tar.zst", [entry])
    with pytest.raises(ResultError, match="cannot be unpacked"):
        unpacked(tmp_path / "in" / "x.tar.zst")
    assert [path.name for path in tmp_path.rglob("*")] == ["in", "x.tar.zst"]
