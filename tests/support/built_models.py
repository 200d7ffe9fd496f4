"""Models that commands build on first use, built: for a process that commands are forked from."""

from __future__ import annotations

from perfharness.model.journal import RecorderJournal
from perfharness.model.load import LoadResult
from perfharness.model.manifest import RunManifest
from perfharness.model.telemetry import TelemetryMeta
from perfharness_launcher.options import LaunchOptions

for model in (LaunchOptions, LoadResult, RecorderJournal, RunManifest, TelemetryMeta):
    model.model_rebuild()
