"""Files of the sampler, written by a test and read back."""

from __future__ import annotations

from pathlib import Path

from perfharness.host_probe import sample_file
from perfharness.trace.host_samples import RecordedProbe, read_host_probe

MS = 1_000_000


def new_file(path: Path, **facts: int) -> sample_file.SampleFile:
    """A file of the process 100, sampled each millisecond."""
    file = sample_file.SampleFile(str(path))
    file.write_json(sample_file.META, {"pid": 100, "interval_ns": MS, "monotonic_ns": 0, "unix_ns": 0, **facts})
    return file


def recorded_in(folder: Path, pid: int | None = None) -> RecordedProbe:
    """What a folder has."""
    found = read_host_probe(folder, pid)
    assert found is not None
    return found
