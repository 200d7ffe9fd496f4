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


def charts() -> Iterator[Row]:
    """Bars of p50, names with `$`, two variants of a backend, merged runs."""
    import tempfile

    import test_bench_results as made

    from perfharness.bench.merge import merge_suites
    from perfharness.report.bench_chart import Chart
    from perfharness.report.bench_charts import CHARTS, draw_charts

    chart = Chart(made.suite_of(*(made.made_up("torch", n, latency_ms=10.0 * n, spread=0.1) for n in (1, 4))), "p50")
    CHARTS["latency"](chart)
    bars = made.bars_of(chart)
    yield all(bar > 0 for bar in bars), "charts of p50", f"bars of {bars} ms", "bars"
    with tempfile.TemporaryDirectory() as folder:
        drawn = len(draw_charts(made.suite_of(made.made_up("torch", model="$x^$"), hostname="$\\frac{$"), Path(folder)))
    yield drawn > 0, "`$…$` in names", f"{drawn} charts", "charts"
    one = made.suite_of(*(made.variant(f"threads={n}", size) for n in (1, 2) for size in (1, 4, 16)))
    two = made.suite_of(made.variant("threads=1", 8))
    merged = merge_suites([("a", one), ("b", two)])
    order = [(row.variant, row.batch_size) for row in merged.rows]
    numbers = [run.machine_number for run in merged.runs]
    right = [("threads=1", n) for n in (1, 4, 8, 16)] + [("threads=2", n) for n in (1, 4, 16)]
    yield (
        order == right and numbers == [1, 1],
        "bench merge",
        f"{order}, machines {numbers}",
        "all, in order, one machine",
    )


def commands() -> Iterator[Row]:
    """Command lines and their exit codes."""
    import subprocess
    import tempfile

    import test_bench_suite as suites
    import test_compare_engines as engines
    import test_torch_backend as torches
    from bench_results import made_up, suite_of

    from perfharness.bench.store import write_suite

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def run(*arguments: object) -> tuple[int, str]:
            command = [sys.executable, "-m", "perfharness", *map(str, arguments)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            return done.returncode, (done.stderr.strip().splitlines() or [""])[-1]

        suites.open_shapes(folder / "open.onnx")
        model = ("bench", "--backend", "onnxruntime", "--model", folder / "open.onnx", "--dry-run")
        code, said = run(*model)
        yield code == 2, "bench --model open_shapes.onnx --dry-run", f"exit {code}: {said}", "2, names --shape"
        code, said = run(*model, "--shape", "image=batchx3x8x8")
        yield code == 0, "the same with --shape", f"exit {code}", "0"
        (folder / "shown").mkdir()
        write_suite(folder / "shown", suite_of(made_up("torch", latency_ms=10)))
        code, _ = run("bench", "show", folder / "shown", "--max-latency-ms", "1")
        yield code == 3, "bench show, none meets the constraints", f"exit {code}", "3"
        np.save(folder / "a.npy", np.ones((3, 8, 8), np.float32))
        (folder / "gt.npy").write_bytes(b"no array")
        given = ("--engines", engines.random_net(folder / "a.onnx"), "--image", folder / "a.npy")
        code, _ = run("compare-engines", *given, "--gt", folder / "gt.npy", "-o", folder / "out")
        ok = code == 3 and not (folder / "out").exists()
        yield ok, "unreadable --gt", f"exit {code}, started: {(folder / 'out').exists()}", "3, nothing started"
    for entry in ("sample_inputs", "weights"):
        with tempfile.TemporaryDirectory() as name:
            try:
                torches.test_a_crafted_program_runs_no_code(Path(name), entry)
                came = "no code ran"
            except AssertionError:
                came = "code ran"
            yield came == "no code ran", f"a crafted .pt2 ({entry})", came, "no code runs"


def faults() -> Iterator[Row]:
    """Kills, and two benches on one folder."""
    import tempfile

    sys.path.insert(0, str(ROOT))
    from tests.integration import test_bench_faults as tests

    for row, test in (
        ("two bench --resume; SIGKILL of the helper", tests.test_two_benches_on_one_folder_and_a_killed_helper),
        ("bench's parent killed", lambda folder: tests.test_the_case_ends_with_a_killed_parent(folder, "bench")),
        (
            "compare-engines' parent killed",
            lambda folder: tests.test_the_case_ends_with_a_killed_parent(folder, "compare-engines"),
        ),
    ):
        with tempfile.TemporaryDirectory() as name:
            try:
                test(Path(name))
                came = "ended, nobody left, results kept"
            except AssertionError as error:
                came = f"failed: {str(error).splitlines()[0] if str(error) else 'see the test'}"
        yield came.startswith("ended"), row, came, "ends, nobody left, results kept"


CASES: list[Callable[[], Iterator[Row]]] = [intervals, proven, accuracy, charts, commands, faults]


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
