"""perfharness: where the time of an inference pipeline goes, per stage and per item, on CPU and GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfharness.inputs import open_run
    from perfharness.recorder import PerfRecorder, get_default_arg_parser, parse_validate_default_args, startup_range

__all__ = ["PerfRecorder", "get_default_arg_parser", "open_run", "parse_validate_default_args", "startup_range"]


def __getattr__(name: str) -> Any:
    """Import on first use: the traced process imports this package before it is known whether it wants a recorder."""
    if name == "open_run":
        from perfharness.inputs import open_run

        return open_run
    if name in __all__:
        import perfharness.recorder

        return getattr(perfharness.recorder, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
