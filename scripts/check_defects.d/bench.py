"""Rows of the defect tables that concern `perfharness bench`, its statistics, charts and comparisons."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests/unit")]

Row = tuple[bool, str, str, str]
"""Whether it is right, the row, what came out, what is right."""


def ar(random: np.random.Generator, count: int, phi: float) -> np.ndarray:
    noise = random.normal(size=count + 200)
    values = np.zeros(count + 200)
    for index in range(1, count + 200):
        values[index] = phi * values[index - 1] + noise[index]
    return values[200:] * np.sqrt(1 - phi**2)


def intervals() -> Iterator[Row]:
    """coverage.py and stable.py: of what is given, about 95 % hold."""
    from perfharness.analysis.latency_statistics import is_settled, mean_estimate, quantile_estimate

    random = np.random.default_rng(7)
    for name, make in {
        "exponential": lambda n: 9 + random.exponential(size=n),
        "AR 0.5": lambda n: 10 + ar(random, n, 0.5),
        "AR 0.9": lambda n: 10 + ar(random, n, 0.9),
        "AR 0.98": lambda n: 10 + ar(random, n, 0.98),
    }.items():
        given = held = 0
        for count in (6, 10, 15, 20, 30, 50, 100, 300, 1000):
            for _ in range(40):
                found = mean_estimate(make(count))
                if found.low is not None and found.high is not None:
                    given += 1
                    held += found.low <= 10 <= found.high
        ok = given == 0 or held / given >= 0.92
        yield ok, f"coverage.py, mean of {name}", f"{held} of {given} given hold (360 series)", "95 % of those given"
    settled = [is_settled(100 + 3 * ar(random, 20, 0.98), 1.0) for _ in range(200)]
    yield not any(settled), "stable.py, 20 iterations", f"{sum(settled)} of 200 stable", "none: too few to say"
    few = quantile_estimate(100 + 3 * ar(random, 20, 0.98), 0.5)
    text = "no interval" if few is not None and few.low is None else "an interval"
    yield text == "no interval", "p50 of 20 iterations", text, "null with the reason"


def proven() -> Iterator[Row]:
    """`bench sweep --latency-target`: nothing is proven where the next size is undecided."""
    from test_bench_sweep import Table

    from perfharness.bench.sweep import largest_batch

    found = largest_batch(Table(lambda size: 2 + size / 2, half=0.2), 9.9, largest=64)
    came = f"batch {found.batch_size}, undecided {found.undecided}, proven {found.proven}"
    yield not found.proven, "bench sweep --latency-target", came, "proven false where the next is undecided"


def accuracy() -> Iterator[Row]:
    """acc.py and the direction of an own metric."""
    import tempfile

    from bench_results import made_up

    from perfharness.analysis.recommendation import recommend
    from perfharness.bench.accuracy.difference import DifferenceAccumulator
    from perfharness.bench.accuracy.of_case import Comparison
    from perfharness.bench.accuracy.samples import Sample
    from perfharness.bench.accuracy.settings import AccuracySettings
    from perfharness.bench.suite_check import make_suite
    from perfharness.errors import UsageError
    from perfharness.model.bench import AccuracyRecord
    from perfharness.model.bench_suite import Constraints

    whole = DifferenceAccumulator()
    for number in range(10):
        values = np.arange(1.0, 101)
        whole.update(values * (number != 3), values, str(number))
    found = whole.figures()["cosine_min"]
    yield found.value is None, "acc.py: one of ten all zeros", f"{found.value} ({found.reason})", "null with the reason"
    with tempfile.TemporaryDirectory() as folder:
        comparison = Comparison(AccuracySettings(inputs=Path(folder)))
        comparison.update(Sample("a", Path(folder)), {"y": np.arange(4.0)}, {"y": np.arange(4.0)})
        given = "top1_agreement" in comparison.record("torch").metrics
        yield not given, "top1_agreement", "given" if given else "not given", "not given of what is no classification"
        (Path(folder) / "own.py").write_text("def wer(outputs, reference, sample):\n    return 0.0\n")
        suite = {"models": ["own.py:wer"], "backends": ["torch"], "folder": Path(folder),
                 "constraints": {"accuracy_metric": "wer", "max_accuracy_loss": 0.01}}  # fmt: skip
        try:
            make_suite(suite, "suite")
            came = "taken"
        except UsageError as error:
            came = f"usage error: {error}"
        yield "accuracy_direction" in came, "own metric without a direction", came, "usage error with the next step"
    case = made_up("x", accuracy=AccuracyRecord(against="torch", samples=9, metrics={"wer": 0.035}))
    limits = Constraints(max_accuracy_loss=0.01, accuracy_metric="wer", accuracy_direction="lower")
    (told,) = recommend([case], limits, None)
    yield told.best is None, "wer 0.035, limit 0.01", f"best {told.best}", "none meets it"


CASES: list[Callable[[], Iterator[Row]]] = [intervals, proven, accuracy]


def main() -> int:
    """Run all; 1 where a row is BAD."""
    bad = False
    for case in CASES:
        try:
            rows = list(case())
        except Exception as error:
            rows = [(False, case.__doc__ or case.__name__, f"{type(error).__name__}: {error}", "no error")]
        for ok, row, came, right in rows:
            bad = bad or not ok
            print(f"{'ok ' if ok else 'BAD'}  {row}  {came}  (right: {right})", flush=True)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
