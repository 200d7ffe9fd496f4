"""Baselines: runs by a name, to compare others with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from perfharness.errors import StoreError
from perfharness.runs.store.documents import restore
from perfharness.runs.store.folders import holds
from perfharness.runs.store.records import StoredRun
from perfharness.runs.store.register import open_store

if TYPE_CHECKING:
    from perfharness.runs.store.store import RunStore


def baseline_launches(name: str, store: str | None = None) -> list[Path]:
    """The launches, suites and results of trtexec of a baseline: folders (of trtexec files) as they were measured, or,
    where they are gone, what the store has.

    Args:
        store: a path or a URL; None: that of the environment, or the default.

    Raises `StoreError` where there is no such baseline, or a launch is neither in its folder nor in the store.
    """
    opened = open_store(store)
    launches = [launch for run in opened.baseline(name) for launch in opened.launches_of(run, "none")]
    if not launches:
        raise StoreError(f"the baseline {name} has no launch that could be compared")
    return [folder_of(opened, launch) for launch in launches]


def folder_of(store: RunStore, launch: StoredRun) -> Path:
    """A folder with the launch or suite, or a file of trtexec. Raises `StoreError`."""
    folder = Path(launch.folder)
    if holds(folder, launch):
        return folder
    documents = store.documents(launch.run_id)
    if not documents:
        raise StoreError(
            f"the {launch.kind} {launch.run_id} is no longer in {folder}, and the run store has only its numbers by"
            " stage; save the baseline anew from one that is there"
        )
    return restore(launch.run_id, documents)
