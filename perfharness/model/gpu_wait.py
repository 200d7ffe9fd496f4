"""How long a launch waited for a GPU to cool down, as it stands in `manifest.json` and `repeat.json`."""

from __future__ import annotations

from perfharness.model.base import Record


class GpuWait(Record):
    """The wait for one GPU; temperatures in degrees Celsius, None where they could not be read."""

    gpu_uuid: str
    target_c: float
    begin_c: int | None
    end_c: int | None
    waited_s: float
    """Until it was cool enough, or was given up."""

    reached: bool
    reason: str | None = None
    """Why its temperature could not be read."""
