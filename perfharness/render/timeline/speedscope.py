"""Sampled stacks for speedscope (https://www.speedscope.app): a profile for each thread, stages as frames."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from perfharness.analysis.host_samples.flame import stage_frame
from perfharness.analysis.host_samples.frames import shown_stack
from perfharness.errors import ResultError
from perfharness.files import replacing
from perfharness.model.host_samples import Frame, HostSamples
from perfharness.model.trace import pid_of, tid_of
from perfharness.model.version import VERSION
from perfharness.render.timeline.chrome import text_file
from perfharness.runs.stacks import SampledProcess

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def write_speedscope(processes: Iterable[SampledProcess], path: Path, name: str) -> None:
    """Write one file for all processes; gzip where the name ends in `.gz`. Times are ns of the explaining pass.

    Raises `ResultError` where none was sampled.
    """
    frames: dict[Frame, int] = {}
    profiles = [profile for process in processes for profile in _profiles(process, frames)]
    if not profiles:
        raise ResultError(
            f"{name} has no sampled stacks; `perfharness launch --explain`, or `perfharness explain RUN`, records them."
        )
    content = {
        "$schema": SCHEMA,
        "exporter": f"perfharness {VERSION}",
        "name": name,
        "activeProfileIndex": 0,
        "shared": {"frames": [_described(frame) for frame in frames]},
        "profiles": profiles,
    }
    with replacing(path) as temporary, text_file(temporary, path.suffix == ".gz") as file:
        json.dump(content, file)


def _profiles(process: SampledProcess, frames: dict[Frame, int]) -> Iterator[dict[str, Any]]:
    """A profile of each thread, the busiest first."""
    samples = process.probe.samples
    has_stack = np.flatnonzero(samples.stack >= 0)
    threads, of_sample = np.unique(samples.thread[has_stack], return_inverse=True)
    times = np.bincount(of_sample, weights=samples.length_ns[has_stack])
    numbered = [frames.setdefault(frame, len(frames)) for frame in samples.frames]
    stages = [[frames.setdefault(stage_frame(name), len(frames)) for name in path] for path in samples.stage_paths]
    for place in np.argsort(-times, kind="stable"):
        rows = has_stack[of_sample == place]
        weights = samples.length_ns[rows].tolist()
        thread = np.asarray([threads[place]])
        yield {
            "type": "sampled",
            "name": f"{process.name}: thread {tid_of(thread)[0]} of process {pid_of(thread)[0]}",
            "unit": "nanoseconds",
            "startValue": 0,
            "endValue": sum(weights),
            "samples": _stacks(samples, rows.tolist(), numbered, stages),
            "weights": weights,
        }


def _stacks(samples: HostSamples, rows: list[int], numbered: list[int], stages: list[list[int]]) -> list[list[int]]:
    """The stack of each row, the outermost frame first; equal ones are one object, for there are few of them."""
    made: dict[tuple[int, int], list[int]] = {}
    found = []
    for row in rows:
        key = int(samples.stage[row]), int(samples.stack[row])
        if key not in made:
            open_stages = stages[key[0]] if key[0] >= 0 else []
            made[key] = [*open_stages, *(numbered[frame] for frame in shown_stack(samples, key[1]))]
        found.append(made[key])
    return found


def _described(frame: Frame) -> dict[str, Any]:
    place = {"file": frame.file, **({"line": frame.line} if frame.line else {})} if frame.file else {}
    return {"name": frame.function, **place}
