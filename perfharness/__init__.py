"""perfharness: see where an inference pipeline spends its time, per stage and item, on CPU and GPU."""

from __future__ import annotations

from typing import Any

RECORDER = ("PerfRecorder", "get_default_arg_parser", "parse_validate_default_args", "startup_range")

USE_CASES = {
    "AccuracyBenchmark": "perfharness.bench.live",
    "BenchmarkSuite": "perfharness.render.report.live",
    "GPUProfiler": "perfharness.bench.live",
    "LatencyBenchmark": "perfharness.bench.live",
    "StressTest": "perfharness.load.live",
    "ThroughputBenchmark": "perfharness.bench.live",
    "analyze": "perfharness.runs.analyze",
    "compare": "perfharness.runs.comparison.compare:compare_runs",
    "launch": "perfharness.runs.launch",
    "launch_in_turns": "perfharness.runs.series.launching",
    "launch_series": "perfharness.runs.series.launching",
    "load_suite": "perfharness.bench.suite",
    "machine_changes": "perfharness.runs.series.machine:changes_between",
    "maximize_clocks": "perfharness_launcher.clocks",
    "open_run": "perfharness.runs.run",
    "record": "perfharness.runs.record",
    "report": "perfharness.render.report.files",
    "run_mlperf": "perfharness.load.mlperf",
    "run_suite": "perfharness.bench.run",
    "stress": "perfharness.load.stress",
}
"""Module, with `:name` if the name differs there. Types are in `__init__.pyi`."""

__all__ = [*RECORDER, *USE_CASES]


def __getattr__(name: str) -> Any:
    """Import on first use, because a traced process imports this package even without a recorder."""
    if name in USE_CASES:
        from importlib import import_module

        module, _, own_name = USE_CASES[name].partition(":")
        return getattr(import_module(module), own_name or name)
    if name == "__version__":
        from perfharness.distribution import VERSION

        return VERSION
    if name in RECORDER:
        import perfharness.recorder

        return getattr(perfharness.recorder, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
