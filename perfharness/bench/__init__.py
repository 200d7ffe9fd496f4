"""Measure models over backends, precisions and batch sizes: the Python interface of `perfharness bench`.

`run_suite(load_suite(Path("suite.toml"), {"run.seed": 3}), Path("bench_out"))` returns the content of `bench.json`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfharness.bench.engines.compare import compare_engines
    from perfharness.bench.run import BenchObserver, recommend_again, run_suite
    from perfharness.bench.startup import run_startup
    from perfharness.bench.suite import load_suite
    from perfharness.runs.comparison.suites import read_suite

_MODULES = {
    "BenchObserver": "bench.run",
    "compare_engines": "bench.engines.compare",
    "load_suite": "bench.suite",
    "read_suite": "runs.comparison.suites",
    "recommend_again": "bench.run",
    "run_startup": "bench.startup",
    "run_suite": "bench.run",
}
__all__ = [
    "BenchObserver",
    "compare_engines",
    "load_suite",
    "read_suite",
    "recommend_again",
    "run_startup",
    "run_suite",
]


def __getattr__(name: str) -> Any:
    """Import on first use, because the process of a case imports this package without using it."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"perfharness.{_MODULES[name]}"), name)
