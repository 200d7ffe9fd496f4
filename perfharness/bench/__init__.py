"""Measure models over backends, precisions and batch sizes: what `perfharness bench` does, for Python.

`run_suite(load_suite(Path("suite.toml"), {"run.seed": 3}), Path("bench_out"))` returns what `bench.json` holds.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfharness.bench.engines.compare import compare_engines
    from perfharness.bench.search.run import load_sweep, run_sweep
    from perfharness.bench.suite.check import load_suite
    from perfharness.bench.suite.run import recommend_again, run_suite
    from perfharness.bench.suite.startup import run_startup

_MODULES = {
    "compare_engines": "engines.compare",
    "load_suite": "suite.check",
    "load_sweep": "search.run",
    "recommend_again": "suite.run",
    "run_startup": "suite.startup",
    "run_suite": "suite.run",
    "run_sweep": "search.run",
}
__all__ = [
    "compare_engines",
    "load_suite",
    "load_sweep",
    "recommend_again",
    "run_startup",
    "run_suite",
    "run_sweep",
]


def __getattr__(name: str) -> Any:
    """Import on first use: the process of a case imports this package, and needs none of it."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
