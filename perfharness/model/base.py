"""Base classes of models read from files."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Part of a file written by perfharness. Keys of later versions are ignored; schemas are built on first use."""

    model_config = ConfigDict(defer_build=True, extra="ignore", frozen=True)


class Settings(BaseModel):
    """User input, where unknown keys are errors; schemas are built on first use."""

    model_config = ConfigDict(defer_build=True, extra="forbid", frozen=True)
