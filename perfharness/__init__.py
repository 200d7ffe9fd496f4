"""perfharness: where the time of an inference pipeline goes, per stage and per item, on CPU and GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfharness.notebook import show_with

if TYPE_CHECKING:
    from perfharness.recorder import PerfRecorder, get_default_arg_parser, parse_validate_default_args, startup_range
    from perfharness.runs.analyze import analyze
    from perfharness.runs.comparison.compare import compare_runs as compare
    from perfharness.runs.launch import launch
    from perfharness.runs.run import open_run
    from perfharness.runs.series.cold_start import cold_start
    from perfharness.runs.series.overhead import measure_overhead
    from perfharness.runs.series.repeat import repeat, repeat_cases
    from perfharness.runs.series.steadiness import unsteadiness
    from perfharness.runs.series.sweep import sweep_processes
    from perfharness_launcher.clocks import maximize_clocks

__all__ = [
    "PerfRecorder",
    "analyze",
    "cold_start",
    "compare",
    "get_default_arg_parser",
    "launch",
    "maximize_clocks",
    "measure_overhead",
    "mlperf",
    "open_run",
    "parse_validate_default_args",
    "repeat",
    "repeat_cases",
    "report",
    "startup_range",
    "stress",
    "sweep_processes",
    "unsteadiness",
]

# The module, and the name in it where that is another one. `mlperf`, `report` and `stress` are of layers that import
# this package, so type checkers know them as any function.
USE_CASES = {
    "analyze": "perfharness.runs.analyze",
    "cold_start": "perfharness.runs.series.cold_start",
    "compare": "perfharness.runs.comparison.compare:compare_runs",
    "launch": "perfharness.runs.launch",
    "maximize_clocks": "perfharness_launcher.clocks",
    "measure_overhead": "perfharness.runs.series.overhead",
    "mlperf": "perfharness.load.mlperf.run",
    "open_run": "perfharness.runs.run",
    "repeat": "perfharness.runs.series.repeat",
    "repeat_cases": "perfharness.runs.series.repeat",
    "report": "perfharness.render.report.files",
    "stress": "perfharness.load.stress",
    "sweep_processes": "perfharness.runs.series.sweep",
    "unsteadiness": "perfharness.runs.series.steadiness",
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
