"""Measure models over backends, precisions and batch sizes: the Python interface of `perfharness bench`.

`run_suite(load_suite(Path("suite.toml"), {"run.seed": 3}), Path("bench_out"))` returns the content of `bench.json`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfharness.bench.engines.compare import compare_engines as compare_engines
    from perfharness.bench.run import BenchObserver as BenchObserver
    from perfharness.bench.run import run_suite as run_suite
    from perfharness.bench.startup import run_startup as run_startup
    from perfharness.bench.suite import load_suite as load_suite
    from perfharness.runs.comparison.suites import read_suite as read_suite

_MODULES = {
    "BenchObserver": "bench.run",
    "compare_engines": "bench.engines.compare",
    "load_suite": "bench.suite",
    "read_suite": "runs.comparison.suites",
    "run_startup": "bench.startup",
    "run_suite": "bench.run",
}


def __getattr__(name: str) -> Any:
    """Import on first use, because the process of a case imports this package without using it."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"perfharness.{_MODULES[name]}"), name)
