"""perfharness: where the time of an inference pipeline goes, per stage and per item, on CPU and GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfharness.notebook import show_with

if TYPE_CHECKING:
    from perfharness.recorder import PerfRecorder, get_default_arg_parser, parse_validate_default_args, startup_range
    from perfharness.runs.analyze import analyze
    from perfharness.runs.comparison.compare import compare_runs
    from perfharness.runs.comparison.compare import compare_runs as compare
    from perfharness.runs.launch import launch
    from perfharness.runs.run import open_run
    from perfharness.runs.series.launching import launch_in_turns, launch_series
    from perfharness.runs.series.machine import changes_between as machine_changes
    from perfharness_launcher.clocks import maximize_clocks

__all__ = [
    "PerfRecorder",
    "analyze",
    "compare",
    "compare_runs",
    "get_default_arg_parser",
    "launch",
    "launch_in_turns",
    "launch_series",
    "machine_changes",
    "maximize_clocks",
    "mlperf",
    "open_run",
    "parse_validate_default_args",
    "report",
    "startup_range",
    "stress",
]

# The module, and the name in it where that is another one. `mlperf`, `report` and `stress` are of layers that import
# this package, so type checkers know them as any function.
USE_CASES = {
    "analyze": "perfharness.runs.analyze",
    "compare": "perfharness.runs.comparison.compare:compare_runs",
    "compare_runs": "perfharness.runs.comparison.compare",
    "launch": "perfharness.runs.launch",
    "launch_in_turns": "perfharness.runs.series.launching",
    "launch_series": "perfharness.runs.series.launching",
    "machine_changes": "perfharness.runs.series.machine:changes_between",
    "maximize_clocks": "perfharness_launcher.clocks",
    "mlperf": "perfharness.load.mlperf.run",
    "open_run": "perfharness.runs.run",
    "report": "perfharness.render.report.files",
    "stress": "perfharness.load.stress",
}


def __getattr__(name: str) -> Any:
    """Import on first use: the traced process imports this package even if it makes no recorder."""
    if name in USE_CASES:
        from importlib import import_module

        module, _, own_name = USE_CASES[name].partition(":")
        return getattr(import_module(module), own_name or name)
    if name in __all__:
        import perfharness.recorder

        return getattr(perfharness.recorder, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _notebook_html(result: object) -> str | None:
    from importlib import import_module

    html: str | None = import_module("perfharness.render.report.notebook").result_html(result)
    return html


show_with(_notebook_html)
