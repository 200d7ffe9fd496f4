"""The files of a launch, a suite or a result of trtexec as far as a comparison reads them: into the store, and back."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel

from perfharness.errors import StoreError
from perfharness.files import read_regular, reason_of
from perfharness.model.bench_suite import BENCH_NAME
from perfharness.model.load import LOAD_NAME
from perfharness.model.manifest import BENCHMARK_MEAN_NAME, BENCHMARK_NAME, MANIFEST_NAME, RunManifest
from perfharness.model.mlperf import MLPERF_NAME
from perfharness.model.result import Tree
from perfharness.runs.comparison.load_test import read_load_file, read_mlperf_file
from perfharness.runs.files.json_files import json_bytes
from perfharness.runs.files.startup_file import startup_of
from perfharness.runs.store.location import cache_home

KEPT = ("mean_data", "stats_minus_warmup", "throughput", "gpu_metrics", "energy", "meta")
"""Of `benchmark_mean.json`; the diagnosis, and what is outside of batches, are left out."""

MAX_BYTES = 4 * 2**20
"""Of all files of a launch, compressed. Larger ones are not stored; such a launch is compared where it is, or not."""

FOLDERS_NAME = "runs"
TRTEXEC_NAME = "trtexec.txt"
_RUN_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,199}", re.ASCII)

Documents = Mapping[str, bytes]
"""Content by name, relative to the run folder; compressed."""


def documents_of(manifest: RunManifest, mean: Tree, folder: Path) -> Documents:
    """The files of a launch; none where they are too large."""
    files = {
        MANIFEST_NAME: manifest.model_dump_json().encode(),
        BENCHMARK_MEAN_NAME: json_bytes({name: mean[name] for name in KEPT if name in mean}),
    }
    files |= _of_load_test(folder)
    for process in manifest.processes:
        if "/" not in process.folder and (startup := startup_of(folder, process)) is not None:
            files[f"{process.folder}/{BENCHMARK_NAME}"] = json.dumps({"startup": startup}).encode()
    return _packed(files)


def _of_load_test(folder: Path) -> dict[str, bytes]:
    """`load.json` without its windows and histograms, or `mlperf.json`."""
    if (load := read_load_file(folder)) is not None:
        kept = load.model_dump(mode="json")
        kept["windows"] = []
        for phase in kept["phases"]:
            for times in phase.values():
                if isinstance(times, dict) and "histogram" in times:
                    times["histogram"] = None
        return {LOAD_NAME: json_bytes(kept)}
    found = read_mlperf_file(folder)
    return {} if found is None else {MLPERF_NAME: found.model_dump_json().encode()}


def suite_documents(result: BaseModel) -> Documents:
    """The file of a suite; none where it is too large."""
    return _packed({BENCH_NAME: result.model_dump_json().encode()})


def trtexec_documents(path: Path) -> Documents:
    """A file of trtexec; none where it is too large. Raises `OSError`."""
    return _packed({TRTEXEC_NAME: read_regular(path)})


def _packed(files: Mapping[str, bytes]) -> Documents:
    packed = {name: zlib.compress(content) for name, content in files.items()}
    return packed if sum(map(len, packed.values())) <= MAX_BYTES else {}


def restore(run_id: str, documents: Documents) -> Path:
    """What a comparison reads, in the user's cache, made once: a folder with the files, or a file of trtexec.

    Raises `StoreError`.
    """
    if not _RUN_ID.fullmatch(run_id):
        raise StoreError(f"the run store has a run with the id {run_id!r}, which is no name of a folder")
    home = cache_home(os.environ)
    parent = Path(tempfile.gettempdir()) / f"perfharness-{os.getuid()}" if home is None else home
    digest = hashlib.sha256(b"\0".join(name.encode() + b"\0" + documents[name] for name in sorted(documents)))
    folder = parent / FOLDERS_NAME / f"{run_id}-{digest.hexdigest()[:12]}"  # another one where they were stored anew
    wanted = folder / TRTEXEC_NAME if TRTEXEC_NAME in documents else folder
    if all((folder / name).is_file() for name in documents):
        return wanted
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=f".{run_id}.", dir=folder.parent))
        try:
            for name, content in documents.items():
                place = new / name
                if not place.resolve().is_relative_to(new.resolve()):
                    raise StoreError(f"the run store has a file {name!r} of {run_id}, which is in no run folder")
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(zlib.decompress(content))
            if not folder.exists():
                new.rename(folder)
        finally:
            shutil.rmtree(new, ignore_errors=True)
    except OSError as error:
        raise StoreError(f"{folder} cannot be written ({reason_of(error)}); set XDG_CACHE_HOME to another") from error
    except zlib.error as error:
        raise StoreError(f"the files of {run_id} in the run store are damaged ({error})") from error
    return wanted
