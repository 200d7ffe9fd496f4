"""The two kinds of models that are read from files."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Part of a file that perfharness writes. Keys of later versions are ignored; built when first used."""

    model_config = ConfigDict(defer_build=True, extra="ignore", frozen=True)


class Settings(BaseModel):
    """What a user writes: an unknown key is a mistake; built when first used."""

    model_config = ConfigDict(defer_build=True, extra="forbid", frozen=True)
